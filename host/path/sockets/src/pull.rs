//! PULL: binds, and receives whole messages from its peers in turn.
//!
//! The poll is edge-triggered. A peer is in the `ring` while the kernel or its buffer may have bytes of it, and leaves
//! the ring only when a read blocks. A peer gives one message and goes to the ring's end, so that no peer holds up the
//! others.

mod adopt;
mod notice;
mod options;
mod sender;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Instant;

use afterbay_supervision::fdstore::{FdName, Inherited, Kept};
use mio::event::Event;
use mio::{Interest, Registry, Token};

pub use self::notice::{Message, PullNotice};
pub use self::options::PullOptions;

use self::adopt::{Listeners, NotAdopted};
use self::sender::{Keeper, Sender, TurnResult};
use crate::acceptor::{Acceptor, clone_registry};
use crate::bounds::{BUFFER_KEPT_FOR, HANDSHAKES_MAX, READ_CALL_BYTES};
use crate::conn::{Conn, PeerAddress, TokenRange};
use crate::lasting::{Lasting, ReceiveBuffer};
use crate::listener::{BindError, Listener};
use crate::notices::NoticeQueue;
use crate::peers::{CloseReason, PeerId, RefusalReason};
use afterbay_types::Endpoint;

/// A bound PULL socket. Dropping it closes its peers and unlinks its ipc file if the file is still its own. Bytes that
/// the kernel has received by then are lost: see [`Pull::close`].
///
/// At most one message is in hand: [`Pull::receive`] returned it, and it is not done. A later process receives it again, and
/// everything after it. It is done at [`Pull::done`] or the next [`Pull::receive`], or if it was noted ([`Pull::note`]) as a
/// frame that the journal has.
#[derive(Debug)]
pub struct Pull {
    acceptor: Acceptor,
    registry: Registry,
    tokens: TokenRange,
    options: PullOptions,
    /// Peers by token: slot 0 has the range's second token (the listener has the first).
    slots: Vec<Option<Sender>>,
    peers: usize,
    /// Slots that have bytes to read or to parse.
    ring: VecDeque<usize>,
    /// Slots in their handshake and when it times out, oldest first.
    handshakes: VecDeque<(usize, Instant)>,
    paused: bool,
    in_hand: Option<InHand>,
    /// The store that holds the senders. `None`: they end with this process.
    keeper: Option<Keeper>,
    /// The listener's entry in the store.
    listener_kept: Option<Kept>,
    /// The listener of an earlier process for another endpoint. Dropped once this socket is in use.
    retired: Option<Listener>,
    /// The buffer of the next connection. It is made first, so that no connection is accepted and then refused for lack of
    /// memory or descriptors.
    spare: Option<ReceiveBuffer>,
    /// The time to return memory of big messages.
    trim_at: Option<Instant>,
    /// The time at which [`Pull::close`] was called.
    closing: Option<Instant>,
    /// The latest time that a caller passed in.
    now: Instant,
    next_peer: u64,
    /// Whether the memories of adopted senders are as the earlier process left them.
    has_unclaimed: bool,
    notices: NoticeQueue<PullNotice>,
}

/// A message that [`Pull::receive`] returned and that is not done.
#[derive(Clone, Copy, Debug)]
struct InHand {
    slot: usize,
    bytes: usize,
}

impl Pull {
    /// Binds. An ipc name of a regular file or of a stale socket is taken over; the name of a live listener is not. Continues
    /// the listener and the senders that `lasting` has of an earlier process. Without `lasting`, everything ends with this
    /// process.
    ///
    /// Until [`Pull::tick`] or [`Pull::ready`], another process can still go on with the same sockets. Only
    /// [`Pull::receive`] reads from the kernel. Without it nothing is read, and a sender's PING is not answered either.
    pub fn bind(
        registry: &Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PullOptions,
        mut lasting: Option<Lasting<'_>>,
    ) -> Result<Pull, BindError> {
        let registry = clone_registry(registry, endpoint)?;
        let mut notices = NoticeQueue::new();
        let Listeners { present, retired } =
            Listeners::open(endpoint, &options, lasting.as_mut(), &mut notices)?;
        let listener_kept = lasting.as_ref().map(|lasting| {
            lasting.store.keep(FdName::listener(lasting.stream), &[present.conn().fd().as_fd()])
        });
        let mut pull = Pull {
            acceptor: Acceptor::open(present, &registry, Token(tokens.first))?,
            registry,
            tokens,
            options,
            slots: Vec::new(),
            peers: 0,
            ring: VecDeque::new(),
            handshakes: VecDeque::new(),
            paused: false,
            in_hand: None,
            keeper: lasting.as_ref().map(Keeper::new),
            listener_kept,
            retired,
            spare: None,
            trim_at: None,
            closing: None,
            now: Instant::now(),
            next_peer: 1,
            has_unclaimed: false,
            notices,
        };
        if let Some(lasting) = lasting {
            pull.adopt_senders(lasting.stream, lasting.inherited);
        }
        Ok(pull)
    }

    fn adopt_senders(&mut self, stream: &str, inherited: &mut Inherited) {
        for (name, fds) in inherited.take_with_prefix(&FdName::senders(stream)) {
            // Also the id of a sender that is not continued is never used again.
            self.next_peer = self.next_peer.max(name.sender_id().unwrap_or(0).saturating_add(1));
            let Some(keeper) = &self.keeper else { return };
            let adopted = adopt::sender(&name, fds, &self.options, keeper);
            if let Err(NotAdopted { why, lost }) = adopted.and_then(|sender| self.continue_sender(sender)) {
                self.notices.push(PullNotice::NotAdopted { name: name.to_string(), why, lost });
            }
        }
    }

    fn continue_sender(&mut self, sender: Sender) -> Result<(), NotAdopted> {
        let (slot, most) = (self.slots.len(), self.tokens.count.saturating_sub(1));
        let refuse = |why| NotAdopted { why, lost: sender.unread_bytes() };
        if slot >= most {
            return Err(refuse(format!("{most} peers are connected, the limit")));
        }
        let token = Token(self.tokens.first + 1 + slot);
        sender
            .conn
            .register(&self.registry, token, Interest::READABLE)
            .map_err(|error| refuse(format!("register: {error}")))?;
        let (peer, from, bytes) = (sender.id, sender.from.clone(), sender.open_bytes());
        self.notices.push(PullNotice::Adopted { peer, from, bytes });
        if !sender.is_ready() {
            self.handshakes.push_back((slot, self.now + self.options.handshake_timeout));
        }
        self.slots.push(Some(sender));
        self.has_unclaimed = true;
        self.peers += 1;
        self.enter_ring(slot);
        Ok(())
    }

    /// No other process goes on with the sockets of an earlier process.
    fn claim(&mut self) {
        self.acceptor.claim();
        if std::mem::take(&mut self.has_unclaimed) {
            self.slots.iter_mut().flatten().for_each(Sender::claim);
        }
        if let Some(mut retired) = self.retired.take() {
            retired.claim();
        }
    }

    /// Leaves all sockets to another process, which has their descriptors. Nothing is shut down or unlinked.
    pub fn leave(mut self) {
        self.acceptor.leave();
    }

    /// Whether this socket owns the token.
    pub fn owns(&self, token: Token) -> bool {
        self.tokens.contains(token)
    }

    /// Handles one event of the poll. New connections are accepted also while paused, and not read.
    pub fn ready(&mut self, event: &Event, now: Instant) {
        self.now = now;
        self.claim();
        match event.token().0.checked_sub(self.tokens.first) {
            Some(0) => self.accept(now),
            Some(slot) => {
                if let Some(Some(peer)) = self.slots.get_mut(slot - 1) {
                    // Whatever the event is (also hang-up or error), the reads find out, after everything that the peer
                    // sent before.
                    peer.readable = true;
                    self.enter_ring(slot - 1);
                }
            }
            None => {}
        }
    }

    /// Closes peers whose handshake timed out, accepts again after a failure, and continues [`Pull::close`]. Call it
    /// when [`Pull::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        self.claim();
        if self.trim_at.take_if(|at| *at <= now).is_some() {
            self.slots.iter_mut().flatten().for_each(Sender::trim);
            let is_big = self.slots.iter().flatten().any(Sender::is_big);
            self.trim_at = is_big.then(|| now + BUFFER_KEPT_FOR);
        }
        if let Some(since) = self.closing {
            return self.close_due(since, now);
        }
        if self.acceptor.accept_at().is_some_and(|at| at <= now) {
            self.accept(now);
        }
        while let Some((slot, until)) = self.handshakes.front().copied()
            && until <= now
        {
            // The handshake may be in the kernel, not read yet (we are paused, or our own reader is slow).
            if self.slots.get(slot).and_then(Option::as_ref).is_some_and(|peer| peer.readable) {
                self.handshakes.pop_front();
                self.handshakes.push_back((slot, now + self.options.handshake_timeout));
            } else {
                self.close_peer(slot, CloseReason::HandshakeTimeout(self.options.handshake_timeout));
            }
        }
    }

    /// Closes the peers of a closing socket that do not close by themselves.
    fn close_due(&mut self, since: Instant, now: Instant) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_mut().is_some_and(|peer| peer.close_due(since, now)) {
                self.enter_ring(slot);
            }
        }
    }

    /// The time at which [`Pull::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        if let Some(since) = self.closing {
            return self.slots.iter().flatten().filter_map(|peer| peer.close_deadline(since)).min();
        }
        let handshake = self.handshakes.front().map(|(_, until)| *until);
        [handshake, self.acceptor.accept_at(), self.trim_at].into_iter().flatten().min()
    }

    /// Returns the next whole message. `None`: wait on the poll, unless [`Pull::has_more`]. The message in hand is done.
    pub fn receive(&mut self) -> Option<Message> {
        if let Some(sender) = self.take_in_hand() {
            sender.settle();
        }
        let (mut spent, mut turns) = (0, self.ring.len());
        while !self.paused
            && spent < READ_CALL_BYTES
            && turns > 0
            && let Some(slot) = self.ring.pop_front()
        {
            turns -= 1;
            let Some(Some(peer)) = self.slots.get_mut(slot) else { continue };
            peer.in_ring = false;
            let before = spent;
            let turn = peer.turn(&mut spent, self.keeper.as_ref());
            if peer.is_big() && self.trim_at.is_none() {
                self.trim_at = Some(self.now + BUFFER_KEPT_FOR);
            }
            if spent > before {
                peer.heard(self.now);
            }
            match turn {
                TurnResult::Message(bytes) => {
                    let peer = peer.id;
                    self.in_hand = Some(InHand { slot, bytes: bytes.len() });
                    self.enter_ring(slot);
                    return Some(Message { bytes, peer });
                }
                TurnResult::Ready => {
                    self.handshakes.retain(|(handshaking, _)| *handshaking != slot);
                    self.notices.push(PullNotice::Connected { peer: peer.id, from: peer.from.clone() });
                    self.enter_ring(slot);
                }
                TurnResult::LimitReached => self.enter_ring(slot),
                TurnResult::Blocked if self.closing.is_some() => peer.emptied(self.now),
                TurnResult::Blocked => {}
                TurnResult::Closed(why) => self.close_peer(slot, why),
            }
        }
        None
    }

    /// Notes that the journal may get the message in hand as this frame. A later process that finds this frame in the journal,
    /// or a later one, does not receive the message again.
    pub fn note(&mut self, frame: u64) {
        if let Some(InHand { slot, .. }) = self.in_hand
            && let Some(Some(sender)) = self.slots.get_mut(slot)
        {
            sender.note(frame);
        }
    }

    /// The message in hand is done, also if the journal does not have it. No later process receives it again.
    pub fn done(&mut self) {
        if let Some(sender) = self.take_in_hand() {
            sender.settle_now();
        }
    }

    /// After a panic, when the journal's last frame is known: if the journal does not have the message in hand, takes it back.
    /// [`Pull::receive`] returns it again, before all others. Returns the size of a message that was taken back.
    pub fn take_back(&mut self, last_frame: u64) -> Option<usize> {
        let InHand { slot, bytes } = self.in_hand?;
        let sender = self.take_in_hand()?;
        if (1..=last_frame).contains(&sender.noted()) {
            sender.settle_now();
            return None;
        }
        sender.take_back();
        sender.in_ring = true;
        self.ring.retain(|other| *other != slot);
        self.ring.push_front(slot);
        Some(bytes)
    }

    fn take_in_hand(&mut self) -> Option<&mut Sender> {
        let InHand { slot, .. } = self.in_hand.take()?;
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Whether there may be more to receive without a further event, so that the poll must not wait. False while
    /// paused.
    pub fn has_more(&self) -> bool {
        !self.paused && !self.ring.is_empty()
    }

    /// Stops reading until [`Pull::resume`]: the kernel's buffers fill, and the senders keep the rest.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Reads again. Bytes that arrived while paused cause no event: see [`Pull::has_more`].
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Begins to close: accepts no further connection and reads the senders to a message's end. When nothing of a
    /// sender is unread, its connection is shut down for writing: libzmq then stops writing, keeps its queue, and
    /// closes. A sender that stays silent is closed after [`CLOSE_QUIET`](crate::bounds::CLOSE_QUIET). Keep calling
    /// [`Pull::ready`], [`Pull::tick`] and [`Pull::receive`] until [`Pull::is_closed`]: by then everything that the
    /// kernel had taken from the senders is received.
    pub fn close(&mut self, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(now);
        self.now = now;
        self.claim();
        self.acceptor.close();
        self.listener_kept = None;
        (0..self.slots.len()).for_each(|slot| self.enter_ring(slot));
    }

    /// Whether [`Pull::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether [`Pull::close`] is complete: no sender is connected, and everything that they sent is received.
    pub fn is_closed(&self) -> bool {
        self.closing.is_some() && self.peers == 0
    }

    /// Ends [`Pull::close`] at once by closing every peer. Returns how many received bytes are lost unread.
    pub fn abandon(&mut self) -> u64 {
        let mut unread = 0;
        for slot in 0..self.slots.len() {
            let Some(bytes) = self.slots[slot].as_ref().map(Sender::unread_bytes) else { continue };
            unread += bytes;
            self.close_peer(
                slot,
                if bytes == 0 { CloseReason::Stopped } else { CloseReason::Unread { bytes } },
            );
        }
        unread
    }

    /// Connected peers, including those in their handshake.
    pub fn peers(&self) -> usize {
        self.peers
    }

    /// Returns the oldest notice that was not taken yet.
    pub fn next_notice(&mut self) -> Option<PullNotice> {
        self.notices.next(|count| PullNotice::Missed { count })
    }

    /// The bound endpoint, with the real port.
    pub fn endpoint(&self) -> &Endpoint {
        self.acceptor.endpoint()
    }

    fn enter_ring(&mut self, slot: usize) {
        if let Some(Some(peer)) = self.slots.get_mut(slot)
            && !peer.in_ring
        {
            peer.in_ring = true;
            self.ring.push_back(slot);
        }
    }

    fn accept(&mut self, now: Instant) {
        loop {
            let buffer = match self.spare.take() {
                Some(buffer) => Ok(buffer),
                None => ReceiveBuffer::new(self.options.max_message_bytes),
            };
            let buffer = match buffer {
                Ok(buffer) => buffer,
                Err(error) => {
                    self.acceptor.wait(now);
                    return self.refuse(PeerAddress::Unknown, RefusalReason::Io(error.to_string()), now);
                }
            };
            match self.acceptor.next(now) {
                Some(Ok(conn)) => self.admit(conn, buffer, now),
                next => {
                    self.spare = Some(buffer);
                    if let Some(Err(why)) = next {
                        self.refuse(PeerAddress::Unknown, why, now);
                    }
                    return;
                }
            }
        }
    }

    fn admit(&mut self, conn: Conn, buffer: ReceiveBuffer, now: Instant) {
        let from = conn.peer_address();
        let most = self.options.max_peers.min(self.tokens.count.saturating_sub(1));
        let is_full = self.peers >= most || self.handshakes.len() >= HANDSHAKES_MAX;
        if is_full && !self.close_oldest_handshake() {
            return self.refuse(from, RefusalReason::TooManyPeers(most), now);
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if let Err(error) =
            conn.register(&self.registry, Token(self.tokens.first + 1 + slot), Interest::READABLE)
        {
            return self.refuse(from, RefusalReason::Io(format!("register: {error}")), now);
        }
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        let mut peer = Sender::new(id, conn, from, self.options.max_message_bytes, buffer);
        peer.flush(self.keeper.as_ref());
        if slot == self.slots.len() {
            self.slots.push(Some(peer));
        } else {
            self.slots[slot] = Some(peer);
        }
        self.peers += 1;
        self.handshakes.push_back((slot, now + self.options.handshake_timeout));
        self.enter_ring(slot);
    }

    /// Closes the peer that has been in its handshake for the longest time. False if no peer is.
    fn close_oldest_handshake(&mut self) -> bool {
        let Some((slot, _)) = self.handshakes.front().copied() else { return false };
        self.close_peer(slot, CloseReason::HandshakeCrowded(self.handshakes.len()));
        true
    }

    fn refuse(&mut self, from: PeerAddress, why: RefusalReason, now: Instant) {
        if let Some(times) = self.acceptor.refused(now) {
            self.notices.push(PullNotice::Refused { from, why, times });
        }
    }

    fn close_peer(&mut self, slot: usize, why: CloseReason) {
        if let Some(peer) = self.slots.get_mut(slot).and_then(Option::take) {
            peer.conn.deregister(&self.registry);
            peer.shut();
            self.peers -= 1;
            self.in_hand = self.in_hand.filter(|in_hand| in_hand.slot != slot);
            self.handshakes.retain(|(handshaking, _)| *handshaking != slot);
            let Sender { id, from, messages, .. } = peer;
            self.notices.push(PullNotice::Closed { peer: id, from, why, messages });
        }
    }
}
