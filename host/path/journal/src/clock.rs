//! Ages of segments, by the wall clock and the boot clock.
//!
//! Setting the wall clock forward would make every segment look old at once. The boot clock shows by how much
//! the wall clock was set. `MANIFEST` stores the last reading of both clocks, so this works across restarts
//! of the process. After a reboot only the wall clock is left.

use serde::{Deserialize, Serialize};

use crate::storage::{BootClock, Storage};

/// Nanoseconds that the wall clock may gain on the boot clock without counting as set: NTP slews it.
const SLEWED_NS_MAX: u64 = 60_000_000_000;

/// Both clocks at one moment, and how far the wall clock was set forward before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockReading {
    pub unix_ns: u64,
    pub steady_ns: u64,
    /// Boot that `steady_ns` counts from; 0 if unknown.
    pub boot: u64,
    /// Wall clock right after it was last set forward; 0 if never.
    pub jumped_at_unix_ns: u64,
    /// Sum by which the wall clock was set forward. Files written before are younger by this sum.
    pub jumped_ns: u64,
}

impl ClockReading {
    /// Reads both clocks. Returns whether the wall clock was set forward since the last reading.
    pub fn update(&mut self, storage: &dyn Storage) -> bool {
        let unix_ns = storage.now_unix_ns();
        let BootClock { boot, ns } = storage.steady().unwrap_or_default();
        let mut jumped = false;
        if boot != 0 && boot == self.boot {
            let passed = ns.saturating_sub(self.steady_ns);
            let expected = self.unix_ns.saturating_add(passed);
            let (ahead, behind) = (unix_ns.saturating_sub(expected), expected.saturating_sub(unix_ns));
            jumped = ahead > SLEWED_NS_MAX;
            if jumped {
                self.jumped_at_unix_ns = unix_ns;
                self.jumped_ns = self.jumped_ns.saturating_add(ahead);
            } else if behind > SLEWED_NS_MAX {
                // The wall clock was set back to the right time.
                self.jumped_ns = self.jumped_ns.saturating_sub(behind);
            }
        }
        (self.unix_ns, self.steady_ns, self.boot) = (unix_ns, ns, boot);
        jumped
    }

    /// Takes over the reading of another stream if that reading saw a later jump.
    pub fn merge(&mut self, other: ClockReading, storage: &dyn Storage) {
        let mut other = other;
        other.update(storage);
        if other.boot != 0 && other.jumped_at_unix_ns > self.jumped_at_unix_ns {
            (self.jumped_at_unix_ns, self.jumped_ns) = (other.jumped_at_unix_ns, other.jumped_ns);
        }
    }

    /// Age of a file written at `written_unix_ns`, by the clock that gives the smaller age.
    pub fn age_ns(&self, written_unix_ns: u64) -> u64 {
        let age = self.unix_ns.saturating_sub(written_unix_ns);
        match written_unix_ns < self.jumped_at_unix_ns {
            true => age.saturating_sub(self.jumped_ns),
            false => age,
        }
    }
}
