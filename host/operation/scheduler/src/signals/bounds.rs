//! The bounds of this crate, and its behaviour at each of them.

use std::time::Duration;

/// The most notices that wait to be taken. Further ones are counted, and one notice reports their number.
pub const NOTICES_MAX: usize = 256;

/// The most copies of a slot in one read of the file. If no two in a row are equal, the read gives nothing,
/// and the next one tries again.
pub const COPIES_MAX: u32 = 16;

/// The largest slot in bytes. SGLang's slots have 16 KiB. A longer payload is invalid.
pub const SLOT_BYTES_MAX: u32 = 64 * 1024;

/// The shortest time between two notices of the same kind of failure of a source.
pub const SAME_NOTICE_EVERY: Duration = Duration::from_secs(1);

/// The time between two checks whether a source has become stale, for notices. A read checks it at once.
pub const CHECK_AGE_EVERY: Duration = Duration::from_millis(50);

/// The most consecutive reads that find a slot in the middle of a write before this is reported. Earlier
/// reads give nothing.
pub const BUSY_READS_MAX: u32 = 50;

/// How often the load of an idle engine whose frames have the load is taken as measured again: an idle engine sends no frames.
pub const IDLE_EVERY: Duration = Duration::from_secs(1);
