//! The bytes that a PUSH is about to write, and those that it may have to write again.
//!
//! A frame is appended before it is written, and stays until it need never be sent again. Commands go between two frames.
//! The kernel itself counts the written bytes, so the memory says after any death which frames the kernel has, and where
//! the next write begins.
//!
//! ```text
//!       0  the entries: a ring of 2,048 frames, 4 words each: sequence, start, end, counted
//!  65,536  2 bytes of length, then the endpoint as text
//!  69,632  the bytes
//! ```
//! An entry's start and end are offsets in the outgoing stream. The bytes are linear. They begin again at the front when
//! none is left, and the rest of them moves to the front when it is a quarter of what lies before it or less.
//!
//! Words: the stream offset of the first byte of the bytes, the written bytes, the end, the entries, `taken`, and 11 words
//! whose meaning is the owner's.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use afterbay_types::Endpoint;
use bytes::Bytes;
use rustix::io::Errno;

use super::memory::{Memory, MemoryError, MemoryRole, Words};
use crate::bounds::{SEND_ENTRIES_MAX, SEND_MEMORY_BYTES, SEND_RESIDENT_BYTES, SEND_RESTART_BYTES};
use crate::injected::{self, SocketCall};

const ENTRY_BYTES: usize = 32;
const ENDPOINT_AT: usize = SEND_ENTRIES_MAX * ENTRY_BYTES;
const ENDPOINT_BYTES: usize = 4 << 10;
const BYTES_AT: usize = ENDPOINT_AT + ENDPOINT_BYTES;

/// The number of words whose meaning is the owner's.
pub const OWNER_WORDS: usize = 11;

/// The words whose meaning is the owner's. All zero in a memory whose owner has never saved.
pub type OwnerWords = [u64; OWNER_WORDS];

/// The bytes of one connection to a reader.
#[derive(Debug)]
pub struct SendMemory {
    memory: Memory,
    /// The stream offset of the byte at the front.
    base: u64,
    /// The stream offset up to which the kernel has the bytes.
    written: u64,
    /// The stream offset of the last byte's end.
    end: u64,
    /// The number of the oldest entry, and how many there are.
    first: u32,
    entries: u32,
    /// How many of the entries the kernel has whole.
    whole: u32,
    /// The last frame that need never be sent again.
    taken: u64,
    owner: OwnerWords,
    /// The bytes of the area that were used since pages were last given back, and since [`SendMemory::give_back`].
    used: u64,
    recently_used: u64,
}

/// A frame in the memory. The offsets are of the outgoing stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    sequence: u64,
    start: u64,
    end: u64,
    counted: bool,
}

/// A frame that an earlier process left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeptFrame {
    pub(crate) sequence: u64,
    pub(crate) counted: bool,
    pub(crate) bytes: Bytes,
}

impl SendMemory {
    /// An empty memory. `taken`: the last frame that need never be sent again.
    pub fn new(endpoint: &Endpoint, taken: u64) -> Result<SendMemory, MemoryError> {
        let mut memory = Memory::new(MemoryRole::Send, BYTES_AT + SEND_MEMORY_BYTES)?;
        let text = endpoint.to_string();
        // A longer text than any endpoint has is stored as none, and then no later process continues the connection.
        if let Some(len) =
            u16::try_from(text.len()).ok().filter(|len| usize::from(*len) + 2 <= ENDPOINT_BYTES)
        {
            let end = ENDPOINT_AT + 2 + text.len();
            memory.bytes_mut(ENDPOINT_AT..ENDPOINT_AT + 2).copy_from_slice(&len.to_le_bytes());
            memory.bytes_mut(ENDPOINT_AT + 2..end).copy_from_slice(text.as_bytes());
        }
        let (owner, first, entries, whole) = ([0; OWNER_WORDS], 0, 0, 0);
        let mut new = SendMemory {
            memory,
            base: 0,
            written: 0,
            end: 0,
            first,
            entries,
            whole,
            taken,
            owner,
            used: 0,
            recently_used: 0,
        };
        new.memory.commit(&new.words());
        Ok(new)
    }

    /// Continues the memory of an earlier process that was connected to this endpoint. Changes nothing in it: the earlier
    /// process may go on if the hand-over fails.
    pub(crate) fn adopt(fd: OwnedFd, endpoint: &Endpoint) -> Result<SendMemory, MemoryError> {
        let memory = Memory::adopt(fd, MemoryRole::Send)?;
        let wrong = |what: String| Err(MemoryError::Contradiction(what));
        let Some(bytes_max) = memory.area_bytes().checked_sub(BYTES_AT) else {
            return wrong(format!("{} bytes for the bytes to send", memory.area_bytes()));
        };
        let [base, before, end, entries, taken, owner @ ..] = memory.words();
        let written = before.saturating_add(memory.count() as u64);
        let (first, count) = ((entries >> 32) as u32, entries as u32);
        let adopted = SendMemory {
            memory,
            base,
            written,
            end,
            first,
            entries: count,
            whole: 0,
            taken,
            owner,
            used: u64::MAX,
            recently_used: 0,
        };
        let expected = endpoint.to_string();
        let found = adopted.endpoint();
        if found != expected {
            return Err(MemoryError::Endpoint { found, expected });
        }
        if !(base <= written && written <= end && end - base <= bytes_max as u64) {
            return wrong(format!("{written} bytes written of {base} to {end}"));
        }
        if count as usize > SEND_ENTRIES_MAX {
            return wrong(format!("{count} frames, more than {SEND_ENTRIES_MAX}"));
        }
        let (mut last, mut from) = (taken, base);
        for index in 0..count {
            let entry = adopted.entry(index);
            let is_in_order = entry.sequence > last && from <= entry.start;
            let is_in_order = is_in_order && entry.start < entry.end && entry.end <= end;
            if !is_in_order || !crate::zmtp::is_on_wire(adopted.wire(&entry)) {
                return wrong(format!("frame {} at {} to {}", entry.sequence, entry.start, entry.end));
            }
            (last, from) = (entry.sequence, entry.end);
        }
        Ok(adopted.count_whole())
    }

    /// The descriptor, to be held by whoever outlives this process.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The last frame that need never be sent again.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// The words that the owner saved last.
    pub(crate) fn owner(&self) -> &OwnerWords {
        &self.owner
    }

    /// The frames, oldest first. The first [`SendMemory::whole`] of them are whole in the kernel.
    pub(crate) fn frames(&self) -> impl Iterator<Item = KeptFrame> {
        (0..self.entries).map(|index| self.entry(index)).filter_map(|entry| {
            let bytes = crate::zmtp::frame_on_wire(self.wire(&entry))?;
            Some(KeptFrame { sequence: entry.sequence, counted: entry.counted, bytes })
        })
    }

    /// How many frames the kernel has whole.
    pub(crate) fn whole(&self) -> usize {
        self.whole as usize
    }

    /// Whether the kernel has a part of a frame and not the whole.
    pub(crate) fn is_within_frame(&self) -> bool {
        self.whole < self.entries && self.entry(self.whole).start < self.written
    }

    /// Whether a frame is here that the kernel does not have whole.
    pub(crate) fn has_unwritten_frames(&self) -> bool {
        self.whole < self.entries
    }

    /// The number of bytes that the kernel does not have.
    pub fn unwritten(&self) -> usize {
        (self.end - self.written) as usize
    }

    /// Appends commands. Returns false if there is no room.
    pub(crate) fn append_commands(&mut self, commands: &[u8]) -> bool {
        self.append(&[commands]).is_some()
    }

    /// Appends commands, and makes them a part of what a later process finds. Returns false if there is no room.
    pub(crate) fn save_commands(&mut self, commands: &[u8]) -> bool {
        if commands.is_empty() {
            return true;
        }
        let has_room = self.append_commands(commands);
        self.memory.commit(&self.words());
        has_room
    }

    /// Appends a frame. Returns false if there is no room until the reader has finished other frames.
    pub fn append_frame(&mut self, sequence: u64, counted: bool, frame: &Bytes) -> bool {
        if self.entries as usize >= SEND_ENTRIES_MAX {
            return false;
        }
        let (header, rest) = crate::zmtp::on_wire(frame);
        let Some(Range { start, end }) = self.append(&[header.as_bytes(), &rest]) else { return false };
        let words = [sequence, start, end, u64::from(counted)];
        let at = self.entry_at(self.entries);
        for (to, word) in self.memory.bytes_mut(at).chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.entries += 1;
        true
    }

    /// Counts all appended bytes as written: another connection had these frames.
    pub(crate) fn skip(&mut self) {
        (self.written, self.whole) = (self.end, self.entries);
        self.memory.commit(&self.words());
    }

    /// Writes what the kernel takes. Returns the number of bytes, and of frames that are now whole in the kernel.
    pub fn write(&mut self, socket: impl AsFd) -> Result<(usize, usize), Errno> {
        let from = self.position(self.written);
        let most = injected::at(SocketCall::Write(self.unwritten())).min(self.unwritten());
        let words = self.words();
        let bytes = loop {
            match self.memory.send_area(&words, socket.as_fd(), from..from + most) {
                Err(Errno::INTR) => {}
                sent => break sent?,
            }
        };
        injected::at(SocketCall::HasWritten(bytes));
        self.written += bytes as u64;
        let before = self.whole;
        self.advance_whole();
        Ok((bytes, (self.whole - before) as usize))
    }

    /// Saves the owner's words. The frames up to `taken` leave the memory in the same instant. `has_frames`: whether any
    /// frame of this connection is still in the owner's queue as written; otherwise all frames leave.
    pub fn save(&mut self, taken: u64, has_frames: bool, owner: &OwnerWords) {
        let before = (self.taken, self.entries);
        while self.entries > 0 && (!has_frames || self.entry(0).sequence <= taken) {
            self.first = self.first.wrapping_add(1);
            self.entries -= 1;
            self.whole = self.whole.saturating_sub(1);
        }
        if before != (taken, self.entries) || self.owner != *owner {
            (self.taken, self.owner) = (taken, *owner);
            self.memory.commit(&self.words());
        }
    }

    /// Whether big frames have used pages that [`SendMemory::give_back`] may give back.
    pub(crate) fn has_spare_pages(&self) -> bool {
        self.used > SEND_RESIDENT_BYTES as u64
    }

    /// Gives pages back to the system that were not used since the last call. Call it now and then, not after each big frame:
    /// new pages cost more than the copy of the frame.
    pub(crate) fn give_back(&mut self) {
        if self.has_spare_pages() && self.recently_used <= SEND_RESIDENT_BYTES as u64 {
            // The words in the memory may still refer to frames that have left.
            self.memory.commit(&self.words());
            self.memory.give_back(BYTES_AT + SEND_RESIDENT_BYTES);
            self.used = self.recently_used;
        }
        self.recently_used = self.end - self.base;
        if self.unwritten() == 0 && self.entries == 0 {
            self.recently_used = 0;
        }
    }

    fn words(&self) -> Words {
        let entries = u64::from(self.first) << 32 | u64::from(self.entries);
        let [a, b, c, d, e, f, g, h, i, j, k] = self.owner;
        [self.base, self.written, self.end, entries, self.taken, a, b, c, d, e, f, g, h, i, j, k]
    }

    /// Appends the parts one after the other. Returns their range in the stream; `None` if there is no room.
    fn append(&mut self, parts: &[&[u8]]) -> Option<Range<u64>> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.make_room(bytes as u64)?;
        let start = self.end;
        for part in parts {
            let at = self.position(self.end);
            self.memory.bytes_mut(at..at + part.len()).copy_from_slice(part);
            self.end += part.len() as u64;
        }
        self.recently_used = self.recently_used.max(self.end - self.base);
        self.used = self.used.max(self.recently_used);
        Some(start..self.end)
    }

    fn make_room(&mut self, bytes: u64) -> Option<()> {
        if self.written == self.end {
            // Commands behind the last frame need no room once the kernel has them.
            let last = self.entries.checked_sub(1).map(|last| self.entry(last).end);
            self.end = last.unwrap_or(self.end);
            self.written = self.end;
        }
        let oldest = if self.entries > 0 { self.entry(0).start.min(self.written) } else { self.written };
        let (left, before) = (self.end - oldest, oldest - self.base);
        if left == 0 {
            self.base = self.end;
        } else {
            let area = (self.memory.area_bytes() - BYTES_AT) as u64;
            let after = self.end - self.base + bytes;
            let is_cheap = after > SEND_RESTART_BYTES as u64 && before / 4 >= left;
            if is_cheap || (after > area && before >= left) {
                self.move_to_front(oldest);
            }
        }
        let area = (self.memory.area_bytes() - BYTES_AT) as u64;
        (self.end - self.base + bytes <= area).then_some(())
    }

    /// Moves the bytes from `oldest` on to the front. The words in the memory must not refer to what is overwritten.
    fn move_to_front(&mut self, oldest: u64) {
        // The valid words may still have frames that have left.
        self.memory.commit(&self.words());
        let from = self.position(oldest)..self.position(self.end);
        let (front, rest) = self.memory.bytes_mut(BYTES_AT..from.end).split_at_mut(from.start - BYTES_AT);
        if let Some(front) = front.get_mut(..rest.len()) {
            front.copy_from_slice(rest);
            self.base = oldest;
            // Later bytes overwrite the old place.
            self.memory.commit(&self.words());
        }
    }

    fn count_whole(mut self) -> SendMemory {
        self.advance_whole();
        self
    }

    fn advance_whole(&mut self) {
        while self.whole < self.entries && self.entry(self.whole).end <= self.written {
            self.whole += 1;
        }
    }

    fn position(&self, offset: u64) -> usize {
        BYTES_AT + (offset - self.base) as usize
    }

    fn entry(&self, index: u32) -> Entry {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(self.memory.bytes(self.entry_at(index)).chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        let [sequence, start, end, counted] = words;
        Entry { sequence, start, end, counted: counted != 0 }
    }

    fn entry_at(&self, index: u32) -> Range<usize> {
        let at = self.first.wrapping_add(index) as usize % SEND_ENTRIES_MAX * ENTRY_BYTES;
        at..at + ENTRY_BYTES
    }

    /// The bytes of the entry's message, with its headers.
    fn wire(&self, entry: &Entry) -> &[u8] {
        self.memory.bytes(self.position(entry.start)..self.position(entry.end))
    }

    fn endpoint(&self) -> String {
        let len = self.memory.bytes(ENDPOINT_AT..ENDPOINT_AT + 2).try_into().map_or(0, u16::from_le_bytes);
        let text =
            self.memory.bytes(ENDPOINT_AT + 2..ENDPOINT_AT + 2 + usize::from(len).min(ENDPOINT_BYTES - 2));
        String::from_utf8_lossy(text).into_owned()
    }
}

#[cfg(test)]
mod tests;
