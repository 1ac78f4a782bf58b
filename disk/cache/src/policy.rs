//! The choice of chunks to evict: pure arithmetic on access words.
//!
//! # The word of a chunk
//!
//! Two low bits count accesses (0 to 3), the other 30 hold the *epoch* of the last one that counted. An epoch ends when
//! a 32nd of the size limit was inserted, or after 30 seconds. A chunk that is inserted gets 0; its first access makes
//! that 1; a further one counts only if a whole epoch passed between it and the one before. So all the reads of a scan
//! that passes a chunk count as one, however small they are and whatever epoch ends meanwhile, and so do a prefetch and
//! the read that it was for.
//!
//! # The choice
//!
//! As in S3-FIFO (a small queue for new chunks, a main one for those that have proven themselves, the least recent
//! first), but without queues, which processes could not share: the order is in the words. Chunks with a count of at
//! most 1 are *new*, the others *proven*. As long as new chunks hold more than a tenth of the cache, the oldest of them
//! are evicted, so a scan of any length drives out only itself. Otherwise proven chunks are evicted, the smallest count
//! first, among equals the oldest; and each that stays loses one of its count, so that a chunk that was once popular
//! gets old too (CLOCK). The word of a chunk stays when its bytes go, so there is a ghost queue for free: a chunk that
//! was read, is evicted and comes back within 64 epochs (hence before twice the cache's size was inserted) is proven at
//! once.
//!
//! The evictor looks at all words twice and sorts nothing: first it counts bytes by count and age, from which the cut
//! follows; then it takes the chunks below the cut.

use std::sync::atomic::{AtomicU32, Ordering};

/// The bits of an epoch.
pub(crate) const EPOCH_MASK: u32 = u32::MAX >> COUNT_BITS;
const COUNT_BITS: u32 = 2;
const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;
/// The least count of a proven chunk.
const PROVEN: u32 = 2;
/// The part of the cache that is left to new chunks: one in ten.
const NEW_PART: u64 = 10;

/// The number of ages that are told apart one by one; beyond it, each bucket is twice as wide as the one before.
const FINE: u32 = 1024;
const BUCKETS: usize = FINE as usize + EPOCH_MASK.ilog2() as usize + 1 - FINE.ilog2() as usize;

/// The most epochs after its last access in which a chunk that comes back is proven.
const GHOST: u32 = 64;

/// The word of a chunk that is inserted in `epoch`; `before` is its word from the last time that it was there, or 0.
pub(crate) fn inserted(before: u32, epoch: u32) -> u32 {
    let age = epoch.wrapping_sub(before >> COUNT_BITS) & EPOCH_MASK;
    let comes_back = before & MAX_COUNT > 0 && age <= GHOST;
    epoch << COUNT_BITS | if comes_back { PROVEN } else { 0 }
}

/// Marks an access in `epoch`. Two accesses at the same moment may count as one; nothing depends on that.
pub(crate) fn touch(word: &AtomicU32, epoch: u32) {
    let before = word.load(Ordering::Relaxed);
    let count = before & MAX_COUNT;
    let age = epoch.wrapping_sub(before >> COUNT_BITS) & EPOCH_MASK;
    // This is almost always so: then the cache line stays shared.
    if count > 0 && age <= 1 {
        return;
    }
    word.store(epoch << COUNT_BITS | (count + 1).min(MAX_COUNT), Ordering::Relaxed);
}

/// `true` if a chunk was accessed again when a whole epoch had passed.
pub(crate) fn is_proven(word: u32) -> bool {
    word & MAX_COUNT >= PROVEN
}

/// Takes one off the count of a proven chunk.
pub(crate) fn age(word: &AtomicU32) {
    let before = word.load(Ordering::Relaxed);
    if is_proven(before) {
        word.store(before - 1, Ordering::Relaxed);
    }
}

/// The bucket of an age: a larger one is older.
fn bucket(word: u32, epoch: u32) -> usize {
    let age = epoch.wrapping_sub(word >> COUNT_BITS) & EPOCH_MASK;
    let bucket = if age < FINE { age } else { FINE + age.ilog2() - FINE.ilog2() };
    (bucket as usize).min(BUCKETS - 1)
}

/// Bytes by count and age.
pub(crate) struct Census {
    epoch: u32,
    /// New chunks (counts 0 and 1 are one class), then those with a count of 2, then of 3.
    classes: [Box<[u64]>; 3],
}

/// The chunks to evict: all below a line, as far as the budget goes.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    epoch: u32,
    /// For each class the bucket of which some chunks go, and the bytes of it that may; chunks in older buckets all go.
    classes: [(usize, u64); 3],
    /// `true` if the chunks that stay lose one of their count.
    pub(crate) ages: bool,
}

fn class(word: u32) -> usize {
    (word & MAX_COUNT).saturating_sub(PROVEN - 1) as usize
}

impl Census {
    pub(crate) fn new(epoch: u32) -> Self {
        Self { epoch, classes: std::array::from_fn(|_| vec![0; BUCKETS].into()) }
    }

    /// Counts a chunk that could go.
    pub(crate) fn add(&mut self, word: u32, bytes: u64) {
        self.classes[class(word)][bucket(word, self.epoch)] += bytes;
    }

    /// The bytes of all chunks that could go.
    pub(crate) fn bytes(&self) -> u64 {
        self.classes.iter().flat_map(|class| class.iter()).sum()
    }

    /// The cut by which about `need` bytes go out of a cache of `capacity` bytes.
    pub(crate) fn cut(&self, need: u64, capacity: u64) -> Cut {
        let sum = |class: usize| self.classes[class].iter().sum::<u64>();
        let (new, proven) = (sum(0), sum(1) + sum(2));
        let spare_new = new.saturating_sub(capacity / NEW_PART).min(need);
        let from_proven = (need - spare_new).min(proven);
        let from_new = (need - from_proven).min(new);
        let from_2 = from_proven.min(sum(1));
        let budgets = [from_new, from_2, from_proven - from_2];
        let line = |class: usize| {
            let mut left = budgets[class];
            for (bucket, &bytes) in self.classes[class].iter().enumerate().rev() {
                if left <= bytes {
                    return (bucket, left);
                }
                left -= bytes;
            }
            (0, left)
        };
        Cut { epoch: self.epoch, classes: [line(0), line(1), line(2)], ages: from_proven > 0 }
    }
}

impl Cut {
    /// `true` if a chunk goes. On the line, the chunks that are looked at first go.
    pub(crate) fn takes(&mut self, word: u32, bytes: u64) -> bool {
        let (line, budget) = &mut self.classes[class(word)];
        match bucket(word, self.epoch).cmp(line) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => {
                let takes = *budget > 0;
                *budget = budget.saturating_sub(bytes);
                takes
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 64 << 10;

    /// A cache of whole chunks, like the real one except for files.
    struct Sim {
        words: Vec<(bool, AtomicU32)>,
        capacity: usize,
        epoch: u32,
        inserts: usize,
    }

    impl Sim {
        fn new(chunks: usize, capacity: usize) -> Self {
            let words = (0..chunks).map(|_| (false, AtomicU32::new(0))).collect();
            Self { words, capacity, epoch: 0, inserts: 0 }
        }

        fn local(&self) -> usize {
            self.words.iter().filter(|(is_local, _)| *is_local).count()
        }

        /// Reads a chunk, in parts as a guest would, perhaps at the end of an epoch; `true` if it was there.
        fn read(&mut self, chunk: usize) -> bool {
            let (is_local, word) = &mut self.words[chunk];
            let hit = std::mem::replace(is_local, true);
            if !hit {
                *word.get_mut() = inserted(*word.get_mut(), self.epoch);
                (0..8).for_each(|_| touch(word, self.epoch));
                self.inserts += 1;
                if self.inserts.is_multiple_of((self.capacity / 32).max(1)) {
                    self.epoch += 1;
                }
            }
            (0..8).for_each(|_| touch(&self.words[chunk].1, self.epoch));
            if self.local() > self.capacity {
                self.evict();
            }
            hit
        }

        fn evict(&mut self) {
            let target = self.capacity - self.capacity / 8;
            let mut census = Census::new(self.epoch);
            for (_, word) in self.words.iter().filter(|(is_local, _)| *is_local) {
                census.add(word.load(Ordering::Relaxed), CHUNK);
            }
            let need = (self.local() - target) as u64 * CHUNK;
            let mut cut = census.cut(need, self.capacity as u64 * CHUNK);
            for (is_local, word) in self.words.iter_mut().filter(|(is_local, _)| *is_local) {
                if cut.takes(word.load(Ordering::Relaxed), CHUNK) {
                    *is_local = false;
                } else if cut.ages {
                    age(word);
                }
            }
            assert!((target - 3..=target).contains(&self.local()), "parts of a chunk are rounded up");
        }
    }

    #[test]
    fn buckets_of_ages_past_the_fine_ones_double_in_width() {
        let ages = [0, 1, 1023, 1024, 2047, 2048, 4095, 4096, EPOCH_MASK];
        let buckets = [0, 1, 1023, 1024, 1024, 1025, 1025, 1026, BUCKETS - 1];
        assert_eq!(ages.map(|age| bucket(0, age)), buckets);
        // The epoch wraps around.
        assert_eq!(bucket(EPOCH_MASK << COUNT_BITS, 3), 4);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        #[test]
        fn a_hot_set_survives_a_scan_of_three_times_the_cache(
            capacity in 100usize..2000, part in 1usize..70, order in any::<u64>(),
        ) {
            let hot = capacity * part / 100;
            let mut sim = Sim::new(hot + 3 * capacity, capacity);
            for _ in 0..2 {
                (0..hot).for_each(|chunk| { sim.read(chunk); });
                sim.epoch += 2;
            }
            let scan = 3 * capacity;
            let divides = |step: &usize| (2..=*step).any(|d| step.is_multiple_of(d) && scan.is_multiple_of(d));
            let step = (1 + order as usize % 50..).find(|step| !divides(step)).unwrap();
            (0..scan).for_each(|at| { sim.read(hot + at * step % scan); });
            let left = (0..hot).filter(|&chunk| sim.words[chunk].0).count();
            prop_assert_eq!(left, hot);
        }
    }

    #[test]
    fn a_former_hot_set_makes_room_for_the_present_one() {
        let mut sim = Sim::new(4000, 1000);
        for round in 0..40 {
            let base = if round < 10 { 0 } else { 2000 };
            (base..base + 800).for_each(|chunk| {
                sim.read(chunk);
            });
            sim.epoch += 2;
        }
        let hits = (2000..2800).filter(|&chunk| sim.read(chunk)).count();
        assert!(hits > 750, "{hits} of 800");
    }

    #[test]
    fn the_oldest_new_ones_go_first() {
        let mut census = Census::new(5000);
        let words = [inserted(0, 1), inserted(0, 4000), inserted(0, 4001), inserted(0, 5000)];
        words.iter().for_each(|&word| census.add(word, 10));
        let mut cut = census.cut(15, 10);
        assert_eq!(words.map(|word| cut.takes(word, 10)), [true, true, false, false]);
        assert!(!cut.ages);
    }

    #[test]
    fn proven_chunks_go_by_their_count_and_only_as_many_as_are_needed() {
        let words = [3, 2, 3, 2, 3].map(|count| 7 << COUNT_BITS | count);
        let mut census = Census::new(7);
        words.iter().for_each(|&word| census.add(word, 10));
        assert_eq!(census.bytes(), 50);
        let mut cut = census.cut(30, 100);
        assert_eq!(words.map(|word| cut.takes(word, 10)), [true, true, false, true, false]);
        assert!(cut.ages);
    }

    #[test]
    fn a_proven_chunk_that_stays_loses_one_of_its_count() {
        let word = AtomicU32::new(7 << COUNT_BITS | 3);
        let counts = [(); 3].map(|()| {
            age(&word);
            word.load(Ordering::Relaxed)
        });
        assert_eq!(counts, [2, 1, 1].map(|count| 7 << COUNT_BITS | count));
    }

    #[test]
    fn epochs_wrap() {
        let word = inserted(0, EPOCH_MASK);
        assert_eq!((bucket(word, EPOCH_MASK), bucket(word, 0), bucket(word, 1)), (0, 1, 2));
        assert_eq!(bucket(inserted(0, 1), 0), BUCKETS - 1);
    }
}
