//! The outbox of one sink.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use afterbay_text::Vocabulary;
use afterbay_wire::{Batch, Kind};
use bytes::Bytes;

use crate::lane::{Composed, Held, Lane};
use crate::sent::{Outstanding, Place};

/// When rows that wait are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Never: frames leave as they came, in their order.
    Never,
    /// Only while the sink has no room: what it has not taken is joined.
    Backpressure,
    /// For readers that cannot show backpressure: a request leaves at most once in this time, but for its first and its
    /// last row, which leave at once.
    Window(Duration),
}

/// Where a joined row may end.
#[derive(Clone, Debug, Default)]
pub enum Joins {
    /// Rows are not joined: the sink is a detokenizer, and no tokenizer is known.
    Nowhere,
    /// The sink is a detokenizer: where the text is whole.
    WhereTextIsWhole(Vocabulary),
    /// The sink reads ids, or text that is made.
    #[default]
    Anywhere,
}

impl Joins {
    /// The tokenizer that tells where a joined row of this kind may end; `None`: that does not depend on the text.
    pub fn vocabulary(&self, kind: Kind) -> Option<&Vocabulary> {
        match self {
            Joins::WhereTextIsWhole(vocabulary) if kind == Kind::TokenId => Some(vocabulary),
            _ => None,
        }
    }
}

/// How an outbox works, and its bounds.
#[derive(Clone, Debug)]
pub struct Options {
    /// When rows are joined.
    pub when: When,
    /// Where a joined row may end.
    pub joins: Joins,
    /// Requests in a composed frame, at most: a reader's loop is not to be kept for long.
    pub max_rows: usize,
    /// It has [room](Outbox::has_room) while fewer frames wait.
    pub max_frames: usize,
    /// It has room while fewer bytes of frames wait.
    pub max_bytes: u64,
}

/// A frame that comes to wait.
#[derive(Debug)]
pub struct Frame {
    /// Its number; greater than that of the frame before.
    pub number: u64,
    /// When it came from the scheduler.
    pub at: Instant,
    /// What it holds.
    pub content: Content,
}

/// What a frame holds.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub enum Content {
    /// Nothing is left of it.
    Nothing,
    /// Bytes that go on in their place: nothing overtakes them.
    Whole {
        /// The frame.
        bytes: Bytes,
        /// The reader counts it.
        counted: bool,
        /// Rows in it, for [`Totals::rows_left`]; 0 of a frame without rows.
        rows: u32,
    },
    /// Rows, that may be joined with others of their requests.
    Rows {
        /// The rows.
        batch: Batch,
        /// The number of each row's request, for who keeps what left ([`Leaving::rows`]).
        requests: Box<[u64]>,
    },
}

/// A frame that leaves for the sink.
#[derive(Debug)]
pub struct Leaving {
    /// Its number among those that leave, from 1, without gaps.
    pub sequence: u64,
    /// The frame.
    pub bytes: Bytes,
    /// The reader counts it.
    pub counted: bool,
    /// When the oldest of it came from the scheduler.
    pub at: Instant,
    /// The number of the frame that this is, unless it is composed.
    pub frame: Option<u64>,
    /// Of a composed frame: each request in it by number, and the frame up to which all its rows have left now.
    pub rows: Vec<(u64, u64)>,
}

/// What has happened since the start; only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames that were composed out of rows of several, or some of one's.
    pub frames_composed: u64,
    /// Rows that came and have left, whether or not in another.
    pub rows_left: u64,
    /// Rows that left in other rows: rows that came less those that left.
    pub rows_joined: u64,
    /// Frames that could not be taken apart when some of their rows had left already, and so went whole.
    pub frames_torn: u64,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few, and nearly all are the large one")]
enum Stage {
    Rows(Lane),
    Whole { place: Place, number: u64, bytes: Bytes, counted: bool, rows: u32, at: Instant },
}

/// What waits for one sink.
#[derive(Debug)]
pub struct Outbox {
    options: Options,
    stages: VecDeque<Stage>,
    /// Health checks, each alone: they do not wait.
    urgent: VecDeque<Composed>,
    outstanding: Outstanding,
    /// Frames of which something waits in `stages`.
    frames: usize,
    bytes: u64,
    /// When all that waits may leave, of [`When::Window`]; it may until nothing does.
    window_ends: Option<Instant>,
    totals: Totals,
}

impl Outbox {
    /// Empty. Frames that leave are numbered from `sequence` + 1, and everything up to frame `done` is done with.
    pub fn new(options: Options, sequence: u64, done: u64) -> Outbox {
        Outbox {
            options,
            stages: VecDeque::new(),
            urgent: VecDeque::new(),
            outstanding: Outstanding::new(sequence, done),
            frames: 0,
            bytes: 0,
            window_ends: None,
            totals: Totals::default(),
        }
    }

    /// Works otherwise from now on; where rows end is as it was made with. What comes is joined as the new options say, and
    /// what waits may be joined still where they say [`When::Never`].
    pub fn reset(&mut self, options: Options) {
        let joins = std::mem::take(&mut self.options.joins);
        self.options = Options { joins, ..options };
        self.window_ends = None;
        if !matches!(self.options.when, When::Window(_)) {
            return;
        }
        // A frame that waits alone is not indexed, but for a window.
        let mut gone = (0, 0);
        for stage in &mut self.stages {
            if let Stage::Rows(lane) = stage
                && !lane.is_empty()
            {
                lane.index(&self.options.joins, &mut self.urgent);
                let (frames, bytes) = lane.take_gone();
                gone = (gone.0 + frames, gone.1 + bytes);
            }
        }
        self.let_go(gone);
    }

    /// Where joined rows may end from now on: the reader has turned out to be another than was thought. What waits is joined as
    /// it was to be when it came, or not at all.
    pub fn set_joins(&mut self, joins: Joins) {
        self.options.joins = joins;
    }

    /// Whether a further frame may be put in.
    pub fn has_room(&self) -> bool {
        self.frames < self.options.max_frames && self.bytes < self.options.max_bytes
    }

    /// A frame comes to wait.
    pub fn put(&mut self, frame: Frame) {
        let Frame { number, at, content } = frame;
        let content = match content {
            Content::Rows { batch, .. } if !self.joins(&batch) => {
                Content::Whole { bytes: batch.bytes().clone(), counted: true, rows: batch.rows() }
            }
            content => content,
        };
        match content {
            Content::Nothing => _ = self.outstanding.came(number, 0),
            Content::Whole { bytes, counted, rows } => {
                let place = self.came(number, 1, &bytes);
                self.stages.push_back(Stage::Whole { place, number, bytes, counted, rows, at });
            }
            Content::Rows { batch, requests } => {
                let place = self.came(number, batch.rows(), batch.bytes());
                let has_health_check = batch.has_health_check();
                let lane = match self.stages.back_mut() {
                    Some(Stage::Rows(lane)) if lane.takes(&batch) => lane,
                    _ => {
                        self.stages.push_back(Stage::Rows(Lane::default()));
                        let Some(Stage::Rows(lane)) = self.stages.back_mut() else { return };
                        lane
                    }
                };
                lane.push(Held::new(place, number, at, batch, requests));
                let is_windowed = matches!(self.options.when, When::Window(_));
                if lane.frames() > 1 || has_health_check || is_windowed {
                    lane.index(&self.options.joins, &mut self.urgent);
                    // Those that held health checks only wait no more.
                    let gone = lane.take_gone();
                    self.let_go(gone);
                }
            }
        }
    }

    /// The rest of a frame comes to wait, of which some left before this outbox was made, in frames up to `sequence`: it is
    /// [done](Outbox::done) with when those are taken, too.
    pub fn put_rest(&mut self, frame: Frame, sequence: u64) {
        self.outstanding.rest_of(sequence);
        self.put(frame);
    }

    fn came(&mut self, number: u64, parts: u32, bytes: &Bytes) -> Place {
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        self.outstanding.came(number, parts)
    }

    fn let_go(&mut self, (frames, bytes): (usize, u64)) {
        self.frames -= frames;
        self.bytes -= bytes;
    }

    fn joins(&self, batch: &Batch) -> bool {
        let is_text = batch.kind() == Kind::Str;
        let is_allowed = match self.options.joins {
            Joins::Nowhere => is_text,
            _ => batch.kind() != Kind::Embedding,
        };
        is_allowed && self.options.when != When::Never
    }

    /// The next frame for the sink. `has_room`: it keeps up, and takes one now; health checks leave in any case.
    pub fn next(&mut self, has_room: bool, now: Instant) -> Option<Leaving> {
        if let Some(composed) = self.urgent.pop_front() {
            return Some(self.leave(composed));
        }
        if !has_room {
            return None;
        }
        loop {
            match self.stages.front_mut()? {
                Stage::Whole { .. } => {
                    let Some(Stage::Whole { place, number, bytes, counted, rows, at }) =
                        self.stages.pop_front()
                    else {
                        return None;
                    };
                    self.let_go((1, bytes.len() as u64));
                    self.totals.rows_left += u64::from(rows);
                    let sequence = self.outstanding.leaves(vec![(place, 1)]);
                    return Some(Leaving {
                        sequence,
                        bytes,
                        counted,
                        at,
                        frame: Some(number),
                        rows: Vec::new(),
                    });
                }
                Stage::Rows(lane) if lane.is_empty() => drop(self.stages.pop_front()),
                Stage::Rows(lane) => {
                    let hurried = match self.options.when {
                        When::Window(window) => now < *self.window_ends.get_or_insert(now + window),
                        _ => false,
                    };
                    let composed = lane.next(self.options.max_rows, hurried);
                    if lane.is_empty()
                        && let When::Window(window) = self.options.when
                    {
                        self.window_ends = Some(now + window);
                    }
                    let gone = lane.take_gone();
                    self.let_go(gone);
                    return composed.map(|composed| self.leave(composed));
                }
            }
        }
    }

    fn leave(&mut self, composed: Composed) -> Leaving {
        let Composed { bytes, of, frame, ahead, rows, at, torn } = composed;
        self.totals.frames_composed += u64::from(frame.is_none());
        self.totals.rows_left += u64::from(rows.0);
        self.totals.rows_joined += u64::from(rows.0 - rows.1);
        self.totals.frames_torn += u64::from(torn);
        let sequence = self.outstanding.leaves(of);
        Leaving { sequence, bytes, counted: true, at, frame, rows: ahead }
    }

    /// When [`Outbox::next`] is to be asked though nothing has come and the sink has not said anything.
    pub fn deadline(&self) -> Option<Instant> {
        self.window_ends
            .filter(|_| matches!(self.stages.front(), Some(Stage::Rows(lane)) if !lane.is_empty()))
    }

    /// Everything that left up to this number need never be sent again.
    pub fn taken(&mut self, sequence: u64) {
        self.outstanding.taken(sequence);
    }

    /// Every frame up to this one is done with: nothing of it waits, and what left of it is taken.
    pub fn done(&self) -> u64 {
        self.outstanding.done()
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames == 0 && self.urgent.is_empty()
    }

    /// Frames of which something waits.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Rows that wait; a frame that goes on whole counts as one.
    pub fn rows(&self) -> usize {
        let rows = self.stages.iter().map(|stage| match stage {
            Stage::Rows(lane) => lane.rows(),
            Stage::Whole { .. } => 1,
        });
        rows.sum::<usize>() + self.urgent.len()
    }

    /// Tokens of the rows that wait.
    pub fn tokens(&self) -> u64 {
        let tokens = self.stages.iter().map(|stage| match stage {
            Stage::Rows(lane) => lane.tokens(),
            Stage::Whole { .. } => 0,
        });
        tokens.sum()
    }

    /// When the oldest frame came of which something waits.
    pub fn oldest(&self) -> Option<Instant> {
        match self.stages.front()? {
            Stage::Rows(lane) => lane.oldest(),
            Stage::Whole { at, .. } => Some(*at),
        }
    }

    /// What has happened since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
