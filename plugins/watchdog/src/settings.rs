//! The settings, as the operator writes them and as the plugin uses them.

use afterbay_plugin::window::Length;
use afterbay_plugin::{AttributeIs, Attributes, ConfigureError, bad_setting};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// The most rules.
const RULES_MAX: usize = 100;

/// The settings. At least one limit is required.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The longest time from the arrival of a request to its first row: `"30s"`.
    first_token: Option<Length>,
    /// The longest time from a row of a request to the next.
    token: Option<Length>,
    /// The longest time from the arrival of a request to its end.
    total: Option<Length>,
    /// The end that the client sees.
    #[serde(default)]
    pub(crate) end: End,
    /// The HTTP status of an error, from 400 to 599.
    #[serde(default = "gateway_timeout")]
    pub(crate) status: u16,
    /// Limits of requests with an attribute, in place of all those above. The first rule that matches counts. At most 100.
    #[serde(default)]
    rules: Vec<Rule>,
}

fn gateway_timeout() -> u16 {
    504
}

/// The limits of a request. One that is not set does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) first_token: Option<Length>,
    pub(crate) token: Option<Length>,
    pub(crate) total: Option<Length>,
}

/// The end that the client sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// An error.
    #[default]
    Error,
    /// The output so far, as at the token limit.
    Length,
}

/// The limits of requests with an attribute.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The attribute's name: `lora` for the adapter's name, `session`, or one of your own.
    attribute: String,
    /// Its value; true by default.
    equals: Option<Value>,
    /// As above.
    first_token: Option<Length>,
    /// As above.
    token: Option<Length>,
    /// As above.
    total: Option<Length>,
}

/// The limits by attribute.
pub(crate) struct Rules {
    rules: Vec<(AttributeIs, Limits)>,
    others: Limits,
}

impl Rules {
    pub(crate) fn new(settings: Settings) -> Result<Self, ConfigureError> {
        let Settings { first_token, token, total, status, rules, .. } = settings;
        let others = Limits { first_token, token, total };
        if others == Limits::default() && rules.is_empty() {
            return Err("no limit is set: set first_token, token, total or rules".into());
        }
        if !(400..=599).contains(&status) {
            return Err(bad_setting("/status", format!("is {status}, must be 400 to 599")));
        }
        if rules.len() > RULES_MAX {
            let message = format!("has {} rules, at most {RULES_MAX} are allowed", rules.len());
            return Err(bad_setting("/rules", message));
        }
        let rules = rules.into_iter().map(|Rule { attribute, equals, first_token, token, total }| {
            let condition = AttributeIs::of(Some(&attribute), equals.as_ref())?;
            Ok(condition.map(|condition| (condition, Limits { first_token, token, total })))
        });
        let rules: Result<Vec<_>, ConfigureError> = rules.filter_map(Result::transpose).collect();
        Ok(Self { rules: rules?, others })
    }

    /// The limits of a request with these attributes.
    pub(crate) fn limits(&self, attributes: &Attributes) -> Limits {
        let rule = self.rules.iter().find(|(condition, _)| condition.holds(attributes));
        rule.map_or(self.others, |(_, limits)| *limits)
    }
}
