//! False stops on outputs without a loop, and found loops in outputs with one. The outputs are made from a seed.
//!
//! `make bench-guards` prints the figures of the README.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod data;
mod loops;
mod quoted;
mod random;
mod suites;
mod tekken;
mod texts;
mod tokens;

use data::DATA;
use loops::SORTS;
use random::Random;
use stop_loop::detector::{Detector, Loop};
use texts::FAMILIES;
use tokens::{Digits, tokens};

const TURNS: usize = 4;

/// The first loop in these ids, with the number of ids up to it.
fn first(ids: &[u32]) -> Option<(usize, Loop)> {
    let mut detector = Detector::default();
    (1..).zip(ids).find_map(|(count, id)| Some((count, detector.push(*id, TURNS)?)))
}

/// The false stops among `requests` outputs without a loop, each in words; and the number of their tokens.
fn false_stops(seeds: std::ops::Range<u64>) -> (Vec<String>, usize) {
    let (mut stops, mut all) = (Vec::new(), 0);
    for seed in seeds {
        let mut random = Random::new(seed);
        let (family, write) = FAMILIES[seed as usize % FAMILIES.len()];
        let digits = if seed / FAMILIES.len() as u64 % 2 == 0 { Digits::Single } else { Digits::Groups };
        let text = write(&mut random);
        let ids = tokens(&text, digits);
        all += ids.len();
        if let Some((count, found)) = first(&ids) {
            stops.push(format!("{family}, seed {seed}, id {count} of {}: {found:?}", ids.len()));
        }
    }
    (stops, all)
}

#[test]
fn outputs_without_a_loop_are_not_stopped() {
    let (stops, _) = false_stops(0..1_500);
    assert!(stops.is_empty(), "{}", stops.join("\n"));
}

#[test]
fn long_data_is_not_stopped() {
    for (at, (family, write)) in DATA.into_iter().enumerate() {
        let text = write(&mut Random::new(at as u64), 40_000);
        for digits in [Digits::Single, Digits::Groups] {
            let mut ids = tokens(&text, digits);
            // Nothing but 0 and 1 is a loop from 9,248 ids on.
            ids.truncate(if family.contains("0 and 1") || family.contains("yes and no") {
                9_000
            } else {
                40_000
            });
            assert_eq!(first(&ids), None, "{family}, of {} ids", ids.len());
        }
    }
}

#[test]
fn loops_are_found_32_ids_after_their_fourth_turn() {
    for (sort, make) in SORTS {
        let mut late = Vec::new();
        for seed in 0..30 {
            let looped = make(&mut Random::new(seed));
            let found = first(&looped.ids);
            if !found.is_some_and(|(count, _)| looped.is_in_time(count)) {
                late.push(format!("{sort}, seed {seed}: {found:?}"));
            }
        }
        // Many differing ids in a row hide a loop for a while.
        let late_max = if sort.contains("differs") { 3 } else { 0 };
        assert!(late.len() <= late_max, "{}", late.join("\n"));
    }
}
