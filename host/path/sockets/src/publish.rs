//! PUB: binds, queues each frame for the subscribers that asked for its topic, and drops a frame for a subscriber whose
//! queue is full.
//!
//! Each subscriber has its own queue, so that a slow one delays no other. The queues share the frames' bytes. NoticeQueue
//! name the numbers of dropped frames.

mod notice;
mod subscriber;

use std::time::Instant;

use bytes::Bytes;
use mio::event::Event;
use mio::{Interest, Registry, Token};

pub use self::notice::{PubNotice, PubOptions, PubTotals};

use self::subscriber::{QueueResult, Subscriber, WireFrame};
use crate::acceptor::{Acceptor, clone_registry};
use crate::conn::{Conn, PeerAddress, TokenRange};
use crate::dropped::Dropped;
use crate::listener::{BindError, Listener};
use crate::notices::NoticeQueue;
use crate::peers::{CloseReason, PeerId, RefusalReason};
use afterbay_types::Endpoint;

/// A bound PUB socket. Dropping it closes its subscribers and unlinks its ipc file if the file is still its own.
#[derive(Debug)]
pub struct Pub {
    acceptor: Acceptor,
    registry: Registry,
    tokens: TokenRange,
    options: PubOptions,
    /// Subscribers by token: slot 0 has the range's second token (the listener has the first).
    slots: Vec<Option<Subscriber>>,
    next_subscriber: u64,
    /// The latest time that a caller passed in. A deadline that is due at once is this time.
    now: Instant,
    totals: PubTotals,
    notices: NoticeQueue<PubNotice>,
}

impl Pub {
    /// Binds. An ipc name of a regular file or of a stale socket is taken over; the name of a live listener is not.
    pub fn bind(
        registry: &Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PubOptions,
        now: Instant,
    ) -> Result<Pub, BindError> {
        let listener = Listener::bind(endpoint, options.listen_mode, None)?;
        let registry = clone_registry(registry, endpoint)?;
        Ok(Pub {
            acceptor: Acceptor::open(listener, &registry, Token(tokens.first))?,
            registry,
            tokens,
            options,
            slots: Vec::new(),
            next_subscriber: 1,
            now,
            totals: PubTotals::default(),
            notices: NoticeQueue::new(),
        })
    }

    /// Whether this socket owns the token.
    pub fn owns(&self, token: Token) -> bool {
        self.tokens.contains(token)
    }

    /// Handles one event of the poll, and accepts connections. Only [`Pub::flush`] reads and writes.
    pub fn ready(&mut self, event: &Event, now: Instant) {
        match event.token().0.checked_sub(self.tokens.first) {
            Some(0) => self.accept(now),
            Some(slot) => {
                if let Some(Some(subscriber)) = self.slots.get_mut(slot - 1) {
                    subscriber.woken(event.is_writable());
                }
            }
            None => {}
        }
    }

    /// Closes subscribers whose handshake timed out, accepts again after a failure, and flushes. Call it when
    /// [`Pub::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        if self.acceptor.accept_at().is_some_and(|at| at <= now) {
            self.accept(now);
        }
        self.flush(now);
        for slot in 0..self.slots.len() {
            let is_late = |subscriber: &Subscriber| !subscriber.is_ready() && subscriber.until <= now;
            if self.slots[slot].as_ref().is_some_and(is_late) {
                self.close(slot, CloseReason::HandshakeTimeout(self.options.handshake_timeout));
            }
        }
    }

    /// The time at which [`Pub::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let subscribers = self.slots.iter().flatten().filter_map(|subscriber| {
            let handshake = (!subscriber.is_ready()).then_some(subscriber.until);
            if subscriber.has_more() { Some(self.now) } else { handshake }
        });
        subscribers.chain(self.acceptor.accept_at()).min()
    }

    /// Queues a frame for every subscriber that wants it. [`Pub::flush`] sends it. NoticeQueue about dropped frames use
    /// `number`.
    pub fn send(&mut self, number: u64, bytes: &Bytes) {
        if self.slots.iter().all(Option::is_none) {
            return;
        }
        let frame = WireFrame::new(bytes);
        for subscriber in self.slots.iter_mut().flatten() {
            let result = loop {
                match subscriber.enqueue(&frame, &self.options) {
                    // After many frames in a row the kernel may still take some.
                    QueueResult::Full
                        if subscriber.is_writable() && subscriber.write(&mut self.totals).is_ok() => {}
                    result => break result,
                }
            };
            match result {
                QueueResult::Unwanted => {}
                QueueResult::Queued => self.notices.push_some(dropped_notice(subscriber)),
                QueueResult::Full => {
                    self.totals.frames_dropped += 1;
                    self.totals.bytes_dropped += bytes.len() as u64;
                    if Dropped::note(&mut subscriber.dropped, number) {
                        let (subscriber, from) = (subscriber.id, subscriber.from.clone());
                        self.notices.push(PubNotice::Dropping { subscriber, from, first: number });
                    }
                }
            }
        }
    }

    /// Reads requests of subscribers and writes queued frames, for each subscriber at most a turn's bound.
    pub fn flush(&mut self, now: Instant) {
        self.now = now;
        for slot in 0..self.slots.len() {
            let Some(subscriber) = &mut self.slots[slot] else { continue };
            let read = subscriber.read();
            if let Ok(true) = read {
                let (subscriber, from) = (subscriber.id, subscriber.from.clone());
                self.notices.push(PubNotice::Connected { subscriber, from });
            }
            if let Err(why) = read.and_then(|_| subscriber.write(&mut self.totals)) {
                self.close(slot, why);
            }
        }
    }

    /// The sums since the start.
    pub fn totals(&self) -> PubTotals {
        self.totals
    }

    /// Subscribers with at least one subscription.
    pub fn subscribed(&self) -> usize {
        self.slots.iter().flatten().filter(|subscriber| subscriber.wants_anything()).count()
    }

    /// Queued frames of all subscribers. A frame that is queued for several counts for each.
    pub fn queue_frames(&self) -> usize {
        self.slots.iter().flatten().map(Subscriber::waiting).sum()
    }

    /// Queued bytes of all subscribers, counted likewise.
    pub fn queue_bytes(&self) -> u64 {
        self.slots.iter().flatten().map(Subscriber::queue_bytes).sum()
    }

    /// Returns the oldest notice that was not taken yet.
    pub fn next_notice(&mut self) -> Option<PubNotice> {
        self.notices.next(|count| PubNotice::Missed { count })
    }

    /// The bound endpoint, with the real port.
    pub fn endpoint(&self) -> &Endpoint {
        self.acceptor.endpoint()
    }

    fn accept(&mut self, now: Instant) {
        while let Some(accepted) = self.acceptor.next(now) {
            match accepted {
                Ok(conn) => self.admit(conn, now),
                Err(why) => return self.refuse(PeerAddress::Unknown, why, now),
            }
        }
    }

    fn admit(&mut self, conn: Conn, now: Instant) {
        let from = conn.peer_address();
        let most = self.options.max_subscribers.min(self.tokens.count.saturating_sub(1));
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot >= most {
            return self.refuse(from, RefusalReason::TooManyPeers(most), now);
        }
        let token = Token(self.tokens.first + 1 + slot);
        if let Err(error) = conn.register(&self.registry, token, Interest::READABLE | Interest::WRITABLE) {
            return self.refuse(from, RefusalReason::Io(format!("register: {error}")), now);
        }
        let id = PeerId(self.next_subscriber);
        self.next_subscriber += 1;
        let subscriber = Subscriber::new(id, conn, from, now + self.options.handshake_timeout);
        if slot == self.slots.len() {
            self.slots.push(Some(subscriber));
        } else {
            self.slots[slot] = Some(subscriber);
        }
    }

    fn refuse(&mut self, from: PeerAddress, why: RefusalReason, now: Instant) {
        if let Some(times) = self.acceptor.refused(now) {
            self.notices.push(PubNotice::Refused { from, why, times });
        }
    }

    fn close(&mut self, slot: usize, why: CloseReason) {
        let Some(mut subscriber) = self.slots[slot].take() else { return };
        subscriber.conn.deregister(&self.registry);
        self.notices.push_some(dropped_notice(&mut subscriber));
        let unsent = subscriber.waiting() as u64;
        let Subscriber { id, from, frames, .. } = subscriber;
        self.notices.push(PubNotice::Closed { subscriber: id, from, why, frames, unsent });
    }
}

/// Takes the subscriber's run of dropped frames, if it has one, and makes a notice of it.
fn dropped_notice(subscriber: &mut Subscriber) -> Option<PubNotice> {
    let Dropped { first, last, frames } = subscriber.dropped.take()?;
    Some(PubNotice::Dropped { subscriber: subscriber.id, frames, first, last })
}
