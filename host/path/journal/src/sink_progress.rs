//! Progress of a sink: which rows its reader has taken, even when frames are sent in another order than they
//! were received.
//!
//! Under pressure a sent frame joins waiting rows of several frames, so one frame number cannot describe the
//! progress. Sent frames therefore have sequence numbers. Beside the last frame up to which everything is
//! taken, a sink has the later frames that are taken whole and, for each request that is ahead, the frame of
//! its last taken row. The rows of one request are sent in order, so that one number is enough. It may be
//! applied twice, and it does not depend on which rows plugins drop.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bounds::{AHEAD_MAX, SENT_FRAMES_MAX};
use crate::frame_set::FrameSet;
use crate::position::{FrameNo, RequestNo};
use crate::release_marker::HELD_SINK;

type LastRows = HashMap<u64, u64, FixedState>;

fn sorted<S: Serializer>(rows: &LastRows, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(rows.iter().collect::<BTreeMap<_, _>>())
}

fn unsorted<'de, D: Deserializer<'de>>(from: D) -> Result<LastRows, D::Error> {
    Ok(BTreeMap::deserialize(from)?.into_iter().collect())
}

/// Content of a frame that is handed to a sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SinkContent<'a> {
    /// Everything that is left of this frame.
    Whole(FrameNo),
    /// For each of these requests, all rows not sent before, up to the row in this frame.
    Rows(Cow<'a, [(RequestNo, FrameNo)]>),
}

impl Default for SinkContent<'_> {
    /// No rows.
    fn default() -> Self {
        SinkContent::Rows(Cow::default())
    }
}

impl SinkContent<'_> {
    fn rows(&self) -> usize {
        match self {
            SinkContent::Whole(_) => 1,
            SinkContent::Rows(rows) => rows.len(),
        }
    }

    pub(crate) fn into_owned(self) -> SinkContent<'static> {
        match self {
            SinkContent::Whole(frame) => SinkContent::Whole(frame),
            SinkContent::Rows(rows) => SinkContent::Rows(Cow::Owned(rows.into_owned())),
        }
    }
}

/// Frame that was handed to a sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentFrame {
    /// Sequence number at this sink.
    pub sequence: u64,
    /// Content of the frame.
    pub content: SinkContent<'static>,
    /// Time when the frame was handed over, unix nanoseconds. 0: unknown.
    pub unix_ns: u64,
}

/// Position of a sink's reader in its own count (the credit page) when a frame was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    /// Generation of the reader.
    pub generation: u64,
    /// Counted frames sent to the reader, including the taken frame.
    pub sent: u64,
    /// Sequence number of the last frame that the kernel has accepted for this reader, which gets these frames while it lives;
    /// 0: unknown.
    pub handed_over: u64,
}

/// Frames that a sink may be sent now, so that the records of what was sent stay bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRoom {
    /// Any frame.
    Any,
    /// Only frames that have the oldest rows: [`AHEAD_MAX`] / 2 requests and runs of frames were taken past the last complete
    /// frame.
    InOrder,
    /// None until the reader has taken a frame: [`SENT_FRAMES_MAX`] frames are not taken, or [`AHEAD_MAX`] / 2 of their rows.
    Full,
}

/// Progress of a sink.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SinkProgress {
    name: String,
    through: FrameNo,
    sequence: u64,
    last_sent: u64,
    credit: Option<Credit>,
    /// Frames past `through` that are taken whole.
    whole: FrameSet,
    /// For each request, the frame of the last taken row. Entries up to `through` are removed now and then.
    #[serde(serialize_with = "sorted", deserialize_with = "unsorted")]
    rows: LastRows,
    #[serde(skip)]
    clean_rows_at: usize,
    /// Time when the frame `sequence` was found to be taken, unix nanoseconds. 0: unknown.
    taken_unix_ns: u64,
    /// Frames sent after `sequence`.
    sent: VecDeque<SentFrame>,
    sent_rows: usize,
}

impl SinkProgress {
    pub(crate) fn new(name: &str) -> SinkProgress {
        SinkProgress { name: name.into(), ..SinkProgress::default() }
    }

    /// Progress of a sink that has taken every frame up to `through` and was sent nothing later.
    pub fn up_to(name: &str, through: FrameNo) -> SinkProgress {
        let mut sink = SinkProgress::new(name);
        sink.pass(through);
        sink
    }

    /// Name of the sink.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is a sink of the stream, not the entry for held rows ([`HELD_SINK`]).
    pub fn is_reader(&self) -> bool {
        self.name != HELD_SINK
    }

    /// Last frame up to which everything is taken.
    pub fn through(&self) -> FrameNo {
        self.through
    }

    /// Sequence number of the last taken frame; 0 if none.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Sequence number of the last sent frame.
    pub fn last_sent(&self) -> u64 {
        self.last_sent
    }

    /// The reader's credit when `sequence` was taken.
    pub fn credit(&self) -> Option<Credit> {
        self.credit
    }

    /// Frames sent after `sequence`, in order.
    pub fn sent(&self) -> impl ExactSizeIterator<Item = &SentFrame> {
        self.sent.iter()
    }

    /// Number of frames up to `through` that are not known to be taken.
    pub fn open_frames(&self, through: FrameNo) -> u64 {
        through.0.saturating_sub(self.through.0).saturating_sub(self.whole.len())
    }

    /// Whether a frame without rows, or a frame that was sent whole, is taken.
    pub fn has_taken(&self, frame: FrameNo) -> bool {
        frame <= self.through || self.whole.contains(frame)
    }

    /// Whether the row of this request in this frame is taken.
    pub fn has_taken_row(&self, frame: FrameNo, request: RequestNo) -> bool {
        self.has_taken(frame) || self.rows.get(&request.0).is_some_and(|last| *last >= frame.0)
    }

    /// Marks the frames up to this sequence number as taken.
    pub fn take(&mut self, sequence: u64) {
        while let Some(SentFrame { content, .. }) = self.sent.pop_front_if(|sent| sent.sequence <= sequence) {
            self.sent_rows = self.sent_rows.saturating_sub(content.rows());
            match content {
                SinkContent::Whole(frame) if frame > self.through => self.whole.insert(frame.0),
                SinkContent::Whole(_) => {}
                SinkContent::Rows(rows) => {
                    for (request, frame) in rows.iter().filter(|(_, frame)| *frame > self.through) {
                        let last = self.rows.entry(request.0).or_default();
                        *last = frame.0.max(*last);
                    }
                }
            }
        }
        self.sequence = self.sequence.max(sequence);
        self.last_sent = self.last_sent.max(sequence);
        if self.rows.len() > self.clean_rows_at.min(AHEAD_MAX / 2 - 1) {
            self.rows.retain(|_, frame| *frame > self.through.0);
            self.clean_rows_at = 2 * self.rows.len() + 1024;
        }
    }

    /// Marks the frames up to this sequence number as taken, at this time.
    pub(crate) fn take_at(&mut self, sequence: u64, unix_ns: u64) {
        if sequence > self.sequence {
            self.taken_unix_ns = unix_ns;
        }
        self.take(sequence);
    }

    /// Time when the frame `sequence` was found to be taken, unix nanoseconds; 0: unknown.
    pub(crate) fn taken_unix_ns(&self) -> u64 {
        self.taken_unix_ns
    }

    /// Marks every frame up to `through` as taken.
    pub(crate) fn pass(&mut self, through: FrameNo) {
        self.through = through;
        self.whole.remove_through(through.0);
    }

    pub(crate) fn set_credit(&mut self, credit: Option<Credit>) {
        self.credit = credit;
    }

    /// Forgets the frames that were sent and not taken: they never arrived.
    pub(crate) fn void(&mut self) {
        self.sent.clear();
        self.sent_rows = 0;
    }

    /// Whether sent frames are recorded for this sink.
    pub(crate) fn is_numbered(&self) -> bool {
        self.last_sent > 0
    }

    pub(crate) fn send_room(&self) -> SendRoom {
        if self.sent.len() >= SENT_FRAMES_MAX || self.sent_rows >= AHEAD_MAX / 2 {
            SendRoom::Full
        } else if self.rows.len() + self.whole.runs().len() >= AHEAD_MAX / 2 {
            SendRoom::InOrder
        } else {
            SendRoom::Any
        }
    }

    /// Adds a sent frame. Ignores a frame that was added before.
    pub(crate) fn send(&mut self, frame: SentFrame) {
        let sequence = frame.sequence;
        if self.sent.back().is_some_and(|last| last.sequence >= sequence) || sequence <= self.sequence {
            return;
        }
        self.last_sent = self.last_sent.max(sequence);
        self.sent_rows += frame.content.rows();
        self.sent.push_back(frame);
    }

    /// Frames taken whole past `through`, and the last taken frame of each request that is ahead.
    fn ahead(&self) -> (&FrameSet, Vec<(u64, u64)>) {
        let mut rows: Vec<_> = self.rows.iter().map(|(request, frame)| (*request, *frame)).collect();
        rows.retain(|(_, frame)| *frame > self.through.0);
        rows.sort_unstable();
        (&self.whole, rows)
    }
}

impl PartialEq for SinkProgress {
    fn eq(&self, other: &SinkProgress) -> bool {
        let figures = |sink: &SinkProgress| (sink.through, sink.sequence, sink.last_sent, sink.credit);
        self.name == other.name
            && figures(self) == figures(other)
            && self.ahead() == other.ahead()
            && self.sent == other.sent
    }
}

impl Eq for SinkProgress {}
