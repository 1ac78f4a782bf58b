//! Reports to a swarm: the reads of a disk, and whether the disk follows a plan.

use crate::blobs::Blobs;
use crate::preloading::Preloader;
use crate::puller::Puller;
use crate::sharing::whole_chunks;
use crate::swarm::{BUSY, REPORT_INTERVAL, REPORT_INTERVAL_IDLE, SwarmClient};
use headstart_block::{BLOCK_SIZE, ByteRange, ReadAt, SLICE_SIZE};
use headstart_pull::{BlobView, Plan};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The number of reads of absent bytes that are looked at again; more are forgotten.
const PENDING_MAX: usize = 4096;

/// Reports a disk's reads to the swarm, and whether it follows a plan, until the disk is gone.
pub(crate) async fn report(preloader: Weak<Preloader>, puller: Weak<Puller>, swarm: Arc<dyn SwarmClient>) {
    let Some(blobs) = puller.upgrade().map(|puller| Arc::clone(puller.blobs())) else { return };
    let mut reports =
        SwarmReports { swarm, blobs, reported: 0, pending: Vec::new(), planned: false, passed: 0 };
    let mut last = Instant::now();
    loop {
        {
            let (Some(puller), Some(preloader)) = (puller.upgrade(), preloader.upgrade()) else { return };
            if puller.is_closed() {
                return;
            }
            if reports.report_reads(&preloader) | reports.report_plan(&puller) {
                last = Instant::now();
            }
        }
        tokio::time::sleep(if last.elapsed() < BUSY { REPORT_INTERVAL } else { REPORT_INTERVAL_IDLE }).await;
    }
}

/// The state of the reports to the swarm.
struct SwarmReports {
    swarm: Arc<dyn SwarmClient>,
    blobs: Arc<Blobs>,
    /// The number of entries of the log of accesses that were reported.
    reported: usize,
    /// Reads whose bytes were not local when they were last looked at: a place in the blobs, and a range.
    pending: Vec<(usize, ByteRange)>,
    planned: bool,
    /// The number of items that were passed of the plan that ended last.
    passed: u64,
}

impl Drop for SwarmReports {
    fn drop(&mut self) {
        if self.planned {
            self.report_planned(false);
        }
    }
}

impl SwarmReports {
    /// Reports new reads; `true` if there were any.
    fn report_reads(&mut self, preloader: &Preloader) -> bool {
        let blobs = &self.blobs;
        let mut reads = std::mem::take(&mut self.pending);
        preloader.accesses().since(&mut self.reported, &mut |access| {
            each_run(access.block, access.slices, &mut |part| {
                let part = part.intersect(ByteRange::between(0, blobs.disk_size()));
                blobs.ranges(part, &mut |found| {
                    let place = found.blob.0 as usize;
                    let Some(blob) = blobs.data().get(place).filter(|blob| blob.tree().is_some()) else {
                        return;
                    };
                    reads.push((place, whole_chunks(found.range, blob.len())));
                });
            });
        });
        let any = !reads.is_empty();
        for (place, range) in merged(reads) {
            let Some(blob) = self.blobs.data().get(place) else { continue };
            if blob.is_local(range) {
                self.swarm.read(&blob.spec().digest, range);
            } else {
                self.pending.push((place, range));
            }
        }
        self.pending.truncate(PENDING_MAX);
        any
    }

    /// Reports whether a plan is followed, if that changed; `true` if one is.
    fn report_plan(&mut self, puller: &Puller) -> bool {
        let preloading = puller.preloading();
        let more = match &preloading.plan {
            Plan::Lazy => false,
            Plan::Sequential => preloading.items < self.blobs.disk_size().div_ceil(BLOCK_SIZE),
            Plan::List(items) => preloading.items < items.len() as u64,
        };
        // A long range is passed when it is requested. Bytes that reads bring along later belong to no plan.
        let last = || preloading.items > 0 && self.passed != preloading.items && puller.is_preloading();
        let running = more || last();
        if !running {
            self.passed = preloading.items;
        }
        if running != self.planned {
            self.planned = running;
            self.report_planned(running);
        }
        running
    }

    fn report_planned(&self, running: bool) {
        for blob in self.blobs.data().iter().filter(|blob| blob.tree().is_some()) {
            self.swarm.planned(&blob.spec().digest, running);
        }
    }
}

/// Names the runs of slices of a block, as bytes of the disk.
fn each_run(block: u64, slices: u32, each: &mut dyn FnMut(ByteRange)) {
    let mut slices = u64::from(slices);
    let mut at = block.saturating_mul(BLOCK_SIZE);
    while slices != 0 {
        let skipped = slices.trailing_zeros();
        slices >>= skipped;
        let run = slices.trailing_ones();
        slices >>= run;
        let start = at.saturating_add(u64::from(skipped) * SLICE_SIZE);
        at = start.saturating_add(u64::from(run) * SLICE_SIZE);
        each(ByteRange::between(start, at));
    }
}

/// The same ranges, each byte once.
fn merged(mut ranges: Vec<(usize, ByteRange)>) -> Vec<(usize, ByteRange)> {
    ranges.sort_unstable_by_key(|(place, range)| (*place, range.offset()));
    ranges.dedup_by(|next, last| {
        let joins = next.0 == last.0 && next.1.offset() <= last.1.end();
        if joins {
            last.1 = ByteRange::between(last.1.offset(), last.1.end().max(next.1.end()));
        }
        joins
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::between(start, end)
    }

    #[test]
    fn runs_of_slices_are_bytes_of_the_disk() {
        let runs = |slices| {
            let mut runs = Vec::new();
            each_run(1, slices, &mut |run| {
                runs.push(((run.offset() - BLOCK_SIZE) / SLICE_SIZE, (run.end() - BLOCK_SIZE) / SLICE_SIZE));
            });
            runs
        };
        assert_eq!(runs(0), []);
        assert_eq!(runs(u32::MAX), [(0, 32)]);
        assert_eq!(runs(0b1011_0000), [(4, 6), (7, 8)]);
        assert_eq!(runs(1 << 31 | 1), [(0, 1), (31, 32)]);
    }

    #[test]
    fn ranges_merge_within_a_blob() {
        let ranges =
            vec![(1, range(0, 4)), (0, range(4, 6)), (0, range(0, 4)), (0, range(8, 9)), (0, range(1, 2))];
        assert_eq!(merged(ranges), [(0, range(0, 6)), (0, range(8, 9)), (1, range(0, 4))]);
    }
}
