//! The similarity of two boots: the Pearson correlation of vectors over the blocks (paper, section 5.2).
//!
//! A vector has a number for each block. With *counts*, boots that read the same blocks equally often are equal,
//! in any order; with *order*, a block's entry is the earliness of its first read: 1 for the first down to nearly 0
//! for the last, and 0 if it was not read at all. Reordering moves these, so that order tells boots apart that counts
//! cannot.

use crate::best::first_best;
use crate::compact_trace::CompactTrace;

/// The number that a vector has for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The earliness of its first read, by rank.
    Order,
    /// The number of its reads.
    Counts,
}

/// A trace as a vector over the blocks of a block table: entries by id, sparse, ascending, with their mean and spread.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    entries: Vec<(u32, f32)>,
    sum: f64,
    squares: f64,
}

impl Vector {
    /// The vector of a trace.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "ranks and counts of at most 3,000 reads")]
    pub fn of(trace: &CompactTrace, feature: Feature) -> Self {
        let all = trace.blocks.len() as f32;
        let entry = |(rank, block): (usize, &crate::compact_trace::BlockReads)| match feature {
            Feature::Order => (block.block, (all - rank as f32) / all),
            Feature::Counts => (block.block, block.count as f32),
        };
        let mut entries: Vec<_> = trace.blocks.iter().enumerate().map(entry).collect();
        entries.sort_unstable_by_key(|(block, _)| *block);
        let value = |(_, value): &(u32, f32)| f64::from(*value);
        let (sum, squares) =
            (entries.iter().map(value).sum(), entries.iter().map(|e| value(e).powi(2)).sum());
        Self { entries, sum, squares }
    }

    /// The Pearson correlation over the blocks that either names, from -1 to 1; a vector that does not vary
    /// correlates with nothing but its equal.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of blocks")]
    pub fn correlation(&self, other: &Self) -> f64 {
        let (mut product, mut both) = (0.0, 0_usize);
        let mut theirs = other.entries.iter().peekable();
        for (block, value) in &self.entries {
            while theirs.peek().is_some_and(|(their, _)| their < block) {
                theirs.next();
            }
            if let Some((_, their)) = theirs.peek().filter(|(their, _)| their == block) {
                product += f64::from(*value) * f64::from(*their);
                both += 1;
            }
        }
        let all = (self.entries.len() + other.entries.len() - both) as f64;
        let spread = |vector: &Self| (all * vector.squares - vector.sum * vector.sum).max(0.0);
        let spreads = spread(self) * spread(other);
        if spreads <= f64::EPSILON {
            return if self.entries == other.entries { 1.0 } else { 0.0 };
        }
        ((all * product - self.sum * other.sum) / spreads.sqrt()).clamp(-1.0, 1.0)
    }
}

/// A symmetric table of the similarities of some traces.
#[derive(Clone, Debug)]
pub struct Similarities {
    size: usize,
    values: Vec<f64>,
}

impl Similarities {
    /// The similarities of all pairs.
    #[must_use]
    pub fn of(vectors: &[Vector]) -> Self {
        let size = vectors.len();
        let mut values = vec![1.0; size * size];
        for a in 0..size {
            for b in 0..a {
                let value = vectors[a].correlation(&vectors[b]);
                (values[a * size + b], values[b * size + a]) = (value, value);
            }
        }
        Self { size, values }
    }

    /// The number of traces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.size
    }

    /// `true` if there are no traces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The similarity of two of them.
    #[must_use]
    pub fn get(&self, a: usize, b: usize) -> f64 {
        self.values[a * self.size + b]
    }

    /// The one of `members` with the highest sum of similarities to them: their *centroid*; the first of equals.
    #[must_use]
    pub fn centroid(&self, members: &[usize]) -> Option<usize> {
        let sum = |a: usize| members.iter().map(|b| self.get(a, *b)).sum::<f64>();
        first_best(members.iter().copied(), |member| sum(*member)).map(|(member, _)| member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_table::BlockTable;
    use crate::testing::trace;
    use proptest::prelude::*;

    fn boot(blocks: &[u64], block_table: &mut BlockTable) -> CompactTrace {
        let reads: Vec<_> = (0..).zip(blocks).map(|(t, block)| (t * 1000, *block, 0, 1)).collect();
        trace(&reads, block_table)
    }

    #[test]
    fn order_tells_apart_what_counts_cannot() {
        let mut block_table = BlockTable::new(1 << 30);
        let plain: Vec<u64> = (0..60).flat_map(|block| vec![block; 1 + block as usize % 3]).collect();
        let mut reordered = plain.clone();
        reordered.rotate_left(60);
        let [plain, reordered] = [plain, reordered].map(|blocks| boot(&blocks, &mut block_table));
        let alike = |feature| Vector::of(&plain, feature).correlation(&Vector::of(&reordered, feature));
        assert!(alike(Feature::Counts) > 0.999_999, "{}", alike(Feature::Counts));
        assert!(alike(Feature::Order) < 0.0, "{}", alike(Feature::Order));
    }

    #[test]
    fn a_centroid_is_most_like_the_others() {
        let mut block_table = BlockTable::new(1 << 30);
        let boots: [&[u64]; 4] = [&[1, 2, 3, 4, 9], &[1, 2, 3, 4, 5], &[1, 2, 4, 3, 5], &[7, 8, 6]];
        let vectors = boots.map(|blocks| Vector::of(&boot(blocks, &mut block_table), Feature::Order));
        let similarities = Similarities::of(&vectors);
        assert_eq!(similarities.centroid(&[0, 1, 2, 3]), Some(1));
        assert_eq!(similarities.centroid(&[]), None);
        assert_eq!((similarities.len(), similarities.is_empty()), (4, false));
    }

    proptest! {
        #[test]
        fn correlations_are_those_of_dense_vectors(
            a in prop::collection::vec(0_u64..20, 0..30), b in prop::collection::vec(0_u64..20, 0..30)
        ) {
            let mut block_table = BlockTable::new(1 << 30);
            let [a, b] = [a, b].map(|blocks| Vector::of(&boot(&blocks, &mut block_table), Feature::Counts));
            let value = |vector: &Vector, id: u32| {
                vector.entries.iter().find(|entry| entry.0 == id).map_or(0.0, |entry| f64::from(entry.1))
            };
            let pairs = (0..20).map(|id| (value(&a, id), value(&b, id)));
            let named: Vec<_> = pairs.filter(|(a, b)| a + b > 0.0).collect();
            let n = named.len() as f64;
            let mean = |of: fn(&(f64, f64)) -> f64| named.iter().map(of).sum::<f64>() / n;
            let (mean_a, mean_b) = (mean(|p| p.0), mean(|p| p.1));
            let covariance: f64 = named.iter().map(|(a, b)| (a - mean_a) * (b - mean_b)).sum();
            let spread = |values: Vec<f64>| values.iter().map(|v| v * v).sum::<f64>();
            let (of_a, of_b) = named.iter().map(|(a, b)| (a - mean_a, b - mean_b)).unzip();
            let spreads = spread(of_a) * spread(of_b);
            let correlation = a.correlation(&b);
            prop_assert!((correlation - b.correlation(&a)).abs() < 1e-9);
            if spreads > 1e-6 {
                prop_assert!((correlation - covariance / spreads.sqrt()).abs() < 1e-6);
            }
        }
    }
}
