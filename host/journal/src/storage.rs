//! The disk, as far as the journal needs one, so that a test can own it (and let it fail).

use std::fmt::Debug;
use std::fs;
use std::io::{self, IoSlice, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The file that is locked, in the journal's directory.
pub(crate) const LOCK: &str = "LOCK";

/// A file system and its clock.
pub trait Storage: Send + Sync {
    /// Makes a directory; one that is there is fine.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// What is in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>>;
    /// A new file to read and write; what was there under this name is gone.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// A file that is there, to read, and to write where so said.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>>;
    /// Gives a file another name, in place of what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory survive a power cut.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks `dir/LOCK` for this process.
    fn lock(&self, dir: &Path) -> Result<Box<dyn Lock>, LockError>;
    /// The clock that `Listed::modified_unix_ns` is of.
    fn now_unix_ns(&self) -> u64;
}

/// An open file.
pub trait File: Send + Sync {
    /// Writes the parts one behind the other from `offset`; returns how many bytes were written, as `pwritev` does.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Reads from `offset`; returns how many bytes were read, 0 only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Sets room aside for it to grow to this many bytes, its size unchanged. May be refused: then it grows as it is written.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
    /// Cuts it to this many bytes, and gives back room that was set aside.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    /// Makes what was written survive a power cut.
    fn sync(&self) -> io::Result<()>;
    /// Its size.
    fn bytes(&self) -> io::Result<u64>;
    /// Whether it is still what stands under this name.
    fn is_at(&self, path: &Path) -> bool;
}

/// A lock that is held until dropped.
pub trait Lock: Send + Sync + Debug {
    /// Whether the locked file is still the one under its name (the directory may have been replaced).
    fn is_in_place(&self) -> bool;
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// A file's size.
    pub bytes: u64,
    /// When it was last written.
    pub modified_unix_ns: u64,
}

/// Why a directory could not be locked.
#[derive(Debug)]
pub enum LockError {
    /// Somebody holds it; the pid they wrote.
    Held(String),
    /// The disk.
    Io(io::Error),
}

/// The machine's own disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // A file may be removed between the two calls, and a name that is not UTF-8 is none of ours.
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata()) else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
            listed.push(Listed {
                name,
                is_dir: metadata.is_dir(),
                bytes: metadata.len(),
                modified_unix_ns: unix_ns(modified),
            });
        }
        Ok(listed)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(DiskFile(fs::File::options().read(true).write(write).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn Lock>, LockError> {
        let path = dir.join(LOCK);
        let open = fs::File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let read = file.take(20).read_to_string(&mut pid);
                let pid = pid.trim();
                return Err(LockError::Held(if read.is_ok() && !pid.is_empty() { pid } else { "?" }.into()));
            }
            Err(fs::TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        // The lock is held all the same where the disk is too full for the pid.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Box::new(DiskLock { file: DiskFile(file), path }))
    }

    fn now_unix_ns(&self) -> u64 {
        unix_ns(SystemTime::now())
    }
}

#[derive(Debug)]
struct DiskFile(fs::File);

impl File for DiskFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.0, parts, offset)?)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes)?)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn is_at(&self, path: &Path) -> bool {
        let (Ok(there), Ok(here)) = (fs::metadata(path), self.0.metadata()) else { return false };
        (there.dev(), there.ino()) == (here.dev(), here.ino())
    }
}

#[derive(Debug)]
struct DiskLock {
    file: DiskFile,
    path: PathBuf,
}

impl Lock for DiskLock {
    fn is_in_place(&self) -> bool {
        self.file.is_at(&self.path)
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
