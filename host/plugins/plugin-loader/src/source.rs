//! The places that a plugin's component comes from: this binary, a file, a project's build, a registry.

use crate::oci::SCHEME;
use crate::project::{Project, ProjectError};
use crate::registry::{self, RegistryError};
use afterbay_config as config;
use afterbay_runtime::{Component, Host, LoadError, Terms, read_component};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// A component that was found, and not read or compiled yet.
pub struct Source {
    /// The name for messages: as it was given, or that of the plugin in the configuration.
    pub name: String,
    /// The component's file; `None` for one in this binary or out of a registry.
    pub file: Option<PathBuf>,
    /// The component, if it has no file.
    bytes: Cow<'static, [u8]>,
}

/// Why a component was not found.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SourceError {
    #[error("{name:?} is not in this binary, which has {}", builtins())]
    NotBuiltIn { name: String },
    #[error("{name}: not built yet: {} is not there", file.display())]
    NotBuilt { name: String, file: PathBuf },
    #[error("{}: not a file", file.display())]
    NotAFile { file: PathBuf },
    #[error("{}: {error}", file.display())]
    Io { file: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn builtins() -> String {
    afterbay_bundled::all().iter().map(|plugin| plugin.name).collect::<Vec<_>>().join(", ")
}

impl Source {
    /// Finds what a command line or a scenario names: `builtin:NAME`, `oci://…`, a component file, or a project's directory.
    /// A relative path is relative to `base`. Waits for the registry.
    ///
    /// # Errors
    /// There is no such component, or the project was not built.
    pub fn find(name: &str, base: &Path) -> Result<Source, SourceError> {
        if let Some(builtin) = name.strip_prefix("builtin:") {
            let found = afterbay_bundled::find(builtin);
            let found = found.ok_or_else(|| SourceError::NotBuiltIn { name: name.to_owned() })?;
            return Ok(Source { name: name.to_owned(), file: None, bytes: found.component.into() });
        }
        if name.starts_with(SCHEME) {
            return Ok(Source { name: name.to_owned(), file: None, bytes: registry::fetch(name)?.into() });
        }
        let path = base.join(name);
        let is_project = path.is_dir();
        let file = if is_project { Project::of_dir(&path)?.component()? } else { path };
        match file.metadata() {
            Ok(found) if found.is_file() => {
                Ok(Source { name: name.to_owned(), file: Some(file), bytes: Cow::default() })
            }
            Ok(_) => Err(SourceError::NotAFile { file }),
            Err(error) if is_project && error.kind() == std::io::ErrorKind::NotFound => {
                Err(SourceError::NotBuilt { name: name.to_owned(), file })
            }
            Err(error) => Err(SourceError::Io { file, error }),
        }
    }

    /// Finds the component of a checked configuration. Waits for the registry.
    ///
    /// # Errors
    /// The registry does not answer with the component, or the project makes none.
    pub fn of_config(name: &str, component: &config::Component) -> Result<Source, SourceError> {
        let (file, bytes) = match component {
            config::Component::Builtin(builtin) => {
                (None, afterbay_bundled::find(builtin).map_or(&[][..], |found| found.component).into())
            }
            config::Component::Registry(reference) => (None, registry::fetch(reference)?.into()),
            config::Component::File(file) => (Some(file.clone()), Cow::default()),
            config::Component::Project(dir) => (Some(Project::of_dir(dir)?.component()?), Cow::default()),
        };
        Ok(Source { name: name.to_owned(), file, bytes })
    }

    /// The component's length in bytes; 0 if its file cannot be read.
    #[must_use]
    pub fn length(&self) -> u64 {
        match &self.file {
            None => self.bytes.len() as u64,
            Some(file) => file.metadata().map_or(0, |found| found.len()),
        }
    }

    /// The component's bytes. A file of more than [`COMPONENT_BYTES_MAX`](afterbay_runtime::limits::COMPONENT_BYTES_MAX) bytes is
    /// read up to one byte past it, which [`Host::load`] refuses.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn read(&self) -> Result<Cow<'_, [u8]>, LoadError> {
        match &self.file {
            None => Ok(Cow::Borrowed(&self.bytes)),
            Some(file) => read_component(&self.name, file).map(Cow::Owned),
        }
    }

    /// Compiles the component, or takes it from the cache.
    ///
    /// # Errors
    /// Its file cannot be read, or it is no plugin.
    pub fn load(&self, host: &Host, terms: Terms) -> Result<Component, LoadError> {
        host.load(&self.name, &self.read()?, terms)
    }
}
