//! The settings of an outbox.

use crate::joins::Joins;

/// The condition under which rows that wait are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Never: frames are sent unchanged, in order.
    Never,
    /// While the sink has no room: rows that it has not taken are joined.
    Backpressure,
}

/// The settings and bounds of an outbox.
#[derive(Clone, Debug)]
pub struct Options {
    /// The condition under which rows are joined.
    pub when: When,
    /// How rows are joined for the reader.
    pub joins: Joins,
    /// The most requests in a composed frame. It bounds the time for which one frame occupies the reader.
    pub max_rows: usize,
    /// The outbox has room while fewer frames wait.
    pub max_frames: usize,
    /// The outbox has room while fewer bytes of frames wait.
    pub max_bytes: u64,
}
