//! Who reads, where the configuration does not say: the reader's credit page does.

use std::collections::BTreeMap;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::afterbay::done;
use afterbay_tests::frames::{ids, rows};
use afterbay_tests::stage::Config;
use afterbay_tests::{Afterbay, Reader, Sender, Stage, load, repository, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

/// Where `/v1/signals` says that rows are joined for the sink.
fn joins(afterbay: &Afterbay) -> String {
    let signals: Value = serde_json::from_str(&afterbay.get("/v1/signals").body).unwrap();
    signals["streams"][0]["sinks"][0]["joins"].as_str().unwrap_or_default().to_owned()
}

/// Neither `reader` nor `tokenizer`.
fn config(stage: &Stage) -> Config {
    stage.config().credit(stage)
}

/// Ten requests of ten rows each, of which all frames but two wait for the reader. How many frames it gets.
fn frames_under_pressure(
    stage: &Stage,
    reader: &mut Reader,
    credit: &mut CreditWriter,
    afterbay: &Afterbay,
) -> usize {
    reader.wait_connected();
    let frames = load(10, 10, Msgpack);
    let mut sender = Sender::connect(&stage.scheduler_side());
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    // The reader counts none of them before all have come.
    afterbay.until_metrics("all have come", |metrics| {
        metrics.stream("frames_received_total") == frames.len() as u64
    });
    let mut had: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut got = 0;
    while had.values().map(Vec::len).sum::<usize>() < 100 {
        got += 1;
        for row in rows(&reader.frame()) {
            had.entry(row.rid).or_default().extend(row.ids);
        }
        credit.finished().unwrap();
    }
    assert_eq!(had, ids(frames.iter().map(|frame| &frame.bytes)));
    got
}

#[test]
fn rows_are_joined_for_a_reader_whose_page_says_that_a_tokenizer_reads_though_the_configuration_says_nothing()
{
    for is_there_before in [true, false] {
        let stage = Stage::new();
        let open = || CreditWriter::open_as(&stage.credit(), ReaderKind::Tokenizer).unwrap();
        let before = is_there_before.then(open);
        let mut reader = Reader::bind(&stage.reader_side());
        let afterbay = Afterbay::run(&stage, &config(&stage));
        if !is_there_before {
            let said = afterbay.until_degraded("joins:test/reader");
            assert!(said.contains("not joined: reader unknown until it writes its credit page"), "{said}");
        }
        let mut credit = before.unwrap_or_else(open);
        afterbay.event("CreditSeen");
        until("it is known who reads", || joins(&afterbay) == "anywhere");
        assert!(!afterbay.get("/readyz").body.contains("joins:"));
        let got = frames_under_pressure(&stage, &mut reader, &mut credit, &afterbay);
        assert!(got < 10, "{got} frames");
        assert_eq!(afterbay.stop(), 0);
    }
}

#[test]
fn a_page_of_a_version_that_does_not_say_who_reads_leaves_rows_unjoined_and_everything_says_so() {
    let stage = Stage::new();
    let mut credit = CreditWriter::open(&stage.credit()).unwrap();
    let mut reader = Reader::bind(&stage.reader_side());
    let afterbay = Afterbay::run(&stage, &config(&stage));
    let unknown = "not joined: reader unknown, its credit page";
    let said = afterbay.until_degraded("joins:test/reader");
    assert!(said.contains(unknown) && said.contains("add reader = \"tokenizer\" to the sink"), "{said}");
    assert!(joins(&afterbay).starts_with(unknown), "{}", joins(&afterbay));
    let warned = afterbay.event("SinkUnjoined")["message"].as_str().unwrap().to_owned();
    let checked = done(&["check", "--config", &stage.text("afterbay.toml")]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.stderr.contains(&format!("warning: {warned}\n")), "{warned}\n{}", checked.stderr);
    afterbay.event("CreditSeen");
    let frames = load(10, 10, Msgpack).len();
    let got = frames_under_pressure(&stage, &mut reader, &mut credit, &afterbay);
    assert_eq!(got, frames, "each as it came");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_detokenizers_tokenizer_is_taken_from_the_file_beside_its_page_if_that_reader_wrote_the_file() {
    let stage = Stage::new();
    let model = repository().join("host/text/tests/fixtures/byte-level");
    let beside =
        stage.credit().with_file_name(format!("{}.json", stage.credit().file_name().unwrap().display()));
    let tell = |pid: u32| {
        let told = serde_json::json!({ "format": 1, "pid": pid, "tokenizer_path": model });
        std::fs::write(&beside, told.to_string()).unwrap();
    };
    let _credit = CreditWriter::open_as(&stage.credit(), ReaderKind::Detokenizer).unwrap();
    // Left of an earlier reader.
    tell(1);
    let afterbay = Afterbay::run(&stage, &config(&stage));
    let said = afterbay.until_degraded("joins:test/reader");
    assert!(
        said.contains("nothing says which tokenizer it has: add tokenizer = \"DIR\" to the sink"),
        "{said}"
    );
    tell(std::process::id());
    until("the tokenizer is known", || joins(&afterbay).starts_with("where the text is whole, by "));
    assert!(!afterbay.get("/readyz").body.contains("joins:"));
    assert!(afterbay.event("SinkVocabulary")["tokens"].as_u64().unwrap() > 0);
    std::fs::remove_file(&beside).unwrap();
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn check_warns_with_the_line_to_add_where_nothing_says_who_reads() {
    let stage = Stage::new();
    let file = stage.write(&stage.config());
    let checked = done(&["check", "--config", &file]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.stderr.contains("reader unknown: add reader = \"tokenizer\" to the sink"), "{checked:?}");
    let file = stage.write(&stage.counting_tokenizer().2);
    assert_eq!(done(&["check", "--config", &file]).stderr, "");
}
