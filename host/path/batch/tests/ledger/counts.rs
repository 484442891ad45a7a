//! Gaps in the scheduler's count, rows that nobody can read, health checks, and the journal's records of a batch.

use crate::frames;
use crate::stream::{Decide, PLUGIN, Stream, last, row, sent_rows};
use afterbay_batch::RowContent;
use afterbay_events::EndCause;
use afterbay_events::event::{RequestGap, RequestImbalance, RowsDropped, RowsUnread};
use afterbay_journal::{Passage, SWALLOWED, TokenGap, Verdict};
use afterbay_wire::synth::{SynthFinish, SynthRow};
use bytes::Bytes;

#[test]
fn tokens_that_the_scheduler_counted_and_nobody_received_are_a_gap_and_an_imbalance() {
    let mut stream = Stream::new();
    stream.pass(vec![row("b", &[9], 1), row("a", &[1, 2], 2)]);
    // Three tokens are missing.
    stream.pass(vec![row("b", &[9], 2), row("a", &[3], 6)]);
    let gaps = stream.recorder.of::<RequestGap>();
    let gap = |event: &RequestGap| (event.rid.clone(), event.frame, event.expected, event.got);
    assert_eq!(gaps.iter().map(gap).collect::<Vec<_>>(), [("a".to_owned(), 2, 6, 3)]);
    assert_eq!(stream.counters().request_gaps.get(), 1);
    assert_eq!(stream.outcomes().pop().unwrap().gaps[..], [TokenGap { row: 1, expected: 3, got: 6 }]);
    // A gap is reported once.
    stream.pass(vec![last("b", &[9], 3), last("a", &[4], 7)]);
    assert_eq!(stream.counters().request_gaps.get(), 1);
    let [imbalance] = &stream.recorder.of::<RequestImbalance>()[..] else { panic!("one imbalance") };
    assert_eq!((&*imbalance.rid, imbalance.counted, imbalance.received, imbalance.forwarded), ("a", 7, 4, 4));
    assert_eq!(stream.counters().request_imbalances.get(), 1);
    let finished = stream.outcomes().pop().unwrap().finished;
    let counts: Vec<_> =
        finished.iter().map(|it| (it.row, it.reason.to_string(), it.completion_tokens)).collect();
    assert_eq!(counts, [(0, "length".to_owned(), Some(3)), (1, "length".to_owned(), Some(7))]);
}

#[test]
fn a_gap_of_an_earlier_run_is_not_reported_again() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1), row("b", &[1], 1)]);
    stream.pass(vec![row("a", &[2], 4), row("b", &[2], 2)]);
    stream.restart(false);
    stream.pass(vec![last("a", &[3], 5), last("b", &[3], 3)]);
    assert_eq!(stream.counters().request_gaps.get(), 1);
    // The run that saw the gap reported it.
    assert_eq!(stream.recorder.of::<RequestImbalance>(), []);
    assert_eq!(stream.counters().request_imbalances.get(), 1);
}

/// The rows `a`, `odd` and `b`, with these ids, count and finish reason in the middle row.
fn pickled(ids: &[u8], count: &[u8], step: u8, finish: &[u8]) -> Bytes {
    let counts = vec![vec![b'K', step], count.to_vec(), vec![b'K', step]];
    let ids = vec![b"](K\x01e".to_vec(), ids.to_vec(), b"](K\x03e".to_vec()];
    let finishes = vec![b"N".to_vec(), finish.to_vec(), b"N".to_vec()];
    let cells = [("completion_tokens", counts), ("output_ids", ids), ("finished_reasons", finishes)];
    frames::pickled(&["a", "odd", "b"], step, &cells)
}

/// Passes one frame. Returns for each row whether plugins see it, and the tokens in it.
fn frame(stream: &mut Stream, bytes: Bytes) -> Vec<(bool, u32)> {
    let decoded = stream.receive(bytes);
    let (ledger, records) = stream.both();
    let Ok(accounted) = ledger.account(decoded, records) else { panic!("no rows") };
    assert!(accounted.any().hidden == accounted.rows().iter().any(|row| row.hidden));
    assert!(accounted.any().unread == accounted.rows().iter().any(|row| row.unread));
    let rows = accounted.rows().iter().map(|row| (!row.hidden, row.tokens)).collect();
    let output = afterbay_batch::ChainOutput::new(accounted);
    stream.settle(output);
    rows
}

#[test]
fn a_row_that_cannot_be_read_is_hidden_and_the_schedulers_count_is_taken_for_it() {
    let mut stream = Stream::new();
    let ids = b"](K\x02e";
    assert_eq!(frame(&mut stream, pickled(ids, b"K\x01", 1, b"N")), [(true, 1); 3]);
    // The ids are a text. By the count, the row has four tokens.
    let unread = frame(&mut stream, pickled(b"\x8c\x01x", b"K\x05", 2, b"N"));
    assert_eq!(unread, [(true, 1), (false, 4), (true, 1)]);
    let events = stream.recorder.of::<RowsUnread>();
    assert_eq!(events.iter().map(|event| (event.frame, event.rows)).collect::<Vec<_>>(), [(2, 1)]);
    assert!(events[0].why.contains("output_ids") && events[0].why.contains("row 1"), "{}", events[0].why);
    assert_eq!(stream.counters().rows_unread.get(), 1);
    // Neither ids nor count: the next count is taken without a check.
    assert_eq!(frame(&mut stream, pickled(b"\x8c\x01x", b"\x8c\x01x", 3, b"N"))[1], (false, 0));
    assert_eq!(frame(&mut stream, pickled(ids, b"K\x09", 4, b"N"))[1], (true, 1));
    assert_eq!(stream.counters().request_gaps.get(), 0);
    // The check is back.
    assert_eq!(frame(&mut stream, pickled(ids, b"K\x14", 5, b"N"))[1], (true, 1));
    assert_eq!(stream.counters().request_gaps.get(), 1);
}

#[test]
fn a_request_with_a_row_that_could_not_be_read_balances_and_its_count_is_not_recorded() {
    let mut stream = Stream::new();
    let ids = b"](K\x02e";
    frame(&mut stream, pickled(ids, b"K\x01", 1, b"N"));
    frame(&mut stream, pickled(b"\x8c\x01x", b"\x8c\x01x", 2, b"N"));
    let length = b"}(\x8c\x04type\x8c\x06lengthu";
    frame(&mut stream, pickled(ids, b"K\x07", 3, length));
    assert_eq!(
        (stream.counters().requests_ended.get(EndCause::Limit), stream.counters().request_imbalances.get()),
        (1, 0)
    );
    let outcome = stream.outcomes().pop().unwrap();
    assert_eq!(
        outcome.finished.iter().map(|it| (it.row, it.completion_tokens)).collect::<Vec<_>>(),
        [(1, None)]
    );
    assert_eq!(stream.ledger().live(), 2);
}

const HEALTH_CHECK: &str = "HEALTH_CHECK_0123456789abcdef0123456789abcdef";

#[test]
fn plugins_do_not_see_a_health_check_and_see_a_client_who_takes_such_a_name() {
    let mut stream = Stream::new();
    let seen = |stream: &mut Stream, row: SynthRow| {
        let output = stream.account(vec![row]);
        let is_seen = !output.accounted().rows()[0].hidden;
        assert_eq!(output.accounted().any().hidden, !is_seen);
        stream.settle(output);
        is_seen
    };
    assert!(!seen(&mut stream, last(HEALTH_CHECK, &[1], 1)));
    assert!(!seen(&mut stream, last(HEALTH_CHECK, &[], 0)));
    assert!(seen(&mut stream, last(HEALTH_CHECK, &[1, 2], 2)), "a health check has one token");
    assert!(seen(&mut stream, row(HEALTH_CHECK, &[1], 1)), "a health check is one row");
    assert!(seen(&mut stream, last("a", &[1], 1)));
}

#[test]
fn the_journal_has_each_row_of_a_batch_with_its_tokens_and_what_became_of_it() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1, 2], 2), row("b", &[3], 1)]);
    let numbers: Vec<u64> = stream.outcomes()[0].requests.iter().map(|request| request.0).collect();
    let first = stream.outcomes().pop().unwrap();
    assert_eq!(
        (&first.passage, &first.tokens[..], &first.changed),
        (&Passage::Unchanged, &[2, 1][..], &None)
    );
    let finishes = [
        (SynthFinish::StopToken(9), "stop"),
        (SynthFinish::StopText("end".to_owned()), "stop"),
        (SynthFinish::Length(3), "length"),
        (SynthFinish::Abort("gone".to_owned()), "abort"),
    ];
    let rows = finishes
        .iter()
        .zip(["c", "d", "e", "f"])
        .map(|((finish, _), rid)| SynthRow { finish: Some(finish.clone()), ..row(rid, &[9], 1) });
    stream.pass(rows.collect());
    let outcome = stream.outcomes().pop().unwrap();
    let reasons: Vec<&str> = outcome.finished.iter().map(|finish| &*finish.reason).collect();
    assert_eq!(reasons, finishes.map(|(_, reason)| reason));
    assert_eq!(outcome.frame.0, 2);
    // Two dropped rows with the same reason are one event.
    stream.decide(vec![row("a", &[5, 6], 4), row("b", &[7], 2)], &Decide::Drop);
    let events = stream.recorder.of::<RowsDropped>();
    let dropped: Vec<_> = events.iter().map(|event| (event.frame, event.rows, event.tokens)).collect();
    assert_eq!(dropped, [(3, 2, 3)]);
    let outcome = stream.outcomes().pop().unwrap();
    assert_eq!(
        (&outcome.passage, outcome.requests.iter().map(|it| it.0).collect::<Vec<_>>()),
        (&Passage::Dropped, numbers)
    );
    assert_eq!(outcome.actions[0].verdict, Verdict::Drop);
    // Changed bytes are kept.
    let mut output = stream.decided(vec![row("a", &[8], 5), row("b", &[9], 3)], &Decide::Pass);
    stream.apply(&mut output, 1, &Decide::Replace(vec![10, 11]));
    let sent = sent_rows(stream.settle(output));
    assert_eq!(
        sent.iter().map(|row| (&*row.rid, row.count)).collect::<Vec<_>>(),
        [("a", Some(3)), ("b", Some(3))]
    );
    let outcome = stream.outcomes().pop().unwrap();
    assert_eq!((outcome.passage, outcome.changed.is_some()), (Passage::Changed, true));
    assert_eq!(stream.counters().frames_rewritten.get(), 2);
    // Rows after an end are swallowed, and their outcome says so.
    stream.decide(vec![row("a", &[12], 6), row("b", &[13], 4)], &Decide::Finish);
    stream.pass(vec![row("b", &[14], 5)]);
    let outcome = stream.outcomes().pop().unwrap();
    let action = &outcome.actions[0];
    assert_eq!((action.row, &*action.plugin, &*action.text), (0, PLUGIN, SWALLOWED));
}

#[test]
fn a_batch_that_nobody_changes_leaves_as_the_bytes_that_arrived() {
    let mut stream = Stream::new();
    let output = stream.account(vec![row("a", &[1], 1), last("b", &[2], 1)]);
    let received = output.accounted().batch().bytes().clone();
    let (_, content) = stream.settle(output).into_parts();
    let afterbay_batch::Content::Rows { batch, .. } = content.content else { panic!("rows") };
    assert_eq!(*batch.bytes(), received);
    assert_eq!(stream.counters().frames_rewritten.get(), 0);
}

#[test]
fn the_readers_count_follows_the_tokens_that_it_has_also_in_batches_without_a_verdict() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1), row("b", &[1], 1)]);
    let counts =
        |sent: Vec<crate::stream::SentRow>| sent.into_iter().map(|row| row.count).collect::<Vec<_>>();
    let mut output = stream.account(vec![row("a", &[2], 2), row("b", &[2], 2)]);
    stream.apply(&mut output, 0, &Decide::Replace(vec![7, 8, 9]));
    assert_eq!(counts(sent_rows(stream.settle(output))), [Some(4), Some(2)]);
    assert_eq!(counts(stream.pass(vec![row("a", &[3], 3), row("b", &[3], 3)])), [Some(5), Some(3)]);
    // All ids so far are replaced: their number stays.
    let mut output = stream.account(vec![row("a", &[4], 4), row("b", &[4], 4)]);
    output.decide()[1].content = RowContent::Cumulative(vec![1, 2, 3, 5]);
    assert_eq!(counts(sent_rows(stream.settle(output))), [Some(6), Some(4)]);
}
