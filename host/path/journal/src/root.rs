//! State that a journal directory shares with the writers of its streams.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::background::StreamShared;
use crate::clock::ClockReading;
use crate::confirmed::Follower;
use crate::error::{HeldBack, IoError, OpenError, ReadError};
use crate::instance;
use crate::manifest;
use crate::mutex::lock;
use crate::notice::BackgroundNotice;
use crate::options::{Background, JournalOptions};
use crate::storage::{Lock, LockError, Storage, is_full};

/// State of a journal directory.
pub(crate) struct Root {
    pub storage: Arc<dyn Storage>,
    pub dir: PathBuf,
    pub options: JournalOptions,
    pub background: Background,
    /// `None` while the disk has no room for the directory.
    lock: Mutex<Option<Box<dyn Lock>>>,
    /// Clock for the ages of segments.
    pub clock: Mutex<ClockReading>,
    /// Streams that have a writer.
    pub streams: Mutex<HashMap<String, Arc<StreamShared>>>,
    pub over_budget: AtomicBool,
    /// The followers whose files say what may be removed.
    pub followers: Mutex<Vec<Follower>>,
    /// Whether `held_back` is set, for the writers.
    pub refuses_frames: AtomicBool,
    /// The reason why frames are refused.
    pub held_back: Mutex<Option<HeldBack>>,
}

impl Root {
    /// Makes the directory if it is missing and locks it, with the descriptor of an earlier process's lock if there is one.
    pub fn open(
        storage: Arc<dyn Storage>,
        dir: &Path,
        options: JournalOptions,
        background: Background,
        inherited: Option<OwnedFd>,
    ) -> Result<Root, OpenError> {
        let made = match storage.make_dir(dir) {
            Err(error) if is_full(&error) => false,
            made => made.map(|()| true).map_err(|error| IoError::new("make directory", dir, error))?,
        };
        let take = || match inherited {
            Some(lock) => storage.inherit_lock(dir, lock),
            None => storage.lock(dir),
        };
        let lock = match made.then(take) {
            Some(Ok(lock)) => Some(lock),
            Some(Err(LockError::Held(pid))) => return Err(OpenError::Locked { dir: dir.into(), pid }),
            Some(Err(LockError::Io(error))) if !is_full(&error) => {
                return Err(IoError::new("lock", dir, error).into());
            }
            Some(Err(_)) | None => None,
        };
        let mut clock = ClockReading::default();
        clock.update(&*storage);
        for entry in storage.list(dir).unwrap_or_default().iter().filter(|entry| entry.is_dir) {
            if let Some(manifest) = manifest::read(&*storage, &dir.join(&entry.name)) {
                clock.merge(manifest.clock, &*storage);
            }
        }
        let followers = Mutex::new(options.followers.clone());
        let root = Root {
            storage,
            dir: dir.into(),
            options,
            background,
            lock: Mutex::new(lock),
            clock: Mutex::new(clock),
            streams: Mutex::default(),
            over_budget: AtomicBool::new(false),
            followers,
            refuses_frames: AtomicBool::new(false),
            held_back: Mutex::default(),
        };
        if root.is_made() {
            match root.instance() {
                // A disk that refuses the file now is asked again when somebody needs the instance.
                Ok(_) | Err(OpenError::Io(_) | OpenError::Read(ReadError::Io(_))) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(root)
    }

    /// The identity of the directory, made if there is none yet.
    pub fn instance(&self) -> Result<String, OpenError> {
        instance::read_or_make(&*self.storage, &self.dir)
    }

    /// Lets the writers refuse frames for this reason from now on, or take frames again.
    pub fn set_held_back(&self, reason: Option<HeldBack>) {
        let mut held_back = lock(&self.held_back);
        self.refuses_frames.store(reason.is_some(), Ordering::Relaxed);
        *held_back = reason;
    }

    /// The reason why no frame may be written now. Takes no lock unless there is one.
    pub fn held_back(&self) -> Option<HeldBack> {
        self.refuses_frames.load(Ordering::Relaxed).then(|| lock(&self.held_back).clone()).flatten()
    }

    /// Makes a stream's directory again after it vanished. The root must exist, since its mount may be
    /// missing. Locks the root if it is not the one that was locked before.
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

    /// A further descriptor of the lock. `None` while the disk has no room for the directory.
    pub fn lock_descriptor(&self) -> io::Result<Option<OwnedFd>> {
        lock(&self.lock).as_ref().map(|held| held.descriptor()).transpose()
    }

    /// Writes this process's pid into the lock file.
    pub fn write_pid(&self) {
        if let Some(held) = &*lock(&self.lock) {
            held.write_pid();
        }
    }

    /// Publishes a notice to the stream, or to any open stream.
    pub fn push_notice(&self, stream: &str, notice: BackgroundNotice) {
        let streams = lock(&self.streams);
        if let Some(shared) = streams.get(stream).or(streams.values().next()) {
            shared.push_notice(notice);
        }
    }

    /// Whether the directory exists and is locked.
    pub fn is_made(&self) -> bool {
        lock(&self.lock).is_some()
    }

    /// Reads the clocks for the ages of segments.
    pub fn read_clock(&self) -> ClockReading {
        let mut clock = lock(&self.clock);
        clock.update(&*self.storage);
        *clock
    }
}
