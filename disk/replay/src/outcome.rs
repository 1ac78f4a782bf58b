//! The results of a simulated boot.
//!
//! * *Hit rate*: reads all of whose bytes were local when they arrived, of all.
//! * *Accuracy*, in two ways. Ours: preloaded blocks that were read, of preloaded blocks; a block that a miss brought
//!   is no preload. The artifact's: blocks that some read found local, of all blocks pulled, by whatever; it says
//!   something about `lazy` too. If nothing was preloaded or pulled they are 0. Both count the blocks that had come
//!   when the last read arrived. A block counts as read, or found, if any byte of it was.
//! * *Wait*: from a read's arrival until its bytes are local. A read is *slow* if it waits longer than [`SLOW`], and
//!   its cause is that of most of the wait: its own transfer (`miss`), earlier transfers on the link (`queue`), or the
//!   round trip and the store's latency (`store`), with the failed tries and the pauses between them.

use crate::time::Nanos;
use crate::waits::ReadWaits;
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

/// Bytes by the purpose of their request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// For reads that waited.
    pub miss: u64,
    /// For the plan, or as the rest of a block that missed.
    pub preload: u64,
    /// To fill the disk.
    #[serde(rename = "left")]
    pub fill: u64,
}

impl Bytes {
    /// All.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.miss + self.preload + self.fill
    }
}

/// Slow reads by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Slow {
    /// The transfer of its own request took most of it.
    pub miss: u64,
    /// Earlier transfers on the link took most of it.
    pub queue: u64,
    /// The round trip and the store took most of it.
    pub store: u64,
}

impl Slow {
    /// All.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.miss + self.queue + self.store
    }

    fn add(&mut self, other: Self) {
        self.miss += other.miss;
        self.queue += other.queue;
        self.store += other.store;
    }
}

/// The results of one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootOutcome {
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
    /// The time at which the last read was complete.
    pub last_read: Nanos,
    /// Requests that the store failed.
    pub failures: u64,
}

impl BootOutcome {
    /// Reads that hit, of all; 0 if there were none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.reads)
    }
}

/// Many outcomes in a few figures. Hit rate, accuracies, waits in sum, bytes and times are means over boots, each of
/// which counts the same; percentiles are over the reads of all.
/// [`ReadWaits`] says how exact they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Boots.
    pub boots: u64,
    /// Reads of all.
    pub reads: u64,
    /// Mean hit rate.
    pub hit_rate: f64,
    /// Hits of all boots, of all their reads.
    pub hit_rate_pooled: f64,
    /// Mean accuracy as we define it.
    pub accuracy: f64,
    /// Mean accuracy by the artifact's definition.
    pub accuracy_artifact: f64,
    /// Half of the reads wait at most this long, in seconds.
    pub wait_p50: f64,
    /// 99 of 100 wait at most this long, in seconds.
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
    /// Requests that the store failed, of all boots.
    pub failures: u64,
}

/// Gathers outcomes, in little memory. The figures do not depend on the order: all sums are of whole numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gatherer {
    boots: u64,
    hits: u64,
    hit_rate: Share,
    accuracy: Share,
    accuracy_artifact: Share,
    waited: u128,
    slow: Slow,
    bytes: u128,
    bytes_before_last_read: u128,
    last_read: u128,
    failures: u64,
    waits: ReadWaits,
}

impl Gatherer {
    /// Adds a boot with its waits. Boots without reads have no figures, and are left out.
    pub fn add(&mut self, outcome: &BootOutcome, waits: &[Nanos]) {
        if outcome.reads == 0 {
            return;
        }
        let Accuracy { preloaded, read, pulled, found } = outcome.accuracy;
        self.boots += 1;
        self.hits += outcome.hits;
        self.failures += outcome.failures;
        self.hit_rate.add(outcome.hits, outcome.reads);
        self.accuracy.add(read, preloaded);
        self.accuracy_artifact.add(found, pulled);
        self.waited += u128::from(outcome.waited.0);
        self.slow.add(outcome.slow);
        self.bytes += u128::from(outcome.bytes.total());
        self.bytes_before_last_read += u128::from(outcome.bytes_before_last_read);
        self.last_read += u128::from(outcome.last_read.0);
        waits.iter().for_each(|wait| self.waits.add(*wait));
    }

    /// Adds the outcomes of another gatherer.
    pub fn merge(&mut self, other: &Self) {
        self.boots += other.boots;
        self.hits += other.hits;
        self.failures += other.failures;
        self.hit_rate.0 += other.hit_rate.0;
        self.accuracy.0 += other.accuracy.0;
        self.accuracy_artifact.0 += other.accuracy_artifact.0;
        self.waited += other.waited;
        self.slow.add(other.slow);
        self.bytes += other.bytes;
        self.bytes_before_last_read += other.bytes_before_last_read;
        self.last_read += other.last_read;
        self.waits.merge(&other.waits);
    }

    /// The waits of the reads, each counting the same.
    #[must_use]
    pub fn waits(&self) -> &ReadWaits {
        &self.waits
    }

    /// The figures.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let boots = self.boots;
        Summary {
            boots,
            reads: self.waits.reads(),
            hit_rate: self.hit_rate.mean(boots),
            hit_rate_pooled: ratio(self.hits, self.waits.reads()),
            accuracy: self.accuracy.mean(boots),
            accuracy_artifact: self.accuracy_artifact.mean(boots),
            wait_p50: self.waits.percentile(50).as_secs(),
            wait_p99: self.waits.percentile(99).as_secs(),
            wait_max: self.waits.longest().as_secs(),
            wait_mean: mean(self.waited, self.waits.reads()) / 1e9,
            wait_total: mean(self.waited, boots) / 1e9,
            slow: self.slow,
            bytes: mean(self.bytes, boots),
            bytes_before_last_read: mean(self.bytes_before_last_read, boots),
            last_read: mean(self.last_read, boots) / 1e9,
            failures: self.failures,
        }
    }
}

/// A sum of shares, each a number of 2^-64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share(u128);

impl Share {
    /// Adds `part` of `whole`; nothing of nothing.
    fn add(&mut self, part: u64, whole: u64) {
        self.0 += (u128::from(part) << 64).checked_div(u128::from(whole)).unwrap_or(0);
    }

    fn mean(self, count: u64) -> f64 {
        // Of a power of two the division is exact.
        mean(self.0, count) / 2_f64.powi(64)
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people and statistics")]
fn mean(sum: u128, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

#[expect(clippy::cast_precision_loss, reason = "for people and statistics")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_no_boots_is_zeros() {
        assert_eq!(Gatherer::default().summary(), Summary::default());
        let mut gatherer = Gatherer::default();
        gatherer.add(&BootOutcome::default(), &[]);
        assert_eq!(gatherer.summary().boots, 0);
    }

    #[test]
    fn the_order_of_boots_makes_no_difference() {
        let outcome =
            |hits, reads| BootOutcome { hits, reads, waited: Nanos(reads * 1000), ..BootOutcome::default() };
        let boots = [(1, 3), (2, 7), (5, 11), (0, 13)].map(|(hits, reads)| outcome(hits, reads));
        let gather = |boots: &mut dyn Iterator<Item = &BootOutcome>| {
            let mut all = Gatherer::default();
            for boot in boots {
                let mut one = Gatherer::default();
                one.add(boot, &vec![Nanos(1000); boot.reads as usize]);
                all.merge(&one);
            }
            all.summary()
        };
        let (forth, back) = (gather(&mut boots.iter()), gather(&mut boots.iter().rev()));
        assert_eq!(forth, back);
        assert_eq!((forth.boots, forth.reads, forth.wait_mean), (4, 34, 1e-6));
    }
}
