//! The real SGLang 0.5.23 reads the frames of this crate (`tests/real_sglang.py`). The tests run if
//! `AFTERBAY_SGLANG_HOME` or `~/.cache/afterbay-sglang` has an installation (`shared/sglang/install`), and print a line
//! otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{AbortForm, AbortShape, Batch, BatchKind, BatchPart, Edit, FinishReason, TokenEdit};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::samples::{all, batch, hold_and_release, read_batch, split_and_join};

/// The installed SGLang. `None`: the test is skipped.
fn home() -> Option<PathBuf> {
    let home = std::env::var_os("AFTERBAY_SGLANG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/afterbay-sglang")))?;
    let there = home.join("venv/bin/python").exists() && home.join("sglang-0.5.23").exists();
    if !there {
        eprintln!("SKIPPED: no SGLang 0.5.23 in {}", home.display());
    }
    there.then_some(home)
}

fn python(home: &Path, args: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real_sglang.py");
    Command::new(home.join("venv/bin/python"))
        .arg(script)
        .args(args)
        .env("PYTHONPATH", home.join("sglang-0.5.23"))
        .output()
        .unwrap()
}

/// Passes the records to SGLang. Each record must hold.
fn check(home: &Path, records: &[Value]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    fs::write(&path, records.iter().map(|record| format!("{record}\n")).collect::<String>()).unwrap();
    let output = python(home, &["check", path.to_str().unwrap()]);
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output_text}\n{errors}");
    assert!(output_text.contains(&format!("{} records, 0 failed", records.len())), "{output_text}\n{errors}");
}

fn hex(bytes: &Bytes) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(hex: &Value) -> Bytes {
    let hex = hex.as_str().unwrap();
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn wire(batch: &Batch) -> &'static str {
    if batch.bytes()[0] == 0x80 { "pickle" } else { "msgpack" }
}

fn equal(name: &str, old: bool, one: &Batch, other: &Batch) -> Value {
    let (one_hex, other_hex) = (hex(one.bytes()), hex(other.bytes()));
    json!({"what": "equal", "name": name, "wire": wire(one), "old": old, "one": one_hex, "other": other_hex})
}

fn readable(name: &str, batch: &Batch) -> Value {
    json!({"what": "readable", "name": name, "wire": wire(batch), "one": hex(batch.bytes())})
}

/// Small and different numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

#[test]
fn fixtures_taken_apart_and_joined_are_the_same_to_sglang() {
    let Some(home) = home() else { return };
    let mut records = Vec::new();
    for sample in all() {
        let Some(batch) = batch(&sample) else { continue };
        // 0.5.23 lacks the classes of versions before 0.5.21, so their bytes are compared.
        let old = ["0.5.21", "0.5.23", "frames", "real"].iter().all(|new| !sample.name.contains(new));
        records.push(equal(&sample.name, old, &batch, &split_and_join(&batch)));
    }
    assert!(records.len() > 200);
    check(&home, &records);
}

#[test]
fn batches_edited_in_every_way_are_read_by_sglang() {
    let Some(home) = home() else { return };
    let mut records = Vec::new();
    for sample in all() {
        let new = ["0.5.21", "0.5.23", "frames", "real"].iter().any(|new| sample.name.contains(new));
        let Some(batch) = batch(&sample).filter(|batch| new && batch.kind() != BatchKind::Embedding) else {
            continue;
        };
        edits(&sample.name, &batch, &mut records);
    }
    for line in String::from_utf8(python(&home, &["make", "20"]).stdout).unwrap().lines() {
        let made: Value = serde_json::from_str(line).unwrap();
        for frame in made["frames"].as_array().unwrap() {
            edits(made["name"].as_str().unwrap(), &read_batch(&unhex(frame)), &mut records);
        }
    }
    assert!(records.len() > 300);
    check(&home, &records);
}

fn edits(name: &str, batch: &Batch, records: &mut Vec<Value>) {
    let last = batch.rows() - 1;
    for tokens in
        [TokenEdit::Delta(vec![7, -1, 1 << 40]), TokenEdit::Delta(vec![9]), TokenEdit::Empty, TokenEdit::Drop]
    {
        let delta = matches!(tokens, TokenEdit::Delta(_));
        let finish = delta.then(|| FinishReason::Stop("grammar".into()));
        let text = delta.then(|| "masked".into());
        let edit = Edit { row: last, tokens, text, finish, completion_tokens: Some(70_000) };
        if let Some(edited) = batch.edit(std::slice::from_ref(&edit)).unwrap() {
            records.push(readable(&format!("{name}, {edit:?}"), &edited));
        }
    }
    for (reason, real) in [
        (FinishReason::Abort("over the quota".into()), json!(["over the quota", null, null])),
        (FinishReason::Error { status: 429, message: String::new() }, json!(["", 429, null])),
    ] {
        let finish = Some(reason);
        let edited = batch.edit(&[Edit { finish, ..Edit::new(last) }]).unwrap().unwrap();
        let one = hex(edited.bytes());
        let wire = wire(batch);
        records
            .push(json!({"what": "reason", "name": name, "wire": wire, "one": one, "row": last, "is": real}));
    }
}

/// Compares with the detokenizer's own output in all fields but the text, and with the state of a reader's clients.
#[test]
fn rows_past_the_detokenizer_are_to_the_reader_what_the_detokenizer_would_have_sent_without_text() {
    let Some(home) = home() else { return };
    let mut records = Vec::new();
    let past = |batch: &Batch| batch.without_detokenizing(&(0..batch.rows()).collect::<Vec<_>>()).unwrap();
    for sample in all() {
        let new = ["0.5.21", "0.5.23", "frames", "real"].iter().any(|new| sample.name.contains(new));
        let Some(batch) = batch(&sample).filter(|batch| new && batch.kind() == BatchKind::TokenId) else {
            continue;
        };
        let (one, other) = (hex(batch.bytes()), hex(past(&batch).bytes()));
        let wire = wire(&batch);
        records
            .push(json!({"what": "textless", "name": sample.name, "wire": wire, "one": one, "other": other}));
    }
    assert!(records.len() > 50, "{}", records.len());
    for line in String::from_utf8(python(&home, &["make", "20"]).stdout).unwrap().lines() {
        let mut made: Value = serde_json::from_str(line).unwrap();
        let frames = made["frames"].as_array().unwrap();
        let past: Vec<_> = frames.iter().map(|frame| hex(past(&read_batch(&unhex(frame))).bytes())).collect();
        made["what"] = json!("past");
        made["single"] = made["frames"].take();
        made["past"] = json!(past);
        records.push(made);
    }
    check(&home, &records);
}

#[test]
fn synthetic_batches_and_aborts_are_read_by_sglang() {
    let Some(home) = home() else { return };
    let mut records = Vec::new();
    let finishes = [
        None,
        Some(SynthFinish::Length(300)),
        Some(SynthFinish::StopToken(2)),
        Some(SynthFinish::StopText("</s>".into())),
        Some(SynthFinish::Abort("gone".into())),
    ];
    for rows in [0usize, 1, 5, 300] {
        let row = |at: usize| SynthRow {
            rid: format!("{at:032x}"),
            prompt_tail: if at.is_multiple_of(3) { vec![1, 2, 3] } else { vec![] },
            ids: (0..at as i64 % 4).map(|id| id << 33).collect(),
            text: "日本語".into(),
            finish: finishes[at % finishes.len()].clone(),
            completion_tokens: 37 * at as u64,
            prompt_tokens: 1 << (at % 20),
            first_token_ns: (at % 7 == 3).then_some(at as u64 * 1_000_000),
            http_worker_ipc: (at % 5 == 4).then(|| format!("ipc:///w-{at}")),
        };
        let synth = SynthBatch { rows: (0..rows).map(row).collect() };
        for wire in [SynthWire::Msgpack, SynthWire::Pickle] {
            for kind in BatchKind::WITH_COLUMNS {
                let bytes = synth.encode(kind, wire).unwrap();
                let wire = if wire == SynthWire::Pickle { "pickle" } else { "msgpack" };
                let name = format!("{kind} of {rows} rows");
                records.push(json!({"what": "readable", "name": name, "wire": wire, "one": hex(&bytes)}));
            }
        }
    }
    // An abort has only the rid.
    for (shape, wire) in [(AbortShape::Msgpack, "msgpack"), (AbortShape::Struct, "pickle")] {
        for rid in ["r", "5b0c1f0a9e3779b97f4a7c15", "日本語 \"quoted\"\n", &"long".repeat(1024)] {
            let one = hex(&AbortForm::of(shape).encode(rid, None).unwrap());
            records.push(json!({"what": "abort", "name": rid, "wire": wire, "one": one, "rid": rid}));
        }
    }
    check(&home, &records);
}

/// Joins every column that a plain configuration of SGLang can fill in random ways. The reader's clients end in the
/// same state as with single rows.
#[test]
fn a_reader_of_joined_rows_ends_in_the_state_of_one_of_single_rows() {
    let Some(home) = home() else { return };
    let mut random = Random(7);
    let mut records = Vec::new();
    for line in String::from_utf8(python(&home, &["make", "60"]).stdout).unwrap().lines() {
        let mut made: Value = serde_json::from_str(line).unwrap();
        let batches: Vec<_> =
            made["frames"].as_array().unwrap().iter().map(|frame| read_batch(&unhex(frame))).collect();
        let mut joined = Vec::new();
        let mut at = 0;
        while at < batches.len() {
            let end = (at + 1 + random.below(5) as usize).min(batches.len());
            let parts: Vec<_> = batches[at..end].iter().map(BatchPart::from).collect();
            let whole = Batch::join(&parts).unwrap_or_else(|error| panic!("{}: {error}", made["name"]));
            records.push(equal("again", false, &whole, &split_and_join(&whole)));
            joined.push(hex(whole.bytes()));
            at = end;
        }
        made["what"] = json!("state");
        made["single"] = made["frames"].take();
        made["joined"] = json!(joined);
        records.push(made.clone());
        let released = hold_and_release(&batches, |_| random.below(3) == 0);
        made["joined"] = json!(released.iter().map(|it| hex(it.bytes())).collect::<Vec<_>>());
        records.push(made);
    }
    assert!(records.len() > 200, "{}", records.len());
    check(&home, &records);
}
