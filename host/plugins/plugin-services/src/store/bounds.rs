//! Every bound of a store, and what happens when it is reached.

use std::time::Duration;

/// The keys of one store. A further key is refused.
pub const KEYS_MAX: usize = 10_000;
/// The bytes of all keys and values of one store. A value past it is refused. A number counts as 8 bytes.
pub const BYTES_MAX: usize = 4 << 20;
/// The bytes of a key. A longer key is refused.
pub const KEY_BYTES_MAX: usize = 256;
/// The bytes of a value. A longer value is refused.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The keys that one call lists. The caller asks for more with the last key.
pub const LISTED_MAX: usize = 1_000;

/// The time between two syncs of the files. A loss of power costs the changes since the last sync.
pub const SYNC_EVERY: Duration = Duration::from_millis(500);
/// A file is rewritten when it is longer than this and [`REWRITE_FACTOR`] times its snapshot.
pub(crate) const REWRITE_BYTES_MIN: u64 = 1 << 20;
/// See [`REWRITE_BYTES_MIN`].
pub(crate) const REWRITE_FACTOR: u64 = 4;
/// The longest file. A longer one that cannot be rewritten counts as a failing disk.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 20;
/// The bytes of changes that may arrive while a file is rewritten, or between two writes. More fail the write.
pub(crate) const PENDING_BYTES_MAX: usize = 16 << 20;
/// The attempts, 1 ms apart, to find a moment without an unfinished batch, in which a file is rewritten. The last attempt
/// takes any moment.
pub(crate) const QUIET_ATTEMPTS: u32 = 50;
/// The writers of one store: streams since the start. A further one shares the last place.
pub(crate) const WRITERS_MAX: usize = 4096;
