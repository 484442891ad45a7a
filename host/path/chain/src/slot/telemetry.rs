//! The events, counters and health conditions of one plugin.

use crate::setup::ChainTelemetry;
use afterbay_batch::ledger::Ledger;
use afterbay_events::event::PluginLog;
use afterbay_events::{Event, Health, Name, PluginCounters, Severity, StreamTelemetry};
use afterbay_runtime::{Level, Plugin};
use std::sync::Arc;
use std::time::SystemTime;

/// The outputs for the operator, with the plugin's name.
pub(super) struct PluginTelemetry {
    pub(super) plugin: Name,
    pub(super) events: StreamTelemetry,
    pub(super) counters: Arc<PluginCounters>,
    pub(super) health: Health,
}

impl PluginTelemetry {
    pub(super) fn new(plugin: Name, telemetry: &ChainTelemetry) -> PluginTelemetry {
        let ChainTelemetry { stream, metrics, health } = telemetry;
        let counters = metrics.plugin(&stream.stream, &plugin);
        PluginTelemetry { plugin, events: stream.clone(), counters, health: health.clone() }
    }

    /// Publishes the event that `event` makes from the names of the stream and the plugin.
    pub(super) fn publish<E: Into<Event>>(&self, event: impl FnOnce(Name, Name) -> E) {
        self.events.publish(event(self.events.stream.clone(), self.plugin.clone()));
    }

    /// Publishes the lines that the instance has logged since the last call.
    pub(super) fn publish_log(&self, plugin: &mut Plugin, ledger: &Ledger) {
        if !plugin.has_log() {
            return;
        }
        for line in plugin.drain_log() {
            let rid = line.request.and_then(|number| ledger.rid_of(number)).map(str::to_owned);
            let severity = match line.level {
                Level::Debug => tracing::Level::DEBUG,
                Level::Info => tracing::Level::INFO,
                Level::Warn => tracing::Level::WARN,
                Level::Error => tracing::Level::ERROR,
            };
            let line = line.message;
            self.publish(|stream, plugin| PluginLog { stream, plugin, severity, rid, line });
        }
    }

    /// Sets the condition of a plugin that is out of the chain.
    pub(super) fn set_condition(&self, severity: Severity, text: String, now: SystemTime) {
        self.health.set(&self.condition_key(), severity, text, now);
    }

    pub(super) fn clear_condition(&self) {
        self.health.clear(&self.condition_key());
    }

    /// Sets the condition of a plugin whose last reload failed.
    pub(super) fn set_reload_condition(&self, text: String, now: SystemTime) {
        self.health.degraded(&self.reload_condition_key(), text, now);
    }

    pub(super) fn clear_reload_condition(&self) {
        self.health.clear(&self.reload_condition_key());
    }

    /// Sets the condition of a stream that the plugin marks as not ready.
    pub(super) fn set_not_ready(&self, reason: String, now: SystemTime) {
        self.health.not_ready(&self.mark_key(), reason, now);
    }

    pub(super) fn clear_not_ready(&self) {
        self.health.clear(&self.mark_key());
    }

    fn mark_key(&self) -> String {
        format!("plugin-mark:{}:{}", self.events.stream, self.plugin)
    }

    fn condition_key(&self) -> String {
        format!("plugin:{}:{}", self.events.stream, self.plugin)
    }

    fn reload_condition_key(&self) -> String {
        format!("plugin-reload:{}:{}", self.events.stream, self.plugin)
    }
}
