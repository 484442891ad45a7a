//! The states of a plugin's slot.

use afterbay_runtime::Plugin;
use std::time::Instant;

/// The state of a slot. A shadow has the same states as a live plugin.
#[expect(clippy::large_enum_variant, reason = "a stream has few slots")]
pub(super) enum SlotState {
    /// The plugin is called with every batch.
    Running {
        /// The instance.
        plugin: Plugin,
        /// Requests that the instance was told of and that have not ended.
        requests_open: u64,
    },
    /// The instance faulted, and a fresh instance is about to start. After a fault in `close`, the state lasts until the
    /// ledger has removed the requests that ended.
    Restarting,
    /// No instance could be started.
    Down {
        /// The reason, for the operator.
        why: String,
        /// The time of the next start.
        retry_at: Instant,
    },
    /// The plugin faulted too often. An operator or a reload starts the plugin again.
    Quarantined {
        /// The faults, for the operator.
        why: String,
    },
}

impl SlotState {
    pub(super) fn plugin(&self) -> Option<&Plugin> {
        match self {
            SlotState::Running { plugin, .. } => Some(plugin),
            _ => None,
        }
    }

    pub(super) fn plugin_mut(&mut self) -> Option<&mut Plugin> {
        match self {
            SlotState::Running { plugin, .. } => Some(plugin),
            _ => None,
        }
    }

    pub(super) fn is_quarantined(&self) -> bool {
        matches!(self, SlotState::Quarantined { .. })
    }

    pub(super) fn requests_open(&self) -> u64 {
        match self {
            SlotState::Running { requests_open, .. } => *requests_open,
            _ => 0,
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.plugin().map_or(0, Plugin::memory_bytes)
    }

    /// The reason why there is no instance.
    pub(super) fn why(&self) -> Option<&String> {
        match self {
            SlotState::Down { why, .. } | SlotState::Quarantined { why } => Some(why),
            SlotState::Running { .. } | SlotState::Restarting => None,
        }
    }
}
