//! Rows that plugins send to another sink, or past the detokenizer.

use std::path::Path;

use afterbay_tests::commands::{show, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{ReaderRow, SynthRequest, WIRES, batch, row, rows};
use afterbay_tests::holds::{HOLD, LONG, RELEASE, holds};
use afterbay_tests::sandbox::Config;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;
use afterbay_wire::{BatchKind, DecodedFrame, Layouts};

/// A detokenizer as the reader, a tokenizer for rows that skip the detokenizer, and the configuration.
fn past_detokenizer(sandbox: &Sandbox) -> (Reader, Reader, Config) {
    let tokenizer = sandbox.ipc("tokenizer");
    let config = sandbox.config().another_sink("tokenizer", &tokenizer, "kind = \"skipped\"");
    (Reader::bind(&sandbox.reader_side()), Reader::bind(&tokenizer), config)
}

/// The rows of a frame that must be a BatchStrOutput without text.
fn textless(frame: &[u8]) -> Vec<ReaderRow> {
    let DecodedFrame::Batch(batch) = afterbay_wire::decode(frame.to_vec().into(), &Layouts::builtin()) else {
        panic!("no batch: {frame:?}")
    };
    assert_eq!(batch.kind(), BatchKind::Str);
    assert!((0..batch.rows()).all(|row| batch.text(row) == Some("")));
    rows(frame)
}

/// Receives a request's rows up to the last one and joins them.
fn until_last(reader: &mut Reader) -> ReaderRow {
    let [mut all] = textless(&reader.frame()).try_into().unwrap();
    while all.finish.is_none() {
        let [next]: [ReaderRow; 1] = textless(&reader.frame()).try_into().unwrap();
        all.ids.extend(next.ids);
        all = ReaderRow { ids: all.ids, ..next };
    }
    all
}

#[test]
fn a_request_that_skips_the_detokenizer_sends_every_row_to_the_tokenizer() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let (mut detokenizer, mut tokenizer, config) = past_detokenizer(&sandbox);
        let config = config
            .plugin("skip", Path::new("builtin:skip-text"), "rules = [{ rid_prefix = \"ids-\" }]")
            .granted(r#"["log", "request"]"#);
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut ids, mut text) = (SynthRequest::new("ids-1"), SynthRequest::new("text"));
        sender.send(&batch(wire, vec![ids.row(&[1, 2]), text.row(&[3])]));
        sender.send(&batch(wire, vec![ids.row(&[4])]));
        let plain = batch(wire, vec![text.row(&[5])]);
        sender.send(&plain);
        sender.send(&batch(wire, vec![text.last(&[6]), ids.last(&[7])]));
        assert_eq!(rows(&detokenizer.frame()), [row("text", &[3], 1, None)]);
        assert_eq!(detokenizer.frame(), plain, "{wire:?}: a frame without skipped rows is unchanged");
        assert_eq!(rows(&detokenizer.frame()), [row("text", &[6], 3, Some("length"))]);
        assert_eq!(until_last(&mut tokenizer), row("ids-1", &[1, 2, 4, 7], 4, Some("length")), "{wire:?}");
        let metrics =
            afterbay.until_metrics("every frame is taken", |metrics| metrics.stream("requests_live") == 0);
        assert_eq!(metrics.plugin_by("skip", "verdicts_total", "action", "skip_text"), 1);
        assert_eq!(
            (metrics.stream("tokens_forwarded_total"), metrics.stream("request_imbalances_total")),
            (7, 0)
        );
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = show(&sandbox, "ids-1");
        for seen in shown["rows_seen"].as_array().unwrap() {
            assert_eq!(seen["actions"][0]["verdict"], "skip-text", "{shown}");
        }
    }
}

#[test]
fn a_request_still_skips_the_detokenizer_after_a_kill_and_waiting_rows_are_sent_once() {
    let sandbox = Sandbox::new();
    let (mut detokenizer, tokenizer, config) = past_detokenizer(&sandbox);
    let config = config.plugin("routes", &guest("routes"), "");
    drop(tokenizer);
    let (mut ids, mut text) = (SynthRequest::new("a-skip"), SynthRequest::new("text"));
    for run in 0..2 {
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&batch(Msgpack, vec![ids.row(&[run]), text.row(&[run])]));
        assert_eq!(rows(&detokenizer.frame()), [row("text", &[run], run as u64 + 1, None)]);
        afterbay.kill();
    }
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut tokenizer = Reader::bind(&sandbox.ipc("tokenizer"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![ids.last(&[2]), text.last(&[2])]));
    assert_eq!(until_last(&mut tokenizer), row("a-skip", &[0, 1, 2], 3, Some("length")));
    assert_eq!(rows(&detokenizer.frame()), [row("text", &[2], 3, Some("length"))]);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_request_whose_first_row_was_held_still_skips_the_detokenizer_after_a_kill() {
    let sandbox = Sandbox::new();
    let (mut detokenizer, mut tokenizer, config) = past_detokenizer(&sandbox);
    let config = config.sink("reader = \"tokenizer\"\ntool_calls = \"joined\"");
    let config = holds(config, "holds", LONG).plugin("routes", &guest("routes"), "");
    let mut ids = SynthRequest::new("a-skip");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![ids.row(&[HOLD])]));
    sender.send(&batch(Msgpack, vec![ids.row(&[RELEASE])]));
    // The detokenizer needs single rows, so held rows leave singly.
    assert_eq!(textless(&tokenizer.frame()), [row("a-skip", &[HOLD], 1, None)]);
    assert_eq!(textless(&tokenizer.frame()), [row("a-skip", &[RELEASE], 2, None)]);
    afterbay.kill();
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![ids.last(&[2])]));
    assert_eq!(until_last(&mut tokenizer), row("a-skip", &[2], 3, Some("length")));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(detokenizer.rest().len(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn a_row_goes_to_the_sink_that_a_plugin_names_and_an_unknown_name_changes_nothing() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let audit = sandbox.ipc("audit");
        let mut other = Reader::bind(&audit);
        let config = sandbox.config().another_sink("audit", &audit, "kind = \"routed\"");
        let config = config.plugin("routes", &guest("routes"), "");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut plain, mut routed) = (SynthRequest::new("plain"), SynthRequest::new("r-TO-audit"));
        let (mut wrong, mut itself) = (SynthRequest::new("w-TO-nowhere"), SynthRequest::new("i-TO-reader"));
        sender.send(&batch(
            wire,
            vec![plain.last(&[1]), routed.last(&[2]), wrong.last(&[3]), itself.last(&[4])],
        ));
        let here: Vec<String> = rows(&reader.frame()).into_iter().map(|row| row.rid).collect();
        assert_eq!(here, ["plain", "w-TO-nowhere", "i-TO-reader"], "{wire:?}");
        assert_eq!(rows(&other.frame()), [row("r-TO-audit", &[2], 1, Some("length"))], "{wire:?}");
        let failed = afterbay.event("VerdictFailed");
        assert_eq!(failed["why"], "the stream has no sink \"nowhere\" of kind \"routed\"", "{failed}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = show(&sandbox, "r-TO-audit");
        assert_eq!(shown["rows_seen"][0]["actions"][0]["text"], "audit", "{shown}");
        let shown = show(&sandbox, "w-TO-nowhere");
        assert_eq!(shown["rows_seen"][0]["actions"], serde_json::json!([]), "{shown}");
    }
}

#[test]
fn skipping_the_detokenizer_needs_the_first_row_and_a_sink_for_it() {
    let sandbox = Sandbox::new();
    let (mut detokenizer, mut tokenizer, config) = past_detokenizer(&sandbox);
    let afterbay = Afterbay::run(&sandbox, &config.plugin("routes", &guest("routes"), ""));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut late = SynthRequest::new("a-late");
    for _ in 0..3 {
        let frame = batch(Msgpack, vec![late.row(&[1])]);
        sender.send(&frame);
        assert_eq!(detokenizer.frame(), frame);
    }
    assert_eq!(
        afterbay.event("VerdictFailed")["why"],
        "a request skips the detokenizer from its first row on, or not at all"
    );
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(tokenizer.rest().len(), 0);

    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().plugin("routes", &guest("routes"), ""));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("a-skip").last(&[1])]);
    sender.send(&frame);
    assert_eq!(reader.frame(), frame);
    let failed = afterbay.event("VerdictFailed");
    assert_eq!(failed["why"], "the stream has no sink of kind \"skipped\"", "{failed}");
    assert_eq!(afterbay.stop(), 0);
}
