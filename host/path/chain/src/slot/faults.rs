//! Faults of a plugin: each is counted and published, and too many put the plugin in quarantine.

use super::PluginSlot;
use super::state::SlotState;
use crate::context::ChainContext;
use afterbay_batch::Timestamp;
use afterbay_config::{OnFault, Quarantine};
use afterbay_events::event::{PluginFault, PluginQuarantined, PluginReinstated};
use afterbay_runtime::Fault;

impl PluginSlot {
    /// Drops the dead instance and counts the fault. The slot is then restarting, or in quarantine. `then` is the
    /// consequence, for the event.
    pub(super) fn fault(&mut self, fault: &Fault, then: &'static str, now: Timestamp) {
        let kind = fault.cause.kind();
        self.telemetry.counters.faults.add(kind, 1);
        let is_too_many = self.faults.add(now.instant, &fault.cause);
        let then = if is_too_many { self.unjudged_consequence() } else { then };
        let why = fault.to_string();
        self.telemetry.publish(|stream, plugin| PluginFault { stream, plugin, kind, why, then });
        if is_too_many {
            self.quarantine(fault, now);
        } else {
            self.enter(SlotState::Restarting, now);
        }
    }

    fn quarantine(&mut self, last: &Fault, now: Timestamp) {
        self.telemetry.counters.quarantined.set(1);
        let Quarantine { faults, within } = self.faults.policy();
        let then = match self.on_fault() {
            OnFault::Bypass => "batches pass unchanged",
            OnFault::Terminate => "requests are aborted",
        };
        let last = last.to_string();
        let why = format!("quarantined after {faults} faults in {within:?}, {then}; the last: {last}");
        self.enter(SlotState::Quarantined { why }, now);
        let (faults, within_ms) = (faults as u64, u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        self.telemetry.publish(|stream, plugin| PluginQuarantined {
            stream,
            plugin,
            faults,
            within_ms,
            then,
            why: last,
        });
    }

    /// Takes the plugin out of quarantine and starts a fresh instance. False if the plugin is not in quarantine.
    pub fn reinstate(&mut self, context: ChainContext<'_>) -> bool {
        let was_quarantined = self.leave_quarantine("operator");
        if was_quarantined {
            self.restart(context);
        }
        was_quarantined
    }

    pub(super) fn leave_quarantine(&mut self, by: &'static str) -> bool {
        self.faults.forget();
        let was_quarantined = self.state.is_quarantined();
        if was_quarantined {
            self.state = SlotState::Restarting;
            self.telemetry.counters.quarantined.set(0);
            self.telemetry.clear_condition();
            self.telemetry.publish(|stream, plugin| PluginReinstated { stream, plugin, by });
        }
        was_quarantined
    }
}
