//! The entry for fuzzers: a plugin gives any verdicts on any batches, and the stages of a stream treat them as they promise.

use crate::{PluginSetup, SinkSetup, Trial, TrialSetup};
use afterbay_batch::Joins;
use afterbay_batch::records::RecordCopy;
use afterbay_config as config;
use afterbay_config::OnFault;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{FrameNo, Outcome, Passage};
use afterbay_runtime::Component;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, DecodedFrame, Finish, Layouts};
use bytes::Bytes;
use spelled::{is_allowed, spelled};
use std::collections::HashSet;
use std::time::Duration;

#[path = "../../../../../tests/guests/src/spelled.rs"]
mod spelled;

const STREAM: &str = "s";
/// The name of the first plugin.
const FIRST: &str = "first";
/// Requests at once.
const REQUESTS: usize = 8;
/// Most frames of an input.
const FRAMES_MAX: usize = 24;
/// Most ids of a row.
const IDS_MAX: u8 = 12;
/// The receive time of the first frame, and the time between two frames for each step of the input.
const BEGIN_NS: u64 = 1_700_000_000_000_000_000;
const STEP: Duration = Duration::from_millis(20);

/// A live request of the simulated scheduler.
#[derive(Clone, Copy, Default)]
struct Request {
    /// The number of earlier requests in this place.
    life: u32,
    tokens: u64,
    is_live: bool,
}

/// Reads bytes; `None` at the end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

/// Carries the batches that the input describes through the stages of a stream with one or two plugins of the guest `says`, which
/// gives the verdicts that the ids of the batches spell.
///
/// Asserts that nothing panics, that each request's tokens add up, and that a row of which a plugin with `on_fault = "terminate"`
/// gave no valid answer ends its request without a token.
///
/// # Panics
/// An assertion fails.
pub fn verdicts(says: &Component, input: &[u8]) {
    let mut input = Input(input);
    let mode = input.next().unwrap_or(0);
    let on_fault = [OnFault::Terminate, OnFault::Bypass][usize::from(mode % 2)];
    let has_second = mode & 0x40 != 0;
    let kind = if mode & 0x80 == 0 { BatchKind::TokenId } else { BatchKind::Str };
    let names = if has_second { &[FIRST, "second"][..] } else { &[FIRST] };
    let metrics = Metrics::new(Events::default(), Health::default());
    let mut trial = start(says, names, on_fault, &metrics);
    let mut requests = [Request::default(); REQUESTS];
    let mut at = BEGIN_NS;
    let mut frames = 0;
    while frames < FRAMES_MAX
        && let Some(batch) = next_batch(&mut input, &mut requests)
    {
        frames += 1;
        at += STEP.as_nanos() as u64 * u64::from(input.next().unwrap_or(0));
        let frame = carry(&mut trial, batch, kind, at);
        if on_fault == OnFault::Terminate {
            assert_judged(frame);
        }
    }
    let rest = last_batch(&mut requests);
    if !rest.rows.is_empty() {
        carry(&mut trial, rest, kind, at + STEP.as_nanos() as u64);
    }
    trial.end();
    let counters = metrics.stream(STREAM);
    assert_eq!(counters.request_imbalances.get(), 0, "a request's tokens do not add up");
    assert_eq!(counters.requests_live.get(), 0, "a request is live after its last row");
    let ended: u64 = counters.requests_ended.each().map(|(_, count)| count).sum();
    assert_eq!(counters.requests_opened.get(), ended);
    assert_eq!(trial.plugins().iter().map(|it| it.counters.held_tokens.get()).sum::<u64>(), 0);
}

fn start(says: &Component, names: &[&str], on_fault: OnFault, metrics: &Metrics) -> Trial {
    let endpoint = || "ipc:///dev/null".parse().expect("an endpoint");
    let mut stream = config::Stream::new(STREAM.parse().expect("a name"), endpoint(), endpoint());
    let setup = |name: &&str| {
        let component = config::Component::File("says".into());
        let config = config::Plugin::new(name.parse().expect("a name"), component);
        let config = config::Plugin { on_fault, ..config };
        let instance = says.instantiate("{}").expect("the guest starts");
        PluginSetup { config, settings: "{}".to_owned(), instance, awaits: None }
    };
    let plugins: Vec<PluginSetup> = names.iter().map(setup).collect();
    stream.plugins = plugins.iter().map(|plugin| plugin.config.clone()).collect();
    let sink = |sink: &config::Sink| SinkSetup {
        config: sink.clone(),
        connect: endpoint(),
        reader_id: None,
        joins: Joins::default(),
    };
    let trial = Trial::start(TrialSetup {
        sinks: stream.sinks.iter().map(sink).collect(),
        config: stream,
        layouts: Layouts::builtin(),
        plugins,
        attributes: Box::new(|_, _| None),
        abandon_after: Duration::from_secs(3600),
        begins_unix_ns: BEGIN_NS,
        metrics: metrics.clone(),
    });
    trial.expect("a journal that discards its bytes opens")
}

/// The next batch of the input: a mask of the requests with rows, a mask of those that end, and the ids of each row.
fn next_batch(input: &mut Input<'_>, requests: &mut [Request; REQUESTS]) -> Option<SynthBatch> {
    let (rows, ends) = (input.next()?, input.next()?);
    let mut batch = SynthBatch::default();
    for (place, request) in requests.iter_mut().enumerate().filter(|(place, _)| rows & 1 << place != 0) {
        let count = input.next().unwrap_or(0) % (IDS_MAX + 1);
        let ids: Vec<i64> = (0..count).filter_map(|_| input.next()).map(i64::from).collect();
        batch.rows.push(request.row(place, ids, ends & 1 << place != 0));
    }
    Some(batch)
}

/// The last rows of all live requests.
fn last_batch(requests: &mut [Request; REQUESTS]) -> SynthBatch {
    let live = requests.iter_mut().enumerate().filter(|(_, request)| request.is_live);
    SynthBatch { rows: live.map(|(place, request)| request.row(place, vec![0], true)).collect() }
}

impl Request {
    fn row(&mut self, place: usize, ids: Vec<i64>, ends: bool) -> SynthRow {
        self.is_live = true;
        self.tokens += ids.len() as u64;
        let row = SynthRow {
            rid: format!("{place}-{}", self.life),
            text: "t".repeat(ids.len()),
            ids,
            completion_tokens: self.tokens,
            prompt_tokens: 1,
            finish: ends.then_some(SynthFinish::Length(self.tokens)),
            ..SynthRow::default()
        };
        if ends {
            *self = Request { life: self.life + 1, ..Request::default() };
        }
        row
    }
}

/// A frame that the stages carried.
struct Carried {
    received: SynthBatch,
    bytes: Bytes,
    outcome: Option<Outcome<'static>>,
    was_quarantined: bool,
}

fn carry(trial: &mut Trial, received: SynthBatch, kind: BatchKind, at: u64) -> Carried {
    let bytes = received.encode(kind, SynthWire::Msgpack).expect("a synthetic batch is written");
    trial.take_records();
    let was_quarantined =
        trial.plugins().first().is_some_and(|it| it.status.state == crate::PluginState::Quarantined);
    let number: FrameNo = trial.frame(bytes.clone(), at);
    let outcome = trial.take_records().into_iter().find_map(|record| match record {
        RecordCopy::Outcome(outcome) if outcome.frame == number => Some(outcome),
        _ => None,
    });
    Carried { received, bytes, outcome, was_quarantined }
}

/// Asserts that no row passes of which the first plugin gave no valid answer.
fn assert_judged(carried: Carried) {
    let Carried { received, bytes, outcome, was_quarantined } = carried;
    if received.rows.is_empty() {
        return;
    }
    let outcome = outcome.expect("a batch has an outcome");
    let swallowed: HashSet<usize> =
        outcome.actions.iter().filter(|it| it.is_swallowed()).map(|it| it.row as usize).collect();
    let shown: Vec<&SynthRow> = received
        .rows
        .iter()
        .enumerate()
        .filter(|(row, _)| !swallowed.contains(row))
        .map(|(_, row)| row)
        .collect();
    let ids: Vec<i64> = shown.iter().flat_map(|row| row.ids.iter().copied()).collect();
    let answer = spelled(&ids);
    if is_allowed(&answer, shown.len()) && !was_quarantined {
        return;
    }
    let sent = match outcome.passage {
        Passage::Dropped => return assert!(shown.is_empty(), "the reader sees each request end"),
        Passage::Unchanged => decoded(bytes),
        Passage::Changed => decoded(outcome.changed.expect("a changed frame has bytes")),
        other => panic!("{other:?} for a batch"),
    };
    for row in shown {
        let sent_row =
            sent.rids().position(|rid| *rid == *row.rid).expect("the reader sees each request end") as u32;
        assert!(matches!(sent.finish(sent_row), Finish::Error), "{answer:?}: {:?}", sent.finish(sent_row));
        assert_eq!(sent.tokens(sent_row), 0, "{answer:?}: tokens of {} pass unjudged", row.rid);
    }
}

fn decoded(bytes: Bytes) -> Batch {
    match afterbay_wire::decode(bytes, &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => {
            panic!("a batch became a barrier: {:?}", barrier.kind)
        }
    }
}

#[cfg(test)]
mod tests;
