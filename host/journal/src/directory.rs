//! The locked root of a journal: one sub-directory per stream, one thread for retention.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use crate::background::StreamShared;
use crate::error::{IoError, OpenError, ReadError};
use crate::mutex::lock;
use crate::options::{Background, Options, check};
use crate::reader;
use crate::recovery::{self, Recovered, WriterStart};
use crate::retention;
use crate::root::Root;
use crate::storage::{Disk, LOCK, Storage, is_full};
use crate::text_file;
use crate::writer::Writer;

/// A journal directory, locked for this process for as long as it or a writer of it lives.
pub struct Directory {
    root: Arc<Root>,
    retention: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Directory {
    /// Makes the directory if need be (its parent must be there) and locks it. On a disk that has no room for it this is done
    /// with the first frame that finds some.
    pub fn open(dir: &Path, options: Options) -> Result<Directory, OpenError> {
        Directory::open_on(Arc::new(Disk), dir, options, Background::Threads)
    }

    /// The same on a disk, and with a background, of the caller's.
    pub fn open_on(
        storage: Arc<dyn Storage>,
        dir: &Path,
        options: Options,
        background: Background,
    ) -> Result<Directory, OpenError> {
        check(&options)?;
        let root = Arc::new(Root::open(storage, dir, options, background)?);
        let mut directory = Directory { root, retention: None };
        if background == Background::Threads {
            directory.retention = Some(directory.spawn_retention()?);
        }
        Ok(directory)
    }

    fn spawn_retention(&self) -> Result<(Arc<AtomicBool>, JoinHandle<()>), OpenError> {
        let (root, stop) = (self.root.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                retention::pass(&root);
                std::thread::park_timeout(retention::PERIOD);
            }
        };
        let thread = Builder::new().name("journal-retention".into()).spawn(work);
        let thread = thread.map_err(|error| IoError::new("start thread for", &self.root.dir, error))?;
        Ok((stop, thread))
    }

    /// Opens a stream for writing: recovers what the last run left and begins after it.
    pub fn stream(&self, name: &str) -> Result<(Writer, Recovered), OpenError> {
        check_name(name)?;
        let root = &self.root;
        let dir = root.dir.join(name);
        // Taken first, so that a second call finds it taken while the first still recovers.
        let mut streams = lock(&root.streams);
        if streams.contains_key(name) {
            return Err(OpenError::StreamOpen { stream: name.into() });
        }
        let recovery = match root.storage.make_dir(&dir) {
            // There is nothing of the stream, and no room for it yet.
            Err(error) if is_full(&error) || !root.is_made() => WriterStart::refused(&error),
            made => {
                made.map_err(|error| IoError::new("make directory", &dir, error))?;
                recovery::recover(&*root.storage, &dir, root.options.sync)?
            }
        };
        let shared = Arc::new(StreamShared::new(
            root.storage.clone(),
            name,
            dir,
            root.options.sync,
            recovery.last_frame(),
        ));
        shared.begin_manifest(recovery.manifest);
        streams.insert(name.into(), shared.clone());
        drop(streams);
        Writer::begin(root.clone(), shared, recovery)
    }

    /// Says which streams a stream comes after, for those who read the journal later ([`reader::Stream::after`]); none
    /// takes back what was said. The stream must have been opened.
    pub fn set_after(&self, name: &str, after: &[String]) -> Result<(), OpenError> {
        check_name(name)?;
        after.iter().try_for_each(|name| check_name(name))?;
        let text: String = after.iter().map(|name| format!("{name}\n")).collect();
        Ok(text_file::write(&*self.root.storage, &self.root.dir.join(name), text_file::AFTER, &text)?)
    }

    /// Reads a stream of this journal, from any thread.
    pub fn reader(&self, name: &str) -> Result<reader::Stream, ReadError> {
        reader::Journal::open_on(self.root.storage.clone(), &self.root.dir)?.stream(name)
    }

    /// Does what the retention thread does once a second; for `Background::Caller`.
    pub fn tend(&self) {
        retention::pass(&self.root);
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.retention.take() {
            stop.store(true, Ordering::Release);
            thread.thread().unpark();
            // A panic of the thread has nobody left to be told to.
            let _ = thread.join();
        }
    }
}

fn check_name(name: &str) -> Result<(), OpenError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty()
        || name.len() > 128
        || !name.bytes().all(plain)
        || name.starts_with('.')
        || name == LOCK
    {
        return Err(OpenError::StreamName { stream: name.into() });
    }
    Ok(())
}
