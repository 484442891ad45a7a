//! The live tenants of a stream, and their tokens in the current window.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use afterbay_plugin::{Attributes, RequestId, metrics, store};

use crate::settings::{Limits, NAME_BYTES_MAX, TenantLimit};
use crate::windows::Windows;

/// The tenants whose tokens a stream shows on `/metrics`: Afterbay takes 1,000 series of a plugin.
const SHOWN_MAX: usize = 900;
/// The time between two updates of a tenant's gauge.
const SHOW_EVERY_MS: u64 = 1000;
/// The gauge of the tokens that a tenant has left.
pub(crate) const LEFT: &str = "budget_tokens_left";

/// A tenant with live requests. Its requests share it.
pub(crate) struct Tenant {
    name: Rc<str>,
    limit: TenantLimit,
    /// The key of the tenant's tokens in this window. `None` before its first token in this window.
    key: RefCell<Option<String>>,
    /// The tokens of the batch.
    received: Cell<u64>,
    /// The tokens of the batch that the budget allows and no row has taken yet.
    allowed: Cell<u64>,
    /// The tokens that the tenant's live requests in this stream may still have.
    reserved: Cell<u64>,
    is_used_up: Cell<bool>,
    shown_at_ms: Cell<u64>,
}

impl Tenant {
    /// Whether nothing is left in this window.
    pub(crate) fn is_used_up(&self) -> bool {
        self.is_used_up.get()
    }

    /// Changes the tokens that are reserved for a request.
    pub(crate) fn change_reserved(&self, before: u64, after: u64) {
        self.reserved.set(self.reserved.get() - before + after);
    }

    /// Adds tokens of the batch. Returns whether these are the first ones.
    pub(crate) fn receive(&self, tokens: u64) -> bool {
        self.received.replace(self.received.get() + tokens) == 0
    }

    /// Takes tokens for a row: as many as are allowed, and at most this many.
    pub(crate) fn take(&self, tokens: u64) -> u64 {
        let taken = tokens.min(self.allowed.get());
        self.allowed.set(self.allowed.get() - taken);
        taken
    }
}

/// The number of a key. The cast is safe: it is not negative.
fn used(key: &str) -> u64 {
    store::number(key).unwrap_or_default().max(0) as u64
}

/// The tenants of a stream.
pub(crate) struct Tenants {
    live: HashMap<Rc<str>, Rc<Tenant>>,
    windows: Windows,
    shown: HashSet<Rc<str>>,
}

impl Tenants {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { live: HashMap::new(), windows: Windows::new(limits.window), shown: HashSet::new() }
    }

    /// The tenant of a request; `None` if it has no budget.
    pub(crate) fn of(&mut self, request: RequestId, limits: &Limits) -> Option<Rc<Tenant>> {
        if !limits.has_tenants() {
            return None;
        }
        let name = Attributes::of(request).text(&limits.pointer).unwrap_or_default();
        let limit = limits.of(&name)?;
        if let Some(tenant) = self.live.get(&*name) {
            return Some(tenant.clone());
        }
        let name: Rc<str> = name.into();
        let tenant = Rc::new(Tenant {
            name: name.clone(),
            limit,
            key: RefCell::new(None),
            received: Cell::new(0),
            allowed: Cell::new(0),
            reserved: Cell::new(0),
            is_used_up: Cell::new(false),
            shown_at_ms: Cell::new(0),
        });
        self.live.insert(name, tenant.clone());
        Some(tenant)
    }

    /// Forgets a tenant without requests. The store keeps its tokens.
    pub(crate) fn release(&mut self, tenant: Rc<Tenant>) {
        // The map has one, too.
        if Rc::strong_count(&tenant) == 2 {
            self.live.remove(&tenant.name);
        }
    }

    /// Moves to the time of a batch. In another window, every tenant has its whole budget.
    pub(crate) fn advance(&mut self, time_ms: u64) {
        if self.windows.advance(time_ms) {
            for tenant in self.live.values() {
                tenant.key.take();
                tenant.is_used_up.set(false);
                tenant.shown_at_ms.set(0);
            }
            self.shown.drain().for_each(|name| metrics::remove(LEFT, &[("tenant", &name)]));
            metrics::gauge_set("budget_window_end_seconds", &[], self.windows.end_ms() as f64 / 1000.0);
        }
        self.windows.remove_old(time_ms);
    }

    /// Counts a tenant's tokens of the batch, and allows as many of them as are left.
    pub(crate) fn count(&mut self, tenant: &Tenant, time_ms: u64) {
        let received = tenant.received.take();
        let budget = tenant.limit.tokens;
        if tenant.key.borrow().is_none() && self.used(tenant) >= budget {
            // Used up by requests that ended, or in another stream.
            tenant.allowed.set(0);
            tenant.is_used_up.set(true);
            self.show(tenant, 0, time_ms);
            return;
        }
        let key = tenant.key.borrow();
        // The casts are safe: a budget is below 2^53, and a batch has fewer tokens.
        let Some(sum) = key.as_ref().and_then(|key| store::increment(key, received as i64).ok()) else {
            afterbay_plugin::error!(
                "the tokens of tenant {:?} cannot be stored: they are not counted",
                tenant.name
            );
            tenant.allowed.set(received);
            return;
        };
        let sum = sum.max(0) as u64;
        let left_before = budget.saturating_sub(sum.saturating_sub(received));
        tenant.allowed.set(left_before.min(received));
        tenant.is_used_up.set(sum >= budget);
        self.show(tenant, budget.saturating_sub(sum), time_ms);
    }

    /// The tokens that neither a request nor a reservation of this stream has.
    pub(crate) fn unreserved(&self, tenant: &Tenant) -> u64 {
        let taken = [self.used(tenant), tenant.received.get(), tenant.reserved.get()];
        taken.into_iter().fold(tenant.limit.tokens, u64::saturating_sub)
    }

    /// The tokens that the tenant has used in this window.
    fn used(&self, tenant: &Tenant) -> u64 {
        let mut key = tenant.key.borrow_mut();
        if let Some(key) = &*key {
            return used(key);
        }
        let (found, used) = self.find_key(tenant);
        *key = Some(found);
        used
    }

    /// The key of a tenant in this window, with the tokens used so far.
    fn find_key(&self, tenant: &Tenant) -> (String, u64) {
        if tenant.name.len() <= NAME_BYTES_MAX {
            let key = self.windows.key(&tenant.name);
            let used = used(&key);
            if used > 0 || tenant.limit.is_named || self.windows.admit() {
                return (key, used);
            }
        }
        let key = self.windows.shared_key();
        let used = used(&key);
        (key, used)
    }

    /// Shows the tokens that a tenant has left, at most once a second, and when nothing is left.
    fn show(&mut self, tenant: &Tenant, left: u64, time_ms: u64) {
        let is_due = time_ms.abs_diff(tenant.shown_at_ms.get()) >= SHOW_EVERY_MS || left == 0;
        let is_shown = self.shown.contains(&tenant.name);
        if !is_due || !is_shown && self.shown.len() >= SHOWN_MAX {
            return;
        }
        tenant.shown_at_ms.set(time_ms);
        metrics::gauge_set(LEFT, &[("tenant", &tenant.name)], left as f64);
        if !is_shown {
            self.shown.insert(tenant.name.clone());
        }
    }
}
