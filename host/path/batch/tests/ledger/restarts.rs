//! Requests over a start: lost tokens, sinks, and rows that go to another sink than their reader.

use crate::stream::{Decide, PLUGIN, Stream, last, record, row, sent_rows};
use afterbay_batch::Destination;
use afterbay_config::Takes;
use afterbay_events::HoldEnd;
use afterbay_events::event::{FramesMissing, RequestGap, RequestImbalance, VerdictFailed};
use afterbay_journal::Verdict;
use afterbay_wire::BatchKind;
use afterbay_wire::synth::SynthRow;
use std::time::Duration;

fn report(stream: &mut Stream) {
    let now = stream.now().instant;
    stream.ledger().report_restart_gap(now);
}

#[test]
fn tokens_that_were_lost_around_a_start_are_one_event_and_no_gap_or_imbalance() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1), row("b", &[1], 1), row("quiet", &[1], 1)]);
    stream.restart(false);
    stream.pass(vec![row("a", &[4], 4), row("b", &[2], 2)]);
    report(&mut stream);
    assert_eq!(stream.recorder.of::<FramesMissing>(), [], "a request has had no row");
    stream.seconds += 5;
    report(&mut stream);
    let [missing] = &stream.recorder.of::<FramesMissing>()[..] else { panic!("one event") };
    assert_eq!((missing.requests, missing.tokens, missing.silent, missing.frames), (1, 2, 1, 2));
    assert_eq!(stream.recorder.of::<RequestGap>(), []);
    stream.pass(vec![last("a", &[5], 5), last("b", &[3], 3)]);
    assert_eq!(stream.recorder.of::<RequestImbalance>(), []);
    // A request that closes without a row is not waited for.
    stream.restart(false);
    stream.pass(vec![row("new", &[1], 3)]);
    stream.seconds += 1;
    let now = stream.now().instant;
    let (ledger, held, records) = stream.all();
    assert_eq!(ledger.abandon(Duration::from_secs(1), now, held, records).len(), 2);
    report(&mut stream);
    let events = stream.recorder.of::<FramesMissing>();
    assert_eq!(events.last().map(|event| (event.requests, event.tokens, event.silent)), Some((1, 2, 0)));
    assert_eq!(events.len(), 2);
}

#[test]
fn a_stream_that_ends_reports_the_tokens_that_it_knows_to_be_lost() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1), row("b", &[1], 1)]);
    stream.restart(true);
    stream.pass(vec![row("a", &[4], 4)]);
    stream.ledger().close_restart_gap();
    stream.ledger().close_restart_gap();
    assert_eq!(stream.recorder.of::<FramesMissing>().len(), 1);
}

#[test]
fn requests_without_a_row_for_a_time_are_closed_and_held_rows_leave_before() {
    let mut stream = Stream::new();
    stream.pass(vec![row("idle", &[1], 1), row("live", &[1], 1)]);
    stream.decide(vec![row("held", &[1], 1)], &Decide::Hold);
    stream.seconds = 10;
    stream.pass(vec![row("live", &[2], 2)]);
    stream.seconds = 15;
    let abandon = |stream: &mut Stream| {
        let now = stream.now().instant;
        let (ledger, held, records) = stream.all();
        ledger.abandon(Duration::from_secs(15), now, held, records)
    };
    assert_eq!(abandon(&mut stream).len(), 1);
    assert_eq!(stream.release_due().unwrap().len(), 1, "the held row leaves");
    assert_eq!(abandon(&mut stream).len(), 1);
    assert_eq!(stream.ledger().requests().map(|(rid, _)| rid.to_owned()).collect::<Vec<_>>(), ["live"]);
    let events = stream.recorder.of::<afterbay_events::event::RequestAbandoned>();
    assert_eq!(events.into_iter().map(|event| event.rid).collect::<Vec<_>>(), ["idle", "held"]);
    // The journal has closed them, too.
    stream.restart(false);
    assert_eq!(stream.ledger().live(), 1);
}

fn sinks() -> Stream {
    Stream::with(vec![("reader", Takes::Share), ("skips", Takes::Skipped), ("other", Takes::Routed)], false)
}

/// Sends a batch of one row with a destination. Returns the destinations of the rows that leave.
fn route(stream: &mut Stream, rows: Vec<SynthRow>, of: u32, to: Destination) -> Vec<(u32, Destination)> {
    route_as(stream, BatchKind::TokenId, rows, of, to)
}

fn route_as(
    stream: &mut Stream,
    kind: BatchKind,
    rows: Vec<SynthRow>,
    of: u32,
    to: Destination,
) -> Vec<(u32, Destination)> {
    let mut output = stream.account_as(kind, rows);
    let tokens = output.accounted().rows()[of as usize].tokens;
    let (verdict, text) = match &to {
        Destination::To(_) => (Verdict::Route, "other"),
        Destination::SkipText => (Verdict::SkipText, ""),
    };
    record(&mut output, of, verdict, text, &[], tokens);
    output.decide()[of as usize].destination = Some(to);
    redirected(stream, output)
}

fn redirected(stream: &mut Stream, output: afterbay_batch::ChainOutput) -> Vec<(u32, Destination)> {
    let (_, content) = stream.settle(output).into_parts();
    content.redirected
}

fn pass(stream: &mut Stream, rows: Vec<SynthRow>) -> Vec<(u32, Destination)> {
    let output = stream.account(rows);
    redirected(stream, output)
}

#[test]
fn a_verdict_sends_one_row_to_a_routed_sink_and_an_unknown_sink_is_reported() {
    let mut stream = sinks();
    let to = |name: &str| Destination::To(name.to_owned());
    let rows = |step: u64| vec![row("a", &[1], step), row("b", &[1], step)];
    assert_eq!(route(&mut stream, rows(1), 1, to("other")), [(1, to("other"))]);
    assert_eq!(pass(&mut stream, rows(2)), [], "only that row");
    for name in ["reader", "nobody"] {
        let step = if name == "reader" { 3 } else { 4 };
        assert_eq!(route(&mut stream, rows(step), 1, to(name)), []);
        let failed = stream.recorder.of::<VerdictFailed>().pop().unwrap();
        assert!(failed.why.contains(name) && failed.frame == step && failed.plugin.as_str() == PLUGIN);
        assert_eq!(stream.outcomes().pop().unwrap().actions[..], [], "the verdict was not carried out");
    }
}

#[test]
fn a_row_keeps_its_destination_when_a_row_before_it_is_dropped() {
    let mut stream = sinks();
    let to = Destination::To("other".to_owned());
    stream.pass(vec![row("a", &[1], 1), row("b", &[1], 1), row("c", &[1], 1)]);
    let mut output = stream.account(vec![row("a", &[2], 2), row("b", &[2], 2), row("c", &[2], 2)]);
    stream.apply(&mut output, 0, &Decide::Drop);
    record(&mut output, 2, Verdict::Route, "other", &[], 1);
    output.decide()[2].destination = Some(to.clone());
    assert_eq!(redirected(&mut stream, output), [(1, to.clone())]);
    // A dropped row goes nowhere.
    let mut output = stream.account(vec![row("a", &[3], 3), row("b", &[3], 3), row("c", &[3], 3)]);
    record(&mut output, 1, Verdict::Route, "other", &[], 1);
    output.decide()[1].destination = Some(to);
    stream.apply(&mut output, 1, &Decide::Drop);
    output.verdicts.sort();
    assert_eq!(redirected(&mut stream, output), []);
}

#[test]
fn a_request_skips_the_detokenizer_from_its_first_row_to_its_last_also_over_a_restart() {
    let mut stream = sinks();
    let skip = Destination::SkipText;
    let rows = |step: u64| vec![row("a", &[1], step), row("b", &[1], step)];
    assert_eq!(route(&mut stream, rows(1), 1, skip.clone()), [(1, skip.clone())]);
    assert_eq!(pass(&mut stream, rows(2)), [(1, skip.clone())]);
    let outcome = stream.outcomes().pop().unwrap();
    let [action] = &outcome.actions[..] else { panic!("one verdict") };
    assert_eq!((action.row, action.verdict, action.forwarded), (1, Verdict::SkipText, 1));
    stream.restart(false);
    assert_eq!(pass(&mut stream, rows(3)), [(1, skip.clone())]);
    // Another plugin agrees later.
    assert_eq!(route(&mut stream, rows(4), 1, skip.clone()), [(1, skip.clone())]);
    assert_eq!(
        route(&mut stream, rows(5), 0, skip.clone()),
        [(1, skip)],
        "it is too late for the other request"
    );
    let failed = stream.recorder.of::<VerdictFailed>();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].why.contains("from its first row on"), "{}", failed[0].why);
}

#[test]
fn a_request_of_which_all_rows_are_held_may_still_skip_the_detokenizer() {
    let skip = Destination::SkipText;
    for restarts in [false, true] {
        let mut stream = sinks();
        stream.decide(vec![row("a", &[1], 1)], &Decide::Hold);
        if restarts {
            stream.restart(false);
        }
        let mut output = stream.account(vec![row("a", &[2], 2)]);
        stream.apply(&mut output, 0, &Decide::Pass);
        record(&mut output, 0, Verdict::SkipText, "", &[], 2);
        output.decide()[0].destination = Some(skip.clone());
        assert_eq!(redirected(&mut stream, output), [(0, skip.clone())]);
        stream.restart(false);
        assert_eq!(
            pass(&mut stream, vec![row("a", &[3], 3)]),
            [(0, skip.clone())],
            "the journal has the verdict"
        );
    }
}

#[test]
fn a_request_whose_first_row_was_held_and_released_to_its_reader_goes_to_the_reader_after_a_restart() {
    let mut stream = sinks();
    stream.decide(vec![row("a", &[1], 1)], &Decide::Hold);
    stream.decide(vec![row("a", &[2], 2)], &Decide::Pass);
    stream.restart(false);
    assert_eq!(pass(&mut stream, vec![row("a", &[3], 3)]), []);
}

#[test]
fn a_held_row_of_a_request_that_skips_the_detokenizer_skips_it_when_it_is_released() {
    let (mut stream, skip) = (sinks(), Destination::SkipText);
    route(&mut stream, vec![row("a", &[1], 1)], 0, skip.clone());
    let output = stream.decided(vec![row("a", &[2], 2)], &Decide::Hold);
    stream.settle(output);
    stream.held().end_all(HoldEnd::Time);
    let output = stream.begin_release().unwrap();
    assert_eq!(redirected(&mut stream, output), [(0, skip)]);
}

#[test]
fn a_verdict_to_skip_the_detokenizer_is_refused_where_there_is_none_to_skip() {
    let skip = Destination::SkipText;
    let mut stream = Stream::with(vec![("reader", Takes::Share)], false);
    assert_eq!(route(&mut stream, vec![row("a", &[1], 1)], 0, skip.clone()), []);
    assert!(stream.recorder.of::<VerdictFailed>()[0].why.contains("no sink of kind \"skipped\""));
    let mut stream = sinks();
    let text = SynthRow { text: "x".to_owned(), ..row("a", &[1], 1) };
    assert_eq!(route_as(&mut stream, BatchKind::Str, vec![text], 0, skip), []);
    assert!(stream.recorder.of::<VerdictFailed>()[0].why.contains("not before a detokenizer"));
}

#[test]
fn a_live_request_knows_its_sink_also_after_a_restart() {
    let mut stream = Stream::with(vec![("one", Takes::Share), ("two", Takes::Share)], false);
    let rids: Vec<String> = (0..8).map(|number| format!("req-{number}")).collect();
    stream.pass(rids.iter().map(|rid| SynthRow { prompt_tokens: 7, ..row(rid, &[1], 1) }).collect());
    let sinks = |stream: &mut Stream| -> Vec<(String, String, u64)> {
        let ledger = stream.ledger();
        let requests = ledger.requests();
        let named = requests.map(|(rid, request)| {
            (rid.to_owned(), ledger.sink_name(request).unwrap().to_string(), request.prompt_tokens)
        });
        let mut named: Vec<_> = named.collect();
        named.sort();
        named
    };
    let before = sinks(&mut stream);
    assert!(before.iter().any(|it| it.1 == "one") && before.iter().any(|it| it.1 == "two"));
    assert!(before.iter().all(|it| it.2 == 7));
    stream.restart(false);
    assert_eq!(sinks(&mut stream), before);
    assert_eq!(sent_rows_of_one(&mut stream), 1);
}

fn sent_rows_of_one(stream: &mut Stream) -> usize {
    let output = stream.account(vec![row("req-0", &[2], 2)]);
    sent_rows(stream.settle(output)).len()
}
