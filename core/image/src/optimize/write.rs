//! Writing the layer that has the data of a layout, in its order.

use super::layout::{Layout, bytes_of, data_of};
use crate::new_layer::LayerOutput;
use crate::progress::{Progress, step};
use headstart_block::{BlockDevice, ByteRange, Result, SECTOR_SIZE};
use headstart_lsmt::format::PAGE_SIZE;
use headstart_lsmt::{LayerMeta, LayerSummary, LayerWriter, Stack};

/// The numbers of bytes of the parts' data in a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DataBytes {
    /// The number of bytes of the data that the first plan names.
    pub(super) hot: u64,
    /// The number of bytes of the data that only the others name.
    pub(super) beyond: u64,
}

impl DataBytes {
    pub(super) fn of(disk: &Stack, layout: &Layout) -> Self {
        let sum = |parts: &[ByteRange]| {
            let segments = parts.iter().flat_map(|part| data_of(disk, *part));
            segments.map(|segment| segment.len() * SECTOR_SIZE).sum()
        };
        Self { hot: sum(&layout.hot), beyond: sum(&layout.beyond) }
    }

    /// The range of the hot data in the layer's own bytes, without its wrappers.
    pub(super) fn hot_range(&self) -> ByteRange {
        let start = PAGE_SIZE as u64;
        ByteRange::between(start, start + self.hot)
    }
}

/// Writes the data that `disk` has in the parts of `layout`, and nothing else: holes and zeroed sectors there stay as
/// they are.
pub(super) fn write_layer(
    disk: &Stack,
    layout: &Layout,
    output: LayerOutput,
    meta: LayerMeta,
    progress: &dyn Progress,
) -> Result<(LayerOutput, LayerSummary)> {
    progress.begin("write layer", layout.parts().map(ByteRange::len).sum());
    let mut layer = LayerWriter::new(output, meta)?.in_any_order();
    let mut buf = Vec::new();
    for part in layout.parts() {
        let mut segments = data_of(disk, part).peekable();
        if segments.peek().is_some() {
            read_whole_sectors(disk, part, &mut buf)?;
        }
        for segment in segments {
            let from = bytes_of(segment).offset() - part.offset();
            let (from, len) = (in_memory(from), in_memory(segment.len() * SECTOR_SIZE));
            layer.data(bytes_of(segment).offset(), &buf[from..from + len])?;
        }
        step(progress, part.len())?;
    }
    layer.finish()
}

/// Reads a part of the disk, and zeros for the missing rest of its last sector.
pub(super) fn read_whole_sectors(disk: &Stack, part: ByteRange, buf: &mut Vec<u8>) -> Result<()> {
    buf.clear();
    buf.resize(in_memory(part.len().next_multiple_of(SECTOR_SIZE)), 0);
    disk.read_at(&mut buf[..in_memory(part.len())], part.offset())
}

#[expect(clippy::cast_possible_truncation, reason = "within a block")]
fn in_memory(bytes: u64) -> usize {
    bytes as usize
}
