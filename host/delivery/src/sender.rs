//! The reader's end: frames onto its socket, and what it has taken.
//!
//! Owns the PUSH socket of one sink, how far it may run ahead of the reader's count, and how long each frame took from the
//! scheduler's socket to the kernel.

use afterbay_journal::Credit;
use afterbay_outbox::FrameToSend;
use afterbay_sockets::{OutgoingFrame, Pending, Push, PushNotice, PushOptions};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Frames that are handed to the kernel in one call.
const FRAMES_PER_CALL: usize = 16;

/// Bytes likewise, where the kernel's unread bytes are all that shows of the reader: what it takes at once can no longer be joined.
const BYTES_PER_CALL: usize = 32 << 10;

/// Frames ahead of the reader's count: one that it works on, and the next one.
const WINDOW_MIN: usize = 2;
/// The most, for a reader that finishes many between two looks at its count.
const WINDOW_MAX: usize = 64;
/// What a frame's being counted takes to be seen: the look at the page, and a turn.
const SEEN_AFTER: Duration = Duration::from_millis(2);

/// A frame that waits for so long is behind.
const BEHIND_AFTER: Duration = Duration::from_millis(100);
/// A reader that has frames and finishes none for so long has stalled.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// How a sink's reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It takes what comes.
    KeepsUp,
    /// What comes waits for it, and is joined if it may be.
    Behind,
    /// It has frames, and finishes none.
    Stalled,
    /// It is not connected.
    Away,
}

/// In words, by number.
pub const SINK_STATES: [&str; 4] = ["keeping up", "behind", "stalled", "away"];

impl Doing {
    pub fn name(self) -> &'static str {
        SINK_STATES[self as usize]
    }
}

/// The PUSH socket of a sink.
pub struct SinkSender {
    push: Push,
    /// Frames that are not all in the kernel: their number, and when they came.
    timed: VecDeque<(u64, Instant)>,
    pub frames: u64,
    pub bytes: u64,
    pace: Pace,
    /// Rows that wait may be joined under backpressure.
    joins: bool,
    /// The kernel has not taken all that it was given before this turn, or, without a count, the reader has not read it.
    blocked: bool,
    /// The last frame that the socket was given.
    last: u64,
    /// Composed, and given to the socket when the journal has it on record: see [`SinkSender::commit`].
    staged: VecDeque<FrameToSend>,
    staged_bytes: usize,
}

/// How fast the reader finishes frames while it has some, and so how many it is to have ahead.
struct Pace {
    finished: u64,
    /// The last frame was finished, or the first one given, then.
    since: Instant,
    per_frame: Duration,
    window: usize,
}

impl Pace {
    fn look(&mut self, finished: u64, has_some: bool, now: Instant) {
        let frames = finished.saturating_sub(self.finished);
        if frames > 0 {
            let frames = u32::try_from(frames).unwrap_or(u32::MAX);
            let per_frame = now.saturating_duration_since(self.since) / frames;
            self.per_frame = (self.per_frame + per_frame) / 2;
            let ahead = SEEN_AFTER.as_nanos().div_ceil(self.per_frame.as_nanos().max(1));
            self.window = usize::try_from(ahead).unwrap_or(WINDOW_MAX).saturating_add(1);
            self.window = self.window.clamp(WINDOW_MIN, WINDOW_MAX);
        }
        if frames > 0 || !has_some {
            (self.finished, self.since) = (finished, now);
        }
    }
}

impl SinkSender {
    /// Rows that wait may be joined under backpressure, or not, from now on.
    pub fn set_joins(&mut self, joins: bool) {
        self.joins = joins;
    }

    /// `joins`: rows that wait may be joined under backpressure.
    pub fn new(push: Push, joins: bool, now: Instant) -> SinkSender {
        let pace = Pace { finished: 0, since: now, per_frame: SEEN_AFTER, window: WINDOW_MIN };
        let last = push.taken();
        SinkSender {
            push,
            timed: VecDeque::new(),
            frames: 0,
            bytes: 0,
            pace,
            joins,
            blocked: false,
            last,
            staged: VecDeque::new(),
            staged_bytes: 0,
        }
    }

    /// The socket takes a further frame, behind those that are staged.
    pub fn has_room(&self) -> bool {
        self.push.room_after(self.staged())
    }

    /// Notes how far the reader has counted, and whether the kernel has taken all it was given.
    pub fn look(&mut self, now: Instant) {
        // Without a count, what the kernel takes, and what the reader leaves there, is all that shows.
        let totals = self.push.totals();
        let counts = self.push.finished().is_some();
        let leaves_unread = self.joins && !counts && !self.push.has_little_unread();
        self.blocked = self.push.pending().frames > 0 || leaves_unread;
        let finished = if counts { totals.frames_finished } else { totals.frames_written };
        self.pace.look(finished, self.ahead() > 0, now);
    }

    /// Frames that the reader has or will have, and has not finished.
    fn ahead(&self) -> usize {
        self.staged.len() + self.push.pending().frames + self.push.unfinished().frames
    }

    /// The reader can do with a further frame now. If not, what waits may be joined meanwhile.
    pub fn keeps_up(&self) -> bool {
        if !self.push.is_connected() {
            return false;
        }
        match self.push.finished() {
            Some(_) => self.ahead() < self.pace.window,
            None => {
                let (pending, staged) = (self.push.pending(), self.staged());
                let is_little = !self.joins || pending.bytes + staged.bytes < BYTES_PER_CALL;
                !self.blocked && pending.frames + staged.frames < FRAMES_PER_CALL && is_little
            }
        }
    }

    /// How the reader does, if the oldest frame that waits for it came then.
    pub fn doing(&self, oldest: Option<Instant>, now: Instant) -> Doing {
        let since = |at: Instant| now.saturating_duration_since(at);
        if !self.push.is_connected() {
            Doing::Away
        } else if self.ahead() > 0 && since(self.pace.since) >= STALLED_AFTER {
            Doing::Stalled
        } else if oldest.is_some_and(|at| since(at) >= BEHIND_AFTER) {
            Doing::Behind
        } else {
            Doing::KeepsUp
        }
    }

    /// Frames that the reader is given ahead of its count.
    pub fn window(&self) -> usize {
        self.pace.window
    }

    /// Takes a frame that the journal is told of; the caller has looked for room.
    pub fn stage(&mut self, leaving: FrameToSend) {
        self.staged_bytes += leaving.bytes.len();
        self.staged.push_back(leaving);
    }

    /// Frames that the socket is not given yet.
    pub fn staged(&self) -> Pending {
        Pending { frames: self.staged.len(), bytes: self.staged_bytes }
    }

    /// After a panic: what was staged is composed anew.
    pub fn drop_staged(&mut self) {
        self.staged.clear();
        self.staged_bytes = 0;
    }

    /// What is staged may leave: the journal has it on record. Each frame is shown to `on_each`.
    pub fn commit(&mut self, mut on_each: impl FnMut(&FrameToSend)) {
        self.staged_bytes = 0;
        while let Some(leaving) = self.staged.pop_front() {
            on_each(&leaving);
            self.give(leaving);
        }
    }

    fn give(&mut self, leaving: FrameToSend) {
        let FrameToSend { sequence, bytes, counted, at, .. } = leaving;
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        self.timed.push_back((sequence, at));
        self.last = sequence;
        let queued = self.push.send(OutgoingFrame { sequence, bytes, counted });
        debug_assert!(queued.is_ok(), "a frame is sent only where there is room");
    }

    /// Hands to the kernel what it takes; tells of each frame that is whole in it how long it took.
    pub fn flush(&mut self, now: Instant, mut took: impl FnMut(Duration)) {
        self.push.flush(now);
        let written = self.push.written();
        if self.timed.front().is_none_or(|(sequence, _)| *sequence > written) {
            return;
        }
        let now = Instant::now();
        while let Some((_, at)) = self.timed.pop_front_if(|(sequence, _)| *sequence <= written) {
            took(now.saturating_duration_since(at));
        }
    }

    /// The last frame that the socket was given, by its number among those that left.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn push(&mut self) -> &mut Push {
        &mut self.push
    }

    pub fn socket(&self) -> &Push {
        &self.push
    }

    /// Where the reader's count stands when it has finished what is taken, and nothing after it.
    pub fn position(&self) -> Option<Credit> {
        self.push.position().map(|at| Credit { generation: at.generation, sent: at.count })
    }

    pub fn next_notice(&mut self) -> Option<PushNotice> {
        self.push.next_notice()
    }
}

/// Frames that a socket itself may hold beside what waits before it: enough for one system call to take many.
const PUSH_QUEUE_FRAMES: usize = 64;
/// Bytes likewise.
const PUSH_QUEUE_BYTES: usize = 8 << 20;
/// The longest wait before connecting to a reader again. Short: a try is two system calls, and first tokens wait for it.
const RECONNECT_MAX: Duration = Duration::from_millis(100);

/// Those of every PUSH of a stream.
pub fn push_options() -> PushOptions {
    PushOptions {
        max_queue_frames: PUSH_QUEUE_FRAMES,
        max_queue_bytes: PUSH_QUEUE_BYTES,
        backoff_max: RECONNECT_MAX,
        ..PushOptions::default()
    }
}
