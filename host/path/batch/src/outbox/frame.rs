//! The frames that enter an outbox, and those that leave it.

use std::time::Instant;

use afterbay_journal::{FrameNo, SinkContent};
use bytes::Bytes;

use crate::Content;
use crate::outbox::sent::FrameIndex;

/// A frame to push.
#[derive(Debug)]
pub struct Frame {
    /// The frame's number, greater than that of the frame before it.
    pub number: u64,
    /// The time at which the scheduler's frame was received.
    pub at: Instant,
    /// The content.
    pub content: Content,
}

/// A frame for the sink.
#[derive(Debug)]
pub struct FrameToSend {
    /// Its number among the sent frames, from 1, without gaps. 0 until the outbox returns the frame.
    pub sequence: u64,
    /// The frame.
    pub bytes: Bytes,
    /// Whether the reader counts the frame.
    pub counted: bool,
    /// The time at which the oldest source frame was received.
    pub at: Instant,
    /// The source frame, or of a composed frame each request in it, with the frame up to which all its rows are now sent. The
    /// sink takes it for the record.
    pub content: SinkContent<'static>,
    /// The first rows of requests in it: the time at which their frame was received, and their number.
    pub first_rows: Vec<(Instant, u32)>,
    /// Its source frames, and the number of parts from each, until the outbox returns the frame.
    pub(crate) sources: Vec<(FrameIndex, u32)>,
    /// The number of rows received, and the number of rows in it.
    pub(crate) rows: (u32, u32),
    /// Whether rows of it may have been sent before, because the source frame could not be taken apart.
    pub(crate) is_torn: bool,
}

impl FrameToSend {
    /// A source frame, unchanged and in one part.
    pub fn whole(
        index: FrameIndex,
        number: u64,
        at: Instant,
        bytes: Bytes,
        counted: bool,
        rows: u32,
        first_rows: u32,
    ) -> FrameToSend {
        FrameToSend {
            sequence: 0,
            bytes,
            counted,
            at,
            content: SinkContent::Whole(FrameNo(number)),
            first_rows: if first_rows == 0 { Vec::new() } else { vec![(at, first_rows)] },
            sources: vec![(index, 1)],
            rows: (rows, rows),
            is_torn: false,
        }
    }
}
