//! The table of the units that the threads of this process have claimed, and the search for units that are left.

use crate::presence;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// The units that this process has claimed: from their first to one past their last. They do not overlap.
pub(crate) type ClaimTable = BTreeMap<u64, u64>;

/// Names the parts of `run` that are not in the table; `true` if some of it is in the table.
pub(crate) fn each_unclaimed(table: &ClaimTable, run: Range<u64>, each: &mut dyn FnMut(Range<u64>)) -> bool {
    if run.is_empty() {
        return false;
    }
    let mut at = run.start;
    let mut others = false;
    let before = table.range(..=run.start).next_back();
    let within = table.range(run.start + 1..run.end);
    for (&start, &end) in before.into_iter().chain(within) {
        if end <= at {
            continue;
        }
        others = true;
        if start > at {
            each(at..start);
        }
        at = end.min(run.end);
    }
    if at < run.end {
        each(at..run.end);
    }
    others
}

/// Names the parts of `run` that the file does not have, by its bits; the caller then looks in memory.
pub(crate) fn missing_of_run(bits: Option<&[AtomicU64]>, run: &Range<u64>, each: &mut dyn FnMut(Range<u64>)) {
    match bits {
        Some(bits) => presence::runs(bits, run, false, each),
        None if run.is_empty() => {}
        None => each(run.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unclaimed_parts_are_what_the_table_leaves(
            ends in prop::collection::btree_set(0u64..100, 0..20), a in 0u64..100, b in 0u64..100,
        ) {
            let ends: Vec<_> = ends.into_iter().collect();
            let table: ClaimTable = ends.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let claimed = |unit: u64| table.iter().any(|(&start, &end)| (start..end).contains(&unit));
            let run = a.min(b)..a.max(b);
            let mut free = Vec::new();
            let others = each_unclaimed(&table, run.clone(), &mut |part| {
                assert!(!part.is_empty(), "nothing is no part");
                free.extend(part);
            });
            let expected: Vec<_> = run.clone().filter(|&unit| !claimed(unit)).collect();
            prop_assert_eq!(others, expected.len() as u64 != run.end - run.start);
            prop_assert_eq!(free, expected);
        }
    }
}
