//! One subscriber of a PUB: its connection, its subscriptions, its queue.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

use crate::zmtp;
use afterbay_types::parts;
use bytes::Bytes;
use rustix::io::Errno;

use super::notice::{PubOptions, PubTotals};
use crate::bounds::{SUBSCRIBER_TURN_BYTES, WRITE_CALL_BYTES, WRITE_CALL_FRAMES, WRITE_TURN_BYTES};
use crate::conn::{Conn, PeerAddress, ReadResult};
use crate::dropped::Dropped;
use crate::peers::{CloseReason, PeerId};

/// A subscriber sends little: its greeting, READY, subscriptions, PING.
const READ_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) id: PeerId,
    pub(crate) conn: Conn,
    pub(crate) from: PeerAddress,
    /// The time at which the handshake times out.
    pub(crate) until: Instant,
    /// Frames that the kernel took whole.
    pub(crate) frames: u64,
    /// The frames dropped since its queue became full.
    pub(crate) dropped: Option<Dropped>,
    zmtp: zmtp::Conversation,
    subscriptions: zmtp::Subscriptions,
    /// The kernel may have or take bytes. The poll sets both; only a call that blocks clears one.
    readable: bool,
    writable: bool,
    queue: VecDeque<WireFrame>,
    queue_bytes: u64,
    /// Bytes of the first queued frame, with its header, that the kernel has.
    offset: usize,
}

/// A frame as its message's bytes on the wire, which all subscribers share.
#[derive(Clone, Debug)]
pub(crate) struct WireFrame {
    header: zmtp::FrameHeader,
    rest: Bytes,
    /// Subscribers choose by the first part.
    first_part: Bytes,
    /// The frame's bytes.
    size: usize,
}

impl WireFrame {
    pub(crate) fn new(frame: &Bytes) -> WireFrame {
        let size = frame.len();
        match zmtp::on_wire(frame) {
            (header, Cow::Borrowed(_)) => {
                WireFrame { header, rest: frame.clone(), first_part: frame.clone(), size }
            }
            (header, Cow::Owned(rest)) => {
                let parts = parts::split(frame).unwrap_or_default();
                let first_part = parts.into_iter().next().unwrap_or_default();
                WireFrame { header, rest: Bytes::from(rest), first_part, size }
            }
        }
    }

    fn on_wire(&self) -> usize {
        self.header.as_bytes().len() + self.rest.len()
    }
}

/// The result of queueing a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueueResult {
    /// The frame has no topic of the subscriber.
    Unwanted,
    Queued,
    /// The queue is full.
    Full,
}

impl Subscriber {
    pub(crate) fn new(id: PeerId, conn: Conn, from: PeerAddress, until: Instant) -> Subscriber {
        // A message from a subscriber is a ZMTP 3.0 subscription. The limit is that of ZMTP 3.1, where a subscription
        // is a command.
        let zmtp = zmtp::Conversation::new(zmtp::Role::Pub, zmtp::COMMAND_BYTES_MAX);
        Subscriber {
            id,
            conn,
            from,
            until,
            frames: 0,
            dropped: None,
            zmtp,
            subscriptions: zmtp::Subscriptions::default(),
            // True until a call blocks: there may be bytes from before the registration with the poll.
            readable: true,
            writable: true,
            queue: VecDeque::new(),
            queue_bytes: 0,
            offset: 0,
        }
    }

    /// Notes an event. Whatever it is (also hang-up or error), reads and writes find out.
    pub(crate) fn woken(&mut self, is_writable: bool) {
        self.readable = true;
        self.writable |= is_writable;
    }

    /// Whether the kernel may take bytes.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.zmtp.is_ready()
    }

    pub(crate) fn wants_anything(&self) -> bool {
        !self.subscriptions.is_empty()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// Whether there is work without a further event.
    pub(crate) fn has_more(&self) -> bool {
        self.readable || self.writable && !(self.queue.is_empty() && self.zmtp.output().is_empty())
    }

    /// Queues a frame if the subscriber wants it and the queue has room.
    pub(crate) fn enqueue(&mut self, frame: &WireFrame, options: &PubOptions) -> QueueResult {
        if !self.subscriptions.want(&frame.first_part) {
            return QueueResult::Unwanted;
        }
        let size = frame.size as u64;
        let fits = self.queue_bytes + size <= options.max_queue_bytes;
        let has_room = self.queue.len() < options.max_queue_frames && fits;
        if !has_room && !self.queue.is_empty() {
            return QueueResult::Full;
        }
        self.queue.push_back(frame.clone());
        self.queue_bytes += size;
        QueueResult::Queued
    }

    /// Reads until it blocks or the turn's bound is reached. `Ok(true)`: the handshake was completed.
    pub(crate) fn read(&mut self) -> Result<bool, CloseReason> {
        let (mut is_new, mut read) = (false, 0);
        let mut buffer = [0; READ_BYTES];
        while self.readable && read < SUBSCRIBER_TURN_BYTES {
            match self.conn.read(&mut buffer) {
                ReadResult::Blocked => self.readable = false,
                ReadResult::End | ReadResult::Failed(_) => return Err(CloseReason::of_end(&self.zmtp)),
                ReadResult::Data(bytes) => {
                    read += bytes;
                    let mut input = &buffer[..bytes];
                    while !input.is_empty() {
                        let (used, event) = self.zmtp.feed(input).inspect_err(|_| self.say())?;
                        input = &input[used..];
                        match event {
                            Some(zmtp::ZmtpEvent::Ready(_)) => is_new = true,
                            Some(zmtp::ZmtpEvent::Subscribe(topic)) => self.subscriptions.add(topic)?,
                            Some(zmtp::ZmtpEvent::Cancel(topic)) => self.subscriptions.cancel(&topic),
                            // A PUB ignores messages.
                            Some(zmtp::ZmtpEvent::Message(_) | zmtp::ZmtpEvent::Command) | None => {}
                        }
                    }
                }
            }
        }
        Ok(is_new)
    }

    /// Writes the handshake, PONGs and queued frames until it blocks or the turn's bound is reached.
    pub(crate) fn write(&mut self, totals: &mut PubTotals) -> Result<(), CloseReason> {
        let mut turn = 0;
        while self.writable && turn < WRITE_TURN_BYTES {
            let (slices, commands) = self.slices();
            if slices.is_empty() {
                return Ok(());
            }
            match self.conn.write(&slices) {
                Ok(sent) => {
                    turn += sent;
                    let of_commands = sent.min(commands);
                    self.zmtp.sent(of_commands);
                    self.advance(sent - of_commands, totals);
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(_) => return Err(CloseReason::of_end(&self.zmtp)),
            }
        }
        Ok(())
    }

    /// The bytes that one call may write, and how many bytes at the front are commands. Commands are written between two
    /// frames only.
    fn slices(&self) -> (Vec<IoSlice<'_>>, usize) {
        let commands = if self.offset == 0 { self.zmtp.output() } else { &[] };
        let (mut skip, mut sum) = (self.offset, 0);
        let fits = |frame: &&WireFrame| {
            let is_first = sum == 0;
            sum += zmtp::HEADER_BYTES_MAX + frame.rest.len();
            is_first || sum <= WRITE_CALL_BYTES
        };
        let mut slices = vec![commands];
        for frame in self.queue.iter().take(WRITE_CALL_FRAMES).take_while(fits) {
            let header = frame.header.as_bytes();
            slices.push(&header[skip.min(header.len())..]);
            slices.push(&frame.rest[skip.saturating_sub(header.len())..]);
            skip = 0;
        }
        let slices = slices.into_iter().filter(|slice| !slice.is_empty()).map(IoSlice::new).collect();
        (slices, commands.len())
    }

    /// Notes that the kernel took the next `bytes` of the queue.
    fn advance(&mut self, bytes: usize, totals: &mut PubTotals) {
        self.offset += bytes;
        while let Some(frame) = self.queue.front() {
            let (size, on_wire) = (frame.size, frame.on_wire());
            if self.offset < on_wire {
                return;
            }
            self.offset -= on_wire;
            self.queue.pop_front();
            self.queue_bytes -= size as u64;
            self.frames += 1;
            totals.frames_written += 1;
            totals.bytes_written += size as u64;
        }
    }

    /// Tries once to send the reason for closing (ERROR).
    fn say(&self) {
        if self.offset == 0 {
            let _ = self.conn.write(&[IoSlice::new(self.zmtp.output())]);
        }
    }
}
