//! How alike traces are, by what they read of each block. All in one pass over two sorted lists.

use super::boot::BlockUse;

/// The cosine of two traces' read counts by block: 1 where they are proportional, 0 without a common block.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a similarity")]
pub fn cosine(a: &[BlockUse], b: &[BlockUse]) -> f64 {
    let mut product = 0.0;
    merge(a, b, |use_| use_.block, |a, b| product += a.count as f64 * b.count as f64);
    let square = |uses: &[BlockUse]| uses.iter().map(|use_| (use_.count as f64).powi(2)).sum::<f64>();
    let norms = (square(a) * square(b)).sqrt();
    if norms > 0.0 { (product / norms).min(1.0) } else { 0.0 }
}

/// Jaccard's index of two sets of blocks, sorted: common ones over all; 0 of two empty sets.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a similarity")]
pub fn jaccard(a: &[u64], b: &[u64]) -> f64 {
    let mut common = 0_usize;
    merge(a, b, |block| *block, |_, _| common += 1);
    let all = a.len() + b.len() - common;
    common as f64 / all.max(1) as f64
}

/// Calls `both` with the elements of both lists, which are sorted by `key` and have each once.
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
    fn ends_of_the_scale() {
        let (a, b) = (uses(&[(1, 3), (5, 4)].into()), uses(&[(1, 6), (5, 8)].into()));
        assert!((cosine(&a, &b) - 1.0).abs() < 1e-12);
        assert_eq!((cosine(&a, &uses(&[(2, 1)].into())), cosine(&[], &[])), (0.0, 0.0));
        assert_eq!(
            (jaccard(&[1, 2], &[2, 3]), jaccard(&[], &[]), jaccard(&[4], &[4])),
            (1.0 / 3.0, 0.0, 1.0)
        );
    }

    proptest! {
        #[test]
        fn the_same_as_with_maps(
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
