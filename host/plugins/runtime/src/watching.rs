//! The watch over files: a thread that examines them when something may have changed. Only this file names notify.
//!
//! The thread watches directories, not files, since editors and builds replace a file by renaming another over it. An event
//! only triggers a look. Metadata, and then a digest, show whether a file has changed.

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

/// A directory without events. Its files are still examined every [`RESCAN`].
#[derive(Debug, thiserror::Error)]
#[error("watch of {directory}: {message}; its files are read every {RESCAN:?}")]
pub struct WithoutEvents {
    /// The directory.
    pub directory: PathBuf,
    /// The system's error.
    pub message: String,
}

/// A thread that examines files. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    stop: Arc<AtomicBool>,
    bell: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
    without_events: Vec<WithoutEvents>,
}

/// The circumstances of a look.
pub(crate) struct Look<'a> {
    /// Whether nothing happened for [`SETTLE`]. Otherwise a file may still be written to, and the next write may fall into
    /// the same tick of the file system's clock, so that its [`Stamp`] says nothing.
    pub(crate) settled: bool,
    stop: &'a AtomicBool,
}

impl Look<'_> {
    /// Whether the thread must end.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Waits while `condition` holds, at most [`WAIT_FOR_OTHERS_MAX`].
    pub(crate) fn wait_while(&self, is_so: impl Fn() -> bool) {
        let until = Instant::now() + WAIT_FOR_OTHERS_MAX;
        while !self.is_over() && Instant::now() < until && is_so() {
            std::thread::sleep(SETTLE);
        }
    }
}

impl Watching {
    /// Starts the thread. It takes a look once nothing has happened for [`SETTLE`], since a file may have changed before the
    /// watch began, then after each event beside one of the files, and every [`RESCAN`].
    pub(crate) fn start<'p>(
        thread: &str,
        files: impl Iterator<Item = &'p Path>,
        mut look: impl FnMut(&Look<'_>) + Send + 'static,
    ) -> std::io::Result<Watching> {
        // A channel of one: one waiting event is enough, and more are dropped.
        let (bell, rung) = sync_channel(1);
        let (watcher, without_events) = watch_directories(files, bell.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name(thread.to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut settled = settle(&rung, &stop);
                while !stop.load(Ordering::SeqCst) {
                    look(&Look { settled, stop: &stop });
                    settled = match rung.recv_timeout(RESCAN) {
                        Ok(()) => settle(&rung, &stop),
                        Err(RecvTimeoutError::Timeout) => true,
                        Err(RecvTimeoutError::Disconnected) => break,
                    };
                }
                drop(watcher);
            }
        })?;
        Ok(Watching { stop, bell, thread: Some(thread), without_events })
    }

    /// The directories that could not be watched, for a report to the operator.
    pub(crate) fn without_events(&self) -> &[WithoutEvents] {
        &self.without_events
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Full: the thread has an event and wakes up.
        let _ = self.bell.try_send(());
        if let Some(thread) = self.thread.take() {
            // A panic there is the caller's, and was printed already.
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

/// The directories in which a change of the file is visible: that of its name, and that of its link's target.
fn directories_of(path: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        Some(parent) => Some(parent.to_owned()),
        None => None,
    };
    let target = path.canonicalize().ok();
    parent(path).into_iter().chain(target.as_deref().and_then(parent)).collect()
}

/// Opening and reading a file changes nothing. This thread does both itself.
fn is_reading(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if *access != AccessKind::Close(AccessMode::Write))
}

/// The metadata that change when a file is written or replaced.
#[derive(PartialEq, Eq)]
pub(crate) enum Stamp {
    Missing,
    File { device: u64, inode: u64, length: u64, modified: (i64, i64), changed: (i64, i64) },
}

impl Stamp {
    /// The file's current stamp, if it differs.
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

/// Waits until nothing has happened for [`SETTLE`]. Returns false if that took longer than [`SETTLE_MAX`].
fn settle(rung: &Receiver<()>, stop: &AtomicBool) -> bool {
    let began = Instant::now();
    while rung.recv_timeout(SETTLE).is_ok() {
        if stop.load(Ordering::SeqCst) || began.elapsed() >= SETTLE_MAX {
            return false;
        }
    }
    true
}
