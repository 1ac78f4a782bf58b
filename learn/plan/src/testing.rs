//! Traces for tests.

use crate::block_table::BlockTable;
use crate::compact_trace::CompactTrace;
use headstart_block::{BLOCK_SIZE, ByteRange, SLICE_SIZE};
use headstart_trace::data_set::DataSetLimits;
use headstart_trace::{Creation, DataSet, DirectoryLimits, Op, Record, Trace, TraceDirectory};
use std::path::Path;

/// A read: time, block, first slice, number of slices (which may run into the next block).
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

pub(crate) fn trace(reads: &[Read], block_table: &mut BlockTable) -> CompactTrace {
    CompactTrace::of_records(&records(reads), block_table)
}

/// A trace of a data set: a boot of an image of a family and a user.
pub(crate) fn whole_trace(image: &str, family: &str, user: &str, volume: u64, reads: &[Read]) -> Trace {
    let labels = [("meta_info".to_owned(), format!("base={family}"))];
    Trace {
        creation: Creation {
            volume: volume.to_string(),
            image: image.to_owned(),
            family: family.to_owned(),
            user: user.to_owned(),
            size: 4 << 30,
            created_us: 1_800_000_000_000_000 + volume,
            labels: labels.into(),
            ..Creation::default()
        },
        records: records(reads),
        ..Trace::default()
    }
}

/// A boot that reads these blocks, some of their slices, a millisecond apart.
pub(crate) fn boot_reads(blocks: impl IntoIterator<Item = u64>) -> Vec<Read> {
    (1000..).step_by(1000).zip(blocks).map(|(t, block)| (t, block, block % 29, 1 + block % 3)).collect()
}

/// These traces as files of a directory, numbered from `first` on.
pub(crate) fn write_traces(dir: &Path, first: usize, traces: &[Trace]) {
    for (number, trace) in (first..).zip(traces) {
        let directory = dir.join(format!("write-{number}"));
        let written =
            TraceDirectory::open(&directory, DirectoryLimits::default()).unwrap().save(trace, false).unwrap();
        std::fs::rename(written, dir.join(format!("{number:05}.parquet"))).unwrap();
    }
}

/// All traces of a directory.
pub(crate) fn data_set(dir: &Path) -> DataSet {
    DataSet::open(dir, &DataSetLimits::default()).unwrap()
}
