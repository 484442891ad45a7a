//! Requests that end before the scheduler ends them, and what the scheduler is told of it.
//!
//! Owns the requests whose next row is to be their last, as the operator wants it, and what is handed over for the
//! scheduler where a plugin has finished one. Who sends it, and how, is not known here.

use super::Ledger;
use afterbay_batch::{ChainOutput, Decision, RecordedVerdict, RecordedVerdicts, RequestSlot, RowContent};
use afterbay_events::event::AbortFailed;
use afterbay_journal as journal;
use afterbay_journal::reader::OperatorAbort;
use afterbay_persist::Persister;
use afterbay_runtime::FinishKind;
use afterbay_wire::{AbortShape, FinishReason};
use std::collections::HashSet;

/// `matched` of the last row of a request that the operator has ended.
pub const ABORTED: &str = "afterbay: aborted by operator";

/// Stands for a plugin's name where the operator has ended a request: no plugin can be called so.
pub const OPERATOR: &str = "(operator)";

/// Hands a request that a plugin has finished over to whoever tells the scheduler. It must not block; false where there is
/// no room.
pub type TellScheduler = Box<dyn Fn(FinishedEarly) -> bool + Send>;

/// A request that a plugin has finished while the scheduler goes on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedEarly {
    /// Its name; no other live request of the stream has one that begins with it.
    pub rid: String,
    /// The plugin.
    pub plugin: String,
    /// How the scheduler reads an abort, by its last batch.
    pub shape: Option<AbortShape>,
}

/// What a stream knows of a rid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestStatus {
    /// The live request of that name.
    pub live: Option<LiveStatus>,
    /// Another live request whose rid begins with it: SGLang would end that one too.
    pub longer: Option<String>,
    /// How the scheduler reads an abort, by its last batch. `None` before the first one.
    pub shape: Option<AbortShape>,
}

/// A live request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveStatus {
    /// Its number in the journal.
    pub number: u64,
    /// Who has ended it for its reader already; the scheduler may still go on.
    pub ended_by: Option<String>,
}

/// What outlives a ledger that is made anew out of the journal.
#[derive(Default)]
pub struct Aborts {
    pub upstream: Option<TellScheduler>,
    pub shape: Option<AbortShape>,
}

impl Aborts {
    pub fn new(upstream: Option<TellScheduler>) -> Aborts {
        Aborts { upstream, ..Aborts::default() }
    }
}

impl Ledger {
    pub fn into_aborts(self) -> Aborts {
        Aborts { upstream: self.upstream, shape: self.abort_shape }
    }

    /// Another tells the scheduler of requests that plugins finish, or nobody.
    pub fn set_upstream(&mut self, upstream: Option<TellScheduler>) {
        self.upstream = upstream;
    }

    /// What is known of a rid. It looks at every live request.
    pub fn look(&self, rid: &str) -> RequestStatus {
        let live = self.requests.find(rid.as_bytes()).and_then(|slot| self.requests.get(slot));
        let live = live.map(|request| LiveStatus {
            number: request.handle.number().0,
            ended_by: request.ended_by.as_deref().map(str::to_owned),
        });
        // What one that has ended for its reader still generates is of no use to anybody.
        let mut others = self.requests().filter(|(_, request)| !request.ended_early());
        let longer = others.find(|(other, _)| other.len() > rid.len() && other.starts_with(rid));
        RequestStatus { live, longer: longer.map(|(other, _)| other.to_owned()), shape: self.abort_shape }
    }

    /// What becomes of a live request, which the journal is told for a next start. One that has ended by then stays as it is.
    pub fn end(&mut self, rid: &str, number: u64, ending: OperatorAbort, persister: &mut Persister) {
        let Some(slot) = self.requests.find(rid.as_bytes()) else { return };
        let is_it = |request: &super::Request| request.handle.number().0 == number && !request.ended_early();
        let Some(request) = self.requests.get(slot).filter(|request| is_it(request)) else { return };
        let known = self.endings.iter().find(|(known, _)| *known == slot);
        match (ending, known) {
            (OperatorAbort::Expected, None) | (OperatorAbort::Due, Some(_)) => {}
            // Not where another abort of the same request got through.
            (OperatorAbort::No, Some((_, OperatorAbort::Expected))) => {}
            _ => return,
        }
        persister.record_abort(request.handle, ending);
        self.forget_ending(slot);
        if ending != OperatorAbort::No {
            self.endings.push((slot, ending));
        }
    }

    /// Whether any request's next row is to be its last.
    pub fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    /// Whether a row of the request that finishes so far in this way is to be its last. One that the scheduler ends for another
    /// reason than the abort ends by itself.
    pub fn ends(&self, slot: RequestSlot, finish: FinishKind) -> bool {
        self.endings.iter().find(|(known, _)| *known == slot).is_some_and(|(_, ending)| {
            finish == FinishKind::Abort || (finish == FinishKind::Running && *ending == OperatorAbort::Due)
        })
    }

    /// Makes the last row of each request that the operator has ended, as a plugin's verdict would. One that ends here by
    /// itself or by a plugin is left alone; the scheduler's own row for the abort is not.
    pub fn end_aborted(&self, output: &mut ChainOutput) {
        for index in 0..output.accounted.rows.len() {
            let row = output.accounted.rows[index];
            if row.swallowed || !self.ends(row.slot, row.finish) {
                continue;
            }
            if output.decisions.get(index).is_some_and(|decision| decision.finish.is_some()) {
                continue;
            }
            if output.decisions.is_empty() {
                output.decisions.resize(output.accounted.rows.len(), Decision::KEEP);
            }
            output.decisions[index].finish = Some(FinishReason::Stop(ABORTED.to_owned()));
            let at = index as u32;
            let forwarded = match &output.decisions[index].written {
                _ if output.is_held(at) => 0,
                RowContent::Unchanged | RowContent::Cumulative(_) => {
                    output.instead_of(at).map_or(row.tokens, |instead| instead.held.tokens)
                }
                RowContent::Delta(ids) => ids.len() as u32,
                RowContent::Dropped => 0,
            };
            output.actions.0.push(RecordedVerdict {
                row: at,
                plugin: OPERATOR.to_owned(),
                verdict: journal::Verdict::Finish,
                text: ABORTED.to_owned(),
                ids: Vec::new(),
                forwarded,
            });
        }
        output.actions.0.sort_by_key(|said| said.row);
    }

    /// The request has ended, in this way or another.
    pub fn forget_ending(&mut self, slot: RequestSlot) {
        self.endings.retain(|(known, _)| *known != slot);
    }

    /// Hands over what the scheduler is to be told of a batch, before any of it leaves: the requests that plugins have
    /// finished and it has not.
    pub fn tell_scheduler(&self, rows: &[super::Row], actions: &RecordedVerdicts) {
        let Some(tell) = &self.upstream else { return };
        let finished = actions.iter().filter(|said| {
            let row = rows.get(said.row as usize);
            matches!(said.verdict, journal::Verdict::Finish | journal::Verdict::Abort)
                && said.plugin != OPERATOR
                && row.is_some_and(|row| row.finish == FinishKind::Running)
        });
        let slot = |row: u32| rows.get(row as usize).map(|row| row.slot);
        let rid = |row: u32| self.requests.rid(slot(row)?);
        let (finished, hashed): (Vec<_>, Vec<_>) = finished.partition(|said| {
            let request = slot(said.row).and_then(|slot| self.requests.get(slot));
            request.is_some_and(|request| !request.is_rid_hashed)
        });
        for said in hashed {
            let Some(rid) = rid(said.row) else { continue };
            self.withheld(
                rid,
                &said.plugin,
                "its rid is longer than an abort may name, or no text".to_owned(),
            );
        }
        let finished: Vec<(&str, &str)> =
            finished.into_iter().filter_map(|said| Some((rid(said.row)?, &*said.plugin))).collect();
        if finished.is_empty() {
            return;
        }
        let begun = self.begun_by(&finished);
        for (rid, plugin) in finished {
            let why = match begun.iter().find(|(prefix, _)| *prefix == rid) {
                Some((_, other)) => {
                    format!("its rid begins that of live request {other:?}, which would end too")
                }
                None => {
                    let (rid, plugin) = (rid.to_owned(), plugin.to_owned());
                    if tell(FinishedEarly { rid, plugin, shape: self.abort_shape }) {
                        continue;
                    }
                    "too many wait to be sent".to_owned()
                }
            };
            self.withheld(rid, plugin, why);
        }
    }

    fn withheld(&self, rid: &str, plugin: &str, why: String) {
        self.telemetry.counters.aborts_withheld.add(1);
        let (stream, rid) = (self.telemetry.stream.clone(), rid.to_owned());
        self.telemetry.publish(AbortFailed { stream, rid, by: format!("plugin {plugin}").into(), why });
    }

    /// Those of `finished` with which the rid of another live request begins, and that request. One look at each live
    /// request, however many have finished.
    fn begun_by<'a>(&'a self, finished: &[(&'a str, &str)]) -> Vec<(&'a str, &'a str)> {
        let rids: HashSet<&str> = finished.iter().map(|(rid, _)| *rid).collect();
        let lengths: HashSet<usize> = rids.iter().map(|rid| rid.len()).collect();
        let mut begun = Vec::new();
        for (other, _) in self.requests().filter(|(_, request)| !request.ended_early()) {
            let prefixes = lengths.iter().filter(|length| **length < other.len());
            let prefixes = prefixes.filter_map(|length| other.get(..*length));
            begun.extend(prefixes.filter_map(|prefix| rids.get(prefix)).map(|prefix| (*prefix, other)));
        }
        begun
    }
}
