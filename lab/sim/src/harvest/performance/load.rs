//! The work of VMs on their disks: threads in closed loops.

use headstart_block::random::{Random, mix};
use headstart_block::to_usize;
use std::ops::Range;
use std::time::Duration;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Io {
    pub(super) write: bool,
    pub(super) at: u64,
    pub(super) length: u32,
}

/// The work of threads.
pub(super) trait Load {
    /// The number of threads.
    fn threads(&self) -> usize;
    /// The pause of a thread, and its next request.
    fn next(&mut self, thread: usize, now: Duration) -> (Duration, Io);
}

/// The place of the next request of `length`.
#[derive(Clone, Debug)]
enum Walk {
    /// Behind the one before.
    Along(u64),
    Anywhere(Random),
}

impl Walk {
    fn next(&mut self, area: &Range<u64>, length: u32) -> u64 {
        let slots = (area.end - area.start) / u64::from(length);
        let slot = match self {
            Self::Along(next) => {
                let slot = *next;
                *next = (slot + 1) % slots.max(1);
                slot
            }
            Self::Anywhere(random) => random.below(to_usize(slots)) as u64,
        };
        area.start + slot * u64::from(length)
    }
}

/// fio's requests: of one size and kind, `depth` at a time.
#[derive(Clone, Debug)]
pub(super) struct Fio {
    area: Range<u64>,
    write: bool,
    length: u32,
    depth: usize,
    walk: Walk,
}

impl Fio {
    /// Requests on an area of bytes; `seed` for random places.
    pub(super) fn new(area: Range<u64>, write: bool, length: u32, depth: usize, seed: Option<u64>) -> Self {
        let walk = seed.map_or(Walk::Along(0), |seed| Walk::Anywhere(Random::new(seed)));
        Self { area, write, length, depth, walk }
    }
}

impl Load for Fio {
    fn threads(&self) -> usize {
        self.depth
    }

    fn next(&mut self, _thread: usize, _now: Duration) -> (Duration, Io) {
        let at = self.walk.next(&self.area, self.length);
        (Duration::ZERO, Io { write: self.write, at, length: self.length })
    }
}

/// YCSB's workload A on a disk: threads that read and update records of 4 KiB, half and half, popular ones often.
#[derive(Clone, Debug)]
pub(super) struct Ycsb {
    threads: usize,
    /// The mean pause before a request; pauses are even from zero to twice that.
    think: Duration,
    popular: Zipf,
    random: Random,
}

/// Bytes of a record.
pub(super) const RECORD: u32 = 4096;

impl Ycsb {
    /// Threads on the first `records` of the disk.
    pub(super) fn new(records: u64, threads: usize, think: Duration, seed: u64) -> Self {
        Self { threads, think, popular: Zipf::new(records), random: Random::new(seed) }
    }
}

impl Load for Ycsb {
    fn threads(&self) -> usize {
        self.threads
    }

    fn next(&mut self, _thread: usize, _now: Duration) -> (Duration, Io) {
        let pause = self.think.mul_f64(2.0 * self.random.unit());
        let write = self.random.bits() & 1 == 0;
        let record = self.popular.draw(&mut self.random);
        (pause, Io { write, at: record * u64::from(RECORD), length: RECORD })
    }
}

/// Numbers below `count`, the popular ones scattered: YCSB's scrambled Zipfian generator (Gray et al., SIGMOD 1994),
/// with its constant of 0.99.
#[derive(Clone, Debug)]
struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    #[expect(clippy::cast_precision_loss, reason = "a draw, not an account")]
    fn new(count: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (all, two) = (zeta(count), zeta(2));
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - two / all);
        Self { count, zeta: all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "a draw, not an account"
    )]
    #[expect(clippy::cast_sign_loss, reason = "at least zero")]
    fn draw(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let place = unit * self.zeta;
        let rank = if place < 1.0 {
            0
        } else if place < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            (self.count as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha)) as u64
        };
        mix(rank.wrapping_add(1)) % self.count.max(1)
    }
}

/// A VM with a fixed rate of requests, whatever their waits: steadily, or in bursts with rests between.
#[derive(Clone, Debug)]
pub(super) struct Paced {
    area: Range<u64>,
    length: u32,
    threads: usize,
    /// Share of requests that write.
    writes: f64,
    /// From one request to the next.
    every: Duration,
    /// The period, and the worked part of each period.
    bursts: Option<(Duration, Duration)>,
    due: Duration,
    random: Random,
    walk: Walk,
}

impl Paced {
    /// Requests of `length` at `rate` a second on average, by the given number of threads. With `bursts` (period,
    /// worked part) all come in the worked parts.
    pub(super) fn new(
        area: Range<u64>,
        (length, writes): (u32, f64),
        (rate, threads): (f64, usize),
        bursts: Option<(Duration, Duration)>,
        seed: u64,
    ) -> Self {
        let part = bursts.map_or(1.0, |(period, worked)| worked.as_secs_f64() / period.as_secs_f64());
        let every = Duration::from_secs_f64(part / rate);
        let (random, walk) = (Random::new(seed), Walk::Anywhere(Random::new(mix(seed))));
        Self { area, length, threads, writes, every, bursts, due: Duration::ZERO, random, walk }
    }
}

impl Load for Paced {
    fn threads(&self) -> usize {
        self.threads
    }

    fn next(&mut self, _thread: usize, now: Duration) -> (Duration, Io) {
        self.due += self.every.mul_f64(2.0 * self.random.unit());
        if let Some((period, worked)) = self.bursts {
            let within = Duration::from_secs_f64(self.due.as_secs_f64() % period.as_secs_f64());
            if within > worked {
                self.due += period - within;
            }
        }
        let write = self.random.unit() < self.writes;
        let at = self.walk.next(&self.area, self.length);
        (self.due.saturating_sub(now), Io { write, at, length: self.length })
    }
}

/// A sort that does not fit memory: half of its threads read, half write, large blocks one after another. Each pass
/// reads the blocks that the pass before wrote.
#[derive(Clone, Debug)]
pub(super) struct Sort {
    halves: [Range<u64>; 2],
    length: u32,
    threads: usize,
    reader: u64,
    writer: u64,
}

/// Bytes of a sort's request.
pub(super) const SORTED: u32 = 1 << 20;

impl Sort {
    /// A sort in an area of bytes.
    pub(super) fn new(area: Range<u64>, threads: usize) -> Self {
        let half = (area.end - area.start) / 2 / u64::from(SORTED) * u64::from(SORTED);
        let middle = area.start + half;
        Self {
            halves: [area.start..middle, middle..middle + half],
            length: SORTED,
            threads,
            reader: 0,
            writer: 0,
        }
    }
}

impl Load for Sort {
    fn threads(&self) -> usize {
        self.threads
    }

    fn next(&mut self, thread: usize, _now: Duration) -> (Duration, Io) {
        let write = thread % 2 == 1;
        let done = if write { &mut self.writer } else { &mut self.reader };
        let slots = (self.halves[0].end - self.halves[0].start) / u64::from(self.length);
        let (pass, slot) = (*done / slots.max(1), *done % slots.max(1));
        *done += 1;
        let half = &self.halves[usize::from(pass % 2 == 0) ^ usize::from(!write)];
        (Duration::ZERO, Io { write, at: half.start + slot * u64::from(self.length), length: self.length })
    }
}

/// A job that reads its data over and over in large blocks, and rewrites some of it: machine learning's preparation
/// (writes little) or a graph's ranks (writes much).
#[derive(Clone, Debug)]
pub(super) struct Job {
    area: Range<u64>,
    /// Blocks written for each hundred that are read.
    writes: u64,
    threads: usize,
    turn: u64,
    reader: u64,
    writer: u64,
}

impl Job {
    /// A job in an area of bytes.
    pub(super) fn new(area: Range<u64>, writes: u64, threads: usize) -> Self {
        Self { area, writes, threads, turn: 0, reader: 0, writer: 0 }
    }
}

impl Load for Job {
    fn threads(&self) -> usize {
        self.threads
    }

    fn next(&mut self, _thread: usize, _now: Duration) -> (Duration, Io) {
        let each = 100 + self.writes;
        let (before, after) = (self.turn * self.writes / each, (self.turn + 1) * self.writes / each);
        self.turn += 1;
        let write = after > before;
        let done = if write { &mut self.writer } else { &mut self.reader };
        let slots = (self.area.end - self.area.start) / u64::from(SORTED);
        let at = self.area.start + *done % slots.max(1) * u64::from(SORTED);
        *done += 1;
        (Duration::ZERO, Io { write, at, length: SORTED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_records_are_popular() {
        let (zipf, mut random) = (Zipf::new(10_000), Random::new(1));
        let mut counts = vec![0_u32; 10_000];
        for _ in 0..100_000 {
            counts[usize::try_from(zipf.draw(&mut random)).unwrap()] += 1;
        }
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let top: u32 = counts[..100].iter().sum();
        assert!((45_000..60_000).contains(&top), "{top}");
        assert!((8_000..12_000).contains(&counts[0]), "{}", counts[0]);
    }

    #[test]
    fn a_sort_reads_what_it_wrote() {
        let mut sort = Sort::new(0..8 << 20, 2);
        let mut passes: [Vec<u64>; 2] = Default::default();
        for _ in 0..8 {
            for thread in 0..2 {
                let (_, io) = sort.next(thread, Duration::ZERO);
                passes[usize::from(io.write)].push(io.at >> 20);
            }
        }
        assert_eq!(passes, [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1, 2, 3]]);
    }

    #[test]
    fn the_pace_is_kept() {
        for bursts in [None, Some((Duration::from_secs(1), Duration::from_millis(500)))] {
            let mut paced = Paced::new(0..1 << 30, (16 << 10, 0.5), (1000.0, 4), bursts, 7);
            let last = (0..10_000).map(|_| {
                let due = paced.next(0, Duration::ZERO).0;
                let within = due.as_secs_f64() % 1.0;
                assert!(bursts.is_none() || within < 0.51, "{within}");
                due
            });
            let last = last.last().unwrap().as_secs_f64();
            assert!((9.0..11.0).contains(&last), "{last}");
        }
    }
}
