//! Preloading by learned plans: takes the plans that are found for a disk, and follows them while it boots.
//!
//! # Sources of plans
//!
//! The caller of an attach gives a [`PlanSource`], which searches for plans, in several places, while the disk is being
//! attached. The first plan that is found is followed at once. A better plan ([`Origin`]) that is found later replaces
//! it; the new plan's [`Pilot`] is then given the reads so far. If no plan is found, bytes are fetched only when they
//! are read. The failure of a place is logged once and counted. Neither such a failure nor a bad plan can fail an
//! attach or a read.
//!
//! # Following
//!
//! Reads write the slices that they touch into [`Accesses`]. Every [`TICK`] (later every second), a task gives the
//! pilot the new slices, the pull engine's estimate of the link, and its position in the plan. If the pilot chooses
//! another plan, the task gives that plan to the engine. The reads themselves do hardly any work for this: each loads
//! one word from memory, and a read that is the first to touch a slice also writes three words.
//!
//! # The link
//!
//! The best plan depends on the bandwidth, which a disk does not know before its first fetches. So a host keeps the
//! last estimate for each store (`known_links`).

use crate::accesses::Accesses;
use crate::known_links::KnownLinks;
use crate::puller::Puller;
use crate::swarm::Hinted;
use headstart_block::{BLOCK_SIZE, ByteRange, ByteRate, Digest, Error, SLICE_SIZE};
use headstart_image::manifest::Manifest;
use headstart_lsmt::Stack;
use headstart_preload::plans::{in_whole_blocks, of_items};
use headstart_preload::{ImagePlans, Origin, Pilot, PilotReport, PlanCandidate, Preloaded, Switches};
use headstart_pull::{BlobView, Plan};
use headstart_store::Store;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

/// The interval at which new reads are reported to the pilot, which chooses the plan. Ten minutes after the first read,
/// the interval becomes one second, once the search for plans is over.
pub const TICK: Duration = Duration::from_millis(50);

/// The interval once the first minutes of reading are over, when hardly any read is new.
const SLOW_TICK: Duration = Duration::from_secs(1);

/// The length of these first minutes.
const BOOT: Duration = Duration::from_secs(600);

/// The interval at which the bandwidth is remembered, if it changed.
const REMEMBER: Duration = Duration::from_secs(1);

/// The image and disk for which preload plans are searched.
pub struct PlanQuery {
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The image's manifest.
    pub manifest: Manifest,
    /// The store that has the image.
    pub store: Arc<dyn Store>,
    /// The layers and the size of the disk, once it is open.
    opened: watch::Receiver<Option<OpenedDisk>>,
}

/// The layers and the size of a disk that is open.
#[derive(Clone)]
pub struct OpenedDisk {
    /// The merged layers of the image.
    pub stack: Arc<Stack>,
    /// The size of the disk in bytes: the image's, or more if the disk is writable.
    pub size: u64,
}

impl PlanQuery {
    /// The digest under which boots of the image are recorded; see [`Manifest::known_as`].
    #[must_use]
    pub fn image(&self) -> Digest {
        self.manifest.known_as(self.digest)
    }

    /// Waits until the disk is open, and returns its layers and size. Returns `None` if opening the disk failed or was
    /// abandoned.
    pub async fn opened(&self) -> Option<OpenedDisk> {
        let mut opened = self.opened.clone();
        opened.wait_for(Option::is_some).await.ok()?.clone()
    }
}

/// The result of searching one location for plans.
#[derive(Debug)]
pub struct PlanFinding {
    /// A phrase for messages that names the location.
    pub place: &'static str,
    /// The plans that were found; `None` if there are none for this disk.
    pub candidate: Option<PlanCandidate>,
    /// The errors of reading the location, and of plans there that cannot be used.
    pub failures: Vec<Error>,
}

/// A search for preload plans, in one or several locations.
pub trait PlanSource: Send + Sync {
    /// Starts a search for plans of a disk on `runtime`, and returns the receiver of the results. Each location's
    /// result is sent when it is known. Dropping the receiver ends the search.
    fn look(&self, query: Arc<PlanQuery>, runtime: &Handle) -> Receiver<PlanFinding>;
}

/// The driver of one disk's preloading: reports the disk's reads to the pilot and gives the pull engine the
/// plan that the pilot chooses.
pub struct Preloader {
    accesses: Accesses,
    /// `true` if plans name whole blocks, whatever their items are.
    whole_blocks: bool,
    state: Mutex<State>,
    failures: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The pilot, which decides; `None` if nothing was found, and for plans that are no lists.
    pilot: Option<Pilot>,
    followed: Option<(Origin, String)>,
    /// The number of entries of the log of accesses that the pilot knows.
    seen_accesses: usize,
    /// The plan that is preloaded.
    plan: Plan,
    /// The report of plans that others have replaced.
    before: PilotReport,
    /// `true` if the end of preloading was logged.
    stopped: bool,
    /// The entrypoint of the container that has started on the disk.
    entrypoint: Option<String>,
}

/// The lookup that is under way, since before the disk was open.
pub(crate) struct Lookup {
    /// `None` once all findings have come.
    findings: Option<Receiver<PlanFinding>>,
    opened: watch::Sender<Option<OpenedDisk>>,
}

impl Lookup {
    /// Starts the lookup in `source`; without one, nothing is found.
    pub(crate) fn start(
        source: Option<&dyn PlanSource>,
        digest: &Digest,
        manifest: &Manifest,
        store: &Arc<dyn Store>,
        runtime: &Handle,
    ) -> Self {
        let (opened, opening) = watch::channel(None);
        let findings = source.map(|source| {
            let (digest, manifest, store) = (*digest, manifest.clone(), Arc::clone(store));
            source.look(Arc::new(PlanQuery { digest, manifest, store, opened: opening }), runtime)
        });
        Self { findings, opened }
    }

    /// Notes that the disk is open.
    pub(crate) fn opened(&self, stack: Arc<Stack>, size: u64) {
        self.opened.send_replace(Some(OpenedDisk { stack, size }));
    }

    fn is_over(&self) -> bool {
        self.findings.is_none()
    }

    /// The next finding; never returns if there is none.
    async fn next(&mut self) -> PlanFinding {
        if let Some(findings) = &mut self.findings
            && let Some(finding) = findings.recv().await
        {
            return finding;
        }
        self.findings = None;
        std::future::pending().await
    }
}

/// The things that finding and following plans needs.
pub(crate) struct Driving {
    pub(crate) puller: Arc<Puller>,
    pub(crate) links: KnownLinks,
    /// The name under which the link is known.
    pub(crate) store: String,
    /// The image's name, for messages.
    pub(crate) image: String,
    pub(crate) lookup: Lookup,
}

impl Preloader {
    /// The preloading of a disk of `disk_size` bytes, by the plan that the caller gave.
    pub(crate) fn new(disk_size: u64, given: &Plan, whole_blocks: bool) -> Arc<Self> {
        let state = State { plan: given.clone(), ..State::default() };
        let preloader = Self {
            accesses: Accesses::new(disk_size),
            whole_blocks,
            state: Mutex::new(state),
            failures: AtomicU64::new(0),
        };
        if let Plan::List(items) = given {
            let plans = preloader.shaped(Arc::new(of_items(items)));
            let pilot = Pilot::new(plans, None);
            let mut state = preloader.state();
            state.plan = pilot.plan();
            state.pilot = Some(pilot);
        }
        if *given != Plan::Lazy {
            preloader.state().followed = Some((Origin::Given, String::new()));
        }
        Arc::new(preloader)
    }

    /// The plan that is preloaded now.
    pub(crate) fn plan(&self) -> Plan {
        self.state().plan.clone()
    }

    /// `true` if all of a part of the disk is in the plan that is followed now.
    pub(crate) fn has_planned(&self, part: ByteRange) -> bool {
        let items = match self.plan() {
            Plan::Lazy => return false,
            Plan::Sequential => return true,
            Plan::List(items) => items,
        };
        let mut wanted: HashMap<u64, u32> = HashMap::new();
        for slice in part.offset() / SLICE_SIZE..part.end().div_ceil(SLICE_SIZE) {
            let (block, slice) = (slice / (BLOCK_SIZE / SLICE_SIZE), slice % (BLOCK_SIZE / SLICE_SIZE));
            *wanted.entry(block).or_default() |= 1 << slice;
        }
        for item in &*items {
            if let Some(slices) = wanted.get_mut(&item.block) {
                *slices &= !item.mask;
            }
        }
        wanted.values().all(|slices| *slices == 0)
    }

    /// The log of first reads.
    pub(crate) fn accesses(&self) -> &Accesses {
        &self.accesses
    }

    /// The results of preloading so far.
    #[must_use]
    pub fn preloaded(&self) -> Preloaded {
        let state = self.state();
        let now = state.pilot.as_ref().map(Pilot::report).unwrap_or_default();
        let (origin, why) = state
            .followed
            .as_ref()
            .map_or((None, String::new()), |(origin, why)| (Some(*origin), why.clone()));
        let report = sum(state.before, now);
        Preloaded { origin, why, report, failures: self.failures.load(Ordering::Relaxed) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn shaped(&self, plans: Arc<ImagePlans>) -> Arc<ImagePlans> {
        if self.whole_blocks { Arc::new(in_whole_blocks(Arc::unwrap_or_clone(plans))) } else { plans }
    }

    /// Follows plans that were found, if they are better than the present ones; `true` if they are.
    fn adopt(&self, found: PlanCandidate, bandwidth: Option<u64>, puller: &Arc<Puller>) -> bool {
        let mut state = self.state();
        // Hints grow.
        let is_more = |origin: Origin| origin == Origin::Hints && found.origin == Origin::Hints;
        let better =
            state.followed.as_ref().is_none_or(|(origin, _)| found.origin < *origin || is_more(*origin));
        let empty =
            found.plans.groups.iter().all(|group| group.plans.iter().all(|plan| plan.items.is_empty()));
        if !better || empty {
            return false;
        }
        let plans = self.shaped(found.plans);
        if let Some(last) = state.pilot.take() {
            state.before = sum(state.before, last.report());
        }
        let mut pilot = Pilot::new(plans, bandwidth);
        if let Some(entrypoint) = &state.entrypoint {
            let _ = pilot.on_container(entrypoint);
        }
        let (now, mut seen_accesses) = (puller.now(), 0);
        self.accesses.since(&mut seen_accesses, &mut |access| {
            let _ = pilot.on_access(now, access.block, access.slices);
        });
        state.seen_accesses = seen_accesses;
        state.followed = Some((found.origin, found.why));
        state.plan = pilot.plan();
        state.pilot = Some(pilot);
        puller.set_plan(state.plan.clone());
        true
    }

    /// Notes that a container with this entrypoint starts on the disk: from now on the plan of such starts is followed,
    /// if there is one.
    pub fn container_started(&self, entrypoint: &str, puller: &Arc<Puller>) {
        let mut state = self.state();
        state.entrypoint = Some(entrypoint.to_owned());
        if let Some(plan) = state.pilot.as_mut().and_then(|pilot| pilot.on_container(entrypoint)) {
            tracing::info!(entrypoint, "a container starts: the plan of its entrypoint is followed");
            state.plan = plan.clone();
            puller.set_plan(plan);
        }
    }

    /// Follows hints if there is nothing better, and as long as following them did good. Items beyond the disk are left
    /// out.
    pub(crate) fn hint(&self, hinted: Hinted, puller: &Arc<Puller>) {
        if self.preloaded().report.stopped.is_some() {
            return;
        }
        let blocks = puller.blobs().disk_size().div_ceil(BLOCK_SIZE);
        let items: Vec<_> = hinted.items.into_iter().filter(|item| item.block < blocks).collect();
        let why = match hinted.disks {
            1 => "what 1 disk of this image read".to_owned(),
            disks => format!("what {disks} disks of this image read"),
        };
        let found = PlanCandidate { origin: Origin::Hints, plans: Arc::new(of_items(&items)), why };
        let is_first = self.state().followed.is_none();
        if self.adopt(found, puller.estimate().bandwidth, puller) && is_first {
            tracing::info!(
                disks = hinted.disks,
                "preloading the blocks that disks of this image read on other hosts"
            );
        }
    }

    /// Passes the reads and the engine's progress to the pilot, and its decisions to the engine.
    fn step(&self, puller: &Arc<Puller>, image: &str) {
        let mut state = self.state();
        let State { pilot: Some(pilot), seen_accesses, plan: followed, stopped: was_logged, .. } =
            &mut *state
        else {
            return;
        };
        let mut follow = |plan: Plan| {
            puller.set_plan(plan.clone());
            *followed = plan;
        };
        let before = pilot.report().switches;
        let now = puller.now();
        let mut plan = None;
        self.accesses.since(seen_accesses, &mut |access| {
            plan = pilot.on_access(now, access.block, access.slices).or(plan.take());
        });
        if let Some(plan) = plan {
            follow(plan);
        }
        let preloading = puller.preloading();
        let plan = pilot.on_tick(now, &preloading);
        let PilotReport { switches, stopped, .. } = pilot.report();
        if switches.groups > before.groups {
            tracing::info!(image, "the disk reads like another group of boots: another plan");
        }
        if switches.bins > before.bins {
            let rate = preloading.estimate.bandwidth.unwrap_or_default();
            tracing::info!(image, "the link gives {} now: another plan", ByteRate(rate));
        }
        if let Some(plan) = plan {
            follow(plan);
        }
        if let Some(stopped) = stopped.filter(|_| !*was_logged) {
            *was_logged = true;
            tracing::warn!(image, "preloading was stopped, for it does harm: {stopped}");
        }
    }

    /// Handles the result of a search.
    fn found(
        &self,
        PlanFinding { place, candidate, failures }: PlanFinding,
        bandwidth: Option<u64>,
        puller: &Arc<Puller>,
        image: &str,
    ) {
        for error in failures {
            self.failures.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(image, %error, "{place} cannot be used; the disk is served without it");
        }
        let Some(found) = candidate else { return };
        let (origin, why) = (found.origin, found.why.clone());
        if self.adopt(found, bandwidth, puller) {
            let link = bandwidth.map_or_else(
                || "at a bandwidth that is not known yet".to_owned(),
                |rate| format!("at {}", ByteRate(rate)),
            );
            tracing::info!(image, %origin, "preloading as planned from {why}, {link}");
        }
    }
}

/// The part of a disk that a driver's task holds.
struct Driven {
    puller: Weak<Puller>,
    links: KnownLinks,
    store: String,
    image: String,
}

/// Looks for plans and follows them, until the disk is gone.
pub(crate) async fn drive(preloader: Arc<Preloader>, driving: Driving) {
    let Driving { puller, links, store, image, mut lookup } = driving;
    let driven = Driven { puller: Arc::downgrade(&puller), links, store, image };
    drop(puller);
    let known = driven.recall().await;
    let mut remembered = known;
    let (mut first, mut saved) = (None, Instant::now());
    let mut ticks = ticks(TICK);
    loop {
        let finding = tokio::select! {
            finding = lookup.next() => Some(finding),
            _ = ticks.tick() => None,
        };
        let Some(puller) = driven.puller.upgrade().filter(|puller| !puller.is_closed()) else { return };
        let estimate = puller.estimate().bandwidth;
        if let Some(finding) = finding {
            preloader.found(finding, estimate.or(known), &puller, &driven.image);
        }
        preloader.step(&puller, &driven.image);
        if saved.elapsed() >= REMEMBER {
            saved = Instant::now();
            driven.remember(estimate, &mut remembered);
        }
        if first.is_none() && preloader.accesses().are_any() {
            first = Some(Instant::now());
        }
        let is_booted = first.is_some_and(|first: Instant| first.elapsed() > BOOT);
        if ticks.period() == TICK && is_booted && lookup.is_over() {
            ticks = self::ticks(SLOW_TICK);
        }
    }
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Driven {
    /// Keeps the estimate for the next disk, if it differs from the one before by an eighth.
    fn remember(&self, estimate: Option<u64>, remembered: &mut Option<u64>) {
        let Some(bandwidth) = estimate else { return };
        if remembered.is_some_and(|before| before.abs_diff(bandwidth) < before / 8) {
            return;
        }
        *remembered = Some(bandwidth);
        let (links, store) = (self.links.clone(), self.store.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = links.remember(&store, bandwidth) {
                tracing::debug!(%error, "the bandwidth is not remembered");
            }
        });
    }

    /// The estimate that was last kept. The directory's disk may be slow: waiting for it must not hold up fetches.
    async fn recall(&self) -> Option<u64> {
        let (links, store) = (self.links.clone(), self.store.clone());
        tokio::task::spawn_blocking(move || links.recall(&store)).await.ok().flatten()
    }
}

/// The report of the last pilot, with the switches of those before it. Bytes are its own alone: it counts bytes that
/// others brought before when it comes to them.
fn sum(before: PilotReport, now: PilotReport) -> PilotReport {
    let switches = Switches {
        groups: before.switches.groups.saturating_add(now.switches.groups),
        bins: before.switches.bins.saturating_add(now.switches.bins),
    };
    PilotReport { switches, ..now }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::PlanItem;

    #[test]
    fn a_part_is_planned_where_all_its_slices_are() {
        let given = |plan: &Plan| Preloader::new(64 * BLOCK_SIZE, plan, false);
        let items = [(0, 1 << 31), (1, 0b11), (1, 0b100)].map(|(block, mask)| PlanItem { block, mask });
        let plan = Plan::List(Arc::from(items));
        let preloader = given(&plan);
        let planned = |from: u64, to: u64| {
            let at = |slice: u64| BLOCK_SIZE - SLICE_SIZE + slice * SLICE_SIZE;
            preloader.has_planned(ByteRange::between(at(from), at(to)))
        };
        assert!(planned(0, 4) && planned(1, 2) && !planned(0, 5) && !planned(4, 5));
        assert_eq!(preloader.preloaded().origin, Some(Origin::Given));
        let all = ByteRange::between(0, BLOCK_SIZE);
        assert!(given(&Plan::Sequential).has_planned(all) && !given(&Plan::Lazy).has_planned(all));
    }
}
