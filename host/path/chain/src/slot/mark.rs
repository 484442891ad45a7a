//! The mark with which an instance says that its stream is not ready.

use super::telemetry::PluginTelemetry;
use afterbay_batch::Timestamp;
use afterbay_events::event::{PluginNotReady, PluginReady};
use afterbay_runtime::Plugin;
use std::time::{Duration, Instant};

/// The time after which a mark ends that the plugin has not set again. A stream without traffic makes no call in which the
/// plugin could remove its mark.
const MARK_LASTS: Duration = Duration::from_secs(300);

/// The mark of a slot's instance.
#[derive(Default)]
pub(super) struct ReadinessMark {
    /// The reason, and the time at which the mark ends.
    current: Option<(String, Instant)>,
    /// Set while the stream is not ready because of the mark: its beginning. A shadow's mark is never published.
    published: Option<Instant>,
}

impl ReadinessMark {
    /// The reason why the stream is not ready.
    pub(super) fn reason(&self) -> Option<&str> {
        self.published.and(self.current.as_ref()).map(|(reason, _)| reason.as_str())
    }

    /// The time at which the mark ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|(_, ends_at)| *ends_at)
    }

    /// Reads the instance's mark after a call.
    pub(super) fn read(
        &mut self,
        plugin: &mut Plugin,
        is_shadow: bool,
        telemetry: &PluginTelemetry,
        now: Timestamp,
    ) {
        if plugin.take_health_change() {
            let mark = |reason: &str| (reason.to_owned(), now.instant + MARK_LASTS);
            self.current = plugin.not_ready().map(mark);
            self.publish(is_shadow, telemetry, now);
        }
    }

    /// Ends a mark whose time is over.
    pub(super) fn tick(&mut self, telemetry: &PluginTelemetry, now: Timestamp) {
        if self.deadline().is_some_and(|ends_at| ends_at <= now.instant) {
            self.end(telemetry, now);
        }
    }

    /// Ends the mark, as its instance has ended.
    pub(super) fn end(&mut self, telemetry: &PluginTelemetry, now: Timestamp) {
        self.current = None;
        self.publish(false, telemetry, now);
    }

    /// Sets or clears the health condition.
    pub(super) fn publish(&mut self, is_shadow: bool, telemetry: &PluginTelemetry, now: Timestamp) {
        let mark = self.current.as_ref().filter(|_| !is_shadow);
        match (mark, self.published) {
            (Some((reason, _)), began) => {
                telemetry.set_not_ready(reason.clone(), now.system_time());
                if began.is_none() {
                    self.published = Some(now.instant);
                    let why = reason.clone();
                    telemetry.publish(|stream, plugin| PluginNotReady { stream, plugin, why });
                }
            }
            (None, Some(began)) => {
                self.published = None;
                telemetry.clear_not_ready();
                let lasted = now.instant.saturating_duration_since(began);
                let not_ready_ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
                telemetry.publish(|stream, plugin| PluginReady { stream, plugin, not_ready_ms });
            }
            (None, None) => {}
        }
    }
}
