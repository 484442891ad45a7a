//! One sender of a PULL: its connection, its buffer, its place in the handshake.

use std::io::IoSlice;
use std::net::Shutdown;
use std::time::Instant;

use afterbay_zmtp as zmtp;
use bytes::Bytes;

use super::notice::{CloseReason, PeerId};
use crate::bounds::{CLOSE_QUIET, CLOSE_SHUT_MAX, COMMANDS_TURN, READ_BUFFER_BYTES, READ_TURN_BYTES};
use crate::conn::{Conn, PeerAddress, Read};

/// A message that misses at least this much is read straight into its own allocation.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// After such a message so little is read into the buffer: if another big one follows, hardly any of it is copied.
const READ_AFTER_DIRECT_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) conn: Conn,
    pub(crate) from: PeerAddress,
    pub(crate) messages: u64,
    /// The kernel may have bytes: set by the poll, taken back only when a read blocks.
    pub(crate) readable: bool,
    /// It waits for its turn.
    pub(crate) in_ring: bool,
    /// How far its socket is closed.
    closing: Closing,
    zmtp: zmtp::Peer,
    /// Allocated at the first read. `start..end` is read and not parsed.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    last_was_direct: bool,
}

/// How far a closing socket has closed this sender's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// Both directions are open.
    Open,
    /// The sender sees our end. `heard`: when bytes last came from it, or when our end was sent.
    WriteShut { heard: Instant },
    /// Nothing further can come in. What the kernel had by then is still read.
    BothShut,
}

/// What a turn came to.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The handshake is done; there may be more.
    Ready,
    Message(Bytes),
    /// Nothing until the poll tells.
    Blocked,
    /// The turn reached its bound of bytes or commands, without a whole message.
    Used,
    Closed(CloseReason),
}

impl Peer {
    pub(crate) fn new(id: PeerId, conn: Conn, from: PeerAddress, max_message_bytes: usize) -> Peer {
        let zmtp = zmtp::Peer::new(zmtp::Role::Pull, max_message_bytes);
        // Readable until a read says otherwise: bytes may have come before the poll knew of it.
        let (readable, in_ring) = (true, false);
        let buffer = Box::default();
        Peer {
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
    pub(crate) fn turn(&mut self, spent: &mut usize) -> Turn {
        let turn = self.read_turn(spent);
        self.flush();
        turn
    }

    fn read_turn(&mut self, spent: &mut usize) -> Turn {
        let (mut read, mut commands) = (0, 0);
        loop {
            while self.start < self.end {
                match self.zmtp.feed(&self.buffer[self.start..self.end]) {
                    Err(error) => return Turn::Closed(CloseReason::Protocol(error)),
                    Ok((used, event)) => {
                        self.start += used;
                        match event {
                            None => {}
                            // Nobody subscribes to a PULL.
                            Some(
                                zmtp::Event::Command | zmtp::Event::Subscribe(_) | zmtp::Event::Cancel(_),
                            ) => {
                                commands += 1;
                                if commands >= COMMANDS_TURN {
                                    return Turn::Used;
                                }
                            }
                            Some(zmtp::Event::Ready(_)) => return Turn::Ready,
                            Some(zmtp::Event::Message(bytes)) => return self.message(bytes),
                        }
                    }
                }
            }
            if !self.readable {
                return Turn::Blocked;
            }
            if read >= READ_TURN_BYTES {
                return Turn::Used;
            }
            let (got, message) = match self.zmtp.body().filter(|body| body.missing() >= DIRECT_BYTES_MIN) {
                Some(body) => {
                    self.last_was_direct = true;
                    body.fill(|buffer| self.conn.read_spare(buffer))
                }
                None => (self.read_buffer(), None),
            };
            match got {
                Read::Data(bytes) => {
                    read += bytes;
                    *spent += bytes;
                }
                Read::Blocked => self.readable = false,
                Read::End | Read::Failed(_) => return Turn::Closed(self.end_reason()),
            }
            if let Some(bytes) = message {
                return self.message(bytes);
            }
        }
    }

    fn message(&mut self, bytes: Bytes) -> Turn {
        self.messages += 1;
        Turn::Message(bytes)
    }

    fn read_buffer(&mut self) -> Read {
        if self.buffer.is_empty() {
            self.buffer = vec![0; READ_BUFFER_BYTES].into_boxed_slice();
        }
        let most = if self.last_was_direct { READ_AFTER_DIRECT_BYTES } else { READ_BUFFER_BYTES };
        let got = self.conn.read(&mut self.buffer[..most]);
        self.last_was_direct = false;
        (self.start, self.end) = (0, if let Read::Data(bytes) = got { bytes } else { 0 });
        got
    }

    /// Sends our greeting, READY, PONG. What the kernel does not take waits for the next bytes to come: a peer whose buffer
    /// is full of these few bytes is not reading them.
    pub(crate) fn flush(&mut self) {
        while !self.zmtp.output().is_empty() {
            match self.conn.write(&[IoSlice::new(self.zmtp.output())]) {
                Ok(sent) if sent > 0 => self.zmtp.sent(sent),
                // A broken connection is seen by its reads, after what it still has.
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

    /// Notes that bytes came from the sender of a closing socket.
    pub(crate) fn heard(&mut self, now: Instant) {
        if let Closing::WriteShut { heard } = &mut self.closing {
            *heard = now;
        }
    }

    /// The kernel has nothing more of it for now: ends our direction, unless it is in the middle of a message.
    pub(crate) fn emptied(&mut self, now: Instant) {
        let is_between = !self.is_ready() || self.zmtp.unfinished().is_none();
        if self.closing == Closing::Open && is_between {
            self.shut_write(now);
        }
    }

    /// Goes on with closing by the time. True where the peer is to be read to the end.
    pub(crate) fn close_due(&mut self, since: Instant, now: Instant) -> bool {
        if self.close_deadline(since).is_none_or(|due| now < due) {
            return false;
        }
        if self.closing == Closing::Open {
            self.shut_write(now);
            return false;
        }
        // On unix sockets a later write of the sender fails; on tcp what comes later is answered with a reset.
        self.conn.shutdown(Shutdown::Read);
        (self.closing, self.readable) = (Closing::BothShut, true);
        true
    }

    /// When [`Peer::close_due`] has something to do.
    pub(crate) fn close_deadline(&self, since: Instant) -> Option<Instant> {
        match self.closing {
            Closing::Open => Some(since + CLOSE_SHUT_MAX),
            // What has come and was not read says nothing of a quiet sender.
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

    /// Bytes that came from it and were not read as messages: in its buffer, and in the kernel's.
    pub(crate) fn unread_bytes(&self) -> u64 {
        (self.end - self.start) as u64 + self.conn.unread_bytes()
    }
}
