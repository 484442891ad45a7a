//! The kind of reader from its credit page, if the configuration does not name it.

use std::collections::BTreeMap;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::commands::run_afterbay;
use afterbay_tests::frames::{ids, rows};
use afterbay_tests::sandbox::Config;
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load, repository, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

/// The `joins` of the sink in `/v1/status`.
fn joins(afterbay: &Afterbay) -> String {
    let signals: Value = serde_json::from_str(&afterbay.get("/v1/status").body).unwrap();
    signals["streams"][0]["sinks"][0]["joins"].as_str().unwrap_or_default().to_owned()
}

/// A configuration without the keys `reader` and `tokenizer`.
fn config(sandbox: &Sandbox) -> Config {
    sandbox.config().credit(sandbox)
}

/// Sends ten requests of ten rows while the reader finishes no frame, so that rows wait. Returns the number of frames that the reader
/// receives.
fn frames_under_pressure(
    sandbox: &Sandbox,
    reader: &mut Reader,
    credit: &mut CreditWriter,
    afterbay: &Afterbay,
) -> usize {
    reader.wait_connected();
    let frames = load(10, 10, Msgpack);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    // The reader finishes no frame before Afterbay has received all.
    afterbay.until_metrics("every frame is received", |metrics| {
        metrics.stream("frames_received_total") == frames.len() as u64
    });
    let mut received: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut got = 0;
    while received.values().map(Vec::len).sum::<usize>() < 100 {
        got += 1;
        for row in rows(&reader.frame()) {
            received.entry(row.rid).or_default().extend(row.ids);
        }
        credit.finished().unwrap();
    }
    assert_eq!(received, ids(frames.iter().map(|frame| &frame.bytes)));
    got
}

#[test]
fn a_credit_page_that_names_a_tokenizer_enables_joins_without_configuration() {
    for is_there_before in [true, false] {
        let sandbox = Sandbox::new();
        let open = || CreditWriter::open(&sandbox.credit(), ReaderKind::Tokenizer).unwrap();
        let before = is_there_before.then(open);
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &config(&sandbox));
        if !is_there_before {
            let condition = afterbay.until_degraded("joins:test/reader");
            assert!(
                condition.contains("not joined: reader unknown until it writes its credit page"),
                "{condition}"
            );
        }
        let mut credit = before.unwrap_or_else(open);
        afterbay.event("CreditSeen");
        until("the kind of reader is known", || joins(&afterbay) == "anywhere");
        assert!(!afterbay.get("/readyz").body.contains("joins:"));
        let got = frames_under_pressure(&sandbox, &mut reader, &mut credit, &afterbay);
        assert!(got < 10, "{got} frames");
        assert_eq!(afterbay.stop(), 0);
    }
}

#[test]
fn the_file_beside_a_detokenizers_credit_page_names_its_tokenizer() {
    let sandbox = Sandbox::new();
    let model = repository().join("host/path/text/tests/fixtures/byte-level");
    let beside =
        sandbox.credit().with_file_name(format!("{}.json", sandbox.credit().file_name().unwrap().display()));
    let write_file = |pid: u32| {
        let text = serde_json::json!({ "format": 1, "pid": pid, "tokenizer_path": model });
        std::fs::write(&beside, text.to_string()).unwrap();
    };
    let _credit = CreditWriter::open(&sandbox.credit(), ReaderKind::Detokenizer).unwrap();
    // The file of an earlier reader.
    write_file(1);
    let afterbay = Afterbay::run(&sandbox, &config(&sandbox));
    let condition = afterbay.until_degraded("joins:test/reader");
    assert!(
        condition.contains("nothing says which tokenizer it has: add tokenizer = \"DIR\" to the sink"),
        "{condition}"
    );
    write_file(std::process::id());
    until("the tokenizer is known", || joins(&afterbay).starts_with("where the text is whole, by "));
    assert!(!afterbay.get("/readyz").body.contains("joins:"));
    assert!(afterbay.event("SinkVocabulary")["tokens"].as_u64().unwrap() > 0);
    std::fs::remove_file(&beside).unwrap();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn check_warns_with_the_missing_line_if_the_readers_kind_is_unknown() {
    let sandbox = Sandbox::new();
    let file = sandbox.write(&sandbox.config());
    let checked = run_afterbay(&["check", "--config", &file]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.stderr.contains("reader unknown: add reader = \"tokenizer\" to the sink"), "{checked:?}");
    let file = sandbox.write(&sandbox.counting_tokenizer().2);
    assert_eq!(run_afterbay(&["check", "--config", &file]).stderr, "");
}
