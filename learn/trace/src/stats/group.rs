//! The common properties of the traces of one image on disks of one size.
//!
//! Of the blocks, sums are kept: the number of traces that read each, and of the three metrics of the paper's score
//! the sum and the sum of squares. Uses of blocks wait unsorted until there are as many as blocks; then they are
//! sorted and merged: each is looked at a few times in all, however many traces there are.

use super::boot::{BlockUse, BootCounts};
use super::similarity::{cosine, order, ranks};
use crate::trace::Creation;
use headstart_block::saturating;

/// Traces whose pairs are compared, as the paper does.
const SAMPLE: usize = 50;
/// The least number of uses of blocks that wait.
const WAITING_MIN: usize = 1 << 16;

/// The number of traces from which on one can be judged unlike the others.
const JUDGED_MIN: usize = 5;

/// The differences between the traces of a group.
#[derive(Debug, Default)]
pub(super) struct Disorder {
    /// The agreement of the orders of first reads, for each pair of the sample.
    pub(super) orders: Vec<f64>,
    /// The percentage of the group's usual blocks that a trace does not read, for each trace of the sample.
    pub(super) lost_percent: Vec<f64>,
    /// Traces that read less than half or more than one and a half times the group's median of blocks.
    pub(super) outliers: u64,
    /// The number of traces that the outliers are among.
    pub(super) judged: u64,
}

/// The sums over the traces of a group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) creation: Creation,
    /// `true` if all disks have one user.
    pub(super) one_user: bool,
    pub(super) unique_blocks: Vec<u32>,
    sample: Vec<Vec<BlockUse>>,
    /// The distance between sampled traces; it doubles when the sample is full.
    every: usize,
    sums: Vec<Sums>,
    waiting: Vec<Sums>,
    count_max: u64,
    time_max_us: u64,
}

/// Sums over the traces that read a block.
#[derive(Clone, Copy, Debug)]
struct Sums {
    block: u64,
    traces: f64,
    /// Sums of the reads, of the mean time and of the least time; times are in seconds.
    sum: [f64; 3],
    squares: [f64; 3],
}

impl Sums {
    #[expect(clippy::cast_precision_loss, reason = "deviations of counts and of seconds")]
    fn of(use_: &BlockUse) -> Self {
        let seconds = |us: u64| us as f64 / 1e6;
        let mean = seconds(use_.sum_us) / use_.count.max(1) as f64;
        let sum = [use_.count as f64, mean, seconds(use_.first_us)];
        Self { block: use_.block, traces: 1.0, sum, squares: sum.map(|number| number * number) }
    }

    fn add(&mut self, other: &Self) {
        self.traces += other.traces;
        self.sum.iter_mut().zip(other.sum).for_each(|(sum, number)| *sum += number);
        self.squares.iter_mut().zip(other.squares).for_each(|(sum, number)| *sum += number);
    }

    /// The standard deviation of each metric; `None` for one trace.
    fn deviations(&self) -> Option<[f64; 3]> {
        (self.traces > 1.0).then(|| {
            let variance = |at: usize| {
                let mean = self.sum[at] / self.traces;
                (self.squares[at] / self.traces - mean * mean).max(0.0)
            };
            [variance(0).sqrt(), variance(1).sqrt(), variance(2).sqrt()]
        })
    }
}

impl Group {
    pub(super) fn new(creation: Creation) -> Self {
        Self {
            creation,
            one_user: true,
            unique_blocks: Vec::new(),
            sample: Vec::new(),
            every: 1,
            sums: Vec::new(),
            waiting: Vec::new(),
            count_max: 0,
            time_max_us: 0,
        }
    }

    pub(super) fn add(&mut self, boot: &BootCounts, user: &str) {
        self.one_user &= self.creation.user == user;
        if self.unique_blocks.len().is_multiple_of(self.every) {
            // Evenly spread over the group, whatever its length turns out to be.
            if self.sample.len() == 2 * SAMPLE {
                let mut index = 0;
                self.sample.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.every *= 2;
            }
            self.sample.push(boot.blocks.clone());
        }
        self.unique_blocks.push(saturating(boot.blocks.len()));
        for use_ in &boot.blocks {
            self.count_max = self.count_max.max(use_.count);
            self.time_max_us = self.time_max_us.max(use_.sum_us / use_.count.max(1));
            self.waiting.push(Sums::of(use_));
        }
        if self.waiting.len() >= self.sums.len().max(WAITING_MIN) {
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.sums.append(&mut self.waiting);
        // Stable: the order in which equal blocks are added up is that of the traces.
        self.sums.sort_by_key(|sums| sums.block);
        self.sums.dedup_by(|later, first| {
            let same = later.block == first.block;
            if same {
                first.add(later);
            }
            same
        });
    }

    /// The traces whose pairs are compared.
    fn compared(&self) -> Vec<&Vec<BlockUse>> {
        let step = self.sample.len().div_ceil(SAMPLE).max(1);
        self.sample.iter().step_by(step).collect()
    }

    /// The reordering, loss and outliers of the group.
    #[expect(clippy::cast_precision_loss, reason = "percentages")]
    pub(super) fn disorder(&mut self) -> Disorder {
        self.merge();
        let mut disorder = Disorder::default();
        let ranks: Vec<_> = self.compared().into_iter().map(|uses| ranks(uses)).collect();
        for (at, a) in ranks.iter().enumerate() {
            disorder.orders.extend(ranks[at + 1..].iter().filter_map(|b| order(a, b)));
        }
        if self.unique_blocks.len() < JUDGED_MIN {
            return disorder;
        }
        let half = self.unique_blocks.len() as f64 / 2.0;
        let usual: Vec<_> =
            self.sums.iter().filter(|sums| sums.traces > half).map(|sums| sums.block).collect();
        for trace in ranks.iter().filter(|_| !usual.is_empty()) {
            let read = |block: &&u64| trace.binary_search_by_key(*block, |(block, _)| *block).is_ok();
            let lost = usual.len() - usual.iter().filter(read).count();
            disorder.lost_percent.push(lost as f64 * 100.0 / usual.len() as f64);
        }
        let median = super::median(self.unique_blocks.iter().map(|blocks| u64::from(*blocks)));
        let unlike = |blocks: &&u32| u64::from(**blocks) * 2 < median || u64::from(**blocks) * 2 > median * 3;
        disorder.outliers = self.unique_blocks.iter().filter(unlike).count() as u64;
        disorder.judged = self.unique_blocks.len() as u64;
        disorder
    }

    /// Figure 12: the cosine of each pair of a sample.
    pub(super) fn cosines(&self) -> Vec<f64> {
        let sample = self.compared();
        let pairs =
            sample.iter().enumerate().flat_map(|(at, a)| sample[at + 1..].iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| cosine(a, b)).collect()
    }

    /// Figure 22: for each metric (reads, mean time, least time), as parts of the group's largest, the standard
    /// deviation over the traces that read a block: the mean over blocks.
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub(super) fn deviations(&mut self) -> Option<[f64; 3]> {
        self.merge();
        let mut sum = [0.0; 3];
        let mut blocks = 0.0;
        for deviations in self.sums.iter().filter_map(Sums::deviations) {
            sum.iter_mut().zip(deviations).for_each(|(sum, deviation)| *sum += deviation);
            blocks += 1.0;
        }
        let time_max = (self.time_max_us as f64 / 1e6).max(1e-6);
        let largest = [self.count_max.max(1) as f64, time_max, time_max];
        (blocks > 0.0).then(|| [0, 1, 2].map(|at| sum[at] / blocks / largest[at]))
    }

    /// The blocks of one trace that stands for the group: that in the middle of the sample by number of blocks.
    pub(super) fn typical_blocks(&self) -> Vec<u64> {
        let mut sample: Vec<_> = self.sample.iter().collect();
        sample.sort_by_key(|uses| uses.len());
        let typical = sample.get(sample.len() / 2);
        typical.map(|uses| uses.iter().map(|use_| use_.block).collect()).unwrap_or_default()
    }
}
