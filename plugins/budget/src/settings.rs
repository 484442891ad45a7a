//! The settings, as the operator writes them and as the plugin uses them.

use std::collections::BTreeMap;

use afterbay_plugin::window::Length;
use afterbay_plugin::{ConfigureError, bad_setting};
use schemars::JsonSchema;
use serde::Deserialize;

/// The most tenants with a budget of their own.
const NAMED_MAX: usize = 1000;
/// The largest budget. A million tokens a second reach it after 285 years.
const TOKENS_MAX: u64 = 1 << 53;
/// The bytes of a tenant's name. Tenants with longer names share one budget.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// The settings. At least one of `request_tokens`, `tokens` and `tenants` is required.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The most output tokens of a request.
    request_tokens: Option<u64>,
    /// The output tokens of each tenant in a window. Without it, only the tenants in `tenants` have a budget.
    tokens: Option<u64>,
    /// The budgets of single tenants, by name, in place of `tokens`.
    #[serde(default)]
    tenants: BTreeMap<String, u64>,
    /// The length of a window: `1h`, `1d`. Windows begin at multiples of it, UTC.
    #[serde(default = "day")]
    window: Length,
    /// The JSON pointer to the tenant's name in the attributes of a request.
    #[serde(default = "tenant")]
    tenant: String,
    /// Whether a request reserves the most tokens that it asked for, and ends at its first row if its tenant has less.
    #[serde(default)]
    reserve: bool,
}

fn day() -> Length {
    Length::seconds(24 * 3600)
}

fn tenant() -> String {
    "/tenant".to_owned()
}

/// The budgets.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The most tokens of a request; `u64::MAX` for no limit.
    pub(crate) request_tokens: u64,
    tokens: Option<u64>,
    tenants: BTreeMap<String, u64>,
    pub(crate) window: Length,
    /// The pointer to the tenant's name.
    pub(crate) pointer: String,
    /// Whether requests reserve the most tokens that they asked for.
    pub(crate) reserve: bool,
}

/// A tenant's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TenantLimit {
    pub(crate) tokens: u64,
    /// Whether the settings name the tenant.
    pub(crate) is_named: bool,
}

impl Limits {
    pub(crate) fn new(settings: Settings) -> Result<Self, ConfigureError> {
        let Settings { request_tokens, tokens, tenants, window, tenant: pointer, reserve } = settings;
        if request_tokens.is_none() && tokens.is_none() && tenants.is_empty() {
            return Err("no budget is set: set request_tokens, tokens or tenants".into());
        }
        if !pointer.starts_with('/') {
            let message = format!("is {pointer:?}, must be a JSON pointer such as \"/tenant\"");
            return Err(bad_setting("/tenant", message));
        }
        if tenants.len() > NAMED_MAX {
            let message = format!("has {} tenants, at most {NAMED_MAX} are allowed", tenants.len());
            return Err(bad_setting("/tenants", message));
        }
        let check = |pointer: &str, tokens: u64, least: u64| match (least..=TOKENS_MAX).contains(&tokens) {
            true => Ok(()),
            false => Err(bad_setting(pointer, format!("is {tokens}, must be {least} to {TOKENS_MAX}"))),
        };
        request_tokens.map_or(Ok(()), |tokens| check("/request_tokens", tokens, 1))?;
        tokens.map_or(Ok(()), |tokens| check("/tokens", tokens, 0))?;
        for (name, tokens) in &tenants {
            let pointer = format!("/tenants/{}", name.replace('~', "~0").replace('/', "~1"));
            if name.len() > NAME_BYTES_MAX {
                let message =
                    format!("the name has {} bytes, at most {NAME_BYTES_MAX} are allowed", name.len());
                return Err(bad_setting(pointer, message));
            }
            check(&pointer, *tokens, 0)?;
        }
        if reserve && tokens.is_none() && tenants.is_empty() {
            return Err(bad_setting("/reserve", "needs tokens or tenants"));
        }
        let request_tokens = request_tokens.unwrap_or(u64::MAX);
        Ok(Self { request_tokens, tokens, tenants, window, pointer, reserve })
    }

    /// The budget of a tenant; `None` if it has none.
    pub(crate) fn of(&self, tenant: &str) -> Option<TenantLimit> {
        match self.tenants.get(tenant) {
            Some(tokens) => Some(TenantLimit { tokens: *tokens, is_named: true }),
            None => self.tokens.map(|tokens| TenantLimit { tokens, is_named: false }),
        }
    }

    /// Whether any tenant has a budget.
    pub(crate) fn has_tenants(&self) -> bool {
        self.tokens.is_some() || !self.tenants.is_empty()
    }
}
