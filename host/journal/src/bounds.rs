//! Every bound of the journal, and what happens at each.

/// The largest frame that can be configured. `append` refuses a larger one (`WriteError::TooLarge`), and a reader
/// that finds a larger length takes the record for corrupt.
pub const FRAME_BYTES_MAX: usize = 1 << 30;

/// The longest rid that stands in the journal as it is. Of a longer one, or one that is no text, its beginning and a hash of all of
/// it do (`kept_rid`).
pub const RID_BYTES_MAX: usize = 4096;

/// Bytes of such a rid that stand before the hash, at most.
pub const RID_PREFIX_BYTES_MAX: usize = 1024;

/// Requests that a stream has open between two frames. Whoever opens more closes them with the outcome of the frame they came in.
pub const LIVE_REQUESTS_MAX: usize = 1 << 18;

/// Requests that began in one segment. The next frame begins a new segment.
pub const SEGMENT_REQUESTS_MAX: usize = 1 << 16;

/// Bytes of records that wait for the next write. They only grow while the disk refuses writes; past the bound
/// further outcomes are not written, only counted, and said with `Notice::OutcomesLost` when the disk heals.
pub const PENDING_BYTES_MAX: usize = 16 << 20;

/// Bytes of records that wait past which they are written without waiting for the next frame: outcomes of frames that
/// are read back come without one.
pub const PENDING_WRITE_BYTES: usize = 1 << 20;

/// Runs of frames whose outcome is awaited: any number of frames one behind the other is one run, so a long backlog
/// costs nothing. Past the bound (outcomes were given to every other frame) the oldest run is given up: it stays
/// without, which `verify` tells.
pub const RUNS_MAX: usize = 1 << 16;

/// Bytes of a text in an outcome (finish reason, reason of a verdict, error, plugin or sink name). Longer is cut at a character.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Sinks whose progress is kept, per stream. `taken` of one more is not kept.
pub const SINKS_MAX: usize = 256;

/// Frames that a sink was sent and has not taken. `sent` refuses one more.
pub const SENT_FRAMES_MAX: usize = 1 << 13;

/// Requests, and runs of frames, that a sink has been sent past the frames that are taken in full. `sent` refuses more:
/// the oldest rows must leave first, so that those frames become more.
pub const AHEAD_MAX: usize = 1 << 20;

/// Beside the room for frames a segment has a spare for the records about them: one part in so many of `segment_bytes`, and at
/// most [`SPARE_BYTES_MAX`]. When a full disk lets it grow no more and the spare is used up, `flush` fails: what is to be on
/// record before it leaves then waits, or leaves unrecorded (`unrecorded`).
pub const SPARE_PARTS: u64 = 4;

/// See [`SPARE_PARTS`].
pub const SPARE_BYTES_MAX: u64 = 4 << 20;

/// Notices that wait to be read. When full the oldest is dropped.
pub const NOTICES_MAX: usize = 256;

/// The largest `segment_bytes`: offsets in a segment are 32 bits, and the last frame may stand past the mark.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;

/// Numbers left out after a stop that was not clean: those given to requests whose record was not yet written.
/// Larger than the number of such records that fit in `PENDING_BYTES_MAX`.
pub const REQUESTS_LEFT_OUT: u64 = 1 << 20;
