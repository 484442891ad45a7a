//! The queue of frames that may have to be sent (again).
//!
//! Oldest first, in two parts. The kernel has the frames `[..written]`, and the reader has not finished them (without
//! credit this part is empty). The frames `[written..]` wait for the kernel. To send frames again, `written` moves to
//! the front.

use std::collections::VecDeque;
use std::io::IoSlice;

use afterbay_zmtp::FrameHeader;

use super::notice::{OutgoingFrame, Pending, PushTotals, Unconfirmed};
use crate::bounds::RECENT_FRAMES_MAX;

#[derive(Debug)]
struct Frame {
    header: FrameHeader,
    outgoing: OutgoingFrame,
}

impl Frame {
    fn wire_bytes(&self) -> usize {
        self.header.as_bytes().len() + self.outgoing.bytes.len()
    }
}

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    frames: VecDeque<Frame>,
    written: usize,
    /// Bytes of `frames[written]` that the kernel has. If the connection ends now, this frame is cut.
    offset: usize,
    waiting: Pending,
    unfinished: Pending,
    /// The number of counted frames among the unfinished.
    counted: u64,
    /// Whether written frames are retained until the reader counts them.
    retains: bool,
    /// No frame up to this number need be sent again.
    taken: u64,
    /// The number of the last queued frame.
    last: u64,
    /// Counted frames written to this connection and not retained.
    settled: u64,
    /// Numbers and sizes of the frames written to this connection and not retained, youngest last, as many as the
    /// reader may have unread.
    recent: VecDeque<(u64, usize)>,
    recent_bytes: usize,
    recent_bytes_max: usize,
    totals: PushTotals,
}

impl SendQueue {
    /// No frame up to `taken` need be sent again.
    pub(crate) fn new(taken: u64) -> SendQueue {
        SendQueue { taken, last: taken, ..SendQueue::default() }
    }

    pub(crate) fn push(&mut self, outgoing: OutgoingFrame) {
        debug_assert!(outgoing.sequence > self.last, "sequences grow");
        self.last = outgoing.sequence;
        self.waiting.frames += 1;
        self.waiting.bytes += outgoing.bytes.len();
        self.frames.push_back(Frame { header: FrameHeader::message(outgoing.bytes.len()), outgoing });
    }

    pub(crate) fn waiting(&self) -> Pending {
        self.waiting
    }

    pub(crate) fn unfinished(&self) -> Pending {
        self.unfinished
    }

    pub(crate) fn totals(&self) -> PushTotals {
        self.totals
    }

    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Counted frames written to this connection and not retained since the last call.
    pub(crate) fn take_settled(&mut self) -> u64 {
        std::mem::take(&mut self.settled)
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// The last frame that the kernel has or had whole.
    pub(crate) fn last_written(&self) -> u64 {
        let last = self.frames.range(..self.written).next_back();
        last.map_or(self.taken, |frame| frame.outgoing.sequence)
    }

    pub(crate) fn is_between_frames(&self) -> bool {
        self.offset == 0
    }

    /// The bytes to write next: at most `frames` frames, and no further frame once the sum reaches `bytes`.
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

    /// How many waiting frames the limits of unfinished frames and bytes allow to write, at most `most`. A frame that
    /// is partly written is always allowed, and so is a frame of any size while nothing is unfinished.
    pub(crate) fn window(&self, max_frames: usize, max_bytes: usize, most: usize) -> usize {
        if !self.retains {
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

    /// Notes that the kernel took the next `bytes`. Returns how many frames this completed.
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
            if !self.retains {
                self.settle_front();
            }
        }
        self.settle_uncounted();
        whole
    }

    /// Notes a new connection, whose other end can hold this many bytes unread.
    pub(crate) fn connected(&mut self, unread_bytes_max: usize) {
        self.recent_bytes_max = unread_bytes_max;
        self.recent.clear();
        self.recent_bytes = 0;
        self.settled = 0;
    }

    /// Notes the end of the connection. Returns the frame that was cut; it is sent again whole.
    pub(crate) fn cut(&mut self) -> Option<u64> {
        let cut = std::mem::take(&mut self.offset) > 0;
        self.frames.get(self.written).filter(|_| cut).map(|frame| frame.outgoing.sequence)
    }

    /// Frames written to the last connection and not retained that the reader may not have read.
    pub(crate) fn recent(&self) -> Option<Unconfirmed> {
        let (first, last) = (self.recent.front()?.0, self.recent.back()?.0);
        Some(Unconfirmed { first, last, frames: self.recent.len() })
    }

    /// Retains written frames until they are finished, from now on.
    pub(crate) fn retain_written(&mut self) {
        self.retains = true;
    }

    /// Notes that the reader finished `count` more counted frames. Returns how many of them are not ours.
    pub(crate) fn finish(&mut self, count: u64) -> u64 {
        let mut left = count;
        while left > 0 && self.counted > 0 {
            left -= u64::from(self.frames.front().is_some_and(|frame| frame.outgoing.counted));
            self.pop_front();
        }
        self.settle_uncounted();
        self.totals.frames_finished += count - left;
        left
    }

    /// Moves the written frames back to the front of the waiting ones. Returns how many.
    pub(crate) fn requeue(&mut self) -> usize {
        debug_assert_eq!(self.offset, 0, "only between two connections");
        self.waiting.frames += self.unfinished.frames;
        self.waiting.bytes += self.unfinished.bytes;
        self.unfinished = Pending::default();
        self.counted = 0;
        std::mem::take(&mut self.written)
    }

    /// Stops retaining written frames: all of them count as taken.
    pub(crate) fn stop_retaining(&mut self) -> Option<Unconfirmed> {
        self.retains = false;
        self.settle_counted(u64::MAX)
    }

    /// Lets the oldest retained frames, up to this many counted ones, count as taken.
    pub(crate) fn settle_counted(&mut self, counted: u64) -> Option<Unconfirmed> {
        let mut left = counted;
        let mut settled: Option<Unconfirmed> = None;
        while self.written > 0 && left > 0 {
            let Some(outgoing) = self.pop_front() else { break };
            left -= u64::from(outgoing.counted);
            let first = settled.as_ref().map_or(outgoing.sequence, |settled| settled.first);
            let frames = settled.map_or(1, |settled| settled.frames + 1);
            settled = Some(Unconfirmed { first, last: outgoing.sequence, frames });
        }
        self.settle_uncounted();
        settled
    }

    /// The retained frames.
    pub(crate) fn retained(&self) -> Option<Unconfirmed> {
        let first = self.frames.front().filter(|_| self.written > 0)?.outgoing.sequence;
        Some(Unconfirmed { first, last: self.last_written(), frames: self.written })
    }

    /// Takes out uncounted frames at the front: no counted frame before them is unfinished, and the reader will not
    /// report them.
    fn settle_uncounted(&mut self) {
        while self.written > 0 && self.frames.front().is_some_and(|frame| !frame.outgoing.counted) {
            self.settle_front();
        }
    }

    /// Takes out the oldest written frame, which the reader has not counted.
    fn settle_front(&mut self) {
        let Some(outgoing) = self.pop_front() else { return };
        self.settled += u64::from(outgoing.counted);
        self.recent.push_back((outgoing.sequence, outgoing.bytes.len()));
        self.recent_bytes += outgoing.bytes.len();
        while let Some((_, oldest)) = self.recent.front()
            && (self.recent_bytes - oldest >= self.recent_bytes_max || self.recent.len() > RECENT_FRAMES_MAX)
        {
            self.recent_bytes -= oldest;
            self.recent.pop_front();
        }
    }

    fn pop_front(&mut self) -> Option<OutgoingFrame> {
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
