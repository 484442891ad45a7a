//! Held rows: they wait, continue as one row, and are sent exactly once through faults, reloads, stops and kills.

use std::path::PathBuf;

use afterbay_tests::commands::{journal, show, verify};
use afterbay_tests::components::{guest, install};
use afterbay_tests::frames::{ReaderRow, SynthRequest, WIRES, batch, ids, row, rows};
use afterbay_tests::holds::{
    DROP, FINISH, HOLD, LONG, PANIC, RELEASE, RELEASE_AND_HOLD, RELEASE_AS, holding, holds, holds_by,
};
use afterbay_tests::sandbox::Config;
use afterbay_tests::{Afterbay, Input, Reader, Sandbox, Sender, repository};
use afterbay_wire::synth::SynthWire::Msgpack;
use afterbay_wire::{DecodedFrame, Edit, Layouts, TokenEdit, Wrapped};
use serde_json::json;

/// A tokenizer and the guest `holds` as a component that can be replaced.
fn installed(sandbox: &Sandbox) -> (PathBuf, Config) {
    let component = sandbox.path("plugin.wasm");
    install(&guest("holds"), 0, &component);
    let config = holds_by(
        &component,
        sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\""),
        "holds",
        LONG,
    );
    (component, config)
}

/// The verdicts and the forwarded tokens of each row of a request, from `journal show`.
fn shown(sandbox: &Sandbox, rid: &str) -> Vec<(Vec<String>, u64)> {
    let of_row = |row: &serde_json::Value| {
        let actions = row["actions"].as_array().unwrap().iter();
        let verdicts = actions.map(|action| action["verdict"].as_str().unwrap().to_owned()).collect();
        (verdicts, row["tokens_forwarded"].as_u64().unwrap())
    };
    show(sandbox, rid)["rows_seen"].as_array().unwrap().iter().map(of_row).collect()
}

#[test]
fn held_rows_continue_as_one_row_with_the_row_that_releases_them() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &holding(&sandbox, LONG));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        sender.send(&batch(wire, vec![a.row(&[1]), b.row(&[1])]));
        assert_eq!(rows(&reader.frame()), [row("a", &[1], 1, None), row("b", &[1], 1, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[HOLD]), b.row(&[2])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[2], 2, None)], "{wire:?}");
        // Later rows wait too, whatever their verdict.
        sender.send(&batch(wire, vec![a.row(&[5]), b.row(&[3])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[3], 3, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[DROP, 6]), b.row(&[4])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[4], 4, None)], "{wire:?}");
        let metrics =
            afterbay.until_metrics("the rows wait", |metrics| metrics.plugin("holds", "held_rows") == 3);
        assert_eq!(metrics.plugin("holds", "held_tokens"), 2);
        sender.send(&batch(wire, vec![a.row(&[RELEASE]), b.row(&[5])]));
        let out = rows(&reader.frame());
        assert_eq!(out, [row("a", &[HOLD, 5, RELEASE], 4, None), row("b", &[5], 5, None)], "{wire:?}");
        // A frame of which nothing is sent, then a replacement for all held rows.
        sender.send(&batch(wire, vec![a.row(&[HOLD, 9])]));
        sender.send(&batch(wire, vec![a.row(&[RELEASE_AS])]));
        assert_eq!(rows(&reader.frame()), [row("a", &[7], 5, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.last(&[8])]));
        assert_eq!(rows(&reader.frame()), [row("a", &[8], 6, Some("length"))], "{wire:?}");

        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 8);
        let of_tokens = ["received", "forwarded", "dropped"];
        let tokens = of_tokens.map(|name| metrics.stream(&format!("tokens_{name}_total")));
        // The replacement stands for three tokens.
        assert_eq!(tokens, [15, 10, 2], "{wire:?}");
        let by = |why| metrics.plugin_by("holds", "holds_ended_total", "reason", why);
        assert_eq!((by("verdict"), by("time"), by("last")), (2, 0, 0));
        let verdicts = |action| metrics.plugin_by("holds", "verdicts_total", "action", action);
        assert_eq!((verdicts("hold"), verdicts("release"), verdicts("release_as")), (2, 1, 1));
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let expected: [(&[&str], u64); 8] = [
            (&[], 1),
            (&["hold"], 0),
            (&["hold"], 0),
            (&["drop", "hold"], 0),
            (&["release"], 3),
            (&["hold"], 0),
            (&["release", "replace"], 1),
            (&[], 1),
        ];
        let owned = |verdicts: &[&str]| verdicts.iter().map(|&verdict| verdict.to_owned()).collect();
        assert_eq!(shown(&sandbox, "a"), expected.map(|(verdicts, tokens)| (owned(verdicts), tokens)));
        let shown = show(&sandbox, "a");
        let counts = ["tokens_received", "tokens_forwarded", "tokens_replaced", "tokens_dropped"];
        assert_eq!(counts.map(|name| shown[name].as_u64()), [10, 6, 3, 2].map(Some), "{shown}");
        let table = journal(&sandbox, &["show", "a"]).success();
        assert!(table.contains("holds: held, for at most 60000 ms"), "{table}");
        assert!(table.contains("holds: released with 3 held rows"), "{table}");
    }
}

#[test]
fn held_rows_leave_as_they_came_for_a_reader_that_needs_single_rows() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let sink = sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"single\"");
    let afterbay = Afterbay::run(&sandbox, &holds(sink, "holds", LONG));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD]), b.row(&[2])]));
    sender.send(&batch(Msgpack, vec![a.row(&[5])]));
    sender.send(&batch(Msgpack, vec![a.row(&[RELEASE])]));
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD])]));
    sender.send(&batch(Msgpack, vec![a.last(&[8])]));
    let expected = [
        row("b", &[2], 1, None),
        row("a", &[HOLD], 1, None),
        row("a", &[5], 2, None),
        row("a", &[RELEASE], 3, None),
        row("a", &[HOLD], 4, None),
        row("a", &[8], 5, Some("length")),
    ];
    for row in expected {
        assert_eq!(rows(&reader.frame()), [row]);
    }
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn held_rows_continue_unchanged_when_their_time_is_over_without_a_further_frame() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &holding(&sandbox, "millis = 30"));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        sender.send(&batch(wire, vec![a.row(&[HOLD, 1]), b.row(&[HOLD, 2])]));
        // The rows arrive in a frame of Afterbay's own.
        assert_eq!(
            rows(&reader.frame()),
            [row("a", &[HOLD, 1], 2, None), row("b", &[HOLD, 2], 2, None)],
            "{wire:?}"
        );
        let event = afterbay.event("HoldEnded");
        assert_eq!((&event["rid"], &event["why"]), (&"a".into(), &"time limit reached".into()), "{event}");
        sender.send(&batch(wire, vec![a.last(&[3]), b.last(&[4])]));
        let ended = [row("a", &[3], 3, Some("length")), row("b", &[4], 3, Some("length"))];
        assert_eq!(rows(&reader.frame()), ended, "{wire:?}");
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 3);
        assert_eq!(metrics.plugin_by("holds", "holds_ended_total", "reason", "time"), 2);
        assert_eq!(
            (metrics.stream("tokens_received_total"), metrics.stream("tokens_forwarded_total")),
            (6, 6)
        );
        assert_eq!(metrics.stream("frames_received_total"), 2);
        assert_eq!(afterbay.events("FrameNotUnderstood").len(), 0);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let actions = shown(&sandbox, "a");
        assert_eq!(actions.len(), 3);
        assert_eq!(actions[1], (vec!["release".to_owned()], 2));

        // Replay does not send Afterbay's own frame, and export shows it.
        let to = sandbox.ipc("replayed");
        let mut again = Reader::bind(&to);
        let replayed = std::thread::scope(|scope| {
            let replays = scope.spawn(|| journal(&sandbox, &["replay", "--all", "--to", &to]).success());
            let frames = again.take(2);
            drop(replays.join().unwrap());
            frames
        });
        assert!(replayed.iter().all(|frame| rows(frame).len() == 2), "{wire:?}");
        assert_eq!(again.rest().len(), 0);
        let exported = journal(&sandbox, &["export"]).json_lines();
        let is_own = |frame: &&serde_json::Value| frame["barrier"] == "release marker";
        let (own, received): (Vec<_>, Vec<_>) = exported.iter().partition(is_own);
        assert_eq!((own.len(), received.len()), (1, 2), "{exported:?}");
        assert!(own[0]["sent"].is_object() && own[0]["message"].is_null(), "{own:?}");
        assert!(received.iter().all(|frame| frame["message"].is_object()), "{exported:?}");
    }
}

#[test]
fn the_last_row_or_a_finish_releases_held_rows_unchanged() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &holding(&sandbox, LONG));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        sender.send(&batch(wire, vec![a.row(&[HOLD]), b.row(&[HOLD])]));
        // A last row is not held.
        sender.send(&batch(wire, vec![a.last(&[HOLD, 1]), b.row(&[FINISH])]));
        let out = rows(&reader.frame());
        let ended = [
            row("a", &[HOLD, HOLD, 1], 3, Some("length")),
            row("b", &[HOLD, FINISH], 2, Some("stop:as requested")),
        ];
        assert_eq!(out, ended, "{wire:?}");
        sender.send(&batch(wire, vec![b.last(&[5])]));
        let metrics = afterbay.until_metrics("later rows are swallowed", |metrics| {
            metrics.stream("tokens_swallowed_total") == 1
        });
        assert_eq!(metrics.plugin_by("holds", "holds_ended_total", "reason", "last"), 2);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn release_and_hold_releases_the_held_rows_and_holds_the_new_row() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &holding(&sandbox, LONG));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        // No rows are held, so the verdict is a hold.
        sender.send(&batch(wire, vec![a.row(&[RELEASE_AND_HOLD, 1]), b.row(&[1])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[1], 1, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[2]), b.row(&[2])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[2], 2, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[RELEASE_AND_HOLD]), b.row(&[3])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[3], 3, None)], "{wire:?}");
        assert_eq!(rows(&reader.frame()), [row("a", &[RELEASE_AND_HOLD, 1, 2], 3, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[RELEASE_AND_HOLD, 5])]));
        assert_eq!(rows(&reader.frame()), [row("a", &[RELEASE_AND_HOLD], 4, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[RELEASE, 3])]));
        assert_eq!(
            rows(&reader.frame()),
            [row("a", &[RELEASE_AND_HOLD, 5, RELEASE, 3], 8, None)],
            "{wire:?}"
        );
        // A last row is not held.
        sender.send(&batch(wire, vec![a.row(&[RELEASE_AND_HOLD])]));
        sender.send(&batch(wire, vec![a.last(&[RELEASE_AND_HOLD, 4])]));
        let last = row("a", &[RELEASE_AND_HOLD, RELEASE_AND_HOLD, 4], 11, Some("length"));
        assert_eq!(rows(&reader.frame()), [last], "{wire:?}");
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 9);
        let by = |why| metrics.plugin_by("holds", "holds_ended_total", "reason", why);
        assert_eq!((by("verdict"), by("time"), by("last")), (3, 0, 1), "{wire:?}");
        assert_eq!(metrics.plugin_by("holds", "verdicts_total", "action", "release_and_hold"), 5);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        afterbay.all_events_where("HoldEnded", 1, |ended| ended["plugin"] == "holds");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn later_plugins_see_released_rows_as_one_row() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config =
        holds(holding(&sandbox, "millis = 60000, logs = true"), "second", "millis = 30, at = 5, logs = true");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut a = SynthRequest::new("a");
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD])]));
    sender.send(&batch(Msgpack, vec![a.row(&[5])]));
    sender.send(&batch(Msgpack, vec![a.row(&[RELEASE])]));
    // The second plugin holds the row that the first has released, until its time is over.
    assert_eq!(rows(&reader.frame()), [row("a", &[HOLD, 5, RELEASE], 3, None)]);
    sender.send(&batch(Msgpack, vec![a.last(&[6])]));
    assert_eq!(rows(&reader.frame()), [row("a", &[6], 4, Some("length"))]);
    for plugin in ["holds", "second"] {
        afterbay
            .event_where("PluginLog", |log| log["plugin"] == plugin && log["line"] == "shown [6], 0 wait");
    }
    let log_lines = |plugin: &str| -> Vec<String> {
        let lines = afterbay.events("PluginLog").into_iter().filter(|line| line["plugin"] == plugin);
        lines.map(|line| line["line"].as_str().unwrap().to_owned()).collect()
    };
    let first = ["shown [101], 0 wait", "shown [5], 1 wait", "shown [102], 2 wait", "shown [6], 0 wait"]
        .map(str::to_owned);
    assert_eq!(log_lines("holds"), first);
    assert_eq!(log_lines("second"), ["shown [101, 5, 102], 0 wait", "shown [6], 0 wait"].map(str::to_owned));
    assert_eq!(afterbay.metrics().stream("request_imbalances_total"), 0);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    let actions = shown(&sandbox, "a");
    assert_eq!(actions[2], (vec!["release".to_owned(), "hold".to_owned()], 0));
    assert_eq!(actions[3], (vec!["release".to_owned()], 3));
}

#[test]
fn a_fault_releases_the_plugins_held_rows_unchanged() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &holding(&sandbox, LONG));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD]), b.row(&[HOLD])]));
    sender.send(&batch(Msgpack, vec![a.row(&[PANIC])]));
    let mut out = rows(&reader.frame());
    while out.len() < 2 {
        out.extend(rows(&reader.frame()));
    }
    assert_eq!(out, [row("a", &[HOLD, PANIC], 2, None), row("b", &[HOLD], 1, None)]);
    let event = afterbay.event("HoldEnded");
    assert_eq!(event["why"], "plugin instance replaced", "{event}");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_stop_sends_held_rows() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &holding(&sandbox, LONG));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD]), b.row(&[1])]));
    assert_eq!(rows(&reader.frame()), [row("b", &[1], 1, None)]);
    afterbay.until_metrics("the row waits", |metrics| metrics.plugin("holds", "held_rows") == 1);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(rows(&reader.frame()), [row("a", &[HOLD], 1, None)]);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn after_kill_9_held_rows_are_sent_once_and_released_rows_are_not_repeated() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
        let config = holds(holds(config, "holds", LONG), "second", "millis = 60000, at = 5");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b, mut c) = (SynthRequest::new("a"), SynthRequest::new("b"), SynthRequest::new("c"));
        let mut read = |reader: &mut Reader| {
            let frame = reader.frame();
            credit.finished().unwrap();
            rows(&frame)
        };
        sender.send(&batch(wire, vec![a.row(&[HOLD, 1]), b.row(&[HOLD]), c.row(&[HOLD])]));
        sender.send(&batch(wire, vec![a.row(&[2]), b.row(&[RELEASE]), c.row(&[5])]));
        assert_eq!(read(&mut reader), [row("b", &[HOLD, RELEASE], 2, None)], "{wire:?}");
        // The second plugin holds `c` now.
        sender.send(&batch(wire, vec![c.row(&[RELEASE]), b.row(&[DROP])]));
        sender.send(&batch(wire, vec![b.row(&[3])]));
        assert_eq!(read(&mut reader), [row("b", &[3], 3, None)], "{wire:?}");
        afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 4);
        afterbay.kill();

        let afterbay = Afterbay::run(&sandbox, &config);
        // The second plugin sees the rows that the first held, then its own held rows continue.
        let mut out = read(&mut reader);
        while out.len() < 2 {
            out.extend(read(&mut reader));
        }
        out.sort_by(|one, other| one.rid.cmp(&other.rid));
        assert_eq!(
            out,
            [row("a", &[HOLD, 1, 2], 3, None), row("c", &[HOLD, 5, RELEASE], 3, None)],
            "{wire:?}"
        );
        let event = afterbay.event("HoldEnded");
        assert_eq!(event["why"], "held before the last start or panic", "{event}");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&batch(wire, vec![a.last(&[4]), b.last(&[6]), c.last(&[7])]));
        let ended = [
            row("a", &[4], 4, Some("length")),
            row("b", &[6], 4, Some("length")),
            row("c", &[7], 4, Some("length")),
        ];
        assert_eq!(read(&mut reader), ended, "{wire:?}");
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.sink("taken_frame") == 7);
        assert_eq!(metrics.stream("request_imbalances_total"), 0, "{}", afterbay.log());
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        // No row is held any more.
        assert!(journal(&sandbox, &["ls"]).success().contains("finished"));
    }
}

#[test]
fn held_rows_and_spilled_frames_are_sent_in_order() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
        let config = holds(config.sink("queue = { frames = 4 }"), "holds", LONG);
        let afterbay = Afterbay::run(&sandbox, &holds(config, "second", "millis = 30, at = 5"));
        afterbay.event("CreditSeen");
        reader.wait_connected();
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let [mut a, mut b, mut c, mut d] = ["a", "b", "c", "d"].map(SynthRequest::new);
        sender.send(&batch(wire, vec![a.row(&[HOLD]), b.row(&[HOLD]), c.row(&[5]), d.row(&[1])]));
        for id in 1000..1020 {
            sender.send(&batch(wire, vec![a.row(&[id]), d.row(&[id])]));
        }
        // The released row is in a frame of Afterbay's own, which spills too.
        afterbay.event_where("HoldEnded", |ended| ended["rid"] == "c");
        sender.send(&batch(wire, vec![a.row(&[RELEASE]), b.row(&[RELEASE_AS])]));
        sender.send(&batch(wire, vec![a.row(&[HOLD]), b.row(&[8])]));
        let metrics = afterbay.until_metrics("the rows wait", |metrics| {
            metrics.stream("frames_received_total") == 23 && metrics.plugin("holds", "held_rows") == 1
        });
        assert!(metrics.stream("spilled_frames") > 10, "{} frames", metrics.stream("spilled_frames"));
        sender.send(&batch(wire, vec![a.last(&[2]), b.last(&[9]), c.last(&[6]), d.last(&[3])]));
        let mut frames = Vec::new();
        while frames.iter().flat_map(|frame: &Vec<u8>| rows(frame)).filter(|row| row.finish.is_some()).count()
            < 4
        {
            frames.push(reader.frame());
            credit.finished().unwrap();
        }
        let received: Vec<i64> = (1000..1020).collect();
        let expected = [
            ("a", [&[HOLD], &received[..], &[RELEASE, HOLD, 2]].concat()),
            ("b", vec![7, 8, 9]),
            ("c", vec![5, 6]),
            ("d", [&[1], &received[..], &[3]].concat()),
        ];
        assert_eq!(ids(&frames), expected.map(|(rid, ids)| (rid.to_owned(), ids)).into(), "{wire:?}");
        let metrics = afterbay.until_metrics("no row waits", |metrics| metrics.stream("requests_live") == 0);
        assert_eq!((metrics.stream("spilled_frames"), metrics.stream("request_imbalances_total")), (0, 0));
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

/// Sends a row that is held, reloads the plugin, and sends two more rows. Returns the rows of the request that the reader receives with
/// each of the two. `policy` is a line of the plugin's configuration.
fn held_over_a_reload(policy: &str) -> [Vec<ReaderRow>; 2] {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let (component, config) = installed(&sandbox);
    let afterbay = Afterbay::run(&sandbox, &config.plugin_line(policy));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD]), b.row(&[1])]));
    assert_eq!(rows(&reader.frame()), [row("b", &[1], 1, None)]);
    install(&guest("holds"), 1, &component);
    afterbay.event("PluginReloaded");
    let left = [2, RELEASE].map(|id| {
        sender.send(&batch(Msgpack, vec![a.row(&[id]), b.row(&[id])]));
        let mut of_a = rows(&reader.frame());
        // The held row may arrive in an earlier frame.
        while of_a.last().is_none_or(|row| row.rid == "a") {
            of_a.extend(rows(&reader.frame()));
        }
        assert_eq!(of_a.pop().unwrap().ids, [id]);
        of_a
    });
    assert_eq!(afterbay.metrics().stream("request_imbalances_total"), 0);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    left
}

#[test]
fn a_reload_releases_held_rows_unchanged() {
    let [first, second] = held_over_a_reload("");
    let ids: Vec<i64> = first.iter().flat_map(|row| row.ids.clone()).collect();
    assert_eq!((ids, first.last().unwrap().completion_tokens), (vec![HOLD, 2], 2));
    assert_eq!(second, [row("a", &[RELEASE], 3, None)]);
}

#[test]
fn with_on_fault_terminate_a_reload_ends_the_requests_of_held_rows() {
    let [first, second] = held_over_a_reload("on_fault = \"terminate\"");
    assert_eq!((first, second), (vec![row("a", &[], 0, Some("abort"))], vec![]));
}

#[test]
fn tokens_that_remain_in_a_replacement_of_held_rows_keep_their_logprobs() {
    for (wire, name) in [("msgpack", "tokid_logprobs.msgpack"), ("pickle", "tokid_logprobs.pickle")] {
        let decoded = |frame: Vec<u8>| match afterbay_wire::decode(frame.into(), &Layouts::builtin()) {
            DecodedFrame::Batch(batch) => batch,
            DecodedFrame::Barrier(_) => panic!("{wire}: no batch"),
        };
        let fixture = std::fs::read(repository().join("tests/fixtures/versions/0.5.23").join(name)).unwrap();
        let received = decoded(fixture).take(&[0]).unwrap();
        let with = |completion_tokens: u64, tokens: TokenEdit| {
            let edit = Edit { tokens, completion_tokens: Some(completion_tokens), ..Edit::new(0) };
            received.edit(&[edit]).unwrap().unwrap().bytes().clone()
        };
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let settings = "millis = 60000, at = 910, replacement = [910, 7]";
        let afterbay = Afterbay::run(&sandbox, &holding(&sandbox, settings));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&with(1, TokenEdit::Keep));
        sender.send(&with(2, TokenEdit::Delta(vec![RELEASE_AS])));
        let left = reader.frame();
        assert_eq!(rows(&left), [row(received.rid(0), &[910, 7], 2, None)], "{wire}");
        let (received, left) = (received.to_json(Wrapped::Open), decoded(left).to_json(Wrapped::Open));
        assert_eq!(left["decode_ids"], left["output_ids"], "{wire}");
        // A new token gets a neutral logprob.
        for (column, neutral) in [
            ("output_token_logprobs_val", json!(0.0)),
            ("output_token_logprobs_idx", json!(7)),
            ("output_top_logprobs_val", json!(null)),
            ("output_top_logprobs_idx", json!(null)),
            ("output_token_ids_logprobs_val", json!(null)),
        ] {
            assert_eq!(left[column], json!([[received[column][0][0], neutral]]), "{wire}: {column}");
        }
        assert_eq!(afterbay.metrics().stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn with_on_fault_terminate_a_fault_drops_held_rows_and_ends_their_requests() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = holding(&sandbox, LONG).plugin_line("on_fault = \"terminate\"").abort_by_push(&sandbox);
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut input = Input::connect(&sandbox.abort_side());
        let [mut a, mut b, mut c, mut warm] = ["a", "b", "c", "warm"].map(SynthRequest::new);
        sender.send(&batch(wire, vec![a.row(&[1]), b.row(&[HOLD]), c.row(&[1]), warm.row(&[1])]));
        assert_eq!(rows(&reader.frame()).len(), 3, "{wire:?}");
        afterbay.abort_connected("warm", &[]);
        assert_eq!(input.abort(), "warm");
        sender.send(&batch(wire, vec![a.row(&[HOLD]), c.row(&[2])]));
        assert_eq!(rows(&reader.frame()), [row("c", &[2], 2, None)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[PANIC])]));
        let mut out = rows(&reader.frame());
        while out.len() < 2 {
            out.extend(rows(&reader.frame()));
        }
        assert_eq!(out, [row("a", &[], 1, Some("abort")), row("b", &[], 0, Some("abort"))], "{wire:?}");
        assert_eq!([input.abort(), input.abort()], ["a", "b"]);
        // Other requests are unchanged, and later rows of the ended ones are swallowed.
        sender.send(&batch(wire, vec![a.row(&[3]), b.row(&[3]), c.last(&[3])]));
        assert_eq!(rows(&reader.frame()), [row("c", &[3], 3, Some("length"))], "{wire:?}");
        let metrics = afterbay.until_metrics("later rows are swallowed", |metrics| {
            metrics.stream("tokens_swallowed_total") == 2
        });
        let tokens = ["received", "forwarded", "dropped", "swallowed"];
        let tokens = tokens.map(|what| metrics.stream(&format!("tokens_{what}_total")));
        assert_eq!(tokens, [10, 5, 3, 2], "{wire:?}");
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}
