//! The outbox of one sink.

use std::collections::VecDeque;
use std::time::Instant;

use afterbay_journal::SinkContent;
use afterbay_wire::{Batch, BatchKind};
use bytes::Bytes;

use crate::Content;
use crate::joins::{JoinEnds, Joins, SingleRows};
use crate::outbox::calls::ToolCalls;
use crate::outbox::frame::{Frame, FrameToSend};
use crate::outbox::lane::{FrameSize, Lane, WaitingFrame};
use crate::outbox::options::{Options, When};
use crate::outbox::sent::Outstanding;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames that were composed of rows of several frames, or of some rows of one.
    pub frames_composed: u64,
    /// Rows received and sent, alone or inside another row.
    pub rows_sent: u64,
    /// Rows sent inside another row: rows received minus rows written.
    pub rows_joined: u64,
    /// Frames sent whole although some of their rows had been sent, because they could not be taken apart.
    pub frames_torn: u64,
}

/// Frames that wait, between two that they must not overtake.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few, and nearly all are the large one")]
enum Stage {
    Rows(Lane),
    Whole(FrameToSend),
}

/// The size of a frame that is sent whole.
fn whole_size(bytes: &Bytes) -> FrameSize {
    let bytes = bytes.len() as u64;
    FrameSize { frames: 1, bytes, memory: bytes + size_of::<Stage>() as u64 }
}

/// The queue of one sink.
#[derive(Debug)]
pub struct Outbox {
    options: Options,
    stages: VecDeque<Stage>,
    /// Health checks, each in a frame of its own. They do not wait.
    urgent: VecDeque<FrameToSend>,
    /// Frames that overtake those in `stages`: as barriers between them, they would keep rows from being joined.
    asides: VecDeque<FrameToSend>,
    outstanding: Outstanding,
    /// The frames with content in `stages` and `asides`.
    size: FrameSize,
    /// See [`Outbox::send_in_order`].
    in_order: bool,
    totals: Totals,
    /// See [`Outbox::sent_rows`].
    sent_rows: Vec<(Instant, u32)>,
    calls: ToolCalls,
}

impl Outbox {
    /// An empty outbox. Sent frames are numbered from `sequence` + 1, and every frame up to `taken_through` is taken.
    pub fn new(options: Options, sequence: u64, taken_through: u64) -> Outbox {
        Outbox {
            options,
            stages: VecDeque::new(),
            urgent: VecDeque::new(),
            asides: VecDeque::new(),
            outstanding: Outstanding::new(sequence, taken_through),
            size: FrameSize::default(),
            in_order: false,
            totals: Totals::default(),
            sent_rows: Vec::new(),
            calls: ToolCalls::default(),
        }
    }

    /// Changes the options, except [`Options::joins`]. New frames follow the new options. Frames that already wait may still
    /// be joined under [`When::Never`].
    pub fn reset(&mut self, options: Options) {
        let joins = std::mem::take(&mut self.options.joins);
        self.options = Options { joins, ..options };
    }

    /// Changes where joined rows may end, because the reader is another than was assumed. Rows that already wait are joined
    /// under the old rule, or not at all.
    pub fn set_joins(&mut self, joins: Joins) {
        self.options.joins = joins;
    }

    /// Sets whether frames are sent one by one, each with all that is left of it.
    pub fn send_in_order(&mut self, in_order: bool) {
        self.in_order = in_order;
    }

    /// Whether another frame may be pushed.
    pub fn has_room(&self) -> bool {
        self.size.frames < self.options.max_frames && self.size.bytes < self.options.max_bytes
    }

    /// Adds a frame.
    pub fn push(&mut self, frame: Frame) {
        let Frame { number, at, content } = frame;
        let content = match content {
            Content::Rows { batch, requests } if !self.joins(&batch, &requests) => Content::whole(&batch),
            content => content,
        };
        match content {
            Content::Nothing => _ = self.outstanding.add(number, 0),
            Content::Whole { bytes, counted, rows, first_rows } => {
                self.size += whole_size(&bytes);
                let index = self.outstanding.add(number, 1);
                let whole = FrameToSend::whole(index, number, at, bytes, counted, rows, first_rows);
                self.stages.push_back(Stage::Whole(whole));
            }
            Content::Aside { bytes } => {
                self.size += whole_size(&bytes);
                let index = self.outstanding.add(number, 1);
                self.asides.push_back(FrameToSend::whole(index, number, at, bytes, true, 0, 0));
            }
            Content::Rows { batch, requests } => {
                let frame_index = self.outstanding.add(number, batch.rows());
                let single = match &self.options.joins.single {
                    SingleRows::FromToolCall(vocabulary) => {
                        self.calls.single_rows(vocabulary, &batch, &requests)
                    }
                    SingleRows::None | SingleRows::All => Box::default(),
                };
                let has_health_check = batch.has_health_check();
                let lane = match self.stages.back_mut() {
                    Some(Stage::Rows(lane)) if lane.fits(&batch) => lane,
                    _ => {
                        self.stages.push_back(Stage::Rows(Lane::default()));
                        let Some(Stage::Rows(lane)) = self.stages.back_mut() else { return };
                        lane
                    }
                };
                let before = lane.size();
                lane.push(WaitingFrame::new(frame_index, number, at, batch, requests, single));
                if lane.frames() > 1 || has_health_check {
                    lane.index(&self.options.joins.ends, &mut self.urgent);
                }
                self.size.replace(before, lane.size());
            }
        }
    }

    /// Adds the rest of a frame. Its other rows were sent before this outbox existed, in frames up to `sequence`. The frame
    /// is [taken](Outbox::taken_through) once those are taken, too.
    pub fn push_rest(&mut self, frame: Frame, sequence: u64) {
        self.outstanding.rest_of(sequence);
        self.push(frame);
    }

    fn joins(&self, batch: &Batch, requests: &[u64]) -> bool {
        let is_text = batch.kind() == BatchKind::Str;
        let is_allowed = match self.options.joins.ends {
            JoinEnds::Nowhere => is_text,
            _ => batch.kind() != BatchKind::Embedding,
        };
        let is_known = batch.has_text_rids() && requests.first() != Some(&0);
        is_allowed
            && is_known
            && self.options.when != When::Never
            && !matches!(self.options.joins.single, SingleRows::All)
    }

    /// The next frame for the sink. `has_room` says that the sink can take one now. Health checks are returned in any case.
    pub fn next(&mut self, has_room: bool, now: Instant) -> Option<FrameToSend> {
        self.sent_rows.clear();
        if let Some(urgent) = self.urgent.pop_front() {
            self.sent_rows.push((urgent.at, 1));
            return Some(self.send(urgent));
        }
        if !has_room {
            return None;
        }
        if let Some(aside) = self.asides.pop_front() {
            return Some(self.send_whole(aside));
        }
        loop {
            let whole = self.stages.pop_front_if(|stage| matches!(stage, Stage::Whole(_)));
            if let Some(Stage::Whole(frame)) = whole {
                return Some(self.send_whole(frame));
            }
            let Stage::Rows(lane) = self.stages.front_mut()? else { return None };
            if lane.is_empty() {
                self.size -= lane.size();
                self.stages.pop_front();
                continue;
            }
            let before = lane.size();
            let composed = match self.in_order {
                true => lane.rest_of_front(&mut self.sent_rows),
                false => lane.next(self.options.max_rows, now, &mut self.sent_rows),
            };
            self.size.replace(before, lane.size());
            if lane.is_empty() {
                // Its requests go with it.
                self.size -= lane.size();
                self.stages.pop_front();
            }
            return composed.map(|composed| self.send(composed));
        }
    }

    fn send_whole(&mut self, frame: FrameToSend) -> FrameToSend {
        self.size -= whole_size(&frame.bytes);
        self.sent_rows.push((frame.at, frame.rows.0));
        self.send(frame)
    }

    /// Numbers and counts a frame that leaves.
    fn send(&mut self, mut frame: FrameToSend) -> FrameToSend {
        let (received, written) = frame.rows;
        self.totals.frames_composed += u64::from(matches!(frame.content, SinkContent::Rows(_)));
        self.totals.rows_sent += u64::from(received);
        self.totals.rows_joined += u64::from(received - written);
        self.totals.frames_torn += u64::from(frame.is_torn);
        frame.sequence = self.outstanding.send(std::mem::take(&mut frame.sources));
        frame
    }

    /// The received rows of the frame that [`Outbox::next`] returned last: the time at which their frame was received, and
    /// their number. Empty if it returned none.
    pub fn sent_rows(&self) -> &[(Instant, u32)] {
        &self.sent_rows
    }

    /// Marks every sent frame up to `sequence` as taken: it never needs to be sent again.
    pub fn taken(&mut self, sequence: u64) {
        self.outstanding.taken(sequence);
    }

    /// The frame up to which everything is taken: none of it waits, and the reader has all of it.
    pub fn taken_through(&self) -> u64 {
        self.outstanding.taken_through()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.size.frames == 0 && self.urgent.is_empty()
    }

    /// The number of frames with content that waits.
    pub fn frames(&self) -> usize {
        self.size.frames
    }

    /// The bytes of these frames.
    pub fn bytes(&self) -> u64 {
        self.size.bytes
    }

    /// The memory of these frames in bytes: their bytes, their decoded rows, and their places in the queue.
    pub fn memory(&self) -> u64 {
        self.size.memory
    }

    /// The number of rows that wait. A frame that is sent whole counts as one.
    pub fn rows(&self) -> usize {
        let rows = self.stages.iter().map(|stage| match stage {
            Stage::Rows(lane) => lane.rows(),
            Stage::Whole(_) => 1,
        });
        rows.sum::<usize>() + self.urgent.len() + self.asides.len()
    }

    /// The tokens of the rows that wait.
    pub fn tokens(&self) -> u64 {
        let tokens = self.stages.iter().map(|stage| match stage {
            Stage::Rows(lane) => lane.tokens(),
            Stage::Whole(_) => 0,
        });
        tokens.sum()
    }

    /// The time at which the oldest waiting frame was received.
    pub fn oldest(&self) -> Option<Instant> {
        // The first lane is empty until the next call of `next`.
        let staged = self.stages.iter().find_map(|stage| match stage {
            Stage::Rows(lane) => lane.oldest(),
            Stage::Whole(frame) => Some(frame.at),
        });
        staged.into_iter().chain(self.asides.front().map(|aside| aside.at)).min()
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
