//! Disk and clock behind a trait, so that a test can replace both.

mod discard;

pub use discard::DiscardingStorage;

use std::fmt::Debug;
use std::fs;
use std::io::{self, IoSlice, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

/// Name of the lock file in the journal directory.
pub(crate) const LOCK: &str = "LOCK";

/// Extension of a file that is not complete. Renaming gives the file its final name.
pub(crate) const PART: &str = "part";

/// Mode of every file of the journal: texts of requests are private to the owner.
const FILE_MODE: u32 = 0o600;
/// Mode of every directory of the journal.
const DIR_MODE: u32 = 0o700;

/// File system and clock of a journal.
pub trait Storage: Send + Sync {
    /// Makes a directory that only its owner may enter. An existing directory stays as it is.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Lists a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Creates a file to read and write that only its owner may open. Replaces a file of the same name.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file to read, and with `write` also to write. Refuses anything but a regular file,
    /// and does not block on a FIFO.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn File>>;
    /// Renames a file, replacing `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory survive a power cut.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks `dir/LOCK` for this process.
    fn lock(&self, dir: &Path) -> Result<Box<dyn Lock>, LockError>;
    /// Takes over the lock on `dir/LOCK` of an earlier process by its descriptor. The earlier process holds the lock, too, until
    /// it closes its own descriptor.
    fn inherit_lock(&self, dir: &Path, lock: OwnedFd) -> Result<Box<dyn Lock>, LockError> {
        let _ = (dir, lock);
        Err(LockError::Io(io::ErrorKind::Unsupported.into()))
    }
    /// Wall clock, the clock of `DirEntry::modified_unix_ns`.
    fn now_unix_ns(&self) -> u64;
    /// Boot clock. Returns `None` on a machine without one.
    fn steady(&self) -> Option<BootClock>;
}

/// Reading of the clock that counts from the boot of the machine, including suspended time. Nobody can set
/// this clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootClock {
    /// Identifies the boot. Readings of two boots cannot be compared.
    pub boot: u64,
    /// Nanoseconds since the boot.
    pub ns: u64,
}

/// An open file.
pub trait File: Send + Sync {
    /// Writes the parts one after another from `offset`. Returns the number of bytes written, as `pwritev`
    /// does.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Reads from `offset`. Returns the number of bytes read; 0 means the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Reserves disk space up to this size without changing the file's size. On an error the file grows as it
    /// is written.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
    /// Cuts the file to this size and gives reserved space back.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    /// Makes the written bytes survive a power cut.
    fn sync(&self) -> io::Result<()>;
    /// Size of the file.
    fn bytes(&self) -> io::Result<u64>;
    /// Sets the time of the last write, unix nanoseconds. Ages are counted from there.
    fn set_modified(&self, unix_ns: u64) -> io::Result<()>;
    /// Whether `path` still names this file.
    fn is_at(&self, path: &Path) -> bool;
}

/// Lock on a directory. Dropping the lock releases it.
pub trait Lock: Send + Sync + Debug {
    /// Whether the lock file is still at its path. The directory may have been replaced.
    fn is_in_place(&self) -> bool;
    /// A further descriptor of the lock, for [`Storage::inherit_lock`] in the next process.
    fn descriptor(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Writes this process's pid into the lock file, for people.
    fn write_pid(&self) {}
}

/// Entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name of the entry.
    pub name: String,
    /// Whether the entry is a directory.
    pub is_dir: bool,
    /// Size of the file.
    pub bytes: u64,
    /// Time of the last write.
    pub modified_unix_ns: u64,
}

/// Error of locking a directory.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds the lock. Carries the pid from the lock file.
    Held(String),
    /// Error of the disk.
    Io(io::Error),
}

/// The machine's own disk and clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(DIR_MODE).create(dir) {
            // The umask may have removed bits from the mode.
            Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(DIR_MODE)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // A file may be removed between the two calls. A name that is not UTF-8 is no file of the
            // journal.
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
        // A link could point to any file of this user, and the file would be emptied.
        let file = open_regular(&mut options, &path, OFlags::NOFOLLOW).map_err(LockError::Io)?;
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
        // The lock is valid even if the mode cannot be set (file of another user).
        let _ = own(&file);
        let lock = DiskLock { file: DiskFile(file), path };
        lock.write_pid();
        Ok(Box::new(lock))
    }

    fn inherit_lock(&self, dir: &Path, lock: OwnedFd) -> Result<Box<dyn Lock>, LockError> {
        let (file, path) = (fs::File::from(lock), dir.join(LOCK));
        // The kernel grants a lock again to the descriptor that has it.
        file.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => LockError::Held("?".into()),
            fs::TryLockError::Error(error) => LockError::Io(error),
        })?;
        let lock = DiskLock { file: DiskFile(file), path };
        match lock.is_in_place() {
            true => Ok(Box::new(lock)),
            false => Err(LockError::Io(io::Error::other("the inherited lock is of another directory"))),
        }
    }

    fn now_unix_ns(&self) -> u64 {
        unix_ns(SystemTime::now())
    }

    fn steady(&self) -> Option<BootClock> {
        static BOOT: OnceLock<Option<u64>> = OnceLock::new();
        let boot = (*BOOT.get_or_init(boot))?;
        let since = clock_gettime(ClockId::Boottime);
        let ns = since.tv_sec as u64 * 1_000_000_000 + since.tv_nsec as u64;
        Some(BootClock { boot, ns })
    }
}

/// Reads the kernel's identifier of this boot.
fn boot() -> Option<u64> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

/// Opens a file without blocking and refuses anything but a regular file.
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

/// Sets the mode of a file regardless of the umask.
fn own(file: &fs::File) -> io::Result<()> {
    match file.metadata()?.mode() & 0o7777 {
        FILE_MODE => Ok(()),
        _ => file.set_permissions(fs::Permissions::from_mode(FILE_MODE)),
    }
}

/// Whether an error says that the disk is full or the quota is used up.
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

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        self.0.set_modified(UNIX_EPOCH + Duration::from_nanos(unix_ns))
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

    fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.0.try_clone()?.into())
    }

    fn write_pid(&self) {
        let mut file = &self.file.0;
        // The lock is valid even if the pid cannot be written (disk full).
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Reads until the buffer is full or the file ends.
pub fn read_full(file: &dyn File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
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

/// Copies the first bytes of a file, a MiB at a time, as long as `goes_on` says so. Returns the number of bytes that were copied.
pub(crate) fn copy(
    from: &dyn File,
    to: &dyn File,
    bytes: u64,
    goes_on: impl Fn() -> bool,
) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < bytes && goes_on() {
        let want = buffer.len().min((bytes - offset) as usize);
        let read = read_full(from, &mut buffer[..want], offset)?;
        if read == 0 {
            break;
        }
        write_all(to, &mut [IoSlice::new(&buffer[..read])], offset)?;
        offset += read as u64;
    }
    Ok(offset)
}

/// Writes all parts from `offset`, in as many calls as needed.
pub fn write_all(file: &dyn File, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
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
