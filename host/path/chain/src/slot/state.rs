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
        /// The time of the next start. `None`: the plugin has no component yet, and starts by a reload.
        retry_at: Option<Instant>,
    },
    /// The plugin faulted too often. An operator or a reload starts the plugin again.
    Quarantined {
        /// The faults, for the operator.
        why: String,
    },
}

impl SlotState {
    /// The instance and the number of its open requests.
    pub(super) fn running(&self) -> Option<(&Plugin, u64)> {
        match self {
            SlotState::Running { plugin, requests_open } => Some((plugin, *requests_open)),
            _ => None,
        }
    }

    /// Whether only a reload starts the plugin, because it has no component yet.
    pub(super) fn awaits_component(&self) -> bool {
        matches!(self, SlotState::Down { retry_at: None, .. })
    }

    pub(super) fn is_quarantined(&self) -> bool {
        matches!(self, SlotState::Quarantined { .. })
    }
}
