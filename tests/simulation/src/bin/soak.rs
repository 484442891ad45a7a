//! Runs new seeds for an hour, or for `SOAK_MINUTES` minutes. Prints progress, and each failure with its replay.
#![allow(clippy::unwrap_used, reason = "a wrong number may panic")]

use afterbay_simulation::schedule::{ENGINE_SEEDS, HAND_OVER_SEEDS, RIDS_AGAIN_SEEDS, VLLM_SEEDS};
use afterbay_simulation::soak::Totals;
use afterbay_simulation::{explain, kind};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Failures of one kind that are made shorter and shown. Later ones are counted, with their seed.
const SHOWN_MAX: u64 = 2;

fn main() -> ExitCode {
    let minutes: u64 = std::env::var("SOAK_MINUTES").map_or(60, |minutes| minutes.parse().unwrap());
    let first = std::env::var("AFTERBAY_SEED").map_or_else(
        |_| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() << 24,
        |seed| seed.parse().unwrap(),
    );
    let (began, mut totals, mut failures) = (Instant::now(), Totals::default(), 0);
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let every = Duration::from_secs(if stdout().is_terminal() { 1 } else { 60 });
    let mut shown = began;
    println!("{minutes} minutes from seed {first} on");
    // Each schedule runs without and with hand-overs. Of four, one is a stream of vLLM, and in one rids come again.
    let of_kind = |seed: u64| seed | [VLLM_SEEDS, ENGINE_SEEDS, RIDS_AGAIN_SEEDS, 0][seed as usize % 4];
    for seed in (first..ENGINE_SEEDS).map(of_kind).flat_map(|seed| [seed, seed | HAND_OVER_SEEDS]) {
        if let Err(failed) = totals.run(seed) {
            let (schedule, failure) = *failed;
            failures += 1;
            let of_kind: &mut u64 = kinds.entry(kind(&failure)).or_default();
            *of_kind += 1;
            if *of_kind <= SHOWN_MAX {
                println!("\nFAILURE {failures}\n{}\n", explain(&schedule));
            } else {
                println!("\nFAILURE {failures}: seed {seed}: {}\n", failure.what);
            }
        }
        let is_over = began.elapsed() >= Duration::from_secs(60 * minutes);
        if is_over || shown.elapsed() >= every {
            shown = Instant::now();
            let ending = if stdout().is_terminal() && !is_over { "\r" } else { "\n" };
            let Totals { schedules, crashes, panics, hand_overs, migrated, calls, frames, crash_points } =
                &totals;
            let rate = *schedules as f64 * 60.0 / began.elapsed().as_secs_f64();
            print!(
                "{:>4} min: {schedules} schedules ({rate:.0} a minute), {failures} failures, {crashes} crashes at {} distinct \
                 points, {panics} panics, {hand_overs} hand-overs, {migrated} migrations, {frames} frames, {calls} system calls{ending}",
                began.elapsed().as_secs() / 60,
                crash_points.len(),
            );
            let _ = stdout().flush();
        }
        if is_over {
            break;
        }
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
