//! The reload of components. Changed files are compiled, checked and started here, off the path, and handed over ready to
//! run. The stream swaps instances between two batches.

use std::path::PathBuf;

use crate::digest::Digest;
use crate::grants::Terms;
use crate::host::Host;
use crate::instance::{Plugin, StartError};
use crate::load::{self, LoadError};
use crate::watching::{Look, Stamp, Watching, WithoutEvents};

/// A component file to watch, for one plugin of one stream. `K` is the caller's name for the two.
#[derive(Clone, Debug)]
pub struct Watched<K> {
    /// The caller's name, as given back in [`Reloaded`].
    pub key: K,
    /// The operator's name of the plugin.
    pub name: String,
    /// The component file.
    pub path: PathBuf,
    /// The conditions for the new instance.
    pub terms: Terms,
    /// The settings of the new instance, as JSON text.
    pub settings: String,
    /// The digest of the running component. The same bytes are no reload.
    pub digest: Digest,
}

/// A changed component file.
#[derive(Debug)]
pub struct Reloaded<K> {
    /// The caller's name.
    pub key: K,
    /// The file.
    pub path: PathBuf,
    /// A configured instance, whose next call is `open`. The error: the reason why the running instance stays.
    pub result: Result<Plugin, ReloadError>,
}

/// The reason why a changed component is not used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The component cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The component cannot be started with its settings.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl ReloadError {
    /// The digest of a component that is refused for its digest. `None` for every other reason.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            ReloadError::Load(
                LoadError::OtherDigest { digest, .. } | LoadError::NotAllowed { digest, .. },
            ) => Some(*digest),
            _ => None,
        }
    }
}

/// A thread that watches component files. It ends when this is dropped.
#[derive(Debug)]
pub struct Watch(Watching);

impl Watch {
    /// Watches these files until this is dropped. `on_ready` runs on the watching thread, once for each new content of a
    /// file, good or bad. The caller passes the result to the stream's thread.
    ///
    /// `has_more_changed` returns true if settings have changed, too, and are about to be read. A changed component then
    /// waits until the caller drops this watch and starts another with both.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start<K: Send + Clone + 'static>(
        host: Host,
        watched: Vec<Watched<K>>,
        has_more_changed: impl Fn() -> bool + Send + 'static,
        mut on_ready: impl FnMut(Reloaded<K>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let paths: Vec<_> = watched.iter().map(|file| file.path.clone()).collect();
        let mut files: Vec<File<K>> = watched.into_iter().map(File::new).collect();
        let look = move |look: &Look<'_>| {
            if files.iter().any(|file| file.other_stamp().is_some()) {
                look.wait_while(&has_more_changed);
            }
            for file in &mut files {
                if look.is_over() {
                    return;
                }
                if let Some(result) = file.look(&host, look.settled) {
                    let Watched { key, path, .. } = &file.watched;
                    on_ready(Reloaded { key: key.clone(), path: path.clone(), result });
                }
            }
        };
        Watching::start("plugin-watch", paths.iter().map(PathBuf::as_path), look).map(Self)
    }

    /// The directories that could not be watched, for a report to the operator.
    pub fn without_events(&self) -> &[WithoutEvents] {
        self.0.without_events()
    }
}

/// A file, and its state at the last look.
struct File<K> {
    watched: Watched<K>,
    /// `None`: to be read at the next look, whatever its metadata.
    stamp: Option<Stamp>,
    /// The digest of the last bad content, which is reported once.
    reported: Option<Bad>,
}

#[derive(PartialEq, Eq)]
enum Bad {
    Content(Digest),
    Unreadable,
}

impl<K> File<K> {
    fn new(watched: Watched<K>) -> Self {
        Self { watched, stamp: None, reported: None }
    }

    /// The file's stamp, if the file must be read.
    fn other_stamp(&self) -> Option<Stamp> {
        Stamp::other(&self.watched.path, self.stamp.as_ref())
    }

    /// An instance of the file's current content, or the reason why there is none. `None` if the content is known.
    fn look(&mut self, host: &Host, settled: bool) -> Option<Result<Plugin, ReloadError>> {
        let stamp = self.other_stamp()?;
        self.stamp = settled.then_some(stamp);
        let bytes = match load::read_component(&self.watched.name, &self.watched.path) {
            Ok(bytes) => bytes,
            Err(error) => return self.bad(Bad::Unreadable, error.into()),
        };
        let digest = Digest::of(&bytes);
        if digest == self.watched.digest {
            self.reported = None;
            return None;
        }
        match self.start(host, &bytes) {
            Ok(plugin) => {
                self.watched.digest = digest;
                self.reported = None;
                Some(Ok(plugin))
            }
            Err(error) => self.bad(Bad::Content(digest), error),
        }
    }

    fn start(&self, host: &Host, bytes: &[u8]) -> Result<Plugin, ReloadError> {
        let Watched { name, terms, settings, .. } = &self.watched;
        Ok(host.load(name, bytes, terms.clone())?.instantiate(settings)?)
    }

    fn bad(&mut self, bad: Bad, error: ReloadError) -> Option<Result<Plugin, ReloadError>> {
        let news = self.reported.as_ref() != Some(&bad);
        self.reported = Some(bad);
        news.then_some(Err(error))
    }
}
