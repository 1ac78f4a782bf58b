//! Dead sectors of the data files: ranges that no run names any more.
//!
//! A sector of a data file *dies* when a later write or discard covers the last run that names it. It may be punched
//! once the records that cover it are in the log for good, and once no reader that looked it up before is left
//! (`collector.rs`). A file system gives back whole blocks of 4 KiB only, so a dead range keeps the sectors at its ends
//! until their neighbours in the same block have died, too.
//!
//! The ranges are in a map of this module's own ([`DeadMap`]) because the longest are asked for: `rangemap`'s sets join
//! ranges without a word of which, so that no second index by length could follow them.

use super::runs::{ExtentKind, RunMap};
use crate::format::FIRST_DATA_SECTOR;
use std::collections::{BTreeMap, BTreeSet};

/// Sectors of a block, the unit in which space is given back: 4 KiB.
pub(super) const BLOCK_SECTORS: u64 = 8;

/// Number of length classes of dead ranges: one whole block, two or three, four to seven, eight and more.
pub(super) const CLASSES: usize = 4;

/// The sectors `[start, end)` of the data file of one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRange {
    pub(super) pair: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl FileRange {
    pub(super) fn len(self) -> u64 {
        self.end - self.start
    }
}

/// Appends `extent` to a list, as a part of the last one if it continues that.
pub(super) fn push(list: &mut Vec<FileRange>, extent: FileRange) {
    match list.last_mut() {
        Some(last) if last.pair == extent.pair && last.end == extent.start => last.end = extent.end,
        Some(last) if last.pair == extent.pair && last.start == extent.end => last.start = extent.start,
        _ => list.push(extent),
    }
}

/// The sum of the sectors in a list.
pub(super) fn sectors(list: &[FileRange]) -> u64 {
    list.iter().map(|extent| extent.len()).sum()
}

/// The whole blocks within `[start, end)`.
fn whole_blocks(start: u64, end: u64) -> Option<(u64, u64)> {
    let (start, end) = (start.next_multiple_of(BLOCK_SECTORS), end - end % BLOCK_SECTORS);
    (start < end).then_some((start, end))
}

/// The class of a range of whole blocks.
fn class(sectors: u64) -> usize {
    let blocks = (sectors / BLOCK_SECTORS).max(1);
    (blocks.ilog2() as usize).min(CLASSES - 1)
}

/// The dead sectors of one data file that were not punched: ordered ranges that neither overlap nor touch.
#[derive(Default)]
pub(super) struct DeadMap {
    ranges: BTreeMap<u64, u64>,
    /// Starts of the ranges that have whole blocks in them, by the class of these.
    ripe: [BTreeSet<u64>; CLASSES],
    sectors: u64,
    /// Sectors of the whole blocks of each class.
    ripe_sectors: [u64; CLASSES],
}

impl DeadMap {
    /// Dead sectors that were not punched.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Those of them that are in whole blocks, by class.
    pub(super) fn ripe_sectors(&self) -> [u64; CLASSES] {
        self.ripe_sectors
    }

    /// Adds `[start, end)`, none of which is in here; returns the start of the range that it is part of now.
    pub(super) fn insert(&mut self, start: u64, end: u64) -> u64 {
        debug_assert!(start < end);
        let (mut first, mut last) = (start, end);
        if let Some((&before, &until)) = self.ranges.range(..start).next_back()
            && until == start
        {
            self.remove(before);
            first = before;
        }
        if let Some(&until) = self.ranges.get(&end) {
            self.remove(end);
            last = until;
        }
        self.put(first, last);
        first
    }

    fn put(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.ranges.insert(start, end);
        self.sectors += end - start;
        if let Some((from, to)) = whole_blocks(start, end) {
            let class = class(to - from);
            self.ripe[class].insert(start);
            self.ripe_sectors[class] += to - from;
        }
    }

    fn remove(&mut self, start: u64) -> Option<u64> {
        let end = self.ranges.remove(&start)?;
        self.sectors -= end - start;
        if let Some((from, to)) = whole_blocks(start, end) {
            let class = class(to - from);
            self.ripe[class].remove(&start);
            self.ripe_sectors[class] -= to - from;
        }
        Some(end)
    }

    /// Takes out the whole blocks of a range of the highest class that has any, down to class `least`.
    pub(super) fn take_longest(&mut self, least: usize) -> Option<(u64, u64)> {
        let start = *self.ripe[least..].iter().rev().find_map(BTreeSet::first)?;
        self.take(start, BLOCK_SECTORS)
    }

    /// Takes out the whole blocks of the range that starts at `start`, if they have at least `least` sectors.
    pub(super) fn take(&mut self, start: u64, least: u64) -> Option<(u64, u64)> {
        let (first, last) = whole_blocks(start, *self.ranges.get(&start)?)?;
        if last - first < least {
            return None;
        }
        let end = self.remove(start)?;
        self.put(start, first);
        self.put(last, end);
        Some((first, last))
    }

    /// Dead sectors of the block that `sector` is in.
    pub(super) fn dead_beside(&self, sector: u64) -> u64 {
        let start = sector - sector % BLOCK_SECTORS;
        let end = start + BLOCK_SECTORS;
        let within = self.ranges.range(..end).rev().take_while(|(_, until)| **until > start);
        within.map(|(&first, &until)| until.min(end) - first.max(start)).sum()
    }
}

/// The sectors of a data file of `end` sectors that no run of `runs` names; `None` if two runs name the same
/// sector, which no log of this program does: such a file must not be punched.
pub(super) fn unnamed(runs: &RunMap, end: u64) -> Option<Vec<(u64, u64)>> {
    let mut named: Vec<_> = runs
        .extents(0, runs.end())
        .filter_map(|extent| match extent.kind {
            ExtentKind::Data(start) => Some((start, start + extent.len())),
            ExtentKind::Zero | ExtentKind::Hole => None,
        })
        .collect();
    named.sort_unstable();
    let mut unnamed = Vec::new();
    let mut reached = FIRST_DATA_SECTOR;
    for (start, until) in named {
        if start < reached {
            return None;
        }
        if start > reached {
            unnamed.push((reached, start));
        }
        reached = until;
    }
    if end > reached {
        unnamed.push((reached, end));
    }
    Some(unnamed)
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use crate::Segment;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const SECTORS: usize = 96;

    proptest! {
        #[test]
        fn whole_blocks_are_taken_when_all_of_them_died(
            steps in vec((0..SECTORS as u64, 1u64..20, 0u64..4), 0..60), least in 8u64..17,
        ) {
            let (mut map, mut dead, mut punched) = (DeadMap::default(), [false; SECTORS], [false; SECTORS]);
            for (start, len, action) in steps {
                // The sectors of the range that have not died yet die.
                let mut sector = start as usize;
                while sector < SECTORS.min((start + len) as usize) {
                    let first = sector;
                    while sector < SECTORS.min((start + len) as usize) && !dead[sector] {
                        dead[sector] = true;
                        sector += 1;
                    }
                    if sector > first {
                        let range = map.insert(first as u64, sector as u64);
                        if action == 1 && let Some((first, last)) = map.take(range, least) {
                            prop_assert!(last - first >= least);
                            punched[first as usize..last as usize].fill(true);
                        }
                    }
                    sector += usize::from(sector == first);
                }
                let (lowest, mut longest) = ((len % 4) as usize, usize::MAX);
                while action == 0 && let Some((first, last)) = map.take_longest(lowest) {
                    prop_assert!(first % BLOCK_SECTORS == 0 && last % BLOCK_SECTORS == 0);
                    let class = class(last - first);
                    prop_assert!((lowest..=longest).contains(&class), "{class}");
                    longest = class;
                    for sector in first..last {
                        prop_assert!(dead[sector as usize] && !punched[sector as usize]);
                        punched[sector as usize] = true;
                    }
                }
                prop_assert!(action != 0 || map.ripe_sectors()[lowest..] == vec![0; CLASSES - lowest]);
                let left = |sector: &usize| dead[*sector] && !punched[*sector];
                prop_assert_eq!(map.sectors(), (0..SECTORS).filter(left).count() as u64);
                let mut ripe = 0;
                for block in (0..SECTORS).step_by(8) {
                    let count = (block..block + 8).filter(left).count() as u64;
                    prop_assert_eq!(map.dead_beside(block as u64 + start % 8), count);
                    ripe += if count == 8 { 8 } else { 0 };
                    // A block is punched as a whole or not at all.
                    prop_assert!(punched[block..block + 8].iter().all(|it| *it == punched[block]));
                }
                prop_assert_eq!(map.ripe_sectors().iter().sum::<u64>(), ripe);
            }
        }
    }

    #[test]
    fn ranges_on_either_side_of_the_last_one_lengthen_it() {
        let range = |(pair, start, end)| FileRange { pair, start, end };
        let mut list = Vec::new();
        // Behind it, before it, of another pair, apart from it, and beside one that is not the last.
        for next in [(1, 20, 24), (1, 24, 30), (1, 10, 20), (2, 30, 31), (2, 32, 33), (1, 30, 40)] {
            push(&mut list, range(next));
        }
        assert_eq!(list, [(1, 10, 30), (2, 30, 31), (2, 32, 33), (1, 30, 40)].map(range));
        assert_eq!(sectors(&list), 32);
    }

    #[test]
    fn extents_that_no_run_names_are_found() {
        let runs: RunMap = [Segment::data(50, 4, 20), Segment::data(0, 8, 8), Segment::zeroed(60, 9, 8)]
            .into_iter()
            .collect();
        assert_eq!(unnamed(&runs, 30), Some(vec![(16, 20), (24, 30)]));
        assert_eq!(unnamed(&RunMap::default(), 8), Some(vec![]));
        let twice = [Segment::data(50, 4, 10), Segment::data(0, 8, 8)].into_iter().collect();
        assert_eq!(unnamed(&twice, 30), None);
    }
}
