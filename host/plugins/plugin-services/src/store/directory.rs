//! The stores of a process, and the thread that syncs them.

use crate::store::bounds::SYNC_EVERY;
use crate::store::stores::{Store, lock};
use crate::store::telemetry::StoreTelemetry;
use afterbay_journal::storage::{Disk, Storage};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// The directory of the stores in the journal's directory. No stream's name begins with a dot.
const DIRECTORY: &str = ".plugins";

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("store {}: {error}", path.display())]
pub struct OpenError {
    path: PathBuf,
    #[source]
    error: io::Error,
}

/// The work that no stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// A thread does it.
    Thread,
    /// The caller does it by [`StoreDirectory::tend`], for tests that own the disk.
    Caller,
}

/// The stores of a process, by the name of their plugin.
pub struct StoreDirectory {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    telemetry: StoreTelemetry,
    stores: Mutex<BTreeMap<String, Arc<Store>>>,
    stop: AtomicBool,
    /// Set while another process may write the files.
    is_paused: Mutex<bool>,
}

impl StoreDirectory {
    /// The stores beside the journal in this directory, which the process has locked.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn open(journal: &Path, telemetry: StoreTelemetry) -> io::Result<StoreDirectory> {
        StoreDirectory::open_on(Arc::new(Disk), journal, telemetry, Background::Thread)
    }

    /// As [`StoreDirectory::open`], on this storage.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn open_on(
        storage: Arc<dyn Storage>,
        journal: &Path,
        telemetry: StoreTelemetry,
        background: Background,
    ) -> io::Result<StoreDirectory> {
        let dir = journal.join(DIRECTORY);
        let (stores, stop, is_paused) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { storage, dir, telemetry, stores, stop, is_paused });
        let thread = match background {
            Background::Caller => None,
            Background::Thread => {
                let shared = shared.clone();
                Some(Builder::new().name("plugin-stores".into()).spawn(move || shared.run())?)
            }
        };
        Ok(StoreDirectory { shared, thread })
    }

    /// The store of the plugins of this name. Reads its file if no plugin uses it yet.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn store(&self, plugin: &str) -> Result<Arc<Store>, OpenError> {
        let Shared { storage, dir, telemetry, stores, .. } = &*self.shared;
        let mut stores = lock(stores);
        if let Some(store) = stores.get(plugin) {
            return Ok(store.clone());
        }
        let opened = Store::open(storage.clone(), dir, plugin, telemetry.clone());
        let store = opened.map_err(|error| OpenError { path: dir.join(format!("{plugin}.store")), error })?;
        let store = Arc::new(store);
        stores.insert(plugin.to_owned(), store.clone());
        Ok(store)
    }

    /// Syncs every file, replaces long files, and closes the stores that no plugin uses any more.
    pub fn tend(&self) {
        self.shared.tend();
    }

    /// Syncs every file, then leaves the files to another process. No plugin changes a value meanwhile.
    pub fn pause(&self) {
        self.shared.tend();
        *lock(&self.shared.is_paused) = true;
    }

    /// Takes the files back after [`StoreDirectory::pause`], when the other process has ended. The values are those of this
    /// process: a file that the other process replaced is replaced again.
    pub fn resume(&self) {
        *lock(&self.shared.is_paused) = false;
        self.shared.tend();
    }
}

impl Shared {
    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            self.tend();
            std::thread::park_timeout(SYNC_EVERY);
        }
    }

    fn tend(&self) {
        let is_paused = lock(&self.is_paused);
        if *is_paused {
            return;
        }
        let all: Vec<Arc<Store>> = lock(&self.stores).values().cloned().collect();
        all.iter().for_each(|store| store.tend());
        drop(all);
        lock(&self.stores).retain(|_, store| {
            let is_used = Arc::strong_count(store) > 1;
            if !is_used {
                // Its last batch may have ended after the sync.
                store.tend();
                store.forget();
            }
            is_used
        });
    }
}

impl Drop for StoreDirectory {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Nobody is left to report a panic of the thread to.
            let _ = thread.join();
        }
        self.shared.tend();
    }
}
