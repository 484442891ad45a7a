//! Ending a request in the scheduler: by `afterbay abort`, over the admin address, or because a plugin finished the request.

use std::process::Stdio;
use std::time::Duration;

use afterbay_tests::admin::{Answer, JSON};
use afterbay_tests::commands::{afterbay_command, journal, json_lines, run_afterbay, show, verify};
use afterbay_tests::components::{example, guest};
use afterbay_tests::frames::{SynthRequest, WIRES, batch, row, rows};
use afterbay_tests::{Afterbay, Input, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::{Msgpack, Pickle};
use afterbay_wire::synth::{SynthFinish, SynthRow, SynthWire};
use serde_json::{Value, json};

const STOPPED: &str = "stop:afterbay: aborted by operator";

/// The scheduler's own last row of a request that it has aborted.
fn aborted(request: &mut SynthRequest) -> SynthRow {
    SynthRow { finish: Some(SynthFinish::Abort("Aborted".to_owned())), ..request.row(&[]) }
}

#[test]
fn an_abort_goes_to_the_scheduler_then_ends_the_request_for_its_reader_and_later_rows_are_swallowed() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut input = Input::connect(&sandbox.abort_side());
        let (mut a, mut b) = (SynthRequest::new("a/1 ?"), SynthRequest::new("b"));
        let mut step = |rows| {
            sender.send(&batch(wire, rows));
            afterbay_tests::frames::rows(&reader.frame())
        };
        assert_eq!(step(vec![a.row(&[1]), b.row(&[1])]).len(), 2);
        let answer = afterbay.abort_connected("a/1 ?", &["--json"]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(
            (&answer["stream"], &answer["to"]),
            (&"test".into(), &sandbox.abort_side().into()),
            "{answer}"
        );
        assert_eq!(answer["matched"], "afterbay: aborted by operator");
        // The scheduler gets the abort before the reader gets a last row.
        assert_eq!(input.abort(), "a/1 ?", "{wire:?}");
        let out = step(vec![a.row(&[2]), b.row(&[2])]);
        assert_eq!(out, [row("a/1 ?", &[2], 2, Some(STOPPED)), row("b", &[2], 2, None)], "{wire:?}");
        assert_eq!(step(vec![a.row(&[3, 4]), b.row(&[3])]), [row("b", &[3], 3, None)], "{wire:?}");
        assert_eq!(step(vec![aborted(&mut a), b.row(&[4])]), [row("b", &[4], 4, None)], "{wire:?}");
        assert_eq!(step(vec![b.last(&[5])]), [row("b", &[5], 5, Some("length"))], "{wire:?}");
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 5);
        assert_eq!(metrics.stream_by("aborts_sent_total", "by", "operator"), 1);
        assert_eq!(
            (metrics.stream("rows_swallowed_total"), metrics.stream("tokens_swallowed_total")),
            (2, 2)
        );
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.event("AbortSent")["rid"], "a/1 ?");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = show(&sandbox, "a/1 ?");
        let seen = shown["rows_seen"].as_array().unwrap();
        let did = |at: usize| (&seen[at]["actions"][0]["plugin"], &seen[at]["actions"][0]["verdict"]);
        assert_eq!(did(1), (&"(operator)".into(), &"finish".into()), "{shown}");
        assert_eq!(did(2), (&"(operator)".into(), &"drop".into()), "{shown}");
        assert_eq!(
            (&shown["tokens_received"], &shown["tokens_forwarded"]),
            (&4.into(), &2.into()),
            "{shown}"
        );
        let table = journal(&sandbox, &["show", "a/1 ?"]).success();
        assert!(table.contains("(operator): finished, \"afterbay: aborted by operator\""), "{table}");
        let ended = "An operator ended the request with row 0 of frame 2 (`afterbay abort`)";
        assert!(table.contains(ended), "{table}");
        assert_eq!(
            (&shown["ended"]["by"], &shown["ended"]["scheduler_said"]),
            (&"operator".into(), &"abort".into())
        );
    }
}

#[test]
fn the_schedulers_abort_row_becomes_a_stop_or_passes_as_requested_and_another_end_is_unchanged() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut input = Input::connect(&sandbox.abort_side());
    let mut requests = ["stop", "abort", "length", "other"].map(SynthRequest::new);
    sender.send(&batch(Pickle, requests.iter_mut().map(|request| request.row(&[1])).collect()));
    assert_eq!(rows(&reader.frame()).len(), 4);
    afterbay.abort_connected("stop", &[]);
    let answer = afterbay.abort_connected("abort", &["--reason", "abort"]);
    assert!(answer.contains("the scheduler's own row for the abort ends it"), "{answer}");
    afterbay.abort_connected("length", &[]);
    assert_eq!([(); 3].map(|()| input.abort()), ["stop", "abort", "length"]);
    let [stop, aborts, length, other] = &mut requests;
    let last = vec![aborted(stop), aborted(aborts), length.last(&[2]), other.last(&[2])];
    sender.send(&batch(Pickle, last));
    let out = rows(&reader.frame());
    let finishes: Vec<_> = out.iter().map(|row| row.finish.as_deref().unwrap()).collect();
    assert_eq!(finishes, [STOPPED, "abort", "length", "length"]);
    afterbay.until_metrics("every request has ended", |metrics| metrics.requests_ended() == 4);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn an_abort_of_all_requests_or_of_none_is_refused_with_a_reason() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let refused = |rid: &str, status: u16, code: &str, words: &str| {
        let Answer { status: answered, body } =
            afterbay.post(&format!("/v1/requests/{rid}/abort"), &[JSON], "");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((answered, &body["code"]), (status, &code.into()), "{rid:?}: {body}");
        assert!(body["error"].as_str().unwrap().contains(words), "{body}");
        let output = afterbay.abort(rid, &[]);
        // The command refuses an empty rid itself.
        assert_eq!(output.code, if rid.is_empty() { 64 } else { 1 }, "{output:?}");
        assert!(output.stderr.contains(words), "{output:?}");
    };
    refused("a", 404, "not_live", "request \"a\" is not live");
    let names = ["a", "ab", "HEALTH_CHECK_1763649000.1", "alone"];
    sender.send(&batch(Msgpack, names.map(|name| SynthRequest::new(name).row(&[1])).to_vec()));
    assert_eq!(rows(&reader.frame()).len(), 4);
    refused("alone", 503, "failed", &format!("no scheduler is connected to {}", sandbox.abort_side()));
    let mut input = Input::connect(&sandbox.abort_side());
    refused("", 400, "empty", "every request");
    refused("HEALTH_CHECK_1763649000.1", 400, "health_check", "is never aborted");
    refused("al", 404, "not_live", "is not live");
    // None of these was sent: the next abort is the first that the scheduler receives. It ends "a" alone.
    afterbay.abort_connected("a", &[]);
    assert_eq!(input.abort(), "a");
    let metrics = afterbay.metrics();
    assert!(metrics.stream_by("aborts_failed_total", "by", "operator") >= 2);
    drop(input);
    assert!(afterbay.event("AbortFailed")["why"].as_str().unwrap().contains("no scheduler is connected"));
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_page_in_a_browser_cannot_end_a_request() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
    let path = "/v1/requests/a/abort";
    let status = |headers: &[&str], body: &str| afterbay.post(path, headers, body).status;
    assert_eq!(status(&[JSON, "Origin: http://evil.example"], ""), 403);
    assert_eq!(status(&[JSON, "Origin: null"], ""), 403);
    // The content type of a form, or of a script without permission.
    assert_eq!(status(&["Content-Type: text/plain"], "{}"), 415);
    assert_eq!(status(&[], ""), 415);
    assert_eq!(afterbay.get(path).status, 405);
    assert_eq!(status(&[JSON], "{\"reasons\": 1}"), 400);
    assert_eq!(status(&[JSON], &" ".repeat(5000)), 413);
    assert_eq!(status(&[JSON], "{\"reason\": \"abort\"}"), 404);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn an_abort_without_a_channel_to_the_scheduler_names_the_missing_setting() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("a").row(&[1])]));
    reader.frame();
    let output = afterbay.abort("a", &["--json"]);
    assert_eq!(output.code, 1);
    let [answer] = json_lines(&output.stdout).try_into().unwrap();
    assert_eq!(answer["code"], "no_way", "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("has no [stream.abort]"), "{answer}");
    assert_eq!(afterbay.stop(), 0);
    let nobody = run_afterbay(&["abort", "a", "--admin", "127.0.0.1:1"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.stderr.contains("127.0.0.1:1: cannot be connected to"), "{nobody:?}");
}

#[test]
fn a_request_that_a_plugin_finishes_is_aborted_in_the_scheduler_under_its_whole_rid() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config =
        sandbox.config().abort_by_push(&sandbox).plugin("loops", &example("stop-on-loop"), "window = 8");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    // No scheduler is connected. The request still ends for its reader.
    sender.send(&batch(Msgpack, vec![SynthRequest::new("early").row(&[7; 8])]));
    assert_eq!(rows(&reader.frame()), [row("early", &[7; 8], 8, Some("stop:stop-on-loop"))]);
    let failed = afterbay.event("AbortFailed");
    assert_eq!((&failed["rid"], &failed["by"]), (&"early".into(), &"plugin loops".into()));
    let mut input = Input::connect(&sandbox.abort_side());
    // Waits until Afterbay has seen the connection. A request that has ended for its reader can still be aborted.
    let answer = afterbay.abort_connected("early", &[]);
    assert!(answer.contains("loops had already ended it for its reader"), "{answer}");
    assert_eq!(input.abort(), "early");

    let mut next = |rows: Vec<SynthRow>| {
        sender.send(&batch(Msgpack, rows));
        afterbay_tests::frames::rows(&reader.frame())
    };
    let (mut longer, mut ends) = (SynthRequest::new("looped-2"), SynthRequest::new("ends"));
    let out = next(vec![SynthRequest::new("looped").row(&[7; 8]), longer.row(&[1]), ends.row(&[1])]);
    assert_eq!(out[0].finish.as_deref(), Some("stop:stop-on-loop"));
    assert_eq!(input.abort(), "looped");
    // A request that the scheduler ends in the same row needs no abort.
    next(vec![longer.row(&[7; 8]), ends.last(&[7; 8])]);
    assert_eq!(input.abort(), "looped-2");
    assert_eq!(input.next_within(Duration::from_millis(50)), None);
    let metrics = afterbay.until_metrics("the abort is counted", |metrics| {
        metrics.stream_by("aborts_sent_total", "by", "plugin") == 2
    });
    assert_eq!(metrics.stream_by("aborts_failed_total", "by", "plugin"), 1);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn an_abort_ends_a_request_whose_rows_wait_and_plugins_get_its_close() {
    let sandbox = Sandbox::new();
    let config = sandbox
        .config()
        .abort_by_push(&sandbox)
        .plugin("reports", &guest("reports"), "")
        .sink("queue = { frames = 1 }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut input = Input::connect(&sandbox.abort_side());
    let mut a = SynthRequest::new("a");
    let received = |frames| {
        afterbay.until_metrics("the frame is received", |metrics| {
            metrics.stream("frames_received_total") == frames
        })
    };
    for _ in 0..5 {
        sender.send(&batch(Msgpack, vec![a.row(&[1])]));
    }
    received(5);
    afterbay.abort_connected("a", &[]);
    assert_eq!(input.abort(), "a");
    sender.send(&batch(Msgpack, vec![a.row(&[2])]));
    sender.send(&batch(Msgpack, vec![a.row(&[3])]));
    received(7);
    let closed = afterbay.event_where("PluginLog", |event| event["line"] == "closed");
    assert_eq!(closed["rid"], "a", "{closed}");
    // The plugin drops every token, but the reader gets the first and the last row.
    let mut reader = Reader::bind(&sandbox.reader_side());
    assert_eq!(rows(&reader.frame()), [row("a", &[], 0, None)]);
    assert_eq!(rows(&reader.frame()), [row("a", &[], 0, Some(STOPPED))]);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(reader.rest().len(), 0);
}

/// Two requests with a row each. The operator has aborted the first, and the scheduler has received the abort.
fn with_aborted_request(wire: SynthWire) -> (Sandbox, Afterbay, (Reader, Sender, Input), [SynthRequest; 2]) {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut input = Input::connect(&sandbox.abort_side());
    let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
    sender.send(&batch(wire, vec![a.row(&[1]), b.row(&[1])]));
    reader.frame();
    afterbay.abort_connected("a", &[]);
    assert_eq!(input.abort(), "a");
    (sandbox, afterbay, (reader, sender, input), [a, b])
}

#[test]
fn an_aborted_request_stays_ended_after_a_restart() {
    let (sandbox, afterbay, (mut reader, mut sender, _input), [mut a, mut b]) = with_aborted_request(Msgpack);
    sender.send(&batch(Msgpack, vec![a.row(&[2]), b.row(&[2])]));
    assert_eq!(rows(&reader.frame())[0].finish.as_deref(), Some(STOPPED));
    afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 2);
    assert_eq!(afterbay.stop(), 0);

    let afterbay = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
    // The scheduler's encoding is known from its batches, and it has sent none.
    let unknown = afterbay.abort("b", &[]);
    assert!(unknown.stderr.contains("no batch has been received since the start"), "{unknown:?}");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut input = Input::connect(&sandbox.abort_side());
    sender.send(&batch(Msgpack, vec![a.row(&[3]), b.row(&[3])]));
    assert_eq!(rows(&reader.frame()), [row("b", &[3], 3, None)]);
    afterbay.abort_connected("b", &[]);
    assert_eq!(input.abort(), "b");
    sender.send(&batch(Msgpack, vec![aborted(&mut a), aborted(&mut b)]));
    assert_eq!(rows(&reader.frame()), [row("b", &[], 3, Some(STOPPED))]);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn an_operators_abort_survives_kill_9() {
    for wire in WIRES {
        let (sandbox, afterbay, (mut reader, _sender, _input), [mut a, mut b]) = with_aborted_request(wire);
        afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 1);
        afterbay.kill();

        let afterbay = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut step = |rows| {
            sender.send(&batch(wire, rows));
            afterbay_tests::frames::rows(&reader.frame())
        };
        let out = step(vec![a.row(&[2]), b.row(&[2])]);
        assert_eq!(out, [row("a", &[2], 2, Some(STOPPED)), row("b", &[2], 2, None)], "{wire:?}");
        assert_eq!(step(vec![a.row(&[3]), b.row(&[3])]), [row("b", &[3], 3, None)], "{wire:?}");
        assert_eq!(step(vec![aborted(&mut a), b.last(&[4])]), [row("b", &[4], 4, Some("length"))]);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn an_abort_goes_only_to_the_rank_that_has_the_request() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let end = |end: &str, rank: usize| sandbox.ipc(&format!("{end}-{rank}"));
        let streams = (0..2).map(|rank| {
            format!(
                "[[stream]]\nname = \"rank-{rank}\"\nlisten = {:?}\n[[stream.sink]]\nname = \"reader\"\nconnect = {:?}\n\
                 [stream.abort]\npush = {:?}\n",
                end("in", rank),
                end("out", rank),
                end("abort", rank)
            )
        });
        let rest = "[admin]\nlisten = \"127.0.0.1:0\"\n";
        let config =
            format!("{}[journal]\ndir = {:?}\n{rest}", streams.collect::<String>(), sandbox.journal());
        let ranks = [0, 1];
        let mut readers = ranks.map(|rank| Reader::bind(&end("out", rank)));
        let afterbay = Afterbay::run_toml(&sandbox, &config, &[]);
        let mut senders = ranks.map(|rank| Sender::connect(&end("in", rank)));
        let mut inputs = ranks.map(|rank| Input::connect(&end("abort", rank)));
        let mut requests = [["a", "b"], ["c", "d"]].map(|names| names.map(SynthRequest::new));
        let mut step = |ids: &[i64]| {
            ranks.map(|rank| {
                let next = requests[rank].iter_mut().map(|request| request.row(ids)).collect();
                senders[rank].send(&batch(wire, next));
                rows(&readers[rank].frame())
            })
        };
        step(&[1]);
        for (rid, rank) in [("d", 1), ("a", 0)] {
            let answer: Value = serde_json::from_str(&afterbay.abort_connected(rid, &["--json"])).unwrap();
            assert_eq!(
                (&answer["stream"], &answer["to"]),
                (&format!("rank-{rank}").into(), &end("abort", rank).into())
            );
            assert_eq!(inputs[rank].abort(), rid, "{wire:?}");
            assert_eq!(inputs[1 - rank].next_within(Duration::from_millis(20)), None, "{wire:?}");
        }
        let of_rank_0 = vec![row("a", &[2], 2, Some(STOPPED)), row("b", &[2], 2, None)];
        let of_rank_1 = vec![row("c", &[2], 2, None), row("d", &[2], 2, Some(STOPPED))];
        assert_eq!(step(&[2]), [of_rank_0, of_rank_1], "{wire:?}");
        assert_eq!(step(&[3]), [[row("b", &[3], 3, None)], [row("c", &[3], 3, None)]], "{wire:?}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(journal(&sandbox, &["verify"]).code, 0);
    }
}

#[test]
fn the_simulated_scheduler_takes_aborts_as_sglang_does() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay_run = Afterbay::run(&sandbox, &sandbox.config().abort_by_push(&sandbox));
    let (into, push) = (sandbox.scheduler_side(), sandbox.abort_side());
    let mut sim =
        afterbay_command(&["sim", "scheduler", "--connect", &into, "--aborts", &push, "--requests", "3"]);
    let load = ["--tokens", "100", "--steps-per-second", "200", "--wire", "msgpack", "--json"];
    let sim = sim.args(load).stdout(Stdio::piped()).spawn().unwrap();
    let rid = rows(&reader.frame())[0].rid.clone();
    afterbay_run.abort_connected(&rid, &[]);
    let (mut ends, mut tokens) = (Vec::new(), 1);
    while ends.len() < 3 {
        for row in rows(&reader.frame()) {
            tokens += if row.rid == rid { row.ids.len() } else { 0 };
            ends.extend(row.finish.map(|finish| (row.rid == rid, finish)));
        }
    }
    ends.sort();
    let length = (false, "length".to_owned());
    assert_eq!(ends, [length.clone(), length, (true, STOPPED.to_owned())]);
    let output = sim.wait_with_output().unwrap();
    let sent: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [all, others] = [sent["tokens"].as_u64().unwrap(), 200];
    assert!((others + tokens as u64..300).contains(&all), "{all} tokens, of which the reader has {tokens}");
    assert_eq!((&sent["requests"], afterbay_run.stop()), (&json!(3), 0));
    assert_eq!(verify(&sandbox).0, 0);
}
