//! Loops without a difference.

use super::history::{GRAM, History};
use super::{DIVERSE, Kind, Loop, PERIOD_MAX, needed};

/// Ids of a lookback that each id pays for. A lookback happens when a distance is found, over ids that came
/// before.
const CREDIT: usize = 4;

/// The distance at which the last ids repeat without a difference.
#[derive(Clone, Debug, Default)]
pub(super) struct Exact {
    /// 0: none.
    period: usize,
    /// The number of last ids that repeat at this distance.
    run: usize,
    /// The length at which the loop is judged next.
    judged_at: usize,
    /// Ids that a lookback may read.
    credit: usize,
}

impl Exact {
    /// The distance; 0 if there is none.
    pub(super) fn period(&self) -> usize {
        self.period
    }

    /// The ids of the loop: the first turn and all that repeat it.
    pub(super) fn length(&self) -> usize {
        self.period + self.run
    }

    /// Reads the last id of the history.
    pub(super) fn push(&mut self, history: &mut History) {
        self.credit = (self.credit + CREDIT).min(4 * PERIOD_MAX);
        let earlier = history.enter();
        if self.period > 0 && history.repeats(self.period) {
            self.run += 1;
            return;
        }
        (self.period, self.run, self.judged_at) = (0, 0, 0);
        if let Some(distance) = earlier {
            let run = history.agrees(distance, self.credit);
            self.credit -= run;
            if run >= GRAM {
                (self.period, self.run) = (distance, run);
            }
        }
    }

    /// The loop, if it has made all its turns.
    pub(super) fn found(&mut self, history: &History, turns: usize) -> Option<Loop> {
        let length = self.length();
        if self.period == 0 || length < needed(Kind::Exact, self.period, turns).max(self.judged_at) {
            return None;
        }
        let kind = match history.different(self.period) {
            DIVERSE.. => Kind::Exact,
            1 => Kind::OneToken,
            _ if self.period < DIVERSE => Kind::Phrase,
            _ => Kind::Monotonous,
        };
        // The ids of an exact loop stay the same, so this is judged once more at most.
        self.judged_at = needed(kind, self.period, turns);
        (length >= self.judged_at).then_some(Loop { kind, period: self.period, length })
    }
}
