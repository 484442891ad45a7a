//! A storage that keeps names and sizes and discards bytes, for a trial, which reads nothing back.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{BootClock, DirEntry, File, Lock, LockError, Storage};

/// Keeps names and sizes, and discards bytes. The clock stands still.
#[derive(Default)]
pub struct DiscardingStorage(Mutex<Names>);

#[derive(Default)]
struct Names {
    dirs: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, Arc<SizedFile>>,
}

/// A file of which only the size is known.
#[derive(Default)]
struct SizedFile(AtomicU64);

impl DiscardingStorage {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Storage for DiscardingStorage {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.names().dirs.insert(dir.into());
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let names = self.names();
        let entry = |path: &Path, is_dir: bool, bytes: u64| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            (path.parent() == Some(dir)).then_some(DirEntry { name, is_dir, bytes, modified_unix_ns: 0 })
        };
        let dirs = names.dirs.iter().filter_map(|path| entry(path, true, 0));
        let files =
            names.files.iter().filter_map(|(path, file)| entry(path, false, file.0.load(Ordering::Relaxed)));
        Ok(dirs.chain(files).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = Arc::new(SizedFile::default());
        self.names().files.insert(path.into(), file.clone());
        Ok(file)
    }

    fn open(&self, path: &Path, _write: bool) -> io::Result<Arc<dyn File>> {
        Ok(self.names().files.get(path).cloned().ok_or_else(missing)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names();
        let file = names.files.remove(from).ok_or_else(missing)?;
        names.files.insert(to.into(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.names().files.remove(path).map(drop).ok_or_else(missing)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _dir: &Path) -> Result<Box<dyn Lock>, LockError> {
        Ok(Box::new(NoLock))
    }

    fn now_unix_ns(&self) -> u64 {
        0
    }

    fn steady(&self) -> Option<BootClock> {
        None
    }
}

impl File for SizedFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.0.fetch_max(offset + bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn reserve(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.0.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn set_modified(&self, _unix_ns: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_at(&self, _path: &Path) -> bool {
        true
    }
}

/// Nobody else knows the storage.
#[derive(Debug)]
struct NoLock;

impl Lock for NoLock {
    fn is_in_place(&self) -> bool {
        true
    }
}
