//! Frames to send: frames of the real SGLang, frames of a simulated load, and batches that a test builds row by row.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use afterbay_sim::frames::{Encoding, Frame};
use afterbay_sim::load::Load;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, DecodedFrame, Finish, Layouts, Matched};
use bytes::Bytes;

use crate::repository;

/// The two encodings.
pub const WIRES: [SynthWire; 2] = [SynthWire::Msgpack, SynthWire::Pickle];

/// Every frame of `tests/fixtures` with its name, sorted by name.
pub fn fixtures() -> Vec<(String, Vec<u8>)> {
    fixtures_named(&["msgpack", "pickle", "bin"])
}

/// Every frame of vLLM of the fixtures, as `fixtures` returns those of SGLang.
pub fn vllm_fixtures() -> Vec<(String, Vec<u8>)> {
    let mut all = fixtures_named(&["frame"]);
    all.retain(|(name, _)| name.starts_with("vllm/"));
    all
}

fn fixtures_named(extensions: &[&str]) -> Vec<(String, Vec<u8>)> {
    fn collect(dir: &Path, root: &Path, extensions: &[&str], found: &mut Vec<(String, Vec<u8>)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, root, extensions, found);
            } else if extensions.iter().any(|it| path.extension().is_some_and(|own| own == *it)) {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    let root = repository().join("tests/fixtures");
    let mut found = Vec::new();
    collect(&root, &root, extensions, &mut found);
    found.sort();
    found
}

/// The frames of a simulated scheduler for `requests` requests of `tokens` tokens.
pub fn load(requests: u64, tokens: u32, wire: SynthWire) -> Vec<Frame> {
    frames_of(&Load::new(requests, tokens), wire)
}

/// The frames of a load. If the load has an arrival rate, a step takes 20 ms.
pub fn frames_of(load: &Load, wire: SynthWire) -> Vec<Frame> {
    let encoding = Encoding { kind: BatchKind::TokenId, wire };
    afterbay_sim::frames::frames(load, encoding, Duration::from_millis(20)).unwrap()
}

/// A request whose rows a test builds one by one.
#[derive(Clone, Debug)]
pub struct SynthRequest {
    rid: String,
    tokens: u64,
}

impl SynthRequest {
    /// A request without tokens.
    pub fn new(rid: &str) -> SynthRequest {
        SynthRequest { rid: rid.to_owned(), tokens: 0 }
    }

    /// Builds the next row with these ids.
    pub fn row(&mut self, ids: &[i64]) -> SynthRow {
        self.tokens += ids.len() as u64;
        SynthRow {
            rid: self.rid.clone(),
            ids: ids.to_vec(),
            completion_tokens: self.tokens,
            prompt_tokens: 7,
            ..SynthRow::default()
        }
    }

    /// Builds the last row, with the finish reason `length`.
    pub fn last(&mut self, ids: &[i64]) -> SynthRow {
        let row = self.row(ids);
        SynthRow { finish: Some(SynthFinish::Length(self.tokens)), ..row }
    }

    /// Adds tokens to the scheduler's count without a row for them.
    pub fn lose(&mut self, tokens: u64) {
        self.tokens += tokens;
    }
}

/// A batch of token ids.
pub fn batch(wire: SynthWire, rows: Vec<SynthRow>) -> Bytes {
    SynthBatch { rows }.encode(BatchKind::TokenId, wire).unwrap()
}

/// A row that a reader received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderRow {
    /// The request's id.
    pub rid: String,
    /// The ids of the row.
    pub ids: Vec<i64>,
    /// The scheduler's token count.
    pub completion_tokens: u64,
    /// The finish reason: `length`, `stop`, `stop:TEXT`, `stop:TOKEN`, `abort` or `other`.
    pub finish: Option<String>,
}

/// An expected row.
pub fn row(rid: &str, ids: &[i64], completion_tokens: u64, finish: Option<&str>) -> ReaderRow {
    ReaderRow { rid: rid.to_owned(), ids: ids.to_vec(), completion_tokens, finish: finish.map(str::to_owned) }
}

/// The rows of a frame. A frame that is no batch has none.
pub fn rows(frame: &[u8]) -> Vec<ReaderRow> {
    match afterbay_wire::decode(Bytes::copy_from_slice(frame), &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => (0..batch.rows()).map(|row| read(&batch, row)).collect(),
        DecodedFrame::Barrier(_) => Vec::new(),
    }
}

/// The ids of each request, in order.
pub type Ids = BTreeMap<String, Vec<i64>>;

/// The ids of all rows in these frames.
pub fn ids(frames: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Ids {
    let mut ids = Ids::new();
    for row in frames.into_iter().flat_map(|frame| rows(frame.as_ref())) {
        ids.entry(row.rid).or_default().extend(row.ids);
    }
    ids
}

fn read(batch: &Batch, row: u32) -> ReaderRow {
    let mut ids = Vec::new();
    batch.row_ids(row, &mut ids);
    let finish = match batch.finish(row) {
        Finish::Running => None,
        Finish::Stop { matched: Matched::Text(text) } => Some(format!("stop:{text}")),
        Finish::Stop { matched: Matched::Token(token) } => Some(format!("stop:{token}")),
        Finish::Stop { .. } => Some("stop".to_owned()),
        Finish::Length => Some("length".to_owned()),
        Finish::Abort | Finish::Error => Some("abort".to_owned()),
        Finish::Other => Some("other".to_owned()),
    };
    let completion_tokens = batch.completion_tokens(row).unwrap_or(0);
    ReaderRow { rid: batch.rid(row).to_owned(), ids, completion_tokens, finish }
}
