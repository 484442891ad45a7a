//! Engines that introduce themselves: releases that nobody has seen pass a guard as known ones do.

use afterbay_tests::admin::Metrics;
use afterbay_tests::commands::{journal, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender};
use afterbay_types::Engine;
use afterbay_wire::synth::SynthWire;
use afterbay_wire::vllm::fields::{FRAME, ROW};
use afterbay_wire::{Batch, DecodedFrame, Introduction, Layouts, decode};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::value_len::value_len;

/// The fields of the newest release that is known.
const LAYOUT: &str = include_str!("../../../host/path/wire/layouts/0.5.23.json");
/// The introduction of SMG's plugin 0.14.1, and its class.
const SMG: &str = include_str!("../../fixtures/smg/introduction.frame");
const SLIM: &str = "BatchTokenIDSlimOutput";
/// The place of the new column, in the middle of the others.
const PLACE: usize = 4;
/// The number of fields of the rows that the simulation writes for vLLM.
const ROW_FIELDS: usize = 18;

/// A guard that drops every row that it sees, and ends the requests of the rows that it cannot see.
fn guarded(sandbox: &Sandbox, engine: Engine) -> Config {
    let config = sandbox.config().stream(&format!("engine = {:?}", engine.word()));
    config.plugin("guard", &guest("judges"), "action = \"drop\"").plugin_line("on_fault = \"terminate\"")
}

fn introduction(engine: Engine, classes: &Value) -> Bytes {
    let message = json!({"afterbay": "introduction", "format": 1, "engine": engine.word(), "version": "9.9.9", "classes": classes});
    message.to_string().into()
}

fn classes(engine: Engine) -> Value {
    let with_new = |names: Vec<Value>| {
        let mut fields: Vec<Value> = names.into_iter().map(|name| json!([name])).collect();
        fields.insert(PLACE, json!(["brand_new", null]));
        fields
    };
    match engine {
        Engine::Sglang => {
            let layout: Value = serde_json::from_str(LAYOUT).unwrap();
            json!({"BatchTokenIDOutput": with_new(layout["BatchTokenIDOutput"].as_array().unwrap().clone())})
        }
        Engine::Vllm => json!({
            "EngineCoreOutputs": FRAME.iter().map(|field| json!([field.name])).collect::<Vec<_>>(),
            "EngineCoreOutput": with_new(ROW[..ROW_FIELDS].iter().map(|field| field.name.into()).collect()),
        }),
        Engine::Smg => {
            let today: Value = serde_json::from_str(SMG).unwrap();
            let fields = today["classes"][SLIM].as_array().unwrap();
            json!({SLIM: with_new(fields.iter().map(|field| field[0].clone()).collect())})
        }
    }
}

/// The values of an array whose items begin at `at`.
fn items(bytes: &[u8], mut at: usize, count: usize) -> Vec<Vec<u8>> {
    let mut item = |_| {
        let start = at;
        at += value_len(&bytes[at..]);
        bytes[start..at].to_vec()
    };
    (0..count).map(&mut item).collect()
}

fn array(values: Vec<Vec<u8>>) -> Vec<u8> {
    [&[0xdc, 0, values.len() as u8][..], &values.concat()].concat()
}

/// A frame of the release: one more column, nil in every row.
fn frame(engine: Engine, rid: &str) -> Bytes {
    let row = SynthRequest::new(rid).row(&[1, 2]);
    match engine {
        Engine::Sglang | Engine::Smg => {
            let wire = if engine == Engine::Smg { SynthWire::Slim } else { SynthWire::Msgpack };
            let today = batch(wire, vec![row]);
            let mut values = items(&today, 3, usize::from(today[2]));
            // The first is the name of the class.
            values.insert(1 + PLACE, vec![0xc0]);
            array(values).into()
        }
        Engine::Vllm => {
            let today = batch(SynthWire::EngineCore, vec![row]);
            let mut values = items(&today, 1, FRAME.len());
            let mut row = items(&values[1], 4, ROW_FIELDS);
            row.insert(PLACE, vec![0xc0]);
            values[1] = [&[0x91][..], &array(row)].concat();
            array(values).into()
        }
    }
}

fn read(engine: Engine, frame: Vec<u8>) -> Batch {
    let introduction = Introduction::read(&introduction(engine, &classes(engine))).unwrap();
    match decode(frame.into(), &Layouts::introduced(&introduction).unwrap()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("a barrier: {}", barrier.kind),
    }
}

#[test]
fn a_release_that_nobody_has_seen_passes_a_guard_after_its_introduction_and_after_a_restart() {
    for engine in Engine::WORDS.map(|(_, engine)| engine) {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = guarded(&sandbox, engine);
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&introduction(engine, &classes(engine)));
        sender.send(&frame(engine, "a"));
        // No reader gets the introduction.
        let sent = read(engine, reader.frame());
        assert_eq!((sent.rid(0), sent.tokens(0)), ("a", 0), "{engine:?}");
        afterbay.all_events("EngineIntroduced", 1);
        assert!(
            afterbay.log().contains("rows with a value in brand_new are not joined"),
            "{}",
            afterbay.log()
        );
        assert_eq!(afterbay.stop(), 0);

        // The scheduler lives on, and says nothing again.
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&frame(engine, "b"));
        let sent = read(engine, reader.frame());
        assert_eq!((sent.rid(0), sent.tokens(0)), ("b", 0), "{engine:?}");
        let metrics = afterbay.until_metrics("the guard has judged the row", |it| {
            it.plugin_by("guard", "verdicts_total", "action", "drop") == 1
        });
        assert_eq!((metrics.barriers("not_understood"), metrics.barriers("refused")), (0, 0), "{engine:?}");
        assert_eq!(afterbay.stop(), 0);

        let shown = journal(&sandbox, &["show", "a", "--json"]).json_lines();
        assert!(shown[0].to_string().contains("[1,2]"), "{shown:?}");
        let (code, report) = verify(&sandbox);
        assert_eq!((code, &report["frames"]), (0, &3.into()), "{report}");
    }
}

#[test]
fn the_requests_of_an_engine_that_died_are_lost_once_the_next_one_begins_alone() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let message = introduction(Engine::Sglang, &classes(Engine::Sglang));
    let connect = || {
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&message);
        sender
    };
    let mut first = connect();
    first.send(&frame(Engine::Sglang, "a"));
    reader.frame();
    let lost = |metrics: &Metrics| metrics.stream_by("requests_ended_total", "cause", "lost");
    afterbay.until_metrics("the request is live", |metrics| metrics.stream("requests_live") == 1);
    let second = connect();
    afterbay.all_events("EngineIntroduced", 2);
    assert!(afterbay.events("EngineRestarted").is_empty(), "the first engine is there");
    drop((first, second));
    afterbay.until_metrics("both have left", |metrics| metrics.stream("senders") == 0);
    let _third = connect();
    assert_eq!(afterbay.event("EngineRestarted")["requests"], 1);
    afterbay.until_metrics("the request is lost", |metrics| {
        lost(metrics) == 1 && metrics.stream("requests_live") == 0
    });
    assert_eq!(afterbay.stop(), 0);
    let shown = journal(&sandbox, &["show", "a", "--json"]).json_lines();
    assert_eq!(shown[0]["ended"]["by"], "lost", "{shown:?}");
}

#[test]
fn without_an_introduction_a_guard_ends_the_requests_of_a_release_that_nobody_has_seen() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &guarded(&sandbox, Engine::Sglang));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&frame(Engine::Sglang, "a"));
    // A frame of a known release follows, so that the reader has something to get.
    sender.send(&batch(SynthWire::Msgpack, vec![SynthRequest::new("b").row(&[3])]));
    reader.frame();
    afterbay.all_events("FrameNotUnderstood", 1);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn an_introduction_without_a_needed_field_is_an_event_that_names_it() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&introduction(Engine::Sglang, &json!({"BatchTokenIDOutput": [["request_ids"]]})));
    let known = batch(SynthWire::Msgpack, vec![SynthRequest::new("b").row(&[3])]);
    sender.send(&known);
    assert!(reader.frame() == known, "frames are read as before");
    let refused = afterbay.event("IntroductionRefused");
    assert_eq!(refused["why"], "introduction's class \"BatchTokenIDOutput\" has no field \"rids\"");
    assert_eq!(afterbay.stop(), 0);
}
