//! What waits, by request: the order in which it is picked.

use super::*;

fn coming(rid: &str, first: bool, last: bool) -> Coming<'_> {
    Coming { place: 0, row: 0, rid, request: 1, tokens: 1, first, last, alone: false }
}

#[test]
fn what_was_picked_and_stays_keeps_its_place_among_first_and_last_rows() {
    let mut waiting = Waiting::default();
    waiting.push(coming("middle", false, false), None);
    waiting.push(coming("last", false, true), None);
    waiting.push(coming("first", true, false), None);
    let mut before = Vec::new();
    waiting.pick(8, true, &mut before);
    assert_eq!(before, [(2, 1), (1, 1)], "the first token, then the last row");
    waiting.stay(&before);
    let mut again = Vec::new();
    waiting.pick(8, true, &mut again);
    assert_eq!(again, before);
    waiting.leave(&again);
    waiting.pick(8, true, &mut again);
    assert_eq!(again, []);
}
