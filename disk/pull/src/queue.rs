//! Strict priority among requests that wait to be sent, and the count of those that are on the link.
//!
//! Requests carry rising numbers, so a set of them is a queue, first in first out, from whose middle one can be taken.
//! The preload and fill queues hold only requests that are tried again (or were left behind by their readers):
//! their first tries are made when there is room for them, from the plan and the disk, and never queue here.

use crate::{FetchId, Priority};
use std::collections::BTreeSet;

/// Requests to be sent.
#[derive(Debug, Default)]
pub(crate) struct Queues([BTreeSet<FetchId>; 3]);

fn index(priority: Priority) -> usize {
    match priority {
        Priority::Miss => 0,
        Priority::Preload => 1,
        Priority::Fill => 2,
    }
}

impl Queues {
    pub(crate) fn push(&mut self, priority: Priority, fetch: FetchId) {
        self.0[index(priority)].insert(fetch);
    }

    pub(crate) fn pop(&mut self, priority: Priority) -> Option<FetchId> {
        self.0[index(priority)].pop_first()
    }

    pub(crate) fn remove(&mut self, priority: Priority, fetch: FetchId) {
        self.0[index(priority)].remove(&fetch);
    }

    pub(crate) fn len(&self, priority: Priority) -> usize {
        self.0[index(priority)].len()
    }

    pub(crate) fn is_empty(&self, priority: Priority) -> bool {
        self.0[index(priority)].is_empty()
    }
}

/// The load of the link, by the priority with which requests were sent: misses, and the background.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    misses: Load,
    background: Load,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    requests: usize,
    bytes: u64,
}

impl Wire {
    pub(crate) fn add(&mut self, priority: Priority, bytes: u64) {
        let load = self.of(priority);
        load.requests += 1;
        load.bytes += bytes;
    }

    pub(crate) fn remove(&mut self, priority: Priority, bytes: u64) {
        let load = self.of(priority);
        debug_assert!(load.requests > 0 && load.bytes >= bytes);
        load.requests = load.requests.saturating_sub(1);
        load.bytes = load.bytes.saturating_sub(bytes);
    }

    /// Notes that the first `bytes` of a request have come.
    pub(crate) fn shrink(&mut self, priority: Priority, bytes: u64) {
        let load = self.of(priority);
        debug_assert!(load.bytes >= bytes);
        load.bytes = load.bytes.saturating_sub(bytes);
    }

    pub(crate) fn misses(&self) -> usize {
        self.misses.requests
    }

    pub(crate) fn background(&self) -> usize {
        self.background.requests
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.misses.bytes + self.background.bytes
    }

    fn of(&mut self, priority: Priority) -> &mut Load {
        if priority == Priority::Miss { &mut self.misses } else { &mut self.background }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_in_order_or_from_the_middle() {
        let mut queues = Queues::default();
        for fetch in [3, 1, 2] {
            queues.push(Priority::Miss, FetchId(fetch));
        }
        queues.push(Priority::Fill, FetchId(0));
        queues.remove(Priority::Miss, FetchId(2));
        let order: Vec<_> = std::iter::from_fn(|| queues.pop(Priority::Miss)).collect();
        assert_eq!(order, [FetchId(1), FetchId(3)]);
        assert_eq!((queues.len(Priority::Fill), queues.is_empty(Priority::Preload)), (1, true));
    }
}
