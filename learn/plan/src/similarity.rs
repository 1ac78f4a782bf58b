//! The similarity of two boots: the Pearson correlation of vectors over the blocks (ThinkAhead paper, section 5.2).
//!
//! A vector has a number for each block. With [`Feature::Counts`] it is the number of reads, so boots that read the
//! same blocks equally often are equal, in whatever order they read. With [`Feature::Order`] it is the earliness of the
//! block's first read: 1 for the first block, down to nearly 0 for the last, and 0 for a block that was not read. So
//! this feature also distinguishes boots that read the same blocks in another order.

use crate::best::first_best;
use crate::compact_trace::CompactTrace;

/// The number that a [`Vector`] has for each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The earliness of the first read of the block, by rank: 1 for the first block, nearly 0 for the last.
    Order,
    /// The number of reads of the block.
    Counts,
}

/// A trace as a vector with a number for each block, 0 for blocks that are not read. Only the first 3,000
/// reads of the trace count.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    entries: Vec<(u32, f32)>,
    sum: f64,
    squares: f64,
}

impl Vector {
    /// Makes the vector of a trace.
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

    /// Returns the Pearson correlation with another vector, -1 to 1, over the blocks that at least one of the
    /// two traces reads. If one of the vectors is constant over these blocks, the result is 1 if both vectors are
    /// equal, otherwise 0.
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

/// The similarity of each pair of some traces, as a symmetric table.
#[derive(Clone, Debug)]
pub struct Similarities {
    size: usize,
    values: Vec<f64>,
}

impl Similarities {
    /// Computes the correlation of each pair of vectors.
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

    /// The number of traces in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.size
    }

    /// Returns `true` if the table has no traces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Returns the similarity, -1 to 1, of the traces with the indices `a` and `b`, which must be below
    /// [`len`](Self::len).
    #[must_use]
    pub fn get(&self, a: usize, b: usize) -> f64 {
        self.values[a * self.size + b]
    }

    /// Returns the *centroid* of the traces with the indices `members`: that one of these indices whose trace has the
    /// highest sum of similarities to all members, the first of equals. `None` if `members` is empty.
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
