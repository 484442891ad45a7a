//! PUB: binds, gives each subscriber the frames that begin as it has asked for, and drops for it what finds no room.
//!
//! Each subscriber has a queue of its own, so that a slow one holds up no other, and holds a frame no longer than its bound
//! lets it: they share the frame's bytes. What one misses is numbered and told.

mod notice;
mod subscriber;

use std::time::Instant;

use bytes::Bytes;
use mio::event::Event;
use mio::{Interest, Registry, Token};

pub use self::notice::{PubNotice, PubOptions, PubTotals};

use self::subscriber::{Given, Subscriber};
use crate::conn::{Conn, PeerAddress, TokenRange};
use crate::door::Door;
use crate::dropped::Dropped;
use crate::endpoint::Endpoint;
use crate::notices::Notices;
use crate::pull::{BindError, CloseReason, Listener, PeerId, Refusal, clone_of};

/// A bound PUB socket. Dropped: its subscribers are closed, and its ipc file is unlinked if it is still its own.
#[derive(Debug)]
pub struct Pub {
    door: Door,
    registry: Registry,
    tokens: TokenRange,
    options: PubOptions,
    /// By token: slot 0 has the range's second token (the listener has the first).
    slots: Vec<Option<Subscriber>>,
    next_subscriber: u64,
    /// The time as last told: what is due at once is due then.
    now: Instant,
    totals: PubTotals,
    notices: Notices<PubNotice>,
}

impl Pub {
    /// Binds. On ipc a regular file or a stale socket of that name is replaced; a living listener's is not.
    pub fn bind(
        registry: &Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PubOptions,
        now: Instant,
    ) -> Result<Pub, BindError> {
        let listener = Listener::bind(endpoint, options.listen_mode, None)?;
        let registry = clone_of(registry, endpoint)?;
        Ok(Pub {
            door: Door::open(listener, &registry, Token(tokens.first))?,
            registry,
            tokens,
            options,
            slots: Vec::new(),
            next_subscriber: 1,
            now,
            totals: PubTotals::default(),
            notices: Notices::new(),
        })
    }

    /// Whether an event with this token is for this socket.
    pub fn owns(&self, token: Token) -> bool {
        self.tokens.contains(token)
    }

    /// Notes what an event of the poll says, and accepts connections. Nothing is read or written before [`Pub::flush`].
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

    /// Closes subscribers whose handshake takes too long, accepts again after a failure, flushes. Call it when
    /// [`Pub::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        if self.door.accept_at().is_some_and(|at| at <= now) {
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

    /// When [`Pub::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let subscribers = self.slots.iter().flatten().filter_map(|subscriber| {
            let handshake = (!subscriber.is_ready()).then_some(subscriber.until);
            if subscriber.has_more() { Some(self.now) } else { handshake }
        });
        subscribers.chain(self.door.accept_at()).min()
    }

    /// Gives a frame to all who want it: it leaves with the next [`Pub::flush`]. `number` names it where it is dropped.
    pub fn send(&mut self, number: u64, bytes: &Bytes) {
        for subscriber in self.slots.iter_mut().flatten() {
            let given = loop {
                match subscriber.give(bytes, &self.options) {
                    // Many in a row: what the kernel takes is not in the way.
                    Given::Full if subscriber.is_writable() && subscriber.write(&mut self.totals).is_ok() => {
                    }
                    given => break given,
                }
            };
            match given {
                Given::Unwanted => {}
                Given::Queued => self.notices.push_some(told_dropped(subscriber)),
                Given::Full => {
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

    /// Reads what subscribers ask for, and writes what the kernel takes: of each as much as a turn may.
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

    /// What was done so far.
    pub fn totals(&self) -> PubTotals {
        self.totals
    }

    /// Subscribers that have subscribed to something.
    pub fn subscribed(&self) -> usize {
        self.slots.iter().flatten().filter(|subscriber| subscriber.wants_anything()).count()
    }

    /// Frames that wait, of all subscribers: one that waits for several counts for each.
    pub fn queue_frames(&self) -> usize {
        self.slots.iter().flatten().map(Subscriber::waiting).sum()
    }

    /// Bytes likewise.
    pub fn queue_bytes(&self) -> u64 {
        self.slots.iter().flatten().map(Subscriber::queue_bytes).sum()
    }

    /// What happened, oldest first.
    pub fn next_notice(&mut self) -> Option<PubNotice> {
        self.notices.next(|count| PubNotice::Missed { count })
    }

    /// Where it is bound, with the real port.
    pub fn endpoint(&self) -> &Endpoint {
        self.door.endpoint()
    }

    fn accept(&mut self, now: Instant) {
        while let Some(came) = self.door.next(now) {
            match came {
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
            return self.refuse(from, Refusal::TooManyPeers(most), now);
        }
        let token = Token(self.tokens.first + 1 + slot);
        if let Err(error) = conn.register(&self.registry, token, Interest::READABLE | Interest::WRITABLE) {
            return self.refuse(from, Refusal::Io(format!("register: {error}")), now);
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

    fn refuse(&mut self, from: PeerAddress, why: Refusal, now: Instant) {
        if let Some(times) = self.door.refused(now) {
            self.notices.push(PubNotice::Refused { from, why, times });
        }
    }

    fn close(&mut self, slot: usize, why: CloseReason) {
        let Some(mut subscriber) = self.slots[slot].take() else { return };
        subscriber.conn.deregister(&self.registry);
        self.notices.push_some(told_dropped(&mut subscriber));
        let unsent = subscriber.waiting() as u64;
        let Subscriber { id, from, frames, .. } = subscriber;
        self.notices.push(PubNotice::Closed { subscriber: id, from, why, frames, unsent });
    }
}

/// What it was not given, if it was that until now.
fn told_dropped(subscriber: &mut Subscriber) -> Option<PubNotice> {
    let Dropped { first, last, frames } = subscriber.dropped.take()?;
    Some(PubNotice::Dropped { subscriber: subscriber.id, frames, first, last })
}
