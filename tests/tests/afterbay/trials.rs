//! `afterbay plugin run --config`: the recorded traffic of a journal through another configuration.

use std::collections::BTreeMap;

use afterbay_tests::commands::{CommandOutput, journal, json_lines, run_afterbay, show};
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::holds::{DROP, FINISH, HOLD, LONG, PANIC, RELEASE, RELEASE_AS, holding};
use afterbay_tests::sandbox::Config;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::{self, Msgpack, Pickle};
use bytes::Bytes;
use serde_json::{Value, json};

fn without_plugin(sandbox: &Sandbox) -> Config {
    sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\"")
}

/// Requests of which `holds` holds, drops, replaces and ends rows, and one that it leaves alone.
fn traffic([one, other]: [SynthWire; 2]) -> Vec<Bytes> {
    let [mut held, mut dropped, mut replaced, mut ended, mut plain] =
        ["held", "dropped", "replaced", "ended", "plain"].map(SynthRequest::new);
    vec![
        batch(one, vec![held.row(&[1]), dropped.row(&[1]), plain.row(&[1])]),
        batch(other, vec![held.row(&[HOLD]), dropped.row(&[DROP, 6]), plain.row(&[2]), ended.row(&[1])]),
        batch(one, vec![replaced.row(&[HOLD, 5]), held.row(&[3]), plain.row(&[3]), ended.row(&[2, 3])]),
        batch(one, vec![replaced.row(&[RELEASE_AS]), held.row(&[RELEASE]), ended.row(&[FINISH])]),
        batch(other, vec![replaced.last(&[7]), held.row(&[HOLD]), ended.row(&[4]), plain.row(&[4])]),
        batch(one, vec![held.last(&[5]), dropped.last(&[2]), ended.last(&[5]), plain.last(&[5])]),
    ]
}

/// Sends the frames of this many requests through this configuration. The journal is complete afterwards.
fn record(sandbox: &Sandbox, config: &Config, frames: &[Bytes], requests: usize) {
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(sandbox, config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames.iter().for_each(|frame| sender.send(frame));
    let mut ended = 0;
    while ended < requests {
        ended += rows(&reader.frame()).iter().filter(|row| row.finish.is_some()).count();
    }
    assert_eq!(afterbay.stop(), 0);
}

fn try_config(sandbox: &Sandbox, config: &Config, args: &[&str]) -> CommandOutput {
    let file = sandbox.replace("new.toml", config.to_toml());
    let journal = sandbox.journal();
    let from = journal.to_str().unwrap();
    run_afterbay(&[&["plugin", "run", "--config", &file, "--from", from], args].concat())
}

/// The lines about requests by rid, and the summary.
fn compared(output: &str) -> (BTreeMap<String, Value>, Value) {
    let mut lines = json_lines(output);
    let summary = lines.pop().unwrap()["summary"].clone();
    let of_requests = lines.into_iter().filter(|line| line.get("rid").is_some());
    (of_requests.map(|line| (line["rid"].as_str().unwrap().to_owned(), line)).collect(), summary)
}

#[test]
fn the_configuration_that_ran_gives_no_difference_on_its_own_journal() {
    let sandbox = Sandbox::new();
    let config = holding(&sandbox, LONG);
    record(&sandbox, &config, &traffic([Msgpack, Msgpack]), 5);
    let output = try_config(&sandbox, &config, &["--json"]).success();
    let (requests, summary) = compared(&output);
    assert!(requests.is_empty(), "{output}");
    let expected = json!({"requests_ended_early": 1, "tokens_dropped": 2, "tokens_replaced": 3, "tokens_swallowed": 2, "rows_held": 4});
    assert_eq!((&summary["then"], &summary["trial"]), (&expected, &expected), "{output}");
    assert_eq!((&summary["requests"], &summary["rows"]), (&5.into(), &22.into()), "{output}");
    assert_eq!(summary["plugins"][0]["verdicts"]["hold"], 3, "{output}");
    let text = try_config(&sandbox, &config, &[]).success();
    assert!(text.contains("No difference: each reader gets what it got."), "{text}");

    // Requests that began before the compared time are shown from their first row.
    let seen = show(&sandbox, "held");
    let since = seen["rows_seen"][3]["time"].as_str().unwrap();
    let output = try_config(&sandbox, &config, &["--json", "--since", since]).success();
    let (requests, summary) = compared(&output);
    assert!(requests.is_empty(), "{output}");
    assert_eq!((&summary["frames"], &summary["rows"]), (&3.into(), &11.into()), "{output}");
    assert_eq!(summary["then"], summary["trial"], "{output}");
    let output = try_config(&sandbox, &config, &["--json", "--until", since]).success();
    assert_eq!(compared(&output).1["frames"], 3, "{output}");
}

#[test]
fn a_trial_of_what_does_not_exist_is_one_error_with_the_value_and_what_exists() {
    let sandbox = Sandbox::new();
    let config = without_plugin(&sandbox);
    record(&sandbox, &config, &[batch(Msgpack, vec![SynthRequest::new("a").last(&[1])])], 1);
    let (file, from) = (sandbox.write(&config), sandbox.text("journal"));
    let other = sandbox.replace("other.toml", config.to_toml().replace("\"test\"", "\"tset\""));
    let (absent, empty) = (sandbox.text("absent.toml"), sandbox.text("empty"));
    std::fs::create_dir(&empty).unwrap();
    let (earlier, later) = ("2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z");
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--config", &absent, "--from", &from], &[&absent, "No such file or directory"]),
        (&["--config", &file], &["--from <SOURCE>"]),
        (&["--config", &file, "--from", &absent], &[&absent]),
        (&["--config", &file, "--from", &empty], &[&empty]),
        (
            &["--config", &file, "--from", &from, "--since", later, "--until", earlier],
            &["is not before --until"],
        ),
        (
            &["--config", &file, "--from", &from, "--stream", "tset"],
            &["--stream \"tset\": not in", "[\"test\"]"],
        ),
        (
            &["--config", &other, "--from", &from, "--stream", "tset"],
            &["--stream \"tset\": not in", "[\"test\"]"],
        ),
        (&["--config", &other, "--from", &from], &["stream \"tset\": not in", "[\"test\"]"]),
    ];
    for (args, words) in cases {
        let done = run_afterbay(&[&["plugin", "run"], args].concat());
        assert_eq!((done.code, &done.stdout[..]), (64, ""), "{args:?}: {}", done.stderr);
        assert_eq!(done.stderr.matches("afterbay: ").count() + done.stderr.matches("error: ").count(), 1);
        assert!(words.iter().all(|word| done.stderr.contains(word)), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn rows_that_a_release_marker_released_are_no_difference() {
    let sandbox = Sandbox::new();
    let config = holding(&sandbox, LONG);
    // Rows of two encodings cannot be joined, so held rows leave with markers.
    record(&sandbox, &config, &traffic([Msgpack, Pickle]), 5);
    let output = try_config(&sandbox, &config, &["--json"]).success();
    let (requests, summary) = compared(&output);
    assert!(requests.is_empty() && summary["trial"]["rows_held"] == 6, "{output}");
    assert_eq!((&summary["then"], &summary["frames"]), (&summary["trial"], &6.into()), "{output}");
}

#[test]
fn the_differences_of_a_new_guard_are_what_its_stream_does_with_the_same_traffic() {
    let (then, now) = (Sandbox::new(), Sandbox::new());
    let frames = traffic([Msgpack, Msgpack]);
    record(&then, &without_plugin(&then), &frames, 5);
    record(&now, &holding(&now, LONG), &frames, 5);
    let output = try_config(&then, &holding(&then, LONG), &["--json"]).success();
    let (requests, summary) = compared(&output);
    assert_eq!(requests.keys().collect::<Vec<_>>(), ["dropped", "ended", "held", "replaced"], "{output}");
    assert_eq!(summary["ends_earlier_by_plugin"], json!({"holds": 1}), "{output}");
    assert_eq!(summary["ends_earlier_by_scheduler_finish"], json!({"length": 1}), "{output}");
    let listed = json_lines(&journal(&now, &["ls", "--json"]).success());
    for (rid, request) in &requests {
        let trial = &request["trial"];
        let count = |name: &str| trial[name].as_u64().unwrap();
        let listed = listed.iter().find(|line| line["rid"] == **rid).unwrap();
        let dropped = count("tokens_dropped") + count("tokens_swallowed");
        assert_eq!(listed["tokens_dropped"], dropped, "{rid}: {listed} {request}");
        assert_eq!(listed["tokens_replaced"], trial["tokens_replaced"], "{rid}: {listed} {request}");
        let shown = show(&now, rid);
        let rows = shown["rows_seen"].as_array().unwrap();
        let is_held =
            |row: &&Value| row["actions"].as_array().unwrap().iter().any(|it| it["verdict"] == "hold");
        assert_eq!(
            rows.iter().filter(is_held).count() as u64,
            count("rows_held"),
            "{rid}: {shown} {request}"
        );
        let ended = trial["end"]["frame"].as_u64();
        let by_plugin = Some(&shown["ended"]).filter(|ended| ended["by"] == "plugin");
        assert_eq!(
            by_plugin.map(|ended| ended["frame"].as_u64().unwrap()),
            ended,
            "{rid}: {shown} {request}"
        );
    }
    assert_eq!(requests["ended"]["differences"], json!(["ends_earlier"]));
    assert_eq!(requests["ended"]["trial"]["end"]["token"], 4);
    assert_eq!(requests["ended"]["scheduler"], json!({"finish_reason": "length", "token": 6}));
    let text = try_config(&then, &holding(&then, LONG), &[]).success();
    for words in
        ["1 request would end earlier: 1 by holds.", "1 with length", "ended\tends earlier\tlength at 6"]
    {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[test]
fn a_fault_of_a_plugin_on_recorded_traffic_is_named_with_its_message() {
    let sandbox = Sandbox::new();
    let mut request = SynthRequest::new("a");
    let frames = [batch(Msgpack, vec![request.row(&[PANIC])]), batch(Msgpack, vec![request.last(&[1])])];
    record(&sandbox, &without_plugin(&sandbox), &frames, 1);
    let output = try_config(&sandbox, &holding(&sandbox, "millis = 1"), &["--json"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    let lines = json_lines(&output.stdout);
    let fault = lines.iter().find(|line| line.get("fault").is_some()).unwrap();
    assert_eq!((&fault["plugin"], &fault["times"]), (&"holds".into(), &1.into()), "{fault}");
    assert!(fault["message"].as_str().unwrap().contains("\"holds\""), "{fault}");
    assert_eq!(lines.last().unwrap()["summary"]["requests_different"], 0, "{lines:?}");
}
