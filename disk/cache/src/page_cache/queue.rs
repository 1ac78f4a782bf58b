//! The chunks whose pages may be in the page cache though not used up, first in, first out: pure, without a clock.

use std::collections::VecDeque;

/// The longest time that a chunk waits, in milliseconds (the paper's `longevity`).
const LONGEVITY_MS: u64 = 60_000;
/// The most chunks of 64 KiB that wait (the paper's `npages`): 256 MiB.
const CHUNKS_MAX: usize = 4096;

/// A chunk of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedChunk {
    /// The blob's number in this process.
    pub(crate) blob: u64,
    pub(crate) chunk: u64,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    chunks: VecDeque<(QueuedChunk, u64)>,
}

impl Queue {
    /// Adds a chunk, which is not in the queue, at the time `now`, in milliseconds.
    pub(crate) fn push(&mut self, chunk: QueuedChunk, now: u64) {
        self.chunks.push_back((chunk, now));
    }

    /// Removes the first chunk, if it has waited long enough, or if too many wait.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<QueuedChunk> {
        let is_old = |since: u64| now.saturating_sub(since) >= LONGEVITY_MS;
        let is_over = self.chunks.len() > CHUNKS_MAX;
        self.chunks.pop_front_if(|(_, since)| is_over || is_old(*since)).map(|(chunk, _)| chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(queue: &mut Queue, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop_due(now)).map(|found| found.chunk).collect()
    }

    #[test]
    fn chunks_leave_in_their_order_when_they_are_old() {
        let mut queue = Queue::default();
        for (chunk, now) in [(5, 0), (3, 10), (8, 20_000)] {
            queue.push(QueuedChunk { blob: 1, chunk }, now);
        }
        assert!(due(&mut queue, LONGEVITY_MS - 1).is_empty());
        assert_eq!(due(&mut queue, LONGEVITY_MS + 10), [5, 3]);
        // A clock that goes back ends nothing early.
        assert!(due(&mut queue, 0).is_empty());
        assert_eq!(due(&mut queue, LONGEVITY_MS + 20_000), [8]);
    }

    #[test]
    fn chunks_leave_when_there_are_too_many() {
        let mut queue = Queue::default();
        for chunk in 0..CHUNKS_MAX as u64 + 3 {
            queue.push(QueuedChunk { blob: 1, chunk }, 0);
        }
        assert_eq!(due(&mut queue, 1), [0, 1, 2]);
    }
}
