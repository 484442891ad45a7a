//! Finds loops in the ids of one request, id by id. It knows no batch and no verdict.
//!
//! Four observers read each id in constant time:
//!
//! - [`Exact`] follows the distance at which the ids repeat without a difference,
//! - [`Varied`] follows a distance at which most of them repeat,
//! - [`Blocks`] follows a distance beyond [`PERIOD_MAX`] at which pieces of text repeat,
//! - [`Entropy`] counts how evenly the last ids are spread.
//!
//! A distance is found with a table of the last place of each run of four ids. The detector has 8 KiB, of any
//! length of the request.

mod blocks;
mod entropy;
mod exact;
mod history;
mod varied;

use blocks::Blocks;
use entropy::Entropy;
use exact::Exact;
use history::History;
use varied::Varied;

/// The longest period of a loop in which ids may differ. Longer ones are found at the end of a piece of text.
pub const PERIOD_MAX: usize = 512;

/// The ids after the last turn before a loop is reported.
pub const GRACE: usize = 32;

/// A period with fewer different ids is monotonous: a row of zeros, a rule, a blank table.
const DIVERSE: usize = 8;

/// The kind of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The same ids, with 8 or more different ones.
    Exact,
    /// A run of 2 to 7 ids.
    Phrase,
    /// A longer run of the same 2 to 7 different ids.
    Monotonous,
    /// One id.
    OneToken,
    /// The same ids but for a few, in places that change from turn to turn.
    Varied,
    /// So few different ids that they carry almost no information.
    LowEntropy,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 6] =
        [Kind::Exact, Kind::Phrase, Kind::Monotonous, Kind::OneToken, Kind::Varied, Kind::LowEntropy];

    /// The kind as a label of a metric.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Exact => "exact",
            Kind::Phrase => "phrase",
            Kind::Monotonous => "monotonous",
            Kind::OneToken => "one-token",
            Kind::Varied => "varied",
            Kind::LowEntropy => "low-entropy",
        }
    }

    /// The fewest ids of a turn. A shorter period counts as often as it needs to fill a turn.
    #[must_use]
    pub const fn turn_min(self) -> usize {
        match self {
            Kind::Exact => DIVERSE,
            Kind::OneToken => 64,
            Kind::Phrase => 192,
            Kind::Varied => 256,
            Kind::Monotonous => 512,
            Kind::LowEntropy => 2_304,
        }
    }

    /// The ids of a turn of a loop with this period.
    #[must_use]
    pub const fn turn(self, period: usize) -> usize {
        let period = if period == 0 { 1 } else { period };
        self.turn_min().div_ceil(period) * period
    }
}

/// A loop that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Its kind.
    pub kind: Kind,
    /// The distance at which the ids repeat; 0 for low entropy.
    pub period: usize,
    /// The ids of the loop so far.
    pub length: usize,
}

/// The observers of one request.
#[derive(Clone, Debug)]
pub struct Detector {
    history: History,
    exact: Exact,
    varied: Varied,
    blocks: Blocks,
    entropy: Entropy,
}

impl Default for Detector {
    fn default() -> Self {
        Self {
            history: History::new(),
            exact: Exact::default(),
            varied: Varied::default(),
            blocks: Blocks::new(),
            entropy: Entropy::new(),
        }
    }
}

impl Detector {
    /// Reads the next id. Returns the loop that has made `turns` turns and [`GRACE`] ids more, if there is one.
    pub fn push(&mut self, id: u32, turns: usize) -> Option<Loop> {
        let left = self.history.push(id);
        self.entropy.push(id, left);
        self.exact.push(&mut self.history);
        self.varied.push(&self.history, &self.exact);
        let block = self.blocks.push(&self.history, turns);
        let found = self.exact.found(&self.history, turns);
        found
            .or_else(|| self.varied.found(&self.history, turns))
            .or(block)
            .or_else(|| self.entropy.found(turns))
    }
}

/// The number of ids after which a loop of this period is reported.
fn needed(kind: Kind, period: usize, turns: usize) -> usize {
    turns * kind.turn(period) + GRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern.
    pub(super) fn noise(seed: u64) -> impl Iterator<Item = u32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        std::iter::from_fn(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            Some((state >> 33) as u32 % 50_000)
        })
    }

    /// The first loop in these ids, with the number of ids up to it.
    fn first(ids: impl IntoIterator<Item = u32>) -> Option<(usize, Loop)> {
        let mut detector = Detector::default();
        (1..).zip(ids).find_map(|(count, id)| Some((count, detector.push(id, 4)?)))
    }

    #[test]
    fn every_period_is_found_32_ids_after_the_fourth_turn() {
        for period in 1..=PERIOD_MAX {
            let body: Vec<u32> = noise(period as u64).take(period).collect();
            let before: Vec<u32> = noise(7).take(300).collect();
            let ids = before.iter().copied().chain(body.iter().copied().cycle().take(6_000));
            let (count, found) = first(ids).unwrap();
            let kind = match period {
                1 => Kind::OneToken,
                2..8 => Kind::Phrase,
                _ => Kind::Exact,
            };
            assert_eq!((found.kind, found.period), (kind, period));
            assert_eq!(count, 300 + 4 * kind.turn(period) + GRACE, "period {period}");
        }
    }

    #[test]
    fn a_period_with_repetitions_in_itself_is_found_in_time() {
        // 100 rules, then a sentence of 12 words.
        let body: Vec<u32> = std::iter::repeat_n(9, 100).chain(noise(3).take(12)).collect();
        let (count, found) = first(body.iter().copied().cycle().take(2_000)).unwrap();
        assert_eq!((count, found.kind, found.period), (4 * 112 + GRACE, Kind::Exact, 112));
    }

    #[test]
    fn text_without_a_pattern_is_no_loop() {
        assert_eq!(first(noise(1).take(100_000)), None);
    }

    #[test]
    fn thirty_equal_rows_of_zeros_are_no_loop_and_two_hundred_are() {
        // "| 0 | 0 | 0 | 0 | 0 | 0 |\n"
        let row = [1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3];
        let rows = |count: usize| row.into_iter().cycle().take(13 * count);
        assert_eq!(first(noise(1).take(50).chain(rows(30)).chain(noise(2).take(500))), None);
        assert_eq!(first(rows(200)).unwrap().1.kind, Kind::Monotonous);
    }

    #[test]
    fn a_loop_with_differing_ids_in_changing_places_is_found() {
        for (period, differing) in [(24, 1), (40, 1), (64, 2), (128, 4)] {
            let body: Vec<u32> = noise(5).take(period).collect();
            let mut random = noise(6);
            let turns = (0..200).flat_map(|_| {
                let mut turn = body.clone();
                for _ in 0..differing {
                    turn[random.next().unwrap() as usize % period] = random.next().unwrap();
                }
                turn
            });
            let (count, found) = first(turns.collect::<Vec<_>>()).unwrap();
            assert_eq!((found.kind, found.period), (Kind::Varied, period), "{count}");
            let turn = Kind::Varied.turn(period);
            assert!(count <= 8 * period.max(turn / 2) + GRACE + period, "period {period}: {count}");
        }
    }

    #[test]
    fn records_with_a_number_or_other_values_are_no_loop() {
        let body: Vec<u32> = noise(5).take(30).collect();
        let digits = |number: u32| number.to_string().bytes().map(u32::from).collect::<Vec<_>>();
        let numbered = (1..2_000).flat_map(|number| [digits(number), body.clone()].concat());
        assert_eq!(first(numbered.collect::<Vec<_>>()), None, "a number");
        let mut random = noise(6);
        let mut values = || vec![random.next().unwrap() % 10, random.next().unwrap() % 10];
        let records = (0..2_000).flat_map(|_| [values(), body.clone()].concat());
        assert_eq!(first(records.collect::<Vec<_>>()), None, "random values");
        let two =
            (0..2_000_u32).flat_map(|number| [&[number][..], &body[..10], &[number], &body[10..]].concat());
        assert_eq!(first(two.collect::<Vec<_>>()), None, "two numbers");
    }

    #[test]
    fn a_block_longer_than_the_history_is_found_at_the_end_of_a_piece_after_the_fourth_turn() {
        for period in [513, 700, 1_000, 2_000, 3_000] {
            let body: Vec<u32> = noise(period as u64).take(period).collect();
            let ids = noise(7).take(300).chain(body.iter().copied().cycle().take(5 * period));
            let (count, found) = first(ids).unwrap();
            assert_eq!((found.kind, found.period), (Kind::Exact, period));
            let needed = 300 + 4 * period + GRACE;
            assert!((needed..needed + 200).contains(&count), "period {period}: {count}");
        }
    }

    #[test]
    fn a_block_that_comes_three_times_is_no_loop() {
        let body: Vec<u32> = noise(4).take(900).collect();
        assert_eq!(first(body.iter().copied().cycle().take(2_700).chain(noise(8).take(900))), None);
    }

    #[test]
    fn a_mixture_of_three_ids_is_found_after_four_turns() {
        let ids: Vec<u32> = noise(9).map(|id| id % 3).take(30_000).collect();
        let (count, found) = first(ids).unwrap();
        assert_eq!((found.kind, count), (Kind::LowEntropy, 4 * Kind::LowEntropy.turn_min() + GRACE));
        let ids: Vec<u32> = noise(9).map(|id| id % 5).take(40_000).collect();
        assert_eq!(first(ids), None, "five ids, evenly spread");
    }

    #[test]
    fn more_turns_take_longer() {
        let mut detector = Detector::default();
        let count = (1..).find(|count| detector.push(count % 20, 20).is_some());
        assert_eq!(count, Some(20 * 20 + GRACE as u32));
    }
}
