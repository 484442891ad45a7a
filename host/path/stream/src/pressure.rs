//! The pressure snapshot for plugins that are granted `signals`: the stream's queues, its readers, and the scheduler's load.
//!
//! Owns the times of the snapshots, and decides which difference is a change that plugins are called for. Each change is recorded in
//! the journal as a frame of Afterbay's own, so that recorded traffic has its signals.

use crate::delivery::Sink as DeliverySink;
use crate::written_signals;
use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::ledger::Ledger;
use afterbay_batch::{Received, Timestamp};
use afterbay_events::ReaderState;
use afterbay_runtime::signals::{Load, Queue, Sink, SinkState, Snapshot};
use bytes::Bytes;
use std::time::{Duration, Instant};

/// Returns the scheduler's load; `None` if no source has reported any. Must not block.
pub type SchedulerLoad = Box<dyn Fn() -> Option<Load> + Send>;

/// Time between two snapshots.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(100);
/// Least relative difference in a value of the scheduler that is a change.
const CHANGE_MIN: f64 = 0.1;

/// Takes the snapshots of one stream.
pub(crate) struct Pressure {
    scheduler: SchedulerLoad,
    snapshot_at: Instant,
    /// The snapshot that plugins were last called for.
    last: Option<Snapshot>,
    /// The message with the last change, until the journal has room for it.
    unrecorded: Option<Bytes>,
}

impl Pressure {
    pub(crate) fn new(scheduler: SchedulerLoad, now: Instant) -> Pressure {
        Pressure { scheduler, snapshot_at: now, last: None, unrecorded: None }
    }

    /// The time of the next snapshot.
    pub(crate) fn deadline(&self) -> Instant {
        self.snapshot_at
    }

    /// Takes a snapshot. Returns also whether it differs from the one that plugins were last called for.
    pub(crate) fn snapshot(
        &mut self,
        frame_log: &FrameLog,
        sinks: &[DeliverySink],
        ledger: &Ledger,
        now: Instant,
    ) -> (Snapshot, bool) {
        self.snapshot_at = now + SNAPSHOT_EVERY;
        let (frames, bytes) = frame_log.backlog_size();
        let ingress = Queue {
            frames: frames as u64,
            rows: 0,
            bytes,
            oldest_age_ms: frame_log.oldest_received_at().map_or(0, |at| age_ms(at, now)),
        };
        let sinks = sinks.iter().map(|sink| {
            let oldest = sink.outbox.oldest();
            let (spilled, spilled_bytes) = sink.spilled();
            let socket = &sink.sender.push;
            Sink {
                name: sink.name.to_owned(),
                state: match sink.sender.state(oldest, now) {
                    ReaderState::KeepingUp => SinkState::KeepingUp,
                    ReaderState::Behind => SinkState::Behind,
                    ReaderState::Stalled => SinkState::Stalled,
                    ReaderState::Away => SinkState::Away,
                },
                backlog: Queue {
                    frames: (sink.outbox.frames() + spilled) as u64,
                    rows: sink.outbox.rows() as u64,
                    bytes: sink.outbox.bytes() + spilled_bytes,
                    oldest_age_ms: oldest.map_or(0, |at| age_ms(at, now)),
                },
                backlog_tokens: sink.outbox.tokens(),
                lag_frames: socket.finished().is_some().then(|| socket.unfinished().frames as u64),
            }
        });
        let sinks = sinks.collect();
        let live_requests = ledger.live() as u64;
        let snapshot = Snapshot { ingress, sinks, live_requests, scheduler: (self.scheduler)() };
        let is_change = self.last.as_ref().is_none_or(|last| has_changed(last, &snapshot));
        if is_change {
            self.last = Some(snapshot.clone());
            self.unrecorded = written_signals::record(&snapshot);
        }
        (snapshot, is_change)
    }

    /// Whether a change is to be recorded.
    pub(crate) fn has_unrecorded(&self) -> bool {
        self.unrecorded.is_some()
    }

    /// The frame that records the last change, once.
    pub(crate) fn take_unrecorded(&mut self, now: Timestamp) -> Option<Received> {
        Some(Received { bytes: self.unrecorded.take()?, at: now })
    }
}

fn age_ms(at: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX)
}

/// Whether the state of a sink has changed, or a value of the scheduler by a tenth.
fn has_changed(last: &Snapshot, now: &Snapshot) -> bool {
    let mut sinks = last.sinks.iter().zip(&now.sinks);
    if last.sinks.len() != now.sinks.len() || sinks.any(|(last, now)| last.state != now.state) {
        return true;
    }
    match (&last.scheduler, &now.scheduler) {
        (None, None) => false,
        (Some(last), Some(now)) => {
            let counts = [(last.running, now.running), (last.waiting, now.waiting)];
            let counts = counts.map(|(last, now)| (last.map(|it| it as f64), now.map(|it| it as f64)));
            last.stale != now.stale
                || counts.into_iter().any(|(last, now)| has_moved(last, now))
                || has_moved(last.kv_cache_usage, now.kv_cache_usage)
        }
        _ => true,
    }
}

fn has_moved(last: Option<f64>, now: Option<f64>) -> bool {
    match (last, now) {
        (Some(last), Some(now)) => {
            last != now && (now - last).abs() >= last.abs().max(now.abs()) * CHANGE_MIN
        }
        (last, now) => last.is_some() != now.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(running: u64, kv_cache_usage: f64) -> Load {
        Load {
            age_ms: 1,
            stale: false,
            running: Some(running),
            waiting: None,
            kv_cache_usage: Some(kv_cache_usage),
        }
    }

    fn snapshot(state: SinkState, scheduler: Option<Load>) -> Snapshot {
        let queue = Queue { frames: 0, rows: 0, bytes: 0, oldest_age_ms: 0 };
        let sink = Sink { name: "reader".into(), state, backlog: queue, backlog_tokens: 0, lag_frames: None };
        Snapshot { ingress: queue, sinks: vec![sink], live_requests: 3, scheduler }
    }

    #[test]
    fn a_tenth_of_the_schedulers_load_is_a_change_and_less_is_not() {
        let before = snapshot(SinkState::KeepingUp, Some(load(100, 0.50)));
        let after = |load| has_changed(&before, &snapshot(SinkState::KeepingUp, load));
        assert!(!after(Some(load(109, 0.54))));
        assert!(after(Some(load(112, 0.50))));
        assert!(after(Some(load(100, 0.56))));
        assert!(after(Some(load(0, 0.50))));
        assert!(after(None));
        assert!(after(Some(Load { stale: true, ..load(100, 0.50) })));
        assert!(after(Some(Load { waiting: Some(0), ..load(100, 0.50) })), "a new value");
    }

    #[test]
    fn another_state_of_a_sink_is_a_change_and_a_longer_backlog_is_not() {
        let before = snapshot(SinkState::KeepingUp, None);
        assert!(has_changed(&before, &snapshot(SinkState::Behind, None)));
        let mut more = before.clone();
        (more.sinks[0].backlog.rows, more.live_requests) = (1000, 9);
        assert!(!has_changed(&before, &more));
    }
}
