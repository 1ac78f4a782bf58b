//! What came of a simulated boot.
//!
//! * *Hit rate*: reads all of whose bytes were local when they arrived, of all.
//! * *Accuracy*, in two ways. Ours: preloaded blocks that were read, of preloaded blocks; a block that a miss brought
//!   is no preload. The artifact's: blocks that some read found local, of blocks pulled by whatever, which says
//!   something of `lazy` too. Of nothing preloaded or pulled they are 0. Both count what had come when the last read
//!   arrived. A block counts as read, or found, if any byte of it was.
//! * *Wait*: from a read's arrival until its bytes are local. *Slow* is one of over [`SLOW`], and its cause is
//!   what took most of it: its own transfer (`miss`), what the link was busy with before (`queue`), or the
//!   round trip and the store's latency (`store`).

use crate::time::Nanos;
use serde::Serialize;

/// A read that waits longer is slow (paper, section 1).
pub const SLOW: Nanos = Nanos(1_000_000_000);

/// Blocks preloaded and read, found and pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accuracy {
    /// Blocks that were preloaded.
    pub preloaded: u64,
    /// Those of them that were read.
    pub read: u64,
    /// Blocks that were pulled, by misses too.
    pub pulled: u64,
    /// Those of them that a read found local.
    pub found: u64,
}

impl Accuracy {
    /// Preloaded blocks that were read, of those preloaded; 0 if none was.
    #[must_use]
    pub fn ours(&self) -> f64 {
        ratio(self.read, self.preloaded)
    }

    /// Blocks found local, of those pulled; 0 if none was.
    #[must_use]
    pub fn artifact(&self) -> f64 {
        ratio(self.found, self.pulled)
    }
}

/// Bytes by what they were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// For reads that waited.
    pub miss: u64,
    /// For the plan, or as the rest of a block that missed.
    pub preload: u64,
    /// To fill the disk.
    pub left: u64,
}

impl Bytes {
    /// All.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.miss + self.preload + self.left
    }
}

/// Slow reads by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Slow {
    /// The transfer of its own request took most of it.
    pub miss: u64,
    /// What was on the link before it did.
    pub queue: u64,
    /// The round trip and the store did.
    pub store: u64,
}

impl Slow {
    /// All.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.miss + self.queue + self.store
    }
}

/// What came of one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Reads replayed.
    pub reads: u64,
    /// Those that found all their bytes local.
    pub hits: u64,
    /// The sum of all waits.
    pub waited: Nanos,
    /// Blocks preloaded and read, found and pulled.
    pub accuracy: Accuracy,
    /// Slow reads.
    pub slow: Slow,
    /// Bytes asked for until the last read was complete.
    pub bytes: Bytes,
    /// Bytes that had come when the last read arrived.
    pub bytes_before_last_read: u64,
    /// When the last read was complete.
    pub last_read: Nanos,
}

impl Outcome {
    /// Reads that hit, of all; 0 of none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.reads)
    }
}

/// Many outcomes in a few figures. Hit rate, accuracies, waits in sum, bytes and times are means over boots, each of
/// which counts the same; percentiles are over the reads of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Boots.
    pub boots: u64,
    /// Reads of all.
    pub reads: u64,
    /// Mean hit rate.
    pub hit_rate: f64,
    /// Mean accuracy as we define it.
    pub accuracy: f64,
    /// Mean accuracy as the artifact does.
    pub accuracy_artifact: f64,
    /// Half of the reads wait at most so long, in seconds.
    pub wait_p50: f64,
    /// 99 of 100 wait at most so long, in seconds.
    pub wait_p99: f64,
    /// The longest wait, in seconds.
    pub wait_max: f64,
    /// Mean wait of a read, in seconds.
    pub wait_mean: f64,
    /// Mean of a boot's waits in sum, in seconds.
    pub wait_total: f64,
    /// Slow reads of all boots, by cause.
    pub slow: Slow,
    /// Mean bytes asked for.
    pub bytes: f64,
    /// Mean bytes that had come when the last read arrived.
    pub bytes_before_last_read: f64,
    /// Mean time from creation until the last read was complete, in seconds.
    pub last_read: f64,
}

/// Gathers outcomes; which boot comes first makes no difference.
#[derive(Clone, Debug, Default)]
pub struct Gatherer {
    outcomes: Vec<Outcome>,
    waits: Vec<u64>,
}

impl Gatherer {
    /// Adds a boot with its waits. Boots without reads say nothing, and are left out.
    pub fn add(&mut self, outcome: &Outcome, waits: &[Nanos]) {
        if outcome.reads > 0 {
            self.outcomes.push(*outcome);
            self.waits.extend(waits.iter().map(|wait| wait.0));
        }
    }

    /// Adds what another one gathered.
    pub fn merge(&mut self, mut other: Self) {
        self.outcomes.append(&mut other.outcomes);
        self.waits.append(&mut other.waits);
    }

    /// The figures.
    #[must_use]
    pub fn summary(mut self) -> Summary {
        let count = self.outcomes.len() as u64;
        // In one order, whoever was first: sums of floating-point numbers depend on it.
        let sum = |of: fn(&Outcome) -> u64| {
            self.outcomes.iter().map(|outcome| u128::from(of(outcome))).sum::<u128>()
        };
        let mean = |of: fn(&Outcome) -> u64| mean(sum(of), count);
        let mut rates: Vec<_> = self.outcomes.iter().map(Outcome::hit_rate).collect();
        let mut ours: Vec<_> = self.outcomes.iter().map(|outcome| outcome.accuracy.ours()).collect();
        let mut artifact: Vec<_> = self.outcomes.iter().map(|outcome| outcome.accuracy.artifact()).collect();
        let reads = self.waits.len() as u64;
        let waited = sum(|outcome| outcome.waited.0);
        let slow = self.outcomes.iter().fold(Slow::default(), |sum, outcome| Slow {
            miss: sum.miss + outcome.slow.miss,
            queue: sum.queue + outcome.slow.queue,
            store: sum.store + outcome.slow.store,
        });
        Summary {
            boots: count,
            reads,
            hit_rate: sorted_mean(&mut rates),
            accuracy: sorted_mean(&mut ours),
            accuracy_artifact: sorted_mean(&mut artifact),
            wait_mean: self::mean(waited, reads) / 1e9,
            wait_total: self::mean(waited, count) / 1e9,
            slow,
            bytes: mean(|outcome| outcome.bytes.total()),
            bytes_before_last_read: mean(|outcome| outcome.bytes_before_last_read),
            last_read: mean(|outcome| outcome.last_read.0) / 1e9,
            wait_p50: percentile(&mut self.waits, 50).as_secs(),
            wait_p99: percentile(&mut self.waits, 99).as_secs(),
            wait_max: percentile(&mut self.waits, 100).as_secs(),
        }
    }
}

/// The smallest wait that at least `percent` of 100 waits do not exceed; 0 of none.
fn percentile(waits: &mut [u64], percent: usize) -> Nanos {
    let Some(place) = (waits.len() * percent).div_ceil(100).checked_sub(1) else { return Nanos(0) };
    Nanos(*waits.select_nth_unstable(place).1)
}

#[expect(clippy::cast_precision_loss, reason = "for people and statistics")]
fn mean(sum: u128, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

fn sorted_mean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let sum: f64 = values.iter().sum();
    mean(1, values.len() as u64) * sum
}

#[expect(clippy::cast_precision_loss, reason = "for people and statistics")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_waits_that_occurred() {
        let mut waits: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut waits, 50), Nanos(100));
        assert_eq!(percentile(&mut waits, 99), Nanos(198));
        assert_eq!(percentile(&mut waits, 100), Nanos(200));
        assert_eq!(percentile(&mut [7], 50), Nanos(7));
        assert_eq!(percentile(&mut [], 99), Nanos(0));
    }

    #[test]
    fn nothing_gathered_is_all_zeros() {
        assert_eq!(Gatherer::default().summary(), Summary::default());
        let mut gatherer = Gatherer::default();
        gatherer.add(&Outcome::default(), &[]);
        assert_eq!(gatherer.summary().boots, 0);
    }

    #[test]
    fn the_order_of_boots_makes_no_difference() {
        let outcome =
            |hits, reads| Outcome { hits, reads, waited: Nanos(reads * 1000), ..Outcome::default() };
        let boots = [(1, 3), (2, 7), (5, 11), (0, 13)].map(|(hits, reads)| outcome(hits, reads));
        let gather = |boots: &mut dyn Iterator<Item = &Outcome>| {
            let mut all = Gatherer::default();
            for boot in boots {
                let mut one = Gatherer::default();
                one.add(boot, &vec![Nanos(1000); boot.reads as usize]);
                all.merge(one);
            }
            all.summary()
        };
        let (forth, back) = (gather(&mut boots.iter()), gather(&mut boots.iter().rev()));
        assert_eq!(forth, back);
        assert_eq!((forth.boots, forth.reads, forth.wait_mean), (4, 34, 1e-6));
    }
}
