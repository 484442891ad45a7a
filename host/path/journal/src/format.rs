//! Bytes of a segment: header, record heads and checksums, as `FORMAT.md` describes them.
//!
//! A record is valid when both of its checksums are right. Both start from the segment's salt and the
//! record's own offset. So a record inside a frame's bytes, a record left over from an earlier write and a
//! record that moved are never valid.

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use crate::bounds::FRAME_BYTES_MAX;
use crate::position::SegmentId;

/// Version of the format that this crate writes and reads.
pub const VERSION: u32 = 5;
/// Bytes of the header, which is written twice: one flipped bit costs neither the salt nor the segment.
pub(crate) const HEADER_BYTES: usize = 2 * HEADER_COPY_BYTES;
const HEADER_COPY_BYTES: usize = 64;
const HEADER_CRC_AT: usize = HEADER_COPY_BYTES - 4;
const MAGIC: [u8; 8] = *b"ABJOURNL";

/// Bytes before a record's payload.
pub(crate) const HEAD_BYTES: usize = 28;
/// Bytes after a record's payload.
pub(crate) const CRC_BYTES: usize = 4;
/// Bytes that a record adds to its payload.
pub(crate) const RECORD_BYTES: usize = HEAD_BYTES + CRC_BYTES;
/// Bytes of the largest payload: a frame, or a list of entries.
const PAYLOAD_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentHeader {
    pub salt: u32,
    pub segment: SegmentId,
    /// Next request number when the segment was begun. Records store the low 32 bits of request numbers, and
    /// `widen` restores the rest from this number.
    pub next_request: u64,
    pub begun_unix_ns: u64,
    /// End of the records of the segment before this one; 0 if unknown. Records past that end do not count: a
    /// failed write left them and could not be cut off.
    pub previous_end: u32,
    /// Whether the segment before this one was to get a summary.
    pub previous_has_summary: bool,
}

/// Result of reading a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderRead {
    Whole(SegmentHeader),
    /// The segment has another format version.
    Version(u32),
    /// Neither copy is valid.
    Damaged,
}

impl SegmentHeader {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend(encoded(self));
        out.resize(start + HEADER_CRC_AT, 0);
        let crc = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_within(start..);
        debug_assert_eq!(out.len() - start, HEADER_BYTES);
    }

    pub fn decode(bytes: &[u8]) -> HeaderRead {
        let mut version = None;
        for copy in bytes.chunks_exact(HEADER_COPY_BYTES).take(2) {
            let (content, crc) = copy.split_at(HEADER_CRC_AT);
            let mut at = ByteReader(content);
            if at.take(8) != Some(&MAGIC) || crc32fast::hash(content).to_le_bytes() != crc {
                continue;
            }
            match at.u32() {
                Some(VERSION) => {
                    if let Some(header) = decoded(at.0) {
                        return HeaderRead::Whole(header);
                    }
                }
                of_copy => version = of_copy,
            }
        }
        version.map_or(HeaderRead::Damaged, HeaderRead::Version)
    }
}

/// Kind of a record. Readers skip unknown kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordKind(pub u8);

impl RecordKind {
    pub const FRAME: RecordKind = RecordKind(1);
    pub const OUTCOME: RecordKind = RecordKind(2);
    pub const OPEN: RecordKind = RecordKind(3);
    pub const CLOSE: RecordKind = RecordKind(4);
    pub const TAKEN: RecordKind = RecordKind(5);
    pub const SKIPPED: RecordKind = RecordKind(6);
    pub const LOST: RecordKind = RecordKind(7);
    pub const CARRY: RecordKind = RecordKind(8);
    pub const SUMMARY: RecordKind = RecordKind(9);
    pub const TOTALS: RecordKind = RecordKind(10);
    pub const TRAILER: RecordKind = RecordKind(11);
    /// Empty record, written to find out whether the disk accepts writes.
    pub const PROBE: RecordKind = RecordKind(12);
    /// Bytes that were sent in place of a frame. The frame's OUTCOME follows directly.
    pub const CHANGED: RecordKind = RecordKind(13);
    /// Content of a frame that was sent to a sink.
    pub const SENT: RecordKind = RecordKind(14);
    /// Progress of a sink. A segment begins with one for each sink.
    pub const SINK: RecordKind = RecordKind(15);
    /// Sink of each row of a frame, for a stream with several sinks.
    pub const ROUTED: RecordKind = RecordKind(17);
    /// Progress of an operator's abort of a request.
    pub const ABORT: RecordKind = RecordKind(18);
    /// Attributes of a request. Stands after the request's OPEN, and again when the attributes have changed.
    pub const ATTRIBUTES: RecordKind = RecordKind(21);
    /// Component that a plugin's name stands for from here on. A segment begins with one for each plugin.
    pub const PLUGIN: RecordKind = RecordKind(22);
    /// Checksums of the rids that the summary lists. Stands after SUMMARY; TRAILER gives its offset.
    pub const RIDS: RecordKind = RecordKind(23);
    /// Last kind that a later version may add without a new format version. Resynchronization accepts all
    /// kinds up to this one.
    const LAST: u8 = 31;
}

/// Head of a record, before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    /// Bytes of the payload.
    pub payload: u32,
    pub kind: RecordKind,
    /// Number of a frame or request, or a count: depends on the kind.
    pub number: u64,
    /// Unix nanoseconds; 0 if the kind has no time.
    pub time: u64,
}

impl RecordHead {
    /// Bytes of the whole record.
    pub fn record_bytes(&self) -> u64 {
        u64::from(self.payload) + RECORD_BYTES as u64
    }

    /// Writes the head without its checksum. [`add_checksums`] fills the checksum in.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&self.payload.to_le_bytes());
        head[4] = self.kind.0;
        head[8..16].copy_from_slice(&self.number.to_le_bytes());
        head[16..24].copy_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&head);
    }

    /// Reads and checks the head at `offset`. Also returns its checksum, from which the payload's checksum
    /// continues.
    pub fn decode(head: &[u8; HEAD_BYTES], salt: u32, offset: u64) -> Option<(RecordHead, u32)> {
        let [l0, l1, l2, l3, kind, 0, 0, 0, ..] = *head else { return None };
        let payload = u32::from_le_bytes([l0, l1, l2, l3]);
        if kind == 0 || kind > RecordKind::LAST || payload as usize > PAYLOAD_BYTES_MAX {
            return None;
        }
        let crc = checksum(seed(salt, offset), &head[..24]);
        if crc.to_le_bytes() != head[24..] {
            return None;
        }
        let mut at = ByteReader(&head[8..24]);
        Some((RecordHead { payload, kind: RecordKind(kind), number: at.u64()?, time: at.u64()? }, crc))
    }
}

/// Adds a record to `out` without checksums. `payload` writes its payload.
pub(crate) fn record(
    out: &mut Vec<u8>,
    kind: RecordKind,
    number: u64,
    time: u64,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    RecordHead { payload: 0, kind, number, time }.encode(out);
    payload(out);
    let bytes = (out.len() - start - HEAD_BYTES) as u32;
    out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(&[0; CRC_BYTES]);
}

/// Adds a record without checksums whose payload is a value in the format of postcard.
pub(crate) fn put(out: &mut Vec<u8>, kind: RecordKind, number: u64, time: u64, value: &impl Serialize) {
    record(out, kind, number, time, |out| out.extend(encoded(value)));
}

/// A value in the format of postcard. Numbers, texts and lists always encode.
pub(crate) fn encoded(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).unwrap_or_default()
}

/// Returns `None` if the bytes are no such value. Ignores bytes after it.
pub(crate) fn decoded<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

/// Fills in the checksums of `records`, which will stand at `offset` of a segment with this salt.
///
/// A lone head at the end (a frame whose bytes stand elsewhere) gets its own checksum. The function returns
/// that checksum, because the frame's checksum continues from it.
pub(crate) fn add_checksums(records: &mut [u8], salt: u32, mut offset: u64) -> Option<u32> {
    let mut rest = records;
    while let Some((head, after)) = rest.split_first_chunk_mut::<HEAD_BYTES>() {
        let crc = checksum(seed(salt, offset), &head[..24]);
        head[24..].copy_from_slice(&crc.to_le_bytes());
        if after.is_empty() {
            return Some(crc);
        }
        let payload = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (body, next) = after.split_at_mut_checked(payload + CRC_BYTES)?;
        let (payload, end) = body.split_at_mut(payload);
        end.copy_from_slice(&checksum(crc, payload).to_le_bytes());
        offset += (HEAD_BYTES + body.len()) as u64;
        rest = next;
    }
    None
}

/// Checksum of `bytes`, continued from `begin`.
pub(crate) fn checksum(begin: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(begin);
    hasher.update(bytes);
    hasher.finalize()
}

fn seed(salt: u32, offset: u64) -> u32 {
    salt ^ offset as u32
}

/// Restores a request number from its low 32 bits and a nearby number. Correct while both lie within 2^31 of
/// each other; the writer makes sure of that.
pub(crate) fn widen(low: u32, around: u64) -> u64 {
    let distance = low.wrapping_sub(around as u32) as i32;
    around.wrapping_add_signed(i64::from(distance))
}

/// Reads little-endian values from the front. Returns `None` past the end.
#[derive(Clone, Copy)]
pub(crate) struct ByteReader<'a>(pub &'a [u8]);

impl<'a> ByteReader<'a> {
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads the count of items that each take at least `each` bytes. Returns `None` if the rest is too
    /// short, so that no count allocates more than the input holds.
    pub fn count(&mut self, each: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count.checked_mul(each)? <= self.0.len()).then_some(count)
    }

    /// Reads a text after its 16-bit length.
    pub fn text(&mut self) -> Option<String> {
        let bytes = usize::from(u16::from_le_bytes(self.array()?));
        Some(String::from_utf8_lossy(self.take(bytes)?).into_owned())
    }
}

/// Writes a text after its 16-bit length, cut by [`cut`].
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = cut(text);
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The text, cut at a character to `TEXT_BYTES_MAX` bytes.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(crate::bounds::TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests;
