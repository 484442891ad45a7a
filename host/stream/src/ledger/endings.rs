//! Requests that end before the scheduler ends them, and what the scheduler is told of it.
//!
//! Owns the requests whose next row is to be their last, as the operator wants it, and what is handed over for the
//! scheduler where a plugin has finished one. Who sends it, and how, is not known here.

use super::Ledger;
use crate::actions::Actions;
use crate::requests::Slot;
use afterbay_events::event::AbortFailed;
use afterbay_journal as journal;
use afterbay_runtime::FinishKind;
use afterbay_wire::AbortShape;
use std::collections::HashSet;

/// Stands for a plugin's name where the operator has ended a request: no plugin can be called so.
pub(crate) const OPERATOR: &str = "(operator)";

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
pub struct Looked {
    /// The live request of that name.
    pub live: Option<Live>,
    /// Another live request whose rid begins with it: SGLang would end that one too.
    pub longer: Option<String>,
    /// How the scheduler reads an abort, by its last batch. `None` before the first one.
    pub shape: Option<AbortShape>,
}

/// A live request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Its number in the journal.
    pub number: u64,
    /// Who has ended it for its reader already; the scheduler may still go on.
    pub ended_by: Option<String>,
}

/// What the next rows of a live request become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The scheduler is about to be told to abort it: its own row for that ends it with `matched`; others go on.
    Expected {
        /// `matched` of its finish reason, which is `stop`.
        matched: String,
    },
    /// The scheduler was told: the next row is its last.
    Now,
    /// The scheduler could not be told: it goes on.
    Not,
}

/// A request that the operator ends.
pub(super) struct Ending {
    pub(super) slot: Slot,
    matched: String,
    /// The scheduler was told.
    is_told: bool,
}

/// What outlives a ledger that is made anew out of the journal.
#[derive(Default)]
pub(crate) struct Aborts {
    upstream: Option<TellScheduler>,
    shape: Option<AbortShape>,
    /// By rid and number.
    endings: Vec<(String, u64, Ending)>,
}

impl Aborts {
    pub(crate) fn new(upstream: Option<TellScheduler>) -> Aborts {
        Aborts { upstream, ..Aborts::default() }
    }
}

impl Ledger {
    pub(crate) fn into_aborts(self) -> Aborts {
        let Ledger { requests, endings, upstream, abort_shape: shape, .. } = self;
        let named = endings.into_iter().filter_map(|ending| {
            let number = requests.get(ending.slot)?.kept.number().0;
            Some((requests.rid(ending.slot)?.to_owned(), number, ending))
        });
        Aborts { upstream, shape, endings: named.collect() }
    }

    pub(super) fn take_up(&mut self, aborts: Aborts) {
        (self.upstream, self.abort_shape) = (aborts.upstream, aborts.shape);
        for (rid, number, Ending { matched, is_told, .. }) in aborts.endings {
            self.end(&rid, number, End::Expected { matched });
            if is_told {
                self.end(&rid, number, End::Now);
            }
        }
    }

    /// Another tells the scheduler of requests that plugins finish, or nobody.
    pub(crate) fn set_upstream(&mut self, upstream: Option<TellScheduler>) {
        self.upstream = upstream;
    }

    /// What is known of a rid. It looks at every live request.
    pub(crate) fn look(&self, rid: &str) -> Looked {
        let live = self.requests.find(rid.as_bytes()).and_then(|slot| self.requests.get(slot));
        let live = live.map(|request| Live {
            number: request.kept.number().0,
            ended_by: request.ended_by.as_deref().map(str::to_owned),
        });
        // What one that has ended for its reader still generates is of no use to anybody.
        let mut others = self.requests().filter(|(_, request)| !request.ended_early());
        let longer = others.find(|(other, _)| other.len() > rid.len() && other.starts_with(rid));
        Looked { live, longer: longer.map(|(other, _)| other.to_owned()), shape: self.abort_shape }
    }

    /// What becomes of a live request. One that has ended by then stays as it is.
    pub(crate) fn end(&mut self, rid: &str, number: u64, end: End) {
        let Some(slot) = self.requests.find(rid.as_bytes()) else { return };
        let is_it = |request: &super::Request| request.kept.number().0 == number && !request.ended_early();
        if !self.requests.get(slot).is_some_and(is_it) {
            return;
        }
        let known = self.endings.iter_mut().find(|ending| ending.slot == slot);
        match (end, known) {
            (End::Expected { matched }, None) => self.endings.push(Ending { slot, matched, is_told: false }),
            (End::Now, Some(ending)) => ending.is_told = true,
            // Another abort of the same request got through.
            (End::Not, Some(ending)) if ending.is_told => {}
            (End::Not, Some(_)) => self.forget_ending(slot),
            _ => {}
        }
    }

    /// Whether any request's next row is to be its last.
    pub(crate) fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    /// `matched` of the request's finish reason, if a row that finishes so far in this way is to be its last. One that the
    /// scheduler ends for another reason than the abort ends by itself.
    pub(crate) fn ending(&self, slot: Slot, finish: FinishKind) -> Option<&str> {
        let ending = self.endings.iter().find(|ending| ending.slot == slot)?;
        let is_last = finish == FinishKind::Abort || (finish == FinishKind::Running && ending.is_told);
        is_last.then_some(ending.matched.as_str())
    }

    /// The request has ended, in this way or another.
    pub(super) fn forget_ending(&mut self, slot: Slot) {
        self.endings.retain(|ending| ending.slot != slot);
    }

    /// Hands over what the scheduler is to be told of a batch, before any of it leaves: the requests that plugins have
    /// finished and it has not.
    pub(super) fn tell_scheduler(&self, rows: &[super::Row], actions: &Actions) {
        let Some(tell) = &self.upstream else { return };
        let finished = actions.iter().filter(|said| {
            let row = rows.get(said.row as usize);
            matches!(said.verdict, journal::Verdict::Finish | journal::Verdict::Abort)
                && said.plugin != OPERATOR
                && row.is_some_and(|row| row.finish == FinishKind::Running)
        });
        let rid = |row: u32| rows.get(row as usize).and_then(|row| self.requests.rid(row.slot));
        let finished: Vec<(&str, &str)> =
            finished.filter_map(|said| Some((rid(said.row)?, said.plugin))).collect();
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
            self.telemetry.counters.aborts_withheld.add(1);
            let (stream, rid) = (self.telemetry.stream.clone(), rid.to_owned());
            self.telemetry.publish(AbortFailed { stream, rid, by: format!("plugin {plugin}").into(), why });
        }
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
