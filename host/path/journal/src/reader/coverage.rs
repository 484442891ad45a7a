//! Coverage of a stream: how far back its segments reach, and which frames they lack.

use super::SegmentFiles;
use crate::error::ReadError;
use crate::format::{HEADER_BYTES, RecordKind};
use crate::frame_set::FrameSet;
use crate::position::{FrameNo, SegmentId};
use crate::record::RecordBody;
use crate::segment::{Payloads, ScanStep, Segment};
use crate::verify::{JournalProblem, ProblemKind, manifest_problems, segments_and_manifest};

/// Frames that a stream can and cannot give.
#[derive(Clone, Debug, Default)]
pub struct StreamCoverage {
    /// First frame that retention has left; 0 without a segment.
    pub first_frame: FrameNo,
    /// Time at which the oldest readable segment was begun, unix nanoseconds; 0 without such a segment.
    pub begun_unix_ns: u64,
    /// Frames that were forwarded without being stored (`on_error = "forward"`).
    pub not_stored: FrameSet,
    /// Frames that an excerpt left out.
    pub left_out: FrameSet,
    /// Damage that can hide a request: segments that are missing or unreadable, and corrupt bytes in segments
    /// without a summary. [`StreamReader::verify`](super::StreamReader::verify) finds all damage.
    pub damage: Vec<JournalProblem>,
}

/// Reads summaries, and scans segments that have none or whose frame numbers have a gap.
pub(super) fn coverage(segments: &SegmentFiles) -> Result<StreamCoverage, ReadError> {
    let (manifest, listed) = segments_and_manifest(segments)?;
    let mut found = StreamCoverage {
        first_frame: manifest.missing(&listed).map_or_else(
            || listed.first().map_or(FrameNo(0), |oldest| oldest.id.first),
            |missing| missing.oldest.first,
        ),
        damage: manifest_problems(&manifest, &listed).collect(),
        ..StreamCoverage::default()
    };
    // Frame number after the last summary; `None` makes the next segment be scanned.
    let mut next_frame = None;
    for (at, file) in listed.iter().enumerate() {
        let next = listed.get(at + 1).map(|next| next.id);
        let Some(segment) = segments.open(file.id)? else {
            next_frame = None;
            if file.bytes >= HEADER_BYTES as u64 {
                found.damage.push(JournalProblem { segment: file.id, offset: 0, what: ProblemKind::Header });
            }
            continue;
        };
        if found.begun_unix_ns == 0 {
            found.begun_unix_ns = segment.header.begun_unix_ns;
        }
        let summary = segment.summary()?;
        let totals = summary.as_ref().map(|summary| &summary.totals);
        let has_all = totals.is_some_and(|totals| next_frame == totals.next_frame.checked_sub(totals.frames));
        next_frame = totals.map(|totals| totals.next_frame);
        if !has_all {
            found.scan(segments, &segment, summary.is_some(), next)?;
        }
    }
    Ok(found)
}

impl StreamCoverage {
    fn scan(
        &mut self,
        segments: &SegmentFiles,
        segment: &Segment,
        has_summary: bool,
        next: Option<SegmentId>,
    ) -> Result<(), ReadError> {
        let limit = segments.recorded_end(next, segment.id)?.limit;
        // Damaged records hide no request if the segment has a summary.
        let payloads = if has_summary { Payloads::Skipped } else { Payloads::NotFrames };
        let mut scan = segment.records(limit, payloads);
        loop {
            match scan.step()? {
                ScanStep::Record(record) if record.head.kind == RecordKind::SKIPPED => {
                    if let Some(RecordBody::Skipped { count, left_out }) = scan.body(&record) {
                        let frames = if left_out { &mut self.left_out } else { &mut self.not_stored };
                        frames.insert_run(record.head.number, count);
                    }
                }
                ScanStep::Record(_) => {}
                ScanStep::Corrupt { offset, bytes } if !has_summary => {
                    let what = ProblemKind::Corrupt { bytes };
                    self.damage.push(JournalProblem { segment: segment.id, offset, what });
                }
                ScanStep::Corrupt { .. } => {}
                ScanStep::End { offset, torn: bytes } => {
                    // A writer may still complete the end of the last segment.
                    if bytes > 0 && next.is_some() && !has_summary {
                        let what = ProblemKind::Corrupt { bytes };
                        self.damage.push(JournalProblem { segment: segment.id, offset, what });
                    }
                    return Ok(());
                }
            }
        }
    }
}
