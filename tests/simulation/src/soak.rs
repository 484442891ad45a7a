//! Many seeds, one after another.

use crate::run::{Failure, run};
use crate::schedule::Schedule;
use crate::world::Summary;
use std::collections::BTreeSet;

/// The sums of many schedules.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules.
    pub schedules: u64,
    /// Deaths of the process.
    pub crashes: u64,
    /// Panics of the stream's thread.
    pub panics: u64,
    /// Hand-overs, also those that failed.
    pub hand_overs: u64,
    /// Requests that went on in another engine.
    pub migrated: u64,
    /// System calls.
    pub calls: u64,
    /// Received frames.
    pub frames: u64,
    /// The calls at which a process died, each with the three calls before it.
    pub crash_points: BTreeSet<u32>,
}

impl Totals {
    fn add(&mut self, summary: Summary) {
        self.schedules += 1;
        self.crashes += summary.crashes;
        self.panics += summary.panics;
        self.hand_overs += summary.hand_overs;
        self.migrated += summary.migrated;
        self.calls += summary.calls;
        self.frames += summary.frames;
        self.crash_points.extend(summary.crash_points);
    }

    /// Runs the schedule of a seed. `Err`: it fails.
    pub fn run(&mut self, seed: u64) -> Result<(), Box<(Schedule, Failure)>> {
        quiet_panics();
        let schedule = Schedule::new(seed);
        match run(&schedule) {
            Ok(summary) => {
                self.add(summary);
                Ok(())
            }
            Err(failure) => Err(Box::new((schedule, failure))),
        }
    }
}

/// Keeps injected panics off the standard error.
pub fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_injected =
                info.payload().downcast_ref::<String>().is_some_and(|text| text.starts_with("injected at"));
            if !is_injected {
                usual(info);
            }
        }));
    });
}
