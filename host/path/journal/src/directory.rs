//! The locked root of a journal: one sub-directory per stream, and a thread for retention.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use crate::background::StreamShared;
use crate::confirmed::Follower;
use crate::erase::{EraseRows, EraseRule, ErasedRequests, Eraser, Expired, NotErased};
use crate::error::{IoError, OpenError, ReadError};
use crate::instance::INSTANCE;
use crate::mutex::lock;
use crate::names::is_stream_name;
use crate::options::{Background, JournalOptions, check};
use crate::pause::Pause;
use crate::position::SegmentId;
use crate::reader;
use crate::recovery::{self, RecoveredStream, WriterStart};
use crate::request::ErasedBy;
use crate::retention;
use crate::root::Root;
use crate::segment_files;
use crate::storage::{Disk, LOCK, Storage, is_full};
use crate::text_file;
use crate::writer::JournalWriter;

/// A journal directory. It stays locked for this process until it and all its writers are dropped.
pub struct JournalDirectory {
    root: Arc<Root>,
    /// Set while another process may write to the journal: nothing is removed and nothing erased meanwhile.
    pause: Arc<Pause>,
    retention: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    /// Erases requests by age.
    expired: Arc<Mutex<Option<Expired>>>,
}

impl JournalDirectory {
    /// Makes the directory if it is missing (its parent must exist) and locks it. On a full disk the first
    /// frame that finds room does this.
    pub fn open(dir: &Path, options: JournalOptions) -> Result<JournalDirectory, OpenError> {
        JournalDirectory::open_on(Arc::new(Disk), dir, options, Background::Threads)
    }

    /// Opens a journal on the given storage.
    pub fn open_on(
        storage: Arc<dyn Storage>,
        dir: &Path,
        options: JournalOptions,
        background: Background,
    ) -> Result<JournalDirectory, OpenError> {
        JournalDirectory::open_as(storage, dir, options, background, None)
    }

    /// Opens a journal with the lock of an earlier process, by [`JournalDirectory::lock_descriptor`]. Nothing is removed before
    /// [`JournalDirectory::claim`]: until then, the earlier process may continue.
    pub fn take_over(
        dir: &Path,
        options: JournalOptions,
        lock: OwnedFd,
    ) -> Result<JournalDirectory, OpenError> {
        JournalDirectory::open_as(Arc::new(Disk), dir, options, Background::Threads, Some(lock))
    }

    fn open_as(
        storage: Arc<dyn Storage>,
        dir: &Path,
        options: JournalOptions,
        background: Background,
        inherited: Option<OwnedFd>,
    ) -> Result<JournalDirectory, OpenError> {
        check(&options)?;
        let pause = Arc::new(Pause::new(inherited.is_some()));
        let root = Arc::new(Root::open(storage, dir, options, background, inherited)?);
        let mut directory = JournalDirectory { root, pause, retention: None, expired: Arc::default() };
        if background == Background::Threads {
            directory.retention = Some(directory.spawn_retention()?);
        }
        Ok(directory)
    }

    #[cfg(test)]
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    fn spawn_retention(&self) -> Result<(Arc<AtomicBool>, JoinHandle<()>), OpenError> {
        let (root, stop) = (self.root.clone(), Arc::new(AtomicBool::new(false)));
        let (stopped, pause, expired) = (stop.clone(), self.pause.clone(), self.expired.clone());
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                if let Some(_working) = pause.work() {
                    retention::pass(&root);
                }
                if let Some(expired) = &mut *lock(&expired) {
                    expired.pass(&root, &pause);
                }
                std::thread::park_timeout(retention::PERIOD);
            }
        };
        let thread = Builder::new().name("journal-retention".into()).spawn(work);
        let thread = thread.map_err(|error| IoError::new("start thread for", &self.root.dir, error))?;
        Ok((stop, thread))
    }

    /// Opens a stream for writing: recovers what the last run left and continues after it.
    pub fn stream(&self, name: &str) -> Result<(JournalWriter, RecoveredStream), OpenError> {
        check_name(name)?;
        let root = &self.root;
        let dir = root.dir.join(name);
        // Registered first, so that a second call fails while the first still recovers.
        let mut streams = lock(&root.streams);
        if streams.contains_key(name) {
            return Err(OpenError::StreamOpen { stream: name.into() });
        }
        let recovery = match root.storage.make_dir(&dir) {
            // The stream is new and the disk has no room for it yet.
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
        JournalWriter::begin(root.clone(), shared, recovery)
    }

    /// Records the streams that precede a stream ([`reader::StreamReader::after`]), replacing the last
    /// record. The stream must have been opened.
    pub fn set_after(&self, name: &str, after: &[String]) -> Result<(), OpenError> {
        check_name(name)?;
        after.iter().try_for_each(|name| check_name(name))?;
        let text: String = after.iter().map(|name| format!("{name}\n")).collect();
        Ok(text_file::write(&*self.root.storage, &self.root.dir.join(name), text_file::AFTER, &text)?)
    }

    /// Records the layout of a stream's frames ([`reader::StreamReader::layout`]), replacing the last record. The stream must have
    /// been opened.
    pub fn set_layout(&self, name: &str, layout: &str) -> Result<(), OpenError> {
        check_name(name)?;
        Ok(text_file::write(&*self.root.storage, &self.root.dir.join(name), text_file::LAYOUT, layout)?)
    }

    /// The recorded layout of a stream's frames. Empty if there is none.
    pub fn layout(&self, name: &str) -> Result<String, ReadError> {
        text_file::read(&*self.root.storage, &self.root.dir.join(name), text_file::LAYOUT)
    }

    /// Opens a stream of this journal for reading, from any thread.
    pub fn reader(&self, name: &str) -> Result<reader::StreamReader, ReadError> {
        reader::JournalReader::open_on(self.root.storage.clone(), &self.root.dir)?.stream(name)
    }

    /// Erases the requests with this rid in these streams: overwrites their tokens, texts and notes in the segments, and
    /// records the erasure. Blocks while it reads and writes segments. Streams continue meanwhile. May be repeated.
    ///
    /// # Errors
    /// [`NotErased::Busy`]: a stream was asked to end its segment, call again. Nothing is erased unless all can be.
    pub fn erase(
        &self,
        streams: &[String],
        rid: &str,
        by: ErasedBy,
        rows: &mut dyn EraseRows,
    ) -> Result<Vec<ErasedRequests>, NotErased> {
        let eraser = Eraser { root: &self.root, pause: &self.pause, by };
        eraser.erase(streams, None, &|info| info.rid == rid, rows)
    }

    /// Erases requests by age from now on, in the retention thread: those of which the segment with their end has reached the age of
    /// the first rule that selects them. One segment's requests per second.
    pub fn erase_expired(&self, rules: Vec<EraseRule>, rows: Box<dyn EraseRows + Send>) {
        *lock(&self.expired) = Some(Expired::new(rules, rows));
    }

    /// The names of the streams that are open for writing.
    pub fn open_streams(&self) -> Vec<String> {
        lock(&self.root.streams).keys().cloned().collect()
    }

    /// The segments of a stream, oldest first, each with its bytes. A stream without a directory has none.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn segments(&self, stream: &str) -> io::Result<Vec<(SegmentId, u64)>> {
        let segments = segment_files::list(&*self.root.storage, &self.root.dir.join(stream))?;
        Ok(segments.into_iter().map(|segment| (segment.id, segment.bytes)).collect())
    }

    /// Whether no process changes this segment of a stream any more, apart from an erasure: a later segment exists, and the
    /// segment has its summary and is synced, as far as possible.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn has_ended(&self, stream: &str, segment: SegmentId) -> io::Result<bool> {
        let is_tracked =
            lock(&self.root.streams).get(stream).is_some_and(|shared| shared.is_tracked(segment));
        let segments = if is_tracked { Vec::new() } else { self.segments(stream)? };
        Ok(segments.iter().any(|(id, _)| *id > segment))
    }

    /// The identity of the directory: host name and 8 random digits, made at the first start. Names of copies carry it.
    ///
    /// # Errors
    /// The file `INSTANCE` cannot be read or made, or holds something else.
    pub fn instance(&self) -> Result<String, OpenError> {
        self.root.instance()
    }

    /// Lets retention remove only segments that these followers have confirmed, from now on.
    pub fn set_followers(&self, followers: Vec<Follower>) {
        *lock(&self.root.followers) = followers;
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.root.dir
    }

    /// A further descriptor of the lock, for the next process. `None` while the disk has no room for the directory.
    ///
    /// # Errors
    /// There is no room for a descriptor.
    pub fn lock_descriptor(&self) -> io::Result<Option<OwnedFd>> {
        self.root.lock_descriptor()
    }

    /// Leaves the directory to another process, which has the lock too. No stream is open. Waits for a removal that is under way; an
    /// erasure stops within a MiB.
    pub fn pause(&self) {
        self.pause.begin();
    }

    /// Makes this process the one that owns the directory: after [`JournalDirectory::take_over`] or [`JournalDirectory::pause`],
    /// when no other process writes to it any more.
    pub fn claim(&self) {
        self.pause.end();
        self.root.write_pid();
    }

    /// Runs one pass of the retention thread, for `Background::Caller`.
    pub fn tend(&self) {
        retention::pass(&self.root);
        if let Some(expired) = &mut *lock(&self.expired) {
            expired.pass(&self.root, &self.pause);
        }
    }
}

impl Drop for JournalDirectory {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.retention.take() {
            stop.store(true, Ordering::Release);
            thread.thread().unpark();
            // Nobody is left to report a panic of the thread to.
            let _ = thread.join();
        }
    }
}

fn check_name(name: &str) -> Result<(), OpenError> {
    if !is_stream_name(name) || [LOCK, INSTANCE].contains(&name) {
        return Err(OpenError::StreamName { stream: name.into() });
    }
    Ok(())
}
