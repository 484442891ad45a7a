//! Attributes of requests, and the calls for them and for pressure that plugins get.

use afterbay_tests::admin::JSON;
use afterbay_tests::commands::{journal, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::RequestRecord;
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

/// The grants of the guest `remembers`.
pub(super) const GRANT: &str = r#"["log", "signals", "request"]"#;

/// Sets attributes over the admin address. Returns the status and the body.
pub(super) fn set_attributes(afterbay: &Afterbay, rid: &str, body: &str) -> (u16, Value) {
    let answer = afterbay.ask(&format!("PUT /v1/requests/{rid}/attributes"), &[JSON], body);
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

/// Waits for this line in a plugin's log.
pub(super) fn plugin_log(afterbay: &Afterbay, line: &str) -> Value {
    afterbay.event_where("PluginLog", |event| event["line"] == line)
}

#[test]
fn attributes_are_set_by_rules_and_over_the_admin_address_before_and_during_a_request() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let rules = "attribute = [{ prefix = \"batch-\", set = { tenant = \"batch\", tier = 1 } }]";
    let config = sandbox.config().stream(rules).plugin("p", &guest("remembers"), "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());

    let (status, set) = set_attributes(&afterbay, "batch-1", r#"{"tenant": "mine"}"#);
    assert_eq!((status, &set["attributes"]["tenant"]), (200, &"mine".into()), "{set}");
    let (mut ruled, mut plain) = (SynthRequest::new("batch-1"), SynthRequest::new("plain"));
    sender.send(&batch(Msgpack, vec![ruled.row(&[1]), plain.row(&[2])]));
    assert_eq!(rows(&reader.frame()).len(), 2);
    let opened =
        plugin_log(&afterbay, r#"opened with 0 rows, worker "", attributes {"tenant":"mine","tier":1}"#);
    assert_eq!(opened["rid"], "batch-1");
    assert_eq!(plugin_log(&afterbay, r#"opened with 0 rows, worker "", attributes none"#)["rid"], "plain");

    assert_eq!(set_attributes(&afterbay, "plain", r#"{"grammar": {"regex": "a+"}}"#).0, 200);
    assert_eq!(plugin_log(&afterbay, r#"changed to {"grammar":{"regex":"a+"}}"#)["rid"], "plain");
    let taken_back = afterbay.ask("DELETE /v1/requests/plain/attributes", &[], "");
    assert_eq!(taken_back.status, 200, "{}", taken_back.body);
    assert_eq!(plugin_log(&afterbay, "changed to none")["rid"], "plain");
    assert_eq!(afterbay.get("/v1/requests/plain/attributes").status, 404);
    assert_eq!(afterbay.get("/v1/requests/batch-1/attributes").status, 200);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn attributes_of_the_engine_reach_plugins_and_the_journal_and_no_reader() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("p", &guest("remembers"), "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let record = RequestRecord { rid: "a".into(), lora: Some("sql".into()), ..RequestRecord::default() };
    sender.send(&record.to_frame());
    // A connector of another version.
    sender.send(b"{\"afterbay\":\"request\",\"rid\":7}\n");
    let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[1]), b.row(&[2])]));
    assert_eq!(rows(&reader.frame()).len(), 2);
    let opened = plugin_log(&afterbay, r#"opened with 0 rows, worker "", attributes {"lora":"sql"}"#);
    assert_eq!(opened["rid"], "a");
    plugin_log(&afterbay, r#"opened with 0 rows, worker "", attributes none"#);
    afterbay.all_events("IntroductionRefused", 1);
    assert_eq!(afterbay.stop(), 0);
    let listed = journal(&sandbox, &["ls", "--json"]).json_lines();
    let lora_of =
        |rid: &str| listed.iter().find(|it| it["rid"] == rid).unwrap()["attributes"]["lora"].clone();
    assert_eq!((lora_of("a"), lora_of("b")), ("sql".into(), Value::Null), "{listed:?}");
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn plugins_added_by_a_reload_know_attributes_and_sink_of_live_requests() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let rules = "attribute = [{ prefix = \"batch-\", set = { tier = 1 } }]";
    let config = || sandbox.config().stream(rules);
    let afterbay = Afterbay::run(&sandbox, &config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("batch-1").row(&[1])]));
    reader.frame();
    assert_eq!(set_attributes(&afterbay, "batch-1", r#"{"tenant": "mine"}"#).0, 200);
    let remembers = config().plugin("p", &guest("remembers"), "").granted(GRANT);
    sandbox.write(&remembers.plugin("second", &guest("reports"), ""));
    plugin_log(&afterbay, r#"opened with 0 rows, worker "", attributes {"tenant":"mine","tier":1}"#);
    plugin_log(&afterbay, r#"opened batch-1 "" "reader" 7 1 true"#);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_finished_request_gets_no_attribute_change() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().plugin("ends", &guest("judges"), "action = \"finish\"");
    let afterbay = Afterbay::run(&sandbox, &config.plugin("p", &guest("remembers"), "").granted(GRANT));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[1])]));
    reader.frame();
    // The scheduler has not ended the request, so the request is live.
    assert_eq!(set_attributes(&afterbay, "a", r#"{"n": 1}"#).0, 200);
    assert_eq!(set_attributes(&afterbay, "b", r#"{"n": 2}"#).0, 200);
    sender.send(&batch(Msgpack, vec![a.row(&[2]), b.row(&[1])]));
    plugin_log(&afterbay, r#"opened with 0 rows, worker "", attributes {"n":2}"#);
    let is_change = |log: &Value| log["line"].as_str().is_some_and(|line| line.starts_with("changed"));
    assert!(!afterbay.events("PluginLog").iter().any(is_change));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn invalid_attributes_are_refused_with_a_reason() {
    let sandbox = Sandbox::new();
    let _reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let refused = |body: &str| {
        let (status, answer) = set_attributes(&afterbay, "a", body);
        (status, answer["error"].as_str().unwrap().to_owned())
    };
    let why = "the body: invalid type: sequence, expected a map at line 1 column 0";
    assert_eq!(refused("[1]"), (400, why.to_owned()));
    assert_eq!(refused("{").0, 400);
    let (status, why) = refused(&format!("{{\"a\": {:?}}}", "x".repeat(16 << 10)));
    assert_eq!(status, 413);
    assert!(why.contains("have 16392 bytes as JSON, at most 16384 are allowed"), "{why}");
    let page = afterbay.ask("PUT /v1/requests/a/attributes", &[JSON, "Origin: http://evil"], "{}");
    assert_eq!(page.status, 403, "{}", page.body);
    assert_eq!(afterbay.ask("PUT /v1/requests/a/attributes", &[], "{}").status, 415);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_plugin_gets_a_pressure_call_when_a_readers_state_changes() {
    let sandbox = Sandbox::new();
    let config = sandbox.config().plugin("p", &guest("remembers"), "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    plugin_log(&afterbay, "live 0, sinks [reader SinkState::Away 0], running None");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("a");
    sender.send(&batch(Msgpack, vec![request.row(&[1])]));
    let mut reader = Reader::bind(&sandbox.reader_side());
    assert_eq!(rows(&reader.frame()).len(), 1);
    plugin_log(&afterbay, "live 1, sinks [reader SinkState::KeepingUp 0], running None");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_restart_knows_the_sink_of_live_requests() {
    let sandbox = Sandbox::new();
    let (one, other) = (sandbox.ipc("one"), sandbox.ipc("other"));
    let mut readers = [Reader::bind(&one), Reader::bind(&other)];
    let config = sandbox.config().connect(&one).stream("route = \"crc32\"").another_sink("other", &other, "");
    let config = config.plugin("reports", &guest("reports"), "");
    let rids: Vec<String> = (0..8).map(|at| format!("r{at}")).collect();
    let opened = |afterbay: &Afterbay| -> Vec<String> {
        let line = |rid| {
            let begins = format!("opened {rid} ");
            let is_it = |log: &Value| log["line"].as_str().is_some_and(|line| line.starts_with(&begins));
            let log = afterbay.event_where("PluginLog", is_it);
            // Rid, worker, sink and prompt tokens.
            log["line"].as_str().unwrap().split(' ').skip(1).take(4).collect::<Vec<_>>().join(" ")
        };
        rids.iter().map(line).collect()
    };
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let first = rids.iter().map(|rid| SynthRequest::new(rid).row(&[1])).collect();
    sender.send(&batch(Msgpack, first));
    readers.iter_mut().for_each(|reader| _ = reader.frame());
    let began = opened(&afterbay);
    assert!(["reader", "other"].iter().all(|sink| began.iter().any(|line| line.contains(sink))), "{began:?}");
    afterbay.kill();
    let afterbay = Afterbay::run(&sandbox, &config);
    assert_eq!(opened(&afterbay), began);
    assert_eq!(afterbay.stop(), 0);
}
