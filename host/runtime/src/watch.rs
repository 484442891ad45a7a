//! Reload: component files that change are compiled, checked and started here, off the path of any batch, and handed
//! over ready to run. The stream swaps between two batches.

use std::path::PathBuf;

use crate::component::{Digest, LoadError};
use crate::grants::Terms;
use crate::host::{self, Host};
use crate::instance::{Plugin, StartError};
use crate::watching::{Look, Stamp, Watching, WithoutEvents};

/// A component file to be watched for one plugin of one stream. `K` is the caller's name for the two.
#[derive(Clone, Debug)]
pub struct Watched<K> {
    /// Comes back in [`Reloaded`].
    pub key: K,
    /// The operator's name of the plugin.
    pub name: String,
    /// The component file.
    pub path: PathBuf,
    /// What the new instance is loaded on.
    pub terms: Terms,
    /// The settings of the new instance, JSON text.
    pub settings: String,
    /// What runs now: the same bytes are no reload.
    pub digest: Digest,
}

/// A changed component file.
#[derive(Debug)]
pub struct Reloaded<K> {
    /// Whose it is.
    pub key: K,
    /// The file.
    pub path: PathBuf,
    /// An instance, configured, whose next call is `open`; or why what runs goes on running.
    pub result: Result<Plugin, ReloadError>,
}

/// Why a changed component does not take over.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It cannot be started with its settings.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// A thread that watches component files. Ends when this is dropped.
#[derive(Debug)]
pub struct Watch(Watching);

impl Watch {
    /// Watches these files until dropped. `on_ready` runs on the watching thread, once for each new content of a file,
    /// good or bad; the caller has it put the outcome where the stream's thread finds it between two batches.
    ///
    /// `has_more_changed` says that settings have changed, too, and are about to be read: a changed component waits for the
    /// caller to drop this, and start another with both.
    ///
    /// # Errors
    /// If there can be no thread.
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

    /// The directories that could not be watched, to be told to the operator.
    pub fn without_events(&self) -> &[WithoutEvents] {
        self.0.without_events()
    }
}

/// A file and what was last seen of it.
struct File<K> {
    watched: Watched<K>,
    /// None: to be read at the next look, whatever its metadata.
    stamp: Option<Stamp>,
    /// What was last told as bad: told once.
    told: Option<Bad>,
}

#[derive(PartialEq, Eq)]
enum Bad {
    Content(Digest),
    Unreadable,
}

impl<K> File<K> {
    fn new(watched: Watched<K>) -> Self {
        Self { watched, stamp: None, told: None }
    }

    /// The file's stamp, where it is to be read.
    fn other_stamp(&self) -> Option<Stamp> {
        Stamp::other(&self.watched.path, self.stamp.as_ref())
    }

    /// An instance of what the file now holds, or what is wrong with it; nothing if that is no news.
    fn look(&mut self, host: &Host, settled: bool) -> Option<Result<Plugin, ReloadError>> {
        let stamp = self.other_stamp()?;
        self.stamp = settled.then_some(stamp);
        let bytes = match host::read(&self.watched.name, &self.watched.path) {
            Ok(bytes) => bytes,
            Err(error) => return self.bad(Bad::Unreadable, error.into()),
        };
        let digest = Digest::of(&bytes);
        if digest == self.watched.digest {
            self.told = None;
            return None;
        }
        match self.start(host, &bytes) {
            Ok(plugin) => {
                self.watched.digest = digest;
                self.told = None;
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
        let news = self.told.as_ref() != Some(&bad);
        self.told = Some(bad);
        news.then_some(Err(error))
    }
}
