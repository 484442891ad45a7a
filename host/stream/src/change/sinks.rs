//! Sinks that come to a running stream, and those that leave it.
//!
//! A further sink gets the requests that begin from then on. One that is left out keeps those that it has until they end, is sent
//! all that waits for it, and is gone then. Which requests are whose is in `route/epochs.rs`; that a next start knows it is
//! written before anything is shared out so.

use crate::build::{Plan, PlannedSink, outbox_options, push_options};
use crate::path::Path;
use crate::report::Report;
use crate::resume::Resume;
use crate::send::Send;
use crate::sink::Sink;
use crate::{Control, SinkSetup, StartError};
use afterbay_events::event::{SinkAdded, SinkRemoved};
use afterbay_journal::FrameNo;
use afterbay_outbox::{Joins, Outbox};
use afterbay_sockets::{CreditOptions, Push, PushError, PushOptions, TokenRange};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Sinks of a stream, with those that leave; then no further one is taken. One reload brings up to 64.
const SINKS_MAX: usize = 128;
/// Epochs; then there is no other before the oldest has passed.
const EPOCHS_MAX: usize = 64;

/// A sink of a stream that changes.
#[expect(clippy::large_enum_variant, reason = "there are a few, at a reload")]
pub enum SinkChange {
    /// That of this name goes on.
    Stays(String),
    /// One more.
    New(NewSink),
}

/// A sink with its socket, which is given nothing yet and connects only once it is the stream's.
pub struct NewSink {
    planned: PlannedSink,
    push: Push,
}

impl NewSink {
    /// Makes its socket, off the stream's thread.
    pub fn new(stream: &str, setup: SinkSetup, control: &Control) -> Result<NewSink, StartError> {
        let planned = PlannedSink::new(setup);
        let push = control.sockets.connect(&planned, 0, Instant::now());
        let push = push.map_err(|error| StartError::Connect { stream: stream.to_owned(), error })?;
        Ok(NewSink { planned, push })
    }
}

/// Makes the sockets of a stream's sinks, on any thread, and says what sinks there are.
pub(crate) struct Sockets {
    registry: mio::Registry,
    next_token: AtomicUsize,
    there: Mutex<There>,
}

#[derive(Default)]
struct There {
    /// Each one's name, whether it leaves, and its page.
    sinks: Vec<(String, bool, Option<PathBuf>)>,
    epochs: usize,
}

impl Sockets {
    pub(crate) fn new(registry: mio::Registry) -> Sockets {
        Sockets { registry, next_token: AtomicUsize::new(0), there: Mutex::default() }
    }

    pub(crate) fn registry(&self) -> &mio::Registry {
        &self.registry
    }

    /// Tokens before this one are others'.
    pub(crate) fn give_from(&self, token: usize) {
        self.next_token.store(token, Ordering::Relaxed);
    }

    /// A sink's socket, whose reader has taken what was sent up to this number.
    pub(crate) fn connect(&self, sink: &PlannedSink, taken: u64, now: Instant) -> Result<Push, PushError> {
        let credit = sink.config.credit.clone().map(CreditOptions::new);
        let options = PushOptions { taken, credit, ..push_options() };
        let tokens = TokenRange { first: self.next_token.fetch_add(1, Ordering::Relaxed), count: 1 };
        Push::connect(&self.registry, tokens, &sink.connect, options, now)
    }

    /// What there is: each sink's name, whether it leaves, and its page; and how many epochs.
    pub(crate) fn tell(&self, sinks: Vec<(String, bool, Option<PathBuf>)>, epochs: usize) {
        *self.lock() = There { sinks, epochs };
    }

    /// Why requests cannot be shared out otherwise now, with these further sinks, for people.
    pub(crate) fn refuses(&self, further: &[SinkSetup]) -> Option<String> {
        let There { sinks, epochs } = &*self.lock();
        if sinks.len() >= SINKS_MAX && !further.is_empty() {
            return Some(format!(
                "sink: it has {} with those that leave, must have less than {SINKS_MAX} for a further one",
                sinks.len()
            ));
        }
        if *epochs >= EPOCHS_MAX {
            return Some(format!(
                "sink: requests under way are shared out in {epochs} ways, must be in less than {EPOCHS_MAX} for another: wait until the oldest have ended"
            ));
        }
        further.iter().find_map(|SinkSetup { config, .. }| {
            let name = config.name.as_str();
            if sinks.iter().any(|(known, leaves, _)| known == name && *leaves) {
                return Some(format!(
                    "sink {name:?}: that of this name that was removed has yet to get the rest of its requests: wait until it is gone, or take another name"
                ));
            }
            let page = config.credit.as_ref()?;
            let (other, ..) = sinks.iter().find(|(.., credit)| credit.as_ref() == Some(page))?;
            Some(format!(
                "sink {name:?}: credit: {page:?} is the page of sink {other:?} until that is gone, and one page counts for one sink"
            ))
        })
    }

    fn lock(&self) -> MutexGuard<'_, There> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From now on these are the sinks, in the order of the plan's configuration; the others leave.
pub(super) fn change(sinks: Vec<SinkChange>, plan: &mut Plan, path: &mut Path, report: &mut Report) {
    let gone_on = path.keep.gone_on();
    let (mut places, mut further) = (Vec::new(), Vec::new());
    for change in sinks {
        match change {
            SinkChange::Stays(name) => {
                let is_it = |sink: &PlannedSink| sink.config.name.as_str() == name;
                let stays = |place: &usize| !path.route.leaves(*place) && is_it(&plan.sinks[*place]);
                places.extend((0..plan.sinks.len()).find(stays));
            }
            SinkChange::New(new) => {
                places.push(plan.sinks.len());
                further.push(new.planned.name.clone());
                add(new, gone_on, plan, path, report);
            }
        }
    }
    for sink in &mut plan.sinks {
        if let Some(config) = plan.config.sinks.iter().find(|config| config.name == sink.config.name) {
            sink.config.queue = config.queue;
        }
    }
    for (place, sink) in plan.sinks.iter().enumerate() {
        if !places.contains(&place) && !path.route.leaves(place) {
            plan.tell_leaving(sink, true);
        }
    }
    // What an earlier run has kept and not accounted is as it was then.
    let through = if path.keep.has_unaccounted() { path.began_after.max(gone_on) } else { gone_on };
    path.route.begin(&places, (path.keep.next_request(), FrameNo(through.0 + 1)));
    // Before the journal has anything that was shared out so.
    tell_shares(plan, path);
    further.iter().for_each(|name| path.keep.taken(name, 0, gone_on, None));
    path.keep.flush();
    follow(plan, path);
}

/// Where joined rows may end for a sink of the configuration from now on.
pub(crate) fn set_joins(name: &str, joins: &Joins, plan: &mut Plan, path: &mut Path) {
    let is_it = |sink: &PlannedSink| sink.config.name.as_str() == name;
    let Some(place) =
        (0..plan.sinks.len()).find(|place| !path.route.leaves(*place) && is_it(&plan.sinks[*place]))
    else {
        return;
    };
    plan.sinks[place].joins = joins.clone();
    let joins_under_pressure = plan.sinks[place].joins_under_pressure(&plan.config);
    path.sinks[place].outbox.set_joins(joins.clone());
    path.sinks[place].send.set_joins(joins_under_pressure);
    path.holds.set_joins(plan.holds());
}

/// A further sink, that has all up to this frame.
fn add(new: NewSink, gone_on: FrameNo, plan: &mut Plan, path: &mut Path, report: &mut Report) {
    let (now, NewSink { planned, push }) = (Instant::now(), new);
    let (stream, name) = (plan.telemetry.stream.clone(), planned.config.name.as_str());
    report.add_sink(name, plan.metrics.sink(&stream, name));
    let outbox = Outbox::new(outbox_options(&plan.config, &planned), 0, gone_on.0);
    let send = Send::new(push, planned.joins_under_pressure(&plan.config), now);
    let resume = Resume::of_another(&planned.name, gone_on);
    path.sinks.push(plan.sink(planned.name.clone(), path.sinks.len(), outbox, (send, resume), &path.keep));
    path.route.add(planned.target());
    let (sink, endpoint) = (name.into(), planned.connect.to_string());
    plan.telemetry.publish(SinkAdded { stream, sink, endpoint });
    plan.sinks.push(planned);
}

/// Lets go of the sinks that leave and have all they were to get, and of how requests were shared out before where nobody needs
/// it. Between two batches.
pub(crate) fn let_go(plan: &mut Plan, path: &mut Path, report: &mut Report) {
    if path.keep.has_unaccounted() {
        return;
    }
    let live = path.ledger.awaited();
    let mut gone = Vec::new();
    for place in (0..plan.sinks.len()).rev() {
        let is_done = path.sinks[place].is_drained() && !path.route.is_awaited(place, &live);
        if !path.route.leaves(place) || !is_done {
            continue;
        }
        let sink = report.remove_sink(place, &path.remove_sink(place));
        plan.metrics.forget_sink(&plan.telemetry.stream, &sink);
        gone.push((plan.sinks.remove(place).name, sink));
    }
    let taken = path.sinks.iter().map(Sink::taken_through).min().unwrap_or_default();
    path.route.pass(&live, path.keep.gone_on(), taken);
    // First, so that a start does not look for one that the journal has forgotten.
    tell_shares(plan, path);
    gone.iter().for_each(|(name, _)| path.keep.forget(name));
    follow(plan, path);
    for (_, sink) in gone {
        plan.telemetry.publish(SinkRemoved { stream: plan.telemetry.stream.clone(), sink });
    }
}

/// What hangs on which sinks there are.
fn follow(plan: &Plan, path: &mut Path) {
    path.ledger.set_ways(plan.ways(&path.route));
    path.holds.set_joins(plan.holds());
    plan.tell_sinks(&path.route);
}

/// For the next start, where it is to know other than it does. What the disk refuses is tried again with the next look.
pub(crate) fn tell_shares(plan: &mut Plan, path: &Path) {
    let leaving = plan.sinks.iter().enumerate().filter(|(place, _)| path.route.leaves(*place));
    let shares = path.route.to_shares(leaving.map(|(_, sink)| sink.to_leaving()).collect());
    // Names and numbers are always JSON.
    let shares = shares.and_then(|shares| serde_json::to_string(&shares).ok()).unwrap_or_default();
    if shares != plan.shares && path.keep.set_shares(&shares) {
        plan.shares = shares;
    }
}
