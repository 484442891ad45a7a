//! Catching up: a successor learns of the live requests off the stream's thread, while the old instance judges their rows.
//!
//! The successor imports the state of the old instance, or is shown the rows of the live requests again, from the journal.
//! The calls that it misses meanwhile are recorded and shown in further rounds, until few are left. Verdicts on rows that are
//! shown again are ignored. This module owns the rounds and their bounds; the slot decides when the successor takes over.

use crate::hand_over::HandedCall;
use crate::open_requests::OpenedRequest;
use crate::replay::{CatchUpError, EarlierInstance, JournalSource, cancel_calls, replay};
use afterbay_events::Name;
use afterbay_runtime::{Fault, OwnedColumns, Plugin, StateError};
use std::collections::HashSet;
use std::sync::Arc;

/// The bound of the recorded calls, in bytes. If the calls exceed it, the successor starts as after a fault.
const MISSED_BYTES_MAX: usize = 64 << 20;
/// Batches that are shown on the stream's thread at once. The current batch waits for them.
const MISSED_BATCHES_AT_ONCE: usize = 2;

/// One round: the calls that a successor is to be shown.
pub struct CatchUp {
    pub(crate) plugin: Name,
    /// The number of the successor among the successors of its plugin. A later one replaces an earlier one.
    pub(crate) number: u64,
    pub(crate) instance: Plugin,
    pub(crate) source: CatchUpSource,
    /// The plugins that the chain calls before this one: their verdicts are applied to rows that are shown again.
    pub(crate) plugins_before: HashSet<String>,
}

/// The source of the calls of a round.
pub(crate) enum CatchUpSource {
    /// All rows of these requests, from the journal.
    Journal(Vec<OpenedRequest>),
    /// As `Journal`, for an instance that continues one of another process: the rows that it held stay held, and its calls stay
    /// open.
    Again { requests: Vec<OpenedRequest>, earlier: EarlierInstance },
    /// The state of the old instance. These requests were open when it was exported.
    Import(ExportedState, Vec<OpenedRequest>),
    /// The calls missed during the rounds before, in which the instance was shown this many rows.
    Missed(MissedCalls, u64),
}

/// The end of a round.
pub struct CatchUpResult {
    pub(crate) plugin: Name,
    pub(crate) number: u64,
    pub(crate) instance: Plugin,
    /// The calls of the instance of another process that are open: those that this instance has made, too, and the others.
    pub(crate) open_calls: (Vec<HandedCall>, Vec<HandedCall>),
    /// The number of rows that the instance was shown in all rounds.
    pub(crate) rows: Result<u64, CatchUpError>,
}

impl CatchUp {
    /// Whether [`CatchUp::run`] reads the journal.
    pub fn reads_journal(&self) -> bool {
        matches!(self.source, CatchUpSource::Journal(_) | CatchUpSource::Again { .. })
    }

    /// Runs the round. It may take as long as `REPLAY_TIME_MAX` (30 seconds), so call it off the stream's thread.
    pub fn run(self, journal: Option<JournalSource>) -> CatchUpResult {
        let CatchUp { plugin, number, mut instance, source, plugins_before } = self;
        instance.set_off_path(true);
        let mut open_calls = (Vec::new(), Vec::new());
        let no_journal = || Err("the journal cannot be read".to_owned().into());
        let rows = match source {
            CatchUpSource::Missed(missed, rows) => {
                missed.replay(&mut instance).map(|more| rows + more).map_err(CatchUpError::from)
            }
            CatchUpSource::Import(state, requests) => state.import(&mut instance, &requests).map(|()| 0),
            CatchUpSource::Journal(requests) => match journal {
                Some(journal) => replay(&mut instance, &requests, &plugins_before, journal, None),
                None => no_journal(),
            },
            CatchUpSource::Again { requests, mut earlier } => {
                instance.set_keeps_calls(true);
                let rows = journal.map_or_else(no_journal, |journal| {
                    replay(&mut instance, &requests, &plugins_before, journal, Some(&mut earlier))
                });
                instance.set_keeps_calls(false);
                open_calls = (earlier.found, earlier.open_calls);
                rows
            }
        };
        CatchUpResult { plugin, number, instance, open_calls, rows }
    }
}

/// The state that an instance exported for its successor.
pub(crate) struct ExportedState {
    /// The version of the old instance's component.
    pub(crate) version: String,
    pub(crate) state: Vec<u8>,
}

impl ExportedState {
    /// Imports the state into an instance, then opens the requests that were live at the export.
    fn import(&self, instance: &mut Plugin, requests: &[OpenedRequest]) -> Result<(), CatchUpError> {
        let ExportedState { version, state } = self;
        let imported = instance.import_state(version, state)?;
        imported.unwrap_or(Ok(())).map_err(|error| match error {
            StateError::UnknownVersion => format!("it does not know the state of version {version}"),
            StateError::Corrupt => format!("it cannot read the state of version {version}"),
        })?;
        Ok(OpenedRequest::open(requests, instance)?)
    }
}

/// The calls that a successor misses while it catches up.
#[derive(Default)]
pub(crate) struct MissedCalls {
    calls: Vec<MissedCall>,
    bytes: usize,
}

/// A call that the old instance had and its successor had not.
pub(crate) enum MissedCall {
    Open(Vec<OpenedRequest>),
    Process(Box<OwnedColumns>),
    Changed(u64, Option<Arc<str>>),
    Close(Vec<u64>),
}

impl MissedCalls {
    /// Records a call. False if the calls now exceed [`MISSED_BYTES_MAX`], about.
    pub(crate) fn add(&mut self, call: MissedCall) -> bool {
        self.bytes += match &call {
            MissedCall::Open(requests) => requests.len() * 128,
            MissedCall::Process(rows) => rows.bytes(),
            MissedCall::Changed(_, attributes) => 8 + attributes.as_ref().map_or(0, |it| it.len()),
            MissedCall::Close(requests) => requests.len() * 8,
        };
        self.calls.push(call);
        self.bytes <= MISSED_BYTES_MAX
    }

    /// Whether there are too many batches to show them on the stream's thread.
    pub(crate) fn is_long(&self) -> bool {
        let batches = self.calls.iter().filter(|call| matches!(call, MissedCall::Process(_)));
        batches.count() > MISSED_BATCHES_AT_ONCE
    }

    /// Repeats the calls with an instance. Returns the number of rows.
    pub(crate) fn replay(&self, instance: &mut Plugin) -> Result<u64, Fault> {
        let mut shown = 0;
        for call in &self.calls {
            let called = match call {
                MissedCall::Open(requests) => OpenedRequest::open(requests, instance),
                MissedCall::Process(rows) => {
                    shown += rows.rows() as u64;
                    rows.show(|columns| instance.process(columns)).map(drop)
                }
                MissedCall::Changed(request, attributes) => {
                    instance.set_attributes(*request, attributes.clone());
                    instance.changed(&[*request])
                }
                MissedCall::Close(requests) => {
                    requests.iter().for_each(|request| instance.forget(*request));
                    instance.close(requests)
                }
            };
            called.and_then(|()| cancel_calls(instance, None))?;
        }
        Ok(shown)
    }
}
