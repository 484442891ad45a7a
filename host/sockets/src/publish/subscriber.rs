//! One subscriber of a PUB: its connection, what it wants, what waits for it.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

use afterbay_zmtp as zmtp;
use bytes::Bytes;
use rustix::io::Errno;

use super::notice::{PubOptions, PubTotals};
use crate::bounds::{SUBSCRIBER_TURN_BYTES, WRITE_CALL_BYTES, WRITE_CALL_FRAMES, WRITE_TURN_BYTES};
use crate::conn::{Conn, PeerAddress, Read};
use crate::dropped::Dropped;
use crate::pull::{CloseReason, PeerId};

/// A subscriber sends next to nothing: its greeting, READY, subscriptions, PING.
const READ_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) id: PeerId,
    pub(crate) conn: Conn,
    pub(crate) from: PeerAddress,
    /// Until when the handshake must be done.
    pub(crate) until: Instant,
    /// Frames that the kernel has whole.
    pub(crate) frames: u64,
    /// What it was not given, since its queue was full.
    pub(crate) dropped: Option<Dropped>,
    zmtp: zmtp::Peer,
    subscriptions: zmtp::Subscriptions,
    /// The kernel may have bytes, may take bytes: set by the poll, taken back only when a call blocks.
    readable: bool,
    writable: bool,
    queue: VecDeque<Bytes>,
    queue_bytes: u64,
    /// Of the first frame in the queue, with its header: bytes that the kernel has.
    offset: usize,
}

/// What became of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// It is not subscribed to.
    Unwanted,
    Queued,
    /// There is no room.
    Full,
}

impl Subscriber {
    pub(crate) fn new(id: PeerId, conn: Conn, from: PeerAddress, until: Instant) -> Subscriber {
        // What comes as a message is a subscription as ZMTP 3.0 has it: no longer than that of 3.1, which is a command.
        let zmtp = zmtp::Peer::new(zmtp::Role::Pub, zmtp::COMMAND_BYTES_MAX);
        Subscriber {
            id,
            conn,
            from,
            until,
            frames: 0,
            dropped: None,
            zmtp,
            subscriptions: zmtp::Subscriptions::default(),
            // Until a call says otherwise: the poll may not have known of it.
            readable: true,
            writable: true,
            queue: VecDeque::new(),
            queue_bytes: 0,
            offset: 0,
        }
    }

    /// Whatever the poll says (hang-up, error), reading and writing tell what it is.
    pub(crate) fn woken(&mut self, is_writable: bool) {
        self.readable = true;
        self.writable |= is_writable;
    }

    /// The kernel may take bytes.
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

    /// Something can be done without a further event.
    pub(crate) fn has_more(&self) -> bool {
        self.readable || self.writable && !(self.queue.is_empty() && self.zmtp.output().is_empty())
    }

    /// Queues a frame, if it wants it and there is room.
    pub(crate) fn give(&mut self, bytes: &Bytes, options: &PubOptions) -> Given {
        if !self.subscriptions.want(bytes) {
            return Given::Unwanted;
        }
        let size = bytes.len() as u64;
        let fits = self.queue_bytes + size <= options.max_queue_bytes;
        let has_room = self.queue.len() < options.max_queue_frames && fits;
        if !has_room && !self.queue.is_empty() {
            return Given::Full;
        }
        self.queue.push_back(bytes.clone());
        self.queue_bytes += size;
        Given::Queued
    }

    /// Reads until it blocks, or as much as a turn may. `Ok(true)`: the handshake was finished.
    pub(crate) fn read(&mut self) -> Result<bool, CloseReason> {
        let (mut is_new, mut read) = (false, 0);
        let mut buffer = [0; READ_BYTES];
        while self.readable && read < SUBSCRIBER_TURN_BYTES {
            match self.conn.read(&mut buffer) {
                Read::Blocked => self.readable = false,
                Read::End | Read::Failed(_) => return Err(CloseReason::of_end(&self.zmtp)),
                Read::Data(bytes) => {
                    read += bytes;
                    let mut input = &buffer[..bytes];
                    while !input.is_empty() {
                        let (used, event) = self.zmtp.feed(input).inspect_err(|_| self.say())?;
                        input = &input[used..];
                        match event {
                            Some(zmtp::Event::Ready(_)) => is_new = true,
                            Some(zmtp::Event::Subscribe(topic)) => self.subscriptions.add(topic)?,
                            Some(zmtp::Event::Cancel(topic)) => self.subscriptions.cancel(&topic),
                            // A PUB is given no messages.
                            Some(zmtp::Event::Message(_) | zmtp::Event::Command) | None => {}
                        }
                    }
                }
            }
        }
        Ok(is_new)
    }

    /// Writes the handshake, PONGs and what waits: until it blocks, or as much as a turn may.
    pub(crate) fn write(&mut self, totals: &mut PubTotals) -> Result<(), CloseReason> {
        let mut turn = 0;
        while self.writable && turn < WRITE_TURN_BYTES {
            let headers = self.headers();
            let (slices, commands) = self.slices(&headers);
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

    /// Of the frames that one call may take.
    fn headers(&self) -> Vec<zmtp::Header> {
        let mut sum = 0;
        let fits = |frame: &&Bytes| {
            let is_first = sum == 0;
            sum += zmtp::HEADER_BYTES_MAX + frame.len();
            is_first || sum <= WRITE_CALL_BYTES
        };
        let frames = self.queue.iter().take(WRITE_CALL_FRAMES).take_while(fits);
        frames.map(|frame| zmtp::Header::message(frame.len())).collect()
    }

    /// What to hand to the kernel next; how many bytes at its front are commands, which go between two frames.
    fn slices<'a>(&'a self, headers: &'a [zmtp::Header]) -> (Vec<IoSlice<'a>>, usize) {
        let commands = if self.offset == 0 { self.zmtp.output() } else { &[] };
        let mut skip = self.offset;
        let mut slices = Vec::with_capacity(1 + 2 * headers.len());
        slices.push(commands);
        for (header, frame) in headers.iter().zip(&self.queue) {
            let header = header.as_bytes();
            slices.push(&header[skip.min(header.len())..]);
            slices.push(&frame[skip.saturating_sub(header.len())..]);
            skip = 0;
        }
        let slices = slices.into_iter().filter(|slice| !slice.is_empty()).map(IoSlice::new).collect();
        (slices, commands.len())
    }

    /// The kernel took the next `bytes` of the queue.
    fn advance(&mut self, bytes: usize, totals: &mut PubTotals) {
        self.offset += bytes;
        while let Some(frame) = self.queue.front() {
            let size = frame.len();
            let on_wire = zmtp::Header::message(size).as_bytes().len() + size;
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

    /// Tries to say why we leave (ERROR): once, and whether or not it can be heard.
    fn say(&self) {
        if self.offset == 0 {
            let _ = self.conn.write(&[IoSlice::new(self.zmtp.output())]);
        }
    }
}
