//! The frames to send: a scheduler's steps, encoded in advance.

use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use bytes::Bytes;

/// Frames that are sent in a cycle.
pub(crate) struct Traffic {
    pub(crate) frames: Vec<Bytes>,
    pub(crate) rows_per_frame: u64,
}

impl Traffic {
    /// Frames with one token per row and all columns of SGLang 0.5.23. Every request ends after `steps` frames; the next cycle uses the
    /// same rids for new requests.
    pub(crate) fn new(wire: &str, rows: u64, steps: u64) -> anyhow::Result<Traffic> {
        let wire = if wire == "pickle" { SynthWire::Pickle } else { SynthWire::Msgpack };
        let frames = (1..=steps).map(|step| batch(rows, step, steps).encode(BatchKind::TokenId, wire));
        Ok(Traffic { frames: frames.collect::<Result<_, _>>()?, rows_per_frame: rows })
    }

    /// The frame that follows `sent` frames.
    pub(crate) fn frame(&self, sent: u64) -> Bytes {
        self.frames[(sent % self.frames.len() as u64) as usize].clone()
    }
}

fn batch(rows: u64, step: u64, steps: u64) -> SynthBatch {
    let row = |row: u64| SynthRow {
        rid: format!("{row:016x}{:016x}", row.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        prompt_tail: if step == 1 { vec![11, 12, 13, 14, 15] } else { Vec::new() },
        ids: vec![((row * 31 + step * 17) % 128_000) as i64],
        finish: (step == steps).then_some(SynthFinish::Length(steps)),
        completion_tokens: step,
        prompt_tokens: 32,
        ..SynthRow::default()
    };
    SynthBatch { rows: (0..rows).map(row).collect() }
}
