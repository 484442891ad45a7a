//! Every bound of the journal, and what happens at each bound.

/// Bytes of the largest frame that can be configured. `append` refuses a larger frame
/// (`WriteError::TooLarge`). A journal reader takes a record with a larger length for corrupt.
pub const FRAME_BYTES_MAX: usize = 1 << 30;

/// Bytes of the longest rid that is stored unchanged. A longer rid, or a rid that is not UTF-8, is stored as
/// its first characters and a hash (`stored_rid`).
pub const RID_BYTES_MAX: usize = 4096;

/// Bytes of a hashed rid that stand before the hash.
pub const RID_PREFIX_BYTES_MAX: usize = 1024;

/// Bytes of the name or the value of an attribute of a request. A longer attribute is not stored.
pub const ATTRIBUTE_BYTES_MAX: usize = 256;

/// Bytes of all names and values of a request's attributes. The attributes past the bound, in the order of their
/// names, are not stored.
pub const ATTRIBUTES_BYTES_MAX: usize = 1024;

/// Requests that a stream may have open between two frames. A stream that opens more requests closes the
/// surplus with the outcome of the same frame.
pub const LIVE_REQUESTS_MAX: usize = 1 << 18;

/// Requests that may begin in one segment. The next frame begins a new segment.
pub const SEGMENT_REQUESTS_MAX: usize = 1 << 16;

/// Frames in one segment. The next frame begins a new segment. A start and a reader scan a segment without a summary: frames of one row
/// would make a segment of the usual size slow to scan.
pub const SEGMENT_FRAMES_MAX: u64 = 1 << 17;

/// Bytes of records that wait for the next write. They grow only while the disk refuses writes. Past the
/// bound, further records are counted and dropped; `BackgroundNotice::OutcomesLost` reports the count once the
/// disk accepts writes again.
pub const PENDING_BYTES_MAX: usize = 16 << 20;

/// Bytes of waiting records that cause a write before the next frame. Outcomes of frames that are read back
/// arrive without a new frame.
pub const PENDING_WRITE_BYTES: usize = 1 << 20;

/// Runs of frames without an outcome. Consecutive frames are one run, so a long backlog is cheap. Past the
/// bound (outcomes arrived for every other frame) the oldest run is dropped: its frames never get an outcome,
/// and `verify` reports them.
pub const RUNS_MAX: usize = 1 << 16;

/// Bytes of a text in an outcome: finish reason, reason of a verdict, error, name of a plugin or sink. A
/// longer text is cut at a character.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Sinks per stream whose progress is recorded. The progress of further sinks is not recorded.
pub const SINKS_MAX: usize = 256;

/// Frames that were sent to a sink and that its reader has not taken. No further one may be sent (`SendRoom::Full`).
pub const SENT_FRAMES_MAX: usize = 1 << 13;

/// Half of it bounds the rows in these frames (`SendRoom::Full`), and the other half the requests and runs of frames that a
/// sink has taken past its last complete frame. Past that, only the oldest rows may be sent (`SendRoom::InOrder`). One frame may
/// exceed either half.
pub const AHEAD_MAX: usize = 1 << 20;

/// Divisor of `segment_bytes` that gives a segment's spare room, at most [`SPARE_BYTES_MAX`] bytes. Only
/// records about frames may use the spare. Once the disk is full and the spare is used, `flush` fails: frames
/// then wait, or are sent unrecorded (`unrecorded`).
pub const SPARE_PARTS: u64 = 4;

/// Bytes of the largest spare, see [`SPARE_PARTS`].
pub const SPARE_BYTES_MAX: u64 = 4 << 20;

/// Notices that wait to be read. A full queue drops its oldest notice.
pub const NOTICES_MAX: usize = 256;

/// Largest `segment_bytes`. Offsets in a segment are 32 bits, and the last frame may cross the limit.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;

/// Request numbers that are skipped after an unclean stop, because their records may not have been written.
/// Larger than the number of such records in `PENDING_BYTES_MAX` bytes.
pub const REQUESTS_LEFT_OUT: u64 = 1 << 20;
