//! A frame that the journal has.

use crate::received::{Received, Timestamp};
use afterbay_journal::{FrameNo, Position};
use bytes::Bytes;

/// A frame with its number in the journal.
///
/// A frame that the disk refuses passes with a number and [`Location::Nowhere`] if `on_error = "forward"` is set.
pub struct Persisted {
    frame: FrameNo,
    bytes: Bytes,
    at: Timestamp,
    location: Location,
}

/// The location of a frame in the journal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// At this position.
    At(Position),
    /// The frame was read back: its number finds it.
    ByNumber,
    /// Not in the journal: the disk refused the frame, and `on_error = "forward"` lets it pass.
    Nowhere,
}

impl Persisted {
    /// Consumes a received frame once the journal has answered. Only the frame log calls this.
    pub fn new(received: Received, frame: FrameNo, location: Location) -> Persisted {
        let Received { bytes, at } = received;
        Persisted { frame, bytes, at, location }
    }

    /// The number of the frame.
    pub fn frame(&self) -> FrameNo {
        self.frame
    }

    /// The bytes received.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The time at which the frame was received.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The location of the frame in the journal.
    pub fn location(&self) -> Location {
        self.location
    }

    /// Whether the journal has the frame, so that a sink may drop its own copy and read the frame back later.
    pub fn is_in_journal(&self) -> bool {
        self.location != Location::Nowhere
    }
}
