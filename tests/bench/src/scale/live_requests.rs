//! The memory that live requests take, in the whole process.

use super::streams::{self, Peers};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use std::path::Path;
use std::time::{Duration, Instant};

/// Live requests of a stream: a stream has at most 262,144.
const PER_STREAM: u64 = 250_000;
/// Rows of a frame.
const ROWS: u64 = 1000;
/// The time after which memory of large frames is given back.
const SETTLE: Duration = Duration::from_secs(5);

/// Bytes of resident memory.
pub(super) struct LiveMemory {
    /// The process with its streams, without a live request.
    pub(super) before: f64,
    /// More than before, for each live request.
    pub(super) live: f64,
    /// More than before, for each request, once all have ended.
    pub(super) ended: f64,
    /// More than before, for each live request, when as many requests are live again.
    pub(super) live_again: f64,
}

pub(super) fn measure(afterbay: &Path, live: u64) -> anyhow::Result<LiveMemory> {
    let dir = super::on_disk()?;
    let streams = live.div_ceil(PER_STREAM);
    let of_stream = live / streams;
    let (proxy, mut peers) = streams::start(afterbay, dir.path(), streams as usize)?;
    let mut told = Instant::now();
    let mut resident = |peers: &mut Vec<Peers>, step: u64, requests: std::ops::Range<u64>, is_last| {
        for (at, peers) in peers.iter_mut().enumerate() {
            let mut frames = requests.clone().step_by(ROWS as usize);
            let driven = peers.drive(|_| {
                let first = frames.next()?;
                if told.elapsed() >= Duration::from_secs(5) {
                    eprintln!("stream {at}: request {first} of {}", requests.end);
                    told = Instant::now();
                }
                frame(first..(first + ROWS).min(requests.end), step, is_last)
            });
            proxy.explain(driven)?;
        }
        std::thread::sleep(SETTLE);
        anyhow::Ok(proxy.resident_bytes()? as f64)
    };
    // A few requests, so that each part of the process has run.
    resident(&mut peers, 1, 0..ROWS, false)?;
    let before = resident(&mut peers, 2, 0..ROWS, true)?;
    let each = |bytes: f64| (bytes - before) / live as f64;
    let first = ROWS..ROWS + of_stream;
    let second = first.end..first.end + of_stream;
    let live_bytes = resident(&mut peers, 1, first.clone(), false)?;
    let ended = resident(&mut peers, 2, first, true)?;
    let live_again = resident(&mut peers, 1, second, false)?;
    Ok(LiveMemory { before, live: each(live_bytes), ended: each(ended), live_again: each(live_again) })
}

fn frame(requests: std::ops::Range<u64>, step: u64, is_last: bool) -> Option<bytes::Bytes> {
    let row = |number: u64| SynthRow {
        rid: format!("{number:016x}{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        ids: vec![17],
        finish: is_last.then_some(SynthFinish::Length(step)),
        completion_tokens: step,
        prompt_tokens: 32,
        ..SynthRow::default()
    };
    SynthBatch { rows: requests.map(row).collect() }.encode(BatchKind::TokenId, SynthWire::Msgpack).ok()
}
