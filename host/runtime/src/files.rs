//! Files that change, whatever is in them: told once for all that changed at once. What is done about it is the caller's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::component::Digest;
use crate::limits::RESCAN;
use crate::watch::{Stamp, WithoutEvents, settle, watch_directories};

/// A thread that watches files. Ends when this is dropped.
#[derive(Debug)]
pub struct FilesWatch {
    stop: Arc<AtomicBool>,
    bell: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
    without_events: Vec<WithoutEvents>,
}

struct File {
    path: PathBuf,
    /// None: to be read at the next look, whatever its metadata.
    stamp: Option<Stamp>,
    /// None: it cannot be read.
    digest: Option<Digest>,
}

impl File {
    fn new(path: PathBuf) -> File {
        let stamp = Some(Stamp::of(&path));
        let digest = digest(&path);
        File { path, stamp, digest }
    }

    /// Whether it holds something else than at the last look.
    fn has_changed(&mut self, settled: bool) -> bool {
        let stamp = Stamp::of(&self.path);
        if self.stamp.as_ref() == Some(&stamp) {
            return false;
        }
        // Still being written to: the next write may fall into the same tick of the file system's clock.
        self.stamp = settled.then_some(stamp);
        let now = digest(&self.path);
        std::mem::replace(&mut self.digest, now) != now
    }
}

fn digest(path: &std::path::Path) -> Option<Digest> {
    std::fs::read(path).ok().map(|bytes| Digest::of(&bytes))
}

impl FilesWatch {
    /// Watches these files until dropped. `on_change` runs on the watching thread, once for all that have changed by then, when
    /// they have come to rest.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(paths: Vec<PathBuf>, mut on_change: impl FnMut() + Send + 'static) -> std::io::Result<Self> {
        // A bell, as of the components' watch.
        let (bell, rung) = sync_channel(1);
        let (watcher, without_events) = watch_directories(paths.iter().map(PathBuf::as_path), bell.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let mut files: Vec<File> = paths.into_iter().map(File::new).collect();
        let thread = std::thread::Builder::new().name("files-watch".into()).spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::SeqCst) {
                    let settled = match rung.recv_timeout(RESCAN) {
                        Ok(()) => settle(&rung, &stop),
                        Err(RecvTimeoutError::Timeout) => true,
                        Err(RecvTimeoutError::Disconnected) => break,
                    };
                    // Each is looked at, also behind one that has changed.
                    let changed = files.iter_mut().filter_map(|file| file.has_changed(settled).then_some(()));
                    if changed.count() > 0 && !stop.load(Ordering::SeqCst) {
                        on_change();
                    }
                }
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

impl Drop for FilesWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Full: it has been rung and will wake.
        let _ = self.bell.try_send(());
        if let Some(thread) = self.thread.take() {
            // A panic there is one of `on_change`'s, already printed.
            let _ = thread.join();
        }
    }
}
