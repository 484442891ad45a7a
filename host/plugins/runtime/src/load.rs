//! The loading of components: compile, check the world and the grants, read the description.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bindings::TransformPre;
use crate::bindings::afterbay::plugin::types;
use crate::columns::with_tokens;
use crate::component::{CallSet, Component, Description, Inner};
use crate::digest::Digest;
use crate::environment;
use crate::fault::Fault;
use crate::files::read_regular;
use crate::grants::Terms;
use crate::guest;
use crate::host::Host;
use crate::instance::Plugin;
use crate::limits::{
    COMPONENT_BYTES_MAX, MEMORY_BYTES_MAX, NAME_BYTES_MAX, SCHEMA_BYTES_MAX, VERSION_BYTES_MAX,
};
use crate::lines::SourceLines;
use crate::world;

/// The reason why a component is not loaded. Each message names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("plugin \"{name}\": component file {path}: {error}")]
    Read {
        /// The operator's name of the plugin.
        name: String,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The component is larger than the limit.
    #[error("plugin \"{name}\": component has more than {COMPONENT_BYTES_MAX} bytes, the limit")]
    TooLarge {
        /// The operator's name of the plugin.
        name: String,
    },
    /// The digest of the bytes is not the one that the operator demands.
    #[error("plugin \"{name}\": its sha256 is {digest}, and must be {pinned}")]
    OtherDigest {
        /// The operator's name of the plugin.
        name: String,
        /// The demanded digest.
        pinned: Digest,
        /// The digest of the bytes.
        digest: Digest,
    },
    /// The digest of the bytes is not on the operator's list.
    #[error(
        "plugin \"{name}\": its digest sha256:{digest} is not in plugins.allow, which has {}",
        listed(allowed)
    )]
    NotAllowed {
        /// The operator's name of the plugin.
        name: String,
        /// The digest of the bytes.
        digest: Digest,
        /// The operator's list.
        allowed: Arc<[Digest]>,
    },
    /// The bytes are not a component, or a broken one.
    #[error("plugin \"{name}\": not a webassembly component: {message}")]
    NotAComponent {
        /// The operator's name of the plugin.
        name: String,
        /// The reason.
        message: String,
    },
    /// The component was built for another version of the contract, or for another purpose.
    #[error("plugin \"{name}\": built for another world: {}", differences.join("; "))]
    OtherWorld {
        /// The operator's name of the plugin.
        name: String,
        /// All differences, in words.
        differences: Vec<String>,
    },
    /// The component imports interfaces that the operator has not granted.
    #[error("plugin \"{name}\": wants {}, which it is not granted: add it to grant", interfaces.join(", "))]
    NotGranted {
        /// The operator's name of the plugin.
        name: String,
        /// The interfaces.
        interfaces: Vec<&'static str>,
    },
    /// The component's description breaks the contract.
    #[error("plugin \"{name}\": has an invalid description: {message}")]
    BadDescription {
        /// The operator's name of the plugin.
        name: String,
        /// The reason.
        message: String,
    },
    /// The component could not be started to read its description.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Host {
    /// Compiles a component (or loads its code from the cache), checks its world and reads its description. `name` is the
    /// operator's name of the plugin, for messages. Components that differ only in their environment share their code.
    ///
    /// # Errors
    /// If the bytes are not a component of this host's world, or its description breaks the contract.
    pub fn load(&self, name: &str, bytes: &[u8], terms: impl Into<Terms>) -> Result<Component, LoadError> {
        let Terms { mut limits, grants, digest: pinned, allowed } = terms.into();
        limits.memory_bytes = limits.memory_bytes.min(MEMORY_BYTES_MAX);
        let digest = Digest::of(bytes);
        // The digest is checked before the bytes are parsed.
        if let Some(pinned) = pinned.filter(|pinned| *pinned != digest) {
            return Err(LoadError::OtherDigest { name: name.to_owned(), pinned, digest });
        }
        if let Some(allowed) = allowed.filter(|allowed| !allowed.contains(&digest)) {
            return Err(LoadError::NotAllowed { name: name.to_owned(), digest, allowed });
        }
        let no_component = |message| LoadError::NotAComponent { name: name.to_owned(), message };
        let (code, environment) = environment::split(bytes).map_err(no_component)?;
        let digest_of_code = if code.len() == bytes.len() { digest } else { Digest::of(code) };
        let code = compile(self, name, code, &digest_of_code)?;
        let other_world = |differences| LoadError::OtherWorld { name: name.to_owned(), differences };
        world::check(&self.shared.engine, &code).map_err(other_world)?;
        let wanted = world::wanted(&self.shared.engine, &code);
        let interfaces: Vec<_> = wanted.iter().copied().filter(|name| !grants.has(name)).collect();
        if !interfaces.is_empty() {
            return Err(LoadError::NotGranted { name: name.to_owned(), interfaces });
        }
        // The names are right, so a function must have another type.
        let linked = guest::linker(&self.shared.engine, &code, environment)
            .and_then(|linker| linker.instantiate_pre(&code))
            .and_then(TransformPre::new)
            .map_err(|error| other_world(vec![format!("{error:#}")]))?;
        let lines = Arc::new(SourceLines::of(bytes));
        let said = Plugin::describe(self, name, &linked, &limits, &grants, &lines)?;
        let description = check_description(said)
            .map_err(|message| LoadError::BadDescription { name: name.to_owned(), message })?;
        let wants = |call| description.wants.contains(call);
        let of_calls = [
            (wants(CallSet::PRESSURE) && !grants.signals, "signals"),
            (wants(CallSet::CHANGED) && !grants.request, "request"),
        ];
        let interfaces: Vec<_> =
            of_calls.into_iter().filter_map(|(is_missing, name)| is_missing.then_some(name)).collect();
        if !interfaces.is_empty() {
            return Err(LoadError::NotGranted { name: name.to_owned(), interfaces });
        }
        let (host, name) = (self.clone(), name.to_owned());
        let inner = Inner { host, name, linked, limits, grants, digest, lines, wanted, description };
        Ok(Component { inner: Arc::new(inner) })
    }

    /// Loads a component from a file, as [`Host::load`].
    ///
    /// # Errors
    /// As [`Host::load`], or if the file cannot be read.
    pub fn load_file(
        &self,
        name: &str,
        path: &Path,
        terms: impl Into<Terms>,
    ) -> Result<Component, LoadError> {
        self.load(name, &read_component(name, path)?, terms)
    }
}

/// The operator's list in words. A long list is cut.
fn listed(allowed: &[Digest]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = allowed.iter().take(SHOWN).map(|digest| format!("sha256:{digest}")).collect();
    match allowed.len() {
        0 => "no digest".to_owned(),
        count if count > SHOWN => format!("{} and {} more", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

/// Reads a component file. [`Host::load`] refuses one of more than [`COMPONENT_BYTES_MAX`] bytes.
pub fn read_component(name: &str, path: &Path) -> Result<Vec<u8>, LoadError> {
    read_regular(path).map_err(|error| LoadError::Read {
        name: name.to_owned(),
        path: path.to_owned(),
        error,
    })
}

fn compile(
    host: &Host,
    name: &str,
    bytes: &[u8],
    digest: &Digest,
) -> Result<wasmtime::component::Component, LoadError> {
    let name = || name.to_owned();
    if bytes.len() as u64 > COMPONENT_BYTES_MAX {
        return Err(LoadError::TooLarge { name: name() });
    }
    let engine = &host.shared.engine;
    let cache = host.shared.cache.as_ref();
    if let Some(code) = cache.and_then(|cache| cache.get(engine, digest)) {
        return Ok(code);
    }
    check_preamble(bytes).map_err(|message| LoadError::NotAComponent { name: name(), message })?;
    let code = wasmtime::component::Component::from_binary(engine, bytes)
        .map_err(|error| LoadError::NotAComponent { name: name(), message: format!("{error:#}") })?;
    if let Some(cache) = cache {
        // If the disk is full, the next start compiles again.
        let _ = cache.put(digest, &code);
    }
    Ok(code)
}

/// Two frequent mistakes, with a better message than the parser's.
fn check_preamble(bytes: &[u8]) -> Result<(), String> {
    match bytes {
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => {
            Err("it is a core module; build for a component target such as wasm32-wasip2".into())
        }
        [0, b'a', b's', b'm', ..] => Ok(()),
        _ => Err(format!("its {} bytes do not begin as webassembly does", bytes.len())),
    }
}

fn check_description(said: types::Description) -> Result<Description, String> {
    let types::Description { name, version, settings_schema, columns, wants, writes } = said;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("a name of {} bytes, from 1 to {NAME_BYTES_MAX} are allowed", name.len()));
    }
    if let Some(bad) = name.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-')) {
        return Err(format!("the name {name:?} has {bad:?}, only a-z, 0-9 and - are allowed"));
    }
    if version.len() > VERSION_BYTES_MAX {
        return Err(format!("a version of {} bytes, at most {VERSION_BYTES_MAX} are allowed", version.len()));
    }
    if version.chars().any(char::is_control) {
        return Err(format!("the version {version:?} has control characters"));
    }
    if settings_schema.len() > SCHEMA_BYTES_MAX {
        let length = settings_schema.len();
        return Err(format!("a settings schema of {length} bytes, at most {SCHEMA_BYTES_MAX} are allowed"));
    }
    let settings_schema = match settings_schema.as_str() {
        "" => None,
        text => Some(
            serde_json::from_str(text).map_err(|error| format!("a settings schema not in JSON: {error}"))?,
        ),
    };
    let columns = with_tokens(columns);
    Ok(Description { name, version, settings_schema, columns, wants, writes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::IdShape;

    fn said() -> types::Description {
        types::Description {
            name: "a-plugin-9".into(),
            version: "1.0.0".into(),
            settings_schema: String::new(),
            columns: types::Columns::empty(),
            wants: types::Calls::empty(),
            writes: IdShape::Delta,
        }
    }

    #[test]
    fn a_valid_description_is_accepted() {
        let checked = check_description(said()).unwrap();
        assert_eq!((checked.name.as_str(), checked.settings_schema), ("a-plugin-9", None));
        let schema = r#"{"type": "object"}"#;
        let checked =
            check_description(types::Description { settings_schema: schema.into(), ..said() }).unwrap();
        assert_eq!(checked.settings_schema, Some(serde_json::json!({"type": "object"})));
    }

    #[test]
    fn an_invalid_description_is_refused_with_the_reason() {
        let refuse = |said| check_description(said).unwrap_err();
        assert!(
            refuse(types::Description { name: String::new(), ..said() }).starts_with("a name of 0 bytes")
        );
        assert!(
            refuse(types::Description { name: "a".repeat(65), ..said() }).starts_with("a name of 65 bytes")
        );
        assert_eq!(
            refuse(types::Description { name: "A b".into(), ..said() }),
            "the name \"A b\" has 'A', only a-z, 0-9 and - are allowed"
        );
        assert!(
            refuse(types::Description { version: "1".repeat(65), ..said() }).starts_with("a version of 65")
        );
        assert!(
            refuse(types::Description { version: "\u{1b}[31m".into(), ..said() })
                .contains("control characters")
        );
        let not_json = types::Description { settings_schema: "{".into(), ..said() };
        assert!(refuse(not_json).starts_with("a settings schema not in JSON"));
        let huge = types::Description { settings_schema: " ".repeat(SCHEMA_BYTES_MAX + 1), ..said() };
        assert!(refuse(huge).starts_with("a settings schema of"));
    }
}
