//! Coverage of a stream: how far back its segments reach, and which frames they lack.

use super::{SegmentFile, SegmentFiles, SegmentFold};
use crate::error::ReadError;
use crate::format::HEADER_BYTES;
use crate::frame_set::FrameSet;
use crate::position::FrameNo;
use crate::segment::Segment;
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

/// Reads summaries, and scans segments that have none.
pub(super) fn coverage(segments: &SegmentFiles) -> Result<StreamCoverage, ReadError> {
    let (manifest, listed) = segments_and_manifest(segments)?;
    let oldest = listed.first().map_or(FrameNo(0), |oldest| oldest.id.first);
    let mut found = StreamCoverage {
        first_frame: manifest.missing(&listed).map_or(oldest, |missing| missing.oldest.first),
        damage: manifest_problems(&manifest, &listed).collect(),
        ..StreamCoverage::default()
    };
    let mut unread = listed;
    let mut fold = SegmentFold::new(segments.clone())?;
    while let Some(Segment { id, header, .. }) = fold.next_segment()? {
        unread.retain(|file| file.id != id);
        if found.begun_unix_ns == 0 {
            found.begun_unix_ns = header.begun_unix_ns;
        }
        found.not_stored.extend(&fold.state.totals.not_stored);
        found.left_out.extend(&fold.state.totals.left_out);
        let what = |bytes| ProblemKind::Corrupt { bytes };
        let corrupt = fold.corrupt.iter().map(|&(offset, bytes)| (id, offset, what(bytes)));
        found.damage.extend(corrupt.map(|(segment, offset, what)| JournalProblem { segment, offset, what }));
    }
    let unreadable = unread.into_iter().filter(|file| file.bytes >= HEADER_BYTES as u64);
    let problem =
        |file: SegmentFile| JournalProblem { segment: file.id, offset: 0, what: ProblemKind::Header };
    found.damage.extend(unreadable.map(problem));
    Ok(found)
}
