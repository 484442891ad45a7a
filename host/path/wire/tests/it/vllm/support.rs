//! The fixtures, and what the tests do with them.

use std::fs;

use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{Barrier, Batch, BatchPart, DecodedFrame, Layouts, Wrapped, decode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::samples::{VLLM, root};

pub struct Sample {
    pub name: String,
    pub bytes: Bytes,
    /// The fields that vLLM's own decoder read in the frame.
    pub json: Value,
}

pub fn all() -> Vec<Sample> {
    let dir = root().join(VLLM);
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let frames = paths.filter(|path| path.extension().is_some_and(|it| it == "frame"));
    let mut samples: Vec<Sample> = frames
        .map(|path| Sample {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            bytes: fs::read(&path).unwrap().into(),
            json: serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap(),
        })
        .collect();
    assert!(samples.len() > 50, "only {} fixtures are there", samples.len());
    samples.sort_by(|one, other| one.name.cmp(&other.name));
    samples
}

pub fn sample(name: &str) -> Sample {
    all().into_iter().find(|sample| sample.name == name).unwrap_or_else(|| panic!("no fixture {name}"))
}

pub fn read(bytes: &Bytes) -> DecodedFrame {
    decode(bytes.clone(), &Layouts::of(afterbay_wire::Engine::Vllm))
}

pub fn batch(bytes: &Bytes) -> Batch {
    match read(bytes) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("no batch but {:?}", barrier.kind),
    }
}

pub fn barrier(bytes: &Bytes) -> Barrier {
    match read(bytes) {
        DecodedFrame::Batch(batch) => panic!("a batch of {} rows", batch.rows()),
        DecodedFrame::Barrier(barrier) => barrier,
    }
}

pub fn join(parts: &[&Batch]) -> Batch {
    Batch::join(&parts.iter().map(|batch| BatchPart::from(*batch)).collect::<Vec<_>>()).unwrap()
}

/// Takes every row on its own, and joins all rows again.
pub fn split_and_join(batch: &Batch) -> Batch {
    let rows: Vec<_> = (0..batch.rows()).map(|row| batch.take(&[row]).unwrap()).collect();
    join(&rows.iter().collect::<Vec<_>>())
}

pub fn json(batch: &Batch) -> Value {
    batch.to_json(Wrapped::Keep)
}

/// The fields of a frame in the fixtures' notation: vLLM's own types, by name.
pub fn as_vllm(json: &Value) -> Value {
    let mut frame = without_struct(json);
    let rows = frame["outputs"].as_array().unwrap().iter().map(row_as_vllm).collect();
    frame["outputs"] = Value::Array(rows);
    if let Some(answer) = frame["utility_output"].as_array() {
        let result = answer[2].as_array().map(|result| json!({"result": result[1]}));
        frame["utility_output"] =
            json!({"call_id": answer[0], "failure_message": answer[1], "result": result});
    }
    if let Some(finished) = frame["finished_requests"].as_array_mut() {
        finished.sort_by_key(Value::to_string);
    }
    frame
}

fn without_struct(json: &Value) -> Value {
    let fields = json.as_object().unwrap().iter().filter(|(key, _)| *key != "__struct__");
    fields.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>().into()
}

fn row_as_vllm(row: &Value) -> Value {
    let mut row = row.clone();
    let named = |names: &[&str], values: &Value| match values.as_array() {
        Some(values) => {
            names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), arrays(value))).collect()
        }
        None => Value::Null,
    };
    row["new_logprobs"] = named(
        &["logprob_token_ids", "logprobs", "sampled_token_ranks", "cu_num_generated_tokens"],
        &row["new_logprobs"],
    );
    row["new_prompt_logprobs_tensors"] = named(
        &[
            "logprob_token_ids",
            "logprobs",
            "selected_token_ranks",
            "cu_num_generated_tokens",
            "cu_num_generated_tokens_tensor",
        ],
        &row["new_prompt_logprobs_tensors"],
    );
    row["new_sampling_mask"] =
        named(&["token_ids", "offsets", "cu_num_generated_tokens"], &row["new_sampling_mask"]);
    for field in ["pooling_output", "routed_experts", "prompt_token_id_logprobs"] {
        row[field] = arrays(&row[field]);
    }
    if let Some(reason) = row["finish_reason"].as_u64() {
        row["finish_reason"] = ["STOP", "LENGTH", "ABORT", "ERROR", "REPETITION"][reason as usize].into();
    }
    for event in row["events"].as_array_mut().into_iter().flatten() {
        let kind = event["type"].as_u64().unwrap();
        event["type"] = ["QUEUED", "SCHEDULED", "PREEMPTED"][kind as usize - 1].into();
    }
    row
}

/// Shows the numbers of arrays instead of their bytes.
fn arrays(value: &Value) -> Value {
    if let Some(list) = value.as_array() {
        return list.iter().map(arrays).collect();
    }
    let array = ["__ndarray__", "__tensor__"].into_iter().find(|key| value.get(key).is_some());
    let Some(key) = array else { return value.clone() };
    let dtype = value[key].as_str().unwrap();
    let bytes = STANDARD.decode(value["b64"].as_str().unwrap()).unwrap();
    let numbers: Vec<Value> = match dtype {
        "<i8" | "int64" => {
            bytes.chunks_exact(8).map(|it| i64::from_le_bytes(it.try_into().unwrap()).into()).collect()
        }
        "<i4" | "int32" => {
            bytes.chunks_exact(4).map(|it| i32::from_le_bytes(it.try_into().unwrap()).into()).collect()
        }
        "<i2" => bytes.chunks_exact(2).map(|it| i16::from_le_bytes(it.try_into().unwrap()).into()).collect(),
        "<f4" | "float32" => bytes
            .chunks_exact(4)
            .map(|it| f64::from(f32::from_le_bytes(it.try_into().unwrap())).into())
            .collect(),
        other => panic!("{other}"),
    };
    let (kind, dtype) = if key == "__tensor__" {
        ("tensor", format!("torch.{dtype}"))
    } else {
        ("ndarray", dtype.to_owned())
    };
    let shape: Vec<usize> =
        value["shape"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as usize).collect();
    json!({kind: dtype, "shape": shape, "data": nested(&numbers, &shape)})
}

fn nested(numbers: &[Value], shape: &[usize]) -> Value {
    match shape {
        [] => numbers[0].clone(),
        [_] => numbers.into(),
        [count, rest @ ..] => {
            let each = rest.iter().product::<usize>();
            (0..*count).map(|at| nested(&numbers[at * each..(at + 1) * each], rest)).collect()
        }
    }
}

/// A row of a request that runs.
pub fn row(request_id: &str, ids: &[i64]) -> SynthOutput {
    SynthOutput { request_id: request_id.to_owned(), new_token_ids: ids.to_vec(), ..SynthOutput::default() }
}

pub fn last(request_id: &str, ids: &[i64], reason: u8) -> SynthOutput {
    SynthOutput { finish_reason: Some(reason), ..row(request_id, ids) }
}

/// A frame with statistics, as the engine sends in every step.
pub fn frame(step: u32, rows: Vec<SynthOutput>) -> SynthOutputs {
    let (running, timestamp) = (rows.len() as u32, 100.0 + f64::from(step));
    SynthOutputs { rows, timestamp, stats: Some((running, step, 0.25)), ..SynthOutputs::default() }
}

pub fn batch_of(step: u32, rows: Vec<SynthOutput>) -> Batch {
    batch(&frame(step, rows).encode())
}

/// The ids of a row.
pub fn ids(batch: &Batch, row: u32) -> Vec<i64> {
    let mut ids = Vec::new();
    batch.row_ids(row, &mut ids);
    ids
}
