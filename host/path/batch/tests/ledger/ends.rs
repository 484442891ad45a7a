//! Ends of requests by cause: each end is counted once, when its reader gets it, and with the word that the journal's readers say.

use crate::stream::{Decide, PLUGIN, Stream, last, row};
use afterbay_events::EndCause;
use afterbay_journal::{OPERATOR, PluginAction, Verdict, end_cause};
use afterbay_wire::FinishReason;
use afterbay_wire::synth::{SynthFinish, SynthRow};
use std::time::Duration;

/// The causes that were counted.
fn ends(stream: &Stream) -> Vec<(&'static str, u64)> {
    stream.counters().requests_ended.each().filter(|(_, count)| *count > 0).collect()
}

/// The scheduler's last row of a request.
fn ended(rid: &str, finish: SynthFinish) -> SynthRow {
    SynthRow { finish: Some(finish), ..row(rid, &[9], 1) }
}

/// Ends the request of this row as the plugin or the operator says.
fn end_by(stream: &mut Stream, of: SynthRow, plugin: &'static str, verdict: Verdict, text: &'static str) {
    let mut output = stream.account(vec![of]);
    let ids = Vec::new().into();
    let action =
        PluginAction { row: 0, plugin: plugin.into(), verdict, text: text.into(), ids, forwarded: 1 };
    output.verdicts.push(action);
    output.decide()[0].finish = Some(FinishReason::Length);
    stream.settle(output);
}

#[test]
fn an_end_by_the_scheduler_is_counted_by_its_finish_reason() {
    let mut stream = Stream::new();
    stream.pass(vec![
        ended("a", SynthFinish::StopToken(9)),
        ended("b", SynthFinish::StopText("end".to_owned())),
        ended("c", SynthFinish::Length(1)),
        ended("d", SynthFinish::Abort("gone".to_owned())),
    ]);
    assert_eq!(ends(&stream), [("model", 2), ("limit", 1), ("client", 1)]);
}

#[test]
fn an_end_by_a_plugin_or_an_operator_is_counted_at_once_and_not_again_when_the_scheduler_ends() {
    let mut stream = Stream::new();
    for (rid, plugin, verdict, text) in [
        ("a", PLUGIN, Verdict::Finish, "enough"),
        ("b", "watchdog", Verdict::Error, "504 afterbay: no first token in 5 s"),
        ("c", "watchdog-batch", Verdict::Length, ""),
        ("d", "guard", Verdict::Error, "500 afterbay: plugin \"guard\" did not judge this row"),
        ("e", OPERATOR, Verdict::Finish, ""),
    ] {
        end_by(&mut stream, row(rid, &[1], 1), plugin, verdict, text);
    }
    let expected = [("plugin", 1), ("watchdog", 2), ("fault", 1), ("operator", 1)];
    assert_eq!((ends(&stream), stream.ledger().live()), (expected.to_vec(), 5));
    stream.restart(false);
    stream.pass(["a", "b", "c", "d", "e"].map(|rid| last(rid, &[1], 2)).to_vec());
    assert_eq!((ends(&stream), stream.ledger().live()), (expected.to_vec(), 0));
}

#[test]
fn a_held_last_row_is_an_end_when_it_leaves() {
    let mut stream = Stream::new();
    stream.decide(vec![last("a", &[1], 1)], &Decide::Hold);
    assert_eq!(ends(&stream), []);
    stream.seconds += 61;
    stream.release_due().unwrap();
    assert_eq!(ends(&stream), [("limit", 1)]);
}

#[test]
fn a_request_that_is_given_up_is_lost_and_one_that_had_ended_for_its_reader_is_not() {
    let mut stream = Stream::new();
    stream.pass(vec![row("a", &[1], 1)]);
    stream.decide(vec![row("b", &[1], 1)], &Decide::Finish);
    stream.seconds += 100;
    stream.pass(vec![row("c", &[1], 1)]);
    let at = stream.now().instant;
    let (ledger, held, records) = stream.all();
    assert_eq!(ledger.abandon(Duration::from_secs(60), at, held, records).len(), 2);
    assert_eq!(ends(&stream), [("plugin", 1), ("lost", 1)]);
}

#[test]
fn a_stream_after_another_one_leaves_the_cause_of_the_schedulers_ends_to_that_stream() {
    let mut stream = Stream::new();
    stream.put_behind_another();
    stream.pass(vec![last("a", &[1], 1)]);
    stream.decide(vec![row("b", &[1], 1)], &Decide::Finish);
    assert_eq!(ends(&stream), [("plugin", 1), ("first_leg", 1)]);
}

#[test]
fn a_plugin_of_an_earlier_run_is_unknown_and_only_a_whole_name_is_the_watchdogs() {
    let of = |plugin: &str| end_cause(Verdict::Finish, plugin, "");
    assert_eq!(of("(a plugin of an earlier run)"), EndCause::Unknown);
    assert_eq!((of("watchdogs"), of("my-watchdog")), (EndCause::Plugin, EndCause::Plugin));
}
