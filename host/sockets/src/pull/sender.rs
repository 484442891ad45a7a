//! One sender of a PULL: its connection, its buffer, and the state of its closing.

use std::io::IoSlice;
use std::net::Shutdown;
use std::time::Instant;

use afterbay_zmtp as zmtp;
use bytes::Bytes;

use crate::bounds::{CLOSE_QUIET, CLOSE_SHUT_MAX, COMMANDS_TURN, READ_BUFFER_BYTES, READ_TURN_BYTES};
use crate::conn::{Conn, PeerAddress, ReadResult};
use crate::peers::{CloseReason, PeerId};

/// A message that lacks at least this much is read straight into its own allocation.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// Bytes read into the buffer after such a message. If another big message follows, little of it must be copied.
const READ_AFTER_DIRECT_BYTES: usize = 4 << 10;

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
    /// Allocated at the first read. `start..end` is read and not parsed.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    last_was_direct: bool,
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
    pub(crate) fn new(id: PeerId, conn: Conn, from: PeerAddress, max_message_bytes: usize) -> Sender {
        let zmtp = zmtp::Conversation::new(zmtp::Role::Pull, max_message_bytes);
        // True until a read blocks: bytes may have arrived before the registration with the poll.
        let (readable, in_ring) = (true, false);
        let buffer = Box::default();
        Sender {
            id,
            conn,
            from,
            messages: 0,
            readable,
            in_ring,
            closing: Closing::Open,
            zmtp,
            buffer,
            start: 0,
            end: 0,
            last_was_direct: false,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.zmtp.is_ready()
    }

    /// Reads until one message is whole or the turn's bound is reached. Adds the bytes read to `spent`.
    pub(crate) fn turn(&mut self, spent: &mut usize) -> TurnResult {
        let turn = self.read_turn(spent);
        self.flush();
        turn
    }

    fn read_turn(&mut self, spent: &mut usize) -> TurnResult {
        let (mut read, mut commands) = (0, 0);
        loop {
            while self.start < self.end {
                match self.zmtp.feed(&self.buffer[self.start..self.end]) {
                    Err(error) => return TurnResult::Closed(CloseReason::Protocol(error)),
                    Ok((used, event)) => {
                        self.start += used;
                        match event {
                            None => {}
                            // No peer subscribes to a PULL.
                            Some(
                                zmtp::ZmtpEvent::Command
                                | zmtp::ZmtpEvent::Subscribe(_)
                                | zmtp::ZmtpEvent::Cancel(_),
                            ) => {
                                commands += 1;
                                if commands >= COMMANDS_TURN {
                                    return TurnResult::LimitReached;
                                }
                            }
                            Some(zmtp::ZmtpEvent::Ready(_)) => return TurnResult::Ready,
                            Some(zmtp::ZmtpEvent::Message(bytes)) => return self.message(bytes),
                        }
                    }
                }
            }
            if !self.readable {
                return TurnResult::Blocked;
            }
            if read >= READ_TURN_BYTES {
                return TurnResult::LimitReached;
            }
            let (got, message) = match self.zmtp.body().filter(|body| body.missing() >= DIRECT_BYTES_MIN) {
                Some(body) => {
                    self.last_was_direct = true;
                    body.fill(|buffer| self.conn.read_spare(buffer))
                }
                None => (self.read_buffer(), None),
            };
            match got {
                ReadResult::Data(bytes) => {
                    read += bytes;
                    *spent += bytes;
                }
                ReadResult::Blocked => self.readable = false,
                ReadResult::End | ReadResult::Failed(_) => return TurnResult::Closed(self.end_reason()),
            }
            if let Some(bytes) = message {
                return self.message(bytes);
            }
        }
    }

    fn message(&mut self, bytes: Bytes) -> TurnResult {
        self.messages += 1;
        TurnResult::Message(bytes)
    }

    fn read_buffer(&mut self) -> ReadResult {
        if self.buffer.is_empty() {
            self.buffer = vec![0; READ_BUFFER_BYTES].into_boxed_slice();
        }
        let most = if self.last_was_direct { READ_AFTER_DIRECT_BYTES } else { READ_BUFFER_BYTES };
        let got = self.conn.read(&mut self.buffer[..most]);
        self.last_was_direct = false;
        (self.start, self.end) = (0, if let ReadResult::Data(bytes) = got { bytes } else { 0 });
        got
    }

    /// Sends our greeting, READY and PONG. Bytes that the kernel does not take wait for the next bytes from the peer: a
    /// peer whose buffer is full of these few bytes does not read.
    pub(crate) fn flush(&mut self) {
        while !self.zmtp.output().is_empty() {
            match self.conn.write(&[IoSlice::new(self.zmtp.output())]) {
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

    /// When [`Sender::close_due`] is due.
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

    fn shut_write(&mut self, now: Instant) {
        self.conn.shutdown(Shutdown::Write);
        self.closing = Closing::WriteShut { heard: now };
    }

    /// Received bytes that were not parsed into messages: in the buffer and in the kernel.
    pub(crate) fn unread_bytes(&self) -> u64 {
        (self.end - self.start) as u64 + self.conn.unread_bytes()
    }
}
