//! Compares a trial with what the journal recorded, request by request. Keeps the live requests, and no frame.

use super::plugin_changes::{Difference, PluginChanges, RowOfOutcome};
use afterbay_events::Event;
use afterbay_events::event::{Kind, PluginDown, PluginFault, PluginQuarantined};
use afterbay_journal::{Outcome, PluginAction, RequestNo};
use afterbay_stream::RecordCopy;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Frames after which a request that has ended in the trial is compared: its recorded last row may be held longer.
const COMPARE_AFTER_FRAMES: u64 = 2048;
/// Most kinds of faults that are told apart.
const FAULTS_MAX: usize = 32;

/// A request, with what happened and what happens in the trial.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComparedRequest {
    pub(crate) rid: String,
    /// The number in the journal.
    pub(crate) number: u64,
    /// Tokens that were read, with those before the compared time.
    received: u64,
    /// Rows and tokens of the compared time.
    pub(crate) rows: u64,
    pub(crate) tokens: u64,
    /// The scheduler's finish reason, and the tokens up to it.
    pub(crate) finish: Option<(String, u64)>,
    pub(crate) then: PluginChanges,
    pub(crate) trial: PluginChanges,
}

/// A frame of the journal with its outcome.
pub(crate) struct RecordedFrame<'a> {
    pub(crate) frame: u64,
    pub(crate) outcome: &'a Outcome<'static>,
}

/// The compared time, in Unix nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    pub(crate) since: Option<u64>,
    pub(crate) until: Option<u64>,
}

impl Window {
    /// Whether this time is compared.
    pub(crate) fn has(&self, unix_ns: u64) -> bool {
        self.since.is_none_or(|since| unix_ns >= since) && !self.is_over(unix_ns)
    }

    /// Whether this time is after the compared time.
    pub(crate) fn is_over(&self, unix_ns: u64) -> bool {
        self.until.is_some_and(|until| unix_ns >= until)
    }
}

/// Faults of a plugin that begin with the same line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FaultKey {
    pub(crate) plugin: String,
    /// `trap`, `deadline` and so on; `down` and `quarantined` for the consequences.
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// The sums of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    pub(crate) ended_early: u64,
    pub(crate) dropped: u64,
    pub(crate) replaced: u64,
    pub(crate) swallowed: u64,
    pub(crate) rows_held: u64,
}

/// The sums over all requests.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) frames: u64,
    /// Frames that the trial reads otherwise than the stream did, or that have no recorded outcome. They are not compared.
    pub(crate) frames_not_compared: u64,
    pub(crate) requests: u64,
    pub(crate) rows: u64,
    pub(crate) tokens: u64,
    pub(crate) then: Side,
    pub(crate) trial: Side,
    /// Requests with any difference.
    pub(crate) different: u64,
    pub(crate) by_difference: BTreeMap<Difference, u64>,
    /// Requests that end earlier, by the scheduler's finish reason; empty if the scheduler did not end the request.
    pub(crate) earlier_by_finish: BTreeMap<String, u64>,
    /// Requests that end earlier, by the plugin that ends them.
    pub(crate) earlier_by_plugin: BTreeMap<String, u64>,
    pub(crate) faults: BTreeMap<FaultKey, u64>,
    pub(crate) more_faults: u64,
}

/// Compares one stream.
#[derive(Default)]
pub(crate) struct Comparison {
    window: Window,
    /// Requests that are not compared, by number in the journal.
    pub(crate) erased: HashSet<u64>,
    /// By number in the journal.
    requests: HashMap<u64, ComparedRequest>,
    /// Numbers in the journal, by number in the trial.
    numbers: HashMap<u64, u64>,
    /// Requests that have ended in the trial: the frame count then, and both numbers.
    ended: VecDeque<(u64, u64, u64)>,
    /// Frames so far.
    read: u64,
    pub(crate) sums: Sums,
}

fn of_row<'a>(outcome: &'a Outcome<'static>, row: usize) -> &'a [PluginAction<'static>] {
    let first = outcome.actions.partition_point(|action| (action.row as usize) < row);
    let count = outcome.actions[first..].iter().take_while(|action| action.row as usize == row).count();
    &outcome.actions[first..first + count]
}

impl Comparison {
    pub(crate) fn of(window: Window) -> Comparison {
        Comparison { window, ..Comparison::default() }
    }

    /// Adds a frame that the trial has carried, with the frame's number in the trial and the trial's records. `recorded` is `None`
    /// if the journal has no outcome of the frame.
    pub(crate) fn frame(
        &mut self,
        recorded: Option<RecordedFrame<'_>>,
        trial_frame: u64,
        records: &[RecordCopy],
        rid: impl Fn(RequestNo) -> String,
    ) {
        self.read += 1;
        for record in records {
            match record {
                RecordCopy::Outcome(outcome) if outcome.frame.0 == trial_frame => {
                    let counts = self.window.has(outcome.received_unix_ns);
                    self.sums.frames += u64::from(counts);
                    let recorded =
                        recorded.as_ref().filter(|it| it.outcome.requests.len() == outcome.requests.len());
                    match recorded {
                        Some(recorded) => self.both(recorded, outcome, &rid),
                        None => self.sums.frames_not_compared += u64::from(counts),
                    }
                }
                record => self.without_frame(record),
            }
        }
    }

    /// Adds a record that the trial made without a frame of the journal: of a release marker, or the end of a request.
    pub(crate) fn without_frame(&mut self, record: &RecordCopy) {
        match record {
            RecordCopy::Outcome(outcome) => self.released_in_trial(outcome),
            RecordCopy::Close(request) => self.close(request.0),
        }
    }

    fn both(
        &mut self,
        recorded: &RecordedFrame<'_>,
        trial: &Outcome<'static>,
        rid: &impl Fn(RequestNo) -> String,
    ) {
        let RecordedFrame { frame, outcome } = *recorded;
        let counts = self.window.has(outcome.received_unix_ns);
        for (row, (request, in_trial)) in outcome.requests.iter().zip(trial.requests.iter()).enumerate() {
            self.numbers.insert(in_trial.0, request.0);
            let tokens = outcome.tokens.get(row).map_or(0, |tokens| u64::from(*tokens));
            let known = self.requests.entry(request.0).or_insert_with(|| ComparedRequest {
                rid: rid(*request),
                number: request.0,
                ..ComparedRequest::default()
            });
            known.received += tokens;
            let received = known.received;
            if let Some(finish) = outcome.finished.iter().find(|finish| finish.row as usize == row) {
                known.finish = Some((finish.reason.to_string(), received));
            }
            if counts && !outcome.is_record() {
                (known.rows, known.tokens) = (known.rows + 1, known.tokens + tokens);
                for (changes, outcome) in [(&mut known.then, outcome), (&mut known.trial, trial)] {
                    changes.add(&RowOfOutcome { frame, tokens, received, actions: of_row(outcome, row) });
                }
            }
        }
    }

    /// Adds a release marker of the journal. The trial makes its own markers.
    pub(crate) fn released_then(&mut self, recorded: &RecordedFrame<'_>) {
        if !self.window.has(recorded.outcome.received_unix_ns) {
            return;
        }
        for (row, request) in recorded.outcome.requests.iter().enumerate() {
            if let Some(known) = self.requests.get_mut(&request.0) {
                let (received, actions) = (known.received, of_row(recorded.outcome, row));
                known.then.add(&RowOfOutcome { frame: recorded.frame, tokens: 0, received, actions });
            }
        }
    }

    fn released_in_trial(&mut self, outcome: &Outcome<'static>) {
        if !self.window.has(outcome.received_unix_ns) {
            return;
        }
        for (row, request) in outcome.requests.iter().enumerate() {
            let known = self.numbers.get(&request.0).and_then(|number| self.requests.get_mut(number));
            if let Some(known) = known {
                let (received, actions) = (known.received, of_row(outcome, row));
                known.trial.add(&RowOfOutcome { frame: 0, tokens: 0, received, actions });
            }
        }
    }

    fn close(&mut self, in_trial: u64) {
        if let Some(number) = self.numbers.get(&in_trial) {
            self.ended.push_back((self.read, in_trial, *number));
        }
    }

    /// Adds events of the trial.
    pub(crate) fn events(&mut self, events: &[Event]) {
        for event in events {
            let (plugin, kind, why) = if let Some(it) = PluginFault::of(event) {
                (&it.plugin, it.kind.to_string(), &it.why)
            } else if let Some(it) = PluginDown::of(event) {
                (&it.plugin, "down".to_owned(), &it.why)
            } else if let Some(it) = PluginQuarantined::of(event) {
                (&it.plugin, "quarantined".to_owned(), &it.why)
            } else {
                continue;
            };
            let message = why.lines().next().unwrap_or_default().to_owned();
            let key = FaultKey { plugin: plugin.to_string(), kind, message };
            let has_room = self.sums.faults.len() < FAULTS_MAX;
            match self.sums.faults.get_mut(&key) {
                Some(times) => *times += 1,
                None if has_room => _ = self.sums.faults.insert(key, 1),
                None => self.sums.more_faults += 1,
            }
        }
    }

    /// The requests that can be compared now. `all`: every request, at the end.
    pub(crate) fn take_compared(&mut self, all: bool) -> Vec<(ComparedRequest, Vec<Difference>)> {
        let mut taken = Vec::new();
        let due = |ended: &mut (u64, u64, u64)| all || ended.0 + COMPARE_AFTER_FRAMES <= self.read;
        while let Some((_, in_trial, number)) = self.ended.pop_front_if(due) {
            // A later life of the number in the trial belongs to another request.
            if self.numbers.get(&in_trial) == Some(&number) {
                self.numbers.remove(&in_trial);
                taken.extend(self.requests.remove(&number));
            }
        }
        if all {
            let mut live: Vec<ComparedRequest> = self.requests.drain().map(|(_, request)| request).collect();
            live.sort_by_key(|request| request.number);
            taken.extend(live);
            self.numbers.clear();
        }
        taken.retain(|request| request.rows > 0 && !self.erased.contains(&request.number));
        taken.into_iter().map(|request| self.compared(request)).collect()
    }

    fn compared(&mut self, request: ComparedRequest) -> (ComparedRequest, Vec<Difference>) {
        let found = Difference::between(
            &request.then,
            &request.trial,
            request.finish.as_ref().map(|(_, token)| *token),
        );
        let sums = &mut self.sums;
        sums.requests += 1;
        (sums.rows, sums.tokens) = (sums.rows + request.rows, sums.tokens + request.tokens);
        sums.then.add(&request.then);
        sums.trial.add(&request.trial);
        sums.different += u64::from(!found.is_empty());
        for difference in &found {
            *sums.by_difference.entry(*difference).or_default() += 1;
        }
        if found.contains(&Difference::EndsEarlier) {
            let finish = request.finish.as_ref().map_or("", |(reason, _)| reason).to_owned();
            *sums.earlier_by_finish.entry(finish).or_default() += 1;
            let plugin = request.trial.end.as_ref().map_or("", |end| &end.plugin).to_owned();
            *sums.earlier_by_plugin.entry(plugin).or_default() += 1;
        }
        (request, found)
    }
}

impl Side {
    fn add(&mut self, changes: &PluginChanges) {
        self.ended_early += u64::from(changes.end.is_some());
        self.dropped += changes.dropped;
        self.replaced += changes.replaced;
        self.swallowed += changes.swallowed;
        self.rows_held += changes.rows_held;
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let Side { ended_early, dropped, replaced, swallowed, rows_held } = self;
        serde_json::json!({
            "requests_ended_early": ended_early,
            "tokens_dropped": dropped,
            "tokens_replaced": replaced,
            "tokens_swallowed": swallowed,
            "rows_held": rows_held,
        })
    }
}
