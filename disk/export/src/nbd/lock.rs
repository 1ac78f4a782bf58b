//! Locking that works after a panic elsewhere.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks even after a panic elsewhere: the data behind these locks is whole at every point where a panic could come.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
