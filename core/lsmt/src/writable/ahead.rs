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

/// A layer that is written ahead of the commit of a disk. It belongs to one open [`WritableDisk`].
pub struct LayerAhead<W: Write> {
    pub(super) writer: LayerWriter<W>,
    pub(super) places: SealedPlaces,
    /// That of the disk, which tells disks apart.
    alive: Arc<Alive>,
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
        let (mut found, mut share) = (Vec::new(), SealedShare::default());
        self.visit_data(&mut |range| {
            for (part, at) in ahead.places.divide(range) {
                if at.is_some() {
                    share.sealed_bytes += part.len() * SECTOR_SIZE;
                    continue;
                }
                share.unsealed_bytes += part.len() * SECTOR_SIZE;
                let part = cold.clip(part);
                if part.len() > 0 {
                    space::push(&mut found, part);
                }
            }
            Ok(())
        })?;
        found.sort_unstable_by_key(|range| (range.pair, range.start));
        // The disk may have been written to during the walk, which then met the same place twice.
        let mut reached = (0, 0);
        let (mut left, mut room, mut buffer) = (0, most / SECTOR_SIZE, Vec::new());
        for FileRange { pair: number, start, end } in found {
            let start = if reached.0 == number { start.max(reached.1) } else { start };
            let Some(pair) = pairs.get(&number).filter(|_| start < end) else { continue };
            reached = (number, end);
            let stop = end.min(start.saturating_add(room));
            (left, room) = (left + (end - stop), room - (stop - start));
            append(ahead, pair, FileRange { pair: number, start, end: stop }, &mut buffer)?;
        }
        let appended_bytes = (most / SECTOR_SIZE - room) * SECTOR_SIZE;
        share.sealed_bytes += appended_bytes;
        share.unsealed_bytes = share.unsealed_bytes.saturating_sub(appended_bytes);
        Ok(SealPass { share, appended_bytes, left_bytes: left * SECTOR_SIZE })
    }

    pub(super) fn check_own<W: Write>(&self, ahead: &LayerAhead<W>) -> Result<()> {
        if Arc::ptr_eq(&ahead.alive, &self.alive) {
            return Ok(());
        }
        Err(Error::invalid("the layer was begun for another disk"))
    }

    /// Calls `visit` with the places of all data that shows, in the order of the disk. The disk may change meanwhile.
    fn visit_data(&self, visit: &mut impl FnMut(FileRange) -> Result<()>) -> Result<()> {
        let mut extents = [SectorExtent::EMPTY; EXTENTS_AT_ONCE];
        let mut start = 0;
        loop {
            let (generation, count, reached, end) = {
                let view = self.view();
                let end = view.size / SECTOR_SIZE;
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
    visit: &mut impl FnMut(FileRange) -> Result<()>,
) -> Result<()> {
    if extent.kind != ExtentKind::Hole {
        return data_of(&generation.active, extent).map_or(Ok(()), visit);
    }
    let levels: Vec<_> = generation.frozen.iter().map(|level| &level.runs).collect();
    visit_merged(&levels, extent.start, extent.end, &mut |level, extent| {
        data_of(&generation.frozen[level].pair, extent).map_or(Ok(()), &mut *visit)
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
