//! The fixtures, and what the tests do with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use afterbay_wire::{Batch, BatchPart, DecodedFrame, Finish, Ids, Introduction, Layouts, Wrapped, decode};
use bytes::Bytes;
use serde_json::{Value, json};

pub struct Sample {
    /// The path below `tests/fixtures`.
    pub name: String,
    pub bytes: Bytes,
    /// The decoded fields.
    pub json: Option<Value>,
    /// How `json` shows pickles inside msgpack.
    pub wrapped: Wrapped,
}

/// The frames of vLLM, below `tests/fixtures`.
pub const VLLM: &str = "vllm";
/// The frames of SMG's wire, below `tests/fixtures`.
pub const SMG: &str = "smg";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures")
}

/// Every frame of the fixtures: made by 0.5.23 (`frames`), by each version (`versions`), captured from a socket
/// (`real`).
pub fn all() -> Vec<Sample> {
    let mut samples = Vec::new();
    for (dir, wrapped) in [("frames", Wrapped::Keep), ("versions", Wrapped::Open), ("real", Wrapped::Keep)] {
        collect(&root().join(dir), wrapped, &mut samples);
    }
    assert!(samples.len() > 380, "only {} fixtures are there", samples.len());
    samples.sort_by(|one, other| one.name.cmp(&other.name));
    samples
}

pub fn sample(name: &str) -> Sample {
    read(&root().join(name), Wrapped::Keep)
}

fn collect(dir: &Path, wrapped: Wrapped, samples: &mut Vec<Sample>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.extension().and_then(|it| it.to_str()) {
            None => collect(&path, wrapped, samples),
            Some("msgpack" | "pickle" | "bin") => samples.push(read(&path, wrapped)),
            _ if path.is_dir() => collect(&path, wrapped, samples),
            _ => (),
        }
    }
}

fn read(path: &Path, wrapped: Wrapped) -> Sample {
    let json = fs::read(path.with_extension("json")).ok();
    Sample {
        name: path.strip_prefix(root()).unwrap().display().to_string(),
        bytes: fs::read(path).unwrap().into(),
        json: json.map(|json| serde_json::from_slice(&json).unwrap()),
        wrapped,
    }
}

/// The decoded fields of a batch or an idle batch.
pub fn fields(bytes: &Bytes, wrapped: Wrapped) -> Value {
    match decode(bytes.clone(), &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => batch.to_json(wrapped),
        DecodedFrame::Barrier(barrier) => barrier.to_json(wrapped).unwrap(),
    }
}

/// Brings the different notations of the fixture sets into one: an array is a plain list (as in `versions`), a nested
/// struct is the list on the wire (as in `real`).
pub fn plain(json: &Value) -> Value {
    match json {
        Value::Object(map) => match (map.get("__array__"), map.get("__struct__").and_then(Value::as_str)) {
            (Some(_), _) => map["v"].clone(),
            (_, Some("PickleWrapper")) => json!(["PickleWrapper", map["data"]]),
            (_, Some("WeightVersionSpan")) => json!([map["version"], map["start"], map["end"]]),
            // This value is taken anew whenever the object is pickled.
            _ => map
                .iter()
                .filter(|(key, _)| *key != "diff_realtime_monotonic")
                .map(|(key, value)| (key.clone(), plain(value)))
                .collect(),
        },
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

/// Checks that two batches have the same fields, apart from the fixtures' notations.
pub fn assert_same(name: &str, one: &Value, other: &Value) {
    let (one, other) = (plain(one), plain(other));
    for (key, value) in one.as_object().unwrap() {
        assert_eq!(value, &other[key], "{key} of {name}");
    }
    assert_eq!(one.as_object().unwrap().len(), other.as_object().unwrap().len(), "fields of {name}");
}

pub fn read_batch(bytes: &Bytes) -> Batch {
    match decode(bytes.clone(), &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("no batch but {:?}", barrier.kind),
    }
}

/// The batch of a sample, if the sample is a batch.
pub fn batch(sample: &Sample) -> Option<Batch> {
    match decode(sample.bytes.clone(), &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => Some(batch),
        DecodedFrame::Barrier(_) => None,
    }
}

/// Takes every row on its own, and joins all rows again.
pub fn assert_reads_alike(one: &Batch, other: &Batch) {
    let read = |batch: &Batch| {
        let mut ids = Ids::default();
        batch.output_ids(&mut ids);
        let rids: Vec<String> = batch.rids().map(str::to_owned).collect();
        let counts: Vec<_> = batch.token_counts().zip(batch.completion_counts()).collect();
        let finishes: Vec<String> = batch.finishes().map(|finish| format!("{finish:?}")).collect();
        let rows: Vec<_> = (0..batch.rows())
            .map(|row| (batch.is_first(row), batch.prompt_tokens(row), batch.text(row).map(str::to_owned)))
            .collect();
        let whole = (batch.rows(), batch.wire(), batch.first_rows(), batch.has_text_rids());
        (whole, batch.unread().to_vec(), rids, counts, finishes, rows, ids)
    };
    assert_eq!(read(one), read(other));
    assert!(one.is_like(other));
}

pub fn split_and_join(batch: &Batch) -> Batch {
    let rows: Vec<_> = (0..batch.rows()).map(|row| batch.take(&[row]).unwrap()).collect();
    Batch::join(&rows.iter().map(BatchPart::from).collect::<Vec<_>>()).unwrap()
}

pub fn join(parts: &[&Batch]) -> Batch {
    Batch::join(&parts.iter().map(|batch| BatchPart::from(*batch)).collect::<Vec<_>>()).unwrap()
}

pub fn open(batch: &Batch) -> Value {
    batch.to_json(Wrapped::Open)
}

/// Frames of which some running rows are held and then released as in the stream: joined with the next row of their
/// request that is not held, in its place, or at the end side by side.
pub fn hold_and_release(batches: &[Batch], mut stays: impl FnMut(u32) -> bool) -> Vec<Batch> {
    let mut held: BTreeMap<String, Vec<Batch>> = BTreeMap::new();
    let mut frames = Vec::new();
    for batch in batches {
        let (stay, go): (Vec<u32>, Vec<u32>) =
            (0..batch.rows()).partition(|row| batch.finish(*row) == Finish::Running && stays(*row));
        for row in stay {
            held.entry(batch.rid(row).to_owned()).or_default().push(batch.take(&[row]).unwrap());
        }
        if go.is_empty() {
            continue;
        }
        let rest = batch.take(&go).unwrap();
        let mut joined = Vec::new();
        for row in 0..rest.rows() {
            if let Some(mut rows) = held.remove(rest.rid(row)) {
                rows.push(rest.take(&[row]).unwrap());
                joined
                    .push((row, Batch::join(&rows.iter().map(BatchPart::from).collect::<Vec<_>>()).unwrap()));
            }
        }
        let instead: Vec<_> = joined.iter().map(|(row, batch)| (*row, batch, 0)).collect();
        frames.extend(rest.edit_replacing(&[], &instead).unwrap());
    }
    let left: Vec<_> = held.values().flatten().map(BatchPart::from).collect();
    if !left.is_empty() {
        frames.push(Batch::join(&left).unwrap());
    }
    frames
}

/// The introduction of an engine with these classes: a map from class to the names of fields.
pub fn introduction(engine: &str, version: &str, classes: &serde_json::Value) -> Introduction {
    Introduction::read(&introduced(engine, version, classes)).unwrap()
}

/// The message of an introduction.
pub fn introduced(engine: &str, version: &str, classes: &serde_json::Value) -> Bytes {
    let classes: serde_json::Map<String, serde_json::Value> = classes
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| name.starts_with("Batch") || name.starts_with("Engine"))
        .map(|(name, fields)| {
            let fields = fields.as_array().unwrap().iter();
            (name.clone(), fields.map(|field| serde_json::json!([field])).collect())
        })
        .collect();
    let message = serde_json::json!({
        "afterbay": "introduction", "format": 1, "engine": engine, "version": version, "classes": classes,
    });
    message.to_string().into()
}
