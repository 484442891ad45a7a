//! The locked root of a journal: one sub-directory per stream, one thread for retention.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::beside;
use crate::bounds::{FRAME_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::clock::Reading;
use crate::error::{IoError, OpenError, ReadError};
use crate::manifest;
use crate::reader;
use crate::recovery::{self, Recovered, Recovery};
use crate::retention;
use crate::storage::{Disk, LOCK, Lock, LockError, Storage, is_full};
use crate::sync::{Shared, lock};
use crate::writer::Writer;

/// What survives a power cut. Whatever is chosen, what was appended survives the death of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// What the kernel happened to write; nothing is promised.
    None,
    /// All but about the last interval.
    Interval(Duration),
    /// Every frame numbered up to `Writer::durable`: the stream holds a frame until then.
    Always,
}

/// How a journal is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// What survives a power cut.
    pub sync: SyncPolicy,
    /// A segment that would grow past this is ended before the next frame.
    pub segment_bytes: u64,
    /// The size of the whole directory past which the oldest segments are removed. Looked at once a second.
    pub retain_bytes: Option<u64>,
    /// The age (of a segment's last write) past which it is removed. A segment also ends when an eighth of it old.
    pub retain_age: Option<Duration>,
    /// A request without a row for this long counts as abandoned: it no longer keeps segments from being removed.
    pub abandon_after: Duration,
    /// The largest frame.
    pub max_frame_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sync: SyncPolicy::Interval(Duration::from_millis(50)),
            segment_bytes: 256 << 20,
            retain_bytes: None,
            retain_age: None,
            abandon_after: Duration::from_secs(3600),
            max_frame_bytes: 256 << 20,
        }
    }
}

/// Who does what is done off the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Threads of the journal: one for retention, one per stream.
    Threads,
    /// The caller, with `Directory::tend` and `Writer::tend`: for tests that own time and disk.
    Caller,
}

/// A journal directory, locked for this process for as long as it or a writer of it lives.
pub struct Directory {
    root: Arc<Root>,
    retention: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

/// What the directory and its writers share.
pub(crate) struct Root {
    pub storage: Arc<dyn Storage>,
    pub dir: PathBuf,
    pub options: Options,
    pub background: Background,
    /// `None`: the disk has no room for the directory yet.
    lock: Mutex<Option<Box<dyn Lock>>>,
    /// How old segments are.
    pub clock: Mutex<Reading>,
    /// The streams that have a writer.
    pub streams: Mutex<HashMap<String, Arc<Shared>>>,
    pub over_budget: AtomicBool,
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
        let made = match storage.make_dir(dir) {
            Err(error) if is_full(&error) => false,
            made => made.map(|()| true).map_err(|error| IoError::new("make directory", dir, error))?,
        };
        let lock = match made.then(|| storage.lock(dir)) {
            Some(Ok(lock)) => Some(lock),
            Some(Err(LockError::Held(pid))) => return Err(OpenError::Locked { dir: dir.into(), pid }),
            Some(Err(LockError::Io(error))) if !is_full(&error) => {
                return Err(IoError::new("lock", dir, error).into());
            }
            Some(Err(_)) | None => None,
        };
        let mut clock = Reading::default();
        clock.look(&*storage);
        for entry in storage.list(dir).unwrap_or_default().iter().filter(|entry| entry.is_dir) {
            if let Some(manifest) = manifest::read(&*storage, &dir.join(&entry.name)) {
                clock.merge(manifest.clock, &*storage);
            }
        }
        let root = Arc::new(Root {
            storage,
            dir: dir.into(),
            options,
            background,
            lock: Mutex::new(lock),
            clock: Mutex::new(clock),
            streams: Mutex::default(),
            over_budget: AtomicBool::new(false),
        });
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
            Err(error) if is_full(&error) || !root.is_made() => Recovery::refused(&error),
            made => {
                made.map_err(|error| IoError::new("make directory", &dir, error))?;
                recovery::recover(&*root.storage, &dir, root.options.sync)?
            }
        };
        let shared =
            Arc::new(Shared::new(root.storage.clone(), name, dir, root.options.sync, recovery.last_frame()));
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
        Ok(beside::write(&*self.root.storage, &self.root.dir.join(name), beside::AFTER, &text)?)
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

impl Root {
    /// Makes a stream's directory again after it vanished. The root itself must be there: it may be the mount that
    /// is missing. If it is another than the one that was locked, it is locked too.
    pub fn restore(&self, dir: &Path) -> io::Result<()> {
        let mut held = lock(&self.lock);
        if held.is_none() {
            self.storage.make_dir(&self.dir)?;
        }
        if !held.as_ref().is_some_and(|held| held.is_in_place()) {
            let locked = self.storage.lock(&self.dir).map_err(|error| match error {
                LockError::Held(pid) => io::Error::other(format!("locked by process {pid}")),
                LockError::Io(error) => error,
            })?;
            *held = Some(locked);
        }
        self.storage.make_dir(dir)
    }

    /// The directory is there and locked, as far as was seen.
    fn is_made(&self) -> bool {
        lock(&self.lock).is_some()
    }

    /// Reads the clocks: how old segments are is asked of what this returns.
    pub fn look_at_clock(&self) -> Reading {
        let mut clock = lock(&self.clock);
        clock.look(&*self.storage);
        *clock
    }
}

fn check(options: &Options) -> Result<(), OpenError> {
    let within = |option, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(OpenError::Option { option, value, allowed: format!("{least} to {most}") }),
    };
    within("segment_bytes", options.segment_bytes, 4096, SEGMENT_BYTES_MAX)?;
    within("max_frame_bytes", options.max_frame_bytes as u64, 1, FRAME_BYTES_MAX as u64)
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
