//! Requests of the journal as OpenTelemetry traces: one trace for each selected request, sent to a collector as OTLP over HTTP.
//!
//! [`Traces`] makes spans, and a thread of its own sends them. While the collector is slow or away, spans are dropped and counted.

mod first_legs;
mod leg;
mod stream;

mod identity;
mod spans;

mod export;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use afterbay_config as config;
use afterbay_events::TracesCounters;
use afterbay_journal::reader::{RequestInfo, SegmentRequests, StreamReader};
use afterbay_journal::storage::Storage;
use afterbay_journal::{Follower, ReadError, SegmentId};
use afterbay_journal_view::content::{ContentReader, RequestFacts};
use afterbay_wire::RequestRecord;
use opentelemetry::trace::SpanContext;
use opentelemetry_sdk::trace::SpanData;

use crate::consumer::{Consumer, Failure, Look, OpenSegment, Progress, Streams, layouts, read_on};
use crate::following::Telemetry;

use export::{Exporter, SpanQueue, TracesError};
use first_legs::{FirstLeg, FirstLegs};
use identity::{Parent, Sampler, leg_span, span_context};
use leg::Leg;
use spans::{EndedLeg, spans};
use stream::TracedStream;

/// The name of the consumer.
pub const NAME: &str = "traces";

/// Traces the requests of a journal that end from now on.
pub struct Traces {
    endpoint: String,
    sampler: Sampler,
    counters: Arc<TracesCounters>,
    first_legs: FirstLegs,
    /// The start of this process, unix nanoseconds; 0 after the first look.
    begins_unix_ns: u64,
    /// `None` at the end.
    queue: Option<SpanQueue>,
    exporter: Option<JoinHandle<()>>,
}

/// A stream whose requests are traced.
pub struct FollowedStream {
    name: String,
    /// The streams where its requests begin; empty if they begin here.
    after: Vec<String>,
    reader: StreamReader,
    /// The segment that is read.
    current: Option<SegmentRequests>,
    /// Whether the oldest segment is read first: the stream was not there at the first look.
    is_new: bool,
    /// Whether the last step left something unread.
    has_more: bool,
    traced: TracedStream,
}

impl Traces {
    /// Sends to the collector that the configuration names. A thread does, until the value is dropped and everything is sent.
    ///
    /// # Errors
    /// The client of the collector cannot be made, or a thread cannot be started.
    pub fn new(
        traces: &config::Traces,
        storage: &dyn Storage,
        telemetry: &Telemetry,
    ) -> Result<Traces, TracesError> {
        let (mut made, exporter) = Traces::with(traces, storage, telemetry)?;
        let thread = Builder::new().name("traces-export".to_owned()).spawn(move || exporter.run());
        made.exporter = Some(thread.map_err(|error| TracesError(format!("no thread: {error}")))?);
        Ok(made)
    }

    fn with(
        traces: &config::Traces,
        storage: &dyn Storage,
        telemetry: &Telemetry,
    ) -> Result<(Traces, Exporter), TracesError> {
        let counters = telemetry.metrics.traces();
        let (queue, exporter) = export::open(traces, counters.clone(), telemetry.events.clone())?;
        let made = Traces {
            endpoint: traces.endpoint.clone(),
            sampler: Sampler::new(traces.sample),
            counters,
            first_legs: FirstLegs::default(),
            begins_unix_ns: storage.now_unix_ns(),
            queue: Some(queue),
            exporter: None,
        };
        Ok((made, exporter))
    }

    fn spans(
        &mut self,
        streams: &Streams<FollowedStream>,
        name: &str,
        leg: &Leg,
        info: &RequestInfo,
    ) -> Vec<SpanData> {
        let Some(Some(stream)) = streams.get(name) else { return Vec::new() };
        let engine = leg.engine.as_ref().map(Parent::remote);
        let own = || Parent::own(&leg.rid, info.first_unix_ns);
        let parent = match self.first_leg(streams, stream, leg, info) {
            Some(first) => first,
            None => engine.unwrap_or_else(own),
        };
        let span = leg_span(&stream.name, info.number.0, info.first_unix_ns);
        let layouts = layouts(&stream.reader).ok();
        let facts = layouts.and_then(|layouts| facts(&ContentReader::new(&stream.reader, &layouts), leg));
        let stored = leg.record.and_then(|place| stream.reader.frame(&place).ok());
        let record = stored.filter(|_| info.erased.is_none());
        let record = record.and_then(|stored| RequestRecord::read(&stored.bytes.into()).ok());
        let is_second = !stream.after.is_empty();
        let ended =
            EndedLeg { stream: &stream.name, leg, is_second, info, facts, record, parent: &parent, span };
        let spans = spans(&ended);
        if stream.after.is_empty() {
            let (stream, begun_unix_ns) = (stream.name.clone(), info.first_unix_ns);
            self.first_legs.add(&leg.rid, FirstLeg { stream, begun_unix_ns, parent: parent.child(span) });
        }
        self.counters.requests_exported.add(1);
        spans
    }

    /// The parent of a second leg: the first leg of its request, which had begun last when the second leg began.
    fn first_leg(
        &self,
        streams: &Streams<FollowedStream>,
        stream: &FollowedStream,
        leg: &Leg,
        info: &RequestInfo,
    ) -> Option<Parent> {
        let until = info.first_unix_ns;
        let is_first = |name: &str| stream.after.iter().any(|after| after == name);
        let firsts = streams.values().flatten().filter(|first| is_first(&first.name));
        let live = firsts.filter_map(|first| {
            let (number, begun, engine) = first.traced.leg_of_rid(&leg.rid, until)?;
            let parent = engine.as_ref().map_or_else(|| Parent::own(&leg.rid, begun), Parent::remote);
            Some((begun, parent.child(leg_span(&first.name, number, begun))))
        });
        let ended = self.first_legs.of_rid(&leg.rid);
        let ended = ended.filter(|ended| is_first(&ended.stream) && ended.begun_unix_ns <= until);
        let ended = ended.map(|ended| (ended.begun_unix_ns, ended.parent.clone()));
        live.chain(ended).max_by_key(|(begun, _)| *begun).map(|(_, parent)| parent)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // The exporter ends with its queue. A panic has nobody to be reported to but the log.
        self.queue = None;
        _ = self.exporter.take().map(JoinHandle::join);
    }
}

impl Consumer for Traces {
    type Stream = FollowedStream;

    const LOOK_EVERY: Duration = Duration::from_secs(1);

    fn follower(&self) -> Follower {
        Follower { name: NAME, copy: self.endpoint.clone(), needs_ended_segments: false }
    }

    fn begin(
        &mut self,
        reader: StreamReader,
        _from: Option<SegmentId>,
    ) -> Result<Option<FollowedStream>, Failure> {
        Ok(Some(FollowedStream {
            name: reader.name().to_owned(),
            after: reader.after()?,
            reader,
            current: None,
            // No earlier process has exported anything of a stream that is found later.
            is_new: self.begins_unix_ns == 0,
            has_more: true,
            traced: TracedStream::new(self.begins_unix_ns),
        }))
    }

    fn step(&mut self, stream: &mut FollowedStream, _look: Look) -> Result<bool, Failure> {
        let (sampler, counters) = (self.sampler, &self.counters);
        let has_more = stream.read(&mut |rid, traceparent| select(sampler, counters, rid, traceparent))?;
        stream.has_more = has_more;
        if !has_more {
            // Everything was read that the journal had at the start.
            stream.traced.begins_unix_ns = 0;
        }
        self.counters.requests_left_out.add(std::mem::take(&mut stream.traced.untraced));
        Ok(has_more)
    }

    /// Queues the spans of each leg that ended before, with all its frames taken; at the last look also of others.
    fn commit(&mut self, streams: &mut Streams<FollowedStream>, look: Look) -> Result<(), Failure> {
        self.begins_unix_ns = 0;
        let now = Instant::now();
        // Streams where requests begin come first: their legs are the parents of the others.
        let mut names: Vec<(bool, String)> = streams
            .values()
            .flatten()
            .map(|stream| (!stream.after.is_empty(), stream.name.clone()))
            .collect();
        names.sort();
        for (_, name) in names {
            let Some(Some(stream)) = streams.get_mut(&name) else { continue };
            for (leg, info) in stream.traced.settled(now, look.is_last && !stream.has_more) {
                let spans = self.spans(streams, &name, &leg, &info);
                if let Some(queue) = &self.queue {
                    queue.push(spans);
                }
            }
        }
        Ok(())
    }

    /// Traces hold nothing back, and a start traces what ends from then on.
    fn needed(&mut self, _stream: &mut FollowedStream) -> Option<SegmentId> {
        None
    }
}

impl FollowedStream {
    /// Reads some of the newest segment, and of every segment that was begun since. Returns whether there is more.
    fn read(&mut self, select: stream::Select<'_>) -> Result<bool, ReadError> {
        let now = Instant::now();
        let traced = &mut self.traced;
        let open = (StreamReader::segment_requests as OpenSegment, self.is_new);
        match read_on(&self.reader, &mut self.current, open, &mut |record| traced.apply(record, select, now))?
        {
            Progress::Begun { .. } => self.traced.begin_segment(),
            Progress::More => {}
            Progress::End => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether a request is traced, and the engine's span. Like OpenTelemetry's parent-based sampler, it follows the decision of
/// the engine's trace if that is known.
fn select(
    sampler: Sampler,
    counters: &TracesCounters,
    rid: &str,
    traceparent: Option<&str>,
) -> Option<Option<SpanContext>> {
    let own = || sampler.selects(rid).then_some(None);
    let Some(traceparent) = traceparent else { return own() };
    match span_context(traceparent) {
        Some(engine) => engine.is_sampled().then_some(Some(engine)),
        None => {
            counters.traceparents_refused.add(1);
            own()
        }
    }
}

/// The facts that the frames have about the request. Some engines give the length of the prompt in the first row only.
fn facts(reader: &ContentReader<'_>, leg: &Leg) -> Option<RequestFacts> {
    let [(first, first_row), (last, last_row)] = leg.places?;
    let facts = reader.facts(&last, last_row);
    match facts {
        Some(RequestFacts { prompt_tokens: Some(_), .. }) => facts,
        _ => reader.facts(&first, first_row).or(facts),
    }
}
