//! Reading a credit page.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::bounds::CREDIT_READS_MAX;

/// Length of a page. A longer file is read up to here.
pub const PAGE_BYTES: usize = 64;

pub(super) const MAGIC: [u8; 8] = *b"ABCREDIT";
pub(super) const VERSION: u32 = 1;

/// Who reads, as the page says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaderKind {
    /// The page does not say: its writer is a version that could not.
    #[default]
    Unknown,
    /// A detokenizer: rows of ids that are joined must end where the text is whole.
    Detokenizer,
    /// A tokenizer: rows may be joined anywhere.
    Tokenizer,
}

impl ReaderKind {
    /// On the page. A number that this version does not know says nothing.
    fn of(word: u64) -> ReaderKind {
        match word {
            1 => ReaderKind::Detokenizer,
            2 => ReaderKind::Tokenizer,
            _ => ReaderKind::Unknown,
        }
    }

    pub(super) fn word(self) -> u64 {
        self as u64
    }
}

/// A page as it was read, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Device and inode: a file that was made anew counts its generations anew.
    pub file: (u64, u64),
    /// The reader's process, in its own pid namespace.
    pub pid: u32,
    /// Grows with each reader that opens the page.
    pub generation: u64,
    /// Frames finished by this generation.
    pub count: u64,
    /// The generation before.
    pub last_generation: u64,
    /// Its final count.
    pub last_count: u64,
    /// When `count` changed last, in unix nanoseconds.
    pub changed_unix_ns: u64,
    /// Who reads.
    pub reader: ReaderKind,
}

/// Why a file is not a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Too short.
    #[error("credit page has {0} bytes, it needs 64")]
    Short(usize),
    /// Another file.
    #[error("credit page begins with {0:02x?}, not with \"ABCREDIT\"")]
    Magic([u8; 8]),
    /// Of another version.
    #[error("credit page has version {0}, the one understood is 1")]
    Version(u32),
    /// The count became smaller within one generation.
    #[error("credit page's count went back from {from} to {to}")]
    WentBack {
        /// Before.
        from: u64,
        /// Now.
        to: u64,
    },
    /// A call failed.
    #[error("credit page {path}: {error}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// How.
        error: String,
    },
}

/// What a look at the page gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// No file, or one that its writer has not filled yet.
    Absent,
    /// It is being changed or opened just now. Look again.
    Changing,
    /// Not a page.
    Invalid(Invalid),
    /// A page.
    Page(Page),
}

/// Looks at the page of a path, whatever file that is by now.
#[derive(Debug)]
pub struct PageReader {
    path: PathBuf,
    open: Option<(OwnedFd, (u64, u64))>,
}

impl PageReader {
    /// Nothing is opened yet.
    pub fn new(path: impl Into<PathBuf>) -> PageReader {
        PageReader { path: path.into(), open: None }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks whether the path is another file by now; then the next look reads that one. A path that is gone is no other
    /// file: the page that was open goes on being read.
    pub fn check_file(&mut self) {
        if let Some((_, id)) = &self.open
            && let Ok(stat) = rustix::fs::stat(&self.path)
            && (stat.st_dev, stat.st_ino) != *id
        {
            self.open = None;
        }
    }

    /// Reads the page: two reads that agree.
    pub fn look(&mut self) -> Look {
        if self.open.is_none() {
            match self.open_file() {
                Ok(open) => self.open = Some(open),
                Err(Errno::NOENT | Errno::NOTDIR) => return Look::Absent,
                Err(error) => return self.failed(error),
            }
        }
        let Some((fd, id)) = &self.open else { return Look::Absent };
        let mut before = None;
        for _ in 0..CREDIT_READS_MAX {
            let mut bytes = [0; PAGE_BYTES];
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut bytes, 0));
            match read {
                Err(error) => return self.failed(error),
                // Made, and not yet filled.
                Ok(0) => return Look::Absent,
                Ok(read) if read < PAGE_BYTES => return Look::Invalid(Invalid::Short(read)),
                Ok(_) if before == Some(bytes) => return parse(&bytes, *id),
                Ok(_) => before = Some(bytes),
            }
        }
        Look::Changing
    }

    fn open_file(&self) -> rustix::io::Result<(OwnedFd, (u64, u64))> {
        // NONBLOCK: a fifo of that name would hold us.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, (stat.st_dev, stat.st_ino)))
    }

    fn failed(&self, error: Errno) -> Look {
        Look::Invalid(Invalid::Io { path: self.path.clone(), error: error.to_string() })
    }
}

fn parse(bytes: &[u8; PAGE_BYTES], file: (u64, u64)) -> Look {
    let u64_at = |at: usize| u64::from_le_bytes(array(bytes, at));
    let u32_at = |at: usize| u32::from_le_bytes(array(bytes, at));
    let magic: [u8; 8] = array(bytes, 0);
    let page = Page {
        file,
        pid: u32_at(12),
        generation: u64_at(16),
        count: u64_at(24),
        last_generation: u64_at(32),
        last_count: u64_at(40),
        changed_unix_ns: u64_at(48),
        reader: ReaderKind::of(u64_at(56)),
    };
    match magic {
        // The writer puts the magic last.
        [0, ..] if magic == [0; 8] => Look::Absent,
        _ if magic != MAGIC => Look::Invalid(Invalid::Magic(magic)),
        _ if u32_at(8) != VERSION => Look::Invalid(Invalid::Version(u32_at(8))),
        _ if page.generation == 0 || page.last_generation == page.generation => Look::Changing,
        _ => Look::Page(page),
    }
}

fn array<const N: usize>(bytes: &[u8; PAGE_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests;
