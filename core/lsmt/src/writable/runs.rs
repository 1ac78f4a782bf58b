//! The index of a writable pair in memory: ordered runs of sectors that do not overlap.
//!
//! Runs that continue each other on the disk and in the file are joined at any length, so a
//! sequential writer keeps one run. All numbers are sectors.
//!
//! `rangemap` lacks that: it joins ranges of equal values, and the values of such runs continue each other.

use crate::Segment;
use std::collections::{BTreeMap, btree_map};

/// The kind of a run or a piece of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Its bytes are stored in the data file, from this sector on.
    Data(u64),
    /// Zeros, whatever is below.
    Zero,
    /// Unknown here: the level below has it.
    Hole,
}

impl What {
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
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) what: What,
}

impl Piece {
    pub(super) const EMPTY: Self = Self { start: 0, end: 0, what: What::Hole };

    pub(super) fn len(self) -> u64 {
        self.end - self.start
    }

    /// The piece as records for a log or a table; `moffset` is the mapped offset of zeroed ones. A hole gives none.
    pub(super) fn segments(self, moffset: u64) -> impl Iterator<Item = Segment> {
        let sectors = if self.what == What::Hole { 0 } else { self.len() };
        (0..sectors.div_ceil(Segment::MAX_LEN)).map(move |number| {
            let skipped = number * Segment::MAX_LEN;
            let (start, len) = (self.start + skipped, (sectors - skipped).min(Segment::MAX_LEN));
            match self.what.skip(skipped) {
                What::Data(moffset) => Segment::data(start, len, moffset),
                _ => Segment::zeroed(start, len, moffset),
            }
        })
    }
}

impl From<Segment> for Piece {
    fn from(segment: Segment) -> Self {
        let what = if segment.is_zeroed() { What::Zero } else { What::Data(segment.moffset()) };
        Self { start: segment.offset(), end: segment.end(), what }
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
    fn of(piece: Piece) -> Self {
        let place = if let What::Data(moffset) = piece.what { moffset } else { ZEROED };
        Self { end: piece.end, place }
    }

    fn piece(self, start: u64) -> Piece {
        let what = if self.place == ZEROED { What::Zero } else { What::Data(self.place) };
        Piece { start, end: self.end, what }
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

    /// Lays `piece` (not a hole, not empty) over the present runs.
    pub(super) fn insert(&mut self, piece: Piece) {
        self.insert_over(piece, &mut |_, _| {});
    }

    /// As [`insert`](Self::insert); `dead` is called with the sectors of the data file that no run names any more:
    /// the first one and their number.
    pub(super) fn insert_over(&mut self, piece: Piece, dead: &mut impl FnMut(u64, u64)) {
        debug_assert!(piece.start < piece.end && piece.what != What::Hole);
        self.cut_out(piece.start, piece.end, dead);
        let mut joined = piece;
        let before = self.runs.range(..piece.start).next_back().map(|(&start, run)| run.piece(start));
        if let Some(before) = before.filter(|before| is_continued_by(*before, joined)) {
            joined = Piece { end: joined.end, ..before };
        }
        let after = self.runs.get(&piece.end).map(|run| run.piece(piece.end));
        if let Some(after) = after.filter(|after| is_continued_by(joined, *after)) {
            self.runs.remove(&after.start);
            joined.end = after.end;
        }
        self.runs.insert(joined.start, Run::of(joined));
        self.data_sectors += data_len(piece);
    }

    /// `false` if inserting `piece` replaces a run as a whole, or lengthens one of zeros, so that the number of runs
    /// does not grow.
    pub(super) fn adds_a_run(&self, piece: Piece) -> bool {
        let around = self.pieces(piece.start.saturating_sub(1), piece.end + 1);
        let mut found = 0;
        let mut left = 1;
        // At most three runs can be left: one on each side, and the new one.
        for run in around.filter(|run| run.what != What::Hole).take(3) {
            found += 1;
            let joins = run.what == What::Zero && piece.what == What::Zero;
            left += u64::from(run.start < piece.start && !joins) + u64::from(run.end > piece.end && !joins);
        }
        left > found
    }

    /// Makes `[start, end)` a hole.
    fn cut_out(&mut self, start: u64, end: u64, dead: &mut impl FnMut(u64, u64)) {
        let mut cut = |old: Piece, from: u64| {
            if let What::Data(moffset) = old.what.skip(from - old.start) {
                dead(moffset, old.end.min(end) - from);
            }
        };
        let before = self.runs.range_mut(..start).next_back().filter(|(_, run)| run.end > start);
        if let Some((&first, run)) = before {
            let old = run.piece(first);
            run.end = start;
            cut(old, start);
            self.data_sectors -= data_len(old) - data_len(Piece { end: start, ..old });
            self.put_back(old, end);
        }
        while let Some((&first, &run)) = self.runs.range(start..end).next() {
            self.runs.remove(&first);
            let old = run.piece(first);
            cut(old, first);
            self.data_sectors -= data_len(old);
            self.put_back(old, end);
        }
    }

    /// Inserts the part of `old` behind `end`, if there is one.
    fn put_back(&mut self, old: Piece, end: u64) {
        if old.end > end {
            let rest = Piece { start: end, what: old.what.skip(end - old.start), ..old };
            self.data_sectors += data_len(rest);
            self.runs.insert(end, Run::of(rest));
        }
    }

    /// All of `[start, end)` in order, holes included.
    pub(super) fn pieces(&self, start: u64, end: u64) -> Pieces<'_> {
        let before = self.runs.range(..=start).next_back().filter(|(_, run)| run.end > start);
        let next = before.map(|(&first, run)| run.piece(first));
        Pieces { map: &self.runs, later: None, next, position: start, end }
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

fn data_len(piece: Piece) -> u64 {
    if matches!(piece.what, What::Data(_)) { piece.len() } else { 0 }
}

fn is_continued_by(piece: Piece, next: Piece) -> bool {
    piece.end == next.start && piece.what.skip(piece.len()) == next.what
}

/// The pieces of a range; see [`RunMap::pieces`].
pub(super) struct Pieces<'a> {
    map: &'a BTreeMap<u64, Run>,
    /// The runs that start in the range; looked up only when the first one does not cover it all.
    later: Option<btree_map::Range<'a, u64, Run>>,
    /// The run that comes next, if it is known already.
    next: Option<Piece>,
    position: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let start = self.position;
        if start >= self.end {
            return None;
        }
        let run = self.next.take().or_else(|| {
            let later = self.later.get_or_insert_with(|| self.map.range(start..self.end));
            later.next().map(|(&first, run)| run.piece(first))
        });
        let Some(run) = run else {
            self.position = self.end;
            return Some(Piece { start, end: self.end, what: What::Hole });
        };
        if run.start > start {
            self.next = Some(run);
            self.position = run.start;
            return Some(Piece { start, end: run.start, what: What::Hole });
        }
        self.position = run.end.min(self.end);
        Some(Piece { start, end: self.position, what: run.what.skip(start - run.start) })
    }
}

/// Calls `visit` with the merged pieces of `levels`, topmost first, in `[start, end)`, in order and without holes.
pub(super) fn visit_merged<E>(
    levels: &[&RunMap],
    start: u64,
    end: u64,
    visit: &mut impl FnMut(usize, Piece) -> Result<(), E>,
) -> Result<(), E> {
    visit_below(levels, 0, start, end, visit)
}

fn visit_below<E>(
    levels: &[&RunMap],
    level: usize,
    start: u64,
    end: u64,
    visit: &mut impl FnMut(usize, Piece) -> Result<(), E>,
) -> Result<(), E> {
    let Some(runs) = levels.get(level) else { return Ok(()) };
    for piece in runs.pieces(start, end) {
        if piece.what == What::Hole {
            visit_below(levels, level + 1, piece.start, piece.end, visit)?;
        } else {
            visit(level, piece)?;
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

    fn painted(map: &RunMap) -> Vec<What> {
        let mut disk = Vec::new();
        for piece in map.pieces(0, SECTORS) {
            assert_eq!(piece.start, disk.len() as u64);
            disk.extend((0..piece.len()).map(|i| piece.what.skip(i)));
        }
        disk
    }

    proptest! {
        #[test]
        fn later_pieces_win_and_neighbours_join(
            steps in vec((0..SECTORS, 1u64..20, any::<bool>(), any::<bool>()), 0..40),
            start in 0..SECTORS, len in 0u64..20,
        ) {
            let mut map = RunMap::default();
            let mut disk = vec![What::Hole; SECTORS as usize];
            let mut data_end = 8;
            for (start, len, zero, gap) in steps {
                let end = (start + len).min(SECTORS);
                // Sometimes the file goes on where it was, sometimes not.
                data_end += u64::from(gap);
                let what = if zero { What::Zero } else { What::Data(data_end) };
                let (mut dead, before, adds) = (Vec::new(), map.len(), map.adds_a_run(Piece { start, end, what }));
                map.insert_over(Piece { start, end, what }, &mut |moffset, len| dead.extend(moffset..moffset + len));
                prop_assert!(adds || map.len() <= before);
                // Data that goes on where other data ends in the file is joined with it, which `adds_a_run` does
                // not foresee.
                prop_assert!(!adds || map.len() > before || !zero);
                let mut lost = Vec::new();
                for sector in start..end {
                    if let What::Data(moffset) = disk[sector as usize] {
                        lost.push(moffset);
                    }
                    disk[sector as usize] = what.skip(sector - start);
                }
                prop_assert_eq!(dead, lost);
                data_end += if zero { 0 } else { end - start };
            }
            let data = disk.iter().filter(|what| matches!(what, What::Data(_))).count();
            prop_assert_eq!(map.data_sectors(), data as u64);
            prop_assert_eq!(painted(&map), &disk[..]);
            let runs: Vec<_> = map.pieces(0, SECTORS).filter(|piece| piece.what != What::Hole).collect();
            prop_assert_eq!(map.len(), runs.len());
            let apart = |a: Piece, b: Piece| a.end <= b.start && !is_continued_by(a, b);
            prop_assert!(runs.windows(2).all(|pair| apart(pair[0], pair[1])));
            let end = (start + len).min(SECTORS);
            let part: Vec<_> = map.pieces(start, end).flat_map(|p| (0..p.len()).map(move |i| p.what.skip(i))).collect();
            prop_assert_eq!(part, &disk[start as usize..end.max(start) as usize]);
        }
    }

    #[test]
    fn a_sequential_writer_keeps_one_run() {
        let mut map = RunMap::default();
        for i in 0..1000 {
            map.insert(Piece { start: i * 8, end: i * 8 + 8, what: What::Data(8 + i * 8) });
        }
        assert_eq!((map.len(), map.end(), map.data_sectors()), (1, 8000, 8000));
    }

    #[test]
    fn a_long_piece_takes_several_records() {
        let piece = Piece { start: 10, end: 40_010, what: What::Data(100) };
        let segments: Vec<_> = piece.segments(0).collect();
        assert_eq!(segments.len(), 3);
        assert_eq!(segments[1], Segment::data(10 + 16383, 16383, 100 + 16383));
        assert_eq!(segments[2].end(), 40_010);
    }
}
