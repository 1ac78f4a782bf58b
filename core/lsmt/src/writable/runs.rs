//! The index of a writable pair in memory: ordered runs of sectors that do not overlap.
//!
//! Runs that continue each other on the disk and in the file are joined at any length, so a
//! sequential writer keeps one run. All numbers are sectors.
//!
//! `rangemap` lacks that: it joins ranges of equal values, and the values of such runs continue each other.

use crate::Segment;
use std::collections::{BTreeMap, btree_map};

/// The kind of an extent of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentKind {
    /// Its bytes are stored in the data file, from this sector on.
    Data(u64),
    /// Zeros, whatever is below.
    Zero,
    /// Unknown here: the level below has it.
    Hole,
}

impl ExtentKind {
    /// `true` for bytes of the data file.
    pub(super) fn is_data(self) -> bool {
        matches!(self, Self::Data(_))
    }

    /// The same, `sectors` further on.
    pub(super) fn skip(self, sectors: u64) -> Self {
        match self {
            Self::Data(moffset) => Self::Data(moffset + sectors),
            other => other,
        }
    }
}

/// The sectors `[start, end)` of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorExtent {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: ExtentKind,
}

impl SectorExtent {
    pub(super) const EMPTY: Self = Self { start: 0, end: 0, kind: ExtentKind::Hole };

    pub(super) fn len(self) -> u64 {
        self.end - self.start
    }

    /// The extent as records for a log or a table; `moffset` is the mapped offset of zeroed ones. A hole gives none.
    pub(super) fn segments(self, moffset: u64) -> impl Iterator<Item = Segment> {
        let sectors = if self.kind == ExtentKind::Hole { 0 } else { self.len() };
        (0..sectors.div_ceil(Segment::MAX_LEN)).map(move |number| {
            let skipped = number * Segment::MAX_LEN;
            let (start, len) = (self.start + skipped, (sectors - skipped).min(Segment::MAX_LEN));
            match self.kind.skip(skipped) {
                ExtentKind::Data(moffset) => Segment::data(start, len, moffset),
                _ => Segment::zeroed(start, len, moffset),
            }
        })
    }
}

impl From<Segment> for SectorExtent {
    fn from(segment: Segment) -> Self {
        let kind = if segment.is_zeroed() { ExtentKind::Zero } else { ExtentKind::Data(segment.moffset()) };
        Self { start: segment.offset(), end: segment.end(), kind }
    }
}

#[derive(Clone, Copy)]
struct Run {
    end: u64,
    /// Sector of the data file, or [`ZEROED`].
    place: u64,
}

/// A place that no data file reaches ([`Segment::MAX_MOFFSET`]).
const ZEROED: u64 = u64::MAX;

impl Run {
    fn of(extent: SectorExtent) -> Self {
        let place = if let ExtentKind::Data(moffset) = extent.kind { moffset } else { ZEROED };
        Self { end: extent.end, place }
    }

    fn extent(self, start: u64) -> SectorExtent {
        let kind = if self.place == ZEROED { ExtentKind::Zero } else { ExtentKind::Data(self.place) };
        SectorExtent { start, end: self.end, kind }
    }
}

/// Ordered runs, by their first sector.
#[derive(Clone, Default)]
pub(super) struct RunMap {
    runs: BTreeMap<u64, Run>,
    /// Sectors in runs of data.
    data_sectors: u64,
}

impl RunMap {
    /// Number of runs.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Sectors in runs of data.
    pub(super) fn data_sectors(&self) -> u64 {
        self.data_sectors
    }

    /// One past the last sector that a run names.
    pub(super) fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, run)| run.end)
    }

    /// Lays `extent` (not a hole, not empty) over the present runs.
    pub(super) fn insert(&mut self, extent: SectorExtent) {
        self.insert_over(extent, &mut |_, _| {});
    }

    /// As [`insert`](Self::insert); `dead` is called with the sectors of the data file that no run names any more:
    /// the first one and their number.
    pub(super) fn insert_over(&mut self, extent: SectorExtent, dead: &mut impl FnMut(u64, u64)) {
        debug_assert!(extent.start < extent.end && extent.kind != ExtentKind::Hole);
        self.cut_out(extent.start, extent.end, dead);
        let mut joined = extent;
        let before = self.runs.range(..extent.start).next_back().map(|(&start, run)| run.extent(start));
        if let Some(before) = before.filter(|before| is_continued_by(*before, joined)) {
            joined = SectorExtent { end: joined.end, ..before };
        }
        let after = self.runs.get(&extent.end).map(|run| run.extent(extent.end));
        if let Some(after) = after.filter(|after| is_continued_by(joined, *after)) {
            self.runs.remove(&after.start);
            joined.end = after.end;
        }
        self.runs.insert(joined.start, Run::of(joined));
        self.data_sectors += data_len(extent);
    }

    /// `false` if inserting `extent` replaces a run as a whole, or lengthens one of zeros, so that the number of runs
    /// does not grow.
    pub(super) fn adds_a_run(&self, extent: SectorExtent) -> bool {
        let around = self.extents(extent.start.saturating_sub(1), extent.end + 1);
        let mut found = 0;
        let mut left = 1;
        // At most three runs can be left: one on each side, and the new one.
        for run in around.filter(|run| run.kind != ExtentKind::Hole).take(3) {
            found += 1;
            let joins = run.kind == ExtentKind::Zero && extent.kind == ExtentKind::Zero;
            left += u64::from(run.start < extent.start && !joins) + u64::from(run.end > extent.end && !joins);
        }
        left > found
    }

    /// Makes `[start, end)` a hole.
    fn cut_out(&mut self, start: u64, end: u64, dead: &mut impl FnMut(u64, u64)) {
        let mut cut = |old: SectorExtent, from: u64| {
            if let ExtentKind::Data(moffset) = old.kind.skip(from - old.start) {
                dead(moffset, old.end.min(end) - from);
            }
        };
        let before = self.runs.range_mut(..start).next_back().filter(|(_, run)| run.end > start);
        if let Some((&first, run)) = before {
            let old = run.extent(first);
            run.end = start;
            cut(old, start);
            self.data_sectors -= data_len(old) - data_len(SectorExtent { end: start, ..old });
            self.put_back(old, end);
        }
        while let Some((&first, &run)) = self.runs.range(start..end).next() {
            self.runs.remove(&first);
            let old = run.extent(first);
            cut(old, first);
            self.data_sectors -= data_len(old);
            self.put_back(old, end);
        }
    }

    /// Inserts the part of `old` behind `end`, if there is one.
    fn put_back(&mut self, old: SectorExtent, end: u64) {
        if old.end > end {
            let rest = SectorExtent { start: end, kind: old.kind.skip(end - old.start), ..old };
            self.data_sectors += data_len(rest);
            self.runs.insert(end, Run::of(rest));
        }
    }

    /// All of `[start, end)` in order, holes included.
    pub(super) fn extents(&self, start: u64, end: u64) -> SectorExtents<'_> {
        let before = self.runs.range(..=start).next_back().filter(|(_, run)| run.end > start);
        let next = before.map(|(&first, run)| run.extent(first));
        SectorExtents { map: &self.runs, later: None, next, position: start, end }
    }
}

impl FromIterator<Segment> for RunMap {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> Self {
        let mut map = Self::default();
        for segment in segments {
            map.insert(segment.into());
        }
        map
    }
}

fn data_len(extent: SectorExtent) -> u64 {
    if matches!(extent.kind, ExtentKind::Data(_)) { extent.len() } else { 0 }
}

fn is_continued_by(extent: SectorExtent, next: SectorExtent) -> bool {
    extent.end == next.start && extent.kind.skip(extent.len()) == next.kind
}

/// The extents of a range; see [`RunMap::extents`].
pub(super) struct SectorExtents<'a> {
    map: &'a BTreeMap<u64, Run>,
    /// The runs that start in the range; looked up only when the first one does not cover it all.
    later: Option<btree_map::Range<'a, u64, Run>>,
    /// The run that comes next, if it is known already.
    next: Option<SectorExtent>,
    position: u64,
    end: u64,
}

impl Iterator for SectorExtents<'_> {
    type Item = SectorExtent;

    fn next(&mut self) -> Option<SectorExtent> {
        let start = self.position;
        if start >= self.end {
            return None;
        }
        let run = self.next.take().or_else(|| {
            let later = self.later.get_or_insert_with(|| self.map.range(start..self.end));
            later.next().map(|(&first, run)| run.extent(first))
        });
        let Some(run) = run else {
            self.position = self.end;
            return Some(SectorExtent { start, end: self.end, kind: ExtentKind::Hole });
        };
        if run.start > start {
            self.next = Some(run);
            self.position = run.start;
            return Some(SectorExtent { start, end: run.start, kind: ExtentKind::Hole });
        }
        self.position = run.end.min(self.end);
        Some(SectorExtent { start, end: self.position, kind: run.kind.skip(start - run.start) })
    }
}

/// Calls `visit` with the merged extents of `levels`, topmost first, in `[start, end)`, in order and without holes.
pub(super) fn visit_merged<E>(
    levels: &[&RunMap],
    start: u64,
    end: u64,
    visit: &mut impl FnMut(usize, SectorExtent) -> Result<(), E>,
) -> Result<(), E> {
    visit_below(levels, 0, start, end, visit)
}

fn visit_below<E>(
    levels: &[&RunMap],
    level: usize,
    start: u64,
    end: u64,
    visit: &mut impl FnMut(usize, SectorExtent) -> Result<(), E>,
) -> Result<(), E> {
    let Some(runs) = levels.get(level) else { return Ok(()) };
    for extent in runs.extents(start, end) {
        if extent.kind == ExtentKind::Hole {
            visit_below(levels, level + 1, extent.start, extent.end, visit)?;
        } else {
            visit(level, extent)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const SECTORS: u64 = 64;

    fn painted(map: &RunMap) -> Vec<ExtentKind> {
        let mut disk = Vec::new();
        for extent in map.extents(0, SECTORS) {
            assert_eq!(extent.start, disk.len() as u64);
            disk.extend((0..extent.len()).map(|i| extent.kind.skip(i)));
        }
        disk
    }

    proptest! {
        #[test]
        fn later_extents_win_and_neighbours_join(
            steps in vec((0..SECTORS, 1u64..20, any::<bool>(), any::<bool>()), 0..40),
            start in 0..SECTORS, len in 0u64..20,
        ) {
            let mut map = RunMap::default();
            let mut disk = vec![ExtentKind::Hole; SECTORS as usize];
            let mut data_end = 8;
            for (start, len, zero, gap) in steps {
                let end = (start + len).min(SECTORS);
                // Sometimes the file goes on where it was, sometimes not.
                data_end += u64::from(gap);
                let kind = if zero { ExtentKind::Zero } else { ExtentKind::Data(data_end) };
                let written = SectorExtent { start, end, kind };
                let (mut dead, before, adds) = (Vec::new(), map.len(), map.adds_a_run(written));
                map.insert_over(written, &mut |moffset, len| dead.extend(moffset..moffset + len));
                prop_assert!(adds || map.len() <= before);
                // Data that goes on where other data ends in the file is joined with it, which `adds_a_run` does
                // not foresee.
                prop_assert!(!adds || map.len() > before || !zero);
                let mut lost = Vec::new();
                for sector in start..end {
                    if let ExtentKind::Data(moffset) = disk[sector as usize] {
                        lost.push(moffset);
                    }
                    disk[sector as usize] = kind.skip(sector - start);
                }
                prop_assert_eq!(dead, lost);
                data_end += if zero { 0 } else { end - start };
            }
            let data = disk.iter().filter(|kind| matches!(kind, ExtentKind::Data(_))).count();
            prop_assert_eq!(map.data_sectors(), data as u64);
            prop_assert_eq!(painted(&map), &disk[..]);
            let runs: Vec<_> = map.extents(0, SECTORS).filter(|extent| extent.kind != ExtentKind::Hole).collect();
            prop_assert_eq!(map.len(), runs.len());
            let apart = |a: SectorExtent, b: SectorExtent| a.end <= b.start && !is_continued_by(a, b);
            prop_assert!(runs.windows(2).all(|pair| apart(pair[0], pair[1])));
            let end = (start + len).min(SECTORS);
            let kinds = |extent: SectorExtent| (0..extent.len()).map(move |i| extent.kind.skip(i));
            let part: Vec<_> = map.extents(start, end).flat_map(kinds).collect();
            prop_assert_eq!(part, &disk[start as usize..end.max(start) as usize]);
        }
    }

    #[test]
    fn a_sequential_writer_keeps_one_run() {
        let mut map = RunMap::default();
        for i in 0..1000 {
            map.insert(SectorExtent { start: i * 8, end: i * 8 + 8, kind: ExtentKind::Data(8 + i * 8) });
        }
        assert_eq!((map.len(), map.end(), map.data_sectors()), (1, 8000, 8000));
    }

    #[test]
    fn a_long_extent_takes_several_records() {
        let extent = SectorExtent { start: 10, end: 40_010, kind: ExtentKind::Data(100) };
        let segments: Vec<_> = extent.segments(0).collect();
        assert_eq!(segments.len(), 3);
        assert_eq!(segments[1], Segment::data(10 + 16383, 16383, 100 + 16383));
        assert_eq!(segments[2].end(), 40_010);
    }
}
