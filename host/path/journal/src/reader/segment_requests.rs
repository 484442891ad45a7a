//! Totals of the requests of one segment, the plugins that acted on them, and the records about them, as the segment grows.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::error::ReadError;
use crate::format::RecordKind;
use crate::outcome::Outcome;
use crate::plugin_component::PluginComponent;
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::record::{RecordBody, Taken};
use crate::release_marker::HELD_SINK;
use crate::request::{Erasure, RequestInfo};
use crate::segment::{Payloads, RawRecord, Scan, ScanStep, Segment};
use crate::sink_progress::SentFrame;
use crate::stream_state::StreamState;

/// Reads one segment. A segment lists the requests that are open when it is begun, so it needs no other segment.
pub struct SegmentRequests {
    scan: Scan,
    state: StreamState,
    /// Requests with a new total since the last [`SegmentRequests::changes`].
    changed: BTreeSet<u64>,
    /// Plugins with a new action since then, by request.
    acted: BTreeMap<u64, BTreeSet<String>>,
    /// Requests that were erased before the segment was opened.
    erased: BTreeMap<u64, Erasure>,
    /// The CHANGED that precedes the next outcome.
    changed_frame: Option<ChangedFrame>,
    corrupt_bytes: u64,
}

/// A CHANGED that was read.
struct ChangedFrame {
    frame: u64,
    offset: u64,
    /// `None`: they are not wanted.
    bytes: Option<Bytes>,
}

/// A request whose totals have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestChange {
    /// Totals of the request, also of its rows in earlier segments.
    pub request: RequestInfo,
    /// Plugins and operators that acted on rows of the request that were read.
    pub plugins: BTreeSet<String>,
}

/// A record about requests, in the order of the journal.
#[derive(Clone, Debug)]
pub enum RequestRecord<'a> {
    /// Requests that were open when the segment was begun, and closed ones that no summary of an earlier segment lists: totals,
    /// and whether the request is closed. A long list is in several records, one after the other.
    Carried(Vec<(&'a RequestInfo, bool)>),
    /// A request was opened: number and rid.
    Opened(RequestNo, &'a str),
    /// Names and values of the attributes of a request: all that it has now.
    Attributes(RequestNo, &'a [(String, String)]),
    /// Outcomes from here on have verdicts of this component under its plugin's name. A segment begins with one for each plugin.
    Plugin(&'a PluginComponent),
    /// A frame was received: its position, and its size in bytes.
    Frame(Position, u32),
    /// Outcome of a frame, and its offset in the segment, for [`StreamReader::outcome`](super::StreamReader::outcome). It has the
    /// bytes sent in place of the frame only in [`StreamReader::segment_changes`](super::StreamReader::segment_changes).
    Outcome(&'a Outcome<'static>, u32),
    /// Sinks of the rows of a frame, in a stream with several sinks: the request of each row, and the index of its
    /// sink.
    Routed(FrameNo, &'a [String], &'a [(RequestNo, u8)]),
    /// A frame was given to this sink's socket. The records at the beginning of a segment repeat the frames that are
    /// not taken.
    Sent(&'a str, &'a SentFrame),
    /// A sink has taken frames.
    Taken(&'a Taken),
    /// A request has ended: its totals, and the offset of the record in the segment.
    Closed(&'a RequestInfo, u32),
}

impl SegmentRequests {
    pub(super) fn new(
        segment: Segment,
        limit: u64,
        payloads: Payloads,
    ) -> Result<SegmentRequests, ReadError> {
        let summary = segment.summary()?;
        let infos = summary.into_iter().flat_map(|summary| summary.entries).map(|entry| entry.info);
        let erased = infos.filter_map(|info| Some((info.number.0, info.erased?))).collect();
        let mut state = StreamState::new();
        state.begin_segment(&segment.header);
        let scan = segment.records(limit, payloads);
        let (changed, acted) = (BTreeSet::new(), BTreeMap::new());
        Ok(SegmentRequests { scan, state, changed, acted, erased, changed_frame: None, corrupt_bytes: 0 })
    }

    /// The segment.
    pub fn id(&self) -> SegmentId {
        self.scan.segment.id
    }

    /// Time at which the segment was begun, unix nanoseconds.
    pub fn begun_unix_ns(&self) -> u64 {
        self.scan.segment.header.begun_unix_ns
    }

    /// Bytes that were read and are no record. The content of received frames is not checked.
    pub fn corrupt_bytes(&self) -> u64 {
        self.corrupt_bytes
    }

    /// The requests of the segment so far, and those that were carried into it, in no order.
    pub fn requests(&self) -> impl Iterator<Item = &RequestInfo> {
        self.state.requests.values().map(|entry| &entry.info)
    }

    /// One of these requests.
    pub fn request(&self, number: RequestNo) -> Option<&RequestInfo> {
        self.state.requests.get(number.0).map(|entry| &entry.info)
    }

    /// The requests that are open after the records that were read.
    pub fn open_requests(&self) -> impl Iterator<Item = &RequestInfo> {
        self.state.requests.iter().filter(|entry| !entry.closed).map(|entry| &entry.info)
    }

    /// Reads at most `records_max` further records. Returns whether it stopped before the end.
    ///
    /// # Errors
    /// The disk.
    pub fn read(&mut self, records_max: usize) -> Result<bool, ReadError> {
        for _ in 0..records_max {
            match self.step()? {
                Step::Record(record, body) => self.note(record.head.number, &body),
                Step::Other => {}
                Step::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// As [`SegmentRequests::read`], and gives each record. [`SegmentRequests::changes`] has no part in it.
    ///
    /// # Errors
    /// The disk.
    pub fn read_records(
        &mut self,
        records_max: usize,
        each: &mut dyn FnMut(RequestRecord<'_>),
    ) -> Result<bool, ReadError> {
        for _ in 0..records_max {
            match self.step()? {
                Step::Record(record, body) => match &*body {
                    RecordBody::Sink(sink) if sink.is_reader() => {
                        each(RequestRecord::Taken(&Taken::by(sink)));
                        sink.sent().for_each(|frame| each(RequestRecord::Sent(sink.name(), frame)));
                    }
                    body => self.request_record(&record, body).into_iter().for_each(&mut *each),
                },
                Step::Other => {}
                Step::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reads a record and applies it to the state.
    fn step(&mut self) -> Result<Step, ReadError> {
        let mut record = match self.scan.step()? {
            ScanStep::Record(record) => record,
            ScanStep::Corrupt { bytes, .. } => {
                self.corrupt_bytes += bytes;
                return Ok(Step::Other);
            }
            ScanStep::End { .. } => return Ok(Step::End),
        };
        if record.head.kind == RecordKind::CHANGED {
            let is_wanted = self.scan.payloads == Payloads::NotReceived;
            let bytes = is_wanted.then(|| Bytes::copy_from_slice(self.scan.payload(&record)));
            let (frame, offset) = (record.head.number, record.offset);
            self.changed_frame = Some(ChangedFrame { frame, offset, bytes });
            return Ok(Step::Other);
        }
        let Some(mut body) = self.scan.body(&record) else { return Ok(Step::Other) };
        if let RecordBody::Outcome(outcome) = &mut body
            && let Some(changed) = self.changed_frame.take_if(|changed| changed.frame == outcome.frame.0)
        {
            (outcome.changed, record.offset) = (changed.bytes, changed.offset);
        }
        self.state.apply(&record, &body);
        if let (RecordBody::Close { .. }, number) = (&body, record.head.number)
            && let Some(erasure) = self.erased.get(&number)
            && let Some(entry) = self.state.requests.get_mut(number)
        {
            entry.info.erased = Some(*erasure);
        }
        Ok(Step::Record(record, Box::new(body)))
    }

    fn request_record<'a>(&'a self, record: &RawRecord, body: &'a RecordBody) -> Option<RequestRecord<'a>> {
        let number = record.head.number;
        Some(match body {
            RecordBody::Frame => {
                let (frame, segment, offset) = (FrameNo(number), self.id(), record.offset as u32);
                RequestRecord::Frame(Position { frame, segment, offset }, record.head.payload)
            }
            RecordBody::Carry(entries) => {
                RequestRecord::Carried(entries.iter().map(|entry| (&entry.info, entry.closed)).collect())
            }
            RecordBody::Open { rid } => RequestRecord::Opened(RequestNo(number), rid),
            RecordBody::Attributes(attributes) => RequestRecord::Attributes(RequestNo(number), attributes),
            RecordBody::Plugin(component) => RequestRecord::Plugin(component),
            RecordBody::Outcome(outcome) => RequestRecord::Outcome(outcome, record.offset as u32),
            RecordBody::Routed(routed) => RequestRecord::Routed(FrameNo(number), &routed.sinks, &routed.rows),
            RecordBody::Sent { sink, frame } => RequestRecord::Sent(sink, frame),
            RecordBody::Taken(taken) if taken.sink != HELD_SINK => RequestRecord::Taken(taken),
            RecordBody::Close { .. } => {
                RequestRecord::Closed(&self.state.requests.get(number)?.info, record.offset as u32)
            }
            _ => return None,
        })
    }

    fn note(&mut self, number: u64, body: &RecordBody) {
        match body {
            RecordBody::Open { .. }
            | RecordBody::Close { .. }
            | RecordBody::OperatorAbort(_)
            | RecordBody::Attributes(_) => {
                self.changed.insert(number);
            }
            RecordBody::Carry(entries) => {
                self.changed.extend(entries.iter().map(|entry| entry.info.number.0));
            }
            RecordBody::Outcome(outcome) => self.note_outcome(outcome),
            _ => {}
        }
    }

    fn note_outcome(&mut self, outcome: &Outcome<'_>) {
        self.changed.extend(outcome.requests.iter().map(|request| request.0));
        for action in outcome.actions.iter() {
            let Some(request) = outcome.requests.get(action.row as usize) else { continue };
            let plugins = self.acted.entry(request.0).or_default();
            if !plugins.contains(&*action.plugin) {
                plugins.insert(action.plugin.to_string());
            }
        }
    }

    /// The requests with a row whose totals have changed since the last call, in the order of their numbers.
    pub fn changes(&mut self) -> impl Iterator<Item = RequestChange> {
        let (changed, mut acted) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.acted));
        changed.into_iter().filter_map(move |number| {
            let mut request = self.state.requests.get(number)?.info.clone();
            request.erased = self.erased.get(&number).copied();
            // The outcome of the first row may still come.
            request
                .is_seen()
                .then(|| RequestChange { request, plugins: acted.remove(&number).unwrap_or_default() })
        })
    }
}

/// A step of a segment's scan.
enum Step {
    Record(RawRecord, Box<RecordBody>),
    /// Bytes and records that say nothing about requests.
    Other,
    End,
}
