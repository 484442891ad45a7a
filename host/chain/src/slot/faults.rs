//! What a seat does about faults: they are told and counted, and where there are too many the plugin is out of the chain.

use super::PluginSlot;
use crate::context::ChainContext;
use afterbay_batch::Timestamp;
use afterbay_config::{OnFault, Quarantine};
use afterbay_events::event::{PluginFault, PluginQuarantined, PluginReinstated};
use afterbay_runtime::Fault;

impl PluginSlot {
    /// The instance is dead: told, counted, and where it is one fault too many, the plugin is out of the chain.
    pub(super) fn fault(&mut self, fault: &Fault, then: &'static str, now: Timestamp) {
        (self.plugin, self.requests_open, self.is_lost) = (None, 0, true);
        let kind = fault.cause.kind();
        self.counters.faults.add(kind, 1);
        let is_too_many = self.faults.add(now.instant, &fault.cause);
        let then = if is_too_many { self.then() } else { then };
        let (stream, plugin) = self.names();
        self.telemetry.publish(PluginFault { stream, plugin, kind, why: fault.to_string(), then });
        if is_too_many {
            self.quarantine(fault, now);
        }
    }

    fn quarantine(&mut self, last: &Fault, now: Timestamp) {
        (self.is_quarantined, self.died_closing, self.retry_at) = (true, false, None);
        self.counters.quarantines.add(1);
        self.counters.quarantined.set(1);
        let Quarantine { faults, within } = self.faults.policy();
        let then = match self.policy() {
            OnFault::Bypass | OnFault::Retry => "batches go on unchanged",
            OnFault::Terminate => "requests are aborted",
        };
        let why = last.to_string();
        let text = format!("quarantined after {faults} faults in {within:?}, {then}; the last: {why}");
        self.absent = Some(text);
        self.publish_absence(now);
        let (stream, plugin) = self.names();
        let (faults, within_ms) = (faults as u64, u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        self.telemetry.publish(PluginQuarantined { stream, plugin, faults, within_ms, then, why });
    }

    /// Takes the plugin out of quarantine, with a fresh instance. False where it is not quarantined.
    pub fn reinstate(&mut self, context: ChainContext<'_>) -> bool {
        let was_quarantined = self.leave_quarantine("operator");
        if was_quarantined {
            self.resume(context);
        }
        was_quarantined
    }

    pub(super) fn leave_quarantine(&mut self, by: &'static str) -> bool {
        self.faults.forget();
        let was_quarantined = std::mem::take(&mut self.is_quarantined);
        if was_quarantined {
            self.counters.quarantined.set(0);
            self.health.clear(&self.key());
            let (stream, plugin) = self.names();
            self.telemetry.publish(PluginReinstated { stream, plugin, by });
        }
        was_quarantined
    }
}
