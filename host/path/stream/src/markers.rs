//! Release markers: frames of Afterbay's own that release held rows without a frame of the scheduler.
//!
//! A marker passes the journal like any frame, so that the release has its place in the order of the frames.

use afterbay_batch::hold::HeldRows;
use afterbay_batch::{Persisted, Received, Timestamp};
use afterbay_journal::{FrameNo, RELEASE_MARKER, is_release_marker};
use bytes::Bytes;

/// The release markers of one stream.
pub(crate) struct ReleaseMarkers {
    /// Whether a marker was persisted and has not released its rows. The next marker waits for it.
    is_pending: bool,
    /// The last frame of the earlier run. Markers up to it release nothing: their rows get a new marker.
    earlier_through: FrameNo,
}

impl ReleaseMarkers {
    /// `earlier_through` is the last frame of the earlier run.
    pub(crate) fn new(earlier_through: FrameNo) -> ReleaseMarkers {
        ReleaseMarkers { is_pending: false, earlier_through }
    }

    /// Whether a marker is on its way.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Makes the next marker, if rows are due to be released and no marker is on its way.
    pub(crate) fn next(&mut self, held_rows: &HeldRows, now: Timestamp) -> Option<Received> {
        if self.is_pending || !held_rows.is_due(now.instant) {
            return None;
        }
        self.is_pending = true;
        Some(Received { bytes: Bytes::from_static(RELEASE_MARKER), at: now })
    }

    /// Whether the frame is a marker, not a scheduler's frame with the same bytes.
    pub(crate) fn is_marker(&self, persisted: &Persisted) -> bool {
        is_release_marker(persisted.bytes()) && (self.is_pending || self.is_earlier(persisted))
    }

    /// Ends the marker's way. Returns whether the marker releases rows.
    pub(crate) fn end(&mut self, marker: &Persisted) -> bool {
        if self.is_earlier(marker) {
            return false;
        }
        self.is_pending = false;
        true
    }

    fn is_earlier(&self, persisted: &Persisted) -> bool {
        persisted.frame() <= self.earlier_through
    }
}
