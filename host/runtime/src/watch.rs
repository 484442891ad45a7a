//! Reload: component files that change are compiled, checked and started here, off the path of any batch, and handed
//! over ready to run. The stream swaps between two batches. The only file that names notify.
//!
//! Directories are watched, not files: editors and builds replace a file by renaming another over it. An event says
//! only that it is time to look; whether a file changed is seen from its metadata, then from its digest.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::component::{Digest, LoadError};
use crate::grants::Terms;
use crate::host::{self, Host};
use crate::instance::{Plugin, StartError};
use crate::limits::{RESCAN, SETTLE, SETTLE_MAX};

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

/// A directory from which no events come. Its files are still looked at, every [`RESCAN`].
#[derive(Debug, thiserror::Error)]
#[error("watch of {directory}: {message}; its files are looked at every {RESCAN:?} instead")]
pub struct WithoutEvents {
    /// The directory.
    pub directory: PathBuf,
    /// What the system says.
    pub message: String,
}

/// A thread that watches component files. Ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    bell: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
    without_events: Vec<WithoutEvents>,
}

impl Watch {
    /// Watches these files until dropped. `on_ready` runs on the watching thread, once for each new content of a file,
    /// good or bad; the caller has it put the outcome where the stream's thread finds it between two batches.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start<K: Send + Clone + 'static>(
        host: Host,
        watched: Vec<Watched<K>>,
        on_ready: impl FnMut(Reloaded<K>) + Send + 'static,
    ) -> std::io::Result<Self> {
        // A bell, not a queue: one ring waiting says all there is to say, more are dropped.
        let (bell, rung) = sync_channel(1);
        let paths = watched.iter().map(|file| file.path.as_path());
        let (watcher, without_events) = watch_directories(paths, bell.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let files = watched.into_iter().map(File::new).collect();
        let thread = std::thread::Builder::new().name("plugin-watch".into()).spawn({
            let mut looker = Looker { host, files, on_ready };
            let stop = Arc::clone(&stop);
            move || {
                looker.run(&rung, &stop);
                drop(watcher);
            }
        })?;
        Ok(Self { stop, bell, thread: Some(thread), without_events })
    }

    /// The directories that could not be watched, to be told to the operator.
    pub fn without_events(&self) -> &[WithoutEvents] {
        &self.without_events
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Full: it has been rung and will wake.
        let _ = self.bell.try_send(());
        if let Some(thread) = self.thread.take() {
            // A panic there is one of `on_ready`'s, already printed.
            let _ = thread.join();
        }
    }
}

pub(crate) fn watch_directories<'p>(
    paths: impl Iterator<Item = &'p Path>,
    bell: SyncSender<()>,
) -> (Option<RecommendedWatcher>, Vec<WithoutEvents>) {
    let mut directories: Vec<PathBuf> = paths.flat_map(directories_of).collect();
    directories.sort_unstable();
    directories.dedup();
    let failed =
        |directory: PathBuf, error: notify::Error| WithoutEvents { directory, message: error.to_string() };
    let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        if event.is_ok_and(|event| is_reading(&event.kind)) {
            return;
        }
        let _ = bell.try_send(());
    });
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => {
            let message = error.to_string();
            let without = |directory| WithoutEvents { directory, message: message.clone() };
            return (None, directories.into_iter().map(without).collect());
        }
    };
    let mut without_events = Vec::new();
    for directory in directories {
        if let Err(error) = watcher.watch(&directory, RecursiveMode::NonRecursive) {
            without_events.push(failed(directory, error));
        }
    }
    (Some(watcher), without_events)
}

/// Where a change of the file can be seen: beside its name, and beside what the name links to.
fn directories_of(path: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        Some(parent) => Some(parent.to_owned()),
        None => None,
    };
    let target = path.canonicalize().ok();
    parent(path).into_iter().chain(target.as_deref().and_then(parent)).collect()
}

/// Opening and reading a file changes nothing; this thread does it itself.
fn is_reading(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if *access != AccessKind::Close(AccessMode::Write))
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

/// What changes when a file is written or replaced.
#[derive(PartialEq, Eq)]
pub(crate) enum Stamp {
    Missing,
    File { device: u64, inode: u64, length: u64, modified: (i64, i64), changed: (i64, i64) },
}

impl Stamp {
    pub(crate) fn of(path: &Path) -> Self {
        match path.metadata() {
            Err(_) => Stamp::Missing,
            Ok(found) => Stamp::File {
                device: found.dev(),
                inode: found.ino(),
                length: found.len(),
                modified: (found.mtime(), found.mtime_nsec()),
                changed: (found.ctime(), found.ctime_nsec()),
            },
        }
    }
}

impl<K> File<K> {
    fn new(watched: Watched<K>) -> Self {
        Self { watched, stamp: None, told: None }
    }

    /// An instance of what the file now holds, or what is wrong with it; nothing if that is no news.
    fn look(&mut self, host: &Host, settled: bool) -> Option<Result<Plugin, ReloadError>> {
        let stamp = Stamp::of(&self.watched.path);
        if self.stamp.as_ref() == Some(&stamp) {
            return None;
        }
        // Still being written to: the next write may fall into the same tick of the file system's clock.
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

struct Looker<K, F> {
    host: Host,
    files: Vec<File<K>>,
    on_ready: F,
}

impl<K: Clone, F: FnMut(Reloaded<K>)> Looker<K, F> {
    fn run(&mut self, rung: &Receiver<()>, stop: &AtomicBool) {
        // A file may have changed between its first load and the start of this watch.
        self.look(stop, true);
        while !stop.load(Ordering::SeqCst) {
            match rung.recv_timeout(RESCAN) {
                Ok(()) => {
                    let settled = settle(rung, stop);
                    self.look(stop, settled);
                }
                Err(RecvTimeoutError::Timeout) => self.look(stop, true),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self, stop: &AtomicBool, settled: bool) {
        for file in &mut self.files {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            if let Some(result) = file.look(&self.host, settled) {
                let Watched { key, path, .. } = &file.watched;
                (self.on_ready)(Reloaded { key: key.clone(), path: path.clone(), result });
            }
        }
    }
}

/// Waits until nothing has happened for [`SETTLE`]; false if that did not come within [`SETTLE_MAX`].
pub(crate) fn settle(rung: &Receiver<()>, stop: &AtomicBool) -> bool {
    let began = Instant::now();
    while rung.recv_timeout(SETTLE).is_ok() {
        if stop.load(Ordering::SeqCst) || began.elapsed() >= SETTLE_MAX {
            return false;
        }
    }
    true
}
