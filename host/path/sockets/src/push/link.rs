//! One connection of a PUSH, from the attempt to the loss.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::zmtp;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::credit_tracker::{TRACKER_WORDS, TrackerWords};
use super::notice::LossReason;
use super::options::KeepAs;
use super::send_queue::{QUEUE_WORDS, SendQueue};
use crate::bounds::{SEND_GIVE_BACK_EVERY, WRITE_CALL_BYTES, WRITE_TURN_BYTES};
use crate::conn::{Conn, PeerAddress, ReadResult};
use crate::lasting::{MemoryError, OWNER_WORDS, OwnerWords, SendMemory};
use afterbay_supervision::fdstore::Kept;
use afterbay_types::Endpoint;

const _: () = assert!(QUEUE_WORDS + TRACKER_WORDS == OWNER_WORDS);

/// A reader sends little: its greeting, READY, PING. The biggest command is read at once.
const READ_BYTES: usize = zmtp::COMMAND_BYTES_MAX + zmtp::HEADER_BYTES_MAX;

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
    /// The time at which the stage times out; in [`LinkStage::Up`]: at which the stage began.
    pub(crate) at: Instant,
    pub(crate) to: PeerAddress,
    /// The kernel may take bytes. The poll sets it; only a write that blocks clears it.
    writable: bool,
    /// Whether a whole frame was written.
    pub(crate) wrote: bool,
    zmtp: zmtp::Conversation,
    /// The frames that a later process needs to continue this connection. `None` before [`LinkStage::Up`].
    memory: Option<SendMemory>,
    /// Holds the socket and the memory for a later process.
    kept: Option<Kept>,
    /// The time at which the memory was last asked to give pages back.
    gave_back: Instant,
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
        Link {
            conn,
            stage,
            at,
            to: PeerAddress::Unknown,
            writable: true,
            wrote: false,
            zmtp,
            memory: None,
            kept: None,
            gave_back: at,
        }
    }

    /// Continues the connection of an earlier process.
    pub(crate) fn adopted(conn: Conn, memory: SendMemory, now: Instant) -> Link {
        Link {
            stage: LinkStage::Up,
            to: conn.peer_address(),
            wrote: true,
            zmtp: zmtp::Conversation::resumed(zmtp::Role::Push, 0, true),
            memory: Some(memory),
            ..Link::new(conn, true, now)
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match self.to {
            PeerAddress::Process { pid, .. } => Some(pid).filter(|pid| *pid > 0),
            _ => None,
        }
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
            // Once there is a memory, a command stays in the socket until its answer is in the memory: a later process reads
            // the command again if this one dies. A part of a command is taken out, so that a read finds the end behind it.
            let peeks = self.memory.is_some() && self.zmtp.unfinished().is_none();
            let read = if peeks { self.conn.peek(&mut buffer) } else { self.conn.read(&mut buffer) };
            match read {
                ReadResult::Blocked => return Ok(is_new),
                ReadResult::End => return Err(LossReason::Closed),
                ReadResult::Failed(error) => return Err(loss(error)),
                ReadResult::Data(bytes) => {
                    let (mut used, mut whole) = (0, 0);
                    while used < bytes {
                        let (taken, event) =
                            self.zmtp.feed(&buffer[used..bytes]).inspect_err(|_| self.say())?;
                        used += taken;
                        is_new |= matches!(event, Some(zmtp::ZmtpEvent::Ready(_)));
                        whole = if event.is_some() { used } else { whole };
                    }
                    if let Some(memory) = self.memory.as_mut().filter(|_| peeks) {
                        if memory.save_commands(self.zmtp.output()) {
                            self.zmtp.sent(self.zmtp.output().len());
                        }
                        if (1..bytes).contains(&whole) {
                            self.zmtp = zmtp::Conversation::resumed(zmtp::Role::Push, 0, true);
                        }
                        self.conn.skip(&mut buffer[..if whole > 0 { whole } else { bytes }]);
                    }
                }
            }
        }
    }

    /// Makes the memory at the end of the handshake. It begins with the frames of the last connection that may have to be
    /// sent again.
    pub(crate) fn remember(&mut self, endpoint: &Endpoint, queue: &SendQueue) -> Result<(), MemoryError> {
        let mut memory = SendMemory::new(endpoint, queue.taken())?;
        queue.copy_retained(&mut memory);
        // The kernel may not have all of our READY.
        if memory.save_commands(self.zmtp.output()) {
            self.zmtp.sent(self.zmtp.output().len());
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Holds the socket and the memory beyond the life of this process, until the link is dropped.
    pub(crate) fn keep(&mut self, keep: &KeepAs) {
        let fds = self.memory.as_ref().map(|memory| [self.conn.fd().as_fd(), memory.fd()]);
        self.kept = fds.map(|fds| keep.store.keep(keep.name.clone(), &fds));
    }

    /// Saves the state of the queue and of the tracker in the memory. Frames that are taken leave the memory.
    pub(crate) fn save(&mut self, queue: &SendQueue, tracker: &TrackerWords) {
        let Some(memory) = &mut self.memory else { return };
        let mut words = OwnerWords::default();
        let (of_queue, of_tracker) = words.split_at_mut(QUEUE_WORDS);
        of_queue.copy_from_slice(&queue.saved());
        of_tracker.copy_from_slice(tracker);
        memory.save(queue.taken(), queue.has_staged(), &words);
    }

    /// The time at which [`Link::give_back`] is due.
    pub(crate) fn give_back_at(&self) -> Option<Instant> {
        let has_spare_pages = self.memory.as_ref().is_some_and(SendMemory::has_spare_pages);
        has_spare_pages.then(|| self.gave_back + SEND_GIVE_BACK_EVERY)
    }

    /// Gives the pages of earlier big frames back to the system.
    pub(crate) fn give_back(&mut self, now: Instant) {
        self.gave_back = now;
        if let Some(memory) = &mut self.memory {
            memory.give_back();
        }
    }

    /// Whether the kernel has a part of a frame and not the whole.
    pub(crate) fn is_within_frame(&self) -> bool {
        self.memory.as_ref().is_some_and(SendMemory::is_within_frame)
    }

    /// Writes the handshake, PONGs and, with a window, frames: the window limits the unfinished frames and their bytes.
    /// `tracker`: the state of the tracker, to be saved with the progress.
    pub(crate) fn write(
        &mut self,
        queue: &mut SendQueue,
        window: Option<(usize, usize)>,
        tracker: &TrackerWords,
    ) -> WriteResult {
        let mut turn = 0;
        while self.writable {
            let Some(memory) = &mut self.memory else {
                if self.zmtp.output().is_empty() {
                    return WriteResult::Done;
                }
                match self.conn.write(&[IoSlice::new(self.zmtp.output())]) {
                    Ok(sent) => self.zmtp.sent(sent),
                    Err(Errno::AGAIN) => self.writable = false,
                    Err(error) => return WriteResult::Broken(error),
                }
                continue;
            };
            if window.is_none() && memory.has_unwritten_frames() {
                return WriteResult::Done;
            }
            let commands = self.zmtp.output();
            if !commands.is_empty() && memory.append_commands(commands) {
                self.zmtp.sent(commands.len());
            }
            while let Some((frames, bytes)) = window
                && memory.unwritten() < WRITE_CALL_BYTES
                && let Some(frame) = queue.next_unstaged(frames, bytes)
                && memory.append_frame(frame.sequence, frame.counted, &frame.bytes)
            {
                queue.staged();
            }
            if memory.unwritten() == 0 {
                return WriteResult::Done;
            }
            if turn >= WRITE_TURN_BYTES {
                return WriteResult::LimitReached;
            }
            match memory.write(self.conn.fd()) {
                Ok((bytes, frames)) => {
                    turn += bytes;
                    self.wrote |= frames > 0;
                    queue.wrote(frames);
                    self.save(queue, tracker);
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(error) => return WriteResult::Broken(error),
            }
        }
        WriteResult::Done
    }

    /// Tries once to send the reason for closing (ERROR), unless bytes wait for the kernel.
    fn say(&self) {
        if self.memory.as_ref().is_some_and(|memory| memory.unwritten() > 0) {
            return;
        }
        let _ = self.conn.write(&[IoSlice::new(self.zmtp.output())]);
    }
}

/// The bytes that the two kernel buffers of a connection can hold unread.
pub(crate) fn unread_bytes_max(conn: &Conn) -> usize {
    let send_buffer = sockopt::socket_send_buffer_size(conn.fd()).unwrap_or(usize::MAX / 4);
    // Over ipc the sender's buffer is the only one. One write of up to half of it can exceed its limit.
    if conn.is_ipc() { send_buffer * 2 } else { send_buffer + TCP_UNREAD_BYTES_MAX }
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
