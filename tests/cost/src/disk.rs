//! The disk without the clock since boot: valgrind hides the kernel's page from which rustix reads that clock.

use afterbay_journal::storage::{BootClock, DirEntry, Disk, File, Lock, LockError, Storage};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The machine's own disk.
pub struct ClocklessDisk;

impl Storage for ClocklessDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.make_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        Disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Disk.create(path)
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
        None
    }
}
