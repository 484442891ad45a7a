//! The LoadSnapshot file: finds it, follows replacements, and reads it without its lock.
//!
//! ```text
//!  0  4  "SLNS"
//!  4  2  version = 2
//!  6  2  dp_size
//!  8  4  slot_size (16384)
//! 12 + rank * slot_size:  4  length of the payload, 0 during a write
//!                            payload, a msgpack map
//! ```
//!
//! All numbers are little endian (sglang 0.5.23, `srt/managers/load_snapshot.py`). The writer holds
//! `flock(LOCK_EX)` on the scheduler's thread during a write: a reader that locked the file would stop the
//! scheduler. Instead a slot is copied until two copies in a row, each with the same length before and after,
//! are equal. SGLang does not unlink its files: the timestamp reveals the file of a dead server.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::OFlags;

use crate::signals::bounds::{BUSY_READS_MAX, COPIES_MAX, SLOT_BYTES_MAX};
use crate::signals::hub::ReadFailure;
use crate::signals::load_snapshot::{Measured, decode};

const MAGIC: &[u8; 4] = b"SLNS";
const VERSION: u16 = 2;
const HEADER_BYTES: usize = 12;
const LEN_BYTES: u32 = 4;

/// Reads the slot of one rank from a file that may appear, disappear and be replaced.
pub(crate) struct SnapshotFile {
    path: PathBuf,
    dp_rank: u32,
    open: Option<OpenFile>,
    busy_reads: u32,
}

struct OpenFile {
    file: File,
    /// Device and inode, because a path may refer to another file later.
    id: (u64, u64),
}

/// The position of a payload.
struct ShmSlot {
    offset: u64,
    payload_max: u32,
}

impl SnapshotFile {
    pub(crate) fn new(path: PathBuf, dp_rank: u32) -> Self {
        SnapshotFile { path, dp_rank, open: None, busy_reads: 0 }
    }

    /// Reads the slot; `None` during a write.
    pub(crate) fn read(&mut self) -> Result<Option<Measured>, ReadFailure> {
        self.follow()?;
        let Some(open) = &self.open else { return Err(absent()) };
        let slot = header(&open.file, self.dp_rank)?;
        let Some(payload) = copy(&open.file, &slot)? else {
            self.busy_reads = self.busy_reads.saturating_add(1);
            if self.busy_reads > BUSY_READS_MAX {
                let why = "the slot stays in the middle of a write: its writer has stopped";
                return Err(ReadFailure::Unavailable(why.to_owned()));
            }
            return Ok(None);
        };
        self.busy_reads = 0;
        decode(&payload, self.dp_rank).map(Some)
    }

    /// Closes the file if it was unlinked. Returns whether it was.
    pub(crate) fn close_if_unlinked(&mut self) -> bool {
        let unlinked =
            self.open.as_ref().is_some_and(|open| open.file.metadata().is_ok_and(|file| file.nlink() == 0));
        if unlinked {
            self.open = None;
        }
        unlinked
    }

    /// Opens the file that has the path now, unless it is open already.
    fn follow(&mut self) -> Result<(), ReadFailure> {
        match std::fs::metadata(&self.path) {
            Ok(found) if self.open.as_ref().is_some_and(|open| open.id == id(&found)) => Ok(()),
            Ok(found) => {
                regular(&found)?;
                self.open = None;
                self.busy_reads = 0;
                let mut options = OpenOptions::new();
                // A pipe at this path would block the thread.
                options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
                let file = options.open(&self.path).map_err(failed("cannot be opened"))?;
                let found = file.metadata().map_err(failed("cannot be examined"))?;
                regular(&found)?;
                self.open = Some(OpenFile { file, id: id(&found) });
                Ok(())
            }
            // The scheduler still writes to the open file, even if somebody has cleaned up /dev/shm.
            Err(error) if error.kind() == ErrorKind::NotFound && self.open.is_some() => Ok(()),
            Err(error) => Err(failed("cannot be examined")(error)),
        }
    }
}

fn absent() -> ReadFailure {
    ReadFailure::Unavailable("does not exist".to_owned())
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> ReadFailure {
    move |error| match error.kind() {
        ErrorKind::NotFound => absent(),
        _ => ReadFailure::Unavailable(format!("{action}: {error}")),
    }
}

fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn regular(metadata: &Metadata) -> Result<(), ReadFailure> {
    if metadata.is_file() { Ok(()) } else { Err(ReadFailure::Invalid("it is not a regular file".to_owned())) }
}

fn invalid<T>(why: String) -> Result<T, ReadFailure> {
    Err(ReadFailure::Invalid(why))
}

/// Checks the header and returns the position of the rank's slot.
fn header(file: &File, dp_rank: u32) -> Result<ShmSlot, ReadFailure> {
    let size = file.metadata().map_err(failed("cannot be examined"))?.len();
    let mut header = [0; HEADER_BYTES];
    if size > 0 && size < HEADER_BYTES as u64 {
        return invalid(format!("it has {size} bytes, expected a header of {HEADER_BYTES}"));
    }
    match file.read_exact_at(&mut header, 0) {
        Ok(()) if header != [0; HEADER_BYTES] => {}
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
            return Err(failed("cannot be read")(error));
        }
        // The writer creates the file, extends it, and only then fills it.
        _ => return Err(ReadFailure::Unavailable("its writer has not filled it yet".to_owned())),
    }
    let [m0, m1, m2, m3, v0, v1, d0, d1, s0, s1, s2, s3] = header;
    let (magic, version) = ([m0, m1, m2, m3], u16::from_le_bytes([v0, v1]));
    let (dp_size, slot_size) = (u16::from_le_bytes([d0, d1]), u32::from_le_bytes([s0, s1, s2, s3]));
    if magic != *MAGIC {
        let [found, expected] = [&magic, MAGIC].map(|magic| magic.escape_ascii().to_string());
        return invalid(format!("the magic is \"{found}\", expected \"{expected}\""));
    }
    if version != VERSION {
        return invalid(format!("the version is {version}, expected {VERSION}"));
    }
    if !(LEN_BYTES + 1..=SLOT_BYTES_MAX).contains(&slot_size) {
        let least = LEN_BYTES + 1;
        return invalid(format!("the slot size is {slot_size}, expected {least} to {SLOT_BYTES_MAX}"));
    }
    if dp_rank >= u32::from(dp_size) {
        return invalid(format!("it has {dp_size} dp ranks, expected more than rank {dp_rank}"));
    }
    let offset = HEADER_BYTES as u64 + u64::from(dp_rank) * u64::from(slot_size);
    let end = offset + u64::from(slot_size);
    if size < end {
        return invalid(format!("it has {size} bytes, expected {end} for rank {dp_rank}"));
    }
    Ok(ShmSlot { offset, payload_max: slot_size - LEN_BYTES })
}

/// Returns the payload of two equal copies, or `None` if there were none within [`COPIES_MAX`] tries.
fn copy(file: &File, slot: &ShmSlot) -> Result<Option<Vec<u8>>, ReadFailure> {
    let length = || -> io::Result<u32> {
        let mut bytes = [0; LEN_BYTES as usize];
        file.read_exact_at(&mut bytes, slot.offset)?;
        Ok(u32::from_le_bytes(bytes))
    };
    let once = || -> io::Result<Result<Vec<u8>, u32>> {
        let before = length()?;
        if before == 0 || before > slot.payload_max {
            return Ok(Err(before));
        }
        let mut payload = vec![0; before as usize];
        file.read_exact_at(&mut payload, slot.offset + u64::from(LEN_BYTES))?;
        Ok(if length()? == before { Ok(payload) } else { Err(0) })
    };
    let (mut last, mut too_long) = (None, None);
    for _ in 0..COPIES_MAX {
        match once().map_err(failed("cannot be read"))? {
            Ok(payload) if last.as_ref() == Some(&payload) => return Ok(Some(payload)),
            Ok(payload) => (last, too_long) = (Some(payload), None),
            Err(0) => (last, too_long) = (None, None),
            // Python writes a length byte by byte, so that a single read may see half of it.
            Err(length) if too_long == Some(length) => {
                let max = slot.payload_max;
                return invalid(format!("the payload's length is {length}, at most {max}"));
            }
            Err(length) => (last, too_long) = (None, Some(length)),
        }
    }
    Ok(None)
}
