//! `MANIFEST`: the segments that a stream should have, and facts that a full disk must not lose.
//!
//! The file has a fixed size and is overwritten in place, so that a full disk accepts it. It holds two copies
//! that are written in turn, so that one is always valid. `FORMAT.md` describes the bytes.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::ClockReading;
use crate::format::{HEADER_BYTES, checksum, decoded, encoded};
use crate::position::SegmentId;
use crate::segment_files::SegmentFile;
use crate::storage::{File, PART, Storage, read_full, write_all};

/// Name of the file.
pub(crate) const MANIFEST: &str = "MANIFEST";

const MAGIC: &[u8; 8] = b"ABMANIFS";
const VERSION: u32 = 2;
const COPY_BYTES: usize = 128;
const CRC_AT: usize = COPY_BYTES - 4;

/// Content of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Number of writes. The copy with the larger number counts.
    writes: u64,
    /// Oldest segment that retention has left.
    pub oldest: SegmentId,
    /// Segment that was begun last.
    pub newest: SegmentId,
    /// Number of segments from the oldest to the newest; 0 if unknown.
    pub segments: u64,
    /// Segments that earlier starts found missing.
    pub lost: u64,
    /// Whether frames may have been sent without a record.
    pub unrecorded: bool,
    /// Clocks at the time of the write.
    pub clock: ClockReading,
}

/// Segments that should exist and do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingSegments {
    /// Number of missing segments.
    pub missing: u64,
    /// Number of segments that should exist.
    pub segments: u64,
    /// First segment that should exist.
    pub oldest: SegmentId,
    /// Last segment that should exist.
    pub newest: SegmentId,
}

impl Manifest {
    /// Adds a new segment.
    pub fn begin(&mut self, id: SegmentId) {
        if self.segments == 0 {
            self.oldest = id;
        }
        self.newest = id;
        self.segments += 1;
    }

    /// Removes the oldest segment; `next` follows it. Calling twice changes nothing.
    pub fn remove(&mut self, oldest: SegmentId, next: SegmentId) {
        if self.expects(oldest) && self.segments > 1 {
            (self.oldest, self.segments) = (next, self.segments - 1);
        }
    }

    /// Declares the listed segments complete.
    pub fn set_segments(&mut self, listed: &[SegmentFile]) {
        let (first, last) = (listed.first().map(|first| first.id), listed.last().map(|last| last.id));
        (self.oldest, self.newest) = (first.unwrap_or_default(), last.unwrap_or_default());
        self.segments = listed.len() as u64;
    }

    /// Compares the listed segments with those that should exist.
    pub fn missing(&self, listed: &[SegmentFile]) -> Option<MissingSegments> {
        let there = listed.iter().filter(|segment| self.expects(segment.id)).count() as u64;
        let (segments, oldest, newest) = (self.segments, self.oldest, self.newest);
        let missing = segments.saturating_sub(there);
        (missing > 0).then_some(MissingSegments { missing, segments, oldest, newest })
    }

    /// Whether this segment was begun and not removed by retention.
    pub fn expects(&self, id: SegmentId) -> bool {
        self.segments > 0 && (self.oldest..=self.newest).contains(&id)
    }

    /// Segments without a complete header. A segment gets its name only with one.
    pub fn emptied<'a>(&self, listed: &'a [SegmentFile]) -> impl Iterator<Item = &'a SegmentFile> {
        let manifest = *self;
        let is_empty = move |segment: &&SegmentFile| segment.bytes < HEADER_BYTES as u64;
        listed.iter().filter(is_empty).filter(move |segment| manifest.expects(segment.id))
    }

    /// Whether no segment was begun or removed between the two.
    pub fn has_same_segments(&self, other: &Manifest) -> bool {
        let of = |it: &Manifest| (it.oldest, it.newest, it.segments);
        of(self) == of(other)
    }

    fn encode(&self) -> Vec<u8> {
        let mut copy = [&MAGIC[..], &VERSION.to_le_bytes(), &encoded(self)].concat();
        copy.resize(CRC_AT, 0);
        copy.extend(checksum(0, &copy).to_le_bytes());
        copy
    }

    /// Returns `None` unless the copy is valid and of a known version.
    fn decode(copy: &[u8]) -> Option<Manifest> {
        let (content, crc) = copy.split_at_checked(CRC_AT)?;
        let rest = content.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
        (checksum(0, content).to_le_bytes() == crc).then(|| decoded(rest))?
    }
}

/// Reads the manifest of a stream. Returns `None` if there is none that can be read.
pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Option<Manifest> {
    let file = storage.open(&dir.join(MANIFEST), false).ok()?;
    let mut bytes = [0; 2 * COPY_BYTES];
    read_full(&*file, &mut bytes, 0).ok()?;
    let copies = bytes.chunks(COPY_BYTES).filter_map(Manifest::decode);
    copies.max_by_key(|manifest| manifest.writes)
}

/// Manifest file of a stream that is being written.
#[derive(Default)]
pub(crate) struct ManifestFile {
    pub file: Option<Arc<dyn File>>,
    pub content: Manifest,
}

impl ManifestFile {
    /// Manifest with this content, not written yet.
    pub fn new(content: Manifest) -> ManifestFile {
        ManifestFile { file: None, content }
    }

    /// Writes the content. Creating a missing file needs disk space.
    pub fn write(&mut self, storage: &dyn Storage, dir: &Path) -> io::Result<()> {
        let path = dir.join(MANIFEST);
        self.content.writes += 1;
        let copy = self.content.encode();
        let opened = match self.file.take().filter(|file| file.is_at(&path)) {
            Some(file) => Some(file),
            None => storage
                .open(&path, true)
                .ok()
                .filter(|file| file.bytes().is_ok_and(|bytes| bytes == 2 * COPY_BYTES as u64)),
        };
        let file = match opened {
            Some(file) => file,
            None => return self.make(storage, &path, &copy),
        };
        let at = (self.content.writes % 2) * COPY_BYTES as u64;
        let written = write_all(&*file, &mut [IoSlice::new(&copy)], at);
        self.file = Some(file);
        written
    }

    fn make(&mut self, storage: &dyn Storage, path: &Path, copy: &[u8]) -> io::Result<()> {
        let part = path.with_extension(PART);
        let made = storage.create(&part).and_then(|file| {
            write_all(&*file, &mut [IoSlice::new(copy), IoSlice::new(copy)], 0)?;
            storage.rename(&part, path)?;
            Ok(file)
        });
        if made.is_err() {
            // The next start removes the file if this fails.
            let _ = storage.remove(&part);
        }
        self.file = Some(made?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::FrameNo;

    #[test]
    fn a_copy_is_read_back_and_a_flipped_bit_invalidates_it() {
        let id = |first, sequence| SegmentId { first: FrameNo(first), sequence };
        let clock = ClockReading { unix_ns: 1, steady_ns: 2, boot: 3, jumped_at_unix_ns: 4, jumped_ns: 5 };
        let (oldest, newest) = (id(10, 1), id(90, 4));
        let content = Manifest { writes: 7, oldest, newest, segments: 3, lost: 2, unrecorded: true, clock };
        let copy = content.encode();
        assert_eq!(Manifest::decode(&copy), Some(content));
        for bit in 0..copy.len() * 8 {
            let mut flipped = copy.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::decode(&flipped), None, "bit {bit}");
        }
    }
}
