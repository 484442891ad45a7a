//! The frames that enter an outbox, and those that leave it.

use std::time::Instant;

use afterbay_journal::{FrameNo, SinkContent};
use afterbay_wire::Batch;
use bytes::Bytes;

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

/// The content of a frame.
#[derive(Debug)]
pub enum Content {
    /// No content: plugins removed every row.
    Nothing,
    /// Bytes that keep their position: no other frame overtakes them.
    Whole {
        /// The frame.
        bytes: Bytes,
        /// Whether the reader counts the frame.
        counted: bool,
        /// The number of rows in it, for [`Totals::rows_sent`](crate::outbox::Totals::rows_sent). 0 for a frame without rows.
        rows: u32,
        /// The number of rows that are the first of their requests.
        first_rows: u32,
    },
    /// A frame without rows that other frames may overtake, and that may overtake them: an engine's statistics. The reader
    /// counts it.
    Aside {
        /// The frame.
        bytes: Bytes,
    },
    /// Rows that may be joined with other rows of their requests.
    Rows {
        /// The rows.
        batch: Batch,
        /// The number of each row's request, as given back in [`FrameToSend::content`].
        requests: Box<[u64]>,
    },
}

impl Content {
    /// Rows that are sent together, unchanged.
    pub fn whole(batch: &Batch) -> Content {
        Content::Whole {
            bytes: batch.bytes().clone(),
            counted: true,
            rows: batch.rows(),
            first_rows: batch.first_rows(),
        }
    }
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
