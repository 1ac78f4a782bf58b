//! The reads of a trace, ready to be replayed.
//!
//! Two clocks. *Open*: each read arrives when it did in the trace. *Closed*: a read arrives its think time after the
//! last of the reads that it *followed* had completed: those whose answers had come when it was recorded. A guest that
//! waits longer than the recorded one thereby gets later by as much, and one that waits less gets earlier.
//!
//! Where a data set tells no service times every read counts as answered at once: each follows all that arrived before
//! it, and only those that arrived in the same microsecond are side by side.
//!
//! Writes are served locally (paper, section 3.2): nobody waits for them, and what was written need not be pulled to be
//! read. In the closed loop they come, like reads, their think time after what they followed.

use crate::time::Nanos;
use headstart_block::ByteRange;
use headstart_pull::{BLOCK_SIZE, PlanItem, SLICE_SIZE};
use headstart_trace::{Op, Record, Trace};
use std::collections::BTreeMap;

/// The largest disk that is simulated; what a larger one has beyond is not read. A simulation keeps a bit for each
/// 16 KiB: 64 MiB for this one.
pub const DISK_MAX: u64 = 8 << 40;

/// Reads that arrive later after the creation are left out: a year.
const LATEST_US: u64 = 365 * 86_400_000_000;

/// One read, or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// When it arrived in the trace, since creation.
    pub at: Nanos,
    /// The bytes of the disk.
    pub range: ByteRange,
    /// How many reads, in the order in which their answers came, it followed.
    pub followed: u32,
    /// How long after the last answer of those it arrived.
    pub think: Nanos,
}

/// The reads of one boot, in the order of their arrival, and its writes. Never changed, so that many simulations can
/// share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    disk_size: u64,
    reads: Vec<Access>,
    writes: Vec<Access>,
    /// The reads by when their answers came.
    by_answer: Vec<u32>,
}

/// What a request of a trace was: when it arrived, when its answer came.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    at: Nanos,
    answered: Nanos,
    range: ByteRange,
}

impl Boot {
    /// The reads and writes of `trace`, but nothing past the end of the disk (where its size is known).
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        Self::faster(trace, 1)
    }

    /// The same by a guest that is `faster` times as fast, as [`Boot::of_records`] says.
    #[must_use]
    pub fn faster(trace: &Trace, faster: u32) -> Self {
        let size = match trace.creation.size {
            0 => trace.records.iter().map(|record| record.range.end()).max().unwrap_or(0),
            size => size,
        };
        Self::of_records(size, &trace.records, faster)
    }

    /// The same from `records` of a disk of `disk_size` bytes, by a guest that is `faster` times as fast: the times
    /// between its reads, and their service times, are divided by it; the time to its first read stays. 0 is taken
    /// as 1.
    #[must_use]
    pub fn of_records(disk_size: u64, records: &[Record], faster: u32) -> Self {
        let disk_size = disk_size.min(DISK_MAX);
        let known = |record: &&Record| record.t_us <= LATEST_US;
        let reads = || records.iter().filter(known).filter(|record| record.op == Op::Read);
        let began = reads().map(|record| record.t_us).min().unwrap_or(0);
        let faster = u64::from(faster.max(1));
        let recorded = |record: &Record| {
            let range = record.range.intersect(ByteRange::between(0, disk_size));
            let first = began.min(record.t_us);
            let since = Nanos::from_micros(record.t_us - first).0;
            let at = Nanos::from_micros(first).plus(Nanos(since / faster));
            let served = Nanos::from_micros(record.service_us.map_or(0, u64::from));
            let answered = Nanos(since).plus(served).0 / faster;
            let answered = Nanos::from_micros(first).plus(Nanos(answered));
            (!range.is_empty()).then_some(Recorded { at, answered, range })
        };
        let mut reads: Vec<_> = reads().filter_map(recorded).collect();
        let writes = records.iter().filter(known).filter(|record| record.op == Op::Write);
        let mut writes: Vec<_> = writes.filter_map(recorded).collect();
        for requests in [&mut reads, &mut writes] {
            requests.sort_by_key(|request| request.at);
            requests.truncate(u32::MAX as usize);
        }
        Self::new(disk_size, &reads, &writes)
    }

    #[expect(clippy::cast_possible_truncation, reason = "a boot has at most 2^32 reads")]
    fn new(disk_size: u64, reads: &[Recorded], writes: &[Recorded]) -> Self {
        let mut by_answer: Vec<_> = (0..reads.len() as u32).collect();
        by_answer.sort_by_key(|read| (reads[*read as usize].answered, *read));
        let follow = |requests: &[Recorded]| {
            let mut followed = 0;
            let access = |request: &Recorded| {
                let answered = |n: usize| by_answer.get(n).map(|read| reads[*read as usize].answered);
                while answered(followed).is_some_and(|answered| answered < request.at) {
                    followed += 1;
                }
                let last = followed.checked_sub(1).and_then(answered).unwrap_or_default();
                let think = request.at.since(last);
                Access { at: request.at, range: request.range, followed: followed as u32, think }
            };
            requests.iter().map(access).collect()
        };
        Self { disk_size, reads: follow(reads), writes: follow(writes), by_answer }
    }

    /// The size of the disk in bytes, at most [`DISK_MAX`].
    #[must_use]
    pub fn disk_size(&self) -> u64 {
        self.disk_size
    }

    /// The reads, in the order of their arrival.
    #[must_use]
    pub fn reads(&self) -> &[Access] {
        &self.reads
    }

    /// The writes, in the order of their arrival.
    #[must_use]
    pub fn writes(&self) -> &[Access] {
        &self.writes
    }

    /// The reads, by number, in the order in which their answers came.
    pub(crate) fn by_answer(&self) -> &[u32] {
        &self.by_answer
    }

    /// The blocks that its first `reads` reads read, in the order of first access, each with the slices that are read:
    /// what a plan that knew the boot beforehand would say.
    #[must_use]
    pub fn recorded_order(&self, reads: usize) -> Vec<PlanItem> {
        let (mut order, mut places) = (Vec::<PlanItem>::new(), BTreeMap::new());
        for range in self.reads.iter().take(reads).map(|read| read.range) {
            for slice in range.offset() / SLICE_SIZE..range.end().div_ceil(SLICE_SIZE) {
                let (block, bit) = (slice * SLICE_SIZE / BLOCK_SIZE, slice % (BLOCK_SIZE / SLICE_SIZE));
                let place = *places.entry(block).or_insert(order.len());
                if place == order.len() {
                    order.push(PlanItem { block, mask: 0 });
                }
                order[place].mask |= 1 << bit;
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(t_us: u64, service_us: Option<u32>, op: Op) -> Record {
        Record { t_us, op, range: ByteRange::between(t_us * 512, t_us * 512 + 512), service_us }
    }

    fn follows(boot: &Boot) -> Vec<(u32, u64)> {
        boot.reads().iter().map(|read| (read.followed, read.think.0 / 1000)).collect()
    }

    #[test]
    fn a_read_follows_what_was_answered_before() {
        let reads = [(100, 50), (120, 10), (140, 5), (160, 1)];
        let records: Vec<_> = reads.map(|(at, took)| record(at, Some(took), Op::Read)).into_iter().collect();
        let boot = Boot::of_records(1 << 30, &records, 1);
        assert_eq!(follows(&boot), [(0, 100), (0, 120), (1, 10), (3, 10)]);
        assert_eq!(boot.by_answer(), [1, 2, 0, 3]);
    }

    #[test]
    fn without_service_times_reads_follow_each_other() {
        let mut records = [100, 120, 120, 150].map(|at| record(at, None, Op::Read)).to_vec();
        records.insert(2, record(130, None, Op::Write));
        let boot = Boot::of_records(1 << 30, &records, 1);
        assert_eq!(follows(&boot), [(0, 100), (1, 20), (1, 20), (3, 30)]);
        let faster = Boot::of_records(1 << 30, &records, 5);
        assert_eq!(
            faster.reads().iter().map(|read| read.at.0).collect::<Vec<_>>(),
            [100_000, 104_000, 104_000, 110_000]
        );
        assert_eq!(
            boot.writes().iter().map(|write| (write.followed, write.think.0)).collect::<Vec<_>>(),
            [(3, 10_000)]
        );
    }

    #[test]
    fn the_recorded_order_names_each_block_once() {
        let read = |start: u64, len: u64| {
            let range = ByteRange::between(start * SLICE_SIZE, (start + len) * SLICE_SIZE);
            Record { t_us: 0, op: Op::Read, range, service_us: None }
        };
        let boot = Boot::of_records(1 << 30, &[read(70, 1), read(31, 2), read(64, 2), read(0, 1)], 1);
        let items = [(2, 0b100_0011), (0, 1 << 31 | 1), (1, 1)];
        assert_eq!(boot.recorded_order(9), items.map(|(block, mask)| PlanItem { block, mask }));
        let items = [(2, 1 << 6), (0, 1 << 31), (1, 1)];
        assert_eq!(boot.recorded_order(2), items.map(|(block, mask)| PlanItem { block, mask }));
    }

    #[test]
    fn nothing_past_the_end_of_the_disk() {
        let records = [1, 2, 3].map(|at| record(at, None, Op::Read));
        let boot = Boot::of_records(1100, &records, 1);
        assert_eq!(boot.reads().iter().map(|read| read.range.len()).collect::<Vec<_>>(), [512, 76]);
    }
}
