//! The queue of frames that may have to be sent (again).
//!
//! Oldest first, in three parts. The kernel has the frames `[..written]`, and the reader has not finished them (without
//! credit this part is empty). The frames `[written..staged]` are in the connection's memory, about to be written. The frames
//! `[staged..]` wait. To send frames again, `written` and `staged` move to the front.

use std::collections::VecDeque;

use super::notice::{OutgoingFrame, Pending, PushTotals, Unconfirmed};
use crate::bounds::{RECENT_FRAMES_MAX, SEND_ENTRIES_MAX};
use crate::lasting::SendMemory;

/// The number of words of [`SendQueue::saved`].
pub(crate) const QUEUE_WORDS: usize = 4;

/// The state of the queue beside its frames and `taken`, for the connection's memory.
pub(crate) type QueueWords = [u64; QUEUE_WORDS];

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    frames: VecDeque<OutgoingFrame>,
    written: usize,
    staged: usize,
    /// The sum of the bytes of the frames `[..staged]`.
    staged_bytes: usize,
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
    /// The frames written to this connection and not retained, youngest last, as many as the reader may have unread.
    recent: VecDeque<Recent>,
    recent_frames: usize,
    recent_bytes: usize,
    recent_bytes_max: usize,
    totals: PushTotals,
}

/// A frame that was written and not retained; or first, all that an earlier process wrote to the same connection.
#[derive(Debug)]
struct Recent {
    frames: Unconfirmed,
    /// The size in bytes. 0 for the frames of an earlier process: they stay until enough later bytes are written.
    bytes: usize,
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
        self.frames.push_back(outgoing);
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
        last.map_or(self.taken, |frame| frame.sequence)
    }

    /// The number of the last queued frame.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The next frame to be written that is not in the connection's memory. `None` if there is none, or if the limits of
    /// unfinished frames and bytes do not allow it. They allow a frame of any size while nothing else is unfinished.
    pub(crate) fn next_unstaged(&self, max_frames: usize, max_bytes: usize) -> Option<&OutgoingFrame> {
        let outgoing = self.frames.get(self.staged)?;
        let is_within = || {
            self.staged < max_frames && self.staged_bytes.saturating_add(outgoing.bytes.len()) <= max_bytes
        };
        (!self.retains || self.staged == 0 || is_within()).then_some(outgoing)
    }

    /// Drops the frames that no connection has: those behind the memory of this one, or without a connection those that wait.
    pub(crate) fn drop_unstaged(&mut self, is_connected: bool) {
        let kept = if is_connected { self.staged.max(self.written) } else { self.written };
        for frame in self.frames.drain(kept.min(self.frames.len())..) {
            self.waiting.frames -= 1;
            self.waiting.bytes -= frame.bytes.len();
        }
        self.last = self.frames.back().map_or(self.taken, |frame| frame.sequence);
    }

    /// Notes that the next frame is in the connection's memory.
    pub(crate) fn staged(&mut self) {
        if let Some(frame) = self.frames.get(self.staged) {
            self.staged_bytes += frame.bytes.len();
            self.staged += 1;
        }
    }

    /// Whether any frame is in the connection's memory.
    pub(crate) fn has_staged(&self) -> bool {
        self.staged > 0
    }

    /// Notes that the kernel took the next `frames` whole.
    pub(crate) fn wrote(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(frame) = self.frames.get(self.written) else { break };
            let size = frame.bytes.len();
            self.waiting.frames -= 1;
            self.waiting.bytes -= size;
            self.written += 1;
            self.unfinished.frames += 1;
            self.unfinished.bytes += size;
            self.counted += u64::from(frame.counted);
            self.totals.frames_written += 1;
            self.totals.bytes_written += size as u64;
            if !self.retains {
                self.settle_front();
            }
        }
        self.settle_uncounted();
    }

    /// Copies the retained frames to the memory of a new connection, as frames that need not be written.
    pub(crate) fn copy_retained(&self, memory: &mut SendMemory) {
        debug_assert_eq!(self.written, self.staged, "only for a new connection");
        for frame in self.frames.range(..self.written.min(SEND_ENTRIES_MAX)) {
            let has_room = memory.append_frame(frame.sequence, frame.counted, &frame.bytes);
            debug_assert!(has_room, "the limits of unfinished frames are those of the memory");
        }
        memory.skip();
    }

    /// The state for the connection's memory: everything but the frames and `taken`.
    pub(crate) fn saved(&self) -> QueueWords {
        let recent = self.recent().unwrap_or(Unconfirmed { first: 0, last: 0, frames: 0 });
        let frames = (recent.frames as u64) << 1 | u64::from(self.retains);
        [self.settled, recent.first, recent.last, frames]
    }

    /// Continues the queue of an earlier process, whose connection continues, too.
    pub(crate) fn adopted(memory: &SendMemory, words: &QueueWords, unread_bytes_max: usize) -> SendQueue {
        let [settled, first, last, frames] = *words;
        let mut queue = SendQueue::new(memory.taken());
        queue.connected(unread_bytes_max);
        queue.settled = settled;
        queue.retains = frames & 1 != 0;
        let frames = usize::try_from(frames >> 1).unwrap_or(usize::MAX);
        if frames > 0 {
            queue.recent.push_back(Recent { frames: Unconfirmed { first, last, frames }, bytes: 0 });
            queue.recent_frames = frames;
        }
        for kept in memory.frames() {
            queue.push(OutgoingFrame { sequence: kept.sequence, bytes: kept.bytes, counted: kept.counted });
            queue.staged();
        }
        queue.wrote(memory.whole());
        queue.totals = PushTotals::default();
        queue
    }

    /// Notes a new connection, whose other end can hold this many bytes unread.
    pub(crate) fn connected(&mut self, unread_bytes_max: usize) {
        self.recent_bytes_max = unread_bytes_max;
        self.recent.clear();
        (self.recent_frames, self.recent_bytes) = (0, 0);
        self.settled = 0;
    }

    /// Notes the end of the connection. `is_cut`: the kernel has a part of a frame. Returns this frame; it is sent again
    /// whole.
    pub(crate) fn cut(&mut self, is_cut: bool) -> Option<u64> {
        (self.staged, self.staged_bytes) = (self.written, self.unfinished.bytes);
        self.frames.get(self.written).filter(|_| is_cut).map(|frame| frame.sequence)
    }

    /// Frames written to the last connection and not retained that the reader may not have read.
    pub(crate) fn recent(&self) -> Option<Unconfirmed> {
        let (first, last) = (self.recent.front()?.frames.first, self.recent.back()?.frames.last);
        Some(Unconfirmed { first, last, frames: self.recent_frames })
    }

    /// Retains written frames until they are finished, from now on.
    pub(crate) fn retain_written(&mut self) {
        self.retains = true;
    }

    /// Notes that the reader finished `count` more counted frames. Returns how many of them are not ours.
    pub(crate) fn finish(&mut self, count: u64) -> u64 {
        let mut left = count;
        while left > 0 && self.counted > 0 {
            left -= u64::from(self.frames.front().is_some_and(|frame| frame.counted));
            self.pop_front();
        }
        self.settle_uncounted();
        self.totals.frames_finished += count - left;
        left
    }

    /// Moves the written frames back to the front of the waiting ones. Returns how many.
    pub(crate) fn requeue(&mut self) -> usize {
        debug_assert_eq!(self.written, self.staged, "nothing was written to the present connection");
        self.waiting.frames += self.unfinished.frames;
        self.waiting.bytes += self.unfinished.bytes;
        self.unfinished = Pending::default();
        self.counted = 0;
        (self.staged, self.staged_bytes) = (0, 0);
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
        let first = self.frames.front().filter(|_| self.written > 0)?.sequence;
        Some(Unconfirmed { first, last: self.last_written(), frames: self.written })
    }

    /// Takes out uncounted frames at the front: no counted frame before them is unfinished, and the reader will not
    /// report them.
    fn settle_uncounted(&mut self) {
        while self.written > 0 && self.frames.front().is_some_and(|frame| !frame.counted) {
            self.settle_front();
        }
    }

    /// Takes out the oldest written frame, which the reader has not counted.
    fn settle_front(&mut self) {
        let Some(outgoing) = self.pop_front() else { return };
        self.settled += u64::from(outgoing.counted);
        let (sequence, bytes) = (outgoing.sequence, outgoing.bytes.len());
        self.recent
            .push_back(Recent { frames: Unconfirmed { first: sequence, last: sequence, frames: 1 }, bytes });
        self.recent_frames += 1;
        self.recent_bytes += bytes;
        while let Some(oldest) = self.recent.front()
            && (self.recent_bytes - oldest.bytes >= self.recent_bytes_max
                || self.recent.len() > RECENT_FRAMES_MAX)
        {
            self.recent_frames -= oldest.frames.frames;
            self.recent_bytes -= oldest.bytes;
            self.recent.pop_front();
        }
    }

    fn pop_front(&mut self) -> Option<OutgoingFrame> {
        let outgoing = self.frames.pop_front()?;
        self.written -= 1;
        self.staged -= 1;
        self.staged_bytes -= outgoing.bytes.len();
        self.unfinished.frames -= 1;
        self.unfinished.bytes -= outgoing.bytes.len();
        self.counted -= u64::from(outgoing.counted);
        self.taken = outgoing.sequence;
        Some(outgoing)
    }
}

#[cfg(test)]
mod tests;
