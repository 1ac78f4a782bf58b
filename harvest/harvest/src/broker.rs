//! The broker: who lends what to whom, and what is done when that was wrong (BlockFlex, sections 4.3.2 and 4.5).
//!
//! A pure state machine: [`Broker::on_event`] takes what happened and says what to do. The host's driver does it with
//! real flash, a simulator counts it. Costs are small: a forecast that changes nothing is a look-up.
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
//!                                    |                 home                        Detaching
//!                                    `-------------------- Detached --------------------'
//! ```
//!
//! The words on the arrows are the [`Step`]s that are journalled before anything is done about them. One decision leads
//! to one step, and all state but forecasts and how long something has been going on follows from the steps alone
//! (`apply`): what a running broker knows is what it would know after a crash. After one, whatever was begun is begun
//! again ([`Broker::recover`]): erasures from the start, evacuations with what is left. The blocks of a gSSD that was
//! being carved when the host crashed go home.
//!
//! # Decisions
//!
//! * *Creation*: with every forecast of what a home can spare (margins are the predictor's), in whole grains, one gSSD
//!   a home. The newest forecast dates it. The paper allows no more so that a harvest VM has the regular VM's channels
//!   to itself; an unsold home has no VM, and lends one gSSD a channel, so that who needs little takes little.
//! * *Re-dating*: every 15 minutes by the newest forecast; unused ones that expired, or could be larger by a quarter,
//!   go home then.
//! * *Waste* (a harvest VM has more than it needs) is counted: it is the price of margins.
//! * *Early reclamation* (a home needs blocks back): what nobody uses goes home at once. For what is leased the pool is
//!   asked for as much for as long, else for at least a grain of time; whatever it has is attached to the same ghost,
//!   and the old gSSD is evacuated, block by block, to the ghost's other slots. If its data does not fit there, the
//!   harvest VM is evicted: its disk is striped over all its gSSDs, so all of them go. Its user gets a [`Report`].
//! * *Expiry*: a leased gSSD that expires is taken back the same way, unless its home's newest forecast dates it later.
//! * *Under-harvest* (a harvest VM needs more than it has): gSSDs are added where the request allowed it; if there are
//!   none, one report each time that it begins to lack.
//!
//! # Time
//!
//! Whoever recovers from a journal must count time from the same zero as before: the Unix epoch does.
//!
//! | module | what it is |
//! |---|---|
//! | [`settings`] | the knobs |
//! | [`event`] | events, actions, requests and answers |
//! | [`step`] | what is journalled |
//! | [`report`] | what a harvest VM's user is told |
//! | [`counters`] | what it has done |
//! | `state` | what steps do, recovery, snapshots |
//! | `supply` | homes: forecasts, creation, re-dating, withdrawal |
//! | `deletion` | vSSDs that go |
//! | `demand` | ghosts: requests, releases, under-harvest |
//! | `reclaim` | leases that end: migration, eviction, detaching, erasing |

pub mod counters;
mod deletion;
mod demand;
pub mod event;
mod reclaim;
pub mod report;
pub mod settings;
mod state;
pub mod step;
mod supply;

pub use crate::VssdKind;
pub use counters::Counters;
pub use event::{Action, Answer, Event, Grant, Request, RequestId};
pub use reclaim::Evacuation;
pub use report::{Notice, Report};
pub use settings::Settings;
pub use step::{Run, Step, Why};

use crate::gssd::{Gssd, Pool};
use crate::{GssdId, Time, VssdId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The broker.
#[derive(Debug)]
pub struct Broker {
    settings: Settings,
    pool: Pool,
    vssds: BTreeMap<VssdId, Vssd>,
    gssds: BTreeMap<GssdId, Entry>,
    next_gssd: u64,
    /// When each leased gSSD is looked at.
    deadlines: BTreeSet<(Time, GssdId)>,
    redate_at: Option<Time>,
    counters: Counters,
}

/// A vSSD: what it lends as a home, what it has as a ghost.
#[derive(Debug)]
struct Vssd {
    kind: VssdKind,
    bandwidth: u16,
    capacity: u32,
    channels: Vec<u16>,
    deleting: bool,
    wiping: bool,
    forecast: Option<Forecast>,
    /// Forecasts in a row that a home needs blocks back.
    low: u32,
    /// A home's gSSDs.
    lent: Vec<GssdId>,
    /// A ghost's.
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

/// A gSSD and where it stands.
#[derive(Debug)]
struct Entry {
    gssd: Gssd,
    stage: Stage,
    /// Its home wants it back.
    withdrawn: bool,
    slot: u8,
    /// Until when its harvest VM wants it.
    until: Time,
    why: Why,
    /// Since when it is being evacuated, if it is.
    since: Time,
    /// Since when its home has needed it at once.
    pressed: Option<Time>,
    /// Whether it is detached with data that is lost.
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
    /// A broker that knows of nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
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

    /// Takes what happened, and adds to `out` what is to be done.
    pub fn on_event(&mut self, now: Time, event: Event, out: &mut Vec<Action>) {
        self.redate_at.get_or_insert(now + self.settings.redate_every);
        let known = match event {
            Event::Created { vssd, kind, bandwidth, capacity, channels } => {
                let step = Step::Created { vssd, kind, bandwidth, capacity, channels };
                !self.vssds.contains_key(&vssd) && self.commit(step, out)
            }
            Event::Deleted { vssd } => self.delete(now, vssd, out),
            Event::Forecast { vssd, bandwidth, capacity, lasts } => {
                self.forecast(now, vssd, (bandwidth, capacity, lasts), out)
            }
            Event::Tick => self.tick(now, out),
            Event::Request(request) => {
                self.request(now, request, out);
                true
            }
            Event::Release { ghost, gssd } => self.release(now, ghost, gssd, out),
            Event::Pressed { home, bandwidth, capacity } => self.pressed(now, home, bandwidth, capacity, out),
            Event::Carved { gssd, bandwidth, capacity, blocks } => {
                self.carved(now, gssd, (bandwidth, capacity), blocks, out)
            }
            Event::Erased { gssd, bad } => self.erased(now, gssd, bad, out),
            Event::Evacuated { gssd } => self.evacuated(now, gssd, out),
            Event::EvacuationFailed { gssd, cause } => self.evacuation_failed(now, gssd, cause, out),
            Event::Detached { gssd } => self.detached(gssd, out),
            Event::Wiped { vssd, bad } => self.wiped(vssd, bad, out),
            Event::Unpool { home } => self.unpool(now, home, out),
            Event::Swapped { one, other, bad } => self.swapped(one, other, bad, out),
        };
        self.counters.ignored += u64::from(!known);
    }

    /// When it is to be told [`Event::Tick`]; before the first event: never.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        deadline.into_iter().chain(self.redate_at).min()
    }

    /// The gSSDs that nobody uses.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What is known of a gSSD.
    #[must_use]
    pub fn gssd(&self, id: GssdId) -> Option<&Gssd> {
        self.gssds.get(&id).map(|entry| &entry.gssd)
    }

    /// All gSSDs, those that are being made included.
    pub fn gssds(&self) -> impl Iterator<Item = (GssdId, &Gssd)> {
        self.gssds.iter().map(|(id, entry)| (*id, &entry.gssd))
    }

    /// A ghost's gSSDs by slot, those that are being taken away included.
    pub fn slots(&self, ghost: VssdId) -> impl Iterator<Item = (u8, GssdId)> {
        self.vssds.get(&ghost).into_iter().flat_map(|ghost| ghost.slots.iter().map(|(slot, id)| (*slot, *id)))
    }

    /// What a home lends: gSSDs, those on their way included.
    pub fn lent(&self, home: VssdId) -> impl Iterator<Item = GssdId> {
        self.vssds.get(&home).into_iter().flat_map(|home| home.lent.iter().copied())
    }

    /// The vSSDs that there are.
    pub fn vssds(&self) -> impl Iterator<Item = (VssdId, VssdKind)> {
        self.vssds.iter().map(|(id, vssd)| (*id, vssd.kind))
    }

    /// Until when a gSSD's harvest VM wants it, where one has it.
    #[must_use]
    pub fn until(&self, id: GssdId) -> Option<Time> {
        self.gssds.get(&id).filter(|entry| entry.gssd.in_use).map(|entry| entry.until)
    }

    /// Whether a gSSD is being taken from its harvest VM.
    #[must_use]
    pub fn is_leaving(&self, id: GssdId) -> bool {
        matches!(self.stage(id), Some(Stage::Evacuating | Stage::Detaching))
    }

    /// Whether what an action says is still to be done: it was given out, and nobody answered it since. Only of those
    /// that are answered by an event; of others never.
    #[must_use]
    pub fn awaits(&self, action: &Action) -> bool {
        let is = |id: GssdId, stage| self.stage(id) == Some(stage);
        let there = |id: GssdId, ghost: VssdId, slot: u8| {
            self.gssds.get(&id).is_some_and(|entry| entry.gssd.ghost == Some(ghost) && entry.slot == slot)
        };
        match *action {
            Action::Carve { gssd, .. } => is(gssd, Stage::Carving),
            Action::Erase { gssd } => is(gssd, Stage::Erasing),
            Action::Evacuate { gssd, ghost, slot } => is(gssd, Stage::Evacuating) && there(gssd, ghost, slot),
            Action::Detach { gssd, ghost, slot } => is(gssd, Stage::Detaching) && there(gssd, ghost, slot),
            Action::Wipe { vssd } => self.vssds.get(&vssd).is_some_and(|vssd| vssd.wiping),
            Action::Journal(_)
            | Action::Attach { .. }
            | Action::Return { .. }
            | Action::Keep { .. }
            | Action::Answer { .. }
            | Action::Report(_) => false,
        }
    }

    /// Whether a gSSD is clean and can be had.
    #[must_use]
    pub fn is_pooled(&self, id: GssdId) -> bool {
        self.stage(id) == Some(Stage::Pooled)
    }

    /// `true` if a gSSD is being made: it can be had once it is erased.
    #[must_use]
    pub fn is_coming(&self, id: GssdId) -> bool {
        let coming =
            |entry: &Entry| matches!(entry.stage, Stage::Carving | Stage::Erasing) && !entry.withdrawn;
        self.gssds.get(&id).is_some_and(coming)
    }

    /// The channels that a vSSD owns.
    #[must_use]
    pub fn channels(&self, id: VssdId) -> &[u16] {
        self.vssds.get(&id).map(|vssd| vssd.channels.as_slice()).unwrap_or_default()
    }

    /// Whether a vSSD is to go.
    #[must_use]
    pub fn is_deleting(&self, id: VssdId) -> bool {
        self.vssds.get(&id).is_some_and(|vssd| vssd.deleting)
    }

    /// What it has done since it was made or recovered.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The settings, as taken.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Does what a step says, and gives it out. Whether that could be done, which it can.
    fn commit(&mut self, step: Step, out: &mut Vec<Action>) -> bool {
        let applied = self.apply(&step);
        debug_assert!(applied.is_ok(), "{step:?}: {applied:?}");
        if applied.is_ok() && self.settings.journal {
            out.push(Action::Journal(step));
        }
        applied.is_ok()
    }

    fn stage(&self, id: GssdId) -> Option<Stage> {
        self.gssds.get(&id).map(|entry| entry.stage)
    }

    /// Time has passed.
    fn tick(&mut self, now: Time, out: &mut Vec<Action>) -> bool {
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

/// A time a while after another; `None` of a while is for ever.
fn after(time: Time, span: Option<Duration>) -> Time {
    span.map_or(Time(u64::MAX), |span| time + span)
}

#[cfg(test)]
mod tests;
