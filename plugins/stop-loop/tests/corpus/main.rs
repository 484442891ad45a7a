//! False stops on outputs without a loop, and found loops in outputs with one. The outputs are made from a seed.
//!
//! The figures of the README, over 100,000 requests of each sort:
//! `cargo test --release -p stop-loop --test corpus -- --ignored --nocapture`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod loops;
mod random;
mod texts;
mod tokens;

use loops::{Looped, SORTS};
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
fn loops_are_found_32_ids_after_their_fourth_turn() {
    for (sort, make) in SORTS {
        let mut late = Vec::new();
        for seed in 0..60 {
            let looped = make(&mut Random::new(seed));
            let found = first(&looped.ids);
            if !found.is_some_and(|(count, _)| looped.is_in_time(count)) {
                late.push(format!("{sort}, seed {seed}: {found:?}"));
            }
        }
        // Many differing ids in a row hide a loop for a while.
        let late_max = if sort.contains("differs") || sort.contains("counter") { 6 } else { 0 };
        assert!(late.len() <= late_max, "{}", late.join("\n"));
    }
}

#[test]
#[ignore = "a measurement: run it in release"]
fn figures() {
    let (stops, all) = false_stops(0..100_000);
    println!("100,000 requests without a loop, {all} tokens: {} false stops", stops.len());
    stops.iter().take(20).for_each(|stop| println!("  {stop}"));
    println!("sort, requests, found, stopped early, ids after the fourth turn: median, 99 %, most");
    for (sort, make) in SORTS {
        let (mut delays, mut early, mut missed) = (Vec::new(), 0, 0);
        for seed in 0..10_000 {
            let looped: Looped = make(&mut Random::new(seed));
            match first(&looped.ids) {
                Some((count, _)) if count < looped.begin => early += 1,
                Some((count, _)) => delays.push(count as i64 - looped.fourth_turn() as i64),
                None => missed += 1,
            }
        }
        delays.sort_unstable();
        let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
        println!(
            "{sort}: 10000, {}, {early}, {} {} {}, missed {missed}",
            delays.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
