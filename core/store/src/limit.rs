//! [`RateLimit`]: the rate that the reads of one process, or of several processes together, may take.
//!
//! A limit is a token bucket, which holds at most the bytes of a quarter of a second (but at least 64 KiB). A read
//! takes its bytes before its request is sent. Pacing the bytes that were received would limit only the average,
//! because bytes that a server has sent cannot be held back any more.
//!
//! * A *background* read waits for its turn among the background reads. Then it takes its bytes as the bucket has them,
//!   a full bucket at a time at most. It takes no bytes while a demand read of the process waits.
//! * A *demand* read waits only while the bucket is overdrawn by more than a full bucket. Background reads never
//!   overdraw the bucket, so a demand read never waits for bytes that they took. It waits only if the demand reads
//!   alone exceed the rate.
//!
//! A cancelled read does not give its bytes back: the server may have sent them.
//!
//! The bucket of one process is in memory, that of several processes in a file (`shared`). Background reads then give
//! way only to demand reads of their own process; a demand read of another process overdraws the bucket, so that they
//! wait longer.

pub(crate) mod shared;

use crate::store::Urgency;
use headstart_block::Result;
use parking_lot::Mutex;
use shared::SharedBucket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time whose inflow the bucket holds.
const BURST: Duration = Duration::from_millis(250);

/// The least size of the bucket, in bytes: a few groups of the hash tree.
const LEAST_BURST: f64 = 64.0 * 1024.0;

/// The interval at which a background read checks if demand reads are done.
const YIELD: Duration = Duration::from_millis(5);

/// A limit on the rate of reads, in bytes a second. Clones share the same limit.
#[derive(Clone, Debug)]
pub struct RateLimit(Arc<Bucket>);

#[derive(Debug)]
struct Bucket {
    place: Place,
    /// Demand reads of this process that wait.
    waiting: AtomicU32,
    /// The queue of background reads: one takes at a time, in the order in which they came. Demand reads have such
    /// a queue, too.
    background: tokio::sync::Mutex<()>,
    demand: tokio::sync::Mutex<()>,
}

/// The place of a bucket.
#[derive(Debug)]
enum Place {
    Memory {
        /// Bytes a second.
        rate: f64,
        level: Mutex<Level>,
    },
    File(SharedBucket),
}

#[derive(Debug)]
struct Level {
    /// Bytes in the bucket.
    bytes: f64,
    /// The moment at which it was that full; `None` before the first use.
    at: Option<Instant>,
}

/// The bytes that must be in the bucket before some are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Floor {
    /// The bucket may be overdrawn by as much as it holds.
    Overdrawn,
    /// This number of bytes, or a full bucket.
    Holds(f64),
}

/// The flow of bytes into a bucket, at `rate` bytes a second, and out of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TokenFlow {
    rate: f64,
    /// Bytes in the bucket; negative if demand overdrew it.
    bytes: f64,
}

/// Most bytes in the bucket of a rate.
fn most(rate: f64) -> f64 {
    (rate * BURST.as_secs_f64()).max(LEAST_BURST)
}

impl TokenFlow {
    /// Lets `passed` pass, then takes `bytes` if the floor allows it. Otherwise returns the time until it
    /// does.
    fn take(&mut self, passed: Duration, bytes: f64, floor: Floor) -> Option<Duration> {
        let most = most(self.rate);
        self.bytes = (self.bytes + passed.as_secs_f64() * self.rate).min(most);
        let floor = match floor {
            Floor::Overdrawn => -most,
            Floor::Holds(bytes) => bytes.min(most),
        };
        // A millionth of a byte that rounding lost is not worth a timer.
        let lacking = floor - self.bytes;
        if lacking > 1e-3 {
            return Some(Duration::from_secs_f64((lacking / self.rate).clamp(1e-3, 3600.0)));
        }
        self.bytes -= bytes;
        None
    }
}

impl RateLimit {
    /// Makes a limit of `rate` bytes a second for reads of this process alone. A rate of 0 is treated as 1.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a rate of 53 bits is past all links")]
        let rate = rate.max(1) as f64;
        Self::at(Place::Memory { rate, level: Mutex::new(Level { bytes: most(rate), at: None }) })
    }

    /// Opens a limit that several processes share through the file at `path`, which
    /// [`set_shared_rate`](crate::set_shared_rate) made. Changes of the rate in the file take effect at once.
    ///
    /// # Errors
    /// Errors if the file does not exist or was not made by [`set_shared_rate`](crate::set_shared_rate).
    pub fn shared(path: &Path) -> Result<Self> {
        Ok(Self::at(Place::File(SharedBucket::open(path)?)))
    }

    fn at(place: Place) -> Self {
        Self(Arc::new(Bucket {
            place,
            waiting: AtomicU32::new(0),
            background: tokio::sync::Mutex::default(),
            demand: tokio::sync::Mutex::default(),
        }))
    }

    /// Returns the current rate in bytes a second. `None` if the limit is in a file that several processes share, and
    /// that file states no rate or cannot be read: reads are then not limited.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a u64")]
        self.0.rate().map(|rate| rate as u64)
    }

    /// Waits until `bytes` may be asked for, and takes them.
    pub(crate) async fn take(&self, bytes: u64, urgency: Urgency) {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let mut left = bytes as f64;
        match urgency {
            Urgency::Demand => {
                let _waiting = Waiting::new(&self.0);
                let _turn = self.0.demand.lock().await;
                // A read may leave the bucket overdrawn by more than the bucket holds: the next one pays.
                while let Some(pause) = self.0.try_take(left, Floor::Overdrawn) {
                    sleep(pause).await;
                }
            }
            Urgency::Background => {
                let _turn = self.0.background.lock().await;
                // Little by little, so that a read larger than the bucket gets through without overdrawing it.
                while left > 0.0 {
                    let amount = self.0.rate().map_or(left, |rate| left.min(most(rate)));
                    if self.0.waiting.load(Ordering::Relaxed) > 0 {
                        sleep(YIELD).await;
                    } else if let Some(pause) = self.0.try_take(amount, Floor::Holds(amount)) {
                        sleep(pause).await;
                    } else {
                        left -= amount;
                    }
                }
            }
        }
    }

    /// Takes `bytes` for a second request if they are there, without waiting.
    pub(crate) fn try_take(&self, bytes: u64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let bytes = bytes as f64;
        self.0.try_take(bytes, Floor::Holds(bytes)).is_none()
    }
}

/// The limits of one process: a read takes from each in turn.
#[derive(Clone, Debug)]
pub(crate) struct RateLimits(Vec<RateLimit>);

impl RateLimits {
    /// The limits that are set; `None` without any.
    pub(crate) fn of(limits: [&Option<RateLimit>; 2]) -> Option<Self> {
        let limits: Vec<_> = limits.into_iter().flatten().cloned().collect();
        (!limits.is_empty()).then_some(Self(limits))
    }

    pub(crate) async fn take(&self, bytes: u64, urgency: Urgency) {
        for limit in &self.0 {
            limit.take(bytes, urgency).await;
        }
    }

    /// Takes `bytes` if each limit has them; a limit that has them loses them if a later one has not.
    pub(crate) fn try_take(&self, bytes: u64) -> bool {
        self.0.iter().all(|limit| limit.try_take(bytes))
    }
}

impl Bucket {
    fn rate(&self) -> Option<f64> {
        match &self.place {
            Place::Memory { rate, .. } => Some(*rate),
            Place::File(shared) => shared.rate(),
        }
    }

    /// Takes `bytes` if the floor allows it; otherwise returns the time until it does.
    fn try_take(&self, bytes: f64, floor: Floor) -> Option<Duration> {
        match &self.place {
            Place::Memory { rate, level } => {
                let now = Instant::now();
                // Every change of it is a single assignment.
                let mut level = level.lock();
                let passed = level.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
                let mut flow = TokenFlow { rate: *rate, bytes: level.bytes };
                let pause = flow.take(passed, bytes, floor);
                *level = Level { bytes: flow.bytes, at: Some(now) };
                pause
            }
            Place::File(shared) => shared.try_take(bytes, floor),
        }
    }
}

/// The count of a waiting demand read, which ends even when the read is cancelled.
struct Waiting<'a>(&'a Bucket);

impl<'a> Waiting<'a> {
    fn new(bucket: &'a Bucket) -> Self {
        bucket.waiting.fetch_add(1, Ordering::Relaxed);
        Self(bucket)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn background_keeps_to_the_rate() {
        let limit = RateLimit::new(1_000_000);
        let start = Instant::now();
        for _ in 0..10 {
            limit.take(500_000, Urgency::Background).await;
        }
        // 5 MB at 1 MB/s, less the quarter that was in the bucket.
        let took = start.elapsed().as_secs_f64();
        assert!((4.7..4.9).contains(&took), "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn demand_goes_before_background_and_is_limited_too() {
        let limit = RateLimit::new(1_000_000);
        let filler = limit.clone();
        let background = tokio::spawn(async move { filler.take(4_000_000, Urgency::Background).await });
        sleep(Duration::from_millis(500)).await;
        let start = Instant::now();
        limit.take(100_000, Urgency::Demand).await;
        assert!(start.elapsed() < Duration::from_millis(2), "{:?}", start.elapsed());
        for _ in 0..20 {
            limit.take(100_000, Urgency::Demand).await;
        }
        let took = start.elapsed().as_secs_f64();
        assert!((1.45..2.1).contains(&took), "{took}");
        background.await.unwrap();
        // Both together took 6.1 MB.
        let took = start.elapsed().as_secs_f64() + 0.5;
        assert!((5.7..6.2).contains(&took), "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_holds_nobody_up() {
        let limit = RateLimit::new(100_000);
        for urgency in [Urgency::Demand, Urgency::Background] {
            for _ in 0..3 {
                let taken =
                    tokio::time::timeout(Duration::from_millis(1), limit.take(200_000, urgency)).await;
                drop(taken);
            }
        }
        limit.take(1000, Urgency::Demand).await;
        limit.take(1000, Urgency::Background).await;
    }
}
