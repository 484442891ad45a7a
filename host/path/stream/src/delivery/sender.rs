//! The socket of one sink: gives frames to the kernel and follows what the reader has taken.
//!
//! Owns the PUSH socket, the number of frames that the reader is given ahead of its count, and the time of receipt of each
//! frame that the kernel does not have whole.

use afterbay_batch::outbox::FrameToSend;
use afterbay_events::ReaderState;
use afterbay_journal::Credit;
use afterbay_sockets::{OutgoingFrame, Pending, Push, PushOptions};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Frames that one system call gives to the kernel.
const FRAMES_PER_CALL: usize = 16;
/// Bytes that one system call gives to the kernel, if the reader has no credit and rows may be joined. Bytes in the kernel can
/// no longer be joined.
const BYTES_PER_CALL: usize = 32 << 10;

/// Least frames ahead of the reader's count: the one in work and the next one.
const WINDOW_MIN: usize = 2;
/// Most frames ahead of the reader's count, for a reader that finishes many between two looks at its count.
const WINDOW_MAX: usize = 64;
/// Time from the reader's count of a frame until the next look at the count.
const COUNT_DELAY: Duration = Duration::from_millis(2);

/// A sink whose oldest frame has waited for this time is behind.
const BEHIND_AFTER: Duration = Duration::from_millis(100);
/// A reader that has frames and finishes none for this time has stalled.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The PUSH socket of a sink.
pub struct SinkSender {
    /// The socket.
    pub push: Push,
    /// Frames that the kernel does not have whole. The socket has their bytes.
    unwritten: VecDeque<FrameToSend>,
    /// Frames with first rows that the kernel has whole and the reader has not finished, with usable credit: their sequence
    /// numbers, and their first rows. The credit bounds their number.
    untaken: VecDeque<(u64, Vec<(Instant, u32)>)>,
    /// Frames that the socket has been given since the start.
    pub frames: u64,
    pace: Pace,
    /// Whether rows that wait are joined under backpressure.
    pub joins: bool,
    /// Whether the last look found frames that the kernel had not accepted, or without credit, the reader had not read.
    is_blocked: bool,
    /// The sequence number of the last frame that the socket has.
    pub last: u64,
    /// Frames whose record is not written yet. The socket gets them with [`SinkSender::commit`].
    staged: VecDeque<FrameToSend>,
    staged_bytes: usize,
    /// The sequence number that the socket began after.
    pub begun_after: u64,
    /// The last sequence number that the reader has, and its count, as the start before had confirmed them.
    pub confirmed: Option<(u64, Option<Credit>)>,
}

/// The speed at which the reader finishes frames, and the number of frames ahead that follows from it.
struct Pace {
    finished: u64,
    /// The time at which the reader last finished a frame, or got the first one after a time without any.
    since: Instant,
    per_frame: Duration,
    window: usize,
}

impl Pace {
    fn observe(&mut self, finished: u64, has_frames: bool, now: Instant) {
        let frames = finished.saturating_sub(self.finished);
        if frames > 0 {
            let frames = u32::try_from(frames).unwrap_or(u32::MAX);
            let per_frame = now.saturating_duration_since(self.since) / frames;
            self.per_frame = (self.per_frame + per_frame) / 2;
            let ahead = COUNT_DELAY.as_nanos().div_ceil(self.per_frame.as_nanos().max(1));
            self.window = usize::try_from(ahead).unwrap_or(WINDOW_MAX).saturating_add(1);
            self.window = self.window.clamp(WINDOW_MIN, WINDOW_MAX);
        }
        if frames > 0 || !has_frames {
            (self.finished, self.since) = (finished, now);
        }
    }
}

impl SinkSender {
    /// `joins`: whether rows that wait are joined under backpressure.
    pub fn new(push: Push, joins: bool, now: Instant) -> SinkSender {
        let pace = Pace { finished: 0, since: now, per_frame: COUNT_DELAY, window: WINDOW_MIN };
        let last = push.last();
        SinkSender {
            push,
            unwritten: VecDeque::new(),
            untaken: VecDeque::new(),
            frames: 0,
            pace,
            joins,
            is_blocked: false,
            last,
            staged: VecDeque::new(),
            staged_bytes: 0,
            begun_after: 0,
            confirmed: None,
        }
    }

    /// Forgets all frames, and continues after the last one that was sent. Only while no reader is connected: the frames must
    /// be composed again.
    /// `confirmed` is what the start has confirmed: the last sequence number that the reader has, and its count.
    pub fn begin_after(&mut self, sequence: u64, confirmed: Option<(u64, Option<Credit>)>, now: Instant) {
        (self.begun_after, self.confirmed) = (sequence, confirmed);
        self.push.begin_after(sequence, now);
        self.last = sequence;
        self.unwritten.clear();
        self.untaken.clear();
    }

    /// Whether the socket takes a further frame after the staged ones.
    pub fn has_room(&self) -> bool {
        self.push.room_after(self.staged())
    }

    /// Reads the reader's count, and whether the kernel has accepted all frames. Call once before a round of sends.
    pub fn observe(&mut self, now: Instant) {
        let totals = self.push.totals();
        let has_credit = self.push.finished().is_some();
        // The unread bytes in the kernel are the only sign of a slow reader without credit.
        let has_unread = self.joins && !has_credit && !self.push.has_little_unread();
        self.is_blocked = self.push.pending().frames > 0 || has_unread;
        let finished = if has_credit { totals.frames_finished } else { totals.frames_written };
        self.pace.observe(finished, self.ahead() > 0, now);
        if !has_credit {
            self.untaken.clear();
        }
    }

    /// The first rows of the next frame that the reader has finished since the last call: when they were received, and their
    /// number.
    pub fn next_taken(&mut self) -> Option<Vec<(Instant, u32)>> {
        let finished = self.push.finished()?;
        self.untaken.pop_front_if(|(sequence, _)| *sequence <= finished).map(|(_, first_rows)| first_rows)
    }

    /// Frames that the reader has, or will have, and has not finished.
    fn ahead(&self) -> usize {
        self.staged.len() + self.push.pending().frames + self.push.unfinished().frames
    }

    /// Whether the reader can work on a further frame now. If not, rows that wait may be joined meanwhile.
    pub fn keeps_up(&self) -> bool {
        if !self.push.is_connected() {
            return false;
        }
        match self.push.finished() {
            Some(_) => self.ahead() < self.pace.window,
            None => {
                let (pending, staged) = (self.push.pending(), self.staged());
                let is_little = !self.joins || pending.bytes + staged.bytes < BYTES_PER_CALL;
                !self.is_blocked && pending.frames + staged.frames < FRAMES_PER_CALL && is_little
            }
        }
    }

    /// The state of the reader. `oldest` is the time of receipt of the oldest frame that waits for the reader.
    pub fn state(&self, oldest: Option<Instant>, now: Instant) -> ReaderState {
        let since = |at: Instant| now.saturating_duration_since(at);
        if !self.push.is_connected() {
            ReaderState::Away
        } else if self.ahead() > 0 && since(self.pace.since) >= STALLED_AFTER {
            ReaderState::Stalled
        } else if oldest.is_some_and(|at| since(at) >= BEHIND_AFTER) {
            ReaderState::Behind
        } else {
            ReaderState::KeepingUp
        }
    }

    /// The sentence about a reader in [`ReaderState::Stalled`], and for how long it has finished nothing.
    pub fn stall(&self, now: Instant) -> (String, Duration) {
        let frames = self.ahead();
        let text = match self.push.finished() {
            Some(_) => format!(
                "the reader finishes none of its frames ({frames} wait): it hangs, or its credit page stands still"
            ),
            None => format!("the reader reads none of its frames ({frames} wait)"),
        };
        (text, now.saturating_duration_since(self.pace.since))
    }

    /// Adds a frame whose record is not written yet. The caller has checked [`SinkSender::has_room`].
    pub fn stage(&mut self, outgoing: FrameToSend) {
        self.staged_bytes += outgoing.bytes.len();
        self.staged.push_back(outgoing);
    }

    /// Number and bytes of the staged frames.
    pub fn staged(&self) -> Pending {
        Pending { frames: self.staged.len(), bytes: self.staged_bytes }
    }

    /// Drops the frames that the next process would not have. They must be composed again.
    pub fn drop_unsaved(&mut self) {
        self.drop_staged();
        self.push.drop_unsaved();
        self.last = self.push.last();
        self.unwritten.retain(|frame| frame.sequence <= self.last);
        self.untaken.retain(|(sequence, _)| *sequence <= self.last);
    }

    /// Drops the staged frames after a panic. The rebuilt outbox composes them again.
    pub fn drop_staged(&mut self) {
        self.staged.clear();
        self.staged_bytes = 0;
    }

    /// Gives the staged frames to the socket. The caller has written their records.
    pub fn commit(&mut self) {
        self.staged_bytes = 0;
        while let Some(mut outgoing) = self.staged.pop_front() {
            let (sequence, counted) = (outgoing.sequence, outgoing.counted);
            let bytes = std::mem::take(&mut outgoing.bytes);
            self.frames += 1;
            self.unwritten.push_back(outgoing);
            self.last = sequence;
            let queued = self.push.send(OutgoingFrame { sequence, bytes, counted });
            debug_assert!(queued.is_ok(), "a frame is staged only if the socket has room");
        }
    }

    /// Gives the kernel what it takes. If the kernel now has frames whole, `on_written` gets these.
    pub fn flush(&mut self, now: Instant, on_written: &mut dyn FnMut(&mut dyn Iterator<Item = FrameToSend>)) {
        self.push.flush(now);
        let (unwritten, written) = (&mut self.unwritten, self.push.written());
        if unwritten.front().is_some_and(|frame| frame.sequence <= written) {
            let mut untaken = self.push.finished().map(|_| &mut self.untaken);
            let next = || {
                let frame = unwritten.pop_front_if(|frame| frame.sequence <= written)?;
                if let Some(untaken) = untaken.as_mut().filter(|_| !frame.first_rows.is_empty()) {
                    untaken.push_back((frame.sequence, frame.first_rows.clone()));
                }
                Some(frame)
            };
            on_written(&mut std::iter::from_fn(next));
        }
    }

    /// The reader's count at which exactly the taken frames are finished. `None` without credit.
    pub fn credit(&self) -> Option<Credit> {
        let handed_over = self.push.written();
        self.push.position().map(|at| Credit { generation: at.generation, sent: at.count, handed_over })
    }
}

/// Frames that a socket may hold: enough for one system call to take many.
const PUSH_QUEUE_FRAMES: usize = 64;
/// Bytes that a socket may hold.
const PUSH_QUEUE_BYTES: usize = 8 << 20;
/// Longest pause between two attempts to connect. Short, because an attempt costs two system calls and first tokens wait for
/// the connection.
const RECONNECT_MAX: Duration = Duration::from_millis(100);

/// The options of every PUSH socket of a stream.
pub fn push_options() -> PushOptions {
    PushOptions {
        max_queue_frames: PUSH_QUEUE_FRAMES,
        max_queue_bytes: PUSH_QUEUE_BYTES,
        backoff_max: RECONNECT_MAX,
        ..PushOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_reader_counts_towards_its_pace_only_while_it_has_frames() {
        let begin = Instant::now();
        let pace = |has_frames| {
            let mut pace = Pace { finished: 0, since: begin, per_frame: COUNT_DELAY, window: WINDOW_MIN };
            pace.observe(0, has_frames, begin + Duration::from_secs(1));
            pace.observe(100, true, begin + Duration::from_millis(1001));
            pace
        };
        // 100 frames in a millisecond, and 2 ms for each before that.
        let idle = pace(false);
        assert_eq!((idle.per_frame, idle.window), (Duration::from_micros(1005), 3));
        let busy = pace(true);
        assert_eq!((busy.per_frame, busy.window), (Duration::from_nanos(6_005_000), WINDOW_MIN));
        assert_eq!(busy.since, begin + Duration::from_millis(1001));
    }
}
