//! How the stream stands, for plugins that are granted `signals`: its queues, its readers, the scheduler's load.
//!
//! Owns when it is looked at and what counts as a change. What a plugin does about it is the plugin's.

use afterbay_delivery::{Doing, Sink as DeliverySink};
use afterbay_ledger::Ledger;
use afterbay_persist::Persister;
use afterbay_runtime::signals::{Load, Queue, Sink, SinkState, Snapshot};
use std::time::{Duration, Instant};

/// Says what the scheduler says of itself; `None` where no source has said anything. It must not block.
pub type SchedulerLoad = Box<dyn Fn() -> Option<Load> + Send>;

/// How often it is looked at, where some plugin wants to know.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Over how long a sink's rate is taken.
const RATE_OVER: Duration = Duration::from_secs(1);
/// The share by which a figure of the scheduler's must move to be a change.
const MOVED: f64 = 0.1;

/// When and how a stream is looked at.
pub(crate) struct Pressure {
    scheduler: SchedulerLoad,
    look_at: Instant,
    /// What plugins were told last.
    told: Option<Snapshot>,
    /// Of each sink: since when its rate is taken, the rows that had left by then, and the rate before.
    rates: Vec<(Instant, u64, f64)>,
}

impl Pressure {
    pub(crate) fn new(scheduler: SchedulerLoad, now: Instant) -> Pressure {
        Pressure { scheduler, look_at: now, told: None, rates: Vec::new() }
    }

    /// When to look again.
    pub(crate) fn deadline(&self) -> Instant {
        self.look_at
    }

    /// How things stand, and whether that is to be told.
    pub(crate) fn look(
        &mut self,
        persister: &Persister,
        sinks: &[DeliverySink],
        ledger: &Ledger,
        now: Instant,
    ) -> (Snapshot, bool) {
        self.look_at = now + LOOK_EVERY;
        self.rates.resize(sinks.len(), (now, 0, 0.0));
        let (frames, bytes) = persister.backlog_size();
        let ingress = Queue {
            frames: frames as u64,
            rows: 0,
            bytes,
            oldest_age_ms: persister.oldest_received_at().map_or(0, |at| age_ms(at, now)),
        };
        let sinks = sinks.iter().zip(&mut self.rates).map(|(sink, rate)| {
            let left = sink.outbox.totals().rows_left;
            let over = now.saturating_duration_since(rate.0);
            if over >= RATE_OVER {
                *rate = (now, left, left.saturating_sub(rate.1) as f64 / over.as_secs_f64());
            }
            let oldest = sink.outbox.oldest();
            let (spilled, spilled_bytes) = sink.spilled();
            let socket = sink.send.socket();
            Sink {
                name: sink.name().to_owned(),
                state: match sink.send.doing(oldest, now) {
                    Doing::KeepsUp => SinkState::KeepingUp,
                    Doing::Behind => SinkState::Behind,
                    Doing::Stalled => SinkState::Stalled,
                    Doing::Away => SinkState::Away,
                },
                backlog: Queue {
                    frames: (sink.outbox.frames() + spilled) as u64,
                    rows: sink.outbox.rows() as u64,
                    bytes: sink.outbox.bytes() + spilled_bytes,
                    oldest_age_ms: oldest.map_or(0, |at| age_ms(at, now)),
                },
                backlog_tokens: sink.outbox.tokens(),
                lag_frames: socket.finished().is_some().then(|| socket.unfinished().frames as u64),
                rows_per_second: rate.2,
                rows_joined: sink.outbox.totals().rows_joined,
            }
        });
        let sinks = sinks.collect();
        let live_requests = ledger.live() as u64;
        let snapshot = Snapshot { ingress, sinks, live_requests, scheduler: (self.scheduler)() };
        let is_news = self.told.as_ref().is_none_or(|told| has_changed(told, &snapshot));
        if is_news {
            self.told = Some(snapshot.clone());
        }
        (snapshot, is_news)
    }
}

fn age_ms(at: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX)
}

/// A sink does otherwise, or the scheduler's load has moved by a tenth.
fn has_changed(told: &Snapshot, now: &Snapshot) -> bool {
    let sinks = told.sinks.iter().zip(&now.sinks);
    if told.sinks.len() != now.sinks.len() || sinks.into_iter().any(|(told, now)| told.state != now.state) {
        return true;
    }
    match (&told.scheduler, &now.scheduler) {
        (None, None) => false,
        (Some(told), Some(now)) => {
            let counts = [
                (told.running, now.running),
                (told.waiting, now.waiting),
                (told.used_tokens, now.used_tokens),
                (told.total_tokens, now.total_tokens),
                (told.retractions, now.retractions),
            ];
            let counts = counts.map(|(told, now)| (told.map(|it| it as f64), now.map(|it| it as f64)));
            told.stale != now.stale
                || counts.into_iter().any(|(told, now)| has_moved(told, now))
                || has_moved(told.gen_throughput, now.gen_throughput)
                || has_moved(told.token_usage, now.token_usage)
        }
        _ => true,
    }
}

fn has_moved(told: Option<f64>, now: Option<f64>) -> bool {
    match (told, now) {
        (Some(told), Some(now)) => told != now && (now - told).abs() >= told.abs().max(now.abs()) * MOVED,
        (told, now) => told.is_some() != now.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(running: u64, token_usage: f64) -> Load {
        Load {
            age_ms: 1,
            stale: false,
            running: Some(running),
            waiting: None,
            used_tokens: None,
            total_tokens: None,
            token_usage: Some(token_usage),
            gen_throughput: None,
            retractions: None,
        }
    }

    fn stands(state: SinkState, scheduler: Option<Load>) -> Snapshot {
        let queue = Queue { frames: 0, rows: 0, bytes: 0, oldest_age_ms: 0 };
        let sink = Sink {
            name: "reader".into(),
            state,
            backlog: queue,
            backlog_tokens: 0,
            lag_frames: None,
            rows_per_second: 0.0,
            rows_joined: 0,
        };
        Snapshot { ingress: queue, sinks: vec![sink], live_requests: 3, scheduler }
    }

    #[test]
    fn a_tenth_of_the_scheduler_s_load_is_a_change_and_less_is_none() {
        let before = stands(SinkState::KeepingUp, Some(load(100, 0.50)));
        let after = |load| has_changed(&before, &stands(SinkState::KeepingUp, load));
        assert!(!after(Some(load(109, 0.54))));
        assert!(after(Some(load(112, 0.50))));
        assert!(after(Some(load(100, 0.56))));
        assert!(after(Some(load(0, 0.50))));
        assert!(after(None));
        assert!(after(Some(Load { stale: true, ..load(100, 0.50) })));
        assert!(after(Some(Load { waiting: Some(0), ..load(100, 0.50) })), "a value that was not there");
    }

    #[test]
    fn a_sink_that_does_otherwise_is_a_change_and_one_that_has_more_to_do_is_none() {
        let before = stands(SinkState::KeepingUp, None);
        assert!(has_changed(&before, &stands(SinkState::Behind, None)));
        let mut more = before.clone();
        (more.sinks[0].backlog.rows, more.live_requests) = (1000, 9);
        assert!(!has_changed(&before, &more));
    }
}
