//! The similarity of traces, by their reads of each block. Each comparison of two traces is one pass over two sorted
//! lists.

use super::boot::BlockUse;

/// Returns the cosine, 0 to 1, of two traces' read counts by block: 1 if the counts are proportional, 0 if no
/// block is in both. The caller must pass each list in ascending order of the blocks.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a similarity")]
pub fn cosine(a: &[BlockUse], b: &[BlockUse]) -> f64 {
    let mut product = 0.0;
    merge(a, b, |use_| use_.block, |a, b| product += a.count as f64 * b.count as f64);
    let square = |uses: &[BlockUse]| uses.iter().map(|use_| (use_.count as f64).powi(2)).sum::<f64>();
    let norms = (square(a) * square(b)).sqrt();
    if norms > 0.0 { (product / norms).min(1.0) } else { 0.0 }
}

/// Returns Jaccard's index, 0 to 1, of two sets of blocks, each in ascending order: the number of common
/// blocks divided by the number of all; 0 for two empty sets.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a similarity")]
pub fn jaccard(a: &[u64], b: &[u64]) -> f64 {
    let mut common = 0_usize;
    merge(a, b, |block| *block, |_, _| common += 1);
    let all = a.len() + b.len() - common;
    common as f64 / all.max(1) as f64
}

/// Returns pairs of a block and the rank of its first read in a trace (0 for the earliest), in ascending order of the
/// blocks, as [`order`] needs them.
#[must_use]
pub fn ranks(uses: &[BlockUse]) -> Vec<(u64, u32)> {
    let mut by_time: Vec<_> = uses.iter().map(|use_| (use_.first_us, use_.block)).collect();
    by_time.sort_unstable();
    let mut ranks: Vec<_> = (0..).zip(by_time).map(|(rank, (_, block))| (block, rank)).collect();
    ranks.sort_unstable();
    ranks
}

/// Returns the correlation (Pearson's) of the [`ranks`] of two traces, over the blocks that both read: 1 if
/// they were first read in the same order, -1 for the opposite order. `None` if fewer than two blocks are in
/// both.
#[must_use]
pub fn order(a: &[(u64, u32)], b: &[(u64, u32)]) -> Option<f64> {
    let (mut count, mut sums, mut squares, mut product) = (0.0, [0.0; 2], [0.0; 2], 0.0);
    merge(
        a,
        b,
        |(block, _)| *block,
        |(_, a), (_, b)| {
            let [a, b] = [f64::from(*a), f64::from(*b)];
            count += 1.0;
            sums = [sums[0] + a, sums[1] + b];
            squares = [squares[0] + a * a, squares[1] + b * b];
            product += a * b;
        },
    );
    let variance = |at: usize| count * squares[at] - sums[at] * sums[at];
    let both = (variance(0) * variance(1)).sqrt();
    // Ranks differ: two blocks are enough for a variance.
    (count >= 2.0 && both > 0.0).then(|| ((count * product - sums[0] * sums[1]) / both).clamp(-1.0, 1.0))
}

/// Calls `both` with the elements of both lists, which are sorted by `key` and have each key once.
fn merge<'a, T>(a: &'a [T], b: &'a [T], key: impl Fn(&T) -> u64, mut both: impl FnMut(&'a T, &'a T)) {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(left), Some(right)) = (a.peek(), b.peek()) {
        match key(left).cmp(&key(right)) {
            std::cmp::Ordering::Less => drop(a.next()),
            std::cmp::Ordering::Greater => drop(b.next()),
            std::cmp::Ordering::Equal => {
                both(left, right);
                a.next();
                b.next();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn uses(counts: &BTreeMap<u64, u64>) -> Vec<BlockUse> {
        counts
            .iter()
            .map(|(block, count)| BlockUse { block: *block, count: *count, first_us: 0, sum_us: 0 })
            .collect()
    }

    #[test]
    fn the_same_is_alike_and_nothing_in_common_is_not() {
        let (a, b) = (uses(&[(1, 3), (5, 4)].into()), uses(&[(1, 6), (5, 8)].into()));
        assert!((cosine(&a, &b) - 1.0).abs() < 1e-12);
        assert_eq!((cosine(&a, &uses(&[(2, 1)].into())), cosine(&[], &[])), (0.0, 0.0));
        assert_eq!(
            (jaccard(&[1, 2], &[2, 3]), jaccard(&[], &[]), jaccard(&[4], &[4])),
            (1.0 / 3.0, 0.0, 1.0)
        );
    }

    #[test]
    fn the_order_of_first_reads_counts_and_their_times_do_not() {
        let uses = |blocks: &[(u64, u64)]| {
            let use_ =
                |&(block, first_us): &(u64, u64)| BlockUse { block, count: 1, first_us, sum_us: first_us };
            ranks(&blocks.iter().map(use_).collect::<Vec<_>>())
        };
        let a = uses(&[(1, 50), (2, 10), (3, 20), (7, 20)]);
        assert_eq!(a, [(1, 3), (2, 0), (3, 1), (7, 2)]);
        // Other times, and a block more in between, but the same order.
        let same = order(&a, &uses(&[(1, 900), (2, 1), (3, 2), (4, 3), (7, 4)])).unwrap();
        assert!(same > 0.97 && (order(&a, &a).unwrap() - 1.0).abs() < 1e-12);
        assert!(order(&a, &uses(&[(1, 1), (2, 9), (3, 8), (7, 7)])).unwrap() < -0.9);
        assert_eq!((order(&a, &uses(&[(1, 5), (9, 6)])), order(&a, &[])), (None, None));
    }

    proptest! {
        #[test]
        fn equals_the_similarity_of_maps(
            a in prop::collection::btree_map(0_u64..30, 1_u64..9, 0..20),
            b in prop::collection::btree_map(0_u64..30, 1_u64..9, 0..20),
        ) {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let norm = |m: &BTreeMap<u64, u64>| (m.values().map(|n| n * n).sum::<u64>() as f64).sqrt();
            let dot: u64 = a.iter().map(|(block, n)| n * b.get(block).unwrap_or(&0)).sum();
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let expected = dot as f64 / (norm(&a) * norm(&b)).max(1e-9);
            prop_assert!((cosine(&uses(&a), &uses(&b)) - expected).abs() < 1e-9);
            let (a, b): (BTreeSet<_>, BTreeSet<_>) = (a.into_keys().collect(), b.into_keys().collect());
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let expected = a.intersection(&b).count() as f64 / a.union(&b).count().max(1) as f64;
            let (a, b): (Vec<_>, Vec<_>) = (a.into_iter().collect(), b.into_iter().collect());
            prop_assert_eq!(jaccard(&a, &b), expected);
        }
    }
}
