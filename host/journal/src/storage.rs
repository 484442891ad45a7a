//! The disk, as far as the journal needs one, so that a test can own it (and let it fail).

use std::fmt::Debug;
use std::fs;
use std::io::{self, IoSlice, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

/// The file that is locked, in the journal's directory.
pub(crate) const LOCK: &str = "LOCK";

/// The ending of a file that is not whole yet: it gets its name when it is.
pub(crate) const PART: &str = "part";

/// The mode of every file of the journal: requests' texts are its owner's business.
const FILE_MODE: u32 = 0o600;
/// The mode of every directory of the journal.
const DIR_MODE: u32 = 0o700;

/// A file system and its clock.
pub trait Storage: Send + Sync {
    /// Makes a directory that only its owner may enter; one that is there is fine, and stays as it is.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// What is in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// A new file to read and write that only its owner may open; what was there under this name is gone.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// A file that is there, to read, and to write where so said. Fails on what is no regular file, without waiting: a FIFO
    /// has no end.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>>;
    /// Gives a file another name, in place of what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory survive a power cut.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks `dir/LOCK` for this process.
    fn lock(&self, dir: &Path) -> Result<Box<dyn Lock>, LockError>;
    /// The clock that `DirEntry::modified_unix_ns` is of.
    fn now_unix_ns(&self) -> u64;
    /// A clock that nobody can set; `None` where the machine has none.
    fn steady(&self) -> Option<Steady>;
}

/// A reading of a clock that runs from the start of the machine, also while the machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steady {
    /// Names the start of the machine. Readings of two starts cannot be compared.
    pub boot: u64,
    /// Nanoseconds since then.
    pub ns: u64,
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
pub struct DirEntry {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// A file's size.
    pub bytes: u64,
    /// When it was last written.
    pub modified_unix_ns: u64,
}

pub use DirEntry as Listed;

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
        match fs::DirBuilder::new().mode(DIR_MODE).create(dir) {
            // The umask may have taken more from it.
            Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(DIR_MODE)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // A file may be removed between the two calls, and a name that is not UTF-8 is none of ours.
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata()) else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
            listed.push(DirEntry {
                name,
                is_dir: metadata.is_dir(),
                bytes: metadata.len(),
                modified_unix_ns: unix_ns(modified),
            });
        }
        Ok(listed)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE);
        let file = open_regular(&mut options, path, OFlags::NOFOLLOW)?;
        own(&file)?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>> {
        let file = open_regular(fs::File::options().read(true).write(write), path, OFlags::empty())?;
        Ok(Arc::new(DiskFile(file)))
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
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        // A link could name any file of this user's, which would be emptied.
        let mut file = open_regular(&mut options, &path, OFlags::NOFOLLOW).map_err(LockError::Io)?;
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
        // The lock is held all the same where the disk is too full for the pid, or the file is another user's.
        let _ = own(&file);
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Box::new(DiskLock { file: DiskFile(file), path }))
    }

    fn now_unix_ns(&self) -> u64 {
        unix_ns(SystemTime::now())
    }

    fn steady(&self) -> Option<Steady> {
        static BOOT: OnceLock<Option<u64>> = OnceLock::new();
        let boot = (*BOOT.get_or_init(boot))?;
        let since = clock_gettime(ClockId::Boottime);
        let ns = since.tv_sec as u64 * 1_000_000_000 + since.tv_nsec as u64;
        Some(Steady { boot, ns })
    }
}

/// What the kernel calls this start of the machine.
fn boot() -> Option<u64> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

/// Opens a file without waiting for somebody at its other end, and refuses what is no regular file.
fn open_regular(options: &mut fs::OpenOptions, path: &Path, flags: OFlags) -> io::Result<fs::File> {
    let flags = flags | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
            io::Error::new(error.kind(), "is a symbolic link")
        }
        _ => error,
    })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

/// Makes a file its owner's alone, whatever the umask says.
fn own(file: &fs::File) -> io::Result<()> {
    match file.metadata()?.mode() & 0o7777 {
        FILE_MODE => Ok(()),
        _ => file.set_permissions(fs::Permissions::from_mode(FILE_MODE)),
    }
}

/// Whether an error says that the disk has no room (or this user has none left).
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_full(file: &dyn File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Writes all of the parts from `offset`, however many calls it takes.
pub(crate) fn write_all(file: &dyn File, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
    while parts.iter().any(|part| !part.is_empty()) {
        match file.write_at(parts, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut parts, written);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
