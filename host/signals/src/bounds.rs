//! Every bound of this crate, and what happens at it.

use std::time::Duration;

/// Notices kept until somebody takes them. Further ones are counted, and the count is told in their place.
pub const NOTICES_MAX: usize = 256;

/// Tries at two equal copies of a slot in one look. Past it the look gives nothing: the next one tries again.
pub const COPIES_MAX: u32 = 16;

/// Bytes of a slot that are looked at. SGLang's slots have 16 KiB; a longer payload is an error in words.
pub const SLOT_BYTES_MAX: u32 = 64 * 1024;

/// Bytes of a LoadStat payload, of which SGLang's has about 60. A longer one is an error in words. The `zeromq` crate has no bound
/// of its own for a frame that it reads.
pub const LOAD_STAT_BYTES_MAX: usize = 4096;

/// LoadStat messages taken before other sources have their turn.
pub const LOAD_STAT_TURN_MAX: usize = 64;

/// Bytes of the body of a scrape. A longer one is an error in words.
pub const METRICS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Series of one metric that are looked at. Further ones are ignored.
pub const SERIES_MAX: usize = 4096;

/// How often a source's refusal, with words that keep changing, becomes a notice.
pub const SAME_NOTICE_EVERY: Duration = Duration::from_secs(1);

/// How often it is seen whether a source has become stale, for the notices. A read sees it at once.
pub const LOOK_AT_AGE_EVERY: Duration = Duration::from_millis(50);

/// The first wait before a publisher is connected to again; doubles up to [`RECONNECT_MAX`].
pub const RECONNECT_MIN: Duration = Duration::from_millis(100);

/// The longest wait before a publisher is connected to again.
pub const RECONNECT_MAX: Duration = Duration::from_secs(2);

/// How long a connection and its handshake with a publisher may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Looks in a row that found a slot in the middle of being written before it is told. The looks before give nothing.
pub const BUSY_LOOKS_MAX: u32 = 50;
