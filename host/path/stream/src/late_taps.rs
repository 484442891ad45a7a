//! Taps that start while the stream runs already, because the process before still has their endpoints.

use crate::delivery::{Tap, TapSetup};
use afterbay_events::event::TapNotStarted;
use afterbay_events::{Metrics, StreamTelemetry};
use std::time::{Duration, Instant};

/// Time between two attempts to start a tap.
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Time after which a tap that cannot start is reported. Attempts go on.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// The taps that have not started.
#[derive(Default)]
pub(crate) struct LateTaps {
    taps: Vec<TapSetup>,
    metrics: Option<Metrics>,
    /// The time of the first attempt, and whether its failure was reported since.
    since: Option<(Instant, bool)>,
    retry_at: Option<Instant>,
}

impl LateTaps {
    pub(crate) fn new(taps: Vec<TapSetup>, metrics: Metrics) -> LateTaps {
        LateTaps { taps, metrics: Some(metrics), since: None, retry_at: None }
    }

    /// Forgets the taps that this function does not name.
    pub(crate) fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.taps.retain(|tap| stays(tap.config.name.as_str()));
    }

    /// The time at which [`LateTaps::start`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Starts the taps whose endpoints are free.
    pub(crate) fn start(&mut self, taps: &mut Vec<Tap>, telemetry: &StreamTelemetry, now: Instant) {
        let Some(metrics) = self.metrics.as_ref().filter(|_| !self.taps.is_empty()) else { return };
        if self.retry_at.is_some_and(|at| at > now) {
            return;
        }
        let (since, is_reported) = self.since.get_or_insert((now, false));
        let is_overdue = !*is_reported && now.saturating_duration_since(*since) >= REPORT_AFTER;
        *is_reported |= is_overdue;
        self.taps.retain(|tap| match Tap::start(tap.clone(), telemetry.clone(), metrics, now) {
            Ok(started) => {
                taps.push(started);
                false
            }
            Err(error) => {
                if is_overdue {
                    let (stream, tap) = (telemetry.stream.clone(), tap.config.name.clone());
                    telemetry.publish(TapNotStarted { stream, tap, why: error.to_string() });
                }
                true
            }
        });
        self.retry_at = (!self.taps.is_empty()).then_some(now + RETRY_EVERY);
    }
}
