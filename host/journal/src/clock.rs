//! How old a segment is, by the wall clock and by a clock that nobody can set.
//!
//! The wall clock says when a file was written. Where it is set forward, everything looks older at once. A clock that runs
//! from the start of the machine tells how far it was set, also over a restart of the process, since the last reading of both is
//! kept in each stream's `MANIFEST`. After a restart of the machine only the wall clock is there.

use crate::storage::{Steady, Storage};

/// The wall clock may gain so much on the other one without having been set: it is slewed.
const SLEWED_NS_MAX: u64 = 60_000_000_000;

/// Both clocks at one moment, and how far the wall clock was set forward before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub unix_ns: u64,
    pub steady_ns: u64,
    /// The start of the machine that `steady_ns` counts from; 0: not known.
    pub boot: u64,
    /// What the wall clock said after it was last set forward; 0: never.
    pub jumped_at_unix_ns: u64,
    /// By how much, in sum. What was written before is younger by that.
    pub jumped_ns: u64,
}

impl ClockReading {
    /// Reads both clocks again: whether the wall clock was set forward meanwhile.
    pub fn look(&mut self, storage: &dyn Storage) -> bool {
        let unix_ns = storage.now_unix_ns();
        let Steady { boot, ns } = storage.steady().unwrap_or_default();
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
                // It is set right again.
                self.jumped_ns = self.jumped_ns.saturating_sub(behind);
            }
        }
        (self.unix_ns, self.steady_ns, self.boot) = (unix_ns, ns, boot);
        jumped
    }

    /// Takes in what another stream has kept: the reading that knows more.
    pub fn merge(&mut self, other: ClockReading, storage: &dyn Storage) {
        let mut other = other;
        other.look(storage);
        if other.boot != 0 && other.jumped_at_unix_ns > self.jumped_at_unix_ns {
            (self.jumped_at_unix_ns, self.jumped_ns) = (other.jumped_at_unix_ns, other.jumped_ns);
        }
    }

    /// How old what was written then is, by whichever clock says less.
    pub fn age_ns(&self, written_unix_ns: u64) -> u64 {
        let age = self.unix_ns.saturating_sub(written_unix_ns);
        match written_unix_ns < self.jumped_at_unix_ns {
            true => age.saturating_sub(self.jumped_ns),
            false => age,
        }
    }
}
