//! Seals a segment: cuts its file where the records end and writes the summary behind them.

use std::io::{self, IoSlice};

use crate::format::{self, RecordKind, SegmentHeader, record};
use crate::position::FrameNo;
use crate::record::{RequestEntry, SegmentTotals, put_entries, put_totals};
use crate::segment::{Payloads, ScanStep, Segment};
use crate::storage::{File, write_all};

/// Where a segment's records end.
pub(crate) struct SegmentEnd {
    pub bytes: u64,
    pub through: FrameNo,
    /// `None`: what waited went to the next segment, so the figures at hand are not those of this one's records.
    pub summary: Option<(Vec<RequestEntry>, SegmentTotals)>,
}

/// Cuts off what a failed write left, adds the summary, and gives back the room that was set aside.
pub(crate) fn write_end(file: &dyn File, header: &SegmentHeader, ended: &SegmentEnd) -> io::Result<()> {
    let Some((entries, totals)) = &ended.summary else { return file.truncate(ended.bytes) };
    if file.bytes()? != ended.bytes {
        file.truncate(ended.bytes)?;
    }
    let mut records = Vec::new();
    put_entries(&mut records, RecordKind::SUMMARY, entries.iter().map(RequestEntry::by_ref));
    put_totals(&mut records, totals);
    record(&mut records, RecordKind::TRAILER, ended.bytes, 0, |_| {});
    format::seal(&mut records, header.salt, ended.bytes);
    // Into the room that is set aside, on a disk that is full otherwise.
    write_all(file, &mut [IoSlice::new(&records)], ended.bytes).inspect_err(|_| {
        // Half a summary is of no use; where it cannot be cut off, readers pass over it.
        let _ = file.truncate(ended.bytes);
    })?;
    file.truncate(ended.bytes + records.len() as u64)
}

/// The first frame that cannot be read back from a copy, if any.
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
