//! grammar-check in a stream: it checks outputs against a grammar over the model's tokens.

use afterbay_tests::admin::JSON;
use afterbay_tests::commands::{journal, notes, run_afterbay, verify};
use afterbay_tests::frames::{ReaderRow, SynthRequest, WIRES, batch, rows};
use afterbay_tests::{Afterbay, Config, Input, Reader, Sandbox, Sender, repository};
use afterbay_wire::synth::SynthRow;
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::json;

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": false}"#;
const GOOD: &str = "{\"name\": \"a world\", \"age\": 42}";
const BAD: &str = "{\"name\": [1, 2, 3], \"age\": 42}";

fn model() -> String {
    repository().join("host/path/text/tests/fixtures/byte-level/tokenizer.json").display().to_string()
}

fn ids(text: &str) -> Vec<i64> {
    afterbay_text::Encoder::load(model().as_ref()).unwrap().encode(text).unwrap()
}

/// Adds the plugin with the schema and with these other settings.
fn checked(config: Config, more: &str) -> Config {
    let schema = SCHEMA.replace('\n', "");
    let settings = format!("grammar = {{ json_schema = '{schema}' }}, {more}");
    with_settings(config, &settings)
}

fn with_settings(config: Config, settings: &str) -> Config {
    with_limits(config, settings, "deadline = \"10s\"")
}

fn with_limits(config: Config, settings: &str, limits: &str) -> Config {
    let config = config.sink(&format!("tokenizer = {:?}", model()));
    let config = config.plugin_with("grammar", "builtin:grammar-check", settings, limits);
    config.granted(r#"["log", "metrics", "tokenizer", "request"]"#)
}

/// A request's rows with one token each. The last has the finish reason `length`.
fn one_by_one(rid: &str, text: &str) -> Vec<SynthRow> {
    let (mut request, ids) = (SynthRequest::new(rid), ids(text));
    let (last, before) = ids.split_last().unwrap();
    let mut rows: Vec<SynthRow> = before.iter().map(|id| request.row(&[*id])).collect();
    rows.push(request.last(&[*last]));
    rows
}

#[test]
fn an_output_that_breaks_its_schema_ends_with_a_stop_and_a_valid_output_is_unchanged() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = sandbox.config().abort_by_push(&sandbox);
        let afterbay = Afterbay::run(&sandbox, &checked(config, "on_violation = \"finish\""));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut input = Input::connect(&sandbox.abort_side());
        sender.send(&batch(wire, vec![SynthRequest::new("warm").row(&ids("{"))]));
        reader.frame();
        afterbay.abort_connected("warm", &[]);
        assert_eq!(input.abort(), "warm");

        for row in one_by_one("good", GOOD) {
            let frame = batch(wire, vec![row]);
            sender.send(&frame);
            assert_eq!(reader.frame(), frame, "{wire:?}");
        }
        let broken = one_by_one("bad", BAD);
        broken.iter().for_each(|row| sender.send(&batch(wire, vec![row.clone()])));
        // The rows end before the forbidden token.
        let mut read: Vec<ReaderRow> = Vec::new();
        while read.last().is_none_or(|row| row.finish.is_none()) {
            read.extend(rows(&reader.frame()));
        }
        let received: Vec<i64> = read.iter().flat_map(|row| row.ids.clone()).collect();
        let at = ids(&BAD[..=BAD.find('[').unwrap()]).len();
        assert_eq!(received, ids(BAD)[..at - 1], "{wire:?}");
        let last = read.last().unwrap();
        let finish = last.finish.clone().unwrap();
        assert_eq!(last.completion_tokens, at as u64 - 1, "the count is that of the ids");
        assert!(finish.starts_with(&format!("stop:token {at} ")), "{finish}");
        assert!(finish.ends_with("not allowed by the grammar"), "{finish}");
        assert_eq!(input.abort(), "bad", "the scheduler gets the abort");
        let swallowed = (ids(BAD).len() - at) as u64;
        let metrics = afterbay.until_metrics("later rows are swallowed", |metrics| {
            metrics.stream("tokens_swallowed_total") == swallowed
        });
        assert_eq!(metrics.plugin("grammar", "own_violations_total"), 1);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        let line = afterbay.event("PluginLog");
        assert_eq!((&line["rid"], &line["plugin"]), (&"bad".into(), &"grammar".into()), "{line}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = journal(&sandbox, &["show", "bad"]).success();
        assert!(shown.contains("grammar: replaced by no ids; grammar: finished, "), "{shown}");
    }
}

#[test]
fn a_reported_violation_is_a_note_and_changes_no_byte() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let rules = "rules = [{ rid_prefix = \"free-\" }], whitespace_max = 8";
    let afterbay = Afterbay::run(&sandbox, &checked(sandbox.config(), rules));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let cut = &GOOD[..GOOD.len() - 1];
    let spaces = format!("{{{}", " ".repeat(30));
    for (rid, text) in [("bad", BAD), ("cut", cut), ("spaces", &spaces), ("free-1", BAD), ("good", GOOD)] {
        for row in one_by_one(rid, text) {
            let frame = batch(Msgpack, vec![row]);
            sender.send(&frame);
            assert_eq!(reader.frame(), frame, "{rid}");
        }
    }
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin("grammar", "own_violations_total"), 2);
    assert_eq!(metrics.plugin("grammar", "own_early_ends_total"), 1);
    assert_eq!(metrics.stream("frames_rewritten_total"), 0);
    assert_eq!(afterbay.stop(), 0);
    let only = |rid: &str| -> String {
        let [note] = notes(&sandbox, rid).try_into().unwrap();
        note
    };
    assert!(only("bad").ends_with("not allowed by the grammar"), "{}", only("bad"));
    assert!(only("cut").ends_with("before the grammar is complete"), "{}", only("cut"));
    assert!(only("spaces").ends_with("over 8 bytes of whitespace in a row"), "{}", only("spaces"));
    assert_eq!(["free-1", "good"].map(|rid| notes(&sandbox, rid).len()), [0, 0]);
}

#[test]
fn a_request_with_its_own_grammar_is_checked_against_that_grammar() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let settings = "grammar_attribute = \"grammar\", on_violation = \"finish\"";
    let afterbay = Afterbay::run(&sandbox, &with_settings(sandbox.config(), settings));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for (rid, grammar) in [
        ("bad", json!({"json_schema": SCHEMA})),
        ("good", json!({"json_schema": SCHEMA})),
        ("none", json!({"regex": "("})),
    ] {
        let call = format!("PUT /v1/requests/{rid}/attributes");
        let body = json!({"grammar": grammar}).to_string();
        assert_eq!(afterbay.ask(&call, &[JSON], &body).status, 200);
    }
    // A row with the whole text is cut before the forbidden token.
    let mut rows_of = |rid: &str, text: &str| {
        sender.send(&batch(Msgpack, vec![SynthRequest::new(rid).last(&ids(text))]));
        rows(&reader.frame())
    };
    let at = ids(&BAD[..=BAD.find('[').unwrap()]).len();
    assert_eq!(rows_of("bad", BAD)[0].ids, ids(BAD)[..at - 1]);
    assert_eq!(rows_of("good", GOOD)[0].ids, ids(GOOD));
    assert_eq!(rows_of("none", BAD)[0].ids, ids(BAD), "it goes unchecked");
    assert_eq!(rows_of("other", BAD)[0].ids, ids(BAD));
    let metrics = afterbay.metrics();
    assert_eq!(metrics.plugin("grammar", "own_violations_total"), 1);
    assert_eq!(metrics.plugin("grammar", "own_not_checked_total"), 1);
    assert_eq!(afterbay.stop(), 0);
    let [note] = notes(&sandbox, "none").try_into().unwrap();
    assert!(note.starts_with("not checked: its grammar cannot be compiled: "), "{note}");
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_valid_tool_call_arrives_at_once_and_no_token_of_an_invalid_or_cut_call_reaches_the_reader() {
    const TOOLS: &str = r#"[{"type": "function", "function": {"name": "read", "parameters": {"type": "object",
        "properties": {"age": {"type": "integer"}}, "required": ["age"]}}}]"#;
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let limits = "deadline = \"10s\", hold = \"60s\"";
    let config =
        with_limits(sandbox.config().sink("tool_calls = \"joined\""), "tool_calls = \"hermes\"", limits);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let body = format!("{{\"tools\": {TOOLS}}}");
    let free = "the world: ";
    let call = |arguments: &str| {
        format!("<tool_call>{{\"name\": \"read\", \"arguments\": {arguments}}}</tool_call>")
    };
    for (rid, call, why) in [
        ("valid", call("{\"age\": 42}"), None),
        ("invalid", call("{\"age\": \"x\"}"), Some("tool call: read: /age \"x\" is not integer")),
        (
            "cut",
            call("{\"age\": 42}").replace("}</tool_call>", ""),
            Some("tool call: the request ends in it"),
        ),
        ("free", call("{}"), None),
    ] {
        if rid != "free" {
            let put = format!("PUT /v1/requests/{rid}/attributes");
            assert_eq!(afterbay.ask(&put, &[JSON], &body).status, 200);
        }
        one_by_one(rid, &format!("{free}{call}"))
            .into_iter()
            .for_each(|row| sender.send(&batch(Msgpack, vec![row])));
        let mut read: Vec<ReaderRow> = Vec::new();
        while read.last().is_none_or(|row| row.finish.is_none()) {
            read.extend(rows(&reader.frame()));
        }
        let received: Vec<i64> = read.iter().flat_map(|row| row.ids.clone()).collect();
        let finish = read.last().unwrap().finish.clone().unwrap();
        match why {
            None => {
                assert_eq!(received, ids(&format!("{free}{call}")), "{rid}");
                assert!(finish.starts_with("length"), "{finish}");
            }
            Some(why) => {
                // A token may have the last bytes of the text and the first of the call.
                let whole = ids(&format!("{free}{call}"));
                assert!(
                    whole.starts_with(&received) && received.len() >= ids(free).len() - 1,
                    "{rid}: {received:?}"
                );
                assert!(received.len() <= ids(free).len(), "{rid}: {received:?}");
                assert_eq!(finish, "abort", "{rid}");
                let ended = afterbay.event_where("RequestFinishedEarly", |event| event["rid"] == rid);
                assert_eq!(ended["reason"], why);
            }
        }
        if rid == "valid" {
            assert!(read.iter().any(|row| row.ids.len() > 10), "the call is one row: {read:?}");
        }
    }
    let metrics = afterbay.metrics();
    let counts = ["valid_calls", "invalid_calls", "cut_calls"];
    let counts = counts.map(|name| metrics.plugin("grammar", &format!("own_{name}_total")));
    assert_eq!(counts, [1, 1, 1]);
    assert_eq!(metrics.stream("request_imbalances_total"), 0);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn an_invalid_grammar_and_a_model_without_a_tokenizer_are_refused_with_a_reason() {
    let sandbox = Sandbox::new();
    let refused = |config: Config| {
        // As `check` does, but with the compiled code of the other tests.
        let refused = run_afterbay(&["run", "--config", &sandbox.write(&config)]);
        assert_eq!(refused.code, 64, "{refused:?}");
        refused.stderr
    };
    let no_schema = "rules = [{ rid_prefix = \"a\", grammar = { json_schema = '{\"type\": \"strin\"}' } }]";
    let error = refused(with_settings(sandbox.config(), no_schema));
    assert!(error.contains("/rules/0/grammar/json_schema: ") && error.contains("strin"), "{error}");
    let error = refused(with_settings(sandbox.config(), ""));
    assert!(error.contains("/grammar: is missing"), "{error}");
    let bare = sandbox.config().plugin_with("grammar", "builtin:grammar-check", "", "");
    let bare = bare.granted(r#"["log", "metrics"]"#);
    assert!(refused(bare).contains("wants request, tokenizer, which it is not granted"));
}

/// Prints the call times of the plugin's README: `--release --ignored --nocapture grammar::cost`.
#[test]
#[ignore = "a measurement, to be run alone and in release"]
fn cost_of_1024_requests_that_begin_at_once_and_end_at_once() {
    let schema = r#"{"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"},
        "k": {"enum": ["aa", "bb", "cc"]}, "x": {"type": "number"}}, "required": ["name", "k", "x"]}}"#;
    let item = "{\"name\": \"reading the world, so to say\", \"k\": \"bb\", \"x\": 12.5}";
    let text = format!("[{}]", [item; 6].join(", "));
    let ids = ids(&text);
    println!("{} tokens of {} bytes", ids.len(), text.len());
    for (name, deadline, more) in
        [("as it is", "2ms", ""), ("all at once", "10s", ", work_per_call = 100000, tokens_max = 1000000")]
    {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let settings = format!("grammar = {{ json_schema = '{}' }}{more}", schema.replace('\n', ""));
        let limits = format!("deadline = {deadline:?}, memory = \"256MiB\"");
        let afterbay = Afterbay::run(&sandbox, &with_limits(sandbox.config(), &settings, &limits));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let seconds = || {
            let series = "afterbay_plugin_batch_seconds_sum{";
            let body = afterbay.get("/metrics").body;
            let line = body.lines().find(|line| line.starts_with(series)).unwrap().to_owned();
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let mut requests: Vec<SynthRequest> =
            (0..1024).map(|it| SynthRequest::new(&format!("r{it:04}"))).collect();
        let mut took = Vec::new();
        let last = ids.len() - 1;
        for (step, id) in ids.iter().enumerate() {
            let row = |request: &mut SynthRequest| match step == last {
                true => request.last(&[*id]),
                false => request.row(&[*id]),
            };
            let before = seconds();
            sender.send(&batch(Msgpack, requests.iter_mut().map(row).collect()));
            reader.frame();
            took.push((seconds() - before) * 1e3);
        }
        let middle = &mut took[4..last].to_vec();
        middle.sort_by(f64::total_cmp);
        let [first, second, third, ..] = took[..] else { panic!() };
        println!(
            "{name}: first {first:.2} {second:.2} {third:.2} ms, then median {:.2}, most {:.2}, last {:.2}",
            middle[middle.len() / 2],
            middle[middle.len() - 1],
            took[last]
        );
        let body = afterbay.get("/metrics").body;
        for line in body.lines().filter(|line| line.contains("faults_total{") || line.contains("_own_")) {
            println!("  {line}");
        }
        println!("  {} events of faults", afterbay.events("PluginFault").len());
        afterbay.stop();
    }
}
