//! Ends segments: cuts the file where the records end and writes the summary there.

use std::io::{self, IoSlice};

use crate::format::{self, RecordKind, SegmentHeader, put, record};
use crate::position::FrameNo;
use crate::record::{RequestEntry, RidIndex, SegmentTotals, put_entries};
use crate::segment::{Payloads, ScanStep, Segment};
use crate::storage::{File, write_all};

/// End of a segment's records, and its summary.
pub(crate) struct SegmentEnd {
    pub bytes: u64,
    pub through: FrameNo,
    /// `None` if waiting records went to the next segment: the writer's totals then do not match this
    /// segment.
    pub summary: Option<(Vec<RequestEntry>, SegmentTotals)>,
}

/// Cuts off the rest of a failed write, adds the summary, and gives reserved space back.
pub(crate) fn write_end(file: &dyn File, header: &SegmentHeader, ended: &SegmentEnd) -> io::Result<()> {
    let Some((entries, totals)) = &ended.summary else { return file.truncate(ended.bytes) };
    if file.bytes()? != ended.bytes {
        file.truncate(ended.bytes)?;
    }
    let mut records = end_records(entries, totals, ended.bytes);
    format::add_checksums(&mut records, header.salt, ended.bytes);
    // Uses the reserved space first, so that a summary fits on a full disk.
    write_all(file, &mut [IoSlice::new(&records)], ended.bytes).inspect_err(|_| {
        // Half a summary is useless. Readers skip it where it cannot be cut off.
        let _ = file.truncate(ended.bytes);
    })?;
    file.truncate(ended.bytes + records.len() as u64)
}

/// The records of a segment's end, without checksums. They will stand at the offset `begins`.
pub(crate) fn end_records(entries: &[RequestEntry], totals: &SegmentTotals, begins: u64) -> Vec<u8> {
    let mut records = Vec::new();
    put_entries(&mut records, RecordKind::SUMMARY, entries.iter());
    put(&mut records, RecordKind::TOTALS, 0, 0, totals);
    let rids_begin = begins + records.len() as u64;
    let rids = RidIndex::of(entries.iter().map(|entry| &*entry.info.rid));
    put(&mut records, RecordKind::RIDS, 0, 0, &rids);
    record(&mut records, RecordKind::TRAILER, begins, rids_begin, |_| {});
    records
}

/// Returns the first frame of a copy that cannot be read, if any.
pub(crate) fn first_unreadable(copy: &Segment, ended: &SegmentEnd) -> io::Result<Option<FrameNo>> {
    let mut scan = copy.records(ended.bytes, Payloads::All);
    let mut last = FrameNo(copy.id.first.0.saturating_sub(1));
    loop {
        match scan.step().map_err(io::Error::other)? {
            ScanStep::Record(record) if record.head.kind == RecordKind::FRAME => {
                last = FrameNo(record.head.number)
            }
            ScanStep::Record(_) => {}
            ScanStep::Corrupt { .. } => return Ok(Some(FrameNo(last.0 + 1))),
            ScanStep::End { torn: 0, .. } if last >= ended.through => return Ok(None),
            ScanStep::End { .. } => return Ok(Some(FrameNo(last.0 + 1))),
        }
    }
}
