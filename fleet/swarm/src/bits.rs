//! The set of a blob's chunks that a host has: one bit for each, up to the last that was ever set.

use crate::event::Chunks;
use headstart_block::saturating;

/// A growing set of small numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds a run, which the caller has cut to the blob's chunks: memory is taken up to the run's end.
    pub(crate) fn set(&mut self, run: Chunks) {
        let range = run.numbers();
        if range.is_empty() {
            return;
        }
        let words = range.end as usize / 64 + 1;
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        range.for_each(|number| self.0[number as usize / 64] |= 1 << (number % 64));
    }

    pub(crate) fn clear(&mut self, run: Chunks) {
        let end = saturating(self.0.len().saturating_mul(64));
        for number in run.first..run.numbers().end.min(end) {
            self.0[number as usize / 64] &= !(1 << (number % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_bit_set_reads_as_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0_u32..300, 0_u32..100), 0..40),
        ) {
            let (mut bits, mut model) = (Bits::default(), BTreeSet::new());
            for (add, first, count) in steps {
                let run = Chunks { first, count };
                if add {
                    bits.set(run);
                    model.extend(run.numbers());
                } else {
                    bits.clear(run);
                    model.retain(|number| !run.numbers().contains(number));
                }
            }
            for number in 0..500 {
                prop_assert_eq!(bits.has(number), model.contains(&number));
            }
        }
    }
}
