//! [`RateLimit`]: the rate that the reads of a process may take together.
//!
//! A token bucket that holds a quarter of a second of the rate. A read takes its bytes before its request is sent:
//! what a server has sent cannot be held back any more, so pacing what is received would only cap the average.
//!
//! * *Background* takes as its bytes come to lie in the bucket, in turn, and never while a demand read waits.
//! * *Demand* may overdraw the bucket by as much as it holds, so it does not wait for what background reads took: only
//!   demand reads themselves, in sum over the rate, make it wait.
//!
//! A cancelled read does not give its bytes back: the server may have sent them.

use crate::store::Urgency;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The bucket holds what flows in within this time.
const BURST: Duration = Duration::from_millis(250);

/// But never less than this, in bytes: a few groups of the hash tree.
const LEAST_BURST: f64 = 64.0 * 1024.0;

/// How often a background read looks whether demand reads are done.
const YIELD: Duration = Duration::from_millis(5);

/// A rate that reads share. Clones are the same bucket.
#[derive(Clone, Debug)]
pub struct RateLimit(Arc<Bucket>);

#[derive(Debug)]
struct Bucket {
    /// Bytes a second.
    rate: f64,
    /// Most bytes in it.
    most: f64,
    level: Mutex<Level>,
    /// One background read takes at a time, in the order in which they came; demand reads alike.
    background: tokio::sync::Mutex<()>,
    demand: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Level {
    /// Bytes in the bucket; negative where demand overdrew it.
    bytes: f64,
    /// When it was that full; none before the first use.
    at: Option<Instant>,
    /// Demand reads that wait.
    waiting: u32,
}

impl RateLimit {
    /// A limit of `rate` bytes a second, at least 1.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a rate of 53 bits is past all links")]
        let rate = rate.max(1) as f64;
        let most = (rate * BURST.as_secs_f64()).max(LEAST_BURST);
        Self(Arc::new(Bucket {
            rate,
            most,
            level: Mutex::new(Level { bytes: most, at: None, waiting: 0 }),
            background: tokio::sync::Mutex::default(),
            demand: tokio::sync::Mutex::default(),
        }))
    }

    /// Waits until `bytes` may be asked for, and takes them.
    pub(crate) async fn take(&self, bytes: u64, urgency: Urgency) {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let mut left = bytes as f64;
        match urgency {
            Urgency::Demand => {
                let _waiting = Waiting::new(&self.0);
                let _turn = self.0.demand.lock().await;
                // It may leave the bucket overdrawn by more than the bucket holds: the next one pays.
                while let Some(pause) = self.0.try_take(left, -self.0.most) {
                    sleep(pause).await;
                }
            }
            Urgency::Background => {
                let _turn = self.0.background.lock().await;
                // Piece by piece, so that a read larger than the bucket gets through without overdrawing it.
                while left > 0.0 {
                    let piece = left.min(self.0.most);
                    if self.0.level().waiting > 0 {
                        sleep(YIELD).await;
                    } else if let Some(pause) = self.0.try_take(piece, piece) {
                        sleep(pause).await;
                    } else {
                        left -= piece;
                    }
                }
            }
        }
    }

    /// Takes `bytes` for a second request if they are there, without waiting.
    pub(crate) fn try_take(&self, bytes: u64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let bytes = bytes as f64;
        self.0.try_take(bytes, bytes.min(self.0.most)).is_none()
    }
}

impl Bucket {
    fn level(&self) -> MutexGuard<'_, Level> {
        // Every change of it is a single assignment.
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` if at least `floor` are in the bucket; otherwise says how long it takes until they are.
    fn try_take(&self, bytes: f64, floor: f64) -> Option<Duration> {
        let now = Instant::now();
        let mut level = self.level();
        let passed = level.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        level.bytes = (level.bytes + passed.as_secs_f64() * self.rate).min(self.most);
        level.at = Some(now);
        // A millionth of a byte that rounding lost is not worth a timer.
        let lacking = floor - level.bytes;
        if lacking > 1e-3 {
            return Some(Duration::from_secs_f64((lacking / self.rate).clamp(1e-3, 3600.0)));
        }
        level.bytes -= bytes;
        None
    }
}

/// Counts a waiting demand read, also when it is cancelled.
struct Waiting<'a>(&'a Bucket);

impl<'a> Waiting<'a> {
    fn new(bucket: &'a Bucket) -> Self {
        bucket.level().waiting += 1;
        Self(bucket)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.level().waiting -= 1;
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
        // 5 MB at 1 MB/s, less the quarter that lay in the bucket.
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
