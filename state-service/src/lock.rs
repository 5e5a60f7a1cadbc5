//! A lock whose holder may have panicked: what it guards is whole between any two steps, and a service that goes on is better than none.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes it, whatever became of whoever had it before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
