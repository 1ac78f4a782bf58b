//! Sealing ahead: most of a layer is written before its commit, while the disk is still written to.
//!
//! The data of a pair is only ever appended, and no place in a data file is used twice while the disk is open. So a
//! place names content: if it still shows on the disk when the commit comes, its copy in the layer is right; if it was
//! overwritten or discarded, nothing refers to the copy. A layer may hold data in any order, and data that nothing
//! refers to, so it can be appended to as long as the commit has not come, and its bytes go through a compressor and
//! hashes in their final order.
//!
//! ```text
//! seal_ahead    data that shows, was written before a given moment and is not in the layer yet is appended to it
//! commit        one moment is set aside; data of it that is in the layer is referred to, the rest is appended;
//!               the table of segments and the trailer end the layer
//! ```
//!
//! *Readers and holes.* A pass reads places that it found to show. It keeps the generation that it began with, as a
//! reader does, so that none of them becomes a hole meanwhile.
//!
//! *Walks.* A pass that finds more data than it may seal leaves the rest in a list, and the next ones take from that
//! instead of walking over all runs again: only what it takes is looked up once more, because it may have been written
//! over since. A new walk comes when the list is empty, or a quarter of the layer was sealed since the last, so that
//! data which was written over in the layer is counted in time.
//!
//! *Crashes.* A place may be used again once the disk is opened again, because data without a durable record is cut
//! off. So a layer that was begun is of no use beyond the process that has the disk open, and nothing on the disk ever
//! depends on it.

use super::WritableDisk;
use super::pair::Pair;
use super::runs::{ExtentKind, SectorExtent, visit_merged};
use super::sealed_places::SealedPlaces;
use super::space::{self, FileRange};
use super::view::{Alive, EXTENTS_AT_ONCE, Generation};
use crate::format::FIRST_DATA_SECTOR;
use crate::layer_writer::{LayerMeta, LayerWriter};
use headstart_block::{Error, Result, SECTOR_SIZE};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

/// Bytes read at once.
const READ_CHUNK: u64 = 1 << 20;

/// Ranges that are left for later passes: 8 MiB of memory. What is beyond is found by the next walk.
const LEFT_MAX: usize = 1 << 18;

/// Bytes that are sealed in any case before another walk.
const WALK_LEAST: u64 = 64 << 20;

/// A layer that is written ahead of the commit of a disk. It belongs to one open [`WritableDisk`].
pub struct LayerAhead<W: Write> {
    pub(super) writer: LayerWriter<W>,
    pub(super) places: SealedPlaces,
    /// That of the disk, which tells disks apart.
    alive: Arc<Alive>,
    walk: Walk,
}

/// The last walk over all runs, and what it found.
#[derive(Default)]
struct Walk {
    /// Data that was cold and not in the layer, in the order of the data files, the last first.
    left: Vec<FoundData>,
    /// The shares as of the walk, and of what was sealed since.
    share: SealedShare,
    /// Bytes of data in the layer at that time.
    stored: u64,
}

/// Data that a walk has met: its place, and the sector of the disk where it begins.
#[derive(Clone, Copy)]
struct FoundData {
    place: FileRange,
    sector: u64,
}

impl Walk {
    /// `true` if the list is of no more use, with `stored` bytes in the layer now.
    fn is_over(&self, stored: u64) -> bool {
        self.left.is_empty() || stored - self.stored > WALK_LEAST.max(self.stored / 4)
    }

    /// Brings the list into its order, and drops what is too much.
    fn arrange(&mut self) {
        self.left.sort_unstable_by_key(|found| (found.place.pair, found.place.start));
        self.left.truncate(LEFT_MAX);
        self.left.reverse();
    }
}

impl<W: Write> LayerAhead<W> {
    /// Bytes of the disk's data that are in the layer, whether they still show on the disk or not.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.writer.data_bytes()
    }
}

/// A moment in the life of a disk: the ends of its data files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataMarks(BTreeMap<u64, u64>);

impl DataMarks {
    /// Bytes that the disk's files took up between `earlier` and this moment.
    #[must_use]
    pub fn bytes_since(&self, earlier: &Self) -> u64 {
        let before = |pair: &u64| earlier.0.get(pair).copied().unwrap_or(FIRST_DATA_SECTOR);
        let since = |(pair, end): (&u64, &u64)| end.saturating_sub(before(pair));
        self.0.iter().map(since).sum::<u64>() * SECTOR_SIZE
    }

    /// The part of `range` that was written before this moment.
    fn clip(&self, range: FileRange) -> FileRange {
        let end = self.0.get(&range.pair).copied().unwrap_or(0);
        FileRange { end: range.end.min(end.max(range.start)), ..range }
    }
}

/// The share of a disk's data that a layer ahead has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealedShare {
    /// Bytes that show on the disk, are in the disk's own files, and are in the layer.
    pub sealed_bytes: u64,
    /// Bytes that show on the disk, are in the disk's own files, and are not in the layer.
    pub unsealed_bytes: u64,
}

/// The result of a pass of [`WritableDisk::seal_ahead`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealPass {
    /// The share of the layer after the pass.
    pub share: SealedShare,
    /// Bytes that the pass appended to the layer.
    pub appended_bytes: u64,
    /// Bytes that were written before the given moment, show on the disk and had to wait for a later pass.
    pub left_bytes: u64,
}

impl WritableDisk {
    /// Begins a layer ahead of a commit of this disk. The header, for which readers have no use, gets the fields of
    /// `meta`; the trailer gets those of the commit.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn begin_layer<W: Write>(&self, out: W, meta: LayerMeta) -> Result<LayerAhead<W>> {
        Ok(LayerAhead {
            writer: LayerWriter::new(out, meta)?,
            places: SealedPlaces::default(),
            alive: Arc::clone(&self.alive),
            walk: Walk::default(),
        })
    }

    /// The present moment, to be given to [`seal_ahead`](Self::seal_ahead) later.
    #[must_use]
    pub fn data_marks(&self) -> DataMarks {
        let generation = self.generation();
        DataMarks(generation.pairs().map(|pair| (pair.number, pair.end())).collect())
    }

    /// Appends data to `ahead` that shows on the disk, was written before `cold` and is not in it yet: `most` bytes at
    /// most, in the order of the data files. Reads and writes go on meanwhile.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for the layer of another disk; errors of the files and of the output.
    /// The layer is then of no use any more, and the disk is as it was.
    pub fn seal_ahead<W: Write>(
        &self,
        ahead: &mut LayerAhead<W>,
        cold: &DataMarks,
        most: u64,
    ) -> Result<SealPass> {
        self.check_own(ahead)?;
        // Kept until all is read: see the head of the module.
        let (_held, pairs) = {
            let generation = self.generation();
            let pairs: BTreeMap<_, _> =
                generation.pairs().map(|pair| (pair.number, Arc::clone(pair))).collect();
            (generation, pairs)
        };
        if ahead.walk.is_over(ahead.stored_bytes()) {
            self.walk(ahead, cold)?;
        }
        let found = self.take_found(ahead, most)?;
        let (mut reached, mut appended, mut buffer) = ((0, 0), 0, Vec::new());
        for FileRange { pair: number, start, end } in found {
            // The disk may have been written to during the walk, which then met the same place twice.
            let start = if reached.0 == number { start.max(reached.1) } else { start };
            let Some(pair) = pairs.get(&number).filter(|_| start < end) else { continue };
            reached = (number, end);
            append(ahead, pair, FileRange { pair: number, start, end }, &mut buffer)?;
            appended += (end - start) * SECTOR_SIZE;
        }
        let Walk { share, left, .. } = &mut ahead.walk;
        share.sealed_bytes += appended;
        share.unsealed_bytes = share.unsealed_bytes.saturating_sub(appended);
        let left_bytes = left.iter().map(|found| found.place.len()).sum::<u64>() * SECTOR_SIZE;
        Ok(SealPass { share: *share, appended_bytes: appended, left_bytes })
    }

    /// Finds all data that is to be sealed by walking over all runs.
    fn walk<W: Write>(&self, ahead: &mut LayerAhead<W>, cold: &DataMarks) -> Result<()> {
        let mut walk = Walk { stored: ahead.stored_bytes(), ..Walk::default() };
        self.visit_data((0, u64::MAX), &mut |range, sector| {
            for (part, at) in ahead.places.divide(range) {
                if at.is_some() {
                    walk.share.sealed_bytes += part.len() * SECTOR_SIZE;
                    continue;
                }
                walk.share.unsealed_bytes += part.len() * SECTOR_SIZE;
                let place = cold.clip(part);
                if place.len() > 0 {
                    walk.left.push(FoundData { place, sector: sector + (part.start - range.start) });
                }
            }
            // Sorting at times only keeps the memory small and the walk fast.
            if walk.left.len() >= 2 * LEFT_MAX {
                walk.arrange();
            }
            Ok(())
        })?;
        walk.arrange();
        ahead.walk = walk;
        Ok(())
    }

    /// Takes `most` bytes off the list of the last walk that still show on the disk, in the order of the data files.
    fn take_found<W: Write>(&self, ahead: &mut LayerAhead<W>, most: u64) -> Result<Vec<FileRange>> {
        let mut room = most / SECTOR_SIZE;
        let mut parts = Vec::new();
        while let Some(found) = ahead.walk.left.pop_if(|_| room > 0) {
            let FoundData { place, sector } = found;
            let len = place.len().min(room);
            let taken = FileRange { end: place.start + len, ..place };
            if len < place.len() {
                let rest = FileRange { start: taken.end, ..place };
                ahead.walk.left.push(FoundData { place: rest, sector: sector + len });
            }
            let before = space::sectors(&parts);
            self.visit_data((sector, sector + len), &mut |range, _| {
                let (start, end) = (range.start.max(taken.start), range.end.min(taken.end));
                if range.pair == taken.pair && start < end {
                    parts.push(FileRange { pair: range.pair, start, end });
                }
                Ok(())
            })?;
            let showing = space::sectors(&parts) - before;
            room -= showing.min(room);
            let gone = (len - showing.min(len)) * SECTOR_SIZE;
            ahead.walk.share.unsealed_bytes = ahead.walk.share.unsealed_bytes.saturating_sub(gone);
        }
        parts.sort_unstable_by_key(|range| (range.pair, range.start));
        let mut joined = Vec::new();
        let unsealed =
            parts.into_iter().flat_map(|part| ahead.places.divide(part)).filter(|(_, at)| at.is_none());
        unsealed.for_each(|(part, _)| space::push(&mut joined, part));
        Ok(joined)
    }

    pub(super) fn check_own<W: Write>(&self, ahead: &LayerAhead<W>) -> Result<()> {
        if Arc::ptr_eq(&ahead.alive, &self.alive) {
            return Ok(());
        }
        Err(Error::invalid("the layer was begun for another disk"))
    }

    /// Calls `visit` with the places of all data that shows in `range` of the disk, each with its sector there, in the
    /// order of the disk. The disk may change meanwhile.
    fn visit_data(
        &self,
        (mut start, stop): (u64, u64),
        visit: &mut impl FnMut(FileRange, u64) -> Result<()>,
    ) -> Result<()> {
        let mut extents = [SectorExtent::EMPTY; EXTENTS_AT_ONCE];
        loop {
            let (generation, count, reached, end) = {
                let view = self.view();
                let end = stop.min(view.size / SECTOR_SIZE);
                let (count, reached) = view.extents(start, end, &mut extents);
                (Arc::clone(&view.generation), count, reached, end)
            };
            for extent in &extents[..count] {
                visit_extent(&generation, *extent, visit)?;
            }
            if reached >= end {
                return Ok(());
            }
            start = reached;
        }
    }
}

/// Visits the data in an extent of the active pair, or below it where that is a hole.
fn visit_extent(
    generation: &Generation,
    extent: SectorExtent,
    visit: &mut impl FnMut(FileRange, u64) -> Result<()>,
) -> Result<()> {
    let mut visit = |pair: &Pair, extent: SectorExtent| match data_of(pair, extent) {
        Some(range) => visit(range, extent.start),
        None => Ok(()),
    };
    if extent.kind != ExtentKind::Hole {
        return visit(&generation.active, extent);
    }
    let levels: Vec<_> = generation.frozen.iter().map(|level| &level.runs).collect();
    visit_merged(&levels, extent.start, extent.end, &mut |level, extent| {
        visit(&generation.frozen[level].pair, extent)
    })
}

/// The place of an extent's data.
pub(super) fn data_of(pair: &Pair, extent: SectorExtent) -> Option<FileRange> {
    let ExtentKind::Data(start) = extent.kind else { return None };
    Some(FileRange { pair: pair.number, start, end: start + extent.len() })
}

/// Appends the data at `range`, which is not in the layer yet.
fn append<W: Write>(
    ahead: &mut LayerAhead<W>,
    pair: &Pair,
    range: FileRange,
    buffer: &mut Vec<u8>,
) -> Result<()> {
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start + READ_CHUNK / SECTOR_SIZE);
        buffer.resize(headstart_block::to_usize((end - start) * SECTOR_SIZE), 0);
        pair.read_at(buffer, start * SECTOR_SIZE)?;
        let at = ahead.writer.store(buffer)?;
        ahead.places.insert(FileRange { start, end, ..range }, at);
        start = end;
    }
    Ok(())
}
