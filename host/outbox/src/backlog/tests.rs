//! The order in which requests are picked.

use super::*;

fn row(rid: &str, first: bool, last: bool) -> NewRow<'_> {
    NewRow { frame: 0, row: 0, rid, request: 1, tokens: 1, first, last, alone: false }
}

#[test]
fn a_picked_request_that_stays_keeps_its_place_in_the_queue() {
    let mut backlog = Backlog::default();
    backlog.push(row("middle", false, false), None);
    backlog.push(row("last", false, true), None);
    backlog.push(row("first", true, false), None);
    let mut before = Vec::new();
    backlog.pick(8, true, &mut before);
    assert_eq!(before, [(2, 1), (1, 1)], "the first token, then the last row");
    backlog.stay(&before);
    let mut again = Vec::new();
    backlog.pick(8, true, &mut again);
    assert_eq!(again, before);
    backlog.leave(&again);
    backlog.pick(8, true, &mut again);
    assert_eq!(again, []);
}
