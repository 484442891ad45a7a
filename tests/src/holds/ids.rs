//! The token ids for which the guest `holds` gives a verdict on their row. The guest compiles this file too.

/// Holds the row for the time in the settings.
pub const HOLD: i64 = 101;
/// Releases the held rows.
pub const RELEASE: i64 = 102;
/// Releases the held rows as one row with other ids.
pub const RELEASE_AS: i64 = 103;
/// Drops the row.
pub const DROP: i64 = 104;
/// Finishes the request.
pub const FINISH: i64 = 105;
/// Panics.
pub const PANIC: i64 = 106;
/// Releases the held rows and holds this one.
pub const RELEASE_AND_HOLD: i64 = 107;
