//! One connection of a PUSH, from the attempt to the loss.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use afterbay_zmtp as zmtp;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::notice::LossReason;
use super::send_queue::SendQueue;
use crate::bounds::{WRITE_CALL_BYTES, WRITE_CALL_FRAMES, WRITE_TURN_BYTES};
use crate::conn::{Conn, PeerAddress, ReadResult};

/// A reader sends little: its greeting, READY, PING.
const READ_BYTES: usize = 1 << 10;

/// The most that the other end of a tcp connection holds unread, besides our SO_SNDBUF. Linux gives a socket less by
/// default.
const TCP_UNREAD_BYTES_MAX: usize = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkStage {
    Connecting,
    Handshake,
    Up,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) conn: Conn,
    pub(crate) stage: LinkStage,
    /// When the stage times out; in [`LinkStage::Up`]: when the stage began.
    pub(crate) at: Instant,
    pub(crate) to: PeerAddress,
    /// The kernel may take bytes. The poll sets it; only a write that blocks clears it.
    writable: bool,
    /// Whether a whole frame was written.
    pub(crate) wrote: bool,
    zmtp: zmtp::Conversation,
}

/// The result of writing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    /// Everything that may be written is, or the kernel takes no more until the next event.
    Done,
    /// The turn's bound is reached.
    LimitReached,
    /// The connection is broken. A read may find out more.
    Broken(Errno),
}

impl Link {
    pub(crate) fn new(conn: Conn, is_made: bool, at: Instant) -> Link {
        let stage = if is_made { LinkStage::Handshake } else { LinkStage::Connecting };
        // The reader sends no message, so its size limit is 0.
        let zmtp = zmtp::Conversation::new(zmtp::Role::Push, 0);
        Link { conn, stage, at, to: PeerAddress::Unknown, writable: true, wrote: false, zmtp }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match self.to {
            PeerAddress::Process { pid, .. } => Some(pid).filter(|pid| *pid > 0),
            _ => None,
        }
    }

    /// The bytes that the two kernel buffers can hold unread.
    pub(crate) fn unread_bytes_max(&self) -> usize {
        let send_buffer = sockopt::socket_send_buffer_size(self.conn.fd()).unwrap_or(usize::MAX / 4);
        // Over ipc the sender's buffer is the only one. One write of up to half of it can exceed its limit.
        if self.conn.is_ipc() { send_buffer * 2 } else { send_buffer + TCP_UNREAD_BYTES_MAX }
    }

    pub(crate) fn writable(&mut self) {
        self.writable = true;
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Reads until it blocks. `Ok(true)`: the handshake was completed.
    pub(crate) fn read(&mut self) -> Result<bool, LossReason> {
        let mut is_new = false;
        let mut buffer = [0; READ_BYTES];
        loop {
            match self.conn.read(&mut buffer) {
                ReadResult::Blocked => return Ok(is_new),
                ReadResult::End => return Err(LossReason::Closed),
                ReadResult::Failed(error) => return Err(loss(error)),
                ReadResult::Data(bytes) => {
                    let mut input = &buffer[..bytes];
                    while !input.is_empty() {
                        let (used, event) = self.zmtp.feed(input).inspect_err(|_| self.say())?;
                        is_new |= matches!(event, Some(zmtp::ZmtpEvent::Ready(_)));
                        input = &input[used..];
                    }
                }
            }
        }
    }

    /// Writes the handshake, PONGs and, with a window, frames: the window limits the unfinished frames and their bytes.
    pub(crate) fn write(&mut self, queue: &mut SendQueue, window: Option<(usize, usize)>) -> WriteResult {
        let mut turn = 0;
        while self.writable {
            let mut slices = Vec::new();
            let between = queue.is_between_frames();
            let commands = if between { self.zmtp.output().len() } else { 0 };
            if commands > 0 {
                slices.push(IoSlice::new(self.zmtp.output()));
            }
            if let Some((frames, bytes)) = window {
                let most = queue.window(frames, bytes, WRITE_CALL_FRAMES);
                queue.slices(&mut slices, most, WRITE_CALL_BYTES);
            }
            if slices.is_empty() {
                return WriteResult::Done;
            }
            if turn >= WRITE_TURN_BYTES {
                return WriteResult::LimitReached;
            }
            match self.conn.write(&slices) {
                Ok(sent) => {
                    turn += sent;
                    let of_commands = sent.min(commands);
                    self.zmtp.sent(of_commands);
                    self.wrote |= queue.advance(sent - of_commands) > 0;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(error) => return WriteResult::Broken(error),
            }
        }
        WriteResult::Done
    }

    /// Tries once to send the reason for closing (ERROR).
    fn say(&self) {
        let _ = self.conn.write(&[IoSlice::new(self.zmtp.output())]);
    }
}

pub(crate) fn loss(error: Errno) -> LossReason {
    match error {
        Errno::CONNRESET | Errno::PIPE => LossReason::Reset,
        Errno::CONNREFUSED | Errno::NOENT => LossReason::NoListener,
        error => LossReason::Io(error.to_string()),
    }
}

/// The waits between attempts. Each doubles the last one; jitter shortens it by up to half, so that many clients do not
/// reconnect at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    random: u64,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration, seed: u64) -> Backoff {
        let max = max.max(min);
        // xorshift never leaves 0.
        Backoff { min, max, next: min, random: (seed ^ 0x9e37_79b9_7f4a_7c15).max(1) }
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }

    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    pub(crate) fn wait(&mut self) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let whole = self.next;
        self.next = (whole * 2).min(self.max);
        let half = whole / 2;
        half + half.mul_f64((self.random >> 11) as f64 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_bound_and_is_shortened_by_at_most_half() {
        let (min, max) = (Duration::from_millis(20), Duration::from_millis(500));
        let mut backoff = Backoff::new(min, max, 7);
        for whole in [20, 40, 80, 160, 320, 500, 500] {
            let (wait, whole) = (backoff.wait(), Duration::from_millis(whole));
            assert!(wait >= whole / 2 && wait <= whole, "{wait:?} of {whole:?}");
        }
        backoff.reset();
        assert!(backoff.wait() <= min);
        let waits = |seed| {
            let mut backoff = Backoff::new(min, max, seed);
            [backoff.wait(), backoff.wait()]
        };
        assert_ne!(waits(1), waits(2));
        assert_eq!(waits(1), waits(1));
    }
}
