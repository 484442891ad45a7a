//! Tests the reader's check with forged frames: it finds each fault and names it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use afterbay_sim::bounds::{MAX_MISSING_RANGES, MAX_SAMPLES};
use afterbay_sim::check::{Checker, Expect, Faults, Reading};
use afterbay_sim::frames::{self, Encoding, Frame};
use afterbay_sim::ids::{Seed, rid};
use afterbay_sim::load::{Endings, Lengths, Load};
use afterbay_sim::record::Record;
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use bytes::Bytes;

const ENCODINGS: [Encoding; 6] = [
    Encoding { kind: BatchKind::TokenId, wire: SynthWire::Msgpack },
    Encoding { kind: BatchKind::TokenId, wire: SynthWire::Pickle },
    Encoding { kind: BatchKind::Str, wire: SynthWire::Msgpack },
    Encoding { kind: BatchKind::Str, wire: SynthWire::Pickle },
    Encoding { kind: BatchKind::Outputs, wire: SynthWire::EngineCore },
    Encoding { kind: BatchKind::TokenId, wire: SynthWire::Slim },
];

/// A stream of one request: 12 tokens in four frames of three.
fn one() -> Vec<Bytes> {
    let mut load = Load::new(1, 12);
    load.tokens_per_step = 3;
    bytes(&frames::frames(&load, ENCODINGS[0], Duration::ZERO).unwrap())
}

fn bytes(frames: &[Frame]) -> Vec<Bytes> {
    frames.iter().map(|frame| frame.bytes.clone()).collect()
}

fn check(frames: &[Bytes]) -> Checker {
    check_as(Reading::Deltas, frames)
}

fn check_as(reading: Reading, frames: &[Bytes]) -> Checker {
    let mut checker = Checker::new(reading, Expect::Simulated);
    for frame in frames {
        checker.frame(frame.clone(), &mut Instant::now);
    }
    checker
}

/// The counts of the faults, without descriptions.
fn faults(checker: &Checker) -> Faults {
    Faults { samples: Vec::new(), ..checker.faults().clone() }
}

fn row(ids: Vec<i64>, completion_tokens: u64) -> SynthRow {
    SynthRow { rid: rid(1, 0), ids, completion_tokens, prompt_tokens: 3, ..SynthRow::default() }
}

fn encode(row: SynthRow) -> Bytes {
    SynthBatch { rows: vec![row] }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap()
}

#[test]
fn an_unchanged_stream_has_no_faults_in_any_encoding() {
    let mut load = Load::new(60, 30);
    load.lengths = Lengths { low: 1, high: 30 };
    load.endings = Endings::MIXED;
    load.max_running = 13;
    (load.health_every, load.idle_every, load.control_every) = (Some(3), Some(4), Some(5));
    for encoding in ENCODINGS {
        let sent = frames::frames(&load, encoding, Duration::ZERO).unwrap();
        let checker = check(&bytes(&sent));
        assert!(checker.faults().is_none(), "{encoding:?}: {:?}", checker.faults());
        let tokens: u64 = sent.iter().map(|frame| frame.tokens).sum();
        let rows: u64 = sent.iter().map(|frame| u64::from(frame.rows)).sum();
        let record = checker.record();
        assert_eq!((record.requests, record.tokens, record.rows), (60, tokens, rows), "{encoding:?}");
        assert_eq!((checker.open(), record.frames), (0, sent.len() as u64), "{encoding:?}");
        let has_health_checks = matches!(encoding.wire, SynthWire::Msgpack | SynthWire::Pickle);
        assert_eq!(record.health_checks > 0, has_health_checks, "{encoding:?}");
        assert!(record.idle > 0 && record.controls > 0, "{encoding:?}");
        for (rid, ended) in sent.iter().flat_map(|frame| &frame.ended) {
            let request = record.get(rid).unwrap();
            assert_eq!(
                (request.tokens, request.ids, request.ending),
                (ended.tokens, ended.ids, ended.ending)
            );
        }
    }
}

#[test]
fn a_lost_row_is_found_with_its_tokens() {
    let mut frames = one();
    frames.remove(1);
    let checker = check(&frames);
    assert_eq!(faults(&checker), Faults { lost_tokens: 3, ..Faults::default() });
    assert_eq!(checker.faults().samples, ["request \"sim-1-0000000000\": tokens 3..6 are missing"]);
}

#[test]
fn a_repeated_row_is_found() {
    let mut frames = one();
    frames.insert(2, frames[1].clone());
    assert_eq!(faults(&check(&frames)), Faults { repeated_tokens: 3, ..Faults::default() });
}

#[test]
fn a_row_out_of_order_is_found_and_its_tokens_do_not_count_as_lost() {
    let mut frames = one();
    frames.swap(1, 2);
    let checker = check(&frames);
    assert_eq!(faults(&checker), Faults { late_rows: 1, ..Faults::default() });
    let in_order = check(&one());
    let [moved, right] = [&checker, &in_order].map(|checker| *checker.record().get(&rid(1, 0)).unwrap());
    assert_eq!(moved.tokens, right.tokens);
    assert_ne!(moved.ids, right.ids, "the same ids are in another order");
}

#[test]
fn a_lost_last_row_leaves_its_request_open() {
    let mut frames = one();
    frames.pop();
    let checker = check(&frames);
    assert_eq!((checker.open(), checker.record().requests), (1, 0));
}

#[test]
fn a_row_after_the_end_and_a_second_end_are_found() {
    let mut frames = one();
    frames.push(frames[3].clone());
    let expected = Faults { rows_after_end: 1, ended_again: 1, repeated_tokens: 3, ..Faults::default() };
    assert_eq!(faults(&check(&frames)), expected);
    assert_eq!(check(&frames).record().requests, 1);
}

#[test]
fn with_too_many_gaps_the_tokens_of_the_oldest_stay_lost() {
    let mut load = Load::new(1, 2 * MAX_MISSING_RANGES as u32 + 4);
    load.lengths.high = load.lengths.low;
    let all = bytes(&frames::frames(&load, ENCODINGS[0], Duration::ZERO).unwrap());
    // Every other token is left out, for one gap more than the reader remembers.
    let mut gappy: Vec<Bytes> = all.iter().step_by(2).cloned().collect();
    let gaps = MAX_MISSING_RANGES as u64 + 1;
    assert_eq!(check(&gappy).faults().lost_tokens, gaps);
    assert_eq!(check(&gappy).faults().samples.len(), MAX_SAMPLES, "further faults are only counted");
    gappy.push(all[3].clone());
    let checker = check(&gappy);
    let expected = Faults { lost_tokens: gaps - 1, late_rows: 1, ..Faults::default() };
    assert_eq!(faults(&checker), expected, "the second gap is remembered");
    gappy.push(all[1].clone());
    let expected = Faults { repeated_tokens: 1, ..expected };
    assert_eq!(faults(&check(&gappy)), expected, "the first gap is not");
}

#[test]
fn rows_joined_into_one_are_no_fault() {
    let seed = Seed::of_simulated(&rid(1, 0)).unwrap();
    let ids: Vec<i64> = (0..12).map(|place| seed.id(place)).collect();
    let mut last = row(ids[3..].to_vec(), 12);
    last.finish = Some(SynthFinish::Length(12));
    let joined = check(&[encode(row(ids[..3].to_vec(), 3)), encode(last)]);
    assert!(joined.faults().is_none(), "{:?}", joined.faults());
    let same = |record: &Record| record.requests_digest;
    assert_eq!(same(joined.record()), same(check(&one()).record()));
}

#[test]
fn a_changed_id_is_found() {
    let seed = Seed::of_simulated(&rid(1, 0)).unwrap();
    let checker = check(&[encode(row(vec![seed.id(0), seed.id(1) + 1, seed.id(2)], 3))]);
    assert_eq!(faults(&checker), Faults { wrong_ids: 1, ..Faults::default() });
}

#[test]
fn more_tokens_than_the_scheduler_counts_are_found() {
    let seed = Seed::of_simulated(&rid(1, 0)).unwrap();
    let checker = check(&[encode(row(vec![seed.id(0), seed.id(1)], 1))]);
    assert_eq!(faults(&checker), Faults { wrong_counts: 1, ..Faults::default() });
}

#[test]
fn a_text_that_does_not_match_its_ids_is_found() {
    let seed = Seed::of_simulated(&rid(1, 0)).unwrap();
    let mut forged = row(vec![seed.id(0)], 1);
    forged.text = "something else".to_owned();
    let frame = SynthBatch { rows: vec![forged] }.encode(BatchKind::Str, SynthWire::Pickle).unwrap();
    assert_eq!(faults(&check(&[frame])), Faults { wrong_texts: 1, ..Faults::default() });
}

#[test]
fn bytes_that_are_no_frame_are_found() {
    let checker = check(&[Bytes::from_static(b"hello")]);
    assert_eq!(faults(&checker), Faults { not_understood: 1, ..Faults::default() });
}

#[test]
fn a_reader_that_keeps_the_last_row_loses_tokens_of_deltas_but_not_of_a_cumulative_stream() {
    let last_of = |frames: &[Bytes]| {
        let mut checker = check_as(Reading::Overwriting, frames);
        checker.use_found_rows(Instant::now());
        checker
    };
    let deltas = last_of(&one());
    assert_eq!(faults(&deltas), Faults { lost_tokens: 9, ..Faults::default() });
    let seed = Seed::of_simulated(&rid(1, 0)).unwrap();
    let all: Vec<i64> = (0..12).map(|place| seed.id(place)).collect();
    let mut last = row(all.clone(), 12);
    last.finish = Some(SynthFinish::Length(12));
    let cumulative = last_of(&[encode(row(all[..3].to_vec(), 3)), encode(last)]);
    assert!(cumulative.faults().is_none(), "{:?}", cumulative.faults());
    let record = cumulative.record();
    assert_eq!((record.tokens, record.requests_digest), (12, check(&one()).record().requests_digest));
}

#[test]
fn a_stream_that_is_not_simulated_is_checked_by_its_counts() {
    let ids = |ids: &[i64]| ids.to_vec();
    let forged = |mut row: SynthRow| {
        row.rid = "chatcmpl-1".to_owned();
        encode(row)
    };
    let checker = check(&[forged(row(ids(&[5, 6]), 2)), forged(row(ids(&[9]), 4))]);
    assert_eq!(faults(&checker), Faults { lost_tokens: 1, ..Faults::default() });
}
