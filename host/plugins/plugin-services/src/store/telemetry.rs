//! The events, metrics and health condition of one store.

use afterbay_events::event::{PluginStoreDamaged, PluginStoreFailed, PluginStoreHealed};
use afterbay_events::{Events, Health, Metrics, StoreCounters};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The outputs for the operator.
#[derive(Clone)]
pub struct StoreTelemetry {
    /// The events of the process.
    pub events: Events,
    /// The metrics of the process.
    pub metrics: Metrics,
    /// The health conditions of the process.
    pub health: Health,
}

/// The outputs of one store.
pub(crate) struct Reports {
    plugin: String,
    telemetry: Option<StoreTelemetry>,
    /// Written under the lock of the values.
    pub(crate) counters: Arc<StoreCounters>,
}

impl Reports {
    pub(crate) fn new(plugin: &str, telemetry: Option<StoreTelemetry>) -> Reports {
        let counters = telemetry.as_ref().map(|telemetry| telemetry.metrics.store(plugin));
        Reports { plugin: plugin.to_owned(), telemetry, counters: counters.unwrap_or_default() }
    }

    pub(crate) fn failed(&self, why: &str) {
        let Some(StoreTelemetry { events, health, .. }) = &self.telemetry else { return };
        self.counters.failing.set(1);
        health.degraded(&self.health_key(), why, SystemTime::now());
        events.publish(PluginStoreFailed { plugin: self.plugin.as_str().into(), why: why.to_owned() });
    }

    pub(crate) fn healed(&self, failing: Duration) {
        let Some(StoreTelemetry { events, health, .. }) = &self.telemetry else { return };
        self.counters.failing.set(0);
        health.clear(&self.health_key());
        let failing_ms = u64::try_from(failing.as_millis()).unwrap_or(u64::MAX);
        events.publish(PluginStoreHealed { plugin: self.plugin.as_str().into(), failing_ms });
    }

    pub(crate) fn damaged(&self, cut_bytes: u64, kept: String) {
        let Some(StoreTelemetry { events, .. }) = &self.telemetry else { return };
        events.publish(PluginStoreDamaged { plugin: self.plugin.as_str().into(), cut_bytes, kept });
    }

    /// Removes the metrics and the condition of a store that no plugin uses any more.
    pub(crate) fn forget(&self) {
        let Some(StoreTelemetry { metrics, health, .. }) = &self.telemetry else { return };
        metrics.forget_store(&self.plugin);
        health.clear(&self.health_key());
    }

    fn health_key(&self) -> String {
        format!("plugin-store:{}", self.plugin)
    }
}
