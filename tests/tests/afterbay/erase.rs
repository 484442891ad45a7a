//! Erasing requests of a running Afterbay, and with nobody running.

use std::path::Path;

use afterbay_tests::commands::{afterbay_command, journal, run_command, show, verify};
use afterbay_tests::frames::{SynthRequest, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

/// Ids that nothing else in a journal looks like.
const GONE: i64 = 0x1122_3344_5566_7788;
const STAYS: i64 = 0x0102_0304_0506_0708;

/// Whether an id is in a file of the directory.
fn is_in(dir: &Path, id: i64) -> bool {
    let has = |path: &Path| std::fs::read(path).unwrap().windows(8).any(|bytes| bytes == id.to_le_bytes());
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
        true => is_in(&path, id),
        false => path.is_file() && has(&path),
    })
}

#[test]
fn a_request_is_erased_while_its_stream_runs_and_with_nobody_running() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut gone, mut stays) = (SynthRequest::new("gone"), SynthRequest::new("stays"));
    let mut step = |rows| {
        let frame = batch(Msgpack, rows);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame);
    };
    step(vec![gone.row(&[GONE]), stays.row(&[STAYS])]);
    step(vec![gone.last(&[GONE]), stays.row(&[STAYS])]);
    let refused = until_said(&sandbox, &["erase", "stays", "--yes"], "is live on stream \"test\"");
    assert!(refused.contains("it can be erased after its end"), "{refused}");
    let dir = sandbox.journal();
    assert!(is_in(&dir, GONE));

    // The sink records a moment later that the reader has the rows. A relative directory names the same journal.
    let mut report = Value::Null;
    until("the request is erased", || {
        let mut erase = afterbay_command(&["journal", "erase", "gone", "--yes", "--json", "--from"]);
        erase.arg(dir.file_name().unwrap()).current_dir(dir.parent().unwrap());
        let said = run_command(&mut erase);
        report = serde_json::from_str(said.stdout.trim()).unwrap_or_default();
        report["is_complete"] == true
    });
    assert_eq!((&report["rows"], &report["tokens"]), (&2.into(), &2.into()), "{report}");
    assert!(!is_in(&dir, GONE) && is_in(&dir, STAYS));
    let event = afterbay.event("RequestErased");
    assert_eq!((&event["rid"], &event["left_frames"]), (&"gone".into(), &0.into()));
    assert!(event["by"].as_str().unwrap().starts_with("user "), "{event}");
    assert!(show(&sandbox, "gone")["erased"]["time"].is_string());
    let page: Value = serde_json::from_str(&afterbay.get("/v1/requests?rid=gone").body).unwrap();
    assert!(page["requests"][0]["erased"]["time"].is_string(), "{page}");

    // The stream continues, with the other request as before.
    step(vec![stays.last(&[STAYS])]);
    until("its row is in the journal", || show(&sandbox, "stays")["state"] == "finished");
    assert_eq!(show(&sandbox, "stays")["rows_seen"][0]["ids"], Value::from(vec![STAYS]));
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);

    let report = journal(&sandbox, &["erase", "stays", "--yes", "--json"]).json_lines().remove(0);
    assert_eq!(report["rows"], 3);
    assert!(!is_in(&dir, STAYS));
    assert_eq!(verify(&sandbox).0, 0);
    let unknown = journal(&sandbox, &["erase", "sta", "--yes"]);
    assert_ne!(unknown.code, 0);
}

/// Runs a command until it says these words.
fn until_said(sandbox: &Sandbox, args: &[&str], words: &str) -> String {
    let mut said = String::new();
    until("the command says it", || {
        said = journal(sandbox, args).stderr;
        said.contains(words)
    });
    said
}

#[test]
fn the_journal_has_the_attributes_by_which_a_rule_erases() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let rules = "attribute = [{ prefix = \"acme-\", set = { tenant = \"acme\" } }]";
    let erase = "erase = [{ attribute = \"tenant\", value = \"acme\", after = \"1h\" }]";
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().stream(rules).journal(erase));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let answer = afterbay.ask(
        "PUT /v1/requests/put/attributes",
        &[afterbay_tests::admin::JSON],
        r#"{"tenant": "acme"}"#,
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    let rids = ["acme-1", "put", "other"];
    let frame = batch(Msgpack, rids.iter().map(|rid| SynthRequest::new(rid).last(&[1])).collect());
    sender.send(&frame);
    assert_eq!(rows(&reader.frame()).len(), 3);
    assert_eq!(afterbay.stop(), 0);
    let journal = afterbay_journal::reader::JournalReader::open(&sandbox.journal()).unwrap();
    let requests = journal.stream("test").unwrap().requests(Default::default()).unwrap();
    let tenants: Vec<(String, usize)> = requests
        .map(|request| request.unwrap())
        .map(|it| {
            (it.rid, it.attributes.iter().filter(|is| *is == &("tenant".into(), "acme".into())).count())
        })
        .collect();
    let expected = [("acme-1", 1), ("put", 1), ("other", 0)];
    assert_eq!(tenants, expected.map(|(rid, count)| (rid.to_owned(), count)));
}
