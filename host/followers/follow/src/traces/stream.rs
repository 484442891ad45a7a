//! The traced requests of one stream, from the records of its journal.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterbay_journal::reader::{RequestInfo, RequestRecord, Taken};
use afterbay_journal::{FrameNo, Outcome, Position, SentFrame, SinkContent};

use opentelemetry::trace::SpanContext;

use crate::traces::leg::{AtSending, Leg};

/// Most requests of one stream that are traced at once. Further ones are not traced, and counted.
pub(crate) const LIVE_MAX: usize = 8192;
/// Time after the end of a request for which its last frames may be taken. After that, the trace has no time for them.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Most frames without an outcome whose place is kept.
const PLACES_MAX: usize = 65_536;

/// The traced requests of one stream.
pub(crate) struct TracedStream {
    live: HashMap<u64, Leg>,
    /// Requests that have ended and were not exported, by their number.
    ended: BTreeMap<u64, EndedLeg>,
    /// Requests whose last row was received before this time are not exported: an earlier process has exported them. Unix
    /// nanoseconds; 0 once everything was read that the journal had at the start.
    pub(crate) begins_unix_ns: u64,
    sinks: Vec<TracedSink>,
    /// The places of frames without an outcome.
    places: BTreeMap<u64, Position>,
    /// The number of the segment that is read.
    segment: u64,
    /// Requests that were not traced to their end.
    pub(crate) untraced: u64,
    /// The number and the rid of a request that the last record opened: the next record may have its attributes.
    opened: Option<(u64, String)>,
}

struct EndedLeg {
    leg: Leg,
    info: RequestInfo,
    at: Instant,
}

struct TracedSink {
    name: Arc<str>,
    last_sent: u64,
    taken: u64,
    /// The last time at which a frame was sent or taken, unix nanoseconds.
    last_busy_unix_ns: u64,
    /// Frames that were sent and not taken, with the requests whose rows they carry.
    in_flight: VecDeque<(u64, Vec<u64>)>,
}

/// Decides by its rid and its attribute `traceparent` whether a request is traced. `Some`: it is, and the engine's span if that is
/// known.
pub(crate) type Select<'a> = &'a mut dyn FnMut(&str, Option<&str>) -> Option<Option<SpanContext>>;
/// The attribute of a request with the W3C context of the engine's span.
const TRACEPARENT: &str = "traceparent";

impl TracedStream {
    pub(crate) fn new(begins_unix_ns: u64) -> TracedStream {
        TracedStream {
            live: HashMap::new(),
            ended: BTreeMap::new(),
            begins_unix_ns,
            sinks: Vec::new(),
            places: BTreeMap::new(),
            segment: 0,
            untraced: 0,
            opened: None,
        }
    }

    /// Begins to read the next segment. Requests that the last one did not list have ended without a record.
    pub(crate) fn begin_segment(&mut self) {
        let segment = self.segment;
        let before = self.live.len();
        self.live.retain(|_, leg| leg.segment == segment);
        self.untraced += (before - self.live.len()) as u64;
        self.segment += 1;
    }

    pub(crate) fn apply(&mut self, record: RequestRecord<'_>, select: Select<'_>, now: Instant) {
        if let Some((number, rid)) = self.opened.take() {
            let attributes = match record {
                RequestRecord::Attributes(of, attributes) if of.0 == number => attributes,
                _ => &[],
            };
            self.open(number, &rid, None, attributes, select);
        }
        match record {
            RequestRecord::Carried(requests) => {
                for (info, _) in requests.into_iter().filter(|(_, is_closed)| !is_closed) {
                    match self.live.get_mut(&info.number.0) {
                        Some(leg) => leg.segment = self.segment,
                        // Its earlier rows are not known.
                        None => {
                            let begun = (info.rows > 0).then_some(info.first_unix_ns);
                            self.open(info.number.0, &info.rid, begun, &info.attributes, select);
                        }
                    }
                }
            }
            RequestRecord::Opened(number, rid) => self.opened = Some((number.0, rid.to_owned())),
            RequestRecord::Frame(position, _) => {
                self.places.insert(position.frame.0, position);
                if self.places.len() > PLACES_MAX {
                    self.places.pop_first();
                }
            }
            RequestRecord::Attributes(..) | RequestRecord::Plugin(_) => {}
            RequestRecord::Outcome(outcome, _) => self.outcome(outcome),
            RequestRecord::Routed(frame, sinks, rows) => {
                for (request, sink) in rows {
                    if let (Some(leg), Some(sink)) =
                        (self.live.get_mut(&request.0), sinks.get(usize::from(*sink)))
                    {
                        leg.route(frame.0, &sink.as_str().into());
                    }
                }
            }
            RequestRecord::Sent(sink, frame) => self.sent(sink, frame),
            RequestRecord::Taken(taken) => self.taken(taken),
            RequestRecord::Closed(info, _) => {
                let leg = self.live.remove(&info.number.0);
                if let Some(leg) = leg.filter(|_| info.last_unix_ns >= self.begins_unix_ns) {
                    self.ended.insert(info.number.0, EndedLeg { leg, info: info.clone(), at: now });
                }
            }
        }
    }

    fn open(
        &mut self,
        number: u64,
        rid: &str,
        begun_unix_ns: Option<u64>,
        attributes: &[(String, String)],
        select: Select<'_>,
    ) {
        let traceparent = attributes.iter().find(|(name, _)| name == TRACEPARENT).map(|(_, value)| &**value);
        let Some(engine) = select(rid, traceparent) else { return };
        if self.live.len() + self.ended.len() >= LIVE_MAX {
            self.untraced += 1;
            return;
        }
        self.live.insert(number, Leg::new(rid, engine, begun_unix_ns, self.segment));
    }

    fn outcome(&mut self, outcome: &Outcome<'static>) {
        let place = self.places.remove(&outcome.frame.0);
        for (row, request) in outcome.requests.iter().enumerate() {
            let Some(leg) = self.live.get_mut(&request.0) else { continue };
            if outcome.is_record() {
                leg.record = place;
                continue;
            }
            let row = row as u32;
            leg.row(outcome, row);
            if let Some(place) = place.map(|place| (place, row)) {
                leg.places = Some(leg.places.map_or([place; 2], |[first, _]| [first, place]));
            }
        }
    }

    fn sent(&mut self, name: &str, frame: &SentFrame) {
        let at = self.sink(name);
        let sink = &mut self.sinks[at];
        // The beginning of a segment repeats frames.
        if frame.sequence <= sink.last_sent {
            return;
        }
        sink.last_sent = frame.sequence;
        let in_flight = sink.in_flight.len() as u64;
        let last_busy_unix_ns = if in_flight > 0 { frame.unix_ns } else { sink.last_busy_unix_ns };
        let at = AtSending { in_flight, last_busy_unix_ns };
        let to = (&sink.name, frame.sequence);
        let mut carried = Vec::new();
        match &frame.content {
            SinkContent::Whole(FrameNo(number)) => {
                // A request may have ended with rows that wait.
                let ended = self.ended.iter_mut().map(|(request, ended)| (*request, &mut ended.leg));
                let legs = self.live.iter_mut().map(|(request, leg)| (*request, leg)).chain(ended);
                let with_rows = legs.filter_map(|(request, leg)| {
                    leg.sent_whole(to, *number, frame.unix_ns, at).then_some(request)
                });
                carried.extend(with_rows);
            }
            SinkContent::Rows(rows) => {
                for (request, last) in rows.iter() {
                    let leg = leg_of(&mut self.live, &mut self.ended, request.0);
                    if leg.is_some_and(|leg| leg.sent_through(to, last.0, frame.unix_ns, at)) {
                        carried.push(request.0);
                    }
                }
            }
        }
        sink.in_flight.push_back((frame.sequence, carried));
    }

    fn taken(&mut self, taken: &Taken) {
        let at = self.sink(&taken.sink);
        let sink = &mut self.sinks[at];
        while let Some((sequence, requests)) =
            sink.in_flight.pop_front_if(|(sequence, _)| *sequence <= taken.sequence)
        {
            for request in requests {
                if let Some(leg) = leg_of(&mut self.live, &mut self.ended, request) {
                    leg.taken(&sink.name, sequence, taken.unix_ns);
                }
            }
            sink.last_busy_unix_ns = taken.unix_ns;
        }
        sink.taken = sink.taken.max(taken.sequence);
        sink.last_sent = sink.last_sent.max(taken.sequence);
        if taken.is_void() {
            for (sequence, requests) in std::mem::take(&mut sink.in_flight) {
                for request in requests {
                    if let Some(leg) = leg_of(&mut self.live, &mut self.ended, request) {
                        leg.never_arrived(&sink.name, sequence);
                    }
                }
            }
            sink.last_sent = sink.taken;
        }
    }

    fn sink(&mut self, name: &str) -> usize {
        if let Some(at) = self.sinks.iter().position(|sink| *sink.name == *name) {
            return at;
        }
        let (last_sent, taken, last_busy_unix_ns) = (0, 0, 0);
        let in_flight = VecDeque::new();
        self.sinks.push(TracedSink { name: name.into(), last_sent, taken, last_busy_unix_ns, in_flight });
        self.sinks.len() - 1
    }

    /// The first leg with this rid that began last, but not after this time: its number, its beginning, and the engine's span.
    pub(crate) fn leg_of_rid(
        &self,
        rid: &str,
        until_unix_ns: u64,
    ) -> Option<(u64, u64, Option<SpanContext>)> {
        let live = self.live.iter().map(|(number, leg)| (*number, leg));
        let ended = self.ended.iter().map(|(number, ended)| (*number, &ended.leg));
        let of_rid = live.chain(ended).filter(|(_, leg)| leg.rid == rid);
        let begun = of_rid.filter_map(|(number, leg)| Some((number, leg.begun_unix_ns?, leg.engine.clone())));
        begun.filter(|(_, begun, _)| *begun <= until_unix_ns).max_by_key(|(_, begun, _)| *begun)
    }

    /// Takes the requests that ended before `before` and whose frames are taken, or can no longer be waited for. `all`: does
    /// not wait for any.
    pub(crate) fn settled(&mut self, before: Instant, all: bool) -> Vec<(Leg, RequestInfo)> {
        let is_settled = |ended: &EndedLeg| {
            all || ended.at < before && (ended.leg.is_settled() || ended.at + SETTLE_MAX < before)
        };
        let settled = self.ended.iter().filter(|(_, ended)| is_settled(ended)).map(|(number, _)| *number);
        let settled: Vec<u64> = settled.collect();
        let taken = settled.into_iter().filter_map(|number| self.ended.remove(&number));
        taken
            .map(|EndedLeg { mut leg, info, .. }| {
                leg.close(&info);
                (leg, info)
            })
            .collect()
    }
}

fn leg_of<'a>(
    live: &'a mut HashMap<u64, Leg>,
    ended: &'a mut BTreeMap<u64, EndedLeg>,
    request: u64,
) -> Option<&'a mut Leg> {
    live.get_mut(&request).or_else(|| Some(&mut ended.get_mut(&request)?.leg))
}
