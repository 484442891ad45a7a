//! The requests whose rows travelled in the same frames as the rows of one request, and the engine's time for them.

use crate::ended::{EngineStep, each_step};
use afterbay_journal::reader::{JournalRecord, ReadFrom, RequestInfo, StreamReader, Tail};
use afterbay_journal::{Outcome, ReadError, RequestNo};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// The journal writes an outcome at most about this many frames after its frame. The reader looks no further.
const OUTCOME_AFTER_FRAMES: u64 = 1024;
/// Most requests that the summary counts. A frame still lists all of its requests.
pub const NEIGHBOURS_MAX: usize = 65_536;
/// A frame with a row of the request.
#[derive(Debug, PartialEq, Eq)]
pub struct SharedFrame {
    /// Number of the frame.
    pub frame: u64,
    /// Time of receipt, unix nanoseconds.
    pub received_unix_ns: u64,
    /// The rows of the request in the frame, mostly one.
    pub rows: Vec<u32>,
    /// Rows of the frame.
    pub batch: usize,
    /// The other rows: request and row.
    pub others: Vec<(RequestNo, u32)>,
}

/// Reads the frames of one request in order. Keeps one record and the rids of requests that were live lately.
pub struct SharedFrames {
    tail: Tail,
    request: RequestNo,
    /// Rows of the request that were not read yet.
    rows_left: u64,
    last_frame: u64,
    /// The last frames read: a record may be in the journal twice.
    seen: VecDeque<u64>,
    /// Release markers whose outcome was not read yet. A marker is Afterbay's own frame and no batch.
    markers: VecDeque<u64>,
}

impl SharedFrames {
    /// The frames of a request, from its first row on.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn of(stream: &StreamReader, info: &RequestInfo) -> Result<SharedFrames, ReadError> {
        Ok(SharedFrames {
            tail: stream.tail(ReadFrom::Frame(info.first_frame))?,
            request: info.number,
            rows_left: info.rows,
            last_frame: info.last_frame.0,
            seen: VecDeque::new(),
            markers: VecDeque::new(),
        })
    }

    /// The next frame; `None` after the last.
    ///
    /// # Errors
    /// The journal cannot be read.
    #[allow(clippy::should_implement_trait, reason = "an iterator borrows the rids")]
    pub fn next(&mut self) -> Result<Option<SharedFrame>, ReadError> {
        while self.rows_left > 0 {
            match self.tail.next()? {
                Some(JournalRecord::Frame(frame)) => {
                    let number = frame.position.frame.0;
                    if number > self.last_frame.saturating_add(OUTCOME_AFTER_FRAMES) {
                        return Ok(None);
                    }
                    if frame.is_release_marker() {
                        remember(&mut self.markers, number);
                    }
                }
                Some(JournalRecord::Outcome(outcome)) => {
                    if let Some(shared) = self.shared(&outcome) {
                        return Ok(Some(shared));
                    }
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn shared(&mut self, outcome: &Outcome<'_>) -> Option<SharedFrame> {
        let frame = outcome.frame.0;
        if outcome.is_record() || !outcome.requests.contains(&self.request) || self.seen.contains(&frame) {
            return None;
        }
        remember(&mut self.seen, frame);
        let all = (0..).zip(outcome.requests.iter().copied());
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|(_, request)| *request == self.request);
        self.rows_left = self.rows_left.saturating_sub(own.len() as u64);
        if self.markers.contains(&frame) {
            return None;
        }
        Some(SharedFrame {
            frame,
            received_unix_ns: outcome.received_unix_ns,
            rows: own.into_iter().map(|(row, _)| row).collect(),
            batch: outcome.requests.len(),
            others: others.into_iter().map(|(row, request)| (request, row)).collect(),
        })
    }

    /// Rows of the request that were not read: the frame has no outcome, or is no longer in the journal.
    pub fn rows_left(&self) -> u64 {
        self.rows_left
    }

    /// The rid of a request; its number if the journal no longer says.
    pub fn rid(&self, request: RequestNo) -> String {
        self.tail.rid(request).map_or_else(|| format!("(request {request})"), str::to_owned)
    }
}

/// Adds to a queue of [`OUTCOME_AFTER_FRAMES`] numbers.
fn remember(numbers: &mut VecDeque<u64>, number: u64) {
    if numbers.len() as u64 >= OUTCOME_AFTER_FRAMES {
        numbers.pop_front();
    }
    numbers.push_back(number);
}

/// A request that shared frames.
struct Neighbour {
    rid: String,
    frames: u64,
    /// A frame with two rows of a request is one shared frame.
    last_frame: u64,
}

/// The sums over the frames of one request.
#[derive(Default)]
pub struct Sums {
    /// Frames that were added.
    pub frames: u64,
    /// Rows of the request in these frames.
    pub rows: u64,
    /// Number of frames by batch size.
    sizes: BTreeMap<usize, u64>,
    /// By number of the request.
    neighbours: HashMap<u64, Neighbour>,
    /// Rows of requests past [`NEIGHBOURS_MAX`].
    pub not_counted: u64,
}

impl Sums {
    /// Adds a frame. `rid` gives the rid of a request.
    pub fn add(&mut self, shared: &SharedFrame, rid: impl Fn(RequestNo) -> String) {
        self.frames += 1;
        self.rows += shared.rows.len() as u64;
        *self.sizes.entry(shared.batch).or_default() += 1;
        for (request, _) in &shared.others {
            let has_room = self.neighbours.len() < NEIGHBOURS_MAX;
            match self.neighbours.get_mut(&request.0) {
                Some(known) => {
                    known.frames += u64::from(known.last_frame != shared.frame);
                    known.last_frame = shared.frame;
                }
                None if has_room => {
                    let known = Neighbour { rid: rid(*request), frames: 1, last_frame: shared.frame };
                    self.neighbours.insert(request.0, known);
                }
                None => self.not_counted += 1,
            }
        }
    }

    /// The least, the median and the largest batch. The median of an even number of batches is the smaller one in the middle.
    pub fn batches(&self) -> Option<(usize, usize, usize)> {
        let (least, most) = (*self.sizes.keys().next()?, *self.sizes.keys().next_back()?);
        let mut left = self.frames.div_ceil(2);
        let median = self.sizes.iter().find(|(_, frames)| {
            let is_here = left <= **frames;
            left = left.saturating_sub(**frames);
            is_here
        });
        Some((least, median.map_or(least, |(size, _)| *size), most))
    }

    /// The other requests, most shared frames first: request, rid, frames.
    pub fn neighbours(&self) -> Vec<(u64, &str, u64)> {
        let entries = self.neighbours.iter();
        let mut sorted: Vec<(u64, &str, u64)> =
            entries.map(|(request, known)| (*request, &*known.rid, known.frames)).collect();
        sorted.sort_by_key(|(request, _, frames)| (std::cmp::Reverse(*frames), *request));
        sorted
    }
}

/// The engine's time for another request while one request was open, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeOfOther {
    /// Rid of the other request.
    pub rid: Arc<str>,
    /// In steps that the engine worked on both.
    pub beside_ns: u64,
    /// In steps that the engine did not work on the one request: it waited.
    pub ahead_ns: u64,
}

/// The engine's time while a request was open, by the request that it worked for.
#[derive(Debug, Default)]
pub struct EngineTimes {
    /// The time for the request itself, in nanoseconds.
    pub own_ns: u64,
    /// The time for the others, in nanoseconds.
    pub others_ns: u64,
    /// By number of the request, at most [`NEIGHBOURS_MAX`].
    pub others: HashMap<u64, TimeOfOther>,
}

impl EngineTimes {
    /// Reads the steps from the arrival of a request to its last row. `stream` is where the request began.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn read(stream: StreamReader, info: &RequestInfo) -> Result<EngineTimes, ReadError> {
        let segments = stream.segments()?;
        let begins = segments.partition_point(|segment| segment.first <= info.begins()).saturating_sub(1);
        let mut times = EngineTimes::default();
        each_step(stream, &segments[begins..], &mut |step| {
            let is_of_life = step.received_unix_ns <= info.last_unix_ns;
            if is_of_life {
                times.add(&step, info);
            }
            is_of_life
        })?;
        Ok(times)
    }

    /// Adds the part of a step that is after the request's arrival.
    fn add(&mut self, step: &EngineStep, info: &RequestInfo) {
        let since = step.received_unix_ns.saturating_sub(info.begins_unix_ns());
        if since == 0 || step.gpu_ns == 0 {
            return;
        }
        let of_life =
            |ns: u64| (u128::from(ns) * u128::from(since.min(step.gpu_ns)) / u128::from(step.gpu_ns)) as u64;
        let is_beside = step.rows.iter().any(|row| row.request == info.number);
        for row in &step.rows {
            if row.request == info.number {
                self.own_ns += row.gpu_ns;
                continue;
            }
            let ns = of_life(row.gpu_ns);
            self.others_ns += ns;
            if self.others.len() >= NEIGHBOURS_MAX && !self.others.contains_key(&row.request.0) {
                continue;
            }
            let other = self.others.entry(row.request.0).or_insert_with(|| TimeOfOther {
                rid: row.rid.clone(),
                beside_ns: 0,
                ahead_ns: 0,
            });
            *if is_beside { &mut other.beside_ns } else { &mut other.ahead_ns } += ns;
        }
    }
}
