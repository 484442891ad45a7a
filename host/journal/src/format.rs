//! The bytes of a segment: its header, the frame of every record, its checksums. `FORMAT.md` says the same in words.
//!
//! A record is valid when both of its checksums are right. Both begin from the segment's salt and the record's own
//! offset, so neither a record inside a frame's bytes, nor one left over from an earlier write, nor one that moved,
//! is ever taken for a record of the segment.

use crc32fast::Hasher;

use crate::bounds::FRAME_BYTES_MAX;
use crate::position::{FrameNo, SegmentId};

/// The version this crate writes, and the newest it reads; it reads all before it too.
pub(crate) const VERSION: u32 = 2;
/// The header, written twice so that one flipped bit does not cost the salt and with it the segment.
pub(crate) const HEADER_BYTES: usize = 2 * HEADER_COPY_BYTES;
const HEADER_COPY_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"ABJOURNL";

/// Before a record's payload.
pub(crate) const HEAD_BYTES: usize = 28;
/// After it.
pub(crate) const CRC_BYTES: usize = 4;
/// What a record adds to its payload.
pub(crate) const RECORD_BYTES: usize = HEAD_BYTES + CRC_BYTES;
/// The largest payload: a frame, or a run of entries.
const PAYLOAD_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The format of the segment's records.
    pub version: u32,
    pub salt: u32,
    pub segment: SegmentId,
    /// The next request number when the segment was begun: the low 32 bits of numbers in it are read around this.
    pub next_request: u64,
    pub begun_unix_ns: u64,
    /// Where the records of the segment before this one end: whatever whole record stands past it there does not
    /// count (a write that failed and could not be cut back). 0 where nothing is said.
    pub previous_end: u64,
    /// The segment before this one was to be given a summary.
    pub previous_sealed: bool,
}

/// What the bytes where a header should be are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderRead {
    Whole(SegmentHeader),
    /// Written by a newer program.
    Version(u32),
    /// Neither copy is whole.
    Damaged,
}

impl SegmentHeader {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        out.extend_from_slice(&self.segment.first.0.to_le_bytes());
        out.extend_from_slice(&self.segment.sequence.to_le_bytes());
        out.extend_from_slice(&u32::from(self.previous_sealed).to_le_bytes());
        out.extend_from_slice(&self.next_request.to_le_bytes());
        out.extend_from_slice(&self.begun_unix_ns.to_le_bytes());
        out.extend_from_slice(&self.previous_end.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let crc = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_within(start..);
        debug_assert_eq!(out.len() - start, HEADER_BYTES);
    }

    pub fn decode(bytes: &[u8]) -> HeaderRead {
        let mut version = None;
        for copy in bytes.chunks_exact(HEADER_COPY_BYTES).take(2) {
            let mut at = ByteReader(copy);
            if at.take(8) != Some(&MAGIC) || crc32fast::hash(&copy[..60]).to_le_bytes() != copy[60..] {
                continue;
            }
            let Some(of_copy) = at.u32() else { continue };
            if !(1..=VERSION).contains(&of_copy) {
                version = Some(of_copy);
                continue;
            }
            let read = (|| {
                let salt = at.u32()?;
                let first = FrameNo(at.u64()?);
                let sequence = at.u32()?;
                let previous_sealed = at.u32()? & 1 != 0;
                Some(SegmentHeader {
                    version: of_copy,
                    salt,
                    segment: SegmentId { first, sequence },
                    next_request: at.u64()?,
                    begun_unix_ns: at.u64()?,
                    previous_end: at.u64()?,
                    previous_sealed,
                })
            })();
            if let Some(header) = read {
                return HeaderRead::Whole(header);
            }
        }
        version.map_or(HeaderRead::Damaged, HeaderRead::Version)
    }
}

/// What a record is. Readers pass over kinds they do not know.
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
    /// Nothing: written to see whether the disk takes it.
    pub const PROBE: RecordKind = RecordKind(12);
    /// The bytes that left in place of a frame; its outcome stands behind it.
    pub const CHANGED: RecordKind = RecordKind(13);
    /// What a frame holds that a sink was sent.
    pub const SENT: RecordKind = RecordKind(14);
    /// What a sink has taken past the frames that it has taken in full.
    pub const AHEAD: RecordKind = RecordKind(15);
    /// What of it the kernel has.
    pub const HANDED: RecordKind = RecordKind(16);
    /// To which of several sinks each row of a frame goes.
    pub const ROUTED: RecordKind = RecordKind(17);
    /// The operator ends a request.
    pub const ENDING: RecordKind = RecordKind(18);
    /// Kinds a later minor addition may use: looked for when a reader finds its way again after damage.
    const LAST: u8 = 31;
}

/// What stands before a record's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    /// ByteReader of the payload.
    pub payload: u32,
    pub kind: RecordKind,
    /// A frame's or a request's number, or a count: see each kind.
    pub number: u64,
    /// Unix nanoseconds; 0 where the kind has none.
    pub time: u64,
}

impl RecordHead {
    /// ByteReader of the whole record.
    pub fn record_bytes(&self) -> u64 {
        u64::from(self.payload) + RECORD_BYTES as u64
    }

    /// Writes it with its checksum still open; [`seal`] fills it in.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&self.payload.to_le_bytes());
        head[4] = self.kind.0;
        head[8..16].copy_from_slice(&self.number.to_le_bytes());
        head[16..24].copy_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&head);
    }

    /// Reads and checks one that stands at `offset`; also its checksum, from which the payload's begins.
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

/// Adds a record to `out`, its checksums open, its payload written by `payload`.
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

/// Sets the number of the record that begins at `start`, where it is known only behind the payload.
pub(crate) fn set_number(out: &mut [u8], start: usize, number: u64) {
    out[start + 8..start + 16].copy_from_slice(&number.to_le_bytes());
}

/// Fills in the checksums of the records in `records`, which will stand at `offset` of a segment with this salt.
///
/// A head alone at the end (a frame whose bytes stand elsewhere) gets its own checksum; it is returned, for the
/// frame's to begin from.
pub(crate) fn seal(records: &mut [u8], salt: u32, mut offset: u64) -> Option<u32> {
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

/// The payload's checksum, begun from that of its head.
pub(crate) fn checksum(begin: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(begin);
    hasher.update(bytes);
    hasher.finalize()
}

fn seed(salt: u32, offset: u64) -> u32 {
    salt ^ offset as u32
}

/// Numbers of requests are written as their low 32 bits and read around the segment's `next_request`.
/// Holds while every request of a segment lies within 2^31 of it, which the writer sees to.
pub(crate) fn widen(low: u32, around: u64) -> u64 {
    let distance = low.wrapping_sub(around as u32) as i32;
    around.wrapping_add_signed(i64::from(distance))
}

/// Reads little-endian values off the front; `None` past the end.
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

    /// A count of things that each take at least `each` bytes of what is left: so no count allocates more than is there.
    pub fn count(&mut self, each: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count.checked_mul(each)? <= self.0.len()).then_some(count)
    }

    /// A text behind its length in 16 bits.
    pub fn text(&mut self) -> Option<String> {
        let bytes = usize::from(u16::from_le_bytes(self.array()?));
        Some(String::from_utf8_lossy(self.take(bytes)?).into_owned())
    }
}

/// Writes a text behind its length in 16 bits, cut at a character if it is longer than `TEXT_BYTES_MAX`.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut bytes = text.len().min(crate::bounds::TEXT_BYTES_MAX);
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    out.extend_from_slice(&(bytes as u16).to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..bytes]);
}

#[cfg(test)]
mod tests;
