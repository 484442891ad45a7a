//! The parts of a scenario's batch beside its rows: changed request attributes and signals.

use afterbay_runtime::AskedRequest;
use afterbay_runtime::signals::Snapshot;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Attributes and signals that change before a batch, and what requests that begin with it were asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Updates {
    /// JSON objects, by rid.
    pub(crate) attributes: BTreeMap<String, Arc<str>>,
    /// By rid.
    pub(crate) asked: BTreeMap<String, AskedRequest>,
    pub(crate) signals: Option<Snapshot>,
}
