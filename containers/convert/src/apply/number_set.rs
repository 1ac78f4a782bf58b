//! A set of numbers, most of which follow each other: a bit for each.

use headstart_block::to_usize;
use std::collections::BTreeMap;

/// Bits of a word.
const BITS: u64 = 64;
/// Numbers of a chunk.
const CHUNK: u64 = BITS * WORDS as u64;
/// Words of a chunk.
const WORDS: usize = 32;

/// A set of numbers. 2,048 that follow each other take some 300 bytes, as one alone does.
#[derive(Debug, Default)]
pub(super) struct NumberSet(BTreeMap<u64, [u64; WORDS]>);

impl NumberSet {
    /// `true` if the number is in the set.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.get(&(number / CHUNK)).is_some_and(|chunk| chunk[word(number)] & mask(number) != 0)
    }

    /// Adds a number; `true` if it was not in the set.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let word = &mut self.0.entry(number / CHUNK).or_insert([0; WORDS])[word(number)];
        let is_new = *word & mask(number) == 0;
        *word |= mask(number);
        is_new
    }

    /// Removes a number.
    pub(super) fn remove(&mut self, number: u64) {
        let key = number / CHUNK;
        if let Some(chunk) = self.0.get_mut(&key) {
            chunk[word(number)] &= !mask(number);
            if chunk.iter().all(|word| *word == 0) {
                self.0.remove(&key);
            }
        }
    }
}

/// The word of a chunk that has the number's bit.
fn word(number: u64) -> usize {
    to_usize(number % CHUNK / BITS)
}

fn mask(number: u64) -> u64 {
    1 << (number % BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn numbers_are_those_of_a_set(
            steps in prop::collection::vec((any::<bool>(), prop_oneof![0..5000_u64, any::<u64>()]), 0..200),
        ) {
            let (mut set, mut model) = (NumberSet::default(), BTreeSet::new());
            for (is_added, number) in &steps {
                if *is_added {
                    prop_assert_eq!(set.insert(*number), model.insert(*number));
                } else {
                    set.remove(*number);
                    model.remove(number);
                }
            }
            for (_, number) in &steps {
                prop_assert_eq!(set.contains(*number), model.contains(number));
            }
            for number in model {
                set.remove(number);
            }
            prop_assert!(set.0.is_empty());
        }
    }
}
