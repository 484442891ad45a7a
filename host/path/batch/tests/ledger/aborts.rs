//! Requests that a plugin or an operator ends, and the aborts that the scheduler is sent.

use crate::stream::{Decide, PLUGIN, Stream, last, row, sent_rows};
use afterbay_batch::ledger::{FinishedEarly, LiveStatus, RequestStatus};
use afterbay_events::event::{AbortFailed, RequestFinishedEarly};
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::{OPERATOR, Verdict};
use afterbay_wire::synth::{SynthFinish, SynthRow};
use afterbay_wire::{AbortShape, FinishReason};

const SHAPE: Option<AbortShape> = Some(AbortShape::Msgpack);

fn withheld(stream: &Stream) -> Vec<(String, String)> {
    stream.recorder.of::<AbortFailed>().into_iter().map(|event| (event.rid, event.why)).collect()
}

#[test]
fn a_request_that_a_plugin_finishes_is_aborted_in_the_scheduler_unless_the_scheduler_ended_it() {
    let mut stream = Stream::with(Vec::new(), true);
    let sent = stream.decide(vec![row("a", &[1], 1), last("b", &[2], 1)], &Decide::Finish);
    assert!(sent.iter().all(|row| row.is_last));
    let finished = |rid: &str| FinishedEarly {
        rid: rid.to_owned(),
        plugin: Some(PLUGIN.to_owned()),
        reason: Some(FinishReason::Stop("enough".to_owned())),
        shape: SHAPE,
    };
    assert_eq!(stream.aborts(), [finished("a")]);
    let early: Vec<String> =
        stream.recorder.of::<RequestFinishedEarly>().into_iter().map(|it| it.rid).collect();
    assert_eq!(early, ["a", "b"]);
    assert_eq!(stream.pass(vec![row("a", &[3], 2)]), [], "later rows are swallowed");
    let swallowed = stream.outcomes().pop().unwrap();
    assert!(swallowed.actions[0].is_swallowed() && swallowed.actions[0].plugin == PLUGIN);
    assert_eq!((stream.aborts(), withheld(&stream)), (vec![], vec![]));
    // A plugin that was removed from the chain may have finished it.
    stream.restart(false);
    assert_eq!(stream.pass(vec![last("a", &[4], 3)]), []);
    assert_eq!((stream.ledger().live(), stream.aborts()), (0, vec![]));
}

#[test]
fn without_an_upstream_connection_no_abort_is_sent() {
    let mut stream = Stream::with(Vec::new(), true);
    stream.ledger().set_upstream(None);
    stream.decide(vec![row("a", &[1], 1)], &Decide::Finish);
    assert_eq!((stream.aborts(), withheld(&stream)), (vec![], vec![]));
}

#[test]
fn a_finished_request_is_aborted_beside_one_whose_rid_begins_with_its_rid() {
    let mut stream = Stream::with(Vec::new(), true);
    stream.pass(vec![row("req", &[1], 1), row("req-2", &[2], 1)]);
    stream.decide(vec![row("req", &[4], 2)], &Decide::Finish);
    assert_eq!((stream.aborts().len(), withheld(&stream)), (1, vec![]));
}

#[test]
fn an_abort_is_withheld_if_the_queue_is_full_or_the_rid_is_too_long_to_name() {
    let mut stream = Stream::with(Vec::new(), true);
    let long = "r".repeat(5_000);
    stream.decide(vec![row(&long, &[1], 1)], &Decide::Finish);
    assert_eq!(stream.aborts(), []);
    assert!(withheld(&stream)[0].1.contains("longer than an abort may name"));
    assert_eq!(stream.pass(vec![row(&long, &[2], 2)]), [], "the request is known by its hash");
    stream.ledger().set_upstream(Some(Box::new(|_| false)));
    stream.decide(vec![row("b", &[1], 1)], &Decide::Finish);
    assert_eq!(withheld(&stream)[1], ("b".to_owned(), "the queue of aborts is full".to_owned()));
}

#[test]
fn the_status_of_a_rid_is_that_of_the_live_request_with_exactly_this_rid() {
    let mut stream = Stream::new();
    assert_eq!(stream.ledger().request_status("a"), RequestStatus::default());
    stream.pass(vec![row("a", &[1], 1), row("a-2", &[1], 1)]);
    let number = |stream: &mut Stream, rid: &str| {
        let found =
            stream.ledger().requests().find(|(known, _)| *known == rid).map(|(_, it)| it.handle.number().0);
        let number = found.unwrap();
        assert_eq!(stream.ledger().rid_of(number), Some(rid));
        number
    };
    let first = number(&mut stream, "a");
    let live = Some(LiveStatus { number: first, finished_by: None });
    assert_eq!(stream.ledger().request_status("a"), RequestStatus { live, shape: SHAPE });
    let second = number(&mut stream, "a-2");
    assert_ne!(first, second);
    stream.decide(vec![row("a-2", &[2], 2)], &Decide::Finish);
    let live = Some(LiveStatus { number: second, finished_by: Some(PLUGIN.to_owned()) });
    assert_eq!(stream.ledger().request_status("a-2").live, live);
    assert_eq!(stream.ledger().request_status("-2").live, None);
    assert_eq!(stream.ledger().rid_of(first + second), None);
    // The shape outlives a ledger that is rebuilt.
    stream.restart(false);
    assert_eq!(stream.ledger().request_status("a").shape, SHAPE);
}

fn abort(stream: &mut Stream, rid: &str, number: u64, abort: OperatorAbort) {
    let (ledger, records) = stream.both();
    ledger.set_operator_abort(rid, number, abort, records);
}

/// The rows that leave for a batch, with the operator's aborts applied.
fn aborted(stream: &mut Stream, rows: Vec<SynthRow>, decide: &Decide) -> Vec<(String, Vec<i64>, bool)> {
    let mut output = stream.decided(rows, decide);
    stream.ledger().apply_operator_aborts(&mut output);
    let sent = sent_rows(stream.settle(output));
    sent.into_iter().map(|row| (row.rid, row.ids, row.is_last)).collect()
}

fn number_of(stream: &mut Stream, rid: &str) -> u64 {
    stream.ledger().request_status(rid).live.unwrap().number
}

fn by_scheduler(rid: &str, count: u64) -> SynthRow {
    SynthRow { finish: Some(SynthFinish::Abort("gone".to_owned())), ..row(rid, &[], count) }
}

#[test]
fn an_operators_abort_makes_the_next_row_the_last_once_it_is_due_also_after_a_restart() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1), row("b", &[2], 1)]);
    let number = number_of(&mut stream, "a");
    abort(&mut stream, "a", number, OperatorAbort::Due);
    let a = |ids: &[i64], is_last| ("a".to_owned(), ids.to_vec(), is_last);
    assert_eq!(
        aborted(&mut stream, vec![row("a", &[3], 2)], &Decide::Pass),
        [a(&[3], false)],
        "not asked yet"
    );
    abort(&mut stream, "a", number + 9, OperatorAbort::Expected);
    abort(&mut stream, "a", number + 9, OperatorAbort::Due);
    assert_eq!(
        aborted(&mut stream, vec![row("a", &[4], 3)], &Decide::Pass),
        [a(&[4], false)],
        "another request"
    );
    abort(&mut stream, "a", number, OperatorAbort::Expected);
    assert_eq!(aborted(&mut stream, vec![row("a", &[5], 4)], &Decide::Pass), [a(&[5], false)], "not due");
    stream.restart(false);
    abort(&mut stream, "a", number, OperatorAbort::Due);
    stream.restart(false);
    let sent = aborted(&mut stream, vec![row("a", &[6], 5), row("b", &[7], 2)], &Decide::Pass);
    assert_eq!(sent, [a(&[6], true), ("b".to_owned(), vec![7], false)]);
    let outcome = stream.outcomes().pop().unwrap();
    let [action] = &outcome.actions[..] else { panic!("{:?}", outcome.actions) };
    assert_eq!(
        (&*action.plugin, action.verdict, action.row, action.forwarded),
        (OPERATOR, Verdict::Finish, 0, 1)
    );
    assert_eq!(stream.ledger().request_status("a").live.unwrap().finished_by.as_deref(), Some(OPERATOR));
    assert_eq!(aborted(&mut stream, vec![row("a", &[8], 6)], &Decide::Pass), [], "swallowed");
    assert_eq!(stream.recorder.of::<RequestFinishedEarly>(), [], "an abort has its own event");
}

#[test]
fn an_operators_abort_ends_with_the_schedulers_own_row_and_keeps_another_end() {
    let mut stream = Stream::new();
    for rid in ["a", "b", "c", "d"] {
        stream.pass(vec![row(rid, &[1], 1)]);
        let number = number_of(&mut stream, rid);
        abort(&mut stream, rid, number, OperatorAbort::Expected);
        abort(&mut stream, rid, number, OperatorAbort::Expected);
    }
    let sent = aborted(&mut stream, vec![by_scheduler("a", 1)], &Decide::Pass);
    assert_eq!(sent, [("a".to_owned(), vec![], true)]);
    assert_eq!(stream.outcomes().pop().unwrap().actions[0].plugin, OPERATOR);
    // The scheduler ends the request for another reason.
    aborted(&mut stream, vec![last("b", &[2], 2)], &Decide::Pass);
    assert_eq!(stream.outcomes().pop().unwrap().actions[..], []);
    // A plugin ends the request first.
    let number = number_of(&mut stream, "c");
    abort(&mut stream, "c", number, OperatorAbort::Due);
    aborted(&mut stream, vec![row("c", &[2], 2)], &Decide::Finish);
    let by: Vec<String> =
        stream.outcomes().pop().unwrap().actions.iter().map(|action| action.plugin.to_string()).collect();
    assert_eq!(by, [PLUGIN]);
    abort(&mut stream, "c", number, OperatorAbort::Expected);
    // The scheduler could not be asked.
    let number = number_of(&mut stream, "d");
    abort(&mut stream, "d", number, OperatorAbort::No);
    assert_eq!(aborted(&mut stream, vec![by_scheduler("d", 1)], &Decide::Pass).len(), 1);
    assert_eq!(stream.outcomes().pop().unwrap().actions[..], []);
}

#[test]
fn a_failed_abort_does_not_cancel_one_that_the_scheduler_has() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1)]);
    let number = number_of(&mut stream, "a");
    for step in [OperatorAbort::Expected, OperatorAbort::Due, OperatorAbort::No] {
        abort(&mut stream, "a", number, step);
    }
    let sent = aborted(&mut stream, vec![row("a", &[2], 2)], &Decide::Pass);
    assert!(sent[0].2, "{sent:?}");
}

#[test]
fn the_journal_has_the_tokens_that_leave_with_an_aborted_row() {
    for (decide, forwarded) in
        [(Decide::Replace(vec![7, 8, 9]), 3), (Decide::Drop, 0), (Decide::Hold, 0), (Decide::Pass, 2)]
    {
        let mut stream = Stream::new();
        stream.pass(vec![row("a", &[1], 1)]);
        let number = number_of(&mut stream, "a");
        abort(&mut stream, "a", number, OperatorAbort::Expected);
        abort(&mut stream, "a", number, OperatorAbort::Due);
        aborted(&mut stream, vec![row("a", &[2, 3], 3)], &decide);
        let outcome = stream.outcomes().pop().unwrap();
        let action = outcome.actions.last().unwrap();
        assert_eq!((&*action.plugin, action.forwarded), (OPERATOR, forwarded), "{decide:?}");
    }
}
