//! What a seat says of the rows that its plugin holds: to the log and to metrics; and how long it may.

use super::PluginSlot;
use afterbay_config::OnFault;
use afterbay_events::event::{HoldCut, HoldEnded, HoldRefused};
use afterbay_events::{HoldEnd, Name};
use afterbay_hold::HeldRows;
use std::time::Duration;

impl PluginSlot {
    pub fn plugin_name(&self) -> Name {
        self.name.clone()
    }

    /// Releases the rows that a previous instance held.
    pub fn end_lost(&mut self, held_rows: &mut HeldRows) {
        if std::mem::take(&mut self.is_lost) {
            held_rows.end_instance(&self.name);
        }
    }

    /// How long a row may wait that it holds.
    pub fn hold_limit(&self) -> Duration {
        self.component.limits().hold
    }

    /// It wants to hold a row for longer than it may.
    pub fn tell_cut(&mut self, wanted_ms: u32) {
        if !std::mem::replace(&mut self.told_cut, true) {
            let (stream, plugin) = self.names();
            let limit_ms = u64::try_from(self.hold_limit().as_millis()).unwrap_or(u64::MAX);
            self.telemetry.publish(HoldCut { stream, plugin, wanted_ms: wanted_ms.into(), limit_ms });
        }
    }

    /// A row that was to wait does not, or not with those of its request that do.
    pub fn tell_not_held(&self, frame: u64, why: String) {
        self.counters.holds_refused.add(1);
        let (stream, plugin) = self.names();
        self.telemetry.publish(HoldRefused { stream, plugin, frame, why });
    }

    /// What waited goes on.
    pub fn tell_hold_ended(&self, end: HoldEnd, rid: &str, rows: u64, tokens: u64) {
        self.counters.holds_ended.add(end, 1);
        if end != HoldEnd::Verdict {
            let (stream, plugin) = self.names();
            let (rid, why) = (rid.to_owned(), afterbay_batch::hold_end_words(end));
            self.telemetry.publish(HoldEnded { stream, plugin, rid, rows, tokens, end, why });
        }
    }

    /// Whether nothing goes on that it has not judged.
    pub fn terminates(&self) -> bool {
        self.on_fault == OnFault::Terminate
    }

    /// Rows that wait because it holds them, and their tokens.
    pub fn publish_held(&self, (rows, tokens): (u64, u64)) {
        self.counters.held_rows.set(rows);
        self.counters.held_tokens.set(tokens);
    }
}
