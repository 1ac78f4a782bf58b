//! The reads of a trace, ready to be replayed.
//!
//! There are two rules for the times of reads. *Open loop*: each read arrives at its time in the trace. *Closed loop*:
//! a read *follows* the reads that had been answered before it arrived in the recording. In the replay it arrives when
//! all of these are answered and its think time (the recorded time since the last of those answers) has passed. So if a
//! guest waits longer for a read than the recorded guest did, its later reads arrive later by as much; if it waits
//! less, they arrive earlier.
//!
//! If a trace has no service times, every read counts as answered at once: it follows all reads that arrived in an
//! earlier microsecond.
//!
//! Writes are served locally (ThinkAhead paper, section 3.2): no read waits for them, and written bytes need not be
//! fetched to be read. In the closed loop writes arrive by the same rule as reads.
//!
//! [`Guest`] implements these rules as a state machine without a clock: its caller reports the time and the answers.
//! The simulator uses it with virtual time, `headstart-lab replay` with a real clock and a server behind a socket.

use crate::model::ReplayClock;
use crate::time::Nanos;
use headstart_block::random::Random;
use headstart_block::{ByteRange, to_usize};
use headstart_pull::{BLOCK_SIZE, PlanItem, SLICE_SIZE};
use headstart_trace::{Op, Record, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The maximum size of a simulated disk, in bytes (8 TiB). Accesses beyond it are left out. A simulation
/// keeps one bit for each 16 KiB: 64 MiB of memory for a disk of this size.
pub const DISK_MAX: u64 = 8 << 40;

/// Bytes of a stray read.
const STRAY: u64 = 16 << 10;

/// Accesses that arrive more than a year after the creation are left out.
const LATEST_US: u64 = 365 * 86_400_000_000;

/// One recorded read or write of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootAccess {
    /// The time at which the access arrived in the recording, since the disk's creation.
    pub at: Nanos,
    /// The accessed range of the disk, in bytes.
    pub range: ByteRange,
    /// The number of reads that were answered in the recording before the access arrived. In the order of answers,
    /// these are the first reads of the boot.
    pub followed: u32,
    /// The think time: the duration from the last of those answers to the arrival of the access; from the disk's
    /// creation if `followed` is 0.
    pub think: Nanos,
}

/// The recorded reads and writes of one boot, in the order of their arrival. It is immutable, so many
/// simulations can share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    disk_size: u64,
    reads: Vec<BootAccess>,
    writes: Vec<BootAccess>,
    /// The reads in the order of their answers.
    by_answer: Vec<u32>,
}

/// The times of a request of a trace: its arrival and its answer.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    at: Nanos,
    answered: Nanos,
    range: ByteRange,
}

impl Boot {
    /// Returns the reads and writes of `trace`, without the parts past the end of the disk. If the trace has no disk
    /// size, the highest end of an access counts as the size. [`Boot::of_records`] says what else is left out.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        Self::faster(trace, 1)
    }

    /// Returns the boot of `trace` by a guest that is `faster` times as fast; see [`Boot::of_records`].
    #[must_use]
    pub fn faster(trace: &Trace, faster: u32) -> Self {
        let size = match trace.creation.size {
            0 => trace.records.iter().map(|record| record.range.end()).max().unwrap_or(0),
            size => size,
        };
        Self::of_records(size, &trace.records, faster)
    }

    /// Returns the boot of `records` on a disk of `disk_size` bytes, by a guest that is `faster` times as fast: the
    /// times since the first read, and the service times, are divided by `faster` (0 counts as 1). The time of the
    /// first read stays. A size above [`DISK_MAX`] is replaced by `DISK_MAX`. Parts of accesses past the end of the
    /// disk are left out, and so are accesses later than 365 days after the creation.
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
                BootAccess { at: request.at, range: request.range, followed: followed as u32, think }
            };
            requests.iter().map(access).collect()
        };
        Self { disk_size, reads: follow(reads), writes: follow(writes), by_answer }
    }

    /// Returns the same boot with its first read `grace` after the creation. All other accesses keep their distance
    /// from that read; writes that would come before the creation come at the creation. If there are no reads, all
    /// writes come later by `grace`.
    #[must_use]
    pub fn with_grace(mut self, grace: Nanos) -> Self {
        let began = self.reads.first().map_or(Nanos(0), |read| read.at);
        let moved = |at: Nanos| Nanos(at.plus(grace).0.saturating_sub(began.0));
        for access in self.reads.iter_mut().chain(&mut self.writes) {
            access.at = moved(access.at);
            // The think time of an access that follows nothing counts from the creation.
            if access.followed == 0 {
                access.think = moved(access.think);
            }
        }
        self
    }

    /// Returns the same boot on a disk of `disk_size` bytes, with `start` (in bytes) added to the offset of
    /// each access. Accesses are cut at the end of that disk; those past its end stay, with an empty range.
    #[must_use]
    pub fn moved(mut self, start: u64, disk_size: u64) -> Self {
        self.disk_size = disk_size.min(DISK_MAX);
        let size = self.disk_size;
        let place = |at: u64| start.saturating_add(at).min(size);
        for access in self.reads.iter_mut().chain(&mut self.writes) {
            access.range = ByteRange::between(place(access.range.offset()), place(access.range.end()));
        }
        self
    }

    /// The size of the disk in bytes, at most [`DISK_MAX`].
    #[must_use]
    pub fn disk_size(&self) -> u64 {
        self.disk_size
    }

    /// The recorded reads, in the order of their arrival.
    #[must_use]
    pub fn reads(&self) -> &[BootAccess] {
        &self.reads
    }

    /// The recorded writes, in the order of their arrival.
    #[must_use]
    pub fn writes(&self) -> &[BootAccess] {
        &self.writes
    }

    /// Returns the blocks (2 MiB) that the first `reads` reads touch, in the order of first access, each with
    /// its touched slices (64 KiB): the preload plan of a planner with perfect knowledge of the boot.
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

/// Returns the records of a boot with *strays*, additional random reads: of each million reads about
/// `per_million` are accompanied by a read of 16 KiB at a random offset, drawn from `seed`. The stray has the
/// time of the read that it accompanies.
#[must_use]
pub fn with_strays(records: &[Record], disk_size: u64, per_million: u32, seed: u64) -> Vec<Record> {
    let mut random = Random::new(seed);
    let places = to_usize(disk_size / STRAY);
    let mut all = Vec::with_capacity(records.len() * 2);
    for record in records {
        all.push(*record);
        if record.op == Op::Read && random.bits() % 1_000_000 < u64::from(per_million) {
            let at = random.below(places) as u64 * STRAY;
            all.push(Record { range: ByteRange::between(at, at + STRAY), ..*record });
        }
    }
    all
}

/// The guest of a replay, which issues the reads and writes of a boot. In the open loop each of them is issued at its
/// recorded time. In the closed loop it is issued when the reads that it followed are answered and its think time has
/// passed since. All methods must be given the boot that was passed to [`begin`](Guest::begin).
#[derive(Debug, Default)]
pub struct Guest {
    clock: ReplayClock,
    reads: usize,
    writes: usize,
    /// Open loop: the next read. Closed loop: the next read to be given a time.
    next_read: usize,
    next_write: usize,
    /// Closed loop: the number of the trace's first answers that are there.
    answers: usize,
    /// Closed loop: the reads that are answered, and the times of the next requests.
    answered: Vec<bool>,
    reading: BinaryHeap<Reverse<(Nanos, u32)>>,
    writing: BinaryHeap<Reverse<(Nanos, u32)>>,
}

impl Guest {
    /// Restarts at the creation of the disk with the first `reads_max` reads of `boot`, and with its writes if `writes`
    /// is `true`. `clock` decides when accesses arrive. Must be called before all other methods.
    pub fn begin(&mut self, boot: &Boot, clock: ReplayClock, reads_max: usize, writes: bool) {
        self.clock = clock;
        self.reads = boot.reads.len().min(reads_max);
        self.writes = if writes { boot.writes.len() } else { 0 };
        (self.next_read, self.next_write, self.answers) = (0, 0, 0);
        self.answered.clear();
        self.reading.clear();
        self.writing.clear();
        if clock == ReplayClock::Closed {
            self.answered.resize(self.reads, false);
            self.release(boot, Nanos(0));
        }
    }

    /// The number of reads in this replay, issued or not.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// The time of the next read; `None` if it depends on answers that have not come, or if no reads are
    /// left.
    #[must_use]
    pub fn next_read_at(&self, boot: &Boot) -> Option<Nanos> {
        match self.clock {
            ReplayClock::Open => boot.reads[..self.reads].get(self.next_read).map(|read| read.at),
            ReplayClock::Closed => self.reading.peek().map(|Reverse((at, _))| *at),
        }
    }

    /// Issues the next read if its time is before `due`, and returns this time and the read's number (its index in
    /// [`Boot::reads`]). Otherwise returns `None`.
    pub fn read_before(&mut self, boot: &Boot, due: Nanos) -> Option<(Nanos, u32)> {
        let at = self.next_read_at(boot).filter(|at| *at < due)?;
        let read = match self.clock {
            ReplayClock::Open => {
                self.next_read += 1;
                u32::try_from(self.next_read - 1).ok()?
            }
            ReplayClock::Closed => self.reading.pop().map(|Reverse((_, read))| read)?,
        };
        Some((at, read))
    }

    /// Issues the next write if its time is before `due`, and returns its range. Otherwise returns `None`.
    pub fn write_before(&mut self, boot: &Boot, due: Nanos) -> Option<ByteRange> {
        match self.clock {
            ReplayClock::Open => {
                let write = boot.writes[..self.writes].get(self.next_write).filter(|write| write.at < due)?;
                self.next_write += 1;
                Some(write.range)
            }
            ReplayClock::Closed => {
                self.writing.peek().filter(|Reverse((at, _))| *at < due)?;
                let Reverse((_, write)) = self.writing.pop()?;
                boot.writes.get(write as usize).map(|write| write.range)
            }
        }
    }

    /// Records that the read with number `read` was answered at `now`, so that accesses that waited for this answer get
    /// their time. Has no effect with [`ReplayClock::Open`].
    pub fn answered(&mut self, boot: &Boot, now: Nanos, read: u32) {
        if self.clock == ReplayClock::Open {
            return;
        }
        if let Some(answered) = self.answered.get_mut(read as usize) {
            *answered = true;
        }
        let is_answered = |read: &u32| self.answered.get(*read as usize) == Some(&true);
        let mut more = false;
        while boot.by_answer.get(self.answers).is_some_and(is_answered) {
            self.answers += 1;
            more = true;
        }
        if more {
            self.release(boot, now);
        }
    }

    /// Closed loop: gives a time to the requests that follow answered reads.
    fn release(&mut self, boot: &Boot, now: Nanos) {
        let release = |accesses: &[BootAccess], next: &mut usize, coming: &mut BinaryHeap<_>| {
            while let Some(access) = accesses.get(*next)
                && access.followed as usize <= self.answers
                && let Ok(number) = u32::try_from(*next)
            {
                coming.push(Reverse((now.plus(access.think), number)));
                *next += 1;
            }
        };
        release(&boot.reads[..self.reads], &mut self.next_read, &mut self.reading);
        release(&boot.writes[..self.writes], &mut self.next_write, &mut self.writing);
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
        assert_eq!(boot.by_answer, [1, 2, 0, 3]);
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

    /// Answers that take as long as in the trace bring every request at its recorded time; longer ones delay it by as
    /// much.
    #[test]
    fn the_guest_comes_as_it_is_answered() {
        let reads: [(u64, u32); 4] = [(100, 50), (120, 10), (140, 5), (160, 1)];
        let mut records = reads.map(|(at, took)| record(at, Some(took), Op::Read)).to_vec();
        records.push(record(165, None, Op::Write));
        let boot = Boot::of_records(1 << 30, &records, 1).with_grace(Nanos::from_micros(1000));
        let play = |clock, late: u64| {
            let (mut guest, mut came, mut answers) = (Guest::default(), Vec::new(), BinaryHeap::new());
            guest.begin(&boot, clock, usize::MAX, true);
            loop {
                let due = answers.peek().map_or(Nanos::NEVER, |Reverse((at, _))| *at);
                if let Some((now, read)) = guest.read_before(&boot, due) {
                    came.push((read, now.0 / 1000));
                    let took = Nanos::from_micros(u64::from(reads[read as usize].1) + late);
                    answers.push(Reverse((now.plus(took), read)));
                } else if let Some(Reverse((now, read))) = answers.pop() {
                    guest.answered(&boot, now, read);
                } else {
                    break;
                }
            }
            let wrote = (0..10_000).find(|us| guest.write_before(&boot, Nanos::from_micros(*us)).is_some());
            (came, wrote)
        };
        let recorded = vec![(0, 1000), (1, 1020), (2, 1040), (3, 1060)];
        assert_eq!(play(ReplayClock::Closed, 0), (recorded.clone(), Some(1066)));
        assert_eq!(play(ReplayClock::Open, 7), (recorded, Some(1066)));
        // The third follows the second alone, the last two requests follow all before them.
        let late = vec![(0, 1000), (1, 1020), (2, 1047), (3, 1069)];
        assert_eq!(play(ReplayClock::Closed, 7), (late, Some(1082)));
    }

    #[test]
    fn reads_past_the_end_of_the_disk_are_left_out() {
        let records = [1, 2, 3].map(|at| record(at, None, Op::Read));
        let boot = Boot::of_records(1100, &records, 1);
        assert_eq!(boot.reads().iter().map(|read| read.range.len()).collect::<Vec<_>>(), [512, 76]);
    }
}
