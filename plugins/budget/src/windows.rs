//! The keys of the store, and the removal of the keys of past windows.
//!
//! A key is the beginning of the window in milliseconds (13 digits), then `/` and the tenant's name. Two keys of
//! a window have no name: `#` counts the tenants, and `*` has the tokens of the tenants past [`TENANTS_MAX`].

use afterbay_plugin::store;
use afterbay_plugin::window::{FixedWindow, Length};

/// The tenants of a window with a number of their own, those that the settings name not counted. Further ones
/// share a number. Two windows fit into the store.
pub(crate) const TENANTS_MAX: i64 = 4000;

/// The time for which the numbers of the last window stay: a slower stream may still count for it.
const GRACE_MS: u64 = 60_000;
/// Keys that are removed with one batch.
const REMOVED_AT_ONCE: usize = 64;
/// The digits of a time in a key. They last until the year 2286.
const TIME_DIGITS: usize = 13;

/// The current window, and the keys of other windows that are still to be removed.
pub(crate) struct Windows {
    fixed: FixedWindow,
    length_ms: u64,
    /// The beginning of the current window.
    start_ms: Option<u64>,
    /// The time to look for keys of other windows.
    look_at_ms: u64,
    old_keys: Vec<String>,
}

impl Windows {
    pub(crate) fn new(length: Length) -> Self {
        let (fixed, length_ms) = (FixedWindow::new(length), length.as_ms());
        Self { fixed, length_ms, start_ms: None, look_at_ms: 0, old_keys: Vec::new() }
    }

    /// Moves to this time. Returns whether another window begins.
    pub(crate) fn advance(&mut self, time_ms: u64) -> bool {
        let start_ms = Some(self.fixed.at(time_ms).start_ms);
        let is_other = self.start_ms != start_ms;
        if is_other {
            (self.start_ms, self.look_at_ms) = (start_ms, 0);
        }
        is_other
    }

    /// The time at which the current window ends.
    pub(crate) fn end_ms(&self) -> u64 {
        self.start() + self.length_ms
    }

    fn start(&self) -> u64 {
        self.start_ms.unwrap_or_default()
    }

    fn prefix(&self) -> String {
        format!("{:0TIME_DIGITS$}", self.start())
    }

    /// The key of a tenant's tokens.
    pub(crate) fn key(&self, tenant: &str) -> String {
        format!("{}/{tenant}", self.prefix())
    }

    /// The key of the tokens of all tenants past the bound.
    pub(crate) fn shared_key(&self) -> String {
        format!("{}*", self.prefix())
    }

    /// Counts a tenant that has no number yet. Returns whether it may have a number of its own.
    pub(crate) fn admit(&self) -> bool {
        store::increment(&format!("{}#", self.prefix()), 1).is_ok_and(|tenants| tenants <= TENANTS_MAX)
    }

    /// Removes some keys of other windows.
    pub(crate) fn remove_old(&mut self, time_ms: u64) {
        if self.old_keys.is_empty() {
            if time_ms < self.look_at_ms {
                return;
            }
            self.old_keys = self.find_old(time_ms);
            if self.old_keys.is_empty() {
                // The keys of the last window are left, or nothing is.
                let grace_end = self.start() + GRACE_MS.min(self.length_ms);
                self.look_at_ms = if time_ms < grace_end { grace_end } else { u64::MAX };
            }
        }
        let kept = self.old_keys.len().saturating_sub(REMOVED_AT_ONCE);
        self.old_keys.drain(kept..).for_each(|key| store::delete(&key));
    }

    /// Keys of other windows, at most 1,000: those before the current window, or else those after it, which a
    /// clock that was wrong has left.
    fn find_old(&self, time_ms: u64) -> Vec<String> {
        let is_grace = time_ms < self.start() + GRACE_MS.min(self.length_ms);
        let last = self.start().saturating_sub(self.length_ms);
        let is_old = |key: &String| {
            let start = key.get(..TIME_DIGITS).and_then(|digits| digits.parse::<u64>().ok());
            start.is_some_and(|start| start != self.start() && !(is_grace && start == last))
        };
        let find = |after: Option<&str>| {
            let mut keys = store::list_keys("", after);
            keys.retain(is_old);
            keys
        };
        // `0` follows `/`, so that this is past every key of the window.
        let past_current = format!("{}0", self.prefix());
        Some(find(None)).filter(|keys| !keys.is_empty()).unwrap_or_else(|| find(Some(&past_current)))
    }
}
