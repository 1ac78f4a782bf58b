//! The results of a simulated boot.
//!
//! * *Hit rate*: the share of reads that found all their bytes local when they arrived.
//! * *Accuracy* has two definitions. The product's ([`Accuracy::ours`]): the share of preloaded blocks that were read;
//!   a block that a miss fetched is not preloaded. The one of the ThinkAhead paper's published simulator
//!   ([`Accuracy::artifact`]): the share of all fetched blocks that some read found local; it is of use without
//!   preloading too (policy `lazy`). Both are 0 if there are no such blocks, and count the blocks that had arrived when
//!   the last read arrived. A block counts as read, or found, if any byte of it was.
//! * *Wait*: the time from a read's arrival until its bytes are local. A read is *slow* if it waits longer than
//!   [`SLOW`]. The cause of a slow read is the one that took most of the wait: the transfer of its own bytes (`miss`),
//!   earlier transfers on the link (`queue`), or the round trip and the store's latency, failed tries and the pauses
//!   between them included (`store`).

use crate::time::Nanos;
use crate::waits::ReadWaits;
use serde::Serialize;

/// The wait above which a read is slow: one second (ThinkAhead paper, section 1).
pub const SLOW: Nanos = Nanos(1_000_000_000);

/// The block counts (2 MiB each) of one boot from which the accuracy of preloading is computed. They include
/// the blocks that had arrived when the last read arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accuracy {
    /// Blocks that were preloaded.
    pub preloaded: u64,
    /// Preloaded blocks that were read.
    pub read: u64,
    /// Blocks that were fetched for any reason, misses included.
    pub pulled: u64,
    /// Fetched blocks that some read found local.
    pub found: u64,
}

impl Accuracy {
    /// The share of preloaded blocks that were read, 0 to 1; 0 if no block was preloaded. This is the
    /// product's own definition of accuracy.
    #[must_use]
    pub fn ours(&self) -> f64 {
        ratio(self.read, self.preloaded)
    }

    /// The share of fetched blocks that a read found local, 0 to 1; 0 if no block was fetched. This is the
    /// accuracy as the artifact of the ThinkAhead paper defines it.
    #[must_use]
    pub fn artifact(&self) -> f64 {
        ratio(self.found, self.pulled)
    }
}

/// Requested bytes by the purpose of their request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Bytes requested for reads that waited.
    pub miss: u64,
    /// Bytes requested for the plan, or as the rest of a block in which a read missed.
    pub preload: u64,
    /// Bytes requested to fill the disk in the background.
    #[serde(rename = "left")]
    pub fill: u64,
}

impl Bytes {
    /// The sum of all requested bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.miss + self.preload + self.fill
    }
}

/// The numbers of slow reads (see [`SLOW`]) by the cause of most of their wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Slow {
    /// Slow reads that waited mostly for the transfer of their own bytes.
    pub miss: u64,
    /// Slow reads that waited mostly for earlier transfers on the link.
    pub queue: u64,
    /// Slow reads that waited mostly for the round trip and the store, failed tries and pauses between them
    /// included.
    pub store: u64,
}

impl Slow {
    /// The number of slow reads for any cause.
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

/// The results of one replayed boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootOutcome {
    /// The number of reads that were replayed.
    pub reads: u64,
    /// The number of reads that found all their bytes local when they arrived.
    pub hits: u64,
    /// The sum of the waits of all reads.
    pub waited: Nanos,
    /// The numbers of preloaded and fetched blocks, and of those that were read or found local.
    pub accuracy: Accuracy,
    /// The numbers of slow reads, by cause.
    pub slow: Slow,
    /// Bytes that were requested until the last read completed.
    pub bytes: Bytes,
    /// Bytes that had arrived from the store when the last read arrived.
    pub bytes_before_last_read: u64,
    /// The time at which the last read completed, since the disk's creation.
    pub last_read: Nanos,
    /// The number of requests that the store failed.
    pub failures: u64,
}

impl BootOutcome {
    /// The share of reads that found all their bytes local, 0 to 1; 0 if there were no reads.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.reads)
    }
}

/// Statistics of many boots. Hit rate, accuracies, total waits, bytes and times are means over boots of equal
/// weight; percentiles and the mean wait are over all reads, of equal weight. [`ReadWaits`] says how exact
/// the percentiles are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The number of boots, without those that have no reads.
    pub boots: u64,
    /// The number of reads in all boots.
    pub reads: u64,
    /// The mean of the boots' hit rates, 0 to 1: the share of a boot's reads that found all their bytes
    /// local.
    pub hit_rate: f64,
    /// The share of the reads of all boots that found all their bytes local, 0 to 1.
    pub hit_rate_pooled: f64,
    /// The mean of the boots' accuracies, 0 to 1, as [`Accuracy::ours`] defines it.
    pub accuracy: f64,
    /// The mean of the boots' accuracies, 0 to 1, as [`Accuracy::artifact`] defines it.
    pub accuracy_artifact: f64,
    /// The median of the reads' waits, in seconds.
    pub wait_p50: f64,
    /// The 99th percentile of the reads' waits, in seconds.
    pub wait_p99: f64,
    /// The longest wait of a read, in seconds.
    pub wait_max: f64,
    /// The mean wait of a read, in seconds.
    pub wait_mean: f64,
    /// The mean over boots of the sum of a boot's waits, in seconds.
    pub wait_total: f64,
    /// The numbers of slow reads in all boots, by cause.
    pub slow: Slow,
    /// The mean number of bytes that a boot requested.
    pub bytes: f64,
    /// The mean number of bytes that had arrived when a boot's last read arrived.
    pub bytes_before_last_read: f64,
    /// The mean time from the creation until a boot's last read completed, in seconds.
    pub last_read: f64,
    /// The number of requests in all boots that the store failed.
    pub failures: u64,
}

/// A collector of boots' results that computes their [`Summary`] in little memory. The order of the boots
/// does not change the figures, because all sums are of integers.
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
    /// Adds the results of a boot and the waits of its reads. A boot without reads is ignored.
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

    /// Adds the results that another collector has.
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

    /// The distribution of read waits over all boots; every read has equal weight, whichever boot it came
    /// from.
    #[must_use]
    pub fn waits(&self) -> &ReadWaits {
        &self.waits
    }

    /// Returns the statistics of the boots that were added; all are 0 if there are none.
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
