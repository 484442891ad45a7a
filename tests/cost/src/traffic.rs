//! The frames to send: a scheduler's steps, encoded in advance.

use afterbay_wire::Engine;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{BatchKind, Layouts};
use bytes::Bytes;
use std::ops::Range;

/// Frames that are sent in a cycle.
pub struct Traffic {
    /// The frames, in order.
    pub frames: Vec<Bytes>,
    /// The number of rows of each frame.
    pub rows_per_frame: u64,
    /// The layouts of the engine that sends them.
    pub layouts: Layouts,
}

impl Traffic {
    /// Frames with one token per row and all columns of SGLang 0.5.23, or with `vllm` all fields and statistics of vLLM 0.32. Every
    /// request ends after `steps` frames; the next cycle uses the same rids for new requests.
    pub fn new(wire: &str, rows: u64, steps: u64) -> anyhow::Result<Traffic> {
        if wire == "vllm" {
            let frames = (1..=steps).map(|step| outputs(rows, step, steps).encode());
            return Ok(Traffic {
                frames: frames.collect(),
                rows_per_frame: rows,
                layouts: Layouts::of(Engine::Vllm),
            });
        }
        let wire = if wire == "pickle" { SynthWire::Pickle } else { SynthWire::Msgpack };
        let frames = (1..=steps).map(|step| sglang_frame(wire, 0..rows, step, steps, id));
        let frames = frames.collect::<anyhow::Result<_>>()?;
        Ok(Traffic { frames, rows_per_frame: rows, layouts: Layouts::builtin() })
    }

    /// The frame that follows `sent` frames.
    pub fn frame(&self, sent: u64) -> Bytes {
        self.frames[(sent % self.frames.len() as u64) as usize].clone()
    }
}

/// The rid of SGLang's request.
pub fn rid(request: u64) -> String {
    format!("{request:016x}{:016x}", request.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The usual token of a request's step.
pub fn id(row: u64, step: u64) -> i64 {
    ((row * 31 + step * 17) % 128_000) as i64
}

fn outputs(rows: u64, step: u64, steps: u64) -> SynthOutputs {
    let row = |row: u64| SynthOutput {
        request_id: format!("cmpl-{:016x}-0-{row:08x}", row.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        new_token_ids: vec![id(row, step)],
        finish_reason: (step == steps).then_some(1),
        prompt_tokens: (step == 1).then_some(32),
        ..SynthOutput::default()
    };
    let stats = Some((rows as u32, 0, 0.5));
    let timestamp = step as f64 / 40.0;
    SynthOutputs { rows: (0..rows).map(row).collect(), timestamp, stats, ..SynthOutputs::default() }
}

/// The frame of SGLang of this step, with one row per request. `id` gives the token of a request's step.
pub fn sglang_frame(
    wire: SynthWire,
    requests: Range<u64>,
    step: u64,
    steps: u64,
    id: impl Fn(u64, u64) -> i64,
) -> anyhow::Result<Bytes> {
    let row = |row: u64| SynthRow {
        rid: rid(row),
        prompt_tail: if step == 1 { vec![11, 12, 13, 14, 15] } else { Vec::new() },
        ids: vec![id(row, step)],
        finish: (step == steps).then_some(SynthFinish::Length(steps)),
        completion_tokens: step,
        prompt_tokens: 32,
        ..SynthRow::default()
    };
    Ok(SynthBatch { rows: requests.map(row).collect() }.encode(BatchKind::TokenId, wire)?)
}
