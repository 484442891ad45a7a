//! One sender of a PULL: its connection, its buffer, and the state of its closing.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Instant;

use crate::zmtp;
use afterbay_supervision::fdstore::{FdName, FdStore, Kept};
use bytes::Bytes;

use crate::bounds::{CLOSE_QUIET, CLOSE_SHUT_MAX, COMMANDS_TURN, READ_TURN_BYTES};
use crate::conn::{Conn, PeerAddress, ReadResult};
use crate::lasting::{Lasting, ReceiveBuffer};
use crate::peers::{CloseReason, PeerId};

/// The store that holds the sockets and memories of a stream's senders.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: FdStore,
    stream: String,
}

impl Keeper {
    pub(crate) fn new(lasting: &Lasting<'_>) -> Keeper {
        Keeper { store: lasting.store.clone(), stream: lasting.stream.to_owned() }
    }

    fn keep(&self, id: PeerId, conn: &Conn, buffer: &ReceiveBuffer) -> Kept {
        self.store.keep(FdName::sender(&self.stream, id.0), &[conn.fd().as_fd(), buffer.fd()])
    }
}

#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) id: PeerId,
    pub(crate) conn: Conn,
    pub(crate) from: PeerAddress,
    pub(crate) messages: u64,
    /// The kernel may have bytes. The poll sets it; only a read that blocks clears it.
    pub(crate) readable: bool,
    /// The peer waits for its turn.
    pub(crate) in_ring: bool,
    closing: Closing,
    zmtp: zmtp::Conversation,
    buffer: ReceiveBuffer,
    /// The entry in the store, once the sender may send messages.
    kept: Option<Kept>,
}

/// How far a closing socket has closed this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// Both directions are open.
    Open,
    /// The sender sees our end. `heard`: when the last bytes arrived, or when our end was sent.
    WriteShut { heard: Instant },
    /// Nothing more can arrive. Bytes that the kernel had by then are still read.
    BothShut,
}

/// The end of a turn.
#[derive(Debug)]
pub(crate) enum TurnResult {
    /// The handshake is complete. There may be more to read.
    Ready,
    Message(Bytes),
    /// Nothing to read until the next event.
    Blocked,
    /// The turn reached its bound of bytes or commands without a whole message.
    LimitReached,
    Closed(CloseReason),
}

impl Sender {
    pub(crate) fn new(
        id: PeerId,
        conn: Conn,
        from: PeerAddress,
        message_bytes_max: usize,
        buffer: ReceiveBuffer,
    ) -> Sender {
        let zmtp = zmtp::Conversation::new(zmtp::Role::Pull, message_bytes_max);
        // Readable until a read blocks: bytes may have arrived before the registration with the poll.
        let (readable, in_ring, closing) = (true, false, Closing::Open);
        Sender { id, conn, from, messages: 0, readable, in_ring, closing, zmtp, buffer, kept: None }
    }

    /// Continues the connection of an earlier process: what the buffer has is parsed before the kernel is read.
    pub(crate) fn adopt(
        id: PeerId,
        conn: Conn,
        message_bytes_max: usize,
        buffer: ReceiveBuffer,
        keeper: &Keeper,
    ) -> Sender {
        let (from, kept) = (conn.peer_address(), Some(keeper.keep(id, &conn, &buffer)));
        // The memory's size was fixed when the connection was accepted.
        let limit = message_bytes_max.min(buffer.message_bytes_max());
        let zmtp = zmtp::Conversation::resumed(zmtp::Role::Pull, limit, buffer.has_heard_ready());
        Sender { zmtp, kept, ..Sender::new(id, conn, from, limit, buffer) }
    }

    /// No other process goes on with the connection.
    pub(crate) fn claim(&mut self) {
        self.buffer.claim();
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.zmtp.is_ready()
    }

    /// Reads until one message is whole or the turn's bound is reached. Adds the bytes read to `spent`. A message is then in
    /// hand, and must be done or taken back before the next turn.
    pub(crate) fn turn(&mut self, spent: &mut usize, keeper: Option<&Keeper>) -> TurnResult {
        let turn = self.read_turn(spent);
        self.flush(keeper);
        turn
    }

    fn read_turn(&mut self, spent: &mut usize) -> TurnResult {
        let (mut read, mut commands) = (0, 0);
        loop {
            while !self.buffer.unparsed().is_empty() {
                let (used, event) = match self.zmtp.feed(self.buffer.unparsed()) {
                    Ok(fed) => fed,
                    Err(error) => return TurnResult::Closed(CloseReason::Protocol(error)),
                };
                self.buffer.parse(used);
                match event {
                    None => {}
                    // No peer subscribes to a PULL.
                    Some(zmtp::ZmtpEvent::Command) => {
                        // Between two parts the earlier ones are not done.
                        if self.zmtp.unfinished().is_none() {
                            self.settle();
                        }
                        commands += 1;
                        if commands >= COMMANDS_TURN {
                            return TurnResult::LimitReached;
                        }
                    }
                    Some(zmtp::ZmtpEvent::Ready(_)) => {
                        self.settle();
                        return TurnResult::Ready;
                    }
                    Some(zmtp::ZmtpEvent::Message(bytes)) => {
                        self.messages += 1;
                        return TurnResult::Message(bytes);
                    }
                }
            }
            if !self.readable {
                return TurnResult::Blocked;
            }
            if read >= READ_TURN_BYTES {
                return TurnResult::LimitReached;
            }
            let missing = match self.zmtp.unfinished() {
                Some(zmtp::UnfinishedPart::Message { had, of }) => of - had,
                _ => 0,
            };
            match self.buffer.read(self.conn.fd(), missing).into() {
                ReadResult::Data(bytes) => {
                    read += bytes;
                    *spent += bytes;
                }
                ReadResult::Blocked => self.readable = false,
                ReadResult::End | ReadResult::Failed(_) => return TurnResult::Closed(self.end_reason()),
            }
        }
    }

    /// Everything parsed is done, also the message in hand.
    pub(crate) fn settle(&mut self) {
        self.buffer.settle(self.zmtp.is_ready());
    }

    /// As [`Sender::settle`], and a later process knows it from now on.
    pub(crate) fn settle_now(&mut self) {
        self.buffer.settle_now(self.zmtp.is_ready());
    }

    /// Notes that the journal may get the message in hand as this frame.
    pub(crate) fn note(&mut self, frame: u64) {
        self.buffer.note(frame);
    }

    /// The noted frame of the message in hand. 0: none.
    pub(crate) fn noted(&self) -> u64 {
        self.buffer.noted()
    }

    /// Takes the message in hand back. The next turn returns it again.
    pub(crate) fn take_back(&mut self) {
        self.messages -= 1;
        self.buffer.rewind();
    }

    /// Sends our greeting, READY and PONG. Bytes that the kernel does not take wait for the next bytes from the peer: a
    /// peer whose buffer is full of these few bytes does not read.
    pub(crate) fn flush(&mut self, keeper: Option<&Keeper>) {
        while !self.zmtp.output().is_empty() {
            let has_ready = self.zmtp.has_greeting();
            if has_ready && self.kept.is_none() {
                // Before READY: once the sender has READY, it sends messages, and none may be lost.
                self.buffer.greeted();
                self.kept = keeper.map(|keeper| keeper.keep(self.id, &self.conn, &self.buffer));
            }
            match self.buffer.send(self.conn.fd(), self.zmtp.output(), has_ready) {
                Ok(sent) if sent > 0 => self.zmtp.sent(sent),
                // Reads report a broken connection, after everything that it still has.
                _ => return,
            }
        }
    }

    fn end_reason(&self) -> CloseReason {
        match CloseReason::of_end(&self.zmtp) {
            CloseReason::Left if self.closing == Closing::BothShut => CloseReason::Stopped,
            reason => reason,
        }
    }

    /// Notes that the sender of a closing socket sent bytes.
    pub(crate) fn heard(&mut self, now: Instant) {
        if let Closing::WriteShut { heard } = &mut self.closing {
            *heard = now;
        }
    }

    /// The kernel has no more bytes of this sender: shuts down our direction, unless a message is incomplete.
    pub(crate) fn emptied(&mut self, now: Instant) {
        let is_between = !self.is_ready() || self.zmtp.unfinished().is_none();
        if self.closing == Closing::Open && is_between {
            self.shut_write(now);
        }
    }

    /// Continues closing at this time. Returns true if the rest of the connection must be read now.
    pub(crate) fn close_due(&mut self, since: Instant, now: Instant) -> bool {
        if self.close_deadline(since).is_none_or(|due| now < due) {
            return false;
        }
        if self.closing == Closing::Open {
            self.shut_write(now);
            return false;
        }
        // Over ipc a later write of the sender fails; over tcp the kernel answers it with a reset.
        self.conn.shutdown(Shutdown::Read);
        (self.closing, self.readable) = (Closing::BothShut, true);
        true
    }

    /// The time at which [`Sender::close_due`] is due.
    pub(crate) fn close_deadline(&self, since: Instant) -> Option<Instant> {
        match self.closing {
            Closing::Open => Some(since + CLOSE_SHUT_MAX),
            // Received bytes that we did not read do not show that the sender is silent.
            Closing::WriteShut { .. } if self.readable => Some(since + CLOSE_SHUT_MAX + CLOSE_QUIET),
            Closing::WriteShut { heard } => {
                Some((heard + CLOSE_QUIET).min(since + CLOSE_SHUT_MAX + CLOSE_QUIET))
            }
            Closing::BothShut => None,
        }
    }

    /// Ends the connection for the peer too, although a supervisor has descriptors of it for a moment longer.
    pub(crate) fn shut(&self) {
        if self.kept.is_some() {
            self.conn.shutdown(Shutdown::Both);
        }
    }

    fn shut_write(&mut self, now: Instant) {
        self.conn.shutdown(Shutdown::Write);
        self.closing = Closing::WriteShut { heard: now };
    }

    /// Whether the buffer takes more memory than it should keep.
    pub(crate) fn is_big(&self) -> bool {
        self.buffer.is_big()
    }

    /// Returns memory of the buffer that no message needed since the last call.
    pub(crate) fn trim(&mut self) {
        self.buffer.trim();
    }

    /// Received bytes that are not done: a later process gets them again.
    pub(crate) fn open_bytes(&self) -> usize {
        self.buffer.open_bytes()
    }

    /// Received bytes that were not parsed into messages: in the buffer and in the kernel.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.buffer.unparsed().len() as u64 + self.conn.unread_bytes()
    }
}
