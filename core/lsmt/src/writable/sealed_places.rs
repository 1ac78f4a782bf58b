//! The parts of the data files whose content is in a layer already, ahead of the layer's commit.

use super::space::FileRange;
use std::collections::BTreeMap;

/// A part of a data file that is stored in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SealedRange {
    /// Its end in the data file, in sectors.
    end: u64,
    /// The sector of the layer that its beginning is stored in.
    at: u64,
}

/// Parts of data files and their places in a layer. Those that continue each other in both are one.
#[derive(Default)]
pub(super) struct SealedPlaces {
    pairs: BTreeMap<u64, BTreeMap<u64, SealedRange>>,
}

impl SealedPlaces {
    /// Notes that `range`, of which nothing was noted before, is stored from sector `at` of the layer on.
    pub(super) fn insert(&mut self, range: FileRange, at: u64) {
        let ranges = self.pairs.entry(range.pair).or_default();
        if let Some((start, last)) = ranges.range_mut(..range.start).next_back()
            && last.end == range.start
            && last.at + (last.end - start) == at
        {
            last.end = range.end;
            return;
        }
        ranges.insert(range.start, SealedRange { end: range.end, at });
    }

    /// Divides `range` into parts that are stored in the layer, each with its place there, and parts that are not.
    pub(super) fn divide(&self, range: FileRange) -> impl Iterator<Item = (FileRange, Option<u64>)> + '_ {
        let FileRange { pair, mut start, end } = range;
        let ranges = self.pairs.get(&pair);
        std::iter::from_fn(move || {
            if start >= end {
                return None;
            }
            let found = ranges.and_then(|ranges| {
                let here = ranges.range(..=start).next_back().filter(|(_, here)| here.end > start);
                here.or_else(|| ranges.range(start..end).next())
            });
            let (stop, at) = match found {
                Some((from, here)) if *from <= start => (here.end.min(end), Some(here.at + (start - from))),
                Some((from, _)) => (*from, None),
                None => (end, None),
            };
            let part = FileRange { pair, start, end: stop };
            start = stop;
            Some((part, at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::to_usize;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const SECTORS: usize = 60;

    proptest! {
        #[test]
        fn divides_as_a_plain_array_does(
            inserted in vec((0u64..2, 0..SECTORS, 1..20usize, 0u64..3), 0..30),
            asked in (0u64..2, 0..SECTORS, 1..30usize),
        ) {
            let (mut places, mut model) = (SealedPlaces::default(), vec![[None; SECTORS]; 2]);
            let mut at = 8;
            for (pair, start, len, gap) in inserted {
                let end = (start + len).min(SECTORS);
                let sectors = &mut model[to_usize(pair)][start..end];
                if sectors.iter().any(Option::is_some) {
                    continue;
                }
                at += gap;
                places.insert(FileRange { pair, start: start as u64, end: end as u64 }, at);
                for sector in sectors {
                    *sector = Some(at);
                    at += 1;
                }
            }
            let (pair, start, len) = asked;
            let end = (start + len).min(SECTORS);
            let mut found = Vec::new();
            for (part, at) in places.divide(FileRange { pair, start: start as u64, end: end as u64 }) {
                prop_assert_eq!((part.pair, part.start), (pair, (start + found.len()) as u64));
                prop_assert!(part.end > part.start);
                found.extend((0..part.len()).map(|n| at.map(|at| at + n)));
            }
            prop_assert_eq!(&found[..], &model[to_usize(pair)][start..end]);
        }
    }
}
