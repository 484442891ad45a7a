//! The receive buffer of one sender, in memory that outlives the process: the bytes since the last message that the journal
//! has.
//!
//! ```text
//! 0        done        parsed                 end             area
//! | unused | not done  | received, not parsed | free, sparse  |
//! ```
//! At most one message of a socket is in hand: taken, and not done. Before the journal gets this message, the memory notes the
//! number of the journal's frame. A later process that finds the number in the journal continues behind the message, and
//! otherwise receives the message again.
//!
//! The buffer begins at its start again when `done` reaches `end`. A rest is copied to the start when it overlaps nothing.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::zmtp::{GREETING_BYTES, HEADER_BYTES_MAX};
use rustix::io::Errno;

use super::memory::{Memory, MemoryError, MemoryRole, WORDS, Words};
use crate::bounds::{BUFFER_KEPT_BYTES, READ_BUFFER_BYTES, READ_DIRECT_BYTES};
use crate::injected::{self, SocketCall};

/// From here on the rest of the buffer is copied to its start.
const COMPACT_FROM: usize = 128 << 10;

/// The area's bytes besides those of one message: a read goes on until the message is whole, and may take more.
const AREA_BESIDE_MESSAGE: usize = COMPACT_FROM + 2 * READ_DIRECT_BYTES + HEADER_BYTES_MAX;

/// The meaning of the memory's words.
mod word {
    /// How far our READY is sent: a [`super::Said`].
    pub(super) const SAID: usize = 0;
    /// 1: the sender's READY is done.
    pub(super) const HEARD: usize = 1;
    pub(super) const END: usize = 2;
    pub(super) const DONE: usize = 3;
    /// The journal's frame of the message in hand. 0: none was given to the journal.
    pub(super) const FRAME: usize = 4;
    /// The end of the message in hand.
    pub(super) const FRAME_END: usize = 5;
    /// Bytes of commands that the transfer of this slot sends. 0: the transfer receives.
    pub(super) const SENDING: usize = 6;
    /// 1: the kernel has a part of a command, and lacks the rest. The transfer of this slot begins there.
    pub(super) const CUT: usize = 7;
}

/// How far our READY is sent. No sender sends a message before it has READY whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing = 0,
    /// If the transfer of this slot is complete, the kernel has READY.
    ByThisTransfer = 1,
    Ready = 2,
}

/// The receive buffer of one sender. Public only to be measured.
#[derive(Debug)]
pub struct ReceiveBuffer {
    memory: Memory,
    said: Said,
    heard: bool,
    done: usize,
    parsed: usize,
    end: usize,
    /// The journal's frame of the message in hand, if the journal may have it.
    frame: u64,
    /// Our direction is within a command.
    is_cut: bool,
    /// Nothing can be sent any more: an earlier process died when the kernel had a part of a command.
    is_mute: bool,
    /// The pages of the area from here on take no memory.
    touched: usize,
    /// The highest `end` since the last [`ReceiveBuffer::trim`].
    peak: usize,
}

impl ReceiveBuffer {
    /// Makes a buffer for messages of at most this size.
    pub fn new(message_bytes_max: usize) -> Result<ReceiveBuffer, MemoryError> {
        let area = message_bytes_max.saturating_add(AREA_BESIDE_MESSAGE);
        let mut buffer = ReceiveBuffer {
            memory: Memory::new(MemoryRole::Receive, area)?,
            said: Said::Nothing,
            heard: false,
            done: 0,
            parsed: 0,
            end: 0,
            frame: 0,
            is_cut: false,
            is_mute: false,
            touched: 0,
            peak: 0,
        };
        buffer.commit();
        Ok(buffer)
    }

    /// Continues the buffer of an earlier process. `last_frame`: the last frame of the journal. Writes nothing.
    pub(crate) fn adopt(fd: OwnedFd, last_frame: u64) -> Result<ReceiveBuffer, MemoryError> {
        let memory = Memory::adopt(fd, MemoryRole::Receive)?;
        let (words, count) = (memory.words(), memory.count() as u64);
        let (sending, frame) = (words[word::SENDING], words[word::FRAME]);
        let received = if sending == 0 { count } else { 0 };
        let end = words[word::END].saturating_add(received);
        let (done, frame_end) = (words[word::DONE], words[word::FRAME_END]);
        let contradiction = |what: String| Err(MemoryError::Contradiction(what));
        let area = memory.area_bytes();
        if area < AREA_BESIDE_MESSAGE {
            return contradiction(format!(
                "an area of {area} bytes, at least {AREA_BESIDE_MESSAGE} are needed"
            ));
        }
        if end > area as u64 {
            return contradiction(format!("{end} bytes received, the area has {area}"));
        }
        if done > end || (frame > 0 && !(done..=end).contains(&frame_end)) {
            return contradiction(format!("done to {done}, frame {frame} to {frame_end}, received to {end}"));
        }
        if words[word::SAID] > 2
            || words[word::HEARD] > 1
            || words[word::CUT] > 1
            || sending > 0 && count > sending
        {
            return contradiction(format!("{count} of {sending} bytes sent, words {words:?}"));
        }
        let is_whole = sending > 0 && count == sending;
        let is_said = words[word::SAID] == Said::Ready as u64
            || (words[word::SAID] == Said::ByThisTransfer as u64 && is_whole);
        if !is_said {
            return Err(MemoryError::Handshake);
        }
        let is_cut = !is_whole && (words[word::CUT] == 1 || sending > 0 && count > 0);
        let is_journaled = frame > 0 && frame <= last_frame;
        let from = if is_journaled { frame_end } else { done } as usize;
        Ok(ReceiveBuffer {
            memory,
            said: Said::Ready,
            heard: words[word::HEARD] == 1,
            done: from,
            parsed: from,
            end: end as usize,
            frame: 0,
            is_cut,
            is_mute: is_cut,
            touched: area,
            peak: end as usize,
        })
    }

    /// The descriptor of the memory.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The biggest message that the buffer has room for.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.memory.area_bytes() - AREA_BESIDE_MESSAGE
    }

    /// Whether the sender's READY is done.
    pub(crate) fn has_heard_ready(&self) -> bool {
        self.heard
    }

    /// Received bytes that are not parsed.
    pub fn unparsed(&self) -> &[u8] {
        self.memory.bytes(self.parsed..self.end)
    }

    /// Received bytes that are not done: a later process gets them again.
    pub(crate) fn open_bytes(&self) -> usize {
        self.end - self.done
    }

    /// Notes that the first of the unparsed bytes are parsed.
    pub fn parse(&mut self, bytes: usize) {
        self.parsed = (self.parsed + bytes).min(self.end);
    }

    /// Everything parsed is done. The parsed bytes end with a frame. The memory learns it with the next commit.
    pub fn settle(&mut self, is_ready: bool) {
        (self.done, self.frame, self.heard) = (self.parsed, 0, is_ready);
    }

    /// As [`ReceiveBuffer::settle`], and the memory learns it now.
    pub fn settle_now(&mut self, is_ready: bool) {
        self.settle(is_ready);
        self.commit();
    }

    /// Notes in the memory that the journal may get the message in hand as this frame. The message ends the parsed bytes.
    pub fn note(&mut self, frame: u64) {
        self.frame = frame;
        self.commit();
    }

    /// The noted frame of the message in hand. 0: none.
    pub(crate) fn noted(&self) -> u64 {
        self.frame
    }

    /// Notes in an adopted memory what this process makes of it. The frame that an earlier process noted is in the journal, or
    /// another message will have its number.
    pub(crate) fn claim(&mut self) {
        self.commit();
    }

    /// Takes the message in hand back: it is parsed again, and the memory knows of no frame.
    pub(crate) fn rewind(&mut self) {
        (self.parsed, self.frame) = (self.done, 0);
        self.commit();
    }

    /// Reads more, and returns how many bytes; 0 at the end of the stream. `missing`: the bytes that the present message lacks.
    /// There is no message in hand.
    pub fn read(&mut self, socket: impl AsFd, missing: usize) -> Result<usize, Errno> {
        self.make_room();
        let most =
            missing.clamp(READ_BUFFER_BYTES, READ_DIRECT_BYTES).min(self.memory.area_bytes() - self.end);
        let into = self.end..self.end + injected::at(SocketCall::Read(most)).min(most);
        let words = self.words(0);
        let read = match self.memory.receive(&words, socket.as_fd(), into.clone()) {
            // The call returns an error of the connection before bytes that arrived earlier, and returns it once.
            Err(error) if error != Errno::AGAIN => self.memory.receive(&words, socket.as_fd(), into),
            read => read,
        };
        if let Ok(bytes) = read {
            injected::at(SocketCall::HasRead(bytes));
            self.end += bytes;
        }
        self.peak = self.peak.max(self.end);
        self.touched = self.touched.max(self.end);
        read
    }

    /// Whether the buffer takes more memory than it should keep.
    pub(crate) fn is_big(&self) -> bool {
        self.touched > BUFFER_KEPT_BYTES
    }

    /// Returns memory to the system that no message needed since the last call.
    pub(crate) fn trim(&mut self) {
        let kept = self.peak.max(BUFFER_KEPT_BYTES);
        if self.touched > kept {
            self.memory.give_back(kept);
            self.touched = kept;
        }
        self.peak = self.end;
    }

    /// Moves the bytes that are not done to the start, if that is worth it.
    fn make_room(&mut self) {
        let (done, rest) = (self.done, self.end - self.done);
        if rest > 0 {
            // The rest must not be written over itself: the words that are valid now speak of it.
            if self.end < COMPACT_FROM || done < rest {
                return;
            }
            // The valid words may lag behind `done`, and then they speak of bytes that are written over.
            self.commit();
            let (to, from) = self.memory.bytes_mut(0..self.end).split_at_mut(done);
            to[..rest].copy_from_slice(from);
        }
        (self.done, self.parsed, self.end) = (0, self.parsed - done, rest);
    }

    /// Sends commands or our greeting, and returns how many bytes the kernel took. `has_ready`: the bytes include our READY,
    /// unless READY was sent earlier.
    pub(crate) fn send(&mut self, socket: impl AsFd, bytes: &[u8], has_ready: bool) -> Result<usize, Errno> {
        if self.is_mute {
            return Ok(bytes.len());
        }
        if has_ready && self.said == Said::Nothing {
            self.said = Said::ByThisTransfer;
        }
        let words = self.words(bytes.len());
        let part = &bytes[..injected::at(SocketCall::Write(bytes.len())).min(bytes.len())];
        let sent = self.memory.send(&words, socket.as_fd(), &[IoSlice::new(part)]);
        if let Ok(sent) = sent {
            injected::at(SocketCall::HasWritten(sent));
        }
        let is_whole = sent == Ok(bytes.len());
        if self.said == Said::ByThisTransfer {
            self.said = if is_whole { Said::Ready } else { Said::Nothing };
        }
        self.is_cut = !is_whole && (self.is_cut || sent.is_ok_and(|sent| sent > 0));
        sent
    }

    /// The sender's greeting is done: a later process continues behind it. Call it once, before the first READY is sent.
    pub(crate) fn greeted(&mut self) {
        self.done = self.done.max(GREETING_BYTES.min(self.parsed));
    }

    fn commit(&mut self) {
        let words = self.words(0);
        self.memory.commit(&words);
    }

    fn words(&self, sending: usize) -> Words {
        let mut words = [0; WORDS];
        words[word::SAID] = self.said as u64;
        words[word::HEARD] = u64::from(self.heard);
        words[word::END] = self.end as u64;
        words[word::DONE] = self.done as u64;
        words[word::FRAME] = self.frame;
        words[word::FRAME_END] = self.parsed as u64;
        words[word::SENDING] = sending as u64;
        words[word::CUT] = u64::from(self.is_cut);
        words
    }
}
