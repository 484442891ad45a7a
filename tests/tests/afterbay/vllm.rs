//! A stream of vLLM: its frames, its front end's count, a plugin's end of a request, and the engine's input.

use super::attributes::{GRANT, set_attributes};
use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::commands::{journal, show, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::vllm_fixtures;
use afterbay_tests::{Afterbay, Config, Input, Reader, Sandbox, Sender};
use afterbay_types::Engine;
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{Batch, DecodedFrame, Finish, Layouts, decode};
use bytes::Bytes;
use serde_json::{Value, json};

fn config(sandbox: &Sandbox) -> Config {
    sandbox.config().stream("engine = \"vllm\"").sink("tool_calls = \"joined\"")
}

fn row(rid: &str, ids: &[i64]) -> SynthOutput {
    SynthOutput { request_id: rid.to_owned(), new_token_ids: ids.to_vec(), ..SynthOutput::default() }
}

fn first(rid: &str, ids: &[i64]) -> SynthOutput {
    SynthOutput { prompt_tokens: Some(7), ..row(rid, ids) }
}

fn last(rid: &str, ids: &[i64]) -> SynthOutput {
    SynthOutput { finish_reason: Some(1), ..row(rid, ids) }
}

fn frame(rows: Vec<SynthOutput>) -> SynthOutputs {
    SynthOutputs { rows, stats: Some((3, 2, 0.5)), ..SynthOutputs::default() }
}

fn batch(frame: Vec<u8>) -> Batch {
    match decode(Bytes::from(frame), &Layouts::of(Engine::Vllm)) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("a barrier: {}", barrier.kind),
    }
}

/// The rows of a frame: request, ids, whether it is the last.
fn rows(frame: Vec<u8>) -> Vec<(String, Vec<i64>, bool)> {
    let batch = batch(frame);
    let row = |row| {
        let mut ids = Vec::new();
        batch.row_ids(row, &mut ids);
        (batch.rid(row).to_owned(), ids, batch.finish(row) != Finish::Running)
    };
    (0..batch.rows()).map(row).collect()
}

#[test]
fn frames_of_the_real_vllm_pass_byte_for_byte_also_those_of_several_parts() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &config(&sandbox));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let fixtures = vllm_fixtures();
    let several = fixtures.iter().filter(|(_, frame)| afterbay_types::parts::is_envelope(frame)).count();
    assert!(fixtures.len() > 50 && several > 2, "{} frames, {several} of several parts", fixtures.len());
    for (name, frame) in &fixtures {
        sender.send(frame);
        assert!(reader.frame() == *frame, "{name}");
    }
    assert!(afterbay.events("FrameNotUnderstood").is_empty(), "{}", afterbay.log());
    assert_eq!(afterbay.stop(), 0);
    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["frames"]), (1, &fixtures.len().into()), "{report}");
    // Fixtures from the middle of a request are all that is wrong.
    let problems = report["problems"].as_array().unwrap();
    let is_middle = |what: &str| what.ends_with("has no prefill_stats: the rows before it never arrived");
    assert!(problems.iter().all(|problem| is_middle(problem["what"].as_str().unwrap())), "{report}");
    assert!(report["recounted"]["requests"].as_u64().unwrap() > 10, "{report}");
}

#[test]
fn a_slow_front_end_gets_joined_rows_and_all_statistics_over_a_hand_over_and_clients_that_leave_end() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut page = CreditWriter::open(&sandbox.credit(), ReaderKind::Tokenizer).unwrap();
    let mut afterbay = Afterbay::run(&sandbox, &config(&sandbox).credit(&sandbox));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&frame(vec![first("a", &[1]), first("gone", &[1])]).encode());
    sender.send(&frame(vec![row("a", &[2]), row("gone", &[2])]).encode());
    // The window of two frames is full. The other frames wait; those of statistics are no barrier between them.
    for id in 3..=6 {
        sender.send(&frame(Vec::new()).encode());
        sender.send(&frame(vec![row("a", &[id]), row("gone", &[id])]).encode());
    }
    let left = SynthOutputs { finished_requests: vec!["gone".to_owned()], ..frame(vec![last("a", &[7])]) };
    sender.send(&left.encode());
    afterbay.until_metrics("all is received", |metrics| metrics.stream("frames_received_total") == 11);
    afterbay.upgrade(&[]).success();

    let mut ids = std::collections::BTreeMap::<String, Vec<i64>>::new();
    let (mut frames, mut statistics, mut joined) = (0, 0, 0);
    while ids.get("a").is_none_or(|ids| ids.len() < 7) {
        let frame = reader.frame();
        frames += 1;
        if let DecodedFrame::Barrier(_) = decode(Bytes::from(frame.clone()), &Layouts::of(Engine::Vllm)) {
            statistics += 1;
        } else {
            for (rid, new, _) in rows(frame) {
                joined = joined.max(new.len());
                ids.entry(rid).or_default().extend(new);
            }
        }
        page.finished().unwrap();
    }
    assert_eq!(ids["a"], [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(ids["gone"], [1, 2, 3, 4, 5, 6]);
    assert!(statistics == 4 && frames < 11 && joined >= 4, "{frames} frames, {joined} ids in a row");
    afterbay.until_metrics("both requests have ended", |metrics| metrics.stream("requests_live") == 0);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    let shown = show(&sandbox, "gone");
    assert_eq!((&shown["state"], &shown["tokens_received"]), (&"finished".into(), &6.into()), "{shown}");
    let ended = &shown["ended"];
    assert_eq!((&ended["by"], &ended["scheduler_said"]), (&"client".into(), &"abort".into()), "{shown}");
    assert!(ended["reader_got"].is_null(), "{shown}");
}

#[test]
fn each_turn_of_a_session_is_a_request_and_a_slow_front_end_gets_the_turns_one_after_another() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut page = CreditWriter::open(&sandbox.credit(), ReaderKind::Tokenizer).unwrap();
    let config = config(&sandbox).credit(&sandbox).plugin("p", &guest("remembers"), "").granted(GRANT);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let turn_begins = b"{\"afterbay\":\"request\",\"rid\":\"s\",\"resumable\":true}\n";
    sender.send(turn_begins);
    // vLLM gives the first turn alone prefill_stats, and names the session at its end.
    sender.send(&frame(vec![first("s", &[1]), first("other", &[1])]).encode());
    let mut id = 1;
    for turn in 1..=3 {
        for _ in 0..3 {
            id += 1;
            sender.send(&frame(vec![row("s", &[id]), row("other", &[id])]).encode());
        }
        id += 1;
        let named = if turn == 3 { vec!["s".to_owned(), "other".to_owned()] } else { Vec::new() };
        let other = if turn == 3 { last("other", &[id]) } else { row("other", &[id]) };
        let end = SynthOutputs { finished_requests: named, ..frame(vec![last("s", &[id]), other]) };
        sender.send(&end.encode());
        if turn < 3 {
            sender.send(turn_begins);
        }
    }
    afterbay.until_metrics("all is received", |metrics| metrics.stream("frames_received_total") == 16);
    let (mut turns, mut other) = (vec![Vec::new()], Vec::new());
    while other.len() < 13 || turns.len() < 4 {
        for (rid, new, is_last) in rows(reader.frame()) {
            match &*rid {
                "s" => turns.last_mut().unwrap().extend(new),
                _ => other.extend(new),
            }
            if is_last && rid == "s" {
                turns.push(Vec::new());
            }
        }
        page.finished().unwrap();
    }
    let ids = |range: std::ops::RangeInclusive<i64>| range.collect::<Vec<_>>();
    assert_eq!(turns, [ids(1..=5), ids(6..=9), ids(10..=13), Vec::new()]);
    assert_eq!(other, ids(1..=13));
    let is_opened = |event: &Value| event["rid"] == "s" && event["line"].as_str().unwrap().contains("opened");
    let opened = afterbay.all_events_where("PluginLog", 3, is_opened);
    let resumable =
        |event: &Value| event["line"].as_str().unwrap().ends_with(r#"attributes {"resumable":"true"}"#);
    assert!(opened.iter().all(resumable), "{opened:?}");
    assert_eq!(afterbay.stop(), 0);

    let (code, report) = verify(&sandbox);
    assert_eq!((code, &report["recounted"]["requests"]), (0, &4.into()), "{report}");
    let listed = journal(&sandbox, &["ls", "--rid", "s", "--json"]).json_lines();
    let turn = |it: &Value| {
        [&it["tokens_received"], &it["finish_reason"], &it["attributes"]["resumable"]].map(Value::to_string)
    };
    let turns: Vec<_> = listed.iter().map(turn).collect();
    assert_eq!(
        turns,
        [5, 4, 4].map(|ids| [ids.to_string(), "\"length\"".into(), "\"true\"".into()]),
        "{listed:?}"
    );
}

#[test]
fn the_id_of_a_client_finds_each_sample_of_its_request_and_no_other_request() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let rules = "attribute = [{ prefix = \"chatcmpl-gw-\", set = { tier = 1 } }]";
    let afterbay = Afterbay::run(&sandbox, &config(&sandbox).stream(rules).abort_by_push(&sandbox));
    let mut engine = Input::connect_engine(&sandbox.abort_side());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (_, waits) = set_attributes(&afterbay, "chatcmpl-gw-7", r#"{"tenant": "early"}"#);
    assert!(waits["applied_to"] == json!([]) && waits["expires_in_s"].as_u64() > Some(500), "{waits}");

    let samples = ["0_chatcmpl-gw-7-aaaabbbb", "1_chatcmpl-gw-7-aaaabbbb"];
    let other = "chatcmpl-gw-70-aaaabbbb";
    sender.send(&frame(vec![first(samples[0], &[1]), first(samples[1], &[1]), first(other, &[1])]).encode());
    reader.frame();
    let (_, applied) = set_attributes(&afterbay, "chatcmpl-gw-7", r#"{"tenant": "late"}"#);
    assert_eq!(applied["applied_to"], json!(samples), "{applied}");

    let aborted: Value = serde_json::from_str(&afterbay.abort_connected("gw-7", &["--json"])).unwrap();
    let rids: Vec<&Value> = aborted["aborted"].as_array().unwrap().iter().map(|one| &one["rid"]).collect();
    assert!(rids == samples && aborted["refused"] == json!([]), "{aborted}");
    sender.send(&frame(vec![row(samples[0], &[2]), row(samples[1], &[2]), row(other, &[2])]).encode());
    let is_last: Vec<bool> = rows(reader.frame()).into_iter().map(|(.., is_last)| is_last).collect();
    assert_eq!(is_last, [true, true, false]);
    assert_eq!([engine.abort(), engine.abort()], samples);
    assert_eq!(afterbay.stop(), 0);

    let shown = journal(&sandbox, &["show", "chatcmpl-gw-7", "--json"]).json_lines();
    let rids: Vec<&Value> = shown.iter().map(|one| &one["rid"]).collect();
    assert_eq!(rids, samples);
    let attributes = json!({"tenant": "late", "tier": "1"});
    assert!(shown.iter().all(|one| one["attributes"] == attributes), "{shown:?}");
}

#[test]
fn a_plugin_ends_a_request_for_the_front_end_and_the_engine_gets_its_id() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config =
        config(&sandbox).abort_by_push(&sandbox).plugin("judges", &guest("judges"), "action = \"finish\"");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut engine = Input::connect_engine(&sandbox.abort_side());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&frame(vec![first("cmpl-1-0-0a1b2c3d", &[1, 2])]).encode());
    let sent = batch(reader.frame());
    assert!(matches!(sent.finish(0), Finish::Stop { .. }), "{:?}", sent.finish(0));
    assert_eq!(engine.abort(), "cmpl-1-0-0a1b2c3d");
    // Rows that the engine made before it got the abort.
    sender.send(&frame(vec![row("cmpl-1-0-0a1b2c3d", &[3])]).encode());
    let ended = SynthOutputs { finished_requests: vec!["cmpl-1-0-0a1b2c3d".to_owned()], ..frame(Vec::new()) };
    sender.send(&ended.encode());
    afterbay.until_metrics("the engine has ended the request", |metrics| {
        metrics.stream("tokens_swallowed_total") == 1 && metrics.stream("requests_live") == 0
    });
    assert_eq!(afterbay.stop(), 0);
    // The frames of the engine that lost their rows still have the statistics.
    assert_eq!(reader.rest().len(), 2);
    assert_eq!(verify(&sandbox).0, 0);
}
