//! The broker: decides which lender lends to which borrower, and corrects wrong decisions (Reidys et al., "BlockFlex",
//! OSDI 2022, sections 4.3.2 and 4.5; "the paper" here).
//!
//! A *lender* is a vSSD with flash to spare: a regular VM's, or an unsold one. A *borrower* is a harvest VM's vSSD. The
//! flash that is lent at a time is a *gSSD* (ghost vSSD), which has whole *grains*: units of channels, of flash blocks
//! and of time ([`gssd::Grain`]). Unused gSSDs are in the *pool* ([`gssd::Pool`]).
//!
//! The broker is a pure state machine: [`Broker::on_event`] takes an event and gives out actions. The *driver* is the
//! code that calls the broker and carries the actions out: a host does so with real flash, a simulator in a model.
//! Costs are small: a forecast that changes nothing is a look-up.
//!
//! # A gSSD's life
//!
//! ```text
//!            forecast                                                       .------ Kept -------.
//!               |                                                           v                   |
//!           (carving) --Carved--> Erasing --Erased--> Pooled --Leased--> Leased --Evacuating--> Evacuating
//!                                    ^                   |                 |                        |
//!                                    |                Returned             `------- Leaving --------'
//!                                    |                   v                             v
//!                                    |                lender                       Detaching
//!                                    `-------------------- Detached --------------------'
//! ```
//!
//! The words on the arrows are the [`BrokerStep`]s that are journalled before anything is done about them. One decision
//! leads to one step. Most state follows from the steps alone (`apply`), so after a crash it is the same as before.
//! Four things are not in the steps, and are gone after a crash: forecasts, counts, the times at which work began, and
//! the permission of a request to add gSSDs later ([`BrokerRequest::grow`]). After a crash, all unfinished work begins
//! again ([`Broker::recover`]): erasures from the start, evacuations with the rest. The blocks of a gSSD that was being
//! carved at the crash go back to the lender.
//!
//! # Decisions
//!
//! * *Creation*: every forecast of the storage that a lender can spare (the predictor has subtracted a margin) may lead
//!   to a new gSSD, which expires when the forecast does. A regular VM's vSSD lends one gSSD at a time by default, as
//!   in the paper, so that one harvest VM has the lent channels to itself. An unsold vSSD has no VM, and lends one gSSD
//!   for each grain of its channels or of its capacity, whichever are fewer, so that small requests take little.
//! * *Re-dating*: every 15 minutes by default, each gSSD gets the expiry of its lender's newest forecast. Unused gSSDs
//!   that have expired go back to the lender then; so does an unused gSSD that could be larger by a quarter, if it is
//!   the only one of its lender.
//! * *Waste* (a harvest VM has more than it needs) is counted: it is the price of margins.
//! * *Early reclamation* (a lender needs blocks back): unused gSSDs go back to the lender at once. If they are not
//!   enough, leased gSSDs are taken back. For each of these the broker looks in the pool for a replacement: gSSDs that
//!   are together as large and last for the requested time; or else gSSDs that are together as large and last for a
//!   grain of time; or else as many as there are that last for a grain of time. A replacement is attached to the same
//!   borrower, and the data of the old gSSD is moved, block by block, to the borrower's other slots. If the data does
//!   not fit there, the harvest VM is evicted: its disk is striped over all its gSSDs, so it loses all of them. Its
//!   user gets a [`BrokerReport`].
//! * *Expiry*: a leased gSSD that expires is taken back the same way, unless its lender's newest forecast dates it
//!   later. A lease whose requested time is over by more than [`BrokerSettings::overstay`] ends without a replacement.
//! * *Under-harvest* (a harvest VM needs more than it has): gSSDs are added if the request allowed that. If the VM has
//!   a lease and still lacks something, its user gets one report each time that such a shortage begins.
//!
//! # Time
//!
//! The caller passes the time, a [`Time`] since a zero of its choice. The journalled steps contain times, so the zero
//! must be the same after a recovery as before: for example, the Unix epoch.
//!
//! | module | content |
//! |---|---|
//! | [`gssd`] | ghost vSSDs, and the pool of unused ones |
//! | [`settings`] | the settings |
//! | [`event`] | events, actions, requests and answers |
//! | [`step`](headstart_flash::step) | the journalled steps |
//! | [`report`] | messages to a harvest VM's user |
//! | [`counters`] | counts of the broker's work |
//! | `state` | the effects of steps, recovery, snapshots |
//! | `supply` | lenders: forecasts, creation, re-dating, withdrawal |
//! | `deletion` | vSSDs that go |
//! | `demand` | borrowers: requests, releases, under-harvest |
//! | `reclaim` | leases that end: migration, eviction, detaching, erasing |

#![forbid(unsafe_code)]

pub mod counters;
mod deletion;
mod demand;
pub mod event;
pub mod gssd;
mod reclaim;
pub mod report;
pub mod settings;
mod state;
mod supply;

pub use counters::Counters;
pub use event::{BrokerAction, BrokerAnswer, BrokerEvent, BrokerRequest, BrokerRequestId, Grant};
#[doc(no_inline)]
pub use headstart_block::{Error, ErrorKind, Result, Time};
#[doc(no_inline)]
pub use headstart_flash::step::{BlockRun, BrokerStep, Why};
#[doc(no_inline)]
pub use headstart_flash::{GssdId, VssdId, VssdKind};
pub use reclaim::Evacuation;
pub use report::{BrokerReport, Notice};
pub use settings::BrokerSettings;

use gssd::{Gssd, Pool};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Formats a number of channels for messages: `1 channel`, `2 channels`.
#[must_use]
pub fn counted(channels: u64) -> String {
    let plural = if channels == 1 { "" } else { "s" };
    format!("{channels} channel{plural}")
}

/// The broker of a host: decides which vSSD lends flash to which harvest VM, and when lent flash goes back.
#[derive(Debug)]
pub struct Broker {
    settings: BrokerSettings,
    pool: Pool,
    vssds: BTreeMap<VssdId, Vssd>,
    gssds: BTreeMap<GssdId, Entry>,
    next_gssd: u64,
    /// The time at which each leased gSSD is looked at.
    deadlines: BTreeSet<(Time, GssdId)>,
    redate_at: Option<Time>,
    counters: Counters,
}

/// A vSSD: the gSSDs that it lends as a lender, and those that it has as a borrower.
#[derive(Debug)]
struct Vssd {
    kind: VssdKind,
    bandwidth: u16,
    capacity: u32,
    channels: Vec<u16>,
    deleting: bool,
    wiping: bool,
    forecast: Option<Forecast>,
    /// The number of forecasts in a row by which a lender needs blocks back.
    low: u32,
    /// A lender's gSSDs.
    lent: Vec<GssdId>,
    /// A borrower's.
    slots: BTreeMap<u8, GssdId>,
    vm: String,
    grow: bool,
    lacking: bool,
}

#[derive(Clone, Copy, Debug)]
struct Forecast {
    bandwidth: u16,
    capacity: u32,
    expire: Time,
    at: Time,
}

/// A gSSD and its stage.
#[derive(Debug)]
struct Entry {
    gssd: Gssd,
    stage: Stage,
    /// `true` if its lender wants it back.
    withdrawn: bool,
    slot: u8,
    /// The time until which its harvest VM wants it.
    until: Time,
    why: Why,
    /// The start of its evacuation, if it is being evacuated.
    since: Time,
    /// The time since which its lender has needed it at once.
    pressed_since: Option<Time>,
    /// `true` if it is detached with data that is lost.
    lost: bool,
    deadline: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Carving,
    Erasing,
    Pooled,
    Leased,
    Evacuating,
    Detaching,
}

impl Broker {
    /// Returns a broker that knows no vSSDs yet. Invalid settings are replaced by the nearest valid ones.
    #[must_use]
    pub fn new(settings: BrokerSettings) -> Self {
        let settings = settings.sane();
        Self {
            pool: Pool::new(settings.grain),
            settings,
            vssds: BTreeMap::new(),
            gssds: BTreeMap::new(),
            next_gssd: 1,
            deadlines: BTreeSet::new(),
            redate_at: None,
            counters: Counters::default(),
        }
    }

    /// Handles an event that happened at `now`, and appends the resulting actions to `out`.
    pub fn on_event(&mut self, now: Time, event: BrokerEvent, out: &mut Vec<BrokerAction>) {
        self.redate_at.get_or_insert(now + self.settings.redate_every);
        let known = match event {
            BrokerEvent::Created { vssd, kind, bandwidth, capacity, channels } => {
                let step = BrokerStep::Created { vssd, kind, bandwidth, capacity, channels };
                !self.vssds.contains_key(&vssd) && self.commit(step, out)
            }
            BrokerEvent::Deleted { vssd } => self.delete(now, vssd, out),
            BrokerEvent::Forecast { vssd, bandwidth, capacity, lasts } => {
                self.forecast(now, vssd, (bandwidth, capacity, lasts), out)
            }
            BrokerEvent::Tick => self.tick(now, out),
            BrokerEvent::Request(request) => {
                self.request(now, request, out);
                true
            }
            BrokerEvent::Release { borrower, gssd } => self.release(now, borrower, gssd, out),
            BrokerEvent::SpacePressure { lender, bandwidth, capacity } => {
                self.on_space_pressure(now, lender, bandwidth, capacity, out)
            }
            BrokerEvent::Carved { gssd, bandwidth, capacity, blocks } => {
                self.carved(now, gssd, (bandwidth, capacity), blocks, out)
            }
            BrokerEvent::Erased { gssd, bad } => self.erased(now, gssd, bad, out),
            BrokerEvent::Evacuated { gssd } => self.evacuated(now, gssd, out),
            BrokerEvent::EvacuationFailed { gssd, cause } => self.evacuation_failed(now, gssd, cause, out),
            BrokerEvent::Detached { gssd } => self.detached(gssd, out),
            BrokerEvent::Wiped { vssd, bad } => self.wiped(vssd, bad, out),
            BrokerEvent::Unpool { lender } => self.unpool(now, lender, out),
            BrokerEvent::Swapped { one, other, bad } => self.swapped(one, other, bad, out),
        };
        self.counters.ignored += u64::from(!known);
    }

    /// Returns the time at which the driver is to send the next [`BrokerEvent::Tick`]; `None` before the first event of
    /// a new broker.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        deadline.into_iter().chain(self.redate_at).min()
    }

    /// Returns the pool: the erased gSSDs that no harvest VM has on lease.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the record of a gSSD; `None` if there is no such gSSD.
    #[must_use]
    pub fn gssd(&self, id: GssdId) -> Option<&Gssd> {
        self.gssds.get(&id).map(|entry| &entry.gssd)
    }

    /// Returns all gSSDs with their records, including those that are being made.
    pub fn gssds(&self) -> impl Iterator<Item = (GssdId, &Gssd)> {
        self.gssds.iter().map(|(id, entry)| (*id, &entry.gssd))
    }

    /// Returns the gSSDs that a harvest VM's vSSD has on lease, by slot, including those that are being taken
    /// back.
    pub fn slots(&self, borrower: VssdId) -> impl Iterator<Item = (u8, GssdId)> {
        self.vssds
            .get(&borrower)
            .into_iter()
            .flat_map(|borrower| borrower.slots.iter().map(|(slot, id)| (*slot, *id)))
    }

    /// Returns the gSSDs made of a vSSD's flash, including those that are being made or are on their way
    /// back.
    pub fn lent(&self, lender: VssdId) -> impl Iterator<Item = GssdId> {
        self.vssds.get(&lender).into_iter().flat_map(|lender| lender.lent.iter().copied())
    }

    /// Returns all existing vSSDs with their kinds.
    pub fn vssds(&self) -> impl Iterator<Item = (VssdId, VssdKind)> {
        self.vssds.iter().map(|(id, vssd)| (*id, vssd.kind))
    }

    /// Returns the end of the time for which a harvest VM requested a gSSD; `None` if the gSSD is not on lease or does
    /// not exist.
    #[must_use]
    pub fn until(&self, id: GssdId) -> Option<Time> {
        self.gssds.get(&id).filter(|entry| entry.gssd.in_use).map(|entry| entry.until)
    }

    /// Returns `true` if a gSSD is being taken back from its harvest VM; `false` also if there is no such gSSD.
    #[must_use]
    pub fn is_leaving(&self, id: GssdId) -> bool {
        matches!(self.stage(id), Some(Stage::Evacuating | Stage::Detaching))
    }

    /// Returns `true` if the driver has still to finish an action that the broker gave out: no event has answered
    /// it yet. `false` for kinds of actions that no event answers.
    #[must_use]
    pub fn awaits(&self, action: &BrokerAction) -> bool {
        let is = |id: GssdId, stage| self.stage(id) == Some(stage);
        let there = |id: GssdId, borrower: VssdId, slot: u8| {
            self.gssds
                .get(&id)
                .is_some_and(|entry| entry.gssd.borrower == Some(borrower) && entry.slot == slot)
        };
        match *action {
            BrokerAction::Carve { gssd, .. } => is(gssd, Stage::Carving),
            BrokerAction::Erase { gssd } => is(gssd, Stage::Erasing),
            BrokerAction::Evacuate { gssd, borrower, slot } => {
                is(gssd, Stage::Evacuating) && there(gssd, borrower, slot)
            }
            BrokerAction::Detach { gssd, borrower, slot } => {
                is(gssd, Stage::Detaching) && there(gssd, borrower, slot)
            }
            BrokerAction::Wipe { vssd } => self.vssds.get(&vssd).is_some_and(|vssd| vssd.wiping),
            BrokerAction::Journal(_)
            | BrokerAction::Attach { .. }
            | BrokerAction::Return { .. }
            | BrokerAction::Keep { .. }
            | BrokerAction::Answer { .. }
            | BrokerAction::Report(_) => false,
        }
    }

    /// Returns `true` if a gSSD is erased and can be leased; `false` also if there is no such gSSD.
    #[must_use]
    pub fn is_pooled(&self, id: GssdId) -> bool {
        self.stage(id) == Some(Stage::Pooled)
    }

    /// Returns `true` if a gSSD is being made or erased, and can be leased after that. `false` if the gSSD goes back to
    /// its lender after that, or if there is no such gSSD.
    #[must_use]
    pub fn is_coming(&self, id: GssdId) -> bool {
        let coming =
            |entry: &Entry| matches!(entry.stage, Stage::Carving | Stage::Erasing) && !entry.withdrawn;
        self.gssds.get(&id).is_some_and(coming)
    }

    /// Returns the channels that a vSSD owns; empty if there is no such vSSD.
    #[must_use]
    pub fn channels(&self, id: VssdId) -> &[u16] {
        self.vssds.get(&id).map(|vssd| vssd.channels.as_slice()).unwrap_or_default()
    }

    /// Returns `true` if a vSSD is being deleted; `false` also if there is no such vSSD.
    #[must_use]
    pub fn is_deleting(&self, id: VssdId) -> bool {
        self.vssds.get(&id).is_some_and(|vssd| vssd.deleting)
    }

    /// Returns the counts of the broker's work since it was made or recovered.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the settings in use, with invalid ones replaced.
    #[must_use]
    pub fn settings(&self) -> &BrokerSettings {
        &self.settings
    }

    /// Applies a step, and gives it out. `true` if it could be applied, which is always so.
    fn commit(&mut self, step: BrokerStep, out: &mut Vec<BrokerAction>) -> bool {
        let applied = self.apply(&step);
        debug_assert!(applied.is_ok(), "{step:?}: {applied:?}");
        if applied.is_ok() && self.settings.journal {
            out.push(BrokerAction::Journal(step));
        }
        applied.is_ok()
    }

    fn stage(&self, id: GssdId) -> Option<Stage> {
        self.gssds.get(&id).map(|entry| entry.stage)
    }

    /// Does the work that is due by time.
    fn tick(&mut self, now: Time, out: &mut Vec<BrokerAction>) -> bool {
        if self.redate_at.is_some_and(|at| at <= now) {
            self.redate_at = Some(now + self.settings.redate_every);
            self.redate(now, out);
        }
        while let Some((at, id)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.remove(&(at, id));
            self.due(now, id, out);
        }
        true
    }
}

/// The time `span` after another; `None` for ever.
fn after(time: Time, span: Option<Duration>) -> Time {
    span.map_or(Time(u64::MAX), |span| time + span)
}

#[cfg(test)]
mod tests;
