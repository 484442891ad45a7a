//! What plugins are told beside rows, and what they hand to the instance that takes over from them.

use afterbay_tests::admin::JSON;
use afterbay_tests::afterbay::notes;
use afterbay_tests::components::{guest, install};
use afterbay_tests::frames::{Request, batch, rows};
use afterbay_tests::{Afterbay, Config, Reader, Sender, Stage};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

const GRANT: &str = r#"["log", "signals", "request"]"#;

fn put(afterbay: &Afterbay, rid: &str, body: &str) -> (u16, Value) {
    let answer = afterbay.ask(&format!("PUT /v1/requests/{rid}/attributes"), &[JSON], body);
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}

/// Waits for the plugin to have said this.
fn said(afterbay: &Afterbay, line: &str) -> Value {
    afterbay.event_where("PluginLog", |event| event["line"] == line)
}

/// A configuration of which a plugin takes in what the one before it knew; until that is handed over.
fn hand_over(afterbay: &Afterbay, stage: &Stage, config: &Config) {
    let changes = afterbay.metrics().stream("change_seconds_count");
    stage.write(config);
    afterbay.until_metrics("it is handed over", |metrics| metrics.stream("change_seconds_count") > changes);
}

#[test]
fn attributes_come_from_rules_and_from_outside_before_a_request_and_during_it() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let rules = "attribute = [{ prefix = \"batch-\", set = { tenant = \"batch\", tier = 1 } }]";
    let config = stage.config().stream(rules).plugin("p", &guest("remembers"), "").granted(GRANT);
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());

    let (status, set) = put(&afterbay, "batch-1", r#"{"tenant": "mine"}"#);
    assert_eq!((status, &set["attributes"]["tenant"]), (200, &"mine".into()), "{set}");
    let (mut ruled, mut plain) = (Request::new("batch-1"), Request::new("plain"));
    sender.send(&batch(Msgpack, vec![ruled.row(&[1]), plain.row(&[2])]));
    assert_eq!(rows(&reader.frame()).len(), 2);
    let opened = said(&afterbay, r#"opened with 0 rows, worker "", attributes {"tenant":"mine","tier":1}"#);
    assert_eq!(opened["rid"], "batch-1");
    assert_eq!(said(&afterbay, r#"opened with 0 rows, worker "", attributes none"#)["rid"], "plain");

    assert_eq!(put(&afterbay, "plain", r#"{"grammar": {"regex": "a+"}}"#).0, 200);
    assert_eq!(said(&afterbay, r#"changed to {"grammar":{"regex":"a+"}}"#)["rid"], "plain");
    let taken_back = afterbay.ask("DELETE /v1/requests/plain/attributes", &[], "");
    assert_eq!(taken_back.status, 200, "{}", taken_back.body);
    assert_eq!(said(&afterbay, "changed to none")["rid"], "plain");
    assert_eq!(afterbay.get("/v1/requests/plain/attributes").status, 404);
    assert_eq!(afterbay.get("/v1/requests/batch-1/attributes").status, 200);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn plugins_that_a_reload_brings_into_an_empty_chain_know_attributes_and_sink_of_requests_that_live() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let rules = "attribute = [{ prefix = \"batch-\", set = { tier = 1 } }]";
    let config = || stage.config().stream(rules);
    let afterbay = Afterbay::run(&stage, &config());
    let mut sender = Sender::connect(&stage.scheduler_side());
    sender.send(&batch(Msgpack, vec![Request::new("batch-1").row(&[1])]));
    reader.frame();
    assert_eq!(put(&afterbay, "batch-1", r#"{"tenant": "mine"}"#).0, 200);
    let remembers = config().plugin("p", &guest("remembers"), "").granted(GRANT);
    stage.write(&remembers.plugin("second", &guest("reports"), ""));
    said(&afterbay, r#"opened with 0 rows, worker "", attributes {"tenant":"mine","tier":1}"#);
    said(&afterbay, r#"opened batch-1 "" "reader" 7 1 true"#);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn of_a_request_that_another_plugin_has_finished_no_change_is_told() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let config = stage.config().plugin("ends", &guest("judges"), "action = \"finish\"");
    let afterbay = Afterbay::run(&stage, &config.plugin("p", &guest("remembers"), "").granted(GRANT));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut a, mut b) = (Request::new("a"), Request::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[1])]));
    reader.frame();
    // The scheduler does not know yet, so it lives.
    assert_eq!(put(&afterbay, "a", r#"{"n": 1}"#).0, 200);
    assert_eq!(put(&afterbay, "b", r#"{"n": 2}"#).0, 200);
    sender.send(&batch(Msgpack, vec![a.row(&[2]), b.row(&[1])]));
    said(&afterbay, r#"opened with 0 rows, worker "", attributes {"n":2}"#);
    let is_change = |log: &Value| log["line"].as_str().is_some_and(|line| line.starts_with("changed"));
    assert!(!afterbay.events("PluginLog").iter().any(is_change));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn attributes_that_cannot_be_set_are_refused_with_what_is_wrong() {
    let stage = Stage::new();
    let _reader = Reader::bind(&stage.reader_side());
    let afterbay = Afterbay::run(&stage, &stage.config());
    let refused = |body: &str| {
        let (status, said) = put(&afterbay, "a", body);
        (status, said["error"].as_str().unwrap().to_owned())
    };
    assert_eq!(refused("[1]"), (400, "the body: it must be a JSON object".to_owned()));
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
fn a_plugin_is_told_when_a_reader_is_away_and_when_it_keeps_up_again() {
    let stage = Stage::new();
    let config = stage.config().plugin("p", &guest("remembers"), "").granted(GRANT);
    let afterbay = Afterbay::run(&stage, &config);
    said(&afterbay, "live 0, sinks [reader SinkState::Away 0], running None");
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut request = Request::new("a");
    sender.send(&batch(Msgpack, vec![request.row(&[1])]));
    let mut reader = Reader::bind(&stage.reader_side());
    assert_eq!(rows(&reader.frame()).len(), 1);
    said(&afterbay, "live 1, sinks [reader SinkState::KeepingUp 0], running None");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn by_replay_the_new_version_sees_the_live_requests_rows_again_before_it_takes_over() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    // It has no state to hand over.
    install(&guest("nothing"), 0, &component);
    let config = stage.config().plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut ended, mut live) = (Request::new("ended"), Request::new("live"));
    sender.send(&batch(Msgpack, vec![ended.last(&[1]), live.row(&[1])]));
    sender.send(&batch(Msgpack, vec![live.row(&[2])]));
    sender.send(&batch(Msgpack, vec![live.row(&[3])]));
    reader.take(3);
    install(&guest("remembers"), 0, &component);
    assert_eq!(afterbay.event("PluginReplayed")["rows"], 3, "{}", afterbay.log());
    assert_eq!(afterbay.event("PluginReloaded")["resumed_requests"], 1);
    sender.send(&batch(Msgpack, vec![live.last(&[4])]));
    reader.frame();
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(notes(&stage, "live"), ["row 4"]);
}

#[test]
fn by_replay_the_new_version_sees_what_a_plugin_before_it_held_as_it_went_on() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let limits = "deadline = \"10s\", hold = \"60s\"";
    let config = stage.config().sink("reader = \"tokenizer\"");
    let config = config.plugin_with("holds", guest("holds").to_str().unwrap(), "millis = 60000", limits);
    let config = config.plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut a, hold, release, release_and_hold) = (Request::new("a"), 101, 102, 107);
    // Held and released; held and let go by itself; what waits still is not shown yet.
    for (ids, frames) in
        [([1], 1), ([hold], 0), ([release], 1), ([hold], 0), ([release_and_hold], 1), ([2], 0)]
    {
        sender.send(&batch(Msgpack, vec![a.row(&ids)]));
        reader.take(frames);
    }
    afterbay.until_metrics("they wait", |metrics| metrics.plugin("holds", "held_rows") == 2);
    install(&guest("remembers"), 0, &component);
    assert_eq!(afterbay.event("PluginReplayed")["rows"], 3, "{}", afterbay.log());
    afterbay.event("PluginReloaded");
    sender.send(&batch(Msgpack, vec![a.last(&[release])]));
    assert_eq!(rows(&reader.frame())[0].ids, [release_and_hold, 2, release]);
    assert_eq!(afterbay.stop(), 0);
    let mut said = notes(&stage, "a");
    said.retain(|said| said.starts_with("row"));
    assert_eq!(said, ["row 4"]);
}

#[test]
fn what_comes_while_a_new_version_is_shown_what_was_before_is_shown_to_it_too_and_once() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&guest("nothing"), 0, &component);
    let config = stage.config().plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut live, mut rows) = (Request::new("live"), 0);
    let mut send = |last: bool| {
        rows += 1;
        let row = if last { live.last(&[rows]) } else { live.row(&[rows]) };
        sender.send(&batch(Msgpack, vec![row]));
        reader.frame();
        rows
    };
    (0..1000).for_each(|_| _ = send(false));
    install(&guest("remembers"), 0, &component);
    while afterbay.events("PluginReplayed").is_empty() {
        send(false);
    }
    let rows = send(true);
    assert_eq!(afterbay.stop(), 0);
    let noted = notes(&stage, "live");
    let expected: Vec<String> = (1..=rows).map(|row| format!("row {row}")).collect();
    assert!(!noted.is_empty() && expected.ends_with(&noted), "{noted:?}");
}

#[test]
fn what_comes_while_a_new_version_takes_in_what_it_is_handed_is_shown_to_it_too() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let config = |slow: u32| {
        let config = stage.config().plugin("p", &guest("remembers"), &format!("slow = {slow}"));
        config.granted(GRANT)
    };
    let afterbay = Afterbay::run(&stage, &config(1));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut live = Request::new("live");
    let mut send = |id| {
        sender.send(&batch(Msgpack, vec![if id < 4 { live.row(&[id]) } else { live.last(&[id]) }]));
        reader.frame();
    };
    send(1);
    assert_eq!(put(&afterbay, "live", r#"{"n":1}"#).0, 200);
    said(&afterbay, r#"changed to {"n":1}"#);
    send(2);
    // A second or so, in which the one before it goes on.
    hand_over(&afterbay, &stage, &config(2000));
    assert_eq!(put(&afterbay, "live", r#"{"n":2}"#).0, 200);
    said(&afterbay, r#"changed to {"n":2}"#);
    send(3);
    assert!(afterbay.events("PluginReloaded").is_empty(), "it has taken over already");
    afterbay.event("PluginReloaded");
    send(4);
    assert_eq!(afterbay.stop(), 0);
    let expected = ["row 1, ", r#"row 2, {"n":1}"#, r#"row 3, {"n":2}"#, r#"row 4, {"n":2}"#];
    assert_eq!(notes(&stage, "live"), expected);
}

#[test]
fn what_comes_while_the_one_before_is_quarantined_is_shown_to_a_new_version_that_waits() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let config = |settings: &str| {
        let config = stage.config().plugin("p", &guest("remembers"), settings);
        config.granted(GRANT).of_plugin("quarantine = { faults = 1 }")
    };
    let afterbay = Afterbay::run(&stage, &config("traps_at = 3"));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut live = Request::new("live");
    let mut send = |id| {
        sender.send(&batch(Msgpack, vec![if id < 5 { live.row(&[id]) } else { live.last(&[id]) }]));
        reader.frame();
    };
    send(1);
    send(2);
    // A second or so, in which the one before it goes on.
    hand_over(&afterbay, &stage, &config("slow = 2000"));
    send(3);
    afterbay.event("PluginQuarantined");
    send(4);
    assert!(afterbay.events("PluginReloaded").is_empty(), "it has taken over already");
    afterbay.event("PluginReloaded");
    send(5);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(notes(&stage, "live"), ["row 1", "row 2", "row 5, "]);
}

#[test]
fn where_state_cannot_be_handed_over_the_live_requests_are_replayed() {
    for (old, new, why) in [
        ("", "refuses = true", Some("it cannot read the state of version 0.1.0")),
        ("traps_in_export = true", "", None),
    ] {
        let stage = Stage::new();
        let mut reader = Reader::bind(&stage.reader_side());
        let config = |settings| stage.config().plugin("p", &guest("remembers"), settings).granted(GRANT);
        let afterbay = Afterbay::run(&stage, &config(old));
        let mut sender = Sender::connect(&stage.scheduler_side());
        let mut live = Request::new("live");
        let mut send = |id| {
            sender.send(&batch(Msgpack, vec![if id < 4 { live.row(&[id]) } else { live.last(&[id]) }]));
            reader.frame();
        };
        (1..=3).for_each(&mut send);
        stage.write(&config(new));
        let replayed = afterbay.event("PluginReplayed");
        assert_eq!((&replayed["rows"], replayed["why"].as_str()), (&3.into(), why), "{replayed}");
        send(4);
        let metrics = afterbay.metrics();
        assert_eq!(metrics.plugin_by("p", "faults_total", "kind", "trap"), u64::from(why.is_none()), "{old}");
        assert_eq!(metrics.plugin_by("p", "reloads_total", "result", "ok"), 1, "{old}");
        assert_eq!(metrics.events("PluginStateLost"), 0, "{old}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(notes(&stage, "live"), ["row 1", "row 2", "row 3", "row 4"], "{old}");
    }
}

#[test]
fn a_start_knows_the_sink_of_requests_that_an_earlier_run_has_left() {
    let stage = Stage::new();
    let (one, other) = (stage.ipc("one"), stage.ipc("other"));
    let mut readers = [Reader::bind(&one), Reader::bind(&other)];
    let config = stage.config().connect(&one).stream("route = \"crc32\"").more_sink("other", &other, "");
    let config = config.plugin("reports", &guest("reports"), "");
    let rids: Vec<String> = (0..8).map(|at| format!("r{at}")).collect();
    let opened = |afterbay: &Afterbay| -> Vec<String> {
        let line = |rid| {
            let begins = format!("opened {rid} ");
            let is_it = |log: &Value| log["line"].as_str().is_some_and(|line| line.starts_with(&begins));
            let log = afterbay.event_where("PluginLog", is_it);
            // Rid, tokenizer, sink and prompt's length.
            log["line"].as_str().unwrap().split(' ').skip(1).take(4).collect::<Vec<_>>().join(" ")
        };
        rids.iter().map(line).collect()
    };
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let first = rids.iter().map(|rid| Request::new(rid).row(&[1])).collect();
    sender.send(&batch(Msgpack, first));
    readers.iter_mut().for_each(|reader| _ = reader.frame());
    let began = opened(&afterbay);
    assert!(["reader", "other"].iter().all(|sink| began.iter().any(|line| line.contains(sink))), "{began:?}");
    afterbay.kill();
    let afterbay = Afterbay::run(&stage, &config);
    assert_eq!(opened(&afterbay), began);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_reload_hands_over_what_the_plugin_knows_unless_the_new_one_takes_no_state() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let component = stage.path("plugin.wasm");
    install(&guest("remembers"), 0, &component);
    let config = stage.config().plugin("p", &component, "").granted(GRANT);
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut request = Request::new("a");
    for _ in 0..3 {
        sender.send(&batch(Msgpack, vec![request.row(&[1])]));
        reader.frame();
    }
    install(&guest("remembers"), 1, &component);
    let reloaded = afterbay.event("PluginReloaded");
    assert_eq!((&reloaded["resumed_requests"], &reloaded["state_bytes"]), (&1.into(), &16.into()));
    said(&afterbay, r#"opened with 3 rows, worker "", attributes none"#);

    // A component without the calls: the live request is replayed to it.
    install(&guest("nothing"), 0, &component);
    let reloaded = afterbay.event_where("PluginReloaded", |event| event["state_bytes"] == 0);
    assert_eq!(reloaded["resumed_requests"], 1);
    assert_eq!(afterbay.event("PluginReplayed")["rows"], 3);
    sender.send(&batch(Msgpack, vec![request.last(&[1])]));
    reader.frame();
    assert_eq!(afterbay.stop(), 0);
}
