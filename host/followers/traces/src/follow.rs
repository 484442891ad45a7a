//! Follows the journal, and makes the spans of each request that has ended.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use afterbay_events::TracesCounters;
use afterbay_journal::reader::{JournalReader, RequestInfo};
use afterbay_journal::{ReadError, SegmentId};
use afterbay_journal_view::content::{ContentReader, RequestFacts};
use afterbay_journal_view::newest_segments::NewestSegments;
use opentelemetry::trace::SpanContext;
use opentelemetry_sdk::trace::SpanData;

use crate::identity::{Parent, Sampler, leg_span, span_context};
use crate::leg::Leg;
use crate::source::TraceSource;
use crate::spans::{EndedLeg, spans};
use crate::stream::TracedStream;

/// Records that are read at once.
const RECORDS_AT_ONCE: usize = 2000;
/// Most rids whose first legs have ended and to which a second leg is still joined.
const FIRST_LEGS_MAX: usize = 65_536;
/// Most first legs with one rid.
const OF_RID_MAX: usize = 4;

/// Follows all streams of a journal.
pub(crate) struct Follower {
    dir: PathBuf,
    source: Arc<dyn TraceSource>,
    sampler: Sampler,
    counters: Arc<TracesCounters>,
    streams: Vec<FollowedStream>,
    first_legs: FirstLegs,
    /// The start of this follower, unix nanoseconds; 0 after the first look.
    begins_unix_ns: u64,
}

struct FollowedStream {
    name: String,
    /// The streams where its requests begin; empty if they begin here.
    after: Vec<String>,
    newest: NewestSegments,
    /// The segment that was read last.
    segment: Option<SegmentId>,
    traced: TracedStream,
}

/// First legs that have ended, for the second legs of their requests.
#[derive(Default)]
struct FirstLegs {
    /// The newest of a rid last, at most [`OF_RID_MAX`].
    by_rid: HashMap<String, Vec<FirstLeg>>,
    /// The rids, oldest first.
    order: VecDeque<String>,
}

struct FirstLeg {
    stream: String,
    begun_unix_ns: u64,
    /// The parent of its children.
    parent: Parent,
}

impl Follower {
    pub(crate) fn new(
        dir: &Path,
        share: f64,
        source: Arc<dyn TraceSource>,
        counters: Arc<TracesCounters>,
    ) -> Follower {
        Follower {
            dir: dir.to_owned(),
            source,
            sampler: Sampler::new(share),
            counters,
            streams: Vec::new(),
            first_legs: FirstLegs::default(),
            begins_unix_ns: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_nanos() as u64),
        }
    }

    /// Reads what is new, and gives the spans of each leg that ended before, with all its frames taken. `all`: does not wait
    /// for those.
    ///
    /// # Errors
    /// The journal cannot be read. Call it again later.
    pub(crate) fn advance(
        &mut self,
        all: bool,
        export: &mut dyn FnMut(Vec<SpanData>),
    ) -> Result<(), ReadError> {
        let now = Instant::now();
        let found = self.find_streams();
        // No earlier process has exported anything of a stream that is found later.
        self.begins_unix_ns = 0;
        let streams = self.streams.iter_mut();
        let read: Vec<_> =
            streams.map(|stream| stream.read(&*self.source, self.sampler, &self.counters, now)).collect();
        // Streams where requests begin come first: their legs are the parents of the others.
        for at in 0..self.streams.len() {
            let settled = self.streams[at].traced.settled(now, all);
            for (leg, info) in settled {
                export(self.spans(at, &leg, &info));
            }
        }
        [found].into_iter().chain(read).collect()
    }

    fn find_streams(&mut self) -> Result<(), ReadError> {
        let journal = JournalReader::open(&self.dir)?;
        for name in journal.streams()? {
            if self.streams.iter().any(|known| known.name == name) {
                continue;
            }
            let reader = journal.stream(&name)?;
            let after = reader.after()?;
            self.streams.push(FollowedStream {
                name,
                after,
                newest: NewestSegments::new(reader, true, self.begins_unix_ns == 0),
                segment: None,
                traced: TracedStream::new(self.begins_unix_ns),
            });
        }
        self.streams.sort_by_key(|stream| !stream.after.is_empty());
        Ok(())
    }

    fn spans(&mut self, at: usize, leg: &Leg, info: &RequestInfo) -> Vec<SpanData> {
        let stream = &self.streams[at];
        let engine = leg.engine.as_ref().map(Parent::remote);
        let own = || Parent::own(&leg.rid, info.first_unix_ns);
        let parent = match self.first_leg(stream, leg, info) {
            Some(first) => first,
            None => engine.unwrap_or_else(own),
        };
        let span = leg_span(&stream.name, info.number.0, info.first_unix_ns);
        let layouts = self.source.layouts(&stream.name);
        let reader = ContentReader::new(stream.newest.reader(), &layouts);
        let facts = facts(&reader, leg);
        let ended = EndedLeg { stream: &stream.name, leg, info, facts, parent: &parent, span };
        let spans = spans(&ended);
        if stream.after.is_empty() {
            let (stream, begun_unix_ns) = (stream.name.clone(), info.first_unix_ns);
            self.first_legs.add(&leg.rid, FirstLeg { stream, begun_unix_ns, parent: parent.child(span) });
        }
        self.counters.requests_exported.add(1);
        spans
    }

    /// The parent of a second leg: the first leg of its request, which had begun last when the second leg began.
    fn first_leg(&self, stream: &FollowedStream, leg: &Leg, info: &RequestInfo) -> Option<Parent> {
        let until = info.first_unix_ns;
        let is_first = |name: &str| stream.after.iter().any(|after| after == name);
        let firsts = self.streams.iter().filter(|first| is_first(&first.name));
        let live = firsts.filter_map(|first| {
            let (number, begun, engine) = first.traced.leg_of_rid(&leg.rid, until)?;
            let parent = engine.as_ref().map_or_else(|| Parent::own(&leg.rid, begun), Parent::remote);
            Some((begun, parent.child(leg_span(&first.name, number, begun))))
        });
        let ended = self.first_legs.by_rid.get(&leg.rid).into_iter().flatten();
        let ended = ended.filter(|ended| is_first(&ended.stream) && ended.begun_unix_ns <= until);
        let ended = ended.map(|ended| (ended.begun_unix_ns, ended.parent.clone()));
        live.chain(ended).max_by_key(|(begun, _)| *begun).map(|(_, parent)| parent)
    }
}

impl FollowedStream {
    fn read(
        &mut self,
        source: &dyn TraceSource,
        sampler: Sampler,
        counters: &TracesCounters,
        now: Instant,
    ) -> Result<(), ReadError> {
        let FollowedStream { name, newest, segment, traced, .. } = self;
        let mut select = |rid: &str| select(source, sampler, counters, name, rid);
        newest.advance(&mut |read| {
            if segment.replace(read.id()) != Some(read.id()) {
                traced.begin_segment();
            }
            while read.read_records(RECORDS_AT_ONCE, &mut |record| traced.apply(record, &mut select, now))? {}
            Ok(())
        })?;
        // Everything was read that the journal had at the start.
        self.traced.begins_unix_ns = 0;
        counters.requests_left_out.add(std::mem::take(&mut self.traced.untraced));
        Ok(())
    }
}

/// Whether a request is traced, and the engine's span. Like OpenTelemetry's parent-based sampler, it follows the decision of
/// the engine's trace if that is known.
fn select(
    source: &dyn TraceSource,
    sampler: Sampler,
    counters: &TracesCounters,
    stream: &str,
    rid: &str,
) -> Option<Option<SpanContext>> {
    let own = || sampler.selects(rid).then_some(None);
    let Some(traceparent) = source.traceparent(stream, rid) else { return own() };
    match span_context(&traceparent) {
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

impl FirstLegs {
    fn add(&mut self, rid: &str, leg: FirstLeg) {
        let of_rid = self.by_rid.entry(rid.to_owned()).or_default();
        if of_rid.is_empty() {
            self.order.push_back(rid.to_owned());
        }
        of_rid.push(leg);
        if of_rid.len() > OF_RID_MAX {
            of_rid.remove(0);
        }
        if self.order.len() > FIRST_LEGS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_rid.remove(&oldest);
        }
    }
}
