//! Reads a credit page.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::bounds::CREDIT_READS_MAX;

/// The length of a page. Further bytes of a longer file are ignored.
pub const PAGE_BYTES: usize = 64;

pub(super) const MAGIC: [u8; 8] = *b"ABCREDIT";
pub(super) const VERSION: u32 = 1;

/// The kind of reader that writes the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderKind {
    /// A detokenizer: joined rows of token ids must end at a character boundary of the text.
    Detokenizer = 1,
    /// A tokenizer, or vLLM's API server: rows may be joined anywhere, also those of tool calls.
    Tokenizer = 2,
}

/// One consistent read of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Device and inode. A new file starts its own sequence of generations.
    pub file: (u64, u64),
    /// The reader's process id, in its own pid namespace.
    pub pid: u32,
    /// The generation, increased by each reader that opens the page.
    pub generation: u64,
    /// Frames finished by this generation.
    pub count: u64,
    /// The generation before.
    pub last_generation: u64,
    /// The final count of the generation before.
    pub last_count: u64,
    /// The time at which `count` changed last, in unix nanoseconds.
    pub changed_unix_ns: u64,
    /// The kind of reader.
    pub reader: ReaderKind,
}

/// The reason why a file is not a usable page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The file is too short.
    #[error("credit page has {0} bytes, it needs 64")]
    Short(usize),
    /// The file is of another kind.
    #[error("credit page begins with {0:02x?}, not with \"ABCREDIT\"")]
    Magic([u8; 8]),
    /// The page has another version.
    #[error("credit page has version {0}, the one understood is 1")]
    Version(u32),
    /// The page names no kind of reader.
    #[error("credit page says that {0} reads, it must be 1 (a detokenizer) or 2 (a tokenizer)")]
    Reader(u64),
    /// The file is empty, or does not begin with the magic that a writer puts there last.
    #[error("credit page has no content")]
    Unfilled,
    /// The generation is 0 or the one before it, as while a writer opens the page.
    #[error("credit page has generation {generation} after generation {last}: no writer has opened it whole")]
    Generation {
        /// The generation.
        generation: u64,
        /// The generation before.
        last: u64,
    },
    /// No two reads in a row are equal.
    #[error("credit page is different at each read")]
    Unsteady,
    /// The file does not exist any more.
    #[error("credit page is gone")]
    Gone,
    /// The count fell within one generation.
    #[error("credit page's count went back from {from} to {to}")]
    WentBack {
        /// The count before.
        from: u64,
        /// The count now.
        to: u64,
    },
    /// A system call failed.
    #[error("credit page {path}: {error}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: String,
    },
}

/// The result of reading the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageStatus {
    /// The file does not exist.
    Absent,
    /// The page is not usable now, as for a moment while a writer makes, opens or changes it. Read it again: a page that stays
    /// so is invalid.
    Unsettled(Invalid),
    /// The file is not a usable page.
    Invalid(Invalid),
    /// The content of the page.
    Page(Page),
}

/// Reads the page at a path, also after another file replaced it there.
#[derive(Debug)]
pub struct PageReader {
    path: PathBuf,
    open: Option<(OwnedFd, (u64, u64))>,
}

impl PageReader {
    /// Opens nothing yet.
    pub fn new(path: impl Into<PathBuf>) -> PageReader {
        PageReader { path: path.into(), open: None }
    }

    /// Checks whether the path names another file by now. If so, the next read opens that file. If the path names none,
    /// the open file is still read.
    pub fn check_file(&mut self) {
        if let Some((_, id)) = &self.open
            && let Ok(stat) = rustix::fs::stat(&self.path)
            && (stat.st_dev, stat.st_ino) != *id
        {
            self.open = None;
        }
    }

    /// Reads the page until two reads in a row agree.
    pub fn look(&mut self) -> PageStatus {
        if self.open.is_none() {
            match self.open_file() {
                Ok(open) => self.open = Some(open),
                Err(Errno::NOENT | Errno::NOTDIR) => return PageStatus::Absent,
                Err(error) => return self.failed(error),
            }
        }
        let Some((fd, id)) = &self.open else { return PageStatus::Absent };
        let mut before = None;
        for _ in 0..CREDIT_READS_MAX {
            let mut bytes = [0; PAGE_BYTES];
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut bytes, 0));
            match read {
                Err(error) => return self.failed(error),
                Ok(0) => return PageStatus::Unsettled(Invalid::Unfilled),
                Ok(read) if read < PAGE_BYTES => return PageStatus::Invalid(Invalid::Short(read)),
                Ok(_) if before == Some(bytes) => return parse(&bytes, *id),
                Ok(_) => before = Some(bytes),
            }
        }
        PageStatus::Unsettled(Invalid::Unsteady)
    }

    fn open_file(&self) -> rustix::io::Result<(OwnedFd, (u64, u64))> {
        // NONBLOCK: opening a fifo would block otherwise.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, (stat.st_dev, stat.st_ino)))
    }

    fn failed(&self, error: Errno) -> PageStatus {
        PageStatus::Invalid(Invalid::Io { path: self.path.clone(), error: error.to_string() })
    }
}

fn parse(bytes: &[u8; PAGE_BYTES], file: (u64, u64)) -> PageStatus {
    let u64_at = |at: usize| u64::from_le_bytes(array(bytes, at));
    let u32_at = |at: usize| u32::from_le_bytes(array(bytes, at));
    let magic: [u8; 8] = array(bytes, 0);
    let (generation, last_generation) = (u64_at(16), u64_at(32));
    let page = |reader| {
        PageStatus::Page(Page {
            file,
            pid: u32_at(12),
            generation,
            count: u64_at(24),
            last_generation,
            last_count: u64_at(40),
            changed_unix_ns: u64_at(48),
            reader,
        })
    };
    match u64_at(56) {
        // The writer puts the magic last.
        _ if magic == [0; 8] => PageStatus::Unsettled(Invalid::Unfilled),
        _ if magic != MAGIC => PageStatus::Invalid(Invalid::Magic(magic)),
        _ if u32_at(8) != VERSION => PageStatus::Invalid(Invalid::Version(u32_at(8))),
        _ if generation == 0 || last_generation == generation => {
            PageStatus::Unsettled(Invalid::Generation { generation, last: last_generation })
        }
        1 => page(ReaderKind::Detokenizer),
        2 => page(ReaderKind::Tokenizer),
        other => PageStatus::Invalid(Invalid::Reader(other)),
    }
}

fn array<const N: usize>(bytes: &[u8; PAGE_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests;
