//! A lock for each tree that is worked on. Those that no thread has or waits for go when there are many.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Locks that are kept in any case.
const KEPT: usize = 256;

/// The locks of trees, by id.
#[derive(Default)]
pub(crate) struct TreeLocks(Mutex<HashMap<String, Arc<Mutex<()>>>>);

impl TreeLocks {
    /// The lock of a tree, the same for all threads that have it at a time.
    pub(crate) fn of(&self, id: &str) -> Arc<Mutex<()>> {
        let mut locks = self.0.lock();
        if locks.len() >= KEPT {
            // No other thread gets one meanwhile.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        Arc::clone(locks.entry(id.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_without_use_go_and_others_stay() {
        let locks = TreeLocks::default();
        let held = locks.of("held");
        for number in 0..10 * KEPT {
            drop(locks.of(&number.to_string()));
        }
        assert!(locks.0.lock().len() <= KEPT);
        assert!(Arc::ptr_eq(&held, &locks.of("held")));
    }
}
