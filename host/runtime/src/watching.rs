//! The one way in which files are watched: a thread of its own that looks at them when something may have changed. The
//! only file that names notify.
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

use crate::limits::{RESCAN, SETTLE, SETTLE_MAX, WAIT_FOR_OTHERS_MAX};

/// A directory from which no events come. Its files are still looked at, every [`RESCAN`].
#[derive(Debug, thiserror::Error)]
#[error("watch of {directory}: {message}; its files are looked at every {RESCAN:?} instead")]
pub struct WithoutEvents {
    /// The directory.
    pub directory: PathBuf,
    /// What the system says.
    pub message: String,
}

/// A thread that looks at files. Ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    stop: Arc<AtomicBool>,
    bell: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
    without_events: Vec<WithoutEvents>,
}

/// When a look is taken.
pub(crate) struct Look<'a> {
    /// Nothing has happened for [`SETTLE`]. Where not, a file may still be being written to, and the next write may fall
    /// into the same tick of the file system's clock: its [`Stamp`] says nothing.
    pub(crate) settled: bool,
    stop: &'a AtomicBool,
}

impl Look<'_> {
    /// The thread is to end: nobody wants to know any more.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Waits for as long as it is so, [`WAIT_FOR_OTHERS_MAX`] at most.
    pub(crate) fn wait_while(&self, is_so: impl Fn() -> bool) {
        let until = Instant::now() + WAIT_FOR_OTHERS_MAX;
        while !self.is_over() && Instant::now() < until && is_so() {
            std::thread::sleep(SETTLE);
        }
    }
}

impl Watching {
    /// Starts the thread. It looks at once, since a file may have changed before it was watched, and then whenever
    /// something happens beside one of the files, or every [`RESCAN`].
    pub(crate) fn start<'p>(
        thread: &str,
        files: impl Iterator<Item = &'p Path>,
        mut look: impl FnMut(&Look<'_>) + Send + 'static,
    ) -> std::io::Result<Watching> {
        // A bell, not a queue: one ring waiting says all there is to say, more are dropped.
        let (bell, rung) = sync_channel(1);
        let (watcher, without_events) = watch_directories(files, bell.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name(thread.to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || {
                look(&Look { settled: true, stop: &stop });
                while !stop.load(Ordering::SeqCst) {
                    let settled = match rung.recv_timeout(RESCAN) {
                        Ok(()) => settle(&rung, &stop),
                        Err(RecvTimeoutError::Timeout) => true,
                        Err(RecvTimeoutError::Disconnected) => break,
                    };
                    look(&Look { settled, stop: &stop });
                }
                drop(watcher);
            }
        })?;
        Ok(Watching { stop, bell, thread: Some(thread), without_events })
    }

    /// The directories that could not be watched, to be told to the operator.
    pub(crate) fn without_events(&self) -> &[WithoutEvents] {
        &self.without_events
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Full: it has been rung and will wake.
        let _ = self.bell.try_send(());
        if let Some(thread) = self.thread.take() {
            // A panic there is one of the caller's, already printed.
            let _ = thread.join();
        }
    }
}

fn watch_directories<'p>(
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

/// What changes when a file is written or replaced.
#[derive(PartialEq, Eq)]
pub(crate) enum Stamp {
    Missing,
    File { device: u64, inode: u64, length: u64, modified: (i64, i64), changed: (i64, i64) },
}

impl Stamp {
    /// The file's, where it is another than before.
    pub(crate) fn other(path: &Path, before: Option<&Stamp>) -> Option<Stamp> {
        Some(Stamp::of(path)).filter(|now| before != Some(now))
    }

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

/// Waits until nothing has happened for [`SETTLE`]; false if that did not come within [`SETTLE_MAX`].
fn settle(rung: &Receiver<()>, stop: &AtomicBool) -> bool {
    let began = Instant::now();
    while rung.recv_timeout(SETTLE).is_ok() {
        if stop.load(Ordering::SeqCst) || began.elapsed() >= SETTLE_MAX {
            return false;
        }
    }
    true
}
