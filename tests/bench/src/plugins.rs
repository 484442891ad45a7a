//! The cost per row of plugins in the runtime, in this process: one plugin, chains of plugins, and the same logic in native Rust.

use afterbay_runtime::{Columns, FinishKind, Host, HostOptions, Plugin};
use anyhow::Context;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

/// Rows per batch.
const ROWS: usize = 1024;
/// The lengths of the measured chains.
pub(crate) const CHAINS: [usize; 4] = [1, 2, 4, 8];

/// Costs in nanoseconds per row.
pub(crate) struct Plugins {
    /// The logic of the guest `nothing` in native Rust: it reads each id.
    pub(crate) native: f64,
    /// Chains of `nothing` with the lengths of [`CHAINS`].
    pub(crate) chains: [f64; CHAINS.len()],
    /// `stop-on-loop`, which keeps a window of ids for each request.
    pub(crate) loops: f64,
}

/// Measures for `time` and returns the fastest round of each.
pub(crate) fn measure(guests: &Path, examples: &Path, time: Duration) -> anyhow::Result<Plugins> {
    let host = Host::new(HostOptions::default())?;
    let start = |file: &Path| -> anyhow::Result<Plugin> {
        let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
        let component = host.load("bench", &bytes, afterbay_runtime::Limits::default())?;
        Ok(component.instantiate("{}")?)
    };
    let nothing = guests.join("examples/nothing.wasm");
    let largest = CHAINS.iter().copied().max().unwrap_or(1);
    let mut chain = (0..largest).map(|_| start(&nothing)).collect::<anyhow::Result<Vec<Plugin>>>()?;
    let mut loops = start(&examples.join("stop_on_loop.wasm"))?;

    let requests: Vec<u64> = (0..ROWS as u64).collect();
    // All different, so that stop-on-loop finds no loop.
    let mut ids: Vec<i64> = (0..ROWS as i64).map(|id| 151_000 - id).collect();
    let ends: Vec<u32> = (1..=ROWS as u32).collect();
    let (counts, finished) = (vec![100; ROWS], vec![FinishKind::Running; ROWS]);
    let share = time / (CHAINS.len() as u32 + 2);

    let native = fastest(share, &mut ids, |ids| {
        black_box(ids.iter().fold(0_i64, |sum, id| sum.wrapping_add(*id)));
        Ok(())
    })?;
    let process = |plugins: &mut [Plugin], ids: &[i64]| -> anyhow::Result<()> {
        let columns = Columns {
            requests: &requests,
            output_ids: ids,
            output_ends: &ends,
            completion_tokens: &counts,
            finished: &finished,
            ..Columns::default()
        };
        for plugin in plugins {
            black_box(plugin.process(&columns)?);
        }
        Ok(())
    };
    let mut chains = [0.0; CHAINS.len()];
    for (length, cost) in CHAINS.into_iter().zip(&mut chains) {
        *cost = fastest(share, &mut ids, |ids| process(&mut chain[..length], ids))?;
    }
    let loops = fastest(share, &mut ids, |ids| process(std::slice::from_mut(&mut loops), ids))?;
    Ok(Plugins { native, chains, loops })
}

fn fastest(
    time: Duration,
    ids: &mut [i64],
    mut round: impl FnMut(&[i64]) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let until = Instant::now() + time;
    let mut fastest = f64::INFINITY;
    while Instant::now() < until {
        // Change the id of each row.
        ids.iter_mut().for_each(|id| *id = (*id * 31 + 7) % 151_000);
        let begun = Instant::now();
        round(ids)?;
        fastest = fastest.min(begun.elapsed().as_nanos() as f64 / ROWS as f64);
    }
    Ok(fastest)
}
