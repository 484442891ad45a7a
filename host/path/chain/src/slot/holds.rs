//! The rows that a plugin holds: events, counters and the limit of the time.

use super::PluginSlot;
use afterbay_batch::hold::HeldRows;
use afterbay_events::HoldEnd;
use afterbay_events::event::{HoldCut, HoldEnded, HoldRefused};
use std::time::Duration;

impl PluginSlot {
    /// Whether the instance knows the rows that the plugin holds.
    pub fn knows_holds(&self) -> bool {
        !self.has_lost_holds
    }

    /// Ends the holds of a previous instance.
    pub fn end_lost_holds(&mut self, held_rows: &mut HeldRows) {
        if std::mem::take(&mut self.has_lost_holds) {
            held_rows.end_instance(&self.telemetry.plugin);
        }
    }

    /// The longest time that the plugin may hold a row.
    pub fn hold_limit(&self) -> Duration {
        self.component.limits().hold
    }

    /// The time for which the plugin may hold a row. If that is less than the plugin asked for, this is reported once.
    pub fn capped_hold_time(&mut self, wanted_ms: u32) -> Duration {
        let (wanted, limit) = (Duration::from_millis(wanted_ms.into()), self.hold_limit());
        if wanted > limit && !std::mem::replace(&mut self.warned_hold_capped, true) {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            let wanted_ms = wanted_ms.into();
            self.telemetry.publish(|stream, plugin| HoldCut { stream, plugin, wanted_ms, limit_ms });
        }
        wanted.min(limit)
    }

    /// Reports that a row of this frame cannot be held, or cannot join the held rows of its request.
    pub fn report_hold_refused(&self, frame: u64, why: String) {
        self.telemetry.publish(|stream, plugin| HoldRefused { stream, plugin, frame, why });
    }

    /// Counts held rows that were released, and publishes the reason if it is not a verdict.
    pub fn report_hold_ended(&self, end: HoldEnd, rid: &str, rows: u64, tokens: u64) {
        self.telemetry.counters.holds_ended.add(end, 1);
        if end != HoldEnd::Verdict {
            let (rid, why) = (rid.to_owned(), afterbay_batch::hold_end_words(end));
            let event = |stream, plugin| HoldEnded { stream, plugin, rid, rows, tokens, end, why };
            self.telemetry.publish(event);
        }
    }
}
