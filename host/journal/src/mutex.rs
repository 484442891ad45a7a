//! Locks a mutex whose data stays valid after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock's data: a panic elsewhere leaves nothing half done in it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
