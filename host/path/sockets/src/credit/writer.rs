//! Writes a credit page as the Python connector does, for the simulated reader and for tests.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::page::{MAGIC, PAGE_BYTES, ReaderKind, VERSION};

/// Everybody may read a page: it holds only counters.
const MODE: u32 = 0o644;

/// The reason why a page could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum CreditWriterError {
    /// The file has other content. It is left unchanged.
    #[error("credit page {path} is a file of something else", path = .path.display())]
    NotAPage {
        /// The file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("credit page {path}: {call}: {error}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The call.
        call: &'static str,
        /// The error.
        error: std::io::Error,
    },
}

/// The reader's end of a page: counts the frames that it has finished. Holds the page's lock until it is dropped.
#[derive(Debug)]
pub struct CreditWriter {
    fd: OwnedFd,
    path: PathBuf,
    generation: u64,
    count: u64,
}

impl CreditWriter {
    /// Opens the page as a new generation of this kind of reader. If another process has locked the page, opens `NAME.PID`
    /// instead.
    pub fn open(path: &Path, reader: ReaderKind) -> Result<CreditWriter, CreditWriterError> {
        match CreditWriter::open_at(path, reader)? {
            Some(writer) => Ok(writer),
            None => {
                let mut other = path.as_os_str().to_owned();
                other.push(format!(".{}", std::process::id()));
                let other = PathBuf::from(other);
                let error = Errno::WOULDBLOCK.into();
                CreditWriter::open_at(&other, reader)?.ok_or(CreditWriterError::Io {
                    path: other,
                    call: "flock",
                    error,
                })
            }
        }
    }

    /// The opened path: the given one, or `NAME.PID`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This reader's generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Frames finished so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Counts one more frame as finished.
    pub fn finished(&mut self) -> Result<(), CreditWriterError> {
        self.count += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        self.write(24, &self.count.to_le_bytes())?;
        self.write(48, &now.to_le_bytes())
    }

    fn open_at(path: &Path, reader: ReaderKind) -> Result<Option<CreditWriter>, CreditWriterError> {
        let failed = |call| {
            move |error: Errno| CreditWriterError::Io { path: path.to_owned(), call, error: error.into() }
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(MODE)).map_err(failed("open"))?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(failed("flock")(error)),
        }
        // One byte more than a page, to notice a longer file.
        let mut old = [0; PAGE_BYTES + 1];
        let read = rustix::io::pread(&fd, &mut old, 0).map_err(failed("read"))?;
        let mut writer = CreditWriter { fd, path: path.to_owned(), generation: 1, count: 0 };
        let (pid, version) = (std::process::id().to_le_bytes(), VERSION.to_le_bytes());
        if old[..8] == [0; 8] && read <= PAGE_BYTES {
            writer.write(0, &[0; PAGE_BYTES])?;
            writer.write(8, &version)?;
            writer.write(12, &pid)?;
            writer.write(16, &1u64.to_le_bytes())?;
            writer.write(56, &(reader as u64).to_le_bytes())?;
            // The magic is last: until then the page is not filled.
            writer.write(0, &MAGIC)?;
            return Ok(Some(writer));
        }
        if old[..8] != MAGIC || old[8..12] != version || read != PAGE_BYTES {
            return Err(CreditWriterError::NotAPage { path: path.to_owned() });
        }
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| old[at + i]));
        let (generation, count, last_generation) = (u64_at(16), u64_at(24), u64_at(32));
        // Equal generations: a writer died while it opened the page, and `count` may be 0 already. Its last count
        // stays.
        if last_generation != generation {
            writer.write(32, &generation.to_le_bytes())?;
            writer.write(40, &count.to_le_bytes())?;
        }
        writer.write(24, &0u64.to_le_bytes())?;
        writer.write(48, &0u64.to_le_bytes())?;
        writer.write(56, &(reader as u64).to_le_bytes())?;
        writer.write(12, &pid)?;
        writer.generation = generation + 1;
        writer.write(16, &writer.generation.to_le_bytes())?;
        Ok(Some(writer))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), CreditWriterError> {
        let failed = |error: Errno| CreditWriterError::Io {
            path: self.path.clone(),
            call: "write",
            error: error.into(),
        };
        let written = rustix::io::pwrite(&self.fd, bytes, at).map_err(failed)?;
        if written == bytes.len() { Ok(()) } else { Err(failed(Errno::IO)) }
    }
}
