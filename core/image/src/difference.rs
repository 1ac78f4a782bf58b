//! The data of a disk that its base does not have, written as a layer.
//!
//! The disk is walked once, front to back. Extents that are known to be zeros are never read: they cost a record if the
//! base has data there, and nothing otherwise. The rest is read in parts of 1 MiB and compared in blocks of 4 KiB: a
//! block equal to the base's is left out, a block of zeros becomes part of a zeroed segment or, over nothing, a hole.
//! Memory is two parts for a disk of any size.

use crate::progress::{Progress, step};
use crate::zero::{BLOCK, is_zero};
use headstart_block::{BlockDevice, ByteRange, Result, SECTOR_SIZE};
use headstart_lsmt::LayerWriter;
use std::io::Write;

/// The number of bytes read at once: a multiple of [`BLOCK`].
const PART: usize = 1 << 20;

/// Writes into `layer` the difference of `disk` from `base`, or all of `disk` if there is no base. The base must be at
/// least as large as the disk; its data past the disk's end is hidden, so that it does not come back when the disk
/// grows again.
///
/// # Errors
/// Errors of the disks, the layer's output or the user's wish to stop.
pub(crate) fn write_difference<W: Write>(
    disk: &dyn BlockDevice,
    base: Option<&dyn BlockDevice>,
    layer: &mut LayerWriter<W>,
    progress: &dyn Progress,
) -> Result<()> {
    debug_assert!(base.is_none_or(|base| base.size() >= disk.size()));
    let nothing = ByteRange::between(0, 0);
    let (part, base_part) = (vec![0; PART], vec![0; PART]);
    let mut walk = Walk { disk, base, layer, progress, part, base_part, zeroed: nothing };
    let mut offset = 0;
    while offset < disk.size() {
        let extent = disk.extent_at(offset)?;
        let end = extent.range.end().min(disk.size());
        // A block that is only partly known to be zeros is read.
        let whole_blocks = if end == disk.size() { end } else { end - end % BLOCK as u64 };
        offset = if extent.zero && whole_blocks > offset {
            walk.zeros(ByteRange::between(offset, whole_blocks))?;
            whole_blocks
        } else {
            let end = end.checked_next_multiple_of(BLOCK as u64).unwrap_or(end).min(disk.size());
            ByteRange::between(offset, end).parts(PART as u64).try_for_each(|part| walk.data(part))?;
            end
        };
    }
    walk.hide_rest(offset)
}

struct Walk<'a, W: Write> {
    disk: &'a dyn BlockDevice,
    base: Option<&'a dyn BlockDevice>,
    layer: &'a mut LayerWriter<W>,
    progress: &'a dyn Progress,
    part: Vec<u8>,
    base_part: Vec<u8>,
    /// Zeros that are not written to the layer yet, because they may go on: the ends of the disk's extents must not
    /// show in the layer.
    zeroed: ByteRange,
}

/// The relation of a block to its base.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Same,
    Zeroed,
    Data,
}

impl<W: Write> Walk<'_, W> {
    /// Takes `range` of the disk, whole blocks, as zeros: hides the base's data there.
    fn zeros(&mut self, range: ByteRange) -> Result<()> {
        let mut offset = range.offset();
        while let Some(data) = self.base_data(ByteRange::between(offset, range.end()))? {
            // By blocks, as if the zeros had been read: the form in which the disk reports them must not show in the
            // layer.
            let start = data.offset() - data.offset() % BLOCK as u64;
            let end = data.end().next_multiple_of(BLOCK as u64).min(range.end());
            step(self.progress, start - offset)?;
            ByteRange::between(start, end).parts(PART as u64).try_for_each(|part| self.data(part))?;
            offset = end;
        }
        step(self.progress, range.end() - offset)
    }

    /// Hides the base's data from byte `offset` on, at which the disk ends.
    fn hide_rest(&mut self, offset: u64) -> Result<()> {
        let end = self.base.map_or(offset, BlockDevice::size);
        let mut rest = whole_sectors(ByteRange::between(offset.next_multiple_of(SECTOR_SIZE), end));
        while let Some(data) = self.base_data(rest)? {
            self.zeroed(whole_sectors(data))?;
            rest = ByteRange::between(data.end(), end);
        }
        self.end_zeroed()
    }

    /// The first extent in `range` with data of the base.
    fn base_data(&self, range: ByteRange) -> Result<Option<ByteRange>> {
        let Some(base) = self.base else { return Ok(None) };
        let end = range.end().min(base.size());
        let mut offset = range.offset();
        while offset < end {
            let extent = base.extent_at(offset)?;
            if !extent.zero {
                return Ok(Some(extent.range.intersect(range)));
            }
            offset = extent.range.end();
        }
        Ok(None)
    }

    /// Reads `range` of the disk, at most [`PART`], and writes the blocks that differ.
    fn data(&mut self, range: ByteRange) -> Result<()> {
        let range_in_sectors = whole_sectors(range);
        let (len, padded) = (in_memory(range.len()), in_memory(range_in_sectors.len()));
        self.disk.read_at(&mut self.part[..len], range.offset())?;
        self.part[len..padded].fill(0);
        if let Some(base) = self.base {
            // The base may have the rest of the sector in which the disk ends.
            let inside = in_memory((base.size() - range.offset()).min(padded as u64));
            base.read_at(&mut self.base_part[..inside], range.offset())?;
            self.base_part[inside..padded].fill(0);
        }
        let mut start = 0;
        while start < padded {
            let kind = self.classify(start, padded);
            let mut end = (start + BLOCK).min(padded);
            while end < padded && self.classify(end, padded) == kind {
                end = (end + BLOCK).min(padded);
            }
            let at = range.offset() + start as u64;
            match kind {
                Block::Same => {}
                Block::Zeroed => self.zeroed(ByteRange::between(at, range.offset() + end as u64))?,
                Block::Data => {
                    self.end_zeroed()?;
                    self.layer.data(at, &self.part[start..end])?;
                }
            }
            start = end;
        }
        step(self.progress, range.len())
    }

    fn zeroed(&mut self, range: ByteRange) -> Result<()> {
        if self.zeroed.end() != range.offset() {
            self.end_zeroed()?;
            self.zeroed = range;
        }
        self.zeroed = ByteRange::between(self.zeroed.offset(), range.end());
        Ok(())
    }

    fn end_zeroed(&mut self) -> Result<()> {
        let range = std::mem::replace(&mut self.zeroed, ByteRange::between(0, 0));
        if range.is_empty() { Ok(()) } else { self.layer.zeroes(range) }
    }

    /// The relation of the block at `start` of the part, which ends at `end`, to its base.
    fn classify(&self, start: usize, end: usize) -> Block {
        let place = start..(start + BLOCK).min(end);
        let block = &self.part[place.clone()];
        match self.base {
            None if is_zero(block) => Block::Same,
            Some(_) if *block == self.base_part[place] => Block::Same,
            Some(_) if is_zero(block) => Block::Zeroed,
            _ => Block::Data,
        }
    }
}

/// The range with its end moved up to a whole sector: a disk of odd length ends inside one.
fn whole_sectors(range: ByteRange) -> ByteRange {
    ByteRange::between(range.offset(), range.end().next_multiple_of(SECTOR_SIZE))
}

/// A length of data in memory.
#[expect(clippy::cast_possible_truncation, reason = "memory is not larger than usize can say")]
const fn in_memory(len: u64) -> usize {
    len as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use headstart_block::Extent;
    use headstart_lsmt::{Layer, LayerMeta, Stack};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// A disk in memory that reports its zeros in units of `grain` bytes.
    #[derive(Debug)]
    struct MemoryDisk {
        bytes: Vec<u8>,
        grain: usize,
    }

    impl BlockDevice for MemoryDisk {
        fn size(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            buf.copy_from_slice(&self.bytes[in_memory(offset)..][..buf.len()]);
            Ok(())
        }

        fn extent_at(&self, offset: u64) -> Result<Extent> {
            let start = in_memory(offset);
            let end = (start - start % self.grain + self.grain).min(self.bytes.len());
            let range = ByteRange::between(offset, end as u64);
            Ok(Extent { range, zero: is_zero(&self.bytes[start - start % self.grain..end]) })
        }
    }

    fn layer_of(disk: &MemoryDisk, base: Option<&Stack>) -> Layer {
        let meta =
            LayerMeta { virtual_size: disk.size().next_multiple_of(SECTOR_SIZE), ..LayerMeta::default() };
        let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
        let base = base.map(|base| base as &dyn BlockDevice);
        write_difference(disk, base, &mut writer, &Silent).unwrap();
        Layer::open(Arc::new(writer.finish().unwrap().0)).unwrap()
    }

    fn disk() -> impl Strategy<Value = MemoryDisk> {
        let runs = prop::collection::vec((0u8..3, 1usize..5000), 0..40);
        (runs, prop::sample::select(vec![512usize, 4096, 1000, 65536])).prop_map(|(runs, grain)| {
            let bytes = runs.into_iter().flat_map(|(byte, len)| std::iter::repeat_n(byte, len)).collect();
            MemoryDisk { bytes, grain }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn base_and_difference_give_the_disk(first in disk(), second in disk()) {
            let lower = layer_of(&first, None);
            let base = Stack::new(vec![lower.clone()]).unwrap().with_size(second.size().max(first.size()));
            let upper = layer_of(&second, Some(&base));
            // Read with a larger size than its own, the disk goes on with zeros: nothing of the base comes back.
            let stack = Stack::new(vec![lower, upper]).unwrap().with_size(second.size() + (1 << 20));
            let mut bytes = vec![0xee; second.bytes.len() + (1 << 20)];
            stack.read_at(&mut bytes, 0).unwrap();
            prop_assert!(bytes[..second.bytes.len()] == second.bytes);
            prop_assert!(is_zero(&bytes[second.bytes.len()..]));
        }

        #[test]
        fn a_disk_equal_to_its_base_gives_an_empty_layer(disk in disk()) {
            let lower = layer_of(&disk, None);
            let base = Stack::new(vec![lower]).unwrap().with_size(disk.size());
            let upper = layer_of(&disk, Some(&base));
            prop_assert_eq!(upper.segments(), &[]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_layer_does_not_depend_on_the_extents_of_its_disk(
            first in disk(), second in disk(), grain in 1usize..9000,
        ) {
            let base = Stack::new(vec![layer_of(&first, None)]).unwrap();
            let size = second.size().max(first.size());
            let (base, other) = (base.with_size(size), MemoryDisk { grain, bytes: second.bytes.clone() });
            let (one, two) = (layer_of(&second, Some(&base)), layer_of(&other, Some(&base)));
            prop_assert_eq!(one.segments(), two.segments());
        }
    }

    #[test]
    fn zeros_cost_nothing() {
        let mut bytes = vec![0; 8 << 20];
        bytes[5 << 20] = 1;
        let layer = layer_of(&MemoryDisk { bytes, grain: 8 << 20 }, None);
        assert_eq!(layer.segments().iter().map(|segment| segment.len()).sum::<u64>(), 8);
    }
}
