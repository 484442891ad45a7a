//! The real vLLM 0.32.0 reads the frames of this crate (`tests/real_vllm.py`). The tests run if `AFTERBAY_VLLM_HOME` or
//! `~/.cache/afterbay-vllm` has an installation (`shared/vllm/install`), and print a line otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use afterbay_types::parts;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{
    AbortForm, AbortShape, Batch, BatchKind, BatchPart, DecodedFrame, Edit, FinishReason, TokenEdit,
};
use bytes::Bytes;
use serde_json::{Value, json};

use super::support::{all, batch, frame, last, read, row, split_and_join};

/// The installed vLLM. `None`: the test is skipped.
fn home() -> Option<PathBuf> {
    let home = std::env::var_os("AFTERBAY_VLLM_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/afterbay-vllm")))?;
    let is_there = home.join("done").exists();
    if !is_there {
        eprintln!("SKIPPED: no vLLM 0.32.0 in {}", home.display());
    }
    is_there.then_some(home)
}

/// Passes the records to vLLM. Each record must hold.
fn check(home: &Path, records: &[Value]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    fs::write(&path, records.iter().map(|record| format!("{record}\n")).collect::<String>()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real_vllm.py");
    let output = Command::new(home.join("venv/bin/python")).arg(script).arg(&path).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output_text}\n{errors}");
    assert!(output_text.contains(&format!("{} records, 0 failed", records.len())), "{output_text}\n{errors}");
}

/// The parts of a frame in hex.
fn hex(frame: &Bytes) -> Value {
    let hex = |part: Bytes| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    parts::split(frame).unwrap().into_iter().map(hex).collect()
}

fn readable(name: String, frame: &Bytes, rows: usize) -> Value {
    json!({"what": "readable", "name": name, "one": hex(frame), "rows": rows})
}

/// Small and different numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

/// The frames of some requests: ids of bytes, some with logprobs, some with several ids in a row, all ended.
fn frames(random: &mut Random) -> Vec<Batch> {
    let mut left: Vec<(String, u64, Option<u32>)> = (0..1 + random.below(5))
        .map(|at| {
            let logprobs = (random.below(2) == 0).then(|| random.below(4) as u32);
            (format!("cmpl-{at}-0-0a1b2c3d"), 1 + random.below(30), logprobs)
        })
        .collect();
    let mut frames = Vec::new();
    let mut seen = Vec::new();
    while !left.is_empty() {
        let mut rows = Vec::new();
        for (rid, tokens, logprobs) in &mut left {
            if random.below(3) == 0 {
                continue;
            }
            let count = (1 + random.below(6) * random.below(2)).min(*tokens);
            *tokens -= count;
            // Japanese and emoji in UTF-8, cut anywhere, and bytes that are no text.
            let text = "日本語のテキスト👩‍👩‍👧‍👦 naïve".as_bytes();
            let id = |random: &mut Random| match random.below(4) {
                0 => random.below(256) as i64,
                _ => i64::from(text[random.below(text.len() as u64) as usize]),
            };
            let ids: Vec<i64> = (0..count).map(|_| id(random)).collect();
            let is_first = !seen.contains(rid);
            let mut made = SynthOutput { logprobs: *logprobs, ..row(rid, &ids) };
            made.prompt_tokens = is_first.then_some(3);
            seen.push(rid.clone());
            if *tokens == 0 {
                made.finish_reason = Some(random.below(3) as u8);
                made.stop_token = made.finish_reason.filter(|it| *it == 0).and(ids.last().copied());
            }
            rows.push(made);
        }
        left.retain(|(_, tokens, _)| *tokens > 0);
        if !rows.is_empty() {
            frames.push(batch(&frame(frames.len() as u32, rows).encode()));
        }
    }
    frames
}

#[test]
fn fixtures_taken_apart_and_joined_are_the_same_to_vllm() {
    let Some(home) = home() else { return };
    let mut records = Vec::new();
    for sample in all() {
        let DecodedFrame::Batch(batch) = read(&sample.bytes) else { continue };
        let again = split_and_join(&batch);
        let (one, other) = (hex(batch.bytes()), hex(again.bytes()));
        if again.rows() < batch.rows() {
            continue;
        }
        records.push(json!({"what": "equal", "name": sample.name, "one": one, "other": other}));
        if let Some(rest) = batch.without_rows() {
            records.push(readable(format!("{} without rows", sample.name), &rest, 0));
        }
        let ended = batch.ended(&[0], &FinishReason::Abort("ended".into())).unwrap();
        records.push(readable(format!("{} ended", sample.name), ended.bytes(), 1));
    }
    assert!(records.len() > 100, "{}", records.len());
    check(&home, &records);
}

#[test]
fn clients_of_joined_rows_end_in_the_state_of_those_of_single_rows() {
    let Some(home) = home() else { return };
    let mut random = Random(7);
    let mut records = Vec::new();
    for name in 0..60 {
        let batches = frames(&mut random);
        let mut joined = Vec::new();
        let mut at = 0;
        while at < batches.len() {
            let end = (at + 1 + random.below(8) as usize).min(batches.len());
            let parts: Vec<_> = batches[at..end].iter().map(BatchPart::from).collect();
            joined.push(hex(Batch::join(&parts).unwrap().bytes()));
            at = end;
        }
        let single: Vec<Value> = batches.iter().map(|batch| hex(batch.bytes())).collect();
        records.push(json!({"what": "state", "name": name, "single": single, "joined": joined}));
    }
    check(&home, &records);
}

#[test]
fn clients_have_the_ids_text_and_end_that_a_plugin_gave() {
    let Some(home) = home() else { return };
    let text: Vec<i64> = "日本語👩‍👩‍👧".bytes().map(i64::from).collect();
    let mut records = Vec::new();
    for logprobs in [None, Some(2)] {
        for (finish, reason, stop) in [
            (FinishReason::Stop("enough".to_owned()), "stop", json!("enough")),
            (FinishReason::Length, "length", Value::Null),
            (FinishReason::Abort("over the quota".into()), "abort", json!("over the quota")),
        ] {
            for tokens in [
                TokenEdit::Keep,
                TokenEdit::Delta(vec![99, 97, 98]),
                TokenEdit::Delta(vec![98]),
                TokenEdit::Empty,
            ] {
                let name = format!("{finish:?}, {tokens:?}, logprobs {logprobs:?}");
                let first = SynthOutput { logprobs, prompt_tokens: Some(3), ..row("a", &text) };
                let next = SynthOutput { logprobs, ..row("a", &[97, 98]) };
                let other = row("b", &[99]);
                let frames = [frame(0, vec![first, other.clone()]), frame(1, vec![next, other])];
                let [first, next] = frames.map(|outputs| batch(&outputs.encode()));
                let edit = Edit { tokens: tokens.clone(), finish: Some(finish.clone()), ..Edit::new(0) };
                let last = next.edit(&[edit]).unwrap().unwrap();
                let ids = match tokens {
                    TokenEdit::Delta(ids) => [text.clone(), ids].concat(),
                    TokenEdit::Empty => text.clone(),
                    _ => [text.clone(), vec![97, 98]].concat(),
                };
                let requests = json!({
                    "a": {"ids": ids, "finish": reason, "stop": stop},
                    "b": {"ids": [99, 99], "finish": null, "stop": null},
                });
                let joined = Batch::join(&[BatchPart::from(&first), BatchPart::from(&last)]).unwrap();
                for (how, frames) in [("single", vec![&first, &last]), ("joined", vec![&joined])] {
                    let frames: Vec<Value> = frames.iter().map(|batch| hex(batch.bytes())).collect();
                    let name = format!("{name}, {how}");
                    records
                        .push(json!({"what": "ends", "name": name, "frames": frames, "requests": requests}));
                }
            }
        }
    }
    // An engine's stop token that a plugin replaced.
    let stop = SynthOutput { stop_token: Some(2), prompt_tokens: Some(3), ..last("a", &[97, 2], 0) };
    let stopped = batch(&frame(0, vec![stop]).encode());
    let edit = Edit { tokens: TokenEdit::Delta(vec![97, 98]), ..Edit::new(0) };
    let frames = [hex(stopped.edit(&[edit]).unwrap().unwrap().bytes())];
    let requests = json!({"a": {"ids": [97, 98], "finish": "stop", "stop": 2}});
    records
        .push(json!({"what": "ends", "name": "stop token replaced", "frames": frames, "requests": requests}));
    check(&home, &records);
}

#[test]
fn synthetic_frames_and_aborts_are_read_by_vllm() {
    let Some(home) = home() else { return };
    let mut records = Vec::new();
    for rows in [0_usize, 1, 17, 300] {
        let made = |at: usize| SynthOutput {
            logprobs: at.is_multiple_of(2).then_some(at as u32 % 5),
            prompt_tokens: at.is_multiple_of(3).then_some(9),
            finish_reason: at.is_multiple_of(4).then_some((at % 5) as u8),
            stop_text: at.is_multiple_of(8).then(|| "日本語".to_owned()),
            ..row(&format!("cmpl-{at}"), &(0..at as i64 % 20).collect::<Vec<_>>())
        };
        let outputs = SynthOutputs {
            finished_requests: (0..rows % 3).map(|at| format!("gone-{at}")).collect(),
            ..frame(1, (0..rows).map(made).collect())
        };
        records.push(readable(format!("{rows} rows"), &outputs.encode(), rows));
        let finish = [
            None,
            Some(SynthFinish::StopToken(2)),
            Some(SynthFinish::Length(4)),
            Some(SynthFinish::Abort("x".into())),
        ];
        let made = |at: usize| SynthRow {
            rid: at.to_string(),
            ids: vec![5],
            finish: finish[at % 4].clone(),
            completion_tokens: 1,
            prompt_tokens: 3,
            first_token_ns: (at % 3 == 1).then_some(1_000_000),
            ..SynthRow::default()
        };
        let plain = SynthBatch { rows: (0..rows).map(made).collect() };
        let plain = plain.encode(BatchKind::Outputs, SynthWire::EngineCore).unwrap();
        records.push(readable(format!("{rows} plain rows"), &plain, rows));
    }
    let answer = SynthOutputs { answers: Some(u64::MAX), ..SynthOutputs::default() };
    records.push(readable("an answer".to_owned(), &answer.encode(), 0));
    for rid in ["cmpl-0-0-0a1b2c3d", "日本語 \"quoted\"\n", &"long".repeat(1024)] {
        let one = hex(&AbortForm::of(AbortShape::Names).encode(rid, None).unwrap());
        records.push(json!({"what": "abort", "name": rid, "one": one, "rid": rid}));
    }
    check(&home, &records);
}
