//! Work beside the path: what compiles a component, or shows one what has come before.

use std::thread::{Builder, JoinHandle};

use rustix::process::setpriority_process;

use crate::limits::ASIDE_NICE;

/// Starts a thread for it that gives way to those that carry batches, where there are too few processors for all.
///
/// # Errors
/// If the system has no room for a thread.
pub fn aside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        // On Linux this thread's alone. Lower anybody may; where it is refused it competes like any other.
        let _lowered = setpriority_process(None, ASIDE_NICE);
        work()
    })
}
