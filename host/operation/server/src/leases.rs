//! Leases: after the client of a request has left, the engine goes on until the lease is over, and then the scheduler is asked to end
//! the request.
//!
//! A stream says when a client leaves and when a request ends. Whoever reads the request meanwhile renews its lease. After a restart,
//! each lease runs its whole time again.

use crate::aborts::Aborts;
use crate::attributes::Attributes;
use crate::mutex::lock;
use crate::refusal::Refusal;
use afterbay_config as config;
use afterbay_events::event::LeaseRefused;
use afterbay_events::{Events, LeaseCounters, Metrics};
use afterbay_stream::{LeaseChange, LeaseSender};
use afterbay_wire::RequestRecord;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two looks for leases that are over.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time until the scheduler is asked again, if it could not be asked.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The leases of a process. Clones share them.
#[derive(Clone)]
pub(crate) struct Leases(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    attributes: Attributes,
    events: Events,
    metrics: Metrics,
}

#[derive(Default)]
struct Table {
    bounds: config::Leases,
    running: HashMap<Key, Lease>,
}

/// The stream and the request's number in the stream's journal.
type Key = (Arc<str>, u64);

/// The lease of a live request whose client has left.
struct Lease {
    rid: String,
    engine: config::Engine,
    /// The engine's own attributes of the request.
    of_engine: Vec<(String, String)>,
    /// The time from the last renewal to the end.
    time: Duration,
    /// `None` while the scheduler is being asked.
    ends: Option<Instant>,
    counters: Arc<LeaseCounters>,
}

/// A lease that was renewed.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Renewed {
    rid: String,
    stream: String,
    /// Seconds until the end, unless somebody renews the lease again.
    ends_in_s: f64,
}

impl Leases {
    pub(crate) fn new(attributes: &Attributes, events: &Events, metrics: &Metrics) -> Leases {
        let (attributes, events, metrics) = (attributes.clone(), events.clone(), metrics.clone());
        Leases(Arc::new(Shared { table: Mutex::default(), attributes, events, metrics }))
    }

    /// Sets the bounds for leases that begin or are renewed from now on.
    pub(crate) fn set_bounds(&self, bounds: config::Leases) {
        lock(&self.0.table).bounds = bounds;
    }

    /// The function by which a stream says that leases begin and end.
    pub(crate) fn sender(&self, stream: &config::Stream) -> LeaseSender {
        let (leases, engine) = (self.clone(), stream.engine);
        let (stream, counters) =
            (Arc::<str>::from(stream.name.as_str()), self.0.metrics.leases(stream.name.as_str()));
        Box::new(move |change| match change {
            LeaseChange::Begun { rid, number, of_engine } => {
                let of_engine = of_engine.to_vec();
                let (rid, counters) = (rid.to_owned(), counters.clone());
                let lease = Lease { rid, engine, of_engine, time: Duration::ZERO, ends: None, counters };
                leases.begin((stream.clone(), number), lease);
            }
            LeaseChange::Ended(number) => {
                lock(&leases.0.table).remove(&(stream.clone(), number));
            }
        })
    }

    fn begin(&self, key: Key, mut lease: Lease) {
        let time = self.time_of(&key.0, &lease);
        let mut table = lock(&self.0.table);
        // The ledger was made again after a panic, or after a hand-over that failed.
        if table.running.contains_key(&key) {
            return;
        }
        let (max_count, count) = (table.bounds.max_count, table.running.len());
        let why = match time.min(table.bounds.max_time) {
            _ if table.bounds.max_time.is_zero() => Some("leases.max_time is 0s".to_owned()),
            _ if count >= max_count => {
                Some(format!("{count} leases run, at most {max_count} may (leases.max_count)"))
            }
            time => {
                lease.time = time;
                None
            }
        };
        lease.ends = Some(Instant::now() + lease.time);
        lease.counters.begun.add(1);
        lease.counters.live.set(lease.counters.live.get() + 1);
        if let Some(why) = why {
            lease.counters.refused.add(1);
            let (stream, rid) = (key.0.as_ref().into(), lease.rid.clone());
            self.0.events.publish(LeaseRefused { stream, rid, why });
        }
        table.running.insert(key, lease);
    }

    /// The time that the request's attribute says now. Zero if there is none, or if it says no time.
    fn time_of(&self, stream: &str, lease: &Lease) -> Duration {
        let attributes = self.0.attributes.of_request(stream, &lease.rid, &lease.of_engine);
        let said = attributes.iter().find(|(name, _)| name == RequestRecord::LEASE);
        said.and_then(|(_, text)| config::parse_duration(text)).unwrap_or_default()
    }

    /// Renews the running leases of the requests with this rid or this id: each runs its whole time again.
    pub(crate) fn renew(&self, id: &str) -> Result<Vec<Renewed>, Refusal> {
        let mut table = lock(&self.0.table);
        let Table { bounds, running } = &mut *table;
        let is_meant = |lease: &Lease| lease.ends.is_some() && lease.engine.has_id(&lease.rid, id);
        let mut renewed = Vec::new();
        for ((stream, _), lease) in running.iter_mut().filter(|(_, lease)| is_meant(lease)) {
            lease.time = self.time_of(stream, lease).min(bounds.max_time);
            lease.ends = Some(Instant::now() + lease.time);
            lease.counters.renewed.add(1);
            let (rid, stream) = (lease.rid.clone(), stream.to_string());
            renewed.push(Renewed { rid, stream, ends_in_s: lease.time.as_secs_f64() });
        }
        if renewed.is_empty() {
            let why = format!(
                "no lease runs for {id:?}: its client has not left, it asked for no lease, or it has ended"
            );
            return Err(Refusal::not_found("no_lease", why));
        }
        renewed.sort_by(|one, other| one.rid.cmp(&other.rid));
        Ok(renewed)
    }

    /// Asks schedulers to end the requests whose leases are over, until the task is dropped.
    pub(crate) async fn run(self, aborts: Aborts) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            for (key, rid) in lock(&self.0.table).take_due(Instant::now()) {
                let (leases, aborts) = (self.clone(), aborts.clone());
                // A stream that does not answer keeps no other lease from its end.
                tokio::spawn(async move {
                    let is_asked = aborts.end_lease(&key.0, &rid, key.1).await;
                    lock(&leases.0.table).asked(&key, is_asked, Instant::now());
                });
            }
        }
    }

    /// Forgets the leases of a stream that has ended. The journal has them for the next start.
    pub(crate) fn remove(&self, stream: &str) {
        lock(&self.0.table).forget(|of| of == stream);
    }

    /// Forgets all leases, after all streams have ended.
    pub(crate) fn clear(&self) {
        lock(&self.0.table).forget(|_| true);
    }
}

impl Table {
    fn take_due(&mut self, now: Instant) -> Vec<(Key, String)> {
        let due = self.running.iter_mut().filter(|(_, lease)| lease.ends.is_some_and(|ends| ends <= now));
        let take = |(key, lease): (&Key, &mut Lease)| {
            lease.ends = None;
            (key.clone(), lease.rid.clone())
        };
        due.map(take).collect()
    }

    /// The lease of a request that the scheduler is to end is over. If nobody could ask the scheduler, it is asked again.
    fn asked(&mut self, key: &Key, is_asked: bool, now: Instant) {
        if is_asked {
            self.remove(key);
        } else if let Some(lease) = self.running.get_mut(key) {
            lease.ends = Some(now + RETRY_AFTER);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(lease) = self.running.remove(key) {
            lease.counters.live.set(lease.counters.live.get().saturating_sub(1));
        }
    }

    fn forget(&mut self, is_gone: impl Fn(&str) -> bool) {
        let gone: Vec<Key> = self.running.keys().filter(|(stream, _)| is_gone(stream)).cloned().collect();
        gone.iter().for_each(|key| self.remove(key));
    }
}

#[cfg(test)]
mod tests;
