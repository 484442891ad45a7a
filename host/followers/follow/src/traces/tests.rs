//! Requests of small journals, exported to a collector in this process.

mod record;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use afterbay_config as config;
use afterbay_events::event::{TracesExported, TracesNotExported};
use afterbay_events::{Events, Health, Metrics, Recorder, TracesCounters};
use afterbay_journal::{
    JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, PluginAction,
    RowFinish, SinkContent, SyncPolicy, Verdict,
};
use afterbay_types::SpanLoss;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use crate::following::{Following, Telemetry};
use crate::traces::Traces;
use crate::traces::export::{Exporter, QUEUE_SPANS_MAX};
use crate::traces::spans::SPANS_MAX;

/// A time of the tests, unix nanoseconds.
const START: u64 = 1_700_000_000_000_000_000;
const MS: u64 = 1_000_000;
const ENGINE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A journal, and the traces of its requests.
struct Scene {
    dir: tempfile::TempDir,
    directory: JournalDirectory,
    traces: config::Traces,
    /// The attribute `traceparent` of each rid.
    traceparents: HashMap<String, String>,
    telemetry: Telemetry,
    following: Following<Traces>,
    exporter: Exporter,
    counters: Arc<TracesCounters>,
    recorder: Recorder,
}

impl Scene {
    fn new(endpoint: &str, sample: f64, traceparents: &[(&str, &str)]) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        // The tests' times are in the past.
        let abandon_after = Duration::from_secs(1 << 31);
        let options = JournalOptions { sync: SyncPolicy::None, abandon_after, ..JournalOptions::default() };
        let directory = JournalDirectory::open(dir.path(), options).unwrap();
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let metrics = Metrics::new(events.clone(), health.clone());
        let (counters, telemetry) = (metrics.traces(), Telemetry { events, health, metrics });
        let traces = config::Traces { endpoint: endpoint.to_owned(), sample };
        let own = |(rid, text): &(&str, &str)| ((*rid).to_owned(), (*text).to_owned());
        let traceparents = traceparents.iter().map(own).collect();
        let (following, exporter) = following(dir.path(), &traces, &telemetry);
        Scene { dir, directory, traces, traceparents, telemetry, following, exporter, counters, recorder }
    }

    fn stream(&mut self, name: &str, after: &[&str]) -> Writer {
        let (mut writer, _) = self.directory.stream(name).unwrap();
        let after: Vec<String> = after.iter().map(|name| (*name).to_owned()).collect();
        self.directory.set_after(name, &after).unwrap();
        let traceparents = self.traceparents.clone();
        writer.set_attributes(Box::new(move |rid, _| {
            let traceparent = traceparents.get(rid).cloned();
            traceparent.map(|text| ("traceparent".to_owned(), text)).into_iter().collect()
        }));
        self.look();
        Writer { writer, now: START, sequence: 0 }
    }

    /// Another process follows from now on.
    fn restart(&mut self) {
        (self.following, self.exporter) = following(self.dir.path(), &self.traces, &self.telemetry);
    }

    fn look(&mut self) {
        while self.following.look(false).unwrap() {}
    }

    /// The names of the first spans that were made since the last call.
    fn exported(&mut self) -> Vec<String> {
        self.exporter.spans.try_iter().map(|spans| spans[0].name.to_string()).collect()
    }

    /// Exports every request that has ended.
    fn finish(self) -> (Arc<TracesCounters>, Recorder) {
        let Scene { dir, directory, mut following, exporter, counters, recorder, .. } = self;
        while following.look(true).unwrap() {}
        drop(following);
        exporter.run();
        drop((directory, dir));
        (counters, recorder)
    }
}

fn following(dir: &Path, traces: &config::Traces, telemetry: &Telemetry) -> (Following<Traces>, Exporter) {
    let storage = Arc::new(afterbay_journal::storage::Disk);
    let (traces, exporter) = Traces::with(traces, &*storage, telemetry).unwrap();
    (Following::new(traces, storage, dir, telemetry), exporter)
}

/// A stream's journal, written as the stream writes it. Each step takes a millisecond.
struct Writer {
    writer: JournalWriter,
    now: u64,
    sequence: u64,
}

impl Writer {
    fn open(&mut self, rid: &str) -> JournalRequest {
        self.writer.open(rid)
    }

    /// A row of one secret id, which is not sent yet.
    fn row(&mut self, request: JournalRequest, finish: &str, actions: &[PluginAction<'static>]) -> u64 {
        self.now += MS;
        let row = SynthRow { rid: "r".into(), ids: vec![4711], prompt_tokens: 17, ..SynthRow::default() };
        let bytes = SynthBatch { rows: vec![row] }
            .encode(afterbay_wire::BatchKind::TokenId, SynthWire::Msgpack)
            .unwrap();
        let frame = self.writer.append(&bytes, self.now).unwrap().frame;
        let ends = !finish.is_empty();
        let finished = RowFinish { row: 0, reason: finish.to_owned().into(), completion_tokens: Some(3) };
        self.writer.outcome(&Outcome {
            requests: (&[request]).into(),
            tokens: (&[1]).into(),
            finished: if ends { vec![finished] } else { Vec::new() }.into(),
            actions: actions.to_vec().into(),
            ..Outcome::new(frame, self.now, Passage::Unchanged)
        });
        if ends {
            self.writer.close(request);
        }
        frame.0
    }

    /// Sends all rows of a request up to a frame, a millisecond later.
    fn send(&mut self, request: JournalRequest, through: u64) {
        self.now += MS;
        self.sequence += 1;
        let rows = [(request.number(), afterbay_journal::FrameNo(through))];
        let content = SinkContent::Rows((&rows).into());
        self.writer.sent("reader", self.sequence, content, self.now);
    }

    /// The reader has taken everything, a millisecond later.
    fn take(&mut self, through: u64) {
        self.now += MS;
        let through = afterbay_journal::FrameNo(through);
        self.writer.taken("reader", self.sequence, through, None, self.now);
        self.writer.flush().unwrap();
    }

    /// A request of two rows that is sent and taken.
    fn request(&mut self, rid: &str) {
        let request = self.open(rid);
        for finish in ["", "stop"] {
            let frame = self.row(request, finish, &[]);
            self.send(request, frame);
            self.take(frame);
        }
    }
}

fn action(plugin: &'static str, verdict: Verdict, text: &'static str, ids: &[i64]) -> PluginAction<'static> {
    let ids = ids.to_vec().into();
    PluginAction { row: 0, plugin: plugin.into(), verdict, text: text.into(), ids, forwarded: 1 }
}

/// A collector of OTLP over HTTP that answers each message with a status.
struct Collector {
    endpoint: String,
    received: Receiver<(Vec<String>, Vec<u8>)>,
    _thread: JoinHandle<()>,
}

impl Collector {
    /// The last status answers all further messages.
    fn new(statuses: &'static [u16]) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, received) = channel();
        let thread = std::thread::spawn(move || {
            let mut answered = 0;
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut reader = BufReader::new(connection.try_clone().unwrap());
                loop {
                    let mut head = Vec::new();
                    let mut line = String::new();
                    while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                        head.push(std::mem::take(&mut line).trim().to_owned());
                    }
                    let length = head.iter().find_map(|line| {
                        let (name, value) = line.split_once(": ")?;
                        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().unwrap())
                    });
                    let Some(length) = length else { break };
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let status = statuses[answered.min(statuses.len() - 1)];
                    answered += 1;
                    write!(connection, "HTTP/1.1 {status} status\r\ncontent-length: 0\r\n\r\n").unwrap();
                    if sender.send((head, body)).is_err() {
                        return;
                    }
                }
            }
        });
        Collector { endpoint, received, _thread: thread }
    }

    /// The spans that arrived, by trace and then in the order of arrival.
    fn spans(&self) -> Vec<Span> {
        let messages = self.received.try_iter();
        let decoded = messages.map(|(head, body)| {
            assert!(head[0].starts_with("POST /v1/traces "), "{head:?}");
            ExportTraceServiceRequest::decode(&*body).unwrap()
        });
        let resources = decoded.flat_map(|message| message.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }
}

/// An attribute of a span as text.
fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.clone().unwrap().value.unwrap() {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

/// Each span as `name from..to` in milliseconds since `START`, in the order of the spans.
fn shape(spans: &[Span]) -> Vec<String> {
    let ms = |unix_ns: u64| (unix_ns - START) / MS;
    let one = |span: &Span| {
        format!("{} {}..{}", span.name, ms(span.start_time_unix_nano), ms(span.end_time_unix_nano))
    };
    spans.iter().map(one).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[test]
fn a_request_is_a_trace_with_a_span_for_each_stage_and_the_cause_of_every_wait() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    let request = writer.open("chatcmpl-1");
    let first = writer.row(request, "", &[]);
    writer.send(request, first);
    // The reader has not taken the first frame: two rows wait and are joined.
    writer.row(request, "", &[action("mask", Verdict::Replace, "text: secret", &[42])]);
    let third = writer.row(request, "", &[]);
    writer.take(first);
    writer.send(request, third);
    // A plugin holds a row, and releases it with the last one.
    writer.row(request, "", &[action("guard", Verdict::Hold, "until the word ends", &[])]);
    let release = action("guard", Verdict::Release, "", &[1]);
    let last = writer.row(request, "stop", &[release]);
    writer.send(request, last);
    writer.take(last);
    let (counters, _) = scene.finish();

    let spans = collector.spans();
    assert_eq!(
        shape(&spans),
        [
            "text_completion decode 1..10",
            "sink reader 1..10",
            "queue 1..2",
            "read 2..5",
            "queue 3..6",
            "read 6..10",
            "queue 8..9",
            "read 9..10",
            "plugin mask 3..3",
            "plugin guard 7..8",
            "hold 7..8",
        ]
    );
    let root = &spans[0];
    assert!(root.parent_span_id.is_empty());
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id));
    for (key, value) in [
        ("gen_ai.operation.name", "text_completion"),
        ("gen_ai.response.id", "chatcmpl-1"),
        ("gen_ai.provider.name", "sglang"),
        ("gen_ai.usage.input_tokens", "17"),
        ("gen_ai.usage.output_tokens", "3"),
        ("afterbay.stream", "decode"),
        ("afterbay.ended_by", "model"),
        ("afterbay.rows", "5"),
    ] {
        assert_eq!(attribute(root, key).as_deref(), Some(value), "{key}");
    }
    assert!(attribute(root, "gen_ai.response.finish_reasons").unwrap().contains("\"stop\""));
    let parent = |name: &str| &named(&spans, name)[0].parent_span_id;
    assert_eq!(*parent("plugin guard"), root.span_id);
    assert_eq!(*parent("hold"), named(&spans, "plugin guard")[0].span_id);
    assert_eq!(*parent("queue"), named(&spans, "sink reader")[0].span_id);
    let causes: Vec<_> = named(&spans, "queue")
        .iter()
        .map(|span| {
            (attribute(span, "afterbay.wait.cause").unwrap(), attribute(span, "afterbay.rows").unwrap())
        })
        .collect();
    let of = |cause: &str, rows: &str| (cause.to_owned(), rows.to_owned());
    assert_eq!(causes, [of("none", "1"), of("reader", "2"), of("reader", "1")]);
    let hold = named(&spans, "hold")[0];
    assert_eq!(attribute(hold, "afterbay.reason").as_deref(), Some("until the word ends"));
    assert_eq!(attribute(hold, "afterbay.wait.cause").as_deref(), Some("plugin"));
    let mask = named(&spans, "plugin mask")[0];
    assert_eq!(mask.events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["replace"]);
    assert_eq!((counters.requests_exported.get(), counters.spans_exported.get()), (1, spans.len() as u64));
}

#[test]
fn no_span_has_ids_or_text_of_the_request() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    let request = writer.open("r");
    for verdict in [Verdict::Replace, Verdict::Annotate, Verdict::Route, Verdict::Fault] {
        writer.row(request, "", &[action("p", verdict, "secret", &[4711])]);
    }
    writer.row(request, "", &[action("p", Verdict::Finish, "secret", &[])]);
    let last = writer.row(request, "stop", &[action("p", Verdict::Abort, "secret", &[])]);
    writer.send(request, last);
    writer.take(last);
    scene.finish();
    let spans = collector.spans();
    let shown = format!("{spans:?}");
    assert!(shown.contains("text_completion decode") && shown.contains("replace"));
    assert!(!shown.contains("secret") && !shown.contains("4711"), "{shown}");
}

#[test]
fn a_trace_continues_the_engines_and_a_bad_traceparent_is_counted() {
    let collector = Collector::new(&[200]);
    let traceparents =
        [("with", ENGINE), ("bad", "00-xyz-1-01"), ("unsampled", &*ENGINE.replace("-01", "-00"))];
    // Only what an engine's trace selects.
    let mut scene = Scene::new(&collector.endpoint, 0.0, &traceparents);
    let mut writer = scene.stream("decode", &[]);
    for rid in ["with", "bad", "unsampled", "without"] {
        writer.request(rid);
    }
    let (counters, _) = scene.finish();
    let spans = collector.spans();
    let roots = named(&spans, "text_completion decode");
    assert_eq!(roots.len(), 1, "{:?}", shape(&spans));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&roots[0].trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&roots[0].parent_span_id), "b7ad6b7169203331");
    assert_eq!(attribute(roots[0], "gen_ai.response.id").as_deref(), Some("with"));
    assert_eq!(counters.traceparents_refused.get(), 1);
}

#[test]
fn the_second_leg_of_a_request_is_below_the_first() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let (mut first, mut second) = (scene.stream("decode", &[]), scene.stream("text", &["decode"]));
    // The same rid twice: each second leg belongs to the request that began last before it.
    for _ in 0..2 {
        first.request("r");
        second.now = first.now;
        second.request("r");
        first.now = second.now;
        // The first leg is exported before the second one.
        scene.look();
    }
    scene.finish();
    let spans = collector.spans();
    let (firsts, seconds) = (named(&spans, "text_completion decode"), named(&spans, "text_completion text"));
    assert_eq!((firsts.len(), seconds.len()), (2, 2), "{:?}", shape(&spans));
    assert_ne!(firsts[0].trace_id, firsts[1].trace_id);
    for first in firsts {
        let below: Vec<_> = seconds.iter().filter(|span| span.parent_span_id == first.span_id).collect();
        let [second] = below[..] else { panic!("{:?}", shape(&spans)) };
        assert_eq!(second.trace_id, first.trace_id);
        assert!(second.start_time_unix_nano >= first.start_time_unix_nano);
    }
}

#[test]
fn a_share_of_the_requests_is_traced_and_every_instance_chooses_the_same() {
    let chosen = || {
        let collector = Collector::new(&[200]);
        let mut scene = Scene::new(&collector.endpoint, 0.25, &[]);
        let mut writer = scene.stream("decode", &[]);
        (0..100).for_each(|number| writer.request(&format!("chatcmpl-{number}")));
        scene.finish();
        let spans = collector.spans();
        let roots = named(&spans, "text_completion decode");
        roots.iter().map(|root| attribute(root, "gen_ai.response.id").unwrap()).collect::<Vec<_>>()
    };
    let rids = chosen();
    assert!((10..40).contains(&rids.len()), "{rids:?}");
    assert_eq!(chosen(), rids);
}

#[test]
fn a_request_is_exported_once_at_its_end_and_a_live_one_is_not() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    // A process before this one has exported what ended before.
    writer.request("before");
    scene.restart();
    let live = writer.open("live");
    writer.row(live, "", &[]);
    writer.writer.flush().unwrap();
    scene.look();
    writer.request("ended");
    // Its last row was not taken yet.
    let waits = writer.open("waits");
    let frame = writer.row(waits, "stop", &[]);
    writer.send(waits, frame);
    writer.writer.flush().unwrap();
    let mut exported = Vec::new();
    for _ in 0..3 {
        scene.look();
        exported.extend(scene.exported());
    }
    assert_eq!(exported.len(), 1, "{exported:?}");
    writer.take(frame);
    for _ in 0..3 {
        scene.look();
        exported.extend(scene.exported());
    }
    assert_eq!(exported.len(), 2, "{exported:?}");
    scene.following.look(true).unwrap();
    exported.extend(scene.exported());
    assert_eq!(exported.len(), 2, "the live request is not exported");
}

#[test]
fn a_stream_that_is_found_later_is_read_from_its_first_segment() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    scene.look();
    let (writer, _) = scene.directory.stream("decode").unwrap();
    let mut writer = Writer { writer, now: START, sequence: 0 };
    writer.request("in the first segment");
    writer.writer.hand_over().unwrap();
    let (next, _) = scene.directory.stream("decode").unwrap();
    writer.writer = next;
    writer.request("in the second segment");
    scene.finish();
    assert_eq!(named(&collector.spans(), "text_completion decode").len(), 2);
}

#[test]
fn requests_live_across_segments_are_traced_with_the_rows_of_all() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    let request = writer.open("r");
    for _ in 0..3 {
        let frame = writer.row(request, "", &[]);
        writer.send(request, frame);
        writer.take(frame);
        scene.look();
        // A later process begins with a new segment.
        writer.writer.hand_over().unwrap();
        let (next, recovered) = scene.directory.stream("decode").unwrap();
        assert_eq!(recovered.live.len(), 1);
        writer.writer = next;
    }
    let last = writer.row(request, "length", &[]);
    writer.send(request, last);
    writer.take(last);
    scene.finish();
    let spans = collector.spans();
    assert_eq!((named(&spans, "queue").len(), named(&spans, "read").len()), (4, 4), "{:?}", shape(&spans));
    assert_eq!(attribute(&spans[0], "afterbay.rows").as_deref(), Some("4"));
}

#[test]
fn a_plugins_end_is_the_end_of_the_trace_and_names_the_plugin() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    let request = writer.open("r");
    let frame = writer.row(request, "", &[action("stop-loop", Verdict::Length, "", &[])]);
    writer.send(request, frame);
    let swallowed = action("stop-loop", Verdict::Drop, afterbay_journal::SWALLOWED, &[]);
    writer.row(request, "stop", &[swallowed]);
    writer.take(frame);
    let faulted = writer.open("f");
    let frame = writer.row(
        faulted,
        "",
        &[action("guard", Verdict::Error, "500 afterbay: plugin \"guard\" failed", &[])],
    );
    writer.send(faulted, frame);
    writer.row(faulted, "abort", &[action("guard", Verdict::Drop, afterbay_journal::SWALLOWED, &[])]);
    writer.take(frame);
    scene.finish();
    let spans = collector.spans();
    let roots = named(&spans, "text_completion decode");
    let facts = |root: &Span| {
        let of = |key: &str| attribute(root, key).unwrap_or_default();
        (of("afterbay.ended_by"), of("afterbay.plugin"), of("gen_ai.response.finish_reasons"))
    };
    let (by, plugin, reasons) = facts(roots[0]);
    assert_eq!((&*by, &*plugin), ("plugin", "stop-loop"));
    assert!(reasons.contains("\"length\""), "{reasons}");
    let (by, plugin, _) = facts(roots[1]);
    assert_eq!((&*by, &*plugin), ("fault", "guard"));
    assert_eq!(roots[1].status.as_ref().unwrap().code, 2, "an error");
}

#[test]
fn a_collector_that_is_away_costs_spans_which_are_counted_and_reported_once() {
    // A port that nobody listens on.
    let endpoint = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let mut scene = Scene::new(&endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    (0..80).for_each(|number| writer.request(&number.to_string()));
    let (counters, recorder) = scene.finish();
    assert_eq!(counters.spans_exported.get(), 0);
    assert_eq!(counters.spans_dropped.get(SpanLoss::NotTaken), 80 * 6);
    let reported = recorder.of::<TracesNotExported>();
    assert_eq!(reported.len(), 1);
    assert!(reported[0].endpoint.ends_with("/v1/traces"));
}

#[test]
fn a_collector_that_refuses_and_then_accepts_is_reported_as_both() {
    let collector = Collector::new(&[400, 200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    (0..200).for_each(|number| writer.request(&number.to_string()));
    let (counters, recorder) = scene.finish();
    assert!(counters.spans_dropped.get(SpanLoss::NotTaken) >= 512);
    assert_eq!(counters.spans_dropped.get(SpanLoss::NotTaken) + counters.spans_exported.get(), 200 * 6);
    assert_eq!((recorder.of::<TracesNotExported>().len(), recorder.of::<TracesExported>().len()), (1, 1));
}

#[test]
fn spans_past_the_queue_are_dropped_and_counted_and_nothing_waits() {
    let mut scene = Scene::new("http://127.0.0.1:1", 1.0, &[]);
    scene.stream("decode", &[]).request("r");
    while scene.following.look(true).unwrap() {}
    let made: Vec<_> = scene.exporter.spans.try_iter().flatten().collect();
    let queue = scene.following.consumer().queue.as_ref().unwrap();
    // Nobody takes from the queue, in which these have their room.
    let requests = QUEUE_SPANS_MAX / made.len() - 1;
    (0..requests).for_each(|_| queue.push(made.clone()));
    assert_eq!(scene.counters.spans_dropped.get(SpanLoss::QueueFull), 0);
    (0..10).for_each(|_| queue.push(made.clone()));
    assert_eq!(scene.counters.spans_dropped.get(SpanLoss::QueueFull), 10 * made.len() as u64);
}

#[test]
fn the_spans_of_one_request_are_bounded() {
    let collector = Collector::new(&[200]);
    let mut scene = Scene::new(&collector.endpoint, 1.0, &[]);
    let mut writer = scene.stream("decode", &[]);
    let request = writer.open("r");
    for number in 0..500 {
        let plugin: &'static str = ["a", "b", "c", "d", "e", "f", "g", "h"][number % 8];
        writer.row(request, "", &[action(plugin, Verdict::Hold, "", &[])]);
        let frame = writer.row(request, "", &[action(plugin, Verdict::Release, "", &[1])]);
        writer.send(request, frame);
        writer.take(frame);
    }
    let last = writer.row(request, "stop", &[]);
    writer.send(request, last);
    writer.take(last);
    scene.finish();
    let spans = collector.spans();
    assert_eq!(spans.len(), SPANS_MAX);
    assert!(attribute(&spans[0], "afterbay.left_out").unwrap().parse::<u64>().unwrap() > 800);
}
