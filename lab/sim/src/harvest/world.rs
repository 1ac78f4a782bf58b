//! The event loop: the product's broker and predictors, a fleet that uses and frees storage, harvest VMs that come and
//! go, all in steps of three minutes.
//!
//! Operations that take time on real flash take virtual time here: to erase a gSSD takes 4.2 ms for each block, on all
//! its channels at the same time; data is moved at 70 MB/s for each channel. In each step this happens, in this order:
//!
//! 1. unsold storage appears and is sold;
//! 2. harvest VMs leave;
//! 3. work that is finished by the beginning of the step is reported to the broker;
//! 4. every home (lender) is sampled and forecast;
//! 5. harvest VMs come and request storage;
//! 6. homes that need more than their free storage take lent storage back;
//! 7. work that is finished by the end of the step is reported to the broker;
//! 8. the use of storage is counted, except on the first days, which are without harvest VMs
//!    ([`FleetSettings::history`](super::fleet::FleetSettings::history)).

use super::ceiling::{Ceiling, Rules};
use super::course::{STEP, Seconds};
use super::fleet::{Demand, Fleet};
use super::foresight::{CHANNEL_BLOCKS, Foresight, GB_BLOCKS, Owned, Seer, blocks};
use super::outcome::{Ended, FleetPoint, HarvestOutcome};
use super::utilisation::{StorageShares, Utilisation};
use headstart_block::exact;
use headstart_broker::{
    Broker, BrokerAction, BrokerAnswer, BrokerEvent, BrokerRequest, BrokerRequestId, BrokerSettings, Notice,
    VssdKind,
};
use headstart_flash::{GssdId, Time, VssdId};
use headstart_forecast::{Forecast, Unsold};
use std::collections::BTreeMap;
use std::time::Duration;

/// MB that a channel moves in a second (section 4.3).
const CHANNEL_MB: f64 = 70.0;
/// Microseconds to erase a block.
const ERASE_US: u64 = 4_200;
/// The interval at which a harvest VM that got nothing asks again.
const RETRY: Seconds = 5 * STEP;

/// The kind of storage that is lent to harvest VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageSource {
    /// Storage that regular VMs own and do not use (figures 15 and 16 of BlockFlex, OSDI 2022).
    Regular,
    /// Storage that is not sold (figure 17 of BlockFlex, OSDI 2022).
    Unsold,
}

/// Settings of a simulation of harvesting.
#[derive(Clone, Debug, PartialEq)]
pub struct HarvestModel {
    /// The kind of storage that is lent to harvest VMs.
    pub source: StorageSource,
    /// The source of forecasts of the storage that homes (lenders) can spare. For unsold storage, all sources but the
    /// clairvoyant give the same forecasts.
    pub foresight: Foresight,
    /// The certainty, 0 to 1, with which unsold storage must be expected to stay unsold for the duration of
    /// an offer. The clairvoyant does not use it.
    pub cover: f32,
    /// The longest duration that a harvest VM requests at a time; a VM that needs storage for longer keeps
    /// its lease beyond that until the lender takes it back.
    pub ask: Duration,
    /// `true` if a harvest VM accepts less storage than it requested; `false` if a request that cannot be granted in
    /// full is refused.
    pub partial: bool,
    /// Settings of the product's broker.
    pub broker: BrokerSettings,
}

impl HarvestModel {
    /// Returns the settings with which the product ships, without a journal. For the clairvoyant, a lease ends at the
    /// first forecast that the lender needs its storage, because such forecasts are always right.
    #[must_use]
    pub fn new(source: StorageSource, foresight: Foresight) -> Self {
        let shipped = BrokerSettings::of_hosts();
        let forecasts_to_reclaim =
            if foresight == Foresight::Clairvoyant { 1 } else { shipped.forecasts_to_reclaim };
        let broker = BrokerSettings { journal: false, forecasts_to_reclaim, ..shipped };
        Self { source, foresight, cover: 0.5, ask: Duration::from_secs(1800), partial: false, broker }
    }
}

/// Storage that may lend.
struct Home {
    kind: VssdKind,
    /// Its place in the fleet's list.
    index: usize,
    channels: u16,
    seer: Option<Seer>,
    lent: Vec<GssdId>,
    capacity: StorageShares,
    bandwidth: StorageShares,
    /// GB and channels that harvest VMs use in this step.
    harvested: (f64, f64),
    gone: bool,
}

impl Home {
    fn blocks(&self) -> u32 {
        u32::from(self.channels) * CHANNEL_BLOCKS
    }
}

/// A harvest VM that runs.
struct Borrower {
    request: usize,
    since: Seconds,
    until: Seconds,
    demand: Demand,
    slots: Vec<GssdId>,
    granted: bool,
    /// The number of its requests so far.
    asked: u64,
}

/// A gSSD, with the host's state of it.
struct Lent {
    home: u32,
    borrower: Option<u32>,
    channels: u16,
    blocks: u32,
}

struct World<'a> {
    fleet: &'a Fleet,
    model: &'a HarvestModel,
    broker: Broker,
    /// By the number of their vSSD.
    homes: Vec<Home>,
    borrowers: BTreeMap<u32, Borrower>,
    gssds: BTreeMap<GssdId, Lent>,
    /// Events that are due, by time.
    pending: BTreeMap<(Time, u64), BrokerEvent>,
    sequence: u64,
    unsold: Unsold,
    servers: Vec<StorageShares>,
    now: Seconds,
    outcome: HarvestOutcome,
}

/// Simulates a fleet whose spare storage is lent to harvest VMs, from its first second to its last.
#[must_use]
pub fn simulate(fleet: &Fleet, model: &HarvestModel) -> HarvestOutcome {
    let mut world = World::new(fleet, model);
    let steps = fleet.settings.span() / STEP;
    for step in 0..steps {
        world.step(step * STEP);
    }
    world.finish()
}

fn time(at: Seconds) -> Time {
    Time(u64::from(at) * 1_000_000)
}

fn number(of: usize) -> u32 {
    exact(of, "a fleet's VMs and leases have numbers of 32 bits")
}

impl<'a> World<'a> {
    fn new(fleet: &'a Fleet, model: &'a HarvestModel) -> Self {
        let home = |kind, index, channels, seer| Home {
            kind,
            index,
            channels,
            seer,
            lent: Vec::new(),
            capacity: StorageShares::default(),
            bandwidth: StorageShares::default(),
            harvested: (0.0, 0.0),
            gone: false,
        };
        let homes = match model.source {
            StorageSource::Regular => (0..)
                .zip(&fleet.vms)
                .map(|(n, vm)| {
                    home(
                        VssdKind::Regular,
                        n,
                        vm.channels,
                        Some(Seer::new(model.foresight, vm.channels, n as u64)),
                    )
                })
                .collect(),
            StorageSource::Unsold => {
                let lots = (0..).zip(&fleet.lots);
                lots.map(|(n, lot)| home(VssdKind::Unsold, n, lot.channels, None)).collect()
            }
        };
        Self {
            fleet,
            model,
            broker: Broker::new(model.broker.clone()),
            homes,
            borrowers: BTreeMap::new(),
            gssds: BTreeMap::new(),
            pending: BTreeMap::new(),
            sequence: 0,
            unsold: Unsold::default(),
            servers: vec![StorageShares::default(); fleet.settings.servers],
            now: 0,
            outcome: HarvestOutcome::default(),
        }
    }

    fn step(&mut self, now: Seconds) {
        self.now = now;
        self.appear();
        self.depart();
        self.run_until(now);
        self.forecast();
        self.arrive();
        self.ask();
        self.press();
        self.run_until(now + STEP - 1);
        if now >= self.fleet.settings.begins() {
            self.count();
        }
    }

    /// Tells the broker of an event, and does what it asks for.
    fn notify(&mut self, now: Time, event: BrokerEvent) {
        let mut actions = Vec::new();
        self.broker.on_event(now, event, &mut actions);
        for action in actions {
            self.act(now, action);
        }
    }

    fn later(&mut self, now: Time, span: Duration, event: BrokerEvent) {
        self.sequence += 1;
        self.pending.insert((now + span, self.sequence), event);
    }

    /// Reports the work that is done by then, and ticks when it is time.
    fn run_until(&mut self, until: Seconds) {
        let until = time(until);
        loop {
            let tick = self.broker.next().filter(|at| *at <= until);
            let due = self.pending.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= until);
            match (tick, due) {
                (Some(tick), due) if due.is_none_or(|due| tick <= due) => {
                    self.notify(tick.max(time(self.now)), BrokerEvent::Tick);
                }
                (_, Some(_)) => {
                    if let Some(((at, _), event)) = self.pending.pop_first() {
                        self.notify(at, event);
                    }
                }
                _ => return,
            }
        }
    }

    fn act(&mut self, now: Time, action: BrokerAction) {
        match action {
            BrokerAction::Carve { gssd, lender: home, bandwidth, capacity } => {
                let free = self.free(home.0);
                let capacity = if free < capacity { 0 } else { capacity };
                if capacity > 0 {
                    let lent = Lent { home: home.0, borrower: None, channels: bandwidth, blocks: capacity };
                    self.gssds.insert(gssd, lent);
                    if let Some(home) = self.homes.get_mut(home.0 as usize) {
                        home.lent.push(gssd);
                    }
                }
                let carved = BrokerEvent::Carved { gssd, bandwidth, capacity, blocks: Vec::new() };
                self.later(now, Duration::ZERO, carved);
            }
            BrokerAction::Erase { gssd } => {
                let took = self
                    .gssds
                    .get(&gssd)
                    .map_or(0, |lent| u64::from(lent.blocks) * ERASE_US / u64::from(lent.channels.max(1)));
                self.later(now, Duration::from_micros(took), BrokerEvent::Erased { gssd, bad: Vec::new() });
            }
            BrokerAction::Attach { gssd, borrower, .. } => {
                if let (Some(lent), Some(to)) =
                    (self.gssds.get_mut(&gssd), self.borrowers.get_mut(&borrower.0))
                {
                    lent.borrower = Some(borrower.0);
                    to.slots.push(gssd);
                }
            }
            BrokerAction::Evacuate { gssd, borrower, .. } => self.evacuate(now, gssd, borrower.0),
            BrokerAction::Detach { gssd, borrower, .. } => {
                if let Some(borrower) = self.borrowers.get_mut(&borrower.0) {
                    borrower.slots.retain(|slot| *slot != gssd);
                }
                if let Some(lent) = self.gssds.get_mut(&gssd) {
                    lent.borrower = None;
                }
                self.later(now, Duration::ZERO, BrokerEvent::Detached { gssd });
            }
            BrokerAction::Return { gssd, lender: home } => {
                self.gssds.remove(&gssd);
                if let Some(home) = self.homes.get_mut(home.0 as usize) {
                    home.lent.retain(|lent| *lent != gssd);
                }
            }
            BrokerAction::Wipe { vssd } => {
                self.later(now, Duration::ZERO, BrokerEvent::Wiped { vssd, bad: Vec::new() });
            }
            BrokerAction::Answer { request, answer } => self.answered(request, &answer),
            BrokerAction::Report(report) => {
                if let Notice::Evicted { .. } = report.what {
                    self.outcome.evicted += 1;
                    // It asks for other storage, and begins again there.
                    if let Some(borrower) = self.borrowers.get_mut(&report.vssd.0) {
                        borrower.granted = false;
                    }
                }
            }
            BrokerAction::Journal(_) | BrokerAction::Keep { .. } => {}
        }
    }

    /// Flash blocks that a home neither uses nor has lent.
    fn free(&self, id: u32) -> u32 {
        let Some(home) = self.homes.get(id as usize) else { return 0 };
        let lent: u32 = home.lent.iter().filter_map(|id| self.gssds.get(id)).map(|lent| lent.blocks).sum();
        home.blocks().saturating_sub(lent).saturating_sub(self.used(home))
    }

    /// The most flash blocks that a home uses in this step.
    fn used(&self, home: &Home) -> u32 {
        let Some(vm) = self.fleet.vms.get(home.index).filter(|_| home.kind == VssdKind::Regular) else {
            return 0;
        };
        let share = vm.capacity.over(self.now, self.now + STEP).max;
        super::regular::seconds((f64::from(home.blocks()) * f64::from(share)).ceil())
    }

    /// GB that a harvest VM has to store now, and those that its gSSDs hold; with `staying`, without those that are
    /// being taken away.
    fn stored(&self, borrower: &Borrower, staying: bool) -> (f64, f64) {
        let gigabytes = self.fleet.requests.get(borrower.request).map_or(0, |request| request.gigabytes);
        let share = borrower.demand.capacity.at(self.now.saturating_sub(borrower.since));
        let slots = borrower.slots.iter().filter(|slot| !staying || !self.broker.is_leaving(**slot));
        let room: u32 = slots.filter_map(|id| self.gssds.get(id)).map(|lent| lent.blocks).sum();
        (f64::from(gigabytes) * f64::from(share), f64::from(room) / f64::from(GB_BLOCKS))
    }

    fn evacuate(&mut self, now: Time, gssd: GssdId, id: u32) {
        let (Some(borrower), Some(lent)) = (self.borrowers.get(&id), self.gssds.get(&gssd)) else { return };
        let (stored, room) = self.stored(borrower, true);
        let own = f64::from(lent.blocks) / f64::from(GB_BLOCKS);
        if stored > room {
            let cause = "the other gSSDs of the disk have no room".to_owned();
            self.later(now, Duration::ZERO, BrokerEvent::EvacuationFailed { gssd, cause });
            return;
        }
        // Data is striped over all gSSDs: the part of this one is moved.
        let part = stored * own / (room + own).max(1e-9);
        let took = Duration::from_secs_f64(part * 1024.0 / (CHANNEL_MB * f64::from(lent.channels.max(1))));
        self.later(now, took, BrokerEvent::Evacuated { gssd });
    }

    /// Adds unsold storage that has appeared, and removes storage that is sold.
    fn appear(&mut self) {
        if self.now == 0 && self.model.source == StorageSource::Regular {
            for n in 0..self.homes.len() {
                self.create(n);
            }
        }
        if self.model.source != StorageSource::Unsold {
            return;
        }
        let (fleet, now) = (self.fleet, self.now);
        let since = |at: Seconds| (at <= now && at + STEP > now) || (now == 0 && at == 0);
        for n in 0..self.homes.len() {
            let Some(lot) = self.homes.get(n).and_then(|home| fleet.lots.get(home.index)) else { continue };
            if since(lot.from) {
                self.create(n);
            }
            if lot.until <= now && lot.until + STEP > now {
                if let Some(home) = self.homes.get_mut(n) {
                    home.gone = true;
                }
                self.outcome.ended.sold += self.leased(n);
                self.unsold.ended(u64::from(lot.gigabytes()) << 30, seconds(lot.until - lot.from));
                self.notify(time(now), BrokerEvent::Deleted { vssd: VssdId(number(n)) });
            }
        }
    }

    /// A home's gSSDs in use.
    fn leased(&self, home: usize) -> u64 {
        let lent = self.homes.get(home).into_iter().flat_map(|home| &home.lent);
        lent.filter(|id| self.gssds.get(id).is_some_and(|lent| lent.borrower.is_some())).count() as u64
    }

    fn create(&mut self, n: usize) {
        let Some(home) = self.homes.get(n) else { return };
        let created = BrokerEvent::Created {
            vssd: VssdId(number(n)),
            kind: home.kind,
            bandwidth: home.channels,
            capacity: home.blocks(),
            channels: Vec::new(),
        };
        self.notify(time(self.now), created);
    }

    /// Removes harvest VMs that are done.
    fn depart(&mut self) {
        let now = self.now;
        let done: Vec<u32> =
            self.borrowers.iter().filter(|(_, borrower)| borrower.until <= now).map(|(id, _)| *id).collect();
        for id in done {
            if let Some(borrower) = self.borrowers.get_mut(&id) {
                self.outcome.ended.done += borrower.slots.len() as u64;
                (borrower.until, borrower.granted) = (Seconds::MAX, false);
            }
            self.notify(time(now), BrokerEvent::Deleted { vssd: VssdId(id) });
        }
        // Their storage is detached by now.
        self.borrowers.retain(|_, borrower| borrower.until < Seconds::MAX || !borrower.slots.is_empty());
    }

    fn forecast(&mut self) {
        for n in 0..self.homes.len() {
            let forecast = match self.homes.get_mut(n) {
                Some(home) if home.kind == VssdKind::Regular => {
                    let Some(vm) = self.fleet.vms.get(home.index) else { continue };
                    let owned = Owned {
                        channels: home.channels,
                        blocks: home.blocks(),
                        bandwidth: &vm.bandwidth,
                        capacity: &vm.capacity,
                    };
                    let Some(seer) = &mut home.seer else { continue };
                    if self.now > 0 {
                        seer.observe(&owned, self.now);
                    }
                    let end = self.fleet.settings.span();
                    seer.supply(&owned, self.now, end, self.model.broker.grain.capacity)
                }
                _ => match self.unsold_forecast(n) {
                    Some(forecast) => forecast,
                    None => continue,
                },
            };
            let event = BrokerEvent::Forecast {
                vssd: VssdId(number(n)),
                bandwidth: forecast.bandwidth,
                capacity: forecast.capacity,
                lasts: forecast.lasts,
            };
            self.notify(time(self.now), event);
        }
    }

    /// All of a present lot, for as long as lots of its size last that have lasted as long.
    fn unsold_forecast(&self, n: usize) -> Option<Forecast> {
        let home = self.homes.get(n)?;
        let lot = self.fleet.lots.get(home.index)?;
        if home.gone || lot.from > self.now {
            return None;
        }
        let age = seconds(self.now - lot.from);
        let lasts = match self.model.foresight {
            Foresight::Clairvoyant => seconds(lot.until.saturating_sub(self.now)),
            Foresight::Product(_) | Foresight::Paper(_) => {
                self.unsold.lasts(u64::from(lot.gigabytes()) << 30, age, self.model.cover)
            }
        };
        let (bandwidth, capacity) = (home.channels, home.blocks());
        Some(Forecast { bandwidth, capacity, lasts })
    }

    fn arrive(&mut self) {
        let (fleet, now) = (self.fleet, self.now);
        let first = fleet.requests.partition_point(|request| request.at < now);
        for (n, request) in fleet.requests.iter().enumerate().skip(first) {
            if request.at >= now + STEP {
                break;
            }
            let id = number(self.homes.len() + n);
            let borrower = Borrower {
                request: n,
                since: now,
                until: now.saturating_add(request.lasts),
                demand: request.demand(),
                slots: Vec::new(),
                granted: false,
                asked: 0,
            };
            self.borrowers.insert(id, borrower);
            let (kind, channels) = (VssdKind::Harvest, Vec::new());
            let vssd = VssdId(id);
            self.notify(time(now), BrokerEvent::Created { vssd, kind, bandwidth: 0, capacity: 0, channels });
        }
    }

    /// Asks for harvest VMs without storage, and repeats it at an interval.
    fn ask(&mut self) {
        let now = self.now;
        let due = |borrower: &Borrower| {
            !borrower.granted
                && borrower.slots.is_empty()
                && borrower.until < Seconds::MAX
                && (now - borrower.since).is_multiple_of(RETRY)
        };
        let asking: Vec<u32> =
            self.borrowers.iter().filter(|(_, borrower)| due(borrower)).map(|(id, _)| *id).collect();
        for id in asking {
            let Some(borrower) = self.borrowers.get_mut(&id) else { continue };
            borrower.asked += 1;
            let Some(request) = self.fleet.requests.get(borrower.request) else { continue };
            let wanted = BrokerRequest {
                request: BrokerRequestId(borrower.asked << 32 | u64::from(id)),
                vm: format!("harvest-{}", borrower.request),
                borrower: VssdId(id),
                bandwidth: request.channels,
                capacity: blocks(request),
                lasts: seconds(borrower.until - now).min(self.model.ask),
                partial: self.model.partial,
                grow: false,
            };
            self.notify(time(now), BrokerEvent::Request(wanted));
        }
    }

    fn answered(&mut self, request: BrokerRequestId, answer: &BrokerAnswer) {
        let id: u32 = exact(request.0 & u64::from(u32::MAX), "it was cut to 32 bits");
        let Some(borrower) = self.borrowers.get_mut(&id) else { return };
        match answer {
            BrokerAnswer::Granted(_) | BrokerAnswer::Partly(_) => {
                self.outcome.granted += 1;
                borrower.granted = true;
            }
            _ => self.outcome.refused += 1,
        }
    }

    /// Presses for homes that need more than their free storage.
    fn press(&mut self) {
        if self.model.source != StorageSource::Regular {
            return;
        }
        for n in 0..self.homes.len() {
            let Some(home) = self.homes.get(n).filter(|home| !home.lent.is_empty()) else { continue };
            let lent: u32 =
                home.lent.iter().filter_map(|id| self.gssds.get(id)).map(|lent| lent.blocks).sum();
            let short = (lent + self.used(home)).saturating_sub(home.blocks());
            if short > 0 {
                self.outcome.pressed += 1;
                self.outcome.short_block_seconds += u64::from(short) * u64::from(STEP);
                let event =
                    BrokerEvent::SpacePressure { lender: VssdId(number(n)), bandwidth: 0, capacity: short };
                self.notify(time(self.now), event);
            }
        }
    }

    /// The real use of harvest VMs: capacity in proportion to their gSSDs, bandwidth to the channels.
    fn harvest(&mut self) {
        self.homes.iter_mut().for_each(|home| home.harvested = (0.0, 0.0));
        for borrower in self.borrowers.values().filter(|borrower| borrower.granted) {
            let (stored, room) = self.stored(borrower, false);
            let channels: f64 = borrower
                .slots
                .iter()
                .filter_map(|id| self.gssds.get(id))
                .map(|lent| f64::from(lent.channels))
                .sum();
            let asked = self.fleet.requests.get(borrower.request).map_or(0, |request| request.channels);
            let age = self.now.saturating_sub(borrower.since);
            let share = borrower.demand.bandwidth.over(age, age + STEP).mean;
            let moves = f64::from(asked) * f64::from(share);
            for lent in borrower.slots.iter().filter_map(|id| self.gssds.get(id)) {
                let Some(home) = self.homes.get_mut(lent.home as usize) else { continue };
                let gigabytes = f64::from(lent.blocks) / f64::from(GB_BLOCKS);
                home.harvested.0 += stored.min(room) * gigabytes / room.max(1e-9);
                let own = f64::from(lent.channels);
                home.harvested.1 += (moves * own / channels.max(1e-9)).min(own);
            }
        }
    }

    fn count(&mut self) {
        self.harvest();
        let (from, to) = (self.now, self.now + STEP);
        let long = f64::from(STEP);
        let mut point = FleetPoint { seconds: from, ..FleetPoint::default() };
        let mut by_server: Vec<(f64, f64)> = vec![(0.0, 0.0); self.servers.len()];
        for home in &mut self.homes {
            let owned = f64::from(home.channels) * 64.0;
            if let (VssdKind::Regular, Some(vm)) = (home.kind, self.fleet.vms.get(home.index)) {
                let (capacity, bandwidth) = (vm.capacity.over(from, to), vm.bandwidth.over(from, to));
                let both = |window: super::course::Window| (f64::from(window.mean), f64::from(window.max));
                home.capacity.add(long, both(capacity), home.harvested.0 / owned);
                point.harvested += home.harvested.0;
                let channels = f64::from(home.channels);
                // The home's I/O goes first: harvest VMs get the rest.
                let harvested = (home.harvested.1 / channels).min(1.0 - f64::from(bandwidth.mean));
                home.bandwidth.add(long, both(bandwidth), harvested.max(0.0));
                point.used += f64::from(capacity.mean) * owned;
                point.owned += owned;
            } else if let Some(lot) = self.fleet.lots.get(home.index) {
                let part = f64::from(lot.until.min(to).saturating_sub(lot.from.max(from))) / long;
                if let Some(server) = by_server.get_mut(lot.server as usize) {
                    server.0 += owned * part;
                    server.1 += home.harvested.0 * part;
                }
                point.harvested += home.harvested.0 * part;
            }
        }
        if self.model.source == StorageSource::Unsold {
            let all = f64::from(self.fleet.server_gigabytes);
            for (usage, (unsold, harvested)) in self.servers.iter_mut().zip(by_server) {
                let sold = 1.0 - unsold / all;
                usage.add(long, (sold, sold), harvested / all);
                point.used += sold * all;
                point.owned += all;
            }
        }
        for lent in self.gssds.values() {
            let gigabytes = f64::from(lent.blocks) / f64::from(GB_BLOCKS);
            let sum = if lent.borrower.is_some() { &mut self.outcome.leased } else { &mut self.outcome.idle };
            *sum += gigabytes * long;
        }
        self.outcome.gain += point.harvested * long;
        self.outcome.push(point);
    }

    fn finish(mut self) -> HarvestOutcome {
        let begins = (self.fleet.settings.begins() / STEP) as usize;
        let rules = Rules::of(&self.model.broker.grain);
        let all = |of: fn(&Home) -> &StorageShares| self.homes.iter().map(of).collect::<Vec<_>>();
        let mut outcome = std::mem::take(&mut self.outcome);
        let (things, ceiling) = match self.model.source {
            StorageSource::Regular => (all(|home| &home.capacity), Ceiling::regular(self.fleet, rules)),
            StorageSource::Unsold => (self.servers.iter().collect(), Ceiling::unsold(self.fleet, rules)),
        };
        let group = |least: f64, most: f64| {
            let within = |usage: &&&StorageShares| (least..most).contains(&usage.average());
            Utilisation::of(things.iter().filter(within).copied())
        };
        outcome.averages = (
            things.iter().map(|usage| usage.average()).collect(),
            things.iter().map(|usage| usage.average_with()).collect(),
        );
        outcome.capacity = group(0.0, f64::INFINITY);
        outcome.capacity_low = group(0.0, 0.6);
        outcome.capacity_fifth = group(0.0, 0.799);
        if self.model.source == StorageSource::Regular {
            outcome.bandwidth = Utilisation::of(all(|home| &home.bandwidth).into_iter());
        }
        outcome.ceiling = ceiling.gain();
        outcome.needed = ceiling.needed();
        outcome.lendable = ceiling.supply.iter().skip(begins).sum::<f64>() * f64::from(STEP);
        outcome.counters = self.broker.counters();
        let counters = &outcome.counters;
        outcome.ended = Ended { taken: counters.migrated + counters.evicted_leases, ..outcome.ended };
        outcome
    }
}

fn seconds(seconds: Seconds) -> Duration {
    Duration::from_secs(u64::from(seconds))
}
