//! Frames from the moment they are handed over until they need never be sent again.
//!
//! One queue, oldest first, in two parts: `[..written]` the kernel has whole and the reader has not finished (empty without
//! credit), `[written..]` waits for the kernel. To send frames again is to move the line between the two to the front.

use std::collections::VecDeque;
use std::io::IoSlice;

use afterbay_zmtp::Header;

use super::{Outgoing, Pending, Totals, Unconfirmed};
use crate::bounds::RECENT_FRAMES_MAX;

#[derive(Debug)]
struct Frame {
    header: Header,
    outgoing: Outgoing,
}

impl Frame {
    fn wire_bytes(&self) -> usize {
        self.header.as_bytes().len() + self.outgoing.bytes.len()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Custody {
    frames: VecDeque<Frame>,
    written: usize,
    /// Bytes of `frames[written]` that the kernel has: the frame is cut if the connection ends now.
    offset: usize,
    waiting: Pending,
    unfinished: Pending,
    /// Counted ones among the unfinished.
    counted: u64,
    /// Whether written frames are kept for the reader's count.
    keeps: bool,
    /// Every frame up to this need never be sent again.
    taken: u64,
    /// The last frame handed over.
    last: u64,
    /// Counted frames written to this connection and not kept.
    passed: u64,
    /// Frames written to this connection and not kept, youngest last, as many as may be unread at the other end.
    recent: VecDeque<(u64, usize)>,
    recent_bytes: usize,
    recent_bytes_max: usize,
    totals: Totals,
}

impl Custody {
    /// Every frame up to `taken` is settled already.
    pub(crate) fn new(taken: u64) -> Custody {
        Custody { taken, last: taken, ..Custody::default() }
    }

    pub(crate) fn push(&mut self, outgoing: Outgoing) {
        debug_assert!(outgoing.sequence > self.last, "sequences grow");
        self.last = outgoing.sequence;
        self.waiting.frames += 1;
        self.waiting.bytes += outgoing.bytes.len();
        self.frames.push_back(Frame { header: Header::message(outgoing.bytes.len()), outgoing });
    }

    pub(crate) fn waiting(&self) -> Pending {
        self.waiting
    }

    pub(crate) fn unfinished(&self) -> Pending {
        self.unfinished
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Counted frames written to this connection and not kept, since this was asked last.
    pub(crate) fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// The last frame that the kernel has, or had, whole.
    pub(crate) fn last_written(&self) -> u64 {
        let last = self.frames.range(..self.written).next_back();
        last.map_or(self.taken, |frame| frame.outgoing.sequence)
    }

    pub(crate) fn is_between_frames(&self) -> bool {
        self.offset == 0
    }

    /// What to hand to the kernel next, at most so many frames and bytes (but one frame at least, if `frames` is).
    pub(crate) fn slices<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>, frames: usize, bytes: usize) {
        let mut skip = self.offset;
        let mut sum = 0;
        for frame in self.frames.iter().skip(self.written).take(frames) {
            let header = frame.header.as_bytes();
            let payload = &frame.outgoing.bytes;
            if skip < header.len() {
                slices.push(IoSlice::new(&header[skip..]));
            }
            let payload = &payload[skip.saturating_sub(header.len())..];
            if !payload.is_empty() {
                slices.push(IoSlice::new(payload));
            }
            skip = 0;
            sum += frame.wire_bytes();
            if sum >= bytes {
                return;
            }
        }
    }

    /// How many waiting frames may be written before so many, of so many bytes, are unfinished. A frame that is partly
    /// written is always one of them, and so is a frame that is too big where nothing is unfinished.
    pub(crate) fn window(&self, max_frames: usize, max_bytes: usize, most: usize) -> usize {
        if !self.keeps {
            return most;
        }
        let (mut frames, mut bytes) = (self.unfinished.frames, self.unfinished.bytes);
        let mut allowed = 0;
        for frame in self.frames.iter().skip(self.written).take(most) {
            frames += 1;
            bytes += frame.outgoing.bytes.len();
            let alone = frames == 1 || (allowed == 0 && self.offset > 0);
            if !alone && (frames > max_frames || bytes > max_bytes) {
                break;
            }
            allowed += 1;
        }
        allowed
    }

    /// The kernel took the next `bytes`: how many frames it now has whole because of it.
    pub(crate) fn advance(&mut self, bytes: usize) -> usize {
        self.offset += bytes;
        let mut whole = 0;
        while let Some(frame) = self.frames.get(self.written)
            && self.offset >= frame.wire_bytes()
        {
            self.offset -= frame.wire_bytes();
            let size = frame.outgoing.bytes.len();
            self.waiting.frames -= 1;
            self.waiting.bytes -= size;
            self.written += 1;
            self.unfinished.frames += 1;
            self.unfinished.bytes += size;
            self.counted += u64::from(frame.outgoing.counted);
            self.totals.frames_written += 1;
            self.totals.bytes_written += size as u64;
            whole += 1;
            if !self.keeps {
                self.pass_front();
            }
        }
        self.pass_uncounted();
        whole
    }

    /// A new connection, at the other end of which at most so many bytes can be unread.
    pub(crate) fn connected(&mut self, unread_bytes_max: usize) {
        self.recent_bytes_max = unread_bytes_max;
        self.recent.clear();
        self.recent_bytes = 0;
        self.passed = 0;
    }

    /// The connection ended. The frame that was cut, which will be sent again whole.
    pub(crate) fn cut(&mut self) -> Option<u64> {
        let cut = std::mem::take(&mut self.offset) > 0;
        self.frames.get(self.written).filter(|_| cut).map(|frame| frame.outgoing.sequence)
    }

    /// Frames written to the last connection and not kept, that may be unread at its other end.
    pub(crate) fn recent(&self) -> Option<Unconfirmed> {
        let (first, last) = (self.recent.front()?.0, self.recent.back()?.0);
        Some(Unconfirmed { first, last, frames: self.recent.len() })
    }

    /// From now on written frames are kept until they are finished.
    pub(crate) fn keep(&mut self) {
        self.keeps = true;
    }

    /// The reader finished so many counted frames more: how many of them are not ours.
    pub(crate) fn finish(&mut self, count: u64) -> u64 {
        let mut left = count;
        while left > 0 && self.counted > 0 {
            left -= u64::from(self.frames.front().is_some_and(|frame| frame.outgoing.counted));
            self.pop_front();
        }
        self.pass_uncounted();
        self.totals.frames_finished += count - left;
        left
    }

    /// Frames that are written go to the front of those that wait: how many.
    pub(crate) fn requeue(&mut self) -> usize {
        debug_assert_eq!(self.offset, 0, "only between two connections");
        self.waiting.frames += self.unfinished.frames;
        self.waiting.bytes += self.unfinished.bytes;
        self.unfinished = Pending::default();
        self.counted = 0;
        std::mem::take(&mut self.written)
    }

    /// Written frames are kept no longer, and pass as taken.
    pub(crate) fn release(&mut self) -> Option<Unconfirmed> {
        self.keeps = false;
        self.pass(u64::MAX)
    }

    /// So many counted frames of those that are kept, and uncounted ones among them, pass as taken.
    pub(crate) fn pass(&mut self, counted: u64) -> Option<Unconfirmed> {
        let mut left = counted;
        let mut passed: Option<Unconfirmed> = None;
        while self.written > 0 && left > 0 {
            let Some(outgoing) = self.pop_front() else { break };
            left -= u64::from(outgoing.counted);
            let first = passed.as_ref().map_or(outgoing.sequence, |passed| passed.first);
            let frames = passed.map_or(1, |passed| passed.frames + 1);
            passed = Some(Unconfirmed { first, last: outgoing.sequence, frames });
        }
        self.pass_uncounted();
        passed
    }

    /// The written and unfinished frames.
    pub(crate) fn kept(&self) -> Option<Unconfirmed> {
        let first = self.frames.front().filter(|_| self.written > 0)?.outgoing.sequence;
        Some(Unconfirmed { first, last: self.last_written(), frames: self.written })
    }

    /// An uncounted frame with nothing counted before it that is unfinished: nothing will ever tell more of it.
    fn pass_uncounted(&mut self) {
        while self.written > 0 && self.frames.front().is_some_and(|frame| !frame.outgoing.counted) {
            self.pass_front();
        }
    }

    /// Takes out a written frame that the reader has not counted.
    fn pass_front(&mut self) {
        let Some(outgoing) = self.pop_front() else { return };
        self.passed += u64::from(outgoing.counted);
        self.recent.push_back((outgoing.sequence, outgoing.bytes.len()));
        self.recent_bytes += outgoing.bytes.len();
        while let Some((_, oldest)) = self.recent.front()
            && (self.recent_bytes - oldest >= self.recent_bytes_max || self.recent.len() > RECENT_FRAMES_MAX)
        {
            self.recent_bytes -= oldest;
            self.recent.pop_front();
        }
    }

    fn pop_front(&mut self) -> Option<Outgoing> {
        let Frame { outgoing, .. } = self.frames.pop_front()?;
        self.written -= 1;
        self.unfinished.frames -= 1;
        self.unfinished.bytes -= outgoing.bytes.len();
        self.counted -= u64::from(outgoing.counted);
        self.taken = outgoing.sequence;
        Some(outgoing)
    }
}

#[cfg(test)]
mod tests;
