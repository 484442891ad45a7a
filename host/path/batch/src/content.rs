//! The content of a frame for one reader, or for all of them before the router.

use afterbay_wire::Batch;
use bytes::Bytes;

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
        /// The number of each row's request, as given back in [`FrameToSend::content`](crate::outbox::FrameToSend::content).
        /// 0 if the number is not known: the rows are then sent together.
        requests: Box<[u64]>,
    },
}

impl Content {
    /// Bytes whose rows, if they have any, cannot be counted: they count as one.
    pub fn undecoded(bytes: Bytes, counted: bool) -> Content {
        Content::Whole { bytes, counted, rows: u32::from(counted), first_rows: 0 }
    }

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
