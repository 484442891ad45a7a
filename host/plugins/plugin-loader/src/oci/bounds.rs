//! The bounds of this crate. A transfer past one of them fails.

use std::time::Duration;

/// Bytes of a manifest.
pub const MANIFEST_BYTES_MAX: usize = 1 << 20;
/// The time to connect to a registry.
pub const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The time for everything that is fetched of one component, including Docker's credential helper.
pub const FETCH_MAX: Duration = Duration::from_secs(120);
/// The time in which a connected registry must send something.
pub const STALL_MAX: Duration = Duration::from_secs(30);
