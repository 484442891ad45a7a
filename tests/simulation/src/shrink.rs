//! Makes a failing schedule shorter: removes actions as long as the schedule still fails.

use crate::run::{Failure, run};
use crate::schedule::Schedule;
use std::time::{Duration, Instant};

/// Time after which the shortest schedule so far is the result.
const SHRINK_MAX: Duration = Duration::from_secs(20);

/// A shorter schedule that fails, too, and its failure. `None` if the schedule does not fail.
pub fn shrink(schedule: &Schedule) -> Option<(Schedule, Failure)> {
    let mut failure = run(schedule).err()?;
    let mut shortest = schedule.clone();
    let mut chunk = shortest.actions.len().div_ceil(2);
    let began = Instant::now();
    while chunk > 0 {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < shortest.actions.len() {
            if began.elapsed() > SHRINK_MAX {
                return Some((shortest, failure));
            }
            let mut shorter = shortest.clone();
            shorter.actions.drain(at..(at + chunk).min(shorter.actions.len()));
            match run(&shorter) {
                Err(other) if kind(&other) == kind(&failure) => {
                    (shortest, failure, has_shrunk) = (shorter, other, true)
                }
                _ => at += chunk,
            }
        }
        if !has_shrunk || chunk > 1 {
            chunk /= 2;
        }
    }
    Some((shortest, failure))
}

/// The kind of a failure: the first words without numbers. A shorter schedule must fail in the same way.
pub fn kind(failure: &Failure) -> String {
    failure.what.chars().filter(|letter| !letter.is_ascii_digit()).take(40).collect()
}

/// The failure of a seed in words: the command that replays it, and the shortest schedule that was found.
pub fn explain(schedule: &Schedule) -> String {
    let Some((shortest, failure)) = shrink(schedule) else {
        return format!("seed {} fails no longer: the simulation is not deterministic", schedule.made_from);
    };
    let numbers: Vec<String> = shortest.actions.iter().map(|(number, _)| number.to_string()).collect();
    let actions: Vec<String> =
        shortest.actions.iter().map(|(number, it)| format!("  {number}: {it:?}")).collect();
    format!(
        "seed {}: {}\nreplay it with\n  AFTERBAY_SEED={} AFTERBAY_ACTIONS={} cargo test -p afterbay-simulation a_given_seed -- --nocapture\n\
         {:?}\n{}\nevents:\n  {}",
        shortest.made_from,
        failure.what,
        shortest.made_from,
        numbers.join(","),
        shortest.settings,
        actions.join("\n"),
        failure.events.join("\n  "),
    )
}
