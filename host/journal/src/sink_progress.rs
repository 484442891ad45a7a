//! How far a sink has taken the stream, also where frames leave in another order than they came.
//!
//! Under pressure a frame that leaves is composed of waiting rows of several frames, so that "taken up to frame F" says too
//! little. What leaves is numbered; beside the frames up to which *everything* is taken stand those that were taken whole
//! past that, and for each request that is ahead the last frame whose row of it was taken. A request's rows leave in
//! order, so one frame number says it all: it is told again without harm, and does not depend on which rows plugins drop.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::bounds::{AHEAD_MAX, SENT_FRAMES_MAX};
use crate::error::SentError;
use crate::frame_set::FrameSet;
use crate::outcome::Credit;
use crate::position::{FrameNo, RequestNo};
use crate::release_marker::HELD_SINK;

/// What a frame that is handed to a sink holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent<'a> {
    /// All that is left of this frame.
    Whole(FrameNo),
    /// Of each of these requests all its rows up to and with the one in this frame that had not left before.
    Rows(&'a [(RequestNo, FrameNo)]),
}

/// The same, kept until it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// See [`Sent::Whole`].
    Whole(FrameNo),
    /// See [`Sent::Rows`].
    Rows(Box<[(RequestNo, FrameNo)]>),
}

impl Held {
    /// As it was told.
    pub fn as_sent(&self) -> Sent<'_> {
        match self {
            Held::Whole(frame) => Sent::Whole(*frame),
            Held::Rows(rows) => Sent::Rows(rows),
        }
    }

    fn rows(&self) -> usize {
        match self {
            Held::Whole(_) => 1,
            Held::Rows(rows) => rows.len(),
        }
    }
}

/// What of it the kernel has whole, for one generation of the sink's reader: while that lives, it gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Everything that was sent up to this number.
    pub sequence: u64,
    /// The reader's generation.
    pub generation: u64,
}

/// How far a sink has taken the stream.
#[derive(Clone, Debug, Default)]
pub struct Sink {
    name: String,
    through: FrameNo,
    sequence: u64,
    last_sent: u64,
    credit: Option<Credit>,
    /// Taken whole, past `through`.
    whole: FrameSet,
    /// By request: the frame of the last row that was taken. What is not past `through` is taken out now and then.
    rows: HashMap<u64, u64, FixedState>,
    clean_rows_at: usize,
    /// Sent after `sequence`.
    sent: VecDeque<(u64, Held)>,
    sent_rows: usize,
    handed: Option<Handed>,
}

impl Sink {
    pub(crate) fn new(name: &str) -> Sink {
        Sink { name: name.into(), ..Sink::default() }
    }

    /// One that has taken everything up to this frame, and was sent nothing past it.
    pub fn up_to(name: &str, through: FrameNo) -> Sink {
        let mut sink = Sink::new(name);
        sink.pass(through);
        sink
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is one of the stream's, and does not stand for rows that are held ([`HELD_SINK`]).
    pub fn is_reader(&self) -> bool {
        self.name != HELD_SINK
    }

    /// Every frame up to this one is taken, whatever it holds.
    pub fn through(&self) -> FrameNo {
        self.through
    }

    /// The last frame that it was sent and has taken, by its number among those it was sent; 0: none.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The last that it was sent: the next is one more.
    pub fn last_sent(&self) -> u64 {
        self.last_sent
    }

    /// Where its reader stood when `sequence` was taken.
    pub fn credit(&self) -> Option<Credit> {
        self.credit
    }

    /// What it was sent after `sequence`, in order, with its number.
    pub fn sent(&self) -> impl ExactSizeIterator<Item = (u64, Sent<'_>)> {
        self.sent.iter().map(|(sequence, held)| (*sequence, held.as_sent()))
    }

    /// What of that the kernel has.
    pub fn handed(&self) -> Option<Handed> {
        self.handed.filter(|handed| handed.sequence > self.sequence)
    }

    /// How many frames up to this one are not known to be taken.
    pub fn open_frames(&self, through: FrameNo) -> u64 {
        through.0.saturating_sub(self.through.0).saturating_sub(self.whole.len())
    }

    /// Whether a frame without rows, or one that leaves whole, is taken.
    pub fn has_taken(&self, frame: FrameNo) -> bool {
        frame <= self.through || self.whole.contains(frame)
    }

    /// Whether the row of this request in this frame is taken.
    pub fn has_taken_row(&self, frame: FrameNo, request: RequestNo) -> bool {
        self.has_taken(frame) || self.rows.get(&request.0).is_some_and(|last| *last >= frame.0)
    }

    /// What was sent up to this number is taken: as the reader's own count says after a restart, say.
    pub fn take(&mut self, sequence: u64) {
        while let Some((_, held)) = self.sent.pop_front_if(|(sent, _)| *sent <= sequence) {
            self.sent_rows -= held.rows();
            match held {
                Held::Whole(frame) if frame > self.through => self.whole.insert(frame.0),
                Held::Whole(_) => {}
                Held::Rows(rows) => {
                    for (request, frame) in rows.iter().filter(|(_, frame)| *frame > self.through) {
                        let last = self.rows.entry(request.0).or_default();
                        *last = frame.0.max(*last);
                    }
                }
            }
        }
        self.sequence = self.sequence.max(sequence);
        self.last_sent = self.last_sent.max(sequence);
        if self.rows.len() > self.clean_rows_at {
            self.rows.retain(|_, frame| *frame > self.through.0);
            self.clean_rows_at = 2 * self.rows.len() + 1024;
        }
    }

    /// Every frame up to this one is taken.
    pub(crate) fn pass(&mut self, through: FrameNo) {
        self.through = through;
        self.whole.remove_through(through.0);
    }

    pub(crate) fn set_credit(&mut self, credit: Option<Credit>) {
        self.credit = credit;
    }

    pub(crate) fn set_handed(&mut self, handed: Handed) {
        self.handed = Some(handed);
    }

    /// What was sent and is not taken never arrived.
    pub(crate) fn void(&mut self) {
        self.handed = None;
        self.sent.clear();
        self.sent_rows = 0;
    }

    /// Whether it tells of what it is sent.
    pub(crate) fn is_numbered(&self) -> bool {
        self.last_sent > 0
    }

    pub(crate) fn has_room(&self, sent: Sent<'_>) -> Result<(), SentError> {
        let more = match sent {
            Sent::Whole(_) => 1,
            Sent::Rows(rows) => rows.len(),
        };
        let ahead = self.rows.len() + self.whole.runs().len() + self.sent_rows + more;
        match self.sent.len() < SENT_FRAMES_MAX && ahead <= AHEAD_MAX {
            true => Ok(()),
            false => Err(SentError { sink: self.name.clone(), frames: self.sent.len(), ahead }),
        }
    }

    /// What it has or is being sent already is passed over.
    pub(crate) fn send(&mut self, sequence: u64, held: Held) {
        if self.sent.back().is_some_and(|(last, _)| *last >= sequence) || sequence <= self.sequence {
            return;
        }
        self.last_sent = self.last_sent.max(sequence);
        self.sent_rows += held.rows();
        self.sent.push_back((sequence, held));
    }

    /// Frames taken whole past `through`, and the requests that are ahead.
    pub(crate) fn ahead(&self) -> (&FrameSet, Vec<(u64, u64)>) {
        let mut rows: Vec<_> = self.rows.iter().map(|(request, frame)| (*request, *frame)).collect();
        rows.retain(|(_, frame)| *frame > self.through.0);
        rows.sort_unstable();
        (&self.whole, rows)
    }

    /// Takes the place of what was known; what is sent and not taken is told anew.
    pub(crate) fn set_ahead(&mut self, last_sent: u64, whole: FrameSet, rows: &[(u64, u64)]) {
        self.void();
        (self.last_sent, self.whole) = (last_sent, whole);
        self.rows = rows.iter().copied().collect();
        self.whole.remove_through(self.through.0);
    }
}

impl PartialEq for Sink {
    fn eq(&self, other: &Sink) -> bool {
        let figures = |sink: &Sink| (sink.through, sink.sequence, sink.last_sent, sink.credit, sink.handed());
        self.name == other.name
            && figures(self) == figures(other)
            && self.ahead() == other.ahead()
            && self.sent == other.sent
    }
}

impl Eq for Sink {}
