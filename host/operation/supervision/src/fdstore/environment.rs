//! The descriptors that a supervisor passes at the start of a process: `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES`.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once the descriptors have an owner.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The passed descriptors with their names, in the order of their numbers. Empty at every further call, and if the
/// variables are for another process.
///
/// # Errors
///
/// The variables contradict each other, or a number is no open descriptor.
#[allow(unsafe_code)]
pub(crate) fn take() -> io::Result<Vec<(String, OwnedFd)>> {
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    let passed = sd_notify::listen_fds_with_names()?;
    // Invariant: nothing else owns these numbers. The supervisor opened them before the exec and says so with our process
    // id, so neither the standard library nor another crate made them. `TAKEN` lets them be taken once. Each is open:
    // `listen_fds_with_names` has set FD_CLOEXEC on it.
    Ok(passed.map(|(number, name)| (name, unsafe { OwnedFd::from_raw_fd(number) })).collect())
}
