//! The model of a fleet's cost: its measured bytes are those of a journal, and the page shows what it computes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_journal::storage::Disk;
use afterbay_journal::{
    Background, Credit, JournalDirectory, JournalOptions, JournalRequest, Outcome, Passage, RowFinish,
    SinkContent, SyncPolicy,
};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The largest difference between the model and a journal.
const TOLERANCE: f64 = 0.03;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The content of a journal, counted, and its bytes.
#[derive(Debug, Default)]
struct Measured {
    rows: u64,
    frames: u64,
    requests: u64,
    bytes: u64,
}

/// A request of the simulator.
struct Live {
    request: JournalRequest,
    rid: String,
    sent: u64,
}

/// Writes what a stream with one counting reader writes: `batch` requests run at any time, each of `tokens` tokens, one token a
/// row.
fn measure(wire: SynthWire, batch: u64, tokens: u64, frames: u64) -> Measured {
    let dir = tempfile::tempdir().unwrap();
    let options = JournalOptions { sync: SyncPolicy::None, ..JournalOptions::default() };
    let directory =
        JournalDirectory::open_on(Arc::new(Disk), dir.path(), options, Background::Caller).unwrap();
    let (mut writer, _) = directory.stream("decode").unwrap();
    let mut measured = Measured { frames, ..Measured::default() };
    let mut live: Vec<Live> = Vec::new();
    for frame in 1..=frames {
        let now = 1_700_000_000_000_000_000 + frame * 20_000_000;
        while (live.len() as u64) < batch {
            measured.requests += 1;
            let rid = format!(
                "{:032x}",
                u128::from(measured.requests).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            );
            let request = writer.open(&rid);
            // The first requests are somewhere in their lives.
            let sent = if frame == 1 { live.len() as u64 * tokens / batch } else { 0 };
            live.push(Live { request, rid, sent });
        }
        let rows = live.iter_mut().map(|it| {
            it.sent += 1;
            SynthRow {
                rid: it.rid.clone(),
                ids: vec![(it.sent * 7919 % 150_000) as i64],
                finish: (it.sent == tokens).then_some(SynthFinish::Length(tokens)),
                completion_tokens: it.sent,
                prompt_tokens: 1000,
                ..SynthRow::default()
            }
        });
        let bytes = SynthBatch { rows: rows.collect() }.encode(BatchKind::TokenId, wire).unwrap();
        let position = writer.append(&bytes, now).unwrap();
        let ended: Vec<(u32, &Live)> = (0..).zip(&live).filter(|(_, it)| it.sent == tokens).collect();
        let finished: Vec<RowFinish<'_>> = ended
            .iter()
            .map(|(row, _)| RowFinish { row: *row, reason: "length".into(), completion_tokens: Some(tokens) })
            .collect();
        let requests: Vec<JournalRequest> = live.iter().map(|it| it.request).collect();
        writer.outcome(&Outcome {
            requests: (&requests).into(),
            tokens: vec![1; requests.len()].into(),
            finished: finished.into(),
            ..Outcome::new(position.frame, now, Passage::Unchanged)
        });
        ended.iter().for_each(|(_, it)| writer.close(it.request));
        let credit = Some(Credit { generation: 7, sent: frame, handed_over: frame });
        writer.sent("reader", frame, SinkContent::Whole(position.frame), now);
        writer.taken("reader", frame, position.frame, credit, now);
        writer.flush().unwrap();
        measured.rows += live.len() as u64;
        live.retain(|it| it.sent < tokens);
    }
    writer.finish().unwrap();
    let files = std::fs::read_dir(dir.path().join("decode")).unwrap().map(|file| file.unwrap());
    measured.bytes = files.map(|file| file.metadata().unwrap().len()).sum();
    measured
}

fn model() -> Value {
    let text = std::fs::read_to_string(repository().join("tests/bench/fleet.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_bytes_of_the_fleet_model_are_those_of_a_journal() {
    let model = model();
    for (name, wire) in [
        ("sglang-msgpack", SynthWire::Msgpack),
        ("sglang-pickle", SynthWire::Pickle),
        ("vllm", SynthWire::EngineCore),
    ] {
        for (batch, tokens, frames) in [(40, 300, 250), (200, 500, 50), (16, 100, 250)] {
            let Measured { rows, frames, requests, bytes } = measure(wire, batch, tokens, frames);
            let of = |part: &str| model["journal"][name][part].as_f64().unwrap();
            let computed =
                rows as f64 * of("row") + frames as f64 * of("frame") + requests as f64 * of("request");
            let off = computed / bytes as f64 - 1.0;
            assert!(
                off.abs() < TOLERANCE,
                "{name}, {batch} rows a frame, {tokens} tokens a request: the model says {:.1} bytes a row, the \
                 journal has {:.1} ({rows} rows, {frames} frames, {requests} requests, {bytes} bytes)",
                computed / rows as f64,
                bytes as f64 / rows as f64,
            );
        }
    }
}

#[test]
fn the_page_about_fleets_shows_what_the_model_computes() {
    let page = repository().join("docs/src/operate/fleet.md");
    let mut text = std::fs::read_to_string(&page).unwrap();
    let done = Command::new("python3").arg(repository().join("tests/bench/fleet.py")).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let table = format!("\n{}\n", String::from_utf8(done.stdout).unwrap());
    let begin = "<!-- fleet.py -->\n";
    let begins = text.find(begin).unwrap() + begin.len();
    let ends = begins + text[begins..].find("<!-- end -->").unwrap();
    if std::env::var_os("AFTERBAY_BLESS").is_some() {
        text.replace_range(begins..ends, &table);
        std::fs::write(&page, &text).unwrap();
    }
    assert!(text[begins..].starts_with(&table), "run this test with AFTERBAY_BLESS=1:\n{table}");
}
