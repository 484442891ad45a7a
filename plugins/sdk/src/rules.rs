//! Conditions on the facts that open a request.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Opened;

/// A rule's condition as it is written in the settings. A request matches if all given fields match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestIs {
    /// The request's rid starts with this text.
    pub rid_prefix: Option<String>,
    /// This front end waits for the request.
    pub front_end: Option<String>,
    /// The request's rows go to the sink of this name.
    pub sink: Option<String>,
}

impl RequestIs {
    /// Whether the request matches the condition.
    #[must_use]
    pub fn fits(&self, request: &Opened) -> bool {
        self.rid_prefix.as_ref().is_none_or(|prefix| request.rid.starts_with(prefix))
            && self.front_end.as_ref().is_none_or(|name| request.front_end == *name)
            && self.sink.as_ref().is_none_or(|sink| request.sink == *sink)
    }
}
