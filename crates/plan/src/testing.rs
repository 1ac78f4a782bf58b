//! Traces for tests.

use crate::condensed::Condensed;
use crate::vocabulary::Vocabulary;
use headstart_block::{BLOCK_SIZE, ByteRange, SLICE_SIZE};
use headstart_trace::{Op, Record};

/// Time, block, first slice, number of slices (which may run into the next block).
pub(crate) type Read = (u32, u64, u64, u64);

pub(crate) fn records(reads: &[Read]) -> Vec<Record> {
    let record = |&(t_us, block, slice, slices): &Read| Record {
        t_us: u64::from(t_us),
        op: Op::Read,
        range: ByteRange::new(block * BLOCK_SIZE + slice * SLICE_SIZE, slices * SLICE_SIZE).unwrap(),
        service_us: None,
    };
    reads.iter().map(record).collect()
}

pub(crate) fn trace(reads: &[Read], vocabulary: &mut Vocabulary) -> Condensed {
    Condensed::of_records(&records(reads), vocabulary)
}
