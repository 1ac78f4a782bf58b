//! Random layers: the content that a test wants, the file that our writer makes of it, and the plain disk of that
//! content.

use crate::plain::PlainDisk;
use headstart_block::ByteRange;
use headstart_lsmt::{Layer, LayerMeta, LayerWriter};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

/// One run: sectors left out before it, its sectors, whether it is zeroed, and the seed of its bytes.
pub(crate) type Run = (u64, u64, bool, u8);

/// A layer: its virtual size in bytes and its runs, ascending.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) virtual_size: u64,
    pub(crate) runs: Vec<Run>,
}

/// Layers of up to `runs` short runs; the size is odd, or 0, or leaves room, but never cuts a run.
pub(crate) fn wanted(runs: usize) -> impl Strategy<Value = Wanted> {
    let run = (prop_oneof![Just(0), 0u64..20], prop_oneof![1u64..12, 60u64..140], any::<bool>(), any::<u8>());
    (vec(run, 0..=runs), prop_oneof![Just(None), (0u64..50_000).prop_map(Some)]).prop_map(|(runs, room)| {
        let end: u64 = runs.iter().map(|run| (run.0 + run.1) * 512).sum();
        // The last run may reach a little past the end of a disk whose size is no multiple of a sector.
        let virtual_size =
            room.map_or(0, |room| (end + room).saturating_sub(room % 512).max(end - end.min(511)));
        Wanted { virtual_size, runs }
    })
}

/// The bytes of one sector of a run: never all zeros, other in every sector.
pub(crate) fn sector_bytes(seed: u8, sector: u64) -> [u8; 512] {
    std::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add(i as u8) ^ (sector as u8).wrapping_mul(7) | 1)
}

impl Wanted {
    /// Calls `each` with first sector, number of sectors and, unless it is zeroed, the bytes of every run.
    pub(crate) fn each_run(&self, mut each: impl FnMut(u64, u64, Option<Vec<u8>>)) {
        let mut sector = 0;
        for &(gap, len, zeroed, seed) in &self.runs {
            sector += gap;
            let bytes = || (sector..sector + len).flat_map(|sector| sector_bytes(seed, sector)).collect();
            each(sector, len, (!zeroed).then(bytes));
            sector += len;
        }
    }

    /// The file of the layer, by our writer.
    pub(crate) fn file(&self) -> Vec<u8> {
        let meta = LayerMeta { virtual_size: self.virtual_size, ..LayerMeta::default() };
        let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
        self.each_run(|sector, len, bytes| match bytes {
            Some(bytes) => writer.data(sector * 512, &bytes).unwrap(),
            None => writer.zeroes(ByteRange::new(sector * 512, len * 512).unwrap()).unwrap(),
        });
        writer.finish().unwrap().0
    }

    /// The layer, opened from that file.
    pub(crate) fn layer(&self) -> Layer {
        Layer::open(Arc::new(self.file())).unwrap()
    }

    /// The plain disk of this content.
    pub(crate) fn model(&self) -> PlainDisk {
        let mut disk = PlainDisk { size: self.virtual_size, ..PlainDisk::default() };
        self.each_run(|sector, len, bytes| match bytes {
            Some(bytes) => disk.write(sector * 512, &bytes),
            None => disk.discard(sector * 512, len * 512),
        });
        disk
    }
}
