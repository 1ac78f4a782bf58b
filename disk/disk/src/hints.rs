//! Hints: a disk reports its first reads to a tracker, which gathers those of all disks of its image; the hints that
//! come back are preloaded if nothing better is known.
//!
//! That works for an image that was never deployed before: during its first deployment, the slower disks follow the
//! faster. Any plan that was learned from whole boots is better and takes the place of hints, for good.
//!
//! All of this uses the log that reads write ([`Accesses`](crate::accesses::Accesses)), so it is on the path of no
//! read; and nothing waits for it.

use crate::preloading::Preloader;
use crate::puller::Puller;
use crate::swarm::{BUSY, BootTracker, REPORT_INTERVAL, REPORT_INTERVAL_IDLE};
use headstart_block::exchange::{ImageKey, SliceAccess};
use headstart_block::{BLOCK_SIZE, SLICE_SIZE, saturating};
use headstart_cache::CachedBlob;
use headstart_image::image_key::key_of_blobs;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The time after which a disk that reads has booted.
const BOOT: Duration = Duration::from_secs(600);

/// The time without new reads after which a disk has booted.
const QUIET: Duration = Duration::from_secs(60);

/// The key of the image of these blobs; `None` for an image without hash trees.
pub(crate) fn image_key(blobs: &[Arc<CachedBlob>]) -> Option<ImageKey> {
    key_of_blobs(blobs.iter().map(|blob| (blob.spec().digest, blob.spec().tree)))
}

/// Reports a disk's first reads, and takes the hints that come back if `takes`, until it has booted or is gone.
pub(crate) async fn follow(
    preloader: Weak<Preloader>,
    puller: Weak<Puller>,
    mut boot: Box<dyn BootTracker>,
    takes: bool,
) {
    let mut reports = BootReports::default();
    let mut last = Instant::now();
    loop {
        {
            let (Some(puller), Some(preloader)) = (puller.upgrade(), preloader.upgrade()) else { return };
            if puller.is_closed() {
                return;
            }
            let accesses = reports.accesses(&preloader, Instant::now());
            if !accesses.is_empty() {
                last = Instant::now();
                boot.read(&accesses);
            }
            if let Some(hinted) = boot.hinted().filter(|_| takes) {
                preloader.hint(hinted, &puller);
            }
        }
        if reports.first.is_some_and(|first| first.elapsed() > BOOT || last.elapsed() > QUIET) {
            return;
        }
        tokio::time::sleep(if last.elapsed() < BUSY { REPORT_INTERVAL } else { REPORT_INTERVAL_IDLE }).await;
    }
}

/// The state of the reports.
#[derive(Default)]
struct BootReports {
    /// The number of entries of the log that were reported.
    reported: usize,
    /// The time of the disk's first read: a machine may be started long after its disk was attached.
    first: Option<Instant>,
    /// The time at which the log was last read.
    looked: Option<Instant>,
}

impl BootReports {
    /// The new entries of the log. It has no times: entries between two looks at it are taken as evenly spread, which
    /// keeps their order.
    fn accesses(&mut self, preloader: &Preloader, now: Instant) -> Vec<SliceAccess> {
        let mut slices: Vec<u32> = Vec::new();
        preloader.accesses().since(&mut self.reported, &mut |access| {
            let first = access.block.saturating_mul(BLOCK_SIZE / SLICE_SIZE);
            let numbers = (0..u32::BITS).filter(|bit| access.slices >> bit & 1 == 1);
            let known = numbers.filter_map(|bit| u32::try_from(first.saturating_add(u64::from(bit))).ok());
            slices.extend(known);
        });
        let looked = self.looked.replace(now).unwrap_or(now);
        if slices.is_empty() {
            return Vec::new();
        }
        let first = *self.first.get_or_insert(looked);
        let ms = |at: Instant| saturating::<u64>((at - first).as_millis());
        let (from, to, count) = (ms(looked), ms(now), slices.len() as u64);
        let at = |n: u64| saturating(from + (to - from) * n / count);
        (1..).zip(slices).map(|(n, slice)| SliceAccess { slice, at_ms: at(n) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ByteRange;
    use headstart_pull::Plan;

    #[test]
    fn accesses_have_the_order_in_which_they_were() {
        let preloader = Preloader::new(64 * BLOCK_SIZE, &Plan::Lazy, false);
        let read = |slice: u64| {
            preloader.accesses().note(ByteRange::between(slice * SLICE_SIZE, slice * SLICE_SIZE + 1));
        };
        let attached = Instant::now();
        let (mut reports, later) = (BootReports::default(), |ms| attached + Duration::from_millis(ms));
        assert_eq!(reports.accesses(&preloader, later(0)), []);
        // Times are counted from the first read on, not from when it was attached.
        assert_eq!(reports.accesses(&preloader, later(5000)), []);
        [70, 3, 32, 3].into_iter().for_each(read);
        let access = |slice, at_ms| SliceAccess { slice, at_ms };
        let accesses = reports.accesses(&preloader, later(5060));
        assert_eq!(accesses, [access(70, 20), access(3, 40), access(32, 60)]);
        [3, 4].into_iter().for_each(read);
        assert_eq!(reports.accesses(&preloader, later(5160)), [access(4, 160)]);
    }
}
