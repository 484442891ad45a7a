//! The order in which requests are picked.

use super::*;

fn row(request: u64, rid: &str, first: bool, last: bool) -> NewRow<'_> {
    NewRow { frame: 0, row: 0, rid, request, tokens: 1, first, last, alone: false }
}

/// Picks everything, and sends it.
fn send(backlog: &mut Backlog) -> Vec<u64> {
    let mut picked = Vec::new();
    backlog.pick(8, &mut picked);
    let numbers = backlog.last_of(&picked).map(|(number, _)| number).collect();
    backlog.leave(&picked);
    numbers
}

#[test]
fn a_picked_request_that_stays_keeps_its_place_in_the_queue() {
    let mut backlog = Backlog::default();
    backlog.push(row(1, "middle", false, false), None);
    backlog.push(row(2, "last", false, true), None);
    backlog.push(row(3, "first", true, false), None);
    let mut before = Vec::new();
    backlog.pick(8, &mut before);
    assert_eq!(before, [(2, 1), (1, 1), (0, 1)], "the first token, then the last row, then the rest");
    backlog.stay(&before);
    let mut again = Vec::new();
    backlog.pick(8, &mut again);
    assert_eq!(again, before);
    backlog.leave(&again);
    backlog.pick(8, &mut again);
    assert_eq!(again, []);
}

#[test]
fn a_request_is_forgotten_with_its_last_row_while_others_wait() {
    let mut backlog = Backlog::default();
    for number in 1..=10_000 {
        backlog.push(row(number, "a", true, false), None);
        backlog.push(row(number, "a", false, true), None);
        backlog.push(row(20_000 + number % 7, "of many rows", false, false), None);
        assert!(send(&mut backlog).contains(&number));
    }
    assert!(backlog.requests.len() < 10, "{}", backlog.requests.len());
    assert_eq!(backlog.memory(), backlog.requests.len() * REQUEST_BYTES);
}

#[test]
fn requests_that_end_without_a_last_row_and_orders_that_others_overtake_stay_bounded() {
    let mut backlog = Backlog::default();
    let mut picked = Vec::new();
    // It is never sent, so that the order of all requests has an end.
    backlog.push(row(1, "waits", false, false), None);
    for number in 2..50_000 {
        backlog.push(row(number, &number.to_string(), true, false), None);
        backlog.pick(1, &mut picked);
        backlog.leave(&picked);
    }
    let Backlog { requests, by_number, by_rid, all, firsts, lasts, .. } = &backlog;
    let entries = [requests.len(), by_number.len(), by_rid.len(), all.len(), firsts.len(), lasts.len()];
    assert!(entries.iter().all(|entries| *entries <= 4 * UNUSED_MAX), "{entries:?}");
    assert_eq!(send(&mut backlog), [1]);
}

#[test]
fn each_request_of_a_rid_waits_until_the_one_before_it_has_left() {
    let mut backlog = Backlog::default();
    for number in [5, 3, 9] {
        backlog.push(row(number, "a", true, false), None);
        backlog.push(row(number, "a", false, true), None);
    }
    backlog.push(row(4, "b", false, false), None);
    assert_eq!((backlog.rows(), backlog.slow()), (7, 2));
    assert_eq!(send(&mut backlog), [5, 4]);
    assert_eq!(send(&mut backlog), [3]);
    backlog.push(row(6, "a", true, true), None);
    assert_eq!(send(&mut backlog), [9]);
    assert_eq!(send(&mut backlog), [6]);
    assert_eq!((backlog.rows(), backlog.tokens(), backlog.slow()), (0, 0, 0));
    assert!(backlog.by_rid.len() == 1 && backlog.by_number.len() == 1, "only b is live");
}

#[test]
fn a_request_that_is_forgotten_before_another_with_the_same_hash_of_its_rid_lets_later_ones_wait() {
    let mut backlog = Backlog::default();
    for (number, frame) in [(1, 1), (2, 0), (3, 1)] {
        backlog.push(NewRow { frame, ..row(number, "a", false, false) }, None);
    }
    assert_eq!(backlog.forget(0, &[2, 8]), [0]);
    assert_eq!(backlog.slow(), 1);
    assert_eq!(send(&mut backlog), [1]);
    assert_eq!(send(&mut backlog), [3]);
    assert_eq!((backlog.rows(), backlog.slow()), (0, 0));
}
