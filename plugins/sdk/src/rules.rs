//! Rules over what a request is opened with.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::Opened;

/// A rule's condition, as it stands in the settings: a request fits that fits all that is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestIs {
    /// Its rid begins so.
    pub rid_prefix: Option<String>,
    /// Its output is for this tokenizer worker (`http_worker_ipc`).
    pub http_worker_ipc: Option<String>,
    /// Its rows go to the sink of this name.
    pub sink: Option<String>,
}

impl RequestIs {
    /// Whether it is so of this request.
    #[must_use]
    pub fn fits(&self, request: &Opened) -> bool {
        self.rid_prefix.as_ref().is_none_or(|prefix| request.rid.starts_with(prefix))
            && self.http_worker_ipc.as_ref().is_none_or(|worker| request.http_worker_ipc == *worker)
            && self.sink.as_ref().is_none_or(|sink| request.sink == *sink)
    }
}
