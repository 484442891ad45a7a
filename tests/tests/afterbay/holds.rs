//! Rows that a plugin holds: they wait, go on as one, and none is lost or comes twice, whatever happens meanwhile.

use std::time::Duration;

use afterbay_tests::afterbay::{journal, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{Request, Row, WIRES, batch, rows};
use afterbay_tests::stage::Config;
use afterbay_tests::{Afterbay, Reader, Sender, Stage};
use afterbay_wire::synth::SynthWire::Msgpack;

const HOLD: i64 = 101;
const RELEASE: i64 = 102;
const RELEASE_AS: i64 = 103;
const DROP: i64 = 104;
const FINISH: i64 = 105;
const PANIC: i64 = 106;

/// Long enough that no test waits for it.
const LONG: &str = "millis = 60000";

fn row(rid: &str, ids: &[i64], completion_tokens: u64) -> Row {
    Row { rid: rid.to_owned(), ids: ids.to_vec(), completion_tokens, finish: None }
}

fn last(rid: &str, ids: &[i64], completion_tokens: u64, finish: &str) -> Row {
    Row { finish: Some(finish.to_owned()), ..row(rid, ids, completion_tokens) }
}

/// A tokenizer, and a plugin that holds.
fn holding(stage: &Stage, settings: &str) -> Config {
    holds(stage.config().sink("reader = \"tokenizer\""), "holds", settings)
}

fn holds(config: Config, name: &str, settings: &str) -> Config {
    let component = guest("holds");
    config.plugin_with(name, component.to_str().unwrap(), settings, "deadline = \"10s\", hold = \"60s\"")
}

/// What each of the rows of a request went through, by `journal show`: verdicts, and tokens that went on.
fn shown(stage: &Stage, rid: &str) -> Vec<(Vec<String>, u64)> {
    let [shown] = journal(stage, &["show", rid, "--json"]).json_lines().try_into().unwrap();
    let of_row = |row: &serde_json::Value| {
        let actions = row["actions"].as_array().unwrap().iter();
        let verdicts = actions.map(|action| action["verdict"].as_str().unwrap().to_owned()).collect();
        (verdicts, row["tokens_forwarded"].as_u64().unwrap())
    };
    shown["rows_seen"].as_array().unwrap().iter().map(of_row).collect()
}

#[test]
fn what_a_plugin_holds_waits_and_goes_on_as_one_row_with_the_row_that_releases_it() {
    for wire in WIRES {
        let stage = Stage::new();
        let mut reader = Reader::bind(&stage.reader_side());
        let afterbay = Afterbay::run(&stage, &holding(&stage, LONG));
        let mut sender = Sender::connect(&stage.scheduler_side());
        let (mut a, mut b) = (Request::new("a"), Request::new("b"));
        sender.send(&batch(wire, vec![a.row(&[1]), b.row(&[1])]));
        assert_eq!(rows(&reader.frame()), [row("a", &[1], 1), row("b", &[1], 1)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[HOLD]), b.row(&[2])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[2], 2)], "{wire:?}");
        // Behind it, whatever its verdict.
        sender.send(&batch(wire, vec![a.row(&[5]), b.row(&[3])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[3], 3)], "{wire:?}");
        sender.send(&batch(wire, vec![a.row(&[DROP, 6]), b.row(&[4])]));
        assert_eq!(rows(&reader.frame()), [row("b", &[4], 4)], "{wire:?}");
        let metrics =
            afterbay.until_metrics("they wait", |metrics| metrics.plugin("holds", "held_rows") == 3);
        assert_eq!(metrics.plugin("holds", "held_tokens"), 2);
        sender.send(&batch(wire, vec![a.row(&[RELEASE]), b.row(&[5])]));
        let out = rows(&reader.frame());
        assert_eq!(out, [row("a", &[HOLD, 5, RELEASE], 4), row("b", &[5], 5)], "{wire:?}");
        // A frame of which nothing leaves, then other ids instead of all.
        sender.send(&batch(wire, vec![a.row(&[HOLD, 9])]));
        sender.send(&batch(wire, vec![a.row(&[RELEASE_AS])]));
        assert_eq!(rows(&reader.frame()), [row("a", &[7], 5)], "{wire:?}");
        sender.send(&batch(wire, vec![a.last(&[8])]));
        assert_eq!(rows(&reader.frame()), [last("a", &[8], 6, "length")], "{wire:?}");

        let metrics = afterbay.until_metrics("all are taken", |metrics| metrics.sink("taken_frame") == 8);
        let of_tokens = ["received", "forwarded", "dropped"];
        let tokens = of_tokens.map(|name| metrics.stream(&format!("tokens_{name}_total")));
        // Other ids stand for three of them.
        assert_eq!(tokens, [15, 10, 2], "{wire:?}");
        let by = |why| metrics.plugin_by("holds", "holds_ended_total", "why", why);
        assert_eq!((by("verdict"), by("time"), by("last")), (2, 0, 0));
        let said = |action| metrics.plugin_by("holds", "verdicts_total", "action", action);
        assert_eq!((said("hold"), said("release"), said("release_as")), (2, 1, 1));
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&stage).0, 0);
        let told = shown(&stage, "a");
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
        for (told, (verdicts, tokens)) in told.iter().zip(expected) {
            assert_eq!(
                (told.0.iter().map(String::as_str).collect::<Vec<_>>(), told.1),
                (verdicts.to_vec(), tokens)
            );
        }
        let [shown] = journal(&stage, &["show", "a", "--json"]).json_lines().try_into().unwrap();
        let counts = ["tokens_received", "tokens_forwarded", "tokens_replaced", "tokens_dropped"];
        assert_eq!(counts.map(|name| shown[name].as_u64()), [10, 6, 3, 2].map(Some), "{shown}");
        let table = journal(&stage, &["show", "a"]).good();
        assert!(table.contains("holds: waits, for at most 60000 ms"), "{table}");
        assert!(table.contains("holds: released with 3 rows that waited"), "{table}");
    }
}

#[test]
fn when_its_time_is_over_what_waits_goes_on_as_it_came_though_the_scheduler_is_silent() {
    for wire in WIRES {
        let stage = Stage::new();
        let mut reader = Reader::bind(&stage.reader_side());
        let afterbay = Afterbay::run(&stage, &holding(&stage, "millis = 30"));
        let mut sender = Sender::connect(&stage.scheduler_side());
        let (mut a, mut b) = (Request::new("a"), Request::new("b"));
        sender.send(&batch(wire, vec![a.row(&[HOLD, 1]), b.row(&[HOLD, 2])]));
        // In a frame of Afterbay's own.
        assert_eq!(rows(&reader.frame()), [row("a", &[HOLD, 1], 2), row("b", &[HOLD, 2], 2)], "{wire:?}");
        let told = afterbay.event("HoldEnded");
        assert_eq!((&told["rid"], &told["why"]), (&"a".into(), &"its time was over".into()), "{told}");
        sender.send(&batch(wire, vec![a.last(&[3]), b.last(&[4])]));
        let ended = [last("a", &[3], 3, "length"), last("b", &[4], 3, "length")];
        assert_eq!(rows(&reader.frame()), ended, "{wire:?}");
        let metrics = afterbay.until_metrics("all are taken", |metrics| metrics.sink("taken_frame") == 3);
        assert_eq!(metrics.plugin_by("holds", "holds_ended_total", "why", "time"), 2);
        assert_eq!(
            (metrics.stream("tokens_received_total"), metrics.stream("tokens_forwarded_total")),
            (6, 6)
        );
        assert_eq!(metrics.stream("frames_received_total"), 2);
        assert_eq!(afterbay.events("FrameNotUnderstood").len(), 0);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&stage).0, 0);
        let told = shown(&stage, "a");
        assert_eq!(told.len(), 3);
        assert_eq!(told[1], (vec!["release".to_owned()], 2));

        // The journal's own frame is no reader's, and its rows are not rows of the scheduler's.
        let to = stage.ipc("replayed");
        let mut again = Reader::bind(&to);
        let replayed = std::thread::scope(|scope| {
            let replays = scope.spawn(|| journal(&stage, &["replay", "--all", "--to", &to]).good());
            let frames = again.take(2);
            drop(replays.join().unwrap());
            frames
        });
        assert!(replayed.iter().all(|frame| rows(frame).len() == 2), "{wire:?}");
        assert_eq!(again.next_within(Duration::from_millis(50)), None);
        let exported = journal(&stage, &["export"]).json_lines();
        assert_eq!(exported.len(), 3);
        assert!(exported.iter().all(|frame| frame["message"].is_object()), "{exported:?}");
    }
}

#[test]
fn with_the_last_row_or_one_that_finishes_what_waits_goes_on_as_it_came() {
    for wire in WIRES {
        let stage = Stage::new();
        let mut reader = Reader::bind(&stage.reader_side());
        let afterbay = Afterbay::run(&stage, &holding(&stage, LONG));
        let mut sender = Sender::connect(&stage.scheduler_side());
        let (mut a, mut b) = (Request::new("a"), Request::new("b"));
        sender.send(&batch(wire, vec![a.row(&[HOLD]), b.row(&[HOLD])]));
        // A last row is not held.
        sender.send(&batch(wire, vec![a.last(&[HOLD, 1]), b.row(&[FINISH])]));
        let out = rows(&reader.frame());
        let ended = [last("a", &[HOLD, HOLD, 1], 3, "length"), last("b", &[HOLD, FINISH], 2, "stop:told to")];
        assert_eq!(out, ended, "{wire:?}");
        sender.send(&batch(wire, vec![b.last(&[5])]));
        let metrics = afterbay
            .until_metrics("the rest is swallowed", |metrics| metrics.stream("tokens_swallowed_total") == 1);
        assert_eq!(metrics.plugin_by("holds", "holds_ended_total", "why", "last"), 2);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&stage).0, 0);
    }
}

#[test]
fn plugins_behind_the_one_that_holds_see_what_waited_as_one_row() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let config =
        holds(holding(&stage, "millis = 60000, tells = true"), "second", "millis = 30, at = 5, tells = true");
    let afterbay = Afterbay::run(&stage, &config);
    let mut sender = Sender::connect(&stage.scheduler_side());
    let mut a = Request::new("a");
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD])]));
    sender.send(&batch(Msgpack, vec![a.row(&[5])]));
    sender.send(&batch(Msgpack, vec![a.row(&[RELEASE])]));
    // What the first has let go the second holds, until its time is over.
    assert_eq!(rows(&reader.frame()), [row("a", &[HOLD, 5, RELEASE], 3)]);
    sender.send(&batch(Msgpack, vec![a.last(&[6])]));
    assert_eq!(rows(&reader.frame()), [last("a", &[6], 4, "length")]);
    for plugin in ["holds", "second"] {
        afterbay
            .event_where("PluginLog", |log| log["plugin"] == plugin && log["line"] == "shown [6], 0 wait");
    }
    let said = |plugin: &str| -> Vec<String> {
        let lines = afterbay.events("PluginLog").into_iter().filter(|line| line["plugin"] == plugin);
        lines.map(|line| line["line"].as_str().unwrap().to_owned()).collect()
    };
    let first = ["shown [101], 0 wait", "shown [5], 1 wait", "shown [102], 2 wait", "shown [6], 0 wait"]
        .map(str::to_owned);
    assert_eq!(said("holds"), first);
    assert_eq!(said("second"), ["shown [101, 5, 102], 0 wait", "shown [6], 0 wait"].map(str::to_owned));
    assert_eq!(afterbay.metrics().stream("request_imbalances_total"), 0);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
    let told = shown(&stage, "a");
    assert_eq!(told[2], (vec!["release".to_owned(), "hold".to_owned()], 0));
    assert_eq!(told[3], (vec!["release".to_owned()], 3));
}

#[test]
fn what_a_plugin_holds_as_it_faults_goes_on_as_it_came() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let afterbay = Afterbay::run(&stage, &holding(&stage, LONG));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut a, mut b) = (Request::new("a"), Request::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD]), b.row(&[HOLD])]));
    sender.send(&batch(Msgpack, vec![a.row(&[PANIC])]));
    let mut out = rows(&reader.frame());
    while out.len() < 2 {
        out.extend(rows(&reader.frame()));
    }
    assert_eq!(out, [row("a", &[HOLD, PANIC], 2), row("b", &[HOLD], 1)]);
    let told = afterbay.event("HoldEnded");
    assert_eq!(told["why"], "the plugin's instance is another", "{told}");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn a_stop_sends_what_waits() {
    let stage = Stage::new();
    let mut reader = Reader::bind(&stage.reader_side());
    let afterbay = Afterbay::run(&stage, &holding(&stage, LONG));
    let mut sender = Sender::connect(&stage.scheduler_side());
    let (mut a, mut b) = (Request::new("a"), Request::new("b"));
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD]), b.row(&[1])]));
    assert_eq!(rows(&reader.frame()), [row("b", &[1], 1)]);
    afterbay.until_metrics("it waits", |metrics| metrics.plugin("holds", "held_rows") == 1);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(rows(&reader.frame()), [row("a", &[HOLD], 1)]);
    assert_eq!(verify(&stage).0, 0);
}

#[test]
fn after_kill_9_what_was_held_goes_on_once_and_what_had_gone_on_does_not_come_again() {
    for wire in WIRES {
        let stage = Stage::new();
        let (mut reader, mut credit, config) = stage.counting_tokenizer();
        let config = holds(holds(config, "holds", LONG), "second", "millis = 60000, at = 5");
        let afterbay = Afterbay::run(&stage, &config);
        let mut sender = Sender::connect(&stage.scheduler_side());
        let (mut a, mut b, mut c) = (Request::new("a"), Request::new("b"), Request::new("c"));
        let mut read = |reader: &mut Reader| {
            let frame = reader.frame();
            credit.finished().unwrap();
            rows(&frame)
        };
        sender.send(&batch(wire, vec![a.row(&[HOLD, 1]), b.row(&[HOLD]), c.row(&[HOLD])]));
        sender.send(&batch(wire, vec![a.row(&[2]), b.row(&[RELEASE]), c.row(&[5])]));
        assert_eq!(read(&mut reader), [row("b", &[HOLD, RELEASE], 2)], "{wire:?}");
        // Now with the second.
        sender.send(&batch(wire, vec![c.row(&[RELEASE]), b.row(&[DROP])]));
        sender.send(&batch(wire, vec![b.row(&[3])]));
        assert_eq!(read(&mut reader), [row("b", &[3], 3)], "{wire:?}");
        afterbay.until_metrics("all are taken", |metrics| metrics.sink("taken_frame") == 4);
        afterbay.kill();

        let afterbay = Afterbay::run(&stage, &config);
        // What the first held the second sees, then what the second held goes on.
        let mut out = read(&mut reader);
        while out.len() < 2 {
            out.extend(read(&mut reader));
        }
        out.sort_by(|one, other| one.rid.cmp(&other.rid));
        assert_eq!(out, [row("a", &[HOLD, 1, 2], 3), row("c", &[HOLD, 5, RELEASE], 3)], "{wire:?}");
        let told = afterbay.event("HoldEnded");
        assert_eq!(told["why"], "held before the last start or panic", "{told}");
        let mut sender = Sender::connect(&stage.scheduler_side());
        sender.send(&batch(wire, vec![a.last(&[4]), b.last(&[6]), c.last(&[7])]));
        let ended =
            [last("a", &[4], 4, "length"), last("b", &[6], 4, "length"), last("c", &[7], 4, "length")];
        assert_eq!(read(&mut reader), ended, "{wire:?}");
        let metrics = afterbay.until_metrics("all are taken", |metrics| metrics.sink("taken_frame") == 7);
        assert_eq!(metrics.stream("request_imbalances_total"), 0, "{}", afterbay.log());
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&stage).0, 0);
        // Nothing is held, so nothing is looked for.
        assert!(journal(&stage, &["ls"]).good().contains("finished"));
    }
}
