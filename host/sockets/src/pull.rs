//! PULL: binds, takes whole messages from any number of senders, in turn.
//!
//! Edge-triggered: a peer is in the `ring` while the kernel may have bytes of it or its buffer has some, and leaves it only
//! when a read blocks. A peer gives one message and goes to the ring's end, so none can hold up the others.

mod listener;
mod notice;
mod options;
mod peer;

use std::collections::VecDeque;
use std::time::Instant;

use mio::event::Event;
use mio::{Interest, Registry, Token};

pub(crate) use self::listener::Listener;
pub use self::notice::{CloseReason, Message, PeerId, PullNotice, Refusal};
pub use self::options::{BindError, PullOptions};

use self::peer::{Peer, Turn};
use crate::bounds::{HANDSHAKES_MAX, READ_CALL_BYTES};
use crate::conn::{Conn, PeerAddress, TokenRange};
use crate::door::Door;
use crate::endpoint::Endpoint;
use crate::notices::Notices;

/// A bound PULL socket. Dropped: its peers are closed, and its ipc file is unlinked if it is still its own. What the kernel
/// had received is lost then: see [`Pull::close`].
#[derive(Debug)]
pub struct Pull {
    door: Door,
    registry: Registry,
    tokens: TokenRange,
    options: PullOptions,
    /// By token: slot 0 has the range's second token (the listener has the first).
    slots: Vec<Option<Peer>>,
    peers: usize,
    /// Slots with something to read or to parse.
    ring: VecDeque<usize>,
    /// Slots whose handshake is not done, and until when it must be; oldest first.
    handshakes: VecDeque<(usize, Instant)>,
    paused: bool,
    /// When [`Pull::close`] was called.
    closing: Option<Instant>,
    /// The time of the last call that was given one.
    now: Instant,
    next_peer: u64,
    notices: Notices<PullNotice>,
}

impl Pull {
    /// Binds. On ipc a regular file or a stale socket of that name is replaced; a living listener's is not.
    ///
    /// Bytes are taken from the kernel by [`Pull::receive`] only: where it is not called, nothing is read, and a PING of a
    /// sender with heartbeats is not answered either.
    pub fn bind(
        registry: &Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PullOptions,
    ) -> Result<Pull, BindError> {
        let listener = Listener::bind(endpoint, options.listen_mode, options.receive_buffer_bytes)?;
        let registry = clone_of(registry, endpoint)?;
        Ok(Pull {
            door: Door::open(listener, &registry, Token(tokens.first))?,
            registry,
            tokens,
            options,
            slots: Vec::new(),
            peers: 0,
            ring: VecDeque::new(),
            handshakes: VecDeque::new(),
            paused: false,
            closing: None,
            now: Instant::now(),
            next_peer: 1,
            notices: Notices::new(),
        })
    }

    /// Whether an event with this token is for this socket.
    pub fn owns(&self, token: Token) -> bool {
        self.tokens.contains(token)
    }

    /// Notes what an event of the poll says, and accepts connections (also while paused: they are not read).
    pub fn ready(&mut self, event: &Event, now: Instant) {
        self.now = now;
        match event.token().0.checked_sub(self.tokens.first) {
            Some(0) => self.accept(now),
            Some(slot) => {
                if let Some(Some(peer)) = self.slots.get_mut(slot - 1) {
                    // Whatever it says (hang-up, error): reading tells, after everything that came before it.
                    peer.readable = true;
                    self.enter_ring(slot - 1);
                }
            }
            None => {}
        }
    }

    /// Closes peers whose handshake takes too long, accepts again after a failure, goes on with [`Pull::close`]. Call it when
    /// [`Pull::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if let Some(since) = self.closing {
            return self.close_due(since, now);
        }
        if self.door.accept_at().is_some_and(|at| at <= now) {
            self.accept(now);
        }
        while let Some((slot, until)) = self.handshakes.front().copied()
            && until <= now
        {
            // It may have sent it, and we have not looked (paused, or our own reader is slow).
            if self.slots.get(slot).and_then(Option::as_ref).is_some_and(|peer| peer.readable) {
                self.handshakes.pop_front();
                self.handshakes.push_back((slot, now + self.options.handshake_timeout));
            } else {
                self.close_peer(slot, CloseReason::HandshakeTimeout(self.options.handshake_timeout));
            }
        }
    }

    /// Closes senders of a closing socket that do not end their connections.
    fn close_due(&mut self, since: Instant, now: Instant) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_mut().is_some_and(|peer| peer.close_due(since, now)) {
                self.enter_ring(slot);
            }
        }
    }

    /// When [`Pull::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        if let Some(since) = self.closing {
            return self.slots.iter().flatten().filter_map(|peer| peer.close_deadline(since)).min();
        }
        let handshake = self.handshakes.front().map(|(_, until)| *until);
        handshake.into_iter().chain(self.door.accept_at()).min()
    }

    /// The next whole message. `None`: nothing to read now; wait on the poll, unless [`Pull::has_more`].
    pub fn receive(&mut self) -> Option<Message> {
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
            let turn = peer.turn(&mut spent);
            if spent > before {
                peer.heard(self.now);
            }
            match turn {
                Turn::Message(bytes) => {
                    let peer = peer.id;
                    self.enter_ring(slot);
                    return Some(Message { bytes, peer });
                }
                Turn::Ready => {
                    self.handshakes.retain(|(handshaking, _)| *handshaking != slot);
                    self.notices.push(PullNotice::Connected { peer: peer.id, from: peer.from.clone() });
                    self.enter_ring(slot);
                }
                Turn::Used => self.enter_ring(slot),
                Turn::Blocked if self.closing.is_some() => peer.emptied(self.now),
                Turn::Blocked => {}
                Turn::Closed(why) => self.close_peer(slot, why),
            }
        }
        None
    }

    /// Something may be received without a further event: do not wait on the poll. Never while paused.
    pub fn has_more(&self) -> bool {
        !self.paused && !self.ring.is_empty()
    }

    /// Nothing is read until [`Pull::resume`]: the kernel's buffer fills, and the senders keep the rest.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Reads again. What came meanwhile needs no new event: see [`Pull::has_more`].
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Begins to close. Nobody can connect any more. Each sender goes on being read; when nothing of it is unread, it sees our
    /// end: libzmq then writes no more, keeps its queue, and ends its connection. A sender that does not is closed after
    /// [`CLOSE_QUIET`](crate::bounds::CLOSE_QUIET). Go on with [`Pull::ready`], [`Pull::tick`] and [`Pull::receive`] until
    /// [`Pull::is_closed`]: only then is everything received that the kernel had taken from the senders.
    pub fn close(&mut self, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(now);
        self.now = now;
        self.door.close();
        (0..self.slots.len()).for_each(|slot| self.enter_ring(slot));
    }

    /// [`Pull::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// [`Pull::close`] is done: no sender is connected, and everything that they had sent was received.
    pub fn is_closed(&self) -> bool {
        self.closing.is_some() && self.peers == 0
    }

    /// Ends [`Pull::close`] at once: closes every peer that is left. Returns the bytes that came from them, were not read, and
    /// are lost.
    pub fn abandon(&mut self) -> u64 {
        let mut unread = 0;
        for slot in 0..self.slots.len() {
            let Some(bytes) = self.slots[slot].as_ref().map(Peer::unread_bytes) else { continue };
            unread += bytes;
            self.close_peer(
                slot,
                if bytes == 0 { CloseReason::Stopped } else { CloseReason::Unread { bytes } },
            );
        }
        unread
    }

    /// Connected peers, those in their handshake with them.
    pub fn peers(&self) -> usize {
        self.peers
    }

    /// What happened, oldest first.
    pub fn next_notice(&mut self) -> Option<PullNotice> {
        self.notices.next(|count| PullNotice::Missed { count })
    }

    /// Where it is bound, with the real port.
    pub fn endpoint(&self) -> &Endpoint {
        self.door.endpoint()
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
        while let Some(came) = self.door.next(now) {
            match came {
                Ok(conn) => self.admit(conn, now),
                Err(why) => return self.refuse(PeerAddress::Unknown, why, now),
            }
        }
    }

    fn admit(&mut self, conn: Conn, now: Instant) {
        let from = conn.peer_address();
        let most = self.options.max_peers.min(self.tokens.count.saturating_sub(1));
        let is_full = self.peers >= most || self.handshakes.len() >= HANDSHAKES_MAX;
        if is_full && !self.close_oldest_handshake() {
            return self.refuse(from, Refusal::TooManyPeers(most), now);
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if let Err(error) =
            conn.register(&self.registry, Token(self.tokens.first + 1 + slot), Interest::READABLE)
        {
            return self.refuse(from, Refusal::Io(format!("register: {error}")), now);
        }
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        let mut peer = Peer::new(id, conn, from, self.options.max_message_bytes);
        peer.flush();
        if slot == self.slots.len() {
            self.slots.push(Some(peer));
        } else {
            self.slots[slot] = Some(peer);
        }
        self.peers += 1;
        self.handshakes.push_back((slot, now + self.options.handshake_timeout));
        self.enter_ring(slot);
    }

    /// Closes the sender that has been in its handshake for longest. False where none is.
    fn close_oldest_handshake(&mut self) -> bool {
        let Some((slot, _)) = self.handshakes.front().copied() else { return false };
        self.close_peer(slot, CloseReason::HandshakeCrowded(self.handshakes.len()));
        true
    }

    fn refuse(&mut self, from: PeerAddress, why: Refusal, now: Instant) {
        if let Some(times) = self.door.refused(now) {
            self.notices.push(PullNotice::Refused { from, why, times });
        }
    }

    fn close_peer(&mut self, slot: usize, why: CloseReason) {
        if let Some(peer) = self.slots.get_mut(slot).and_then(Option::take) {
            peer.conn.deregister(&self.registry);
            self.peers -= 1;
            self.handshakes.retain(|(handshaking, _)| *handshaking != slot);
            let Peer { id, from, messages, .. } = peer;
            self.notices.push(PullNotice::Closed { peer: id, from, why, messages });
        }
    }
}

pub(crate) fn clone_of(registry: &Registry, endpoint: &Endpoint) -> Result<Registry, BindError> {
    registry.try_clone().map_err(|error| BindError::Io {
        endpoint: endpoint.clone(),
        call: "the poll's registry",
        error,
    })
}
