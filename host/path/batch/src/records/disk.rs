//! A disk that refuses writes: since when, with what effect, and what the operator is told.

use crate::Timestamp;
use afterbay_config::OnError;
use afterbay_events::event::{JournalHealed, JournalWriteFailed};
use afterbay_events::{Health, Severity, StreamTelemetry};
use std::time::{Duration, Instant};

/// Time between two probes of a failed disk.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// The state of the disk as the journal's writes show it.
pub(crate) struct Disk {
    failure: Option<DiskFailure>,
    telemetry: StreamTelemetry,
    health: Health,
}

/// A failure that began with a refused write and lasts until a write succeeds.
pub(crate) struct DiskFailure {
    since: Instant,
    /// Frames that were forwarded without being persisted.
    pub(crate) skipped_frames: u64,
    /// Whether the disk refused a frame, not only records about frames.
    refuses_frames: bool,
    /// Whether frames were sent without a record of that.
    pub(crate) has_unrecorded: bool,
    probe_at: Instant,
}

impl Disk {
    pub(crate) fn new(telemetry: StreamTelemetry, health: Health) -> Disk {
        Disk { failure: None, telemetry, health }
    }

    /// Notes a refused write. The first one of a failure is reported, with its effect on the stream.
    pub(crate) fn fail(
        &mut self,
        effect: OnError,
        refuses_frames: bool,
        error: &str,
        now: Timestamp,
    ) -> &mut DiskFailure {
        let failure = self.failure.get_or_insert_with(|| {
            let stream = self.telemetry.stream.clone();
            let (on_error, severity, effect) = match effect {
                OnError::Stop => {
                    ("stop", Severity::NotReady, "nothing is received or sent that cannot be recorded")
                }
                OnError::Forward => ("forward", Severity::Degraded, "frames are forwarded and not persisted"),
            };
            let why = format!("{effect}: {error}");
            self.health.set(&health_key(&stream), severity, why.clone(), now.system_time());
            self.telemetry.counters.journal_failing.set(1);
            self.telemetry.publish(JournalWriteFailed { stream, on_error, why });
            DiskFailure {
                since: now.instant,
                skipped_frames: 0,
                refuses_frames,
                has_unrecorded: false,
                probe_at: now.instant + PROBE_EVERY,
            }
        });
        failure.refuses_frames |= refuses_frames;
        failure
    }

    /// Ends the failure, if there is one, and reports the end.
    pub(crate) fn heal(&mut self, now: Instant) {
        let Some(failure) = self.failure.take() else { return };
        let stream = self.telemetry.stream.clone();
        self.health.clear(&health_key(&stream));
        self.telemetry.counters.journal_failing.set(0);
        let failing = now.saturating_duration_since(failure.since);
        let failing_ms = u64::try_from(failing.as_millis()).unwrap_or(u64::MAX);
        self.telemetry.publish(JournalHealed { stream, failing_ms, skipped_frames: failure.skipped_frames });
    }

    /// The time of the next probe.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        self.failure.as_ref().map(|failure| failure.probe_at)
    }

    /// Whether a probe is due; schedules the next one. The result says whether the disk must accept a frame to have
    /// recovered.
    pub(crate) fn take_due_probe(&mut self, now: Instant) -> Option<bool> {
        let failure = self.failure.as_mut().filter(|failure| failure.probe_at <= now)?;
        failure.probe_at = now + PROBE_EVERY;
        Some(failure.refuses_frames)
    }
}

fn health_key(stream: &str) -> String {
    format!("journal:{stream}")
}
