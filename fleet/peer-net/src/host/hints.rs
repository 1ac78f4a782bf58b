//! Hints: the first reads of an image's disks on all hosts, counted by a tracker, and returned as a plan.
//!
//! An agent gathers the reads of its disks ([`Hints`]) and reports them to a tracker, a host of the swarm that counts
//! them ([`Tracker`]). Each answer names the reads of many disks. If there are several trackers, all hosts that see the
//! same trackers agree on one for each image; if that one goes, another begins to count, and the received hints stay.
//!
//! # Access
//!
//! An image goes by a number that only those hosts know that have read its manifest (`headstart_disk` makes it of the
//! roots of all its hash trees, which are never sent). It is sent only over encrypted connections to trackers, which
//! pass it on to no host. So a host that names it has proved that it may read the image, although a tracker need not
//! know which image it is. A tracker's answer is used only by a disk's engine, which fetches the named blocks while it
//! has nothing better to do, verified like all bytes, and stops if that does no good.
//!
//! # Bounds
//!
//! Images and slices are bounded on both sides, and on a tracker for each reporting host; reports and answers, by a
//! frame's length; queued reports and answers, of which the oldest are dropped first: these are statistics.

mod counting;

pub(crate) use counting::Counting;
pub use counting::{CountedImage, read_counts};

use crate::frame::{self, FrameKind};
use crate::host::Host;
use crate::host::link::Link;
use headstart_block::{Plan, Result};
use headstart_disk::swarm::Hinted;
use headstart_swarm::hints::Hints;
use headstart_swarm::tracker::{HintAnswer, HintReport, ImageKey, SliceAccess};
use headstart_swarm::{PeerKey, Time};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The shortest interval between two reports of an image.
const EVERY: Duration = Duration::from_millis(100);

/// The shortest pause between two checks whether a report is due.
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// The pause between checks while there is no tracker.
const NO_TRACKER: Duration = Duration::from_secs(1);

/// The interval at which the counts are saved.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// Images that are gathered, or whose hints are kept for the next disk.
const IMAGES_MAX: usize = 1024;

/// Items of a plan that is given to a disk: more than a boot reads.
const ITEMS_MAX: usize = 1 << 15;

/// Counters of hints: the messages by which hosts learn from a tracker what other disks of an image read
/// while they boot. A slice is 64 KiB of a disk. Each counter starts at zero when the agent starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HintCounters {
    /// Slices that disks of this host have read for the first time; each disk counts on its own.
    pub reads: u64,
    /// First reads (see `reads`) of slices that a hint had named before the read.
    pub foreseen: u64,
    /// Hints received from trackers. A slice counts again each time that an answer repeats it.
    pub hints: u64,
    /// First reads (see `reads`) that no report contains, because the next report was full.
    pub dropped: u64,
    /// Reports that this host has sent to trackers.
    pub reports: u64,
    /// Reports that this host has received as a tracker; 0 if it is no tracker.
    pub tracked_reports: u64,
    /// Images for which this host has counts as a tracker, at present; 0 if it is no tracker.
    pub tracked_images: u64,
}

/// This host's side of hints.
pub(crate) struct HintsSide {
    images: Mutex<Images>,
    /// The counts, if this host is a tracker.
    pub(crate) counting: Option<Counting>,
    /// Wakes the reporter after a disk has read, or there is another disk.
    wake: Notify,
    reports: AtomicU64,
}

#[derive(Default)]
struct Images {
    by_key: HashMap<ImageKey, Image>,
    /// Counts uses, to find the least recently used image.
    clock: u64,
    /// The counts of images that are forgotten.
    before: HintCounters,
}

struct Image {
    hints: Hints,
    plan: watch::Sender<Hinted>,
    disks: usize,
    used: u64,
}

impl HintsSide {
    pub(crate) fn new(counting: Option<Counting>) -> Self {
        Self { images: Mutex::default(), counting, wake: Notify::new(), reports: AtomicU64::new(0) }
    }

    fn images(&self) -> MutexGuard<'_, Images> {
        self.images.lock()
    }

    fn wake(&self) {
        self.wake.notify_one();
    }

    fn due(&self) -> Option<Time> {
        self.images().by_key.values().filter_map(|image| image.hints.due()).min()
    }

    fn take_due(&self, now: Time) -> Vec<HintReport> {
        self.images().by_key.values_mut().filter_map(|image| image.hints.report(now)).collect()
    }

    fn on_answer(&self, answer: &HintAnswer) {
        if let Some(image) = self.images().by_key.get_mut(&answer.image)
            && image.hints.on_answer(answer)
        {
            image.plan.send_replace(hinted(&image.hints));
        }
    }

    pub(crate) fn counters(&self) -> HintCounters {
        let images = self.images();
        let mut all = images.before;
        images.by_key.values().for_each(|image| all.add(&image.hints));
        drop(images);
        all.reports = self.reports.load(Ordering::Relaxed);
        if let Some(counting) = &self.counting {
            (all.tracked_reports, all.tracked_images) = counting.counts();
        }
        all
    }
}

impl HintCounters {
    fn add(&mut self, hints: &Hints) {
        let tally = hints.tally();
        self.reads += tally.reads;
        self.foreseen += tally.foreseen;
        self.hints += tally.hints;
        self.dropped += tally.dropped;
    }
}

fn hinted(hints: &Hints) -> Hinted {
    let mut items = match hints.plan() {
        Plan::List(items) => items.to_vec(),
        Plan::Lazy | Plan::Sequential => Vec::new(),
    };
    items.truncate(ITEMS_MAX);
    Hinted { items, disks: hints.disks() }
}

impl Images {
    /// Removes the least recently used image without disks, if there is one and room is needed.
    fn make_room(&mut self) {
        if self.by_key.len() < IMAGES_MAX {
            return;
        }
        let unused = self.by_key.iter().filter(|(_, image)| image.disks == 0);
        let oldest = unused.min_by_key(|(_, image)| image.used).map(|(key, _)| *key);
        if let Some(image) = oldest.and_then(|key| self.by_key.remove(&key)) {
            self.before.add(&image.hints);
        }
    }
}

/// A disk that is booting. While this value lives, the reads that are passed to [`Boots::read`] are reported to the
/// tracker, and the tracker's hints come in by [`Boots::plan`].
pub struct Boots {
    host: Arc<Host>,
    image: ImageKey,
}

impl Boots {
    /// A disk of an image begins to boot; `is_new` if it was not counted before. `None` if there are too many images.
    pub(crate) fn new(host: &Arc<Host>, image: ImageKey, is_new: bool) -> Option<Self> {
        let mut images = host.hints.images();
        if !images.by_key.contains_key(&image) {
            images.make_room();
            if images.by_key.len() >= IMAGES_MAX {
                return None;
            }
        }
        images.clock += 1;
        let used = images.clock;
        let entry = images.by_key.entry(image).or_insert_with(|| Image {
            hints: Hints::new(image, EVERY),
            plan: watch::Sender::default(),
            disks: 0,
            used,
        });
        (entry.disks, entry.used) = (entry.disks + 1, used);
        if is_new {
            entry.hints.joined();
        } else {
            entry.hints.rejoined();
        }
        drop(images);
        host.hints.wake();
        Some(Self { host: Arc::clone(host), image })
    }

    /// Records slices that the disk has read for the first time, for the next report to the tracker. A report has room
    /// for 4096 first reads of all disks of the image on this host. Further ones are dropped: no later report contains
    /// them.
    pub fn read(&self, accesses: &[SliceAccess]) {
        if let Some(image) = self.host.hints.images().by_key.get_mut(&self.image) {
            for access in accesses {
                image.hints.read(access.slice, Duration::from_millis(access.at_ms.into()));
            }
        }
        self.host.hints.wake();
    }

    /// Returns a receiver of the list of slices to preload, according to the hints so far. Its value changes
    /// when new hints arrive.
    pub fn plan(&self) -> watch::Receiver<Hinted> {
        let images = self.host.hints.images();
        let plan = images.by_key.get(&self.image).map(|image| image.plan.subscribe());
        // While this value lives, the image is there.
        plan.unwrap_or_else(|| watch::Sender::default().subscribe())
    }
}

impl Drop for Boots {
    fn drop(&mut self) {
        if let Some(image) = self.host.hints.images().by_key.get_mut(&self.image) {
            image.disks = image.disks.saturating_sub(1);
            image.hints.booted();
        }
    }
}

/// Reports the reads of disks and saves the counts, until the swarm ends.
pub(crate) async fn keep_going(host: Arc<Host>, mut stopping: watch::Receiver<bool>) {
    tokio::select! {
        () = report(&host) => {}
        () = keep_counts(&host) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    save(&host).await;
}

async fn keep_counts(host: &Arc<Host>) {
    loop {
        tokio::time::sleep(SAVE_EVERY).await;
        save(host).await;
    }
}

async fn save(host: &Arc<Host>) {
    let host = Arc::clone(host);
    let saved = tokio::task::spawn_blocking(move || {
        if let Some(counting) = &host.hints.counting {
            counting.save();
        }
    });
    // A save that panics costs only statistics.
    let _ = saved.await;
}

/// Reports whenever a report is due.
async fn report(host: &Arc<Host>) {
    loop {
        let (now, due) = (host.now(), host.hints.due());
        let pause = due.map(|due| due.since(now).max(LEAST_PAUSE));
        let woken = host.hints.wake.notified();
        match pause {
            // The event that wakes it may have made a report due: the loop checks again.
            Some(pause) => _ = tokio::time::timeout(pause, woken).await,
            None => woken.await,
        }
        let now = host.now();
        if host.hints.due().is_none_or(|due| due > now) {
            continue;
        }
        let trackers = host.trackers();
        if trackers.is_empty() {
            tokio::time::sleep(NO_TRACKER).await;
            continue;
        }
        for report in host.hints.take_due(now) {
            send(host, &trackers, &report);
        }
    }
}

/// Sends a report to the image's tracker: the one with the greatest hash of both.
fn send(host: &Arc<Host>, trackers: &[(PeerKey, Option<Arc<Link>>)], report: &HintReport) {
    let drawn = |key: PeerKey| {
        let mixed = (key.0 ^ report.image.0.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    };
    let Some((key, link)) = trackers.iter().max_by_key(|(key, _)| drawn(*key)) else { return };
    host.hints.reports.fetch_add(1, Ordering::Relaxed);
    match (link, &host.hints.counting) {
        (Some(link), _) => link.outbox.statistics(FrameKind::Report, report),
        (None, Some(counting)) => host.hints.on_answer(&counting.report(*key, report)),
        (None, None) => {}
    }
}

impl Host {
    /// Handles a report of another host; answers it if this one counts.
    pub(crate) fn reported(&self, link: &Link, body: &[u8]) -> Result<()> {
        let report = frame::decode_report(body)?;
        if let Some(counting) = &self.hints.counting {
            link.outbox.statistics(FrameKind::Hints, &counting.report(link.key, &report));
        }
        Ok(())
    }

    /// Handles a tracker's answer.
    pub(crate) fn hinted(&self, link: &Link, body: &[u8]) -> Result<()> {
        let answer = frame::decode_answer(body)?;
        if link.is_tracker {
            self.hints.on_answer(&answer);
        }
        Ok(())
    }
}
