//! The machine's disk, changed in one point.

use std::io;
use std::path::Path;
use std::sync::Arc;

use afterbay_journal::storage::{BootClock, DirEntry, Disk, File, Lock, LockError, Storage};

/// The machine's disk, but for the files that it creates and the clock since boot.
pub struct AlmostDisk<C> {
    /// Creates a file.
    pub create: C,
    /// Whether the clock since boot is there.
    pub has_boot_clock: bool,
}

impl<C: Fn(&Path) -> io::Result<Arc<dyn File>> + Send + Sync> Storage for AlmostDisk<C> {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.make_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        Disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        (self.create)(path)
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        Disk.open(path, write)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.sync_dir(dir)
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn Lock>, LockError> {
        Disk.lock(dir)
    }

    fn now_unix_ns(&self) -> u64 {
        Disk.now_unix_ns()
    }

    fn steady(&self) -> Option<BootClock> {
        // Valgrind ends a process that reads a clock which is not there.
        if self.has_boot_clock { Disk.steady() } else { None }
    }
}
