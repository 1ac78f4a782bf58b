//! A compact trace as few bytes: the form in which traces are kept, in memory and in files.
//!
//! Read by read: the time since the last, a flag for a known service time, a flag for several blocks; then
//! for each access the block's number as its difference to the last, and the run of slices. The tables are made again
//! when it is unpacked.

use super::{BlockAccess, CompactTrace};
use crate::block_table::BlockTable;
use crate::encoding::{Reader, Writer};
use headstart_block::{Error, Result};

/// A [`CompactTrace`] packed into few bytes: the form in which traces are kept in memory and in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed(Box<[u8]>);

const HAS_DONE: u64 = 1;
const IS_WIDE: u64 = 2;

/// A run of slices is `1 + first + 32 * (len - 1)`; this number stands for any other mask, which follows.
const ANY_MASK: u64 = 0;

impl Packed {
    /// Packs a trace, for [`unpack`](Self::unpack) to restore.
    #[must_use]
    pub fn of(trace: &CompactTrace) -> Self {
        let mut writer = Writer { bytes: Vec::with_capacity(trace.reads.len() * 7) };
        writer.number(trace.left_out);
        writer.len(trace.reads.len());
        let (mut last_us, mut last_block) = (0, 0);
        for read in &trace.reads {
            let accesses = trace.accesses(read);
            let is_wide = if accesses.len() == 1 { 0 } else { IS_WIDE };
            let has_done = if read.done_us > read.t_us { HAS_DONE } else { 0 };
            writer.number(u64::from(read.t_us - last_us) << 2 | is_wide | has_done);
            last_us = read.t_us;
            if has_done > 0 {
                writer.number(read.done_us - read.t_us);
            }
            if is_wide > 0 {
                writer.len(accesses.len());
            }
            for access in accesses {
                writer.signed(i64::from(access.block) - i64::from(last_block));
                last_block = access.block;
                let first = access.mask.trailing_zeros();
                let len = (access.mask >> first.min(31)).trailing_ones();
                if access.mask.count_ones() == len && len > 0 {
                    writer.number(1 + first + 32 * (len - 1));
                } else {
                    writer.number(ANY_MASK);
                    writer.bytes.extend(access.mask.to_le_bytes());
                }
            }
        }
        Self(writer.bytes.into())
    }

    /// Returns the size of the packed trace, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no bytes, which is never the case for a packed trace.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Unpacks the trace. `block_table` must be the table that the packed trace was made with; blocks may have been
    /// added to the table since.
    #[must_use]
    pub fn unpack(&self, block_table: &BlockTable) -> CompactTrace {
        let mut compact = CompactTrace::default();
        // Traces from a file were checked when they were read.
        let whole = parse(&self.0, block_table.len(), &mut compact);
        debug_assert!(whole.is_ok());
        compact.finish(block_table)
    }

    /// The number of different blocks that it reads, of the `blocks` that there are.
    pub(crate) fn distinct(&self, blocks: usize) -> usize {
        let mut seen = Distinct { seen: vec![false; blocks], count: 0 };
        let whole = parse(&self.0, blocks, &mut seen);
        debug_assert!(whole.is_ok());
        seen.count
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.bytes(&self.0);
    }

    /// Reads a trace whose blocks are below `blocks`.
    pub(crate) fn read(reader: &mut Reader<'_>, blocks: usize) -> Result<Self> {
        let bytes = reader.bytes()?;
        parse(bytes, blocks, &mut Nothing)?;
        Ok(Self(bytes.into()))
    }
}

/// The receiver of parsed reads.
trait Sink {
    fn reserve(&mut self, _left_out: u64, _reads: usize) {}
    fn access(&mut self, _touch: BlockAccess) {}
    fn end_read(&mut self, _t_us: u32, _done_us: u32) {}
}

struct Nothing;

impl Sink for Nothing {}

struct Distinct {
    seen: Vec<bool>,
    count: usize,
}

impl Sink for Distinct {
    fn access(&mut self, access: BlockAccess) {
        if let Some(seen) = self.seen.get_mut(access.block as usize) {
            self.count += usize::from(!*seen);
            *seen = true;
        }
    }
}

impl Sink for CompactTrace {
    fn reserve(&mut self, left_out: u64, reads: usize) {
        self.left_out = left_out;
        self.reads.reserve_exact(reads);
        self.accesses.reserve(reads);
    }

    fn access(&mut self, access: BlockAccess) {
        self.accesses.push(access);
    }

    fn end_read(&mut self, t_us: u32, done_us: u32) {
        let start = self.reads.last().map_or(0, |read| read.end);
        self.push_read(t_us, done_us, start as usize);
    }
}

fn parse(bytes: &[u8], blocks: usize, sink: &mut impl Sink) -> Result<()> {
    let mut reader = Reader::new(bytes);
    let left_out = reader.u64()?;
    // At least a time each; reads that access nothing should not be there, but may be.
    let reads = reader.count(1)?;
    sink.reserve(left_out, reads);
    let (mut t_us, mut block) = (0_u32, 0_i64);
    let wrong = || Error::corrupt("has a trace that makes no sense");
    for _ in 0..reads {
        let head = reader.u64()?;
        let since = u32::try_from(head >> 2).map_err(|_| wrong())?;
        t_us = t_us.checked_add(since).ok_or_else(wrong)?;
        let service = if head & HAS_DONE > 0 { reader.number()? } else { 0 };
        let done_us = t_us.checked_add(service).ok_or_else(wrong)?;
        let accesses = if head & IS_WIDE > 0 { reader.count(2)? } else { 1 };
        for _ in 0..accesses {
            block = block.checked_add(reader.signed()?).ok_or_else(wrong)?;
            let is_known = usize::try_from(block).is_ok_and(|block| block < blocks);
            let id = u32::try_from(block).ok().filter(|_| is_known).ok_or_else(wrong)?;
            sink.access(BlockAccess { block: id, mask: parse_mask(&mut reader)? });
        }
        sink.end_read(t_us, done_us);
    }
    reader.end()
}

fn parse_mask(reader: &mut Reader<'_>) -> Result<u32> {
    let wrong = || Error::corrupt("has slices that make no sense");
    let code = reader.u64()?;
    if code == ANY_MASK {
        let mask = reader.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| wrong())?;
        return if mask == 0 { Err(wrong()) } else { Ok(mask) };
    }
    let (len, first) = ((code - 1) / 32 + 1, (code - 1) % 32);
    if len + first > 32 {
        return Err(wrong());
    }
    Ok(u32::MAX >> (32 - len) << first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Read, trace};
    use proptest::prelude::*;

    fn reads() -> impl Strategy<Value = Vec<Read>> {
        let reads = prop::collection::vec((0_u32..9_000_000, 0_u64..300, 0_u64..32, 1_u64..80), 0..200);
        reads.prop_map(|mut reads| {
            reads.sort_unstable();
            reads
        })
    }

    proptest! {
        #[test]
        fn unpacking_is_the_way_back(before in reads(), reads in reads(), later in reads()) {
            let mut block_table = BlockTable::new(1 << 32);
            trace(&before, &mut block_table);
            let compact = trace(&reads, &mut block_table);
            let packed = Packed::of(&compact);
            trace(&later, &mut block_table);
            prop_assert_eq!(packed.distinct(block_table.len()), compact.first_accesses().len());
            prop_assert_eq!(packed.unpack(&block_table), compact);
            let mut writer = Writer::default();
            packed.write(&mut writer);
            prop_assert_eq!(Packed::read(&mut Reader::new(&writer.bytes), block_table.len()).unwrap(), packed);
        }

        #[test]
        fn damage_is_an_error_or_another_trace(
            reads in reads(), at: prop::sample::Index, byte: u8, blocks in 0_usize..400,
        ) {
            let mut block_table = BlockTable::new(1 << 32);
            let mut bytes = Packed::of(&trace(&reads, &mut block_table)).0.to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let mut writer = Writer::default();
            writer.bytes(&bytes);
            if let Ok(packed) = Packed::read(&mut Reader::new(&writer.bytes), blocks.min(block_table.len())) {
                let _ = packed.unpack(&block_table);
            }
        }
    }

    #[test]
    fn a_trace_with_service_times_is_small() {
        let mut block_table = BlockTable::new(1 << 32);
        let reads: Vec<Read> =
            (0..3000).map(|at| (at * 300, u64::from(at / 20), u64::from(at % 20), 1)).collect();
        let packed = Packed::of(&trace(&reads, &mut block_table));
        assert!(packed.len() < 3000 * 6 && !packed.is_empty(), "{}", packed.len());
    }
}
