//! A component: compiled, checked to be of this host's world, and with its own description.

use std::fmt;
use std::sync::Arc;

use crate::bindings::TransformPre;
use crate::bindings::afterbay::plugin::types;
use crate::columns::ColumnSet;
use crate::digest::Digest;
use crate::grants::Grants;
use crate::guest::Guest;
use crate::host::Host;
use crate::limits::Limits;
use crate::lines::SourceLines;
use crate::verdict::IdShape;

pub use types::Calls as CallSet;

/// A plugin's description, checked against the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The plugin's own name. The operator may give it another.
    pub name: String,
    /// The plugin's version, as its author counts.
    pub version: String,
    /// The JSON Schema of its settings. `None` if the plugin takes no settings.
    pub settings_schema: Option<serde_json::Value>,
    /// The columns that the plugin asks for.
    pub columns: ColumnSet,
    /// The calls that the plugin asks for.
    pub wants: CallSet,
    /// The meaning of the ids in its `replace` verdicts.
    pub writes: IdShape,
}

/// A component that can be instantiated. Clones share the compiled code.
#[derive(Clone)]
pub struct Component {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) host: Host,
    pub(crate) name: String,
    pub(crate) linked: TransformPre<Guest>,
    pub(crate) limits: Limits,
    pub(crate) grants: Grants,
    pub(crate) digest: Digest,
    pub(crate) lines: Arc<SourceLines>,
    pub(crate) wanted: Vec<&'static str>,
    pub(crate) description: Description,
}

impl Component {
    /// The operator's name of the plugin.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The component's description.
    pub fn description(&self) -> &Description {
        &self.inner.description
    }

    /// The sha256 of its bytes.
    pub fn digest(&self) -> Digest {
        self.inner.digest
    }

    /// The bytes of [`Component::digest`].
    pub fn sha256(&self) -> &[u8; Digest::BYTES] {
        &self.inner.digest.0
    }

    /// The interfaces that must be granted to the component.
    pub fn wanted(&self) -> &[&'static str] {
        &self.inner.wanted
    }

    /// The granted interfaces.
    pub fn grants(&self) -> &Grants {
        &self.inner.grants
    }

    /// The limits of each instance.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description { name, version, .. } = self.description();
        write!(f, "Component({} {name} {version} {})", self.name(), self.digest())
    }
}
