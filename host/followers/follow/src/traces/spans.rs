//! The spans of one leg.
//!
//! ```text
//! text_completion STREAM        the leg, from the request's record or its first row to the last known time
//! ├─ first row                   from the record until the first row: the engine's queue and the prefill
//! ├─ sink NAME                  the rows that went to a sink
//! │  ├─ queue                   from the receipt of the rows until they were sent
//! │  └─ read                    from there until the reader had taken them
//! └─ plugin NAME                the rows on which a plugin gave a verdict; the verdicts are its events
//!    └─ hold                    a wait of held rows
//! ```
//!
//! No span has ids or text of the request.

use std::time::{Duration, SystemTime};

use afterbay_journal::reader::RequestInfo;
use afterbay_journal_view::content::RequestFacts;
use afterbay_journal_view::ending::EndedBy;
use afterbay_types::EndCause;
use afterbay_wire::RequestRecord;
use opentelemetry::trace::{Event, SpanId, SpanKind, Status};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::traces::identity::{Parent, child_span};
use crate::traces::leg::{FRAMES_MAX, HOLDS_MAX, Hold, Leg, PARTS_MAX, PluginPart, SentRows, SinkPart};

/// The most spans of one leg. The last ones are left out, so those of plugins and of further sinks.
pub(crate) const SPANS_MAX: usize = 96;
// A request with one sink and all plugins has room for each of them.
const _: () = assert!(SPANS_MAX > 3 + 2 * FRAMES_MAX + HOLDS_MAX + PARTS_MAX);

/// The name of the operation, one of those that OpenTelemetry's conventions for generative AI define. The output of an engine
/// does not say which API its client used.
const OPERATION: &str = "text_completion";

/// A leg that has ended.
pub(crate) struct EndedLeg<'a> {
    pub(crate) stream: &'a str,
    pub(crate) leg: &'a Leg,
    /// Whether the stream is after another one.
    pub(crate) is_second: bool,
    pub(crate) info: &'a RequestInfo,
    /// The facts in its frames, if one can be read.
    pub(crate) facts: Option<RequestFacts>,
    /// The request's record, if the journal has it.
    pub(crate) record: Option<RequestRecord>,
    pub(crate) parent: &'a Parent,
    /// The id of the leg's first span.
    pub(crate) span: SpanId,
}

/// The spans of a leg, the first one first, at most [`SPANS_MAX`].
pub(crate) fn spans(ended: &EndedLeg<'_>) -> Vec<SpanData> {
    let EndedLeg { stream, leg, info, .. } = ended;
    let scope = InstrumentationScope::builder("afterbay").with_version(env!("CARGO_PKG_VERSION")).build();
    let mut out = Spans { parent: ended.parent, scope, spans: Vec::new(), left_out: leg.left_out };
    let name = format!("{OPERATION} {stream}");
    let (from, to) = (info.begins_unix_ns(), leg.end_unix_ns(info));
    let parent = (ended.parent.span, ended.parent.is_remote);
    out.add(ended.span, parent, name, (from, to), Vec::new());
    let mut index = 0;
    let mut next = || {
        index += 1;
        child_span(ended.span, index)
    };
    if info.record_unix_ns > 0 && info.rows > 0 {
        let wait = vec![KeyValue::new("afterbay.wait.cause", "engine")];
        out.add(next(), (ended.span, false), "first row".to_owned(), (from, info.first_unix_ns), wait);
    }
    for part in &leg.sinks {
        let span = next();
        if out.sink(span, ended.span, part) {
            for sent in &part.kept {
                // A frame that a start settled without a record has no times.
                if sent.sent_unix_ns > 0 {
                    out.queue(next(), span, sent);
                    if sent.taken_unix_ns > 0 {
                        out.read(next(), span, sent);
                    }
                }
            }
        }
    }
    for part in &leg.plugins {
        let span = next();
        if out.plugin(span, ended.span, part) {
            part.holds.iter().for_each(|hold| out.hold(next(), span, hold));
        }
    }
    let left_out = out.left_out;
    if let Some(first) = out.spans.first_mut() {
        first.attributes = attributes(ended, left_out);
        first.status = status(ended);
    }
    out.spans
}

struct Spans<'a> {
    parent: &'a Parent,
    scope: InstrumentationScope,
    spans: Vec<SpanData>,
    /// Spans and events past the bounds.
    left_out: u64,
}

impl Spans<'_> {
    /// Adds a span. Returns false if it is past the bound.
    fn add(
        &mut self,
        span: SpanId,
        (parent_span_id, parent_span_is_remote): (SpanId, bool),
        name: String,
        (from, to): (u64, u64),
        attributes: Vec<KeyValue>,
    ) -> bool {
        if self.spans.len() >= SPANS_MAX {
            self.left_out += 1;
            return false;
        }
        self.spans.push(SpanData {
            span_context: self.parent.context(span),
            parent_span_id,
            parent_span_is_remote,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: time(from),
            end_time: time(to.max(from)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        });
        true
    }

    fn plugin(&mut self, span: SpanId, of: SpanId, part: &PluginPart) -> bool {
        let mut attributes = vec![KeyValue::new("afterbay.plugin", part.plugin.clone())];
        attributes.extend(part.counts.iter().map(|(verdict, rows)| {
            KeyValue::new(format!("afterbay.rows.{}", verdict.replace('-', "_")), int(*rows))
        }));
        let until = part.holds.iter().map(|hold| hold.until_unix_ns).fold(part.last_unix_ns, u64::max);
        let times = (part.first_unix_ns, until);
        if !self.add(span, (of, false), format!("plugin {}", part.plugin), times, attributes) {
            return false;
        }
        if let Some(added) = self.spans.last_mut() {
            added.events.events = part
                .verdicts
                .iter()
                .map(|given| {
                    let mut attributes = vec![KeyValue::new("afterbay.verdict", given.verdict)];
                    attributes.extend(reason("afterbay.reason", &given.reason));
                    Event::new(given.verdict, time(given.unix_ns), attributes, 0)
                })
                .collect();
        }
        true
    }

    fn hold(&mut self, span: SpanId, of: SpanId, hold: &Hold) {
        let mut attributes = vec![
            KeyValue::new("afterbay.wait.cause", "plugin"),
            KeyValue::new("afterbay.rows", int(hold.rows)),
        ];
        attributes.extend(reason("afterbay.reason", &hold.why));
        attributes.extend(reason("afterbay.release.reason", &hold.released));
        let times = (hold.from_unix_ns, hold.until_unix_ns);
        self.add(span, (of, false), "hold".to_owned(), times, attributes);
    }

    fn sink(&mut self, span: SpanId, of: SpanId, part: &SinkPart) -> bool {
        let attributes = vec![
            KeyValue::new("afterbay.sink", part.sink.to_string()),
            KeyValue::new("afterbay.frames", int(part.frames)),
            KeyValue::new("afterbay.rows", int(part.rows)),
            KeyValue::new("afterbay.rows.joined", int(part.rows.saturating_sub(part.frames))),
        ];
        let times = (part.first_unix_ns, part.last_unix_ns);
        self.add(span, (of, false), format!("sink {}", part.sink), times, attributes)
    }

    fn queue(&mut self, span: SpanId, of: SpanId, sent: &SentRows) {
        let cause = if sent.reader_was_busy { "reader" } else { "none" };
        let attributes = vec![
            KeyValue::new("afterbay.wait.cause", cause),
            KeyValue::new("afterbay.sink.in_flight", int(sent.in_flight)),
            KeyValue::new("afterbay.rows", int(sent.rows)),
            KeyValue::new("afterbay.sink.sequence", int(sent.sequence)),
        ];
        let times = (sent.received_unix_ns, sent.sent_unix_ns);
        self.add(span, (of, false), "queue".to_owned(), times, attributes);
    }

    fn read(&mut self, span: SpanId, of: SpanId, sent: &SentRows) {
        let attributes = vec![KeyValue::new("afterbay.sink.sequence", int(sent.sequence))];
        let times = (sent.sent_unix_ns, sent.taken_unix_ns);
        self.add(span, (of, false), "read".to_owned(), times, attributes);
    }
}

fn attributes(ended: &EndedLeg<'_>, left_out: u64) -> Vec<KeyValue> {
    let EndedLeg { stream, leg, info, facts, record, .. } = ended;
    let by = ended_by(ended);
    let mut out = vec![
        KeyValue::new("gen_ai.operation.name", OPERATION),
        KeyValue::new("gen_ai.response.id", leg.rid.clone()),
        KeyValue::new("gen_ai.usage.output_tokens", int(info.completion_tokens.unwrap_or(info.received))),
        KeyValue::new("afterbay.stream", (*stream).to_owned()),
        KeyValue::new("afterbay.request", int(info.number.0)),
        KeyValue::new("afterbay.rows", int(info.rows)),
        KeyValue::new("afterbay.tokens.received", int(info.received)),
        KeyValue::new("afterbay.tokens.forwarded", int(info.forwarded)),
        KeyValue::new("afterbay.tokens.replaced", int(info.replaced)),
        KeyValue::new("afterbay.tokens.dropped", int(info.dropped)),
        KeyValue::new("afterbay.gaps", int(info.gaps.into())),
    ];
    if let Some(RequestFacts { engine, prompt_tokens }) = facts {
        out.push(KeyValue::new("gen_ai.provider.name", *engine));
        out.extend(prompt_tokens.map(|tokens| KeyValue::new("gen_ai.usage.input_tokens", int(tokens))));
    }
    if let Some(record) = record {
        out.extend(asked(record));
    }
    if let Some(reason) = finish_reason(leg, info) {
        let reasons = Array::String(vec![StringValue::from(reason)]);
        out.push(KeyValue::new("gen_ai.response.finish_reasons", Value::Array(reasons)));
    }
    if let Some(EndedBy { cause, plugin }) = by {
        out.push(KeyValue::new("afterbay.ended_by", cause.word()));
        out.extend(plugin.map(|plugin| KeyValue::new("afterbay.plugin", plugin)));
    }
    if left_out > 0 {
        out.push(KeyValue::new("afterbay.left_out", int(left_out)));
    }
    out
}

/// The parameters of the request, by the names of OpenTelemetry's conventions for generative AI.
fn asked(record: &RequestRecord) -> impl Iterator<Item = KeyValue> {
    let sampling = record.sampling.clone().unwrap_or_default();
    let number = |name, value: Option<f64>| Some(KeyValue::new(name, value?));
    let count = |name, value: Option<u64>| Some(KeyValue::new(name, int(value?)));
    let text = |name, value: &Option<String>| Some(KeyValue::new(name, value.clone()?));
    [
        text("gen_ai.request.model", &record.model),
        text("gen_ai.conversation.id", &record.session),
        number("gen_ai.request.temperature", sampling.temperature),
        number("gen_ai.request.top_p", sampling.top_p),
        number("gen_ai.request.frequency_penalty", sampling.frequency_penalty),
        number("gen_ai.request.presence_penalty", sampling.presence_penalty),
        count("gen_ai.request.max_tokens", sampling.max_tokens),
        sampling.seed.map(|seed| KeyValue::new("gen_ai.request.seed", seed)),
    ]
    .into_iter()
    .flatten()
}

/// The finish reason that the reader got; the sender's if nobody ended the request before. `None` if no record says it.
fn finish_reason(leg: &Leg, info: &RequestInfo) -> Option<String> {
    match leg.early.as_ref() {
        Some(action) => action.verdict.finish_reason().map(str::to_owned),
        None if info.ended_early => None,
        None => Some(info.finish.clone()).filter(|finish| !finish.is_empty()),
    }
}

fn status(ended: &EndedLeg<'_>) -> Status {
    match ended_by(ended).map(|by| by.cause) {
        Some(EndCause::Fault) => Status::error("a plugin failed, and Afterbay ended the request"),
        Some(EndCause::Watchdog) => Status::error("the request got nothing in time"),
        Some(EndCause::EngineError) => Status::error("the engine ended the request with an error"),
        Some(EndCause::Lost) => Status::error("no further row was received, and Afterbay stopped waiting"),
        _ => Status::Unset,
    }
}

fn ended_by(ended: &EndedLeg<'_>) -> Option<EndedBy> {
    let early = ended.leg.early.as_ref();
    let early = early.map(|action| (action.verdict, &*action.plugin, &*action.text));
    EndedBy::of(early, ended.info, ended.is_second)
}

fn reason(key: &'static str, text: &str) -> Option<KeyValue> {
    (!text.is_empty()).then(|| KeyValue::new(key, text.to_owned()))
}

fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn time(unix_ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(unix_ns)
}
