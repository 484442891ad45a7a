//! One store: its values, and its file.
//!
//! Two locks. The lock of the values is held for the length of one operation. The lock of the file is held while a batch's
//! operations are appended, so that a slow disk delays the end of a batch and not the operations of other streams. Whoever
//! takes both takes the lock of the file first.
//!
//! A write that fails leaves a file with an unknown end. The store then continues in memory, and [`Store::tend`] replaces
//! the file by a new one as soon as the disk takes it.

use crate::store::bounds::{
    FILE_BYTES_MAX, PENDING_BYTES_MAX, QUIET_ATTEMPTS, REWRITE_BYTES_MIN, REWRITE_FACTOR,
};
use crate::store::format::{Recovered, record_head, recover};
use crate::store::memory::Memory;
use crate::store::telemetry::{Reports, StoreTelemetry};
use crate::store::values::{StoreError, Value};
use afterbay_journal::storage::{File, Storage, read_full, write_all};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of keys, and the bytes of all keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSize {
    /// The keys.
    pub keys: usize,
    /// The bytes of all keys and values.
    pub bytes: usize,
}

/// The values of the plugins of one name.
pub struct Store {
    memory: Mutex<Memory>,
    file: Option<StoreFile>,
    reports: Reports,
}

/// The path of a store's file, and the file.
struct StoreFile {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    path: PathBuf,
    /// The file while it is written. Renaming gives it its name.
    part: PathBuf,
    state: Mutex<FileState>,
    /// Whether bytes were written that are not synced.
    is_unsynced: AtomicBool,
}

#[derive(Default)]
struct FileState {
    /// `None` until the first file is written.
    file: Option<Arc<dyn File>>,
    /// The end of the records.
    end: u64,
    /// The bytes with which the file began.
    snapshot: u64,
    /// The operations that the file has, as [`Memory::commit`] counts them.
    written: u64,
    /// The records since the snapshot of the file that is about to replace this one. `None` if none is.
    since_snapshot: Option<Vec<u8>>,
    failing_since: Option<Instant>,
}

impl Store {
    /// An empty store without a file.
    pub fn in_memory() -> Store {
        Store { memory: Mutex::default(), file: None, reports: Reports::new("", None) }
    }

    /// Opens the store of a plugin with its file, which may not exist. On a disk that takes no file, the store begins in
    /// memory.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        dir: &Path,
        plugin: &str,
        telemetry: StoreTelemetry,
    ) -> io::Result<Store> {
        let path = dir.join(format!("{plugin}.store"));
        let bytes = read(&*storage, &path)?;
        let Recovered { values, writers, bytes: whole } = recover(&bytes);
        let file = StoreFile {
            part: dir.join(format!("{plugin}.store.part")),
            dir: dir.to_owned(),
            path,
            storage,
            state: Mutex::default(),
            is_unsynced: AtomicBool::new(false),
        };
        let reports = Reports::new(plugin, Some(telemetry));
        if whole < bytes.len() {
            let damaged = dir.join(format!("{plugin}.store.damaged"));
            // The copy is for a person. Without it, the store works as well.
            let kept = match file.storage.rename(&file.path, &damaged) {
                Ok(()) => damaged.display().to_string(),
                Err(error) => format!("no copy: {error}"),
            };
            reports.damaged((bytes.len() - whole) as u64, kept);
        }
        let store = Store { memory: Mutex::new(Memory::new(values, writers)), file: Some(file), reports };
        // A new file: unfinished batches of the last run must not seem finished with the next ones.
        store.tend();
        store.publish_size(&lock(&store.memory));
        Ok(store)
    }

    /// The writer of this name; the same one for each call.
    pub fn writer(self: &Arc<Self>, name: &str) -> StoreWriter {
        let mut memory = lock(&self.memory);
        let writer = memory.writer(name);
        let batch = AtomicU64::new(memory.committed(writer));
        let (is_read_only, has_changed) = (AtomicBool::new(false), AtomicBool::new(false));
        StoreWriter { store: self.clone(), writer, batch, is_read_only, has_changed }
    }

    /// The present size.
    pub fn size(&self) -> StoreSize {
        let memory = lock(&self.memory);
        StoreSize { keys: memory.values.keys(), bytes: memory.values.bytes() }
    }

    fn publish_size(&self, memory: &Memory) {
        self.reports.counters.keys.set(memory.values.keys() as u64);
        self.reports.counters.bytes.set(memory.values.bytes() as u64);
    }

    /// Appends the operations up to this one to the file, unless another writer did.
    fn append_through(&self, operation: u64) {
        let Some(file) = &self.file else { return };
        let mut state = lock(&file.state);
        if state.written < operation {
            self.append_pending(file, &mut state);
        }
    }

    fn append_pending(&self, file: &StoreFile, state: &mut FileState) {
        let mut memory = lock(&self.memory);
        if memory.is_overfull() {
            memory.stop_recording();
        }
        let (operations, written) = memory.take_pending();
        let is_recording = memory.is_recording;
        drop(memory);
        state.written = written;
        if !is_recording {
            if state.failing_since.is_none() && state.file.is_some() {
                let why = format!("more than {PENDING_BYTES_MAX} bytes of changes wait for the disk");
                self.fail(state, &why);
            }
            return;
        }
        if operations.is_empty() {
            return;
        }
        if let Err(error) = file.append(state, &operations) {
            self.fail(state, &format!("cannot write {}: {error}", file.path.display()));
        }
    }

    /// Notes a failing disk. The values stay in memory until a new file has them.
    fn fail(&self, state: &mut FileState, why: &str) {
        lock(&self.memory).stop_recording();
        state.since_snapshot = None;
        if state.failing_since.is_none() {
            state.failing_since = Some(Instant::now());
            self.reports.failed(why);
        }
    }

    /// Syncs the file, and replaces it if it is long, missing, or has an unknown end. Called twice a second.
    pub(crate) fn tend(&self) {
        let Some(file) = &self.file else { return };
        let state = lock(&file.state);
        let current = state.file.clone().filter(|_| state.failing_since.is_none());
        let is_long = state.end > REWRITE_BYTES_MIN && state.end > state.snapshot * REWRITE_FACTOR;
        drop(state);
        let result = match current {
            // A file that was removed under a running process would take changes that nobody ever reads.
            Some(current) if !is_long && current.is_at(&file.path) => file.sync(&*current),
            _ => self.replace_file(file),
        };
        if let Err(error) = result {
            let mut state = lock(&file.state);
            self.fail(&mut state, &format!("cannot write {}: {error}", file.path.display()));
        }
    }

    /// Writes a new file with the present values and puts it in place of the old one.
    fn replace_file(&self, file: &StoreFile) -> io::Result<()> {
        let snapshot = self.take_snapshot(file);
        file.storage.make_dir(&file.dir)?;
        let new = file.storage.create(&file.part)?;
        write_all(&*new, &mut [IoSlice::new(&snapshot)], 0)?;
        new.sync()?;
        let mut state = lock(&file.state);
        let Some(since) = state.since_snapshot.take() else {
            return Err(io::Error::other("too many changes while a new file was written"));
        };
        write_all(&*new, &mut [IoSlice::new(&since)], snapshot.len() as u64)?;
        file.storage.rename(&file.part, &file.path)?;
        state.file = Some(new.clone());
        state.snapshot = snapshot.len() as u64;
        state.end = state.snapshot + since.len() as u64;
        let failing_since = state.failing_since.take();
        drop(state);
        new.sync()?;
        file.storage.sync_dir(&file.dir)?;
        file.storage.sync_dir(file.dir.parent().unwrap_or(&file.dir))?;
        if let Some(since) = failing_since {
            self.reports.healed(since.elapsed());
        }
        Ok(())
    }

    /// Takes a snapshot for a new file, at a moment without an unfinished batch if there is one. From now on, the records
    /// are collected for the new file, too.
    fn take_snapshot(&self, file: &StoreFile) -> Vec<u8> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut state = lock(&file.state);
            if state.failing_since.is_none() && state.file.is_some() {
                // The old file has everything until the new one takes its place.
                self.append_pending(file, &mut state);
            }
            let mut memory = lock(&self.memory);
            if memory.is_quiet() || attempt >= QUIET_ATTEMPTS {
                let (_, written) = memory.take_pending();
                let snapshot = memory.snapshot();
                drop(memory);
                (state.written, state.since_snapshot) = (written, Some(Vec::new()));
                return snapshot;
            }
            drop((memory, state));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes the metrics and the health condition.
    pub(crate) fn forget(&self) {
        self.reports.forget();
    }
}

impl StoreFile {
    /// Appends a record to the file, and to the file that is about to replace it.
    fn append(&self, state: &mut FileState, operations: &[u8]) -> io::Result<()> {
        let head = record_head(operations);
        let bytes = (head.len() + operations.len()) as u64;
        if let Some(since) = &mut state.since_snapshot {
            since.extend_from_slice(&head);
            since.extend_from_slice(operations);
            if since.len() > PENDING_BYTES_MAX {
                state.since_snapshot = None;
            }
        }
        // Without a file, or after a failure, only the next file has the record.
        let Some(file) = state.file.as_ref().filter(|_| state.failing_since.is_none()) else { return Ok(()) };
        if state.end + bytes > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("it has {FILE_BYTES_MAX} bytes, the limit")));
        }
        write_all(&**file, &mut [IoSlice::new(&head), IoSlice::new(operations)], state.end)?;
        state.end += bytes;
        self.is_unsynced.store(true, Ordering::Release);
        Ok(())
    }

    fn sync(&self, file: &dyn File) -> io::Result<()> {
        if self.is_unsynced.swap(false, Ordering::AcqRel) { file.sync() } else { Ok(()) }
    }
}

/// One stream's side of a store. Its changes count from the end of the batch that made them.
pub struct StoreWriter {
    store: Arc<Store>,
    writer: u16,
    /// The last batch that was begun.
    batch: AtomicU64,
    /// Whether changes have no effect, because an earlier run has finished the batch.
    is_read_only: AtomicBool,
    /// Whether something changed since the last commit.
    has_changed: AtomicBool,
}

impl StoreWriter {
    /// The value of a key. The value of a number is its 8 bytes, little-endian.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        match lock(&self.store.memory).values.get(key)? {
            Value::Number(number) => Some(number.to_le_bytes().to_vec()),
            Value::Bytes(bytes) => Some(bytes.to_vec()),
        }
    }

    /// The number of a key; 0 if the key does not exist.
    ///
    /// # Errors
    /// If the value is not a number.
    pub fn number(&self, key: &str) -> Result<i64, StoreError> {
        lock(&self.store.memory).values.number(key)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// If the key or the value is too long, or the store is full.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        if self.is_read_only() {
            return Ok(());
        }
        let mut memory = lock(&self.store.memory);
        memory.set(self.writer, key, value)?;
        self.changed(&memory);
        Ok(())
    }

    /// Removes a key.
    pub fn delete(&self, key: &str) {
        if self.is_read_only() {
            return;
        }
        let mut memory = lock(&self.store.memory);
        memory.delete(self.writer, key);
        self.changed(&memory);
    }

    /// Adds to the number of a key, which is 0 if the key does not exist. Returns the sum.
    ///
    /// # Errors
    /// If the value is not a number, the key is too long, or the store is full.
    pub fn increment(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        if delta == 0 || self.is_read_only() {
            return self.number(key);
        }
        let mut memory = lock(&self.store.memory);
        let sum = memory.increment(self.writer, key, delta)?;
        self.changed(&memory);
        Ok(sum)
    }

    /// The keys with this prefix after the key `after`, ascending, at most [`LISTED_MAX`](crate::store::bounds::LISTED_MAX).
    pub fn list_keys(&self, prefix: &str, after: Option<&str>) -> Vec<String> {
        lock(&self.store.memory).values.list(prefix, after)
    }

    fn changed(&self, memory: &Memory) {
        self.has_changed.store(true, Ordering::Relaxed);
        self.store.publish_size(memory);
    }

    /// The last batch of this writer that changed something; 0 for none.
    pub fn committed(&self) -> u64 {
        lock(&self.store.memory).committed(self.writer)
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// Begins a batch: the changes from now on belong to it. If it is repeated and this writer had finished it already, its
    /// changes have no effect, and `increment` returns the present number.
    pub fn begin(&self, batch: u64, is_repeated: bool) {
        let is_finished = is_repeated && batch <= self.committed();
        self.is_read_only.store(is_finished, Ordering::Relaxed);
        if !is_finished {
            self.batch.store(batch, Ordering::Relaxed);
        }
    }

    /// Finishes the batch: its changes are appended to the file. Costs nothing if the batch changed nothing. Changes between
    /// two batches belong to the one before.
    pub fn commit(&self) {
        self.is_read_only.store(false, Ordering::Relaxed);
        if !self.has_changed.swap(false, Ordering::Relaxed) {
            return;
        }
        let batch = self.batch.load(Ordering::Relaxed);
        let appended = lock(&self.store.memory).commit(self.writer, batch);
        if let Some(appended) = appended {
            self.store.append_through(appended);
        }
    }
}

/// Reads a whole file. Empty if the file does not exist.
fn read(storage: &dyn Storage, path: &Path) -> io::Result<Vec<u8>> {
    let file = match storage.open(path, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let bytes = file.bytes()?;
    if bytes > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("has {bytes} bytes, the limit is {FILE_BYTES_MAX}")));
    }
    let mut content = vec![0; usize::try_from(bytes).unwrap_or_default()];
    let read = read_full(&*file, &mut content, 0)?;
    content.truncate(read);
    Ok(content)
}

/// Locks a mutex whose data stays valid after a panic: no code that holds a lock leaves its data half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
