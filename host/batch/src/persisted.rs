//! A frame that is in the journal.

use crate::arrival::{Received, Timestamp};
use afterbay_journal::{FrameNo, Position};
use bytes::Bytes;

/// A frame that is in the journal, or that `on_error = "forward"` lets pass without.
pub struct Persisted {
    pub frame: FrameNo,
    pub bytes: Bytes,
    pub at: Timestamp,
    location: Location,
}

/// Where the journal has a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// At this position.
    At(Position),
    /// The frame was read back: its number finds it.
    ByNumber,
    /// Not in the journal (`on_error = "forward"`).
    Nowhere,
}

impl Persisted {
    /// Made of a received frame once the journal has answered.
    pub fn new(received: Received, frame: FrameNo, location: Location) -> Persisted {
        let Received { bytes, at } = received;
        Persisted { frame, bytes, at, location }
    }

    /// Where the journal has the frame.
    pub fn location(&self) -> Location {
        self.location
    }

    /// Whether the journal has the frame, so that the frame may wait there alone.
    pub fn is_in_journal(&self) -> bool {
        self.location != Location::Nowhere
    }
}
