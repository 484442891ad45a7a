//! Loops with a few differences.

use super::exact::Exact;
use super::history::{GRAM, History};
use super::{DIVERSE, Kind, Loop, PERIOD_MAX, needed};

/// One id in so many may differ.
const DIFFERS_MAX: usize = 6;

/// One id in so many may differ if the differing ids change their places.
const DIFFERS_MAX_OUT_OF_PLACE: usize = 10;

/// A loop of this many differing ids in a row is over.
const DIFFERS_IN_A_ROW: usize = 16;

/// The most ids by which a turn may get longer or shorter.
const SHIFT_MAX: usize = 4;

/// The fewest periods in which differing ids show whether they keep to their places.
const PERIODS_MIN: usize = 8;

/// The fewest places at which ids differ, if they change their places. The lines of a log differ at fewer places.
const PLACES_MIN: usize = 10;

/// The ids between two judgements.
const JUDGED_EACH: usize = 64;

/// A distance at which most of the last ids repeat.
#[derive(Clone, Debug, Default)]
pub(super) struct Varied {
    /// 0: none.
    period: usize,
    /// The ids of the loop, and how many of them differ from the id a period before.
    length: usize,
    differ: usize,
    in_a_row: usize,
    judged_at: usize,
    /// The places in the period, one bit each, at which an id has differed since the period or a whole part of it
    /// last changed, the number of these differences, and the length of the loop at that change.
    places: [u64; PERIOD_MAX / 64],
    placed: usize,
    placed_from: usize,
}

impl Varied {
    /// Reads the last id of the history. A new distance comes from the exact loop.
    pub(super) fn push(&mut self, history: &History, exact: &Exact) {
        if self.period == 0 {
            if exact.length() >= exact.period() + GRAM && exact.period() > 0 {
                *self = Varied { period: exact.period(), length: exact.length(), ..Varied::default() };
            }
            return;
        }
        self.length += 1;
        if history.repeats(self.period) {
            self.in_a_row = 0;
            return;
        }
        self.differ += 1;
        self.in_a_row += 1;
        // The rest of a part that is another one does not count.
        if self.length - self.placed_from > self.period {
            let place = history.count() % self.period;
            self.places[place / 64] |= 1 << (place % 64);
            self.placed += 1;
        }
        // A number may get longer by a digit: the ids repeat at a slightly different distance from now on.
        if self.in_a_row >= GRAM
            && let Some(period) = self.shifted(history)
        {
            self.differ -= self.in_a_row;
            (self.period, self.in_a_row) = (period, 0);
            self.begin_places();
        }
        if self.in_a_row == GRAM {
            // A whole part is another one, as in a record with other values.
            self.begin_places();
        }
        if self.in_a_row >= DIFFERS_IN_A_ROW || self.differ * DIFFERS_MAX > self.length {
            self.period = 0;
        }
    }

    /// Forgets the places at which ids have differed.
    fn begin_places(&mut self) {
        (self.places, self.placed, self.placed_from) = ([0; PERIOD_MAX / 64], 0, self.length);
    }

    /// A slightly different distance at which the last ids repeat.
    fn shifted(&self, history: &History) -> Option<usize> {
        let shifts =
            (1..=SHIFT_MAX).flat_map(|shift| [self.period + shift, self.period.saturating_sub(shift)]);
        let mut possible = shifts.filter(|period| (GRAM..=PERIOD_MAX).contains(period));
        possible.find(|&period| history.agrees(period, GRAM) == GRAM)
    }

    /// The loop, if it has made all its turns.
    pub(super) fn found(&mut self, history: &History, turns: usize) -> Option<Loop> {
        let Varied { period, length, .. } = *self;
        if period == 0 || self.differ == 0 || length < self.judged_at.max(needed(Kind::Varied, period, turns))
        {
            return None;
        }
        self.judged_at = length + JUDGED_EACH;
        let is_varied = history.different(period) >= DIVERSE && self.changes_places();
        is_varied.then_some(Loop { kind: Kind::Varied, period, length })
    }

    /// Whether ids differ in other places from turn to turn. An id that differs once differs twice from its
    /// neighbours a period away, in one place.
    fn changes_places(&self) -> bool {
        let is_too_short = self.length - self.placed_from < PERIODS_MIN * self.period;
        if is_too_short || self.differ * DIFFERS_MAX_OUT_OF_PLACE > self.length {
            return false;
        }
        let places: usize = self.places.iter().map(|bits| bits.count_ones() as usize).sum();
        if places < PLACES_MIN {
            return false;
        }
        places * 5 >= self.placed * 2 || places * 2 >= self.period
    }
}
