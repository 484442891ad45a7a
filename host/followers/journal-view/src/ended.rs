//! Reads the requests of a stream that have ended, segment by segment, off the path.
//!
//! The reader folds the records of a segment into the live requests, and gives each request as one [`EndedRequest`] when it
//! ends. The archive and the usage records are made of these.

mod numbers;
mod types;

mod engine_time;
pub(crate) mod frames;

mod live;
mod steps;

#[cfg(test)]
mod tests;

pub use crate::sent::UNKNOWN_ID;
pub use steps::each_step;
pub use types::{
    Contents, DroppedTokens, EndPosition, EndedRequest, EngineFacts, EngineStep, FrameUse, RowColumns,
    RowExperts, RowVerdict, SettledFrame, StepRow, TokenLedger, Training,
};

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use afterbay_journal::reader::{RequestInfo, RequestRecord, RequestState, SegmentRequests, StreamReader};
use afterbay_journal::{FrameNo, Outcome, Position, ReadError, RequestNo, SegmentId, row_effects};
use afterbay_wire::{self as wire, Decoder, Layouts};
use bytes::Bytes;

use engine_time::EngineTime;
use frames::{FrameContents, RowContent};
use live::{LiveRequest, OutcomeRow, PluginFacts};

/// Most gaps of a request that are kept.
pub const GAPS_MAX: usize = 64;
/// Most pairs of plugin and reason by which the dropped tokens of a request are split.
pub const DROPS_MAX: usize = 32;
/// Most bytes of rows, ids and verdicts that are kept of one live request: at 8 bytes a token, 2 million tokens. Later rows are
/// left out, and counted in `rows_missing`.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Most bytes of rows, ids and verdicts that are kept of all live requests of a stream: at 8 bytes a token, 64 million tokens.
/// Further rows are left out, and counted in `rows_missing`.
pub const STREAM_BYTES_MAX: usize = 512 << 20;
/// Most frames without an outcome whose places are kept.
const PLACES_MAX: usize = 65_536;
/// Most requests that have ended and wait for the name of their sink.
const WAITING_MAX: usize = 4096;
/// Most plugins, sinks and operators whose names are shared between requests.
const NAMES_MAX: usize = 1024;

/// Folds the segments of one stream, in order.
///
/// A restart opens the segment that [`EndedReader::needs`] gave at a boundary between segments, and reads on from there. Each
/// later request is given as this reader would give it, apart from the bounds on memory.
///
/// Memory of a live request: 650 bytes, its rid, 5 bytes a row and 3 bytes a token id of a usual vocabulary, at most
/// [`REQUEST_BYTES_MAX`].
pub struct EndedReader {
    stream: StreamReader,
    open: Option<SegmentRequests>,
    /// Whether the open segment was read to its end and has a successor.
    is_finished: bool,
    fold: Fold,
}

/// The live requests, and the ended ones that were not taken.
struct Fold {
    stream: Arc<str>,
    frames: FrameUse,
    has_settled_frames: bool,
    has_training: bool,
    /// The rows of the stream come from the detokenizer: its frames are no steps.
    is_second_leg: bool,
    time: EngineTime,
    decoder: Decoder,
    segment: SegmentId,
    /// The number of the open segment among those that were opened.
    ordinal: u64,
    /// The segment that was open before.
    before: Option<SegmentId>,
    live: HashMap<u64, LiveRequest>,
    /// Live requests by the segment in which they were seen first.
    begun: BTreeMap<SegmentId, usize>,
    /// Bytes of rows, ids and verdicts of the live requests.
    bytes: usize,
    request_bytes_max: usize,
    stream_bytes_max: usize,
    /// The places and sizes of frames without an outcome.
    places: BTreeMap<u64, (Position, u32)>,
    /// The sinks that records of the open segment name.
    sinks: Vec<Arc<str>>,
    /// Component of each plugin, by its name, as the open segment has recorded it.
    plugins: HashMap<Arc<str>, PluginFacts>,
    names: HashMap<Box<str>, Arc<str>>,
    /// Requests that have ended and were not taken, each with the segment in which it was seen first.
    ended: VecDeque<(SegmentId, EndedRequest)>,
    settled: Vec<SettledFrame>,
    content: RowContent,
    error: Option<ReadError>,
}

impl EndedReader {
    /// Reads this stream, whose msgpack frames have one of these layouts.
    pub fn new(stream: StreamReader, frames: FrameUse, layouts: &Layouts) -> EndedReader {
        let fold = Fold {
            stream: stream.name().into(),
            frames,
            has_settled_frames: false,
            has_training: false,
            is_second_leg: false,
            time: EngineTime::default(),
            decoder: Decoder::new(layouts.clone()),
            segment: SegmentId::default(),
            ordinal: 0,
            before: None,
            live: HashMap::new(),
            begun: BTreeMap::new(),
            bytes: 0,
            request_bytes_max: REQUEST_BYTES_MAX,
            stream_bytes_max: STREAM_BYTES_MAX,
            places: BTreeMap::new(),
            sinks: Vec::new(),
            plugins: HashMap::new(),
            names: HashMap::new(),
            ended: VecDeque::new(),
            settled: Vec::new(),
            content: RowContent::default(),
            error: None,
        };
        EndedReader { stream, open: None, is_finished: true, fold }
    }

    /// Also gives [`EndedReader::settled_frames`].
    #[must_use]
    pub fn with_settled_frames(mut self) -> EndedReader {
        self.fold.has_settled_frames = true;
        self
    }

    /// Also gives [`EndedReader::steps`].
    #[must_use]
    pub fn with_steps(mut self) -> EndedReader {
        self.fold.time.give_steps();
        self
    }

    /// Also gives the [`Training`] of requests, with [`FrameUse::Contents`].
    #[must_use]
    pub fn with_training(mut self) -> EndedReader {
        self.fold.has_training = true;
        self
    }

    /// Reads the frames from here on by these layouts.
    pub fn set_layouts(&mut self, layouts: &Layouts) {
        self.fold.decoder = Decoder::new(layouts.clone());
    }

    /// The stream.
    pub fn stream(&self) -> &StreamReader {
        &self.stream
    }

    /// Continues with this segment, which is after the open one; the open one is finished. False if retention removed the
    /// segment or its header cannot be read: the reader is then as before.
    ///
    /// # Errors
    /// The disk.
    pub fn open(&mut self, segment: SegmentId) -> Result<bool, ReadError> {
        let opened = match self.fold.frames {
            FrameUse::Contents => self.stream.segment_changes(segment)?,
            FrameUse::Facts | FrameUse::None => self.stream.segment_requests(segment)?,
        };
        let Some(opened) = opened else { return Ok(false) };
        self.fold.is_second_leg = !self.stream.after()?.is_empty();
        self.finish_segment();
        self.open = Some(opened);
        self.is_finished = false;
        self.fold.begin(segment);
        Ok(true)
    }

    /// The open segment.
    pub fn segment(&self) -> Option<SegmentId> {
        self.open.as_ref().map(SegmentRequests::id)
    }

    /// Time at which the open segment was begun, unix nanoseconds.
    pub fn begun_unix_ns(&self) -> Option<u64> {
        self.open.as_ref().map(SegmentRequests::begun_unix_ns)
    }

    /// Bytes of the open segment that were read and are no record.
    pub fn corrupt_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, SegmentRequests::corrupt_bytes)
    }

    /// Reads at most `records_max` further records of the open segment. False at the end of the segment, which may still grow
    /// if it has no successor.
    ///
    /// # Errors
    /// The disk. Make the reader anew.
    pub fn read(&mut self, records_max: usize) -> Result<bool, ReadError> {
        let EndedReader { stream, open: Some(open), fold, .. } = self else { return Ok(false) };
        let has_more = open.read_records(records_max, &mut |record| fold.apply(stream, record))?;
        self.fold.error.take().map_or(Ok(has_more), Err)
    }

    /// Ends the open segment. [`EndedReader::read`] has read it to its end, after its successor was listed. Requests that the
    /// segment does not list have ended.
    pub fn finish_segment(&mut self) {
        if let Some(open) = self.open.as_ref().filter(|_| !self.is_finished) {
            self.fold.finish(open.open_requests());
        }
        self.fold.time.divide_all();
        self.is_finished = true;
    }

    /// Takes the requests that have ended, in the order of their ends. A request waits for the rows of those that do not stream and
    /// that may have a part of its steps and, with [`FrameUse::Contents`], for a record that names its sink, at most until its segment is finished.
    pub fn requests(&mut self) -> impl Iterator<Item = EndedRequest> + '_ {
        let waits = self.fold.frames == FrameUse::Contents && !self.is_finished;
        let Fold { ended, time, .. } = &mut self.fold;
        std::iter::from_fn(move || {
            let is_full = ended.len() > WAITING_MAX;
            let is_ready = |(_, first): &(SegmentId, EndedRequest)| {
                time.is_divided(first.info.number.0) && (!waits || is_full || first.sink.is_some())
            };
            let (_, mut request) = ended.pop_front_if(|first| is_ready(first))?;
            request.gpu_ns = time.take(request.info.number.0);
            Some(request)
        })
    }

    /// Takes the frames whose outcome was read, in the order of the outcomes. Only with [`EndedReader::with_settled_frames`].
    pub fn settled_frames(&mut self) -> std::vec::Drain<'_, SettledFrame> {
        self.fold.settled.drain(..)
    }

    /// Takes the steps of the engine, in order. A step waits for the rows of requests that do not stream, at most until its segment is
    /// finished. Only with [`EndedReader::with_steps`].
    pub fn steps(&mut self) -> Vec<EngineStep> {
        self.fold.time.given()
    }

    /// The oldest segment that the reader still needs. `None`: only segments after the open one, which is finished.
    pub fn needs(&self) -> Option<SegmentId> {
        let open = self.segment().filter(|_| !self.is_finished);
        let begun = self.fold.begun.keys().next().copied();
        let waiting = self.fold.ended.iter().map(|(segment, _)| *segment).min();
        [open, begun, waiting, self.fold.waiting_frame()].into_iter().flatten().min()
    }

    /// Requests that have not ended.
    pub fn live_requests(&self) -> usize {
        self.fold.live.len()
    }
}

impl Fold {
    fn begin(&mut self, segment: SegmentId) {
        self.before = (self.ordinal > 0).then_some(self.segment);
        self.segment = segment;
        self.ordinal += 1;
        // A segment begins with a record of each sink and each plugin.
        self.sinks.clear();
        self.plugins.clear();
    }

    fn apply(&mut self, stream: &StreamReader, record: RequestRecord<'_>) {
        if self.error.is_some() {
            return;
        }
        match record {
            RequestRecord::Carried(requests) => {
                for (info, is_closed) in requests {
                    if let Err(error) = self.carried(stream, info, is_closed) {
                        self.error = Some(error);
                    }
                }
            }
            RequestRecord::Opened(number, rid) => {
                // After a power cut, a number may repeat whose record never reached the disk.
                self.remove(number);
                self.add(number.0, LiveRequest::new(rid, self.segment, self.ordinal));
            }
            RequestRecord::Attributes(number, attributes) => {
                let base = self.live.get_mut(&number.0).and_then(|live| live.base.as_mut());
                if let Some(base) = base {
                    base.attributes = attributes.to_vec();
                }
            }
            RequestRecord::Plugin(component) => {
                let names = &mut self.names;
                let plugin = shared(names, &component.plugin);
                let (version, digest) = (&*component.version, &*component.sha256_text());
                let facts = PluginFacts { version: shared(names, version), digest: shared(names, digest) };
                if self.plugins.len() < NAMES_MAX {
                    self.plugins.insert(plugin, facts);
                }
            }
            RequestRecord::Frame(position, bytes) => {
                if self.frames != FrameUse::None || self.has_settled_frames {
                    self.places.insert(position.frame.0, (position, bytes));
                    if self.places.len() > PLACES_MAX {
                        self.places.pop_first();
                    }
                }
            }
            RequestRecord::Outcome(outcome, _) => {
                if let Err(error) = self.outcome(stream, outcome) {
                    self.error = Some(error);
                }
            }
            RequestRecord::Routed(_, sinks, rows) => {
                let sinks: Vec<Arc<str>> = sinks.iter().map(|sink| self.sink(sink)).collect();
                for (request, sink) in rows {
                    if let Some(sink) = sinks.get(usize::from(*sink)) {
                        self.routed(*request, sink);
                    }
                }
            }
            RequestRecord::Sent(sink, _) => _ = self.sink(sink),
            RequestRecord::Taken(taken) => _ = self.sink(&taken.sink),
            RequestRecord::Closed(info, offset) => {
                let live = self.remove(info.number);
                let live = live.unwrap_or_else(|| LiveRequest::new(&info.rid, self.segment, self.ordinal));
                let info = live.closed(info);
                self.end(live, info, offset);
            }
        }
    }

    fn add(&mut self, number: u64, request: LiveRequest) {
        *self.begun.entry(request.first_segment).or_default() += 1;
        if self.has_time() {
            self.time.add(number, request.rid.clone());
        }
        self.live.insert(number, request);
    }

    fn remove(&mut self, number: RequestNo) -> Option<LiveRequest> {
        let live = self.live.remove(&number.0)?;
        self.time.close(number.0);
        self.bytes -= live.bytes();
        if let Some(count) = self.begun.get_mut(&live.first_segment) {
            *count -= 1;
            if *count == 0 {
                self.begun.remove(&live.first_segment);
            }
        }
        Some(live)
    }

    fn carried(
        &mut self,
        stream: &StreamReader,
        info: &RequestInfo,
        is_closed: bool,
    ) -> Result<(), ReadError> {
        let number = info.number.0;
        if info.rows > 0 {
            self.time.saw_step(info.last_unix_ns);
        }
        if is_closed {
            // Its end was read in an earlier segment, or the disk refused the record of the end.
            if let Some(live) = self.remove(info.number) {
                self.end(live, info.clone(), u32::MAX);
            }
            return Ok(());
        }
        if !self.live.contains_key(&number) {
            // Its earlier segments were removed, or the reader began here.
            self.add(number, LiveRequest::new(&info.rid, self.segment, self.ordinal));
            if info.record_frame.0 > 0
                && self.frames != FrameUse::None
                && let Some(place) = stream.position(info.record_frame)?
                && let Some(record) = read_record(stream, &place)?
            {
                self.time.ask(number, record.prompt_tokens.unwrap_or(0), record.stream != Some(false));
            }
            if info.rows > 0 {
                self.time.skip(number, info.received);
            }
            if info.state == RequestState::Live && info.is_seen() {
                self.time.open(number, info.last_unix_ns);
            }
        }
        if let Some(live) = self.live.get_mut(&number) {
            (live.listed, live.base) = (self.ordinal, Some(info.clone()));
        }
        Ok(())
    }

    /// Ends a request that the journal does not close.
    fn lost(&mut self, number: RequestNo) {
        if let Some(live) = self.remove(number) {
            let info = live.unclosed(number);
            self.end(live, info, u32::MAX);
        }
    }

    fn end(&mut self, mut live: LiveRequest, info: RequestInfo, offset: u32) {
        if live.sink.is_none()
            && let [only] = self.sinks.as_slice()
        {
            live.sink = Some(only.clone());
        }
        let end = EndPosition { segment: self.segment, offset, number: info.number };
        let has_contents = self.frames == FrameUse::Contents;
        let first_segment = live.first_segment;
        let ended = live.end(&self.stream, info, end, has_contents);
        let ended = EndedRequest { is_second_leg: self.is_second_leg, ..ended };
        self.ended.push_back((first_segment, ended));
    }

    fn finish<'a>(&mut self, open: impl Iterator<Item = &'a RequestInfo>) {
        let mut unlisted: Vec<u64> =
            self.live.iter().filter(|(_, it)| it.listed < self.ordinal).map(|(number, _)| *number).collect();
        unlisted.sort_unstable();
        unlisted.into_iter().for_each(|number| self.lost(RequestNo(number)));
        for info in open {
            if let Some(live) = self.live.get_mut(&info.number.0).filter(|_| !info.rid.is_empty()) {
                live.base = Some(info.clone());
            }
        }
    }

    /// The name of a sink, which is then known.
    fn sink(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.sinks.iter().find(|known| ***known == *name) {
            return known.clone();
        }
        let name = shared(&mut self.names, name);
        self.sinks.push(name.clone());
        if let [only] = self.sinks.as_slice() {
            self.ended.iter_mut().for_each(|(_, ended)| _ = ended.sink.get_or_insert_with(|| only.clone()));
        }
        name
    }

    fn routed(&mut self, request: RequestNo, sink: &Arc<str>) {
        if let Some(live) = self.live.get_mut(&request.0) {
            live.sink = Some(sink.clone());
            return;
        }
        // The record about a request's last row stands after its end.
        if let Some((_, ended)) = self.ended.iter_mut().rfind(|(_, ended)| ended.info.number == request) {
            ended.sink = Some(sink.clone());
        }
    }

    /// The segment of the oldest frame without an outcome. Older ones than of the segment before have lost their outcomes.
    fn waiting_frame(&self) -> Option<SegmentId> {
        let recent = self.before.unwrap_or(self.segment);
        let waiting = self.places.values().filter(|(place, _)| place.segment >= recent);
        (self.frames != FrameUse::None).then(|| waiting.map(|(place, _)| place.segment).min()).flatten()
    }

    fn outcome(&mut self, stream: &StreamReader, outcome: &Outcome<'static>) -> Result<(), ReadError> {
        let FrameNo(number) = outcome.frame;
        let place = self.places.remove(&number);
        let is_step = self.is_step(outcome);
        let gpu_ns = match is_step {
            true => {
                let requests = outcome.requests.iter().map(|request| request.0);
                self.time.begin_step(outcome.frame, outcome.received_unix_ns, requests)
            }
            false => 0,
        };
        if self.has_settled_frames {
            self.settled.push(SettledFrame {
                frame: outcome.frame,
                received_unix_ns: outcome.received_unix_ns,
                bytes: place.map(|(_, bytes)| bytes),
                requests: if outcome.is_record() { 0 } else { outcome.requests.len() as u32 },
                tokens: outcome.tokens.iter().map(|tokens| u64::from(*tokens)).sum(),
                gpu_ns,
            });
        }
        if outcome.is_record() {
            return self.request_record(stream, place.map(|(place, _)| place), outcome);
        }
        let is_finish = |row: u32| outcome.finished.iter().any(|finish| finish.row == row);
        let has_facts = |fold: &Fold, (row, request): (u32, &RequestNo)| {
            fold.live.get(&request.0).is_some_and(|live| live.is_new() || is_finish(row))
        };
        let needs_frame = match self.frames {
            FrameUse::None => false,
            FrameUse::Facts => (0..).zip(outcome.requests.iter()).any(|row| has_facts(self, row)),
            FrameUse::Contents => outcome.requests.iter().any(|request| self.live.contains_key(&request.0)),
        };
        let place = place.map(|(place, _)| place);
        let contents = match needs_frame {
            true => {
                let of_outcome = (&outcome.passage, outcome.requests.len(), outcome.changed.clone());
                let has_actions = !outcome.actions.is_empty();
                let decoder = &mut self.decoder;
                Some(FrameContents::read(stream, place.as_ref(), of_outcome, has_actions, decoder)?)
            }
            false => None,
        };
        let mut actions = &outcome.actions[..];
        for ((row, request), tokens) in (0..).zip(outcome.requests.iter()).zip(outcome.tokens.iter()) {
            // Actions are sorted by row.
            let before = actions.partition_point(|action| action.row < row);
            let of_row = actions.partition_point(|action| action.row <= row);
            let of_row = &actions[before..of_row];
            actions = &actions[before + of_row.len()..];
            let has_facts = has_facts(self, (row, request));
            let (request_max, stream_max) = (self.request_bytes_max, self.stream_bytes_max);
            let Fold { live, plugins, names, bytes, frames, ordinal, content, has_training, .. } = self;
            let Some(live) = live.get_mut(&request.0) else { continue };
            live.listed = *ordinal;
            let gap = outcome.gaps.binary_search_by_key(&row, |gap| gap.row);
            let outcome_row = OutcomeRow {
                unix_ns: outcome.received_unix_ns,
                tokens: *tokens,
                actions: of_row,
                effect: row_effects(of_row).next(),
                gap: gap.ok().map(|at| outcome.gaps[at]),
            };
            let name = &mut |name: &str| shared(names, name);
            live.count(&outcome_row);
            if let Some(contents) = contents.as_ref().filter(|_| has_facts) {
                contents.facts(row, &mut live.facts);
            }
            let before = live.bytes();
            if before >= request_max || *bytes >= stream_max {
                continue;
            }
            live.keep(&outcome_row, plugins, name);
            if let Some(contents) = contents.as_ref().filter(|_| *frames == FrameUse::Contents) {
                contents.received(row, *tokens, content);
                content.training = if *has_training { contents.training(row) } else { None };
                let sent = contents.sent(&live.rid, of_row, *tokens);
                live.keep_content(content, sent);
            }
            *bytes = *bytes + live.bytes() - before;
        }
        if is_step {
            self.end_step(outcome);
        }
        Ok(())
    }

    /// Reads what the scheduler was asked for.
    fn request_record(
        &mut self,
        stream: &StreamReader,
        place: Option<Position>,
        outcome: &Outcome<'static>,
    ) -> Result<(), ReadError> {
        let live = outcome.requests.first().and_then(|request| self.live.get_mut(&request.0));
        let Some((live, request)) = live.zip(outcome.requests.first()) else { return Ok(()) };
        self.time.open(request.0, outcome.received_unix_ns);
        let Some(place) = place.filter(|_| self.frames != FrameUse::None) else { return Ok(()) };
        live.listed = self.ordinal;
        let Some(mut record) = read_record(stream, &place)? else { return Ok(()) };
        self.time.ask(request.0, record.prompt_tokens.unwrap_or(0), record.stream != Some(false));
        if self.frames != FrameUse::Contents || self.bytes >= self.stream_bytes_max {
            record.prompt_ids = Bytes::new();
        }
        let before = live.bytes();
        // A later one is that of an engine that goes on with the request, and has the tokens so far in its prompt.
        live.record.get_or_insert_with(|| Box::new(record));
        self.bytes = self.bytes + live.bytes() - before;
        Ok(())
    }
}

/// The record of a request at this place. `None` if it is damaged or removed.
fn read_record(stream: &StreamReader, place: &Position) -> Result<Option<wire::RequestRecord>, ReadError> {
    match stream.frame(place) {
        Ok(frame) => Ok(wire::RequestRecord::read(&frame.bytes.into()).ok()),
        Err(error @ ReadError::Io(_)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// A name that requests share.
fn shared(names: &mut HashMap<Box<str>, Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    if names.len() >= NAMES_MAX {
        names.clear();
    }
    let shared: Arc<str> = name.into();
    names.insert(name.into(), shared.clone());
    shared
}
