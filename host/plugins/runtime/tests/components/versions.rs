//! The contract of a version stays: components that were built when the version was new, `tests/fixtures/plugins/VERSION/NAME.wasm`,
//! answer as `NAME.answers` beside each says.

use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use afterbay_runtime::signals::{Load, Queue, Sink, SinkState, Snapshot};
use afterbay_runtime::{
    Action, Answer, COLUMN_NAMES, CONTRACT, CallError, CallSet, Columns, Component, EncodeError, Fault,
    FinishKind, FinishReason, Grants, IdShape, Labels, Limits, Meter, MeterError, Opened, Plugin, Response,
    SentCall, Terms, TokenId, Tokens,
};

use crate::store::MemoryStore;
use crate::{granted, host, limits, repository};

/// A fixture, with the settings under which it plays the scene. The last settings are wrong.
type Fixture = (&'static str, &'static [&'static str]);

const FIXTURES: &[Fixture] = &[
    ("stop-on-loop", &[r#"{"window": 8, "repeats": 4}"#, r#"{"repeats": 1}"#]),
    ("stop-on-pattern", &[r#"{"pattern": [7, 8]}"#, "{}"]),
    (
        "judges",
        &[
            r#"{"action": "finish-with"}"#,
            r#"{"action": "length"}"#,
            r#"{"action": "abort"}"#,
            r#"{"action": "finish-as"}"#,
        ],
    ),
    ("effects", &["{}", r#"{"a": 1}"#]),
];

#[test]
fn the_fixtures_of_the_contract_answer_as_when_they_were_built() {
    FIXTURES.iter().for_each(|(name, settings)| check(name, settings));
}

#[test]
fn every_fixture_is_of_the_contract_and_is_played() {
    let root = repository().join("tests/fixtures/plugins");
    let versions: Vec<String> = names_in(&root).into_iter().filter(|name| name != "README.md").collect();
    assert_eq!(versions, [CONTRACT]);
    let mut played: Vec<String> = FIXTURES.iter().map(|(name, _)| format!("{name}.wasm")).collect();
    played.sort();
    let mut there: Vec<String> =
        names_in(&root.join(CONTRACT)).into_iter().filter(|name| name.ends_with(".wasm")).collect();
    there.sort();
    assert_eq!(there, played);
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Compares the answers of a fixture with its golden file.
fn check(name: &str, settings: &[&str]) {
    let dir = repository().join("tests/fixtures/plugins").join(CONTRACT);
    let bytes = std::fs::read(dir.join(format!("{name}.wasm"))).unwrap();
    let recorder = Arc::new(Recorder::default());
    let component = host().load(name, &bytes, everything(recorder.clone())).unwrap();
    let mut answers = description(&component);
    let (wrong, right) = settings.split_last().unwrap();
    for settings in right {
        _ = writeln!(answers, "\nsettings {settings}");
        scene(&component, settings, &recorder, &mut answers);
    }
    let refused = component.instantiate(wrong).unwrap_err();
    _ = writeln!(answers, "\nsettings {wrong}\n{refused}");
    compare(&dir.join(format!("{name}.answers")), &answers);
}

fn compare(golden: &Path, answers: &str) {
    if std::env::var_os("AFTERBAY_BLESS").is_some() {
        std::fs::write(golden, answers).unwrap();
    }
    let expected = std::fs::read_to_string(golden).unwrap_or_default();
    assert_eq!(answers, expected, "{} has other answers", golden.display());
}

/// Every grant, with a host side that always does the same.
fn everything(recorder: Arc<Recorder>) -> Terms {
    let grants = Grants {
        metrics: Some(recorder),
        health: true,
        store: Some(Arc::new(MemoryStore::default())),
        call: true,
        signals: true,
        request: true,
        tokenizer: Some(Arc::new(Letters)),
        ..Grants::default()
    };
    Terms {
        limits: Limits { start_deadline: std::time::Duration::from_secs(60), ..limits() },
        ..granted(grants)
    }
}

fn description(component: &Component) -> String {
    let description = component.description();
    let mut text = format!("{} {}\n", description.name, description.version);
    let schema = description.settings_schema.as_ref().map(ToString::to_string);
    _ = writeln!(text, "schema {}", schema.unwrap_or_default());
    let columns = COLUMN_NAMES.iter().filter(|(column, _)| description.columns.contains(*column));
    let calls = [(CallSet::PRESSURE, "pressure"), (CallSet::CHANGED, "changed"), (CallSet::STATE, "state")];
    let calls = calls.into_iter().filter(|(call, _)| description.wants.contains(*call));
    let names = columns.map(|(_, name)| *name).chain(calls.map(|(_, name)| name)).collect::<Vec<_>>();
    let shape = if description.writes == IdShape::Cumulative { "cumulative" } else { "delta" };
    _ = writeln!(text, "wants {}, writes {shape}", names.join(" "));
    text
}

/// Plays the same calls to each fixture and writes down all that it answers.
fn scene(component: &Component, settings: &str, recorder: &Recorder, out: &mut String) {
    let mut plugin = match component.instantiate(settings) {
        Ok(plugin) => plugin,
        Err(error) => {
            _ = writeln!(out, "{error}");
            return;
        }
    };
    plugin.set_effects(true);
    plugin.set_signals(signals(7));
    plugin.set_attributes(1, Some(r#"{"tenant": "a"}"#.into()));
    let opened = plugin.open(&[opened(1, "a-TO-gold"), opened(2, "b-skip"), opened(3, "c-late")]);
    note(out, "open", opened, &mut plugin, recorder);
    for step in STEPS {
        let verdicts = plugin.process(&step.columns());
        let verdicts = verdicts.map(|verdicts| {
            let shown = verdicts.iter().map(|verdict| format!("{} {}", verdict.row, action(&verdict.action)));
            shown.collect::<Vec<_>>().join("; ")
        });
        note(out, "process", verdicts, &mut plugin, recorder);
    }
    if plugin.has_calls() {
        answer_calls(&mut plugin, recorder, out);
    }
    plugin.set_attributes(1, Some(r#"{"tenant": "b"}"#.into()));
    let changed = plugin.changed(&[1]);
    note(out, "changed", changed, &mut plugin, recorder);
    plugin.set_signals(signals(8));
    let pressed = plugin.pressure();
    note(out, "pressure", pressed, &mut plugin, recorder);
    let state = plugin.export_state();
    if let (Ok(Some(state)), Ok(mut next)) = (&state, component.instantiate(settings)) {
        let imported = next.import_state(&component.description().version, state);
        note(out, "import-state", imported, &mut next, recorder);
        let resumed = Opened { received_tokens: 5, resumed: true, ..self::opened(1, "a-TO-gold") };
        let opened = next.open(&[resumed]);
        note(out, "open again", opened, &mut next, recorder);
    }
    note(out, "export-state", state, &mut plugin, recorder);
    let closed = plugin.close(&[1, 2, 3]);
    note(out, "close", closed, &mut plugin, recorder);
}

/// Answers the plugin's calls: the first by a response, the second by another status, the others by an error.
fn answer_calls(plugin: &mut Plugin, recorder: &Recorder, out: &mut String) {
    let calls = plugin.drain_calls();
    for SentCall { call, request, endpoint, body } in &calls {
        let body = body.as_ref().map(|body| String::from_utf8_lossy(body));
        _ = writeln!(out, "call {call} about {request} to {endpoint}: {body:?}");
    }
    let answers = (0..).zip(calls).map(|(index, sent)| Answer {
        call: sent.call,
        request: sent.request,
        outcome: match index {
            0 => Ok(Response { status: 200, body: b"{}" }),
            1 => Ok(Response { status: 403, body: b"no" }),
            _ => Err(CallError::Failed("as requested")),
        },
    });
    let verdicts = plugin.answered(&answers.collect::<Vec<_>>());
    note(out, "answered", verdicts, plugin, recorder);
    _ = writeln!(out, "  not ready {:?}", plugin.not_ready());
}

/// Writes down a call's answer, the metrics that it set and the lines that it logged.
fn note(
    out: &mut String,
    call: &str,
    answer: Result<impl Debug, Fault>,
    plugin: &mut Plugin,
    recorder: &Recorder,
) {
    match answer {
        Ok(answer) => _ = writeln!(out, "{call}: {answer:?}"),
        // The words are the host's, and may change.
        Err(fault) => _ = writeln!(out, "{call}: fault, {}", fault.cause.kind()),
    }
    for metric in recorder.0.lock().unwrap().drain(..) {
        _ = writeln!(out, "  metric {metric}");
    }
    for line in plugin.drain_log() {
        _ = writeln!(out, "  {:?} {:?} {}", line.level, line.request, line.message);
    }
}

struct Step {
    ids: [&'static [TokenId]; 3],
    finished: [FinishKind; 3],
    texts: [&'static str; 3],
    waiting: [u32; 3],
}

use FinishKind::{Abort, Length, Running, Stop};

/// The rows of the requests 1, 2 and 3. The ids make the guest `holds` act, and two requests loop.
const STEPS: [Step; 4] = [
    Step { ids: [&[1, 2], &[7, 8], &[101]], finished: [Running; 3], texts: ["a", "ö", ""], waiting: [0; 3] },
    Step {
        ids: [&[103], &[107, 5], &[102]],
        finished: [Running; 3],
        texts: ["b", "c", "d"],
        waiting: [0, 0, 1],
    },
    Step {
        ids: [&[40, 41, 40, 41, 40, 41, 40, 41], &[104], &[105]],
        finished: [Running, Stop, Running],
        texts: ["e", "f", "g"],
        waiting: [1, 1, 0],
    },
    Step {
        ids: [&[5, 5, 5, 5, 5, 5, 5, 5], &[], &[i64::MAX, -1, 0]],
        finished: [Length, FinishKind::Other, Abort],
        texts: ["", "", "\u{1f600}"],
        waiting: [0; 3],
    },
];

impl Step {
    fn columns(&self) -> Columns<'static> {
        let ids: Vec<TokenId> = self.ids.concat();
        let mut end = 0;
        let ends = self.ids.map(|ids| {
            end += ids.len() as u32;
            end
        });
        Columns {
            time_ms: 1_700_000_000_000,
            requests: &[1, 2, 3],
            output_ids: ids.leak(),
            output_ends: Vec::from(ends).leak(),
            completion_tokens: &[10, 0, u64::MAX],
            finished: Vec::from(self.finished).leak(),
            texts: Some(Vec::from(self.texts).leak()),
            waiting: Some(Vec::from(self.waiting).leak()),
            cached_tokens: Some(&[16, 0, 1]),
            reasoning_tokens: Some(&[3, 0, u64::MAX]),
            drafted_tokens: Some(&[9, 0, 4]),
            accepted_tokens: Some(&[5, 0, 4]),
            weight_versions: Some(&["default", "", "w2"]),
            ..Columns::default()
        }
    }
}

fn opened(request: u64, rid: &'static str) -> Opened<'static> {
    Opened {
        request,
        rid,
        front_end: "ipc:///worker",
        sink: "reader",
        arrived_ms: 0,
        prompt_tokens: 17,
        received_tokens: 0,
        resumed: false,
    }
}

fn signals(running: u64) -> Snapshot {
    let queue = Queue { frames: 4, rows: 900, bytes: 7, oldest_age_ms: 5 };
    let sink = Sink {
        name: "reader".into(),
        state: SinkState::Behind,
        backlog: queue,
        backlog_tokens: 1000,
        lag_frames: Some(2),
    };
    let scheduler =
        Load { age_ms: 1, stale: false, running: Some(running), waiting: None, kv_cache_usage: None };
    Snapshot { ingress: queue, sinks: vec![sink], live_requests: 3, scheduler: Some(scheduler) }
}

/// `a`, `b` and `c`, and one special token.
struct Letters;

impl Tokens for Letters {
    fn size(&self) -> u32 {
        4
    }

    fn bytes(&self, id: TokenId) -> &[u8] {
        match id {
            0 => b"a",
            1 => b"b",
            2 => b"c",
            _ => b"",
        }
    }

    fn special(&self) -> &[TokenId] {
        &[3]
    }

    fn end_of_text(&self) -> &[TokenId] {
        &[3]
    }

    fn encode(&self, text: &str) -> Result<Vec<TokenId>, EncodeError> {
        match text.len() {
            0..4 => Ok(text.bytes().map(|letter| TokenId::from(letter - b'a')).collect()),
            _ => Err(EncodeError::TooLong(3)),
        }
    }
}

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn note(&self, name: &str, labels: Labels<'_>, value: String) -> Result<(), MeterError> {
        let labels = labels.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>();
        self.0.lock().unwrap().push(format!("{name}{labels} {value}"));
        Ok(())
    }
}

impl Meter for Recorder {
    fn add(&self, name: &str, labels: Labels<'_>, delta: u64) -> Result<(), MeterError> {
        self.note(name, labels, format!("+ {delta}"))
    }

    fn set(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        self.note(name, labels, format!("= {value}"))
    }

    fn observe(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        self.note(name, labels, format!("saw {value}"))
    }

    fn remove(&self, name: &str, labels: Labels<'_>) {
        _ = self.note(name, labels, "removed".to_owned());
    }
}

/// A verdict in words.
fn action(action: &Action) -> String {
    let tokens = action.replacement().map(|new| format!(" {:?} {:?}", new.ids, new.text)).unwrap_or_default();
    let what = match action {
        Action::Replace(_) => "replace".to_owned(),
        Action::Drop(reason) => format!("drop {reason:?}"),
        Action::Finish(ending) => match &ending.reason {
            FinishReason::Stop(matched) => format!("finish stop {matched:?}"),
            FinishReason::Length => "finish length".to_owned(),
            FinishReason::Abort(message) => format!("finish abort {message:?}"),
            FinishReason::Error(failure) => format!("finish error {} {:?}", failure.status, failure.message),
        },
        Action::Annotate(note) => format!("annotate {note:?}"),
        Action::Route(sink) => format!("route {sink:?}"),
        Action::SkipText => "skip-text".to_owned(),
        Action::Hold(millis) => format!("hold {millis}"),
        Action::Release => "release".to_owned(),
        Action::ReleaseAs(_) => "release-as".to_owned(),
        Action::ReleaseAndHold(millis) => format!("release-and-hold {millis}"),
    };
    what + &tokens
}
