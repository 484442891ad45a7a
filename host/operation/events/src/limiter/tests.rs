//! The rate limit: logged events, counted events, and bounds.

use super::*;
use crate::event::{RequestGap, SenderClosed, SenderConnected};

fn gap(stream: &str, frame: u64) -> Event {
    RequestGap { stream: stream.into(), rid: format!("r{frame}"), frame, expected: 2, got: 1 }.into()
}

fn frame(event: &Event) -> u64 {
    let Event::RequestGap(gap) = event else { panic!("{event}") };
    gap.frame
}

/// Admits the frames of `range`. Returns those that made a line, and the number of events of each line.
fn lines(limiter: &mut Limiter, range: std::ops::Range<u64>, now: Instant) -> Vec<(u64, Option<u64>)> {
    let lines = range.filter_map(|at| limiter.admit(gap("a", at), now));
    lines.map(|(event, times)| (frame(&event), times)).collect()
}

#[test]
fn the_first_five_are_logged_and_the_rest_is_one_line_per_ten_seconds() {
    let (mut limiter, now) = (Limiter::default(), Instant::now());
    assert_eq!(lines(&mut limiter, 0..1000, now), [(0, None), (1, None), (2, None), (3, None), (4, None)]);
    assert!(limiter.tick(now + WINDOW - Duration::from_millis(1)).is_empty());
    let told = limiter.tick(now + WINDOW);
    assert_eq!(
        told.iter().map(|(event, times)| (frame(event), *times)).collect::<Vec<_>>(),
        [(999, Some(995))]
    );
    // The storm continues: not five lines, but one again.
    assert!(lines(&mut limiter, 1000..1010, now + WINDOW).is_empty());
    assert_eq!(limiter.tick(now + 2 * WINDOW)[0].1, Some(10));
}

#[test]
fn without_a_tick_the_next_event_sums_up() {
    let (mut limiter, now) = (Limiter::default(), Instant::now());
    lines(&mut limiter, 0..8, now);
    assert_eq!(lines(&mut limiter, 8..10, now + WINDOW), [(8, Some(4))]);
    assert_eq!(limiter.tick(now + 2 * WINDOW)[0].1, Some(1));
}

#[test]
fn every_event_is_logged_or_counted_exactly_once() {
    let (mut limiter, start) = (Limiter::default(), Instant::now());
    let mut told = 0;
    for at in 0..10_000u64 {
        let now = start + Duration::from_millis(at * 17);
        told += limiter.admit(gap("a", at), now).map_or(0, |(_, times)| times.unwrap_or(1));
        if at % 100 == 0 {
            told += limiter.tick(now).iter().map(|(_, times)| times.unwrap_or(1)).sum::<u64>();
        }
    }
    told += limiter
        .tick(start + Duration::from_secs(3600))
        .iter()
        .map(|(_, times)| times.unwrap_or(1))
        .sum::<u64>();
    assert_eq!(told, 10_000);
}

#[test]
fn after_a_quiet_window_the_first_five_are_logged_again() {
    let (mut limiter, now) = (Limiter::default(), Instant::now());
    lines(&mut limiter, 0..5, now);
    assert_eq!(lines(&mut limiter, 5..6, now + WINDOW), [(5, None)]);
    assert!(limiter.tick(now + 2 * WINDOW).is_empty());
    assert!(limiter.keys.is_empty(), "a quiet key is forgotten");
}

#[test]
fn another_stream_kind_or_reason_is_another_key() {
    let (mut limiter, now) = (Limiter::default(), Instant::now());
    lines(&mut limiter, 0..10, now);
    assert!(limiter.admit(gap("b", 0), now).is_some());
    let stream: crate::Name = "a".into();
    assert!(
        limiter
            .admit(SenderConnected { stream: stream.clone(), peer: 1, from: "x".into() }.into(), now)
            .is_some()
    );
    let closed =
        |reason| SenderClosed { stream: stream.clone(), peer: 1, reason, why: "x".into(), frames: 0 };
    for _ in 0..5 {
        assert!(limiter.admit(closed("clean").into(), now).is_some());
    }
    assert!(limiter.admit(closed("clean").into(), now).is_none());
    assert!(limiter.admit(closed("cut").into(), now).is_some());
}

#[test]
fn past_the_bound_events_of_a_kind_share_one_key() {
    let (mut limiter, now) = (Limiter::default(), Instant::now());
    let told = (0..2 * KEYS_MAX).filter(|at| limiter.admit(gap(&at.to_string(), 0), now).is_some()).count();
    assert_eq!(told, KEYS_MAX + 5);
    assert_eq!(limiter.keys.len(), KEYS_MAX + 1);
    // Quiet keys make room.
    limiter.tick(now + WINDOW);
    assert!(limiter.admit(gap("late", 0), now + WINDOW).is_some());
    assert!(limiter.keys.len() <= 2);
}
