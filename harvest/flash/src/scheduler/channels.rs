//! All channels of flash, each with its regular VM.

use super::{Budget, ChannelScheduler, Class, Done, SchedulerSettings, Speed, Ticket};
use crate::device::Geometry;
use crate::device::timing::FlashOp;
use std::collections::BTreeMap;
use std::time::Duration;

/// The schedulers of all channels. Channels of the same owner share a [`Budget`].
#[derive(Clone, Debug)]
pub struct ChannelSchedulers {
    settings: SchedulerSettings,
    speed: Speed,
    schedulers: Vec<ChannelScheduler>,
    /// The time at which each scheduler is to be advanced next, as of its last advance.
    next: Vec<Option<Duration>>,
    /// The owner of each channel.
    owners: Vec<u32>,
    budgets: BTreeMap<u32, Budget>,
}

impl ChannelSchedulers {
    /// All channels of such flash, of one owner, 0.
    #[must_use]
    pub fn new(geometry: &Geometry, speed: Speed, settings: SchedulerSettings) -> Self {
        let channels = usize::from(geometry.channels);
        Self {
            settings,
            speed,
            schedulers: vec![ChannelScheduler::new(geometry, speed, settings); channels],
            next: vec![None; channels],
            owners: vec![0; channels],
            budgets: BTreeMap::from([(0, Budget::new(&settings))]),
        }
    }

    /// The speed of its channels.
    #[must_use]
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// Gives the channel to another owner (a vSSD's number) from now on; call it before its operations come. Does
    /// nothing if there is no such channel.
    pub fn set_owner(&mut self, channel: u16, owner: u32) {
        if let Some(of) = self.owners.get_mut(usize::from(channel)) {
            *of = owner;
            self.budgets.entry(owner).or_insert_with(|| Budget::new(&self.settings));
            self.budgets.retain(|owner, _| self.owners.contains(owner));
        }
    }

    /// The account of an owner.
    #[must_use]
    pub fn budget(&self, owner: u32) -> Option<&Budget> {
        self.budgets.get(&owner)
    }

    /// The scheduler of a channel.
    #[must_use]
    pub fn scheduler(&self, channel: u16) -> Option<&ChannelScheduler> {
        self.schedulers.get(usize::from(channel))
    }

    /// The present duration of a harvest VM's program on each channel: [`ChannelScheduler::program_time`].
    #[must_use]
    pub fn program_times(&self, now: Duration) -> Vec<Duration> {
        self.schedulers.iter().map(|scheduler| scheduler.program_time(now)).collect()
    }

    /// Takes an operation. If there is no such channel, it is never done.
    pub fn submit(&mut self, now: Duration, channel: u16, ticket: Ticket, class: Class, op: FlashOp) {
        self.with(usize::from(channel), |scheduler, budget| scheduler.submit(now, ticket, class, op, budget));
    }

    /// Takes the end of an operation that had leave, on flash without a speed of its own.
    pub fn ended(&mut self, now: Duration, channel: u16, class: Class) {
        self.with(usize::from(channel), |scheduler, budget| scheduler.ended(now, class, budget));
    }

    /// Takes regular operations that were not submitted, on flash without a speed of its own: one came or ended at
    /// `last`, and `in_flight` are on their way.
    pub fn passed(&mut self, channel: u16, last: Duration, in_flight: u32) {
        self.with(usize::from(channel), |scheduler, _| scheduler.passed(last, in_flight));
    }

    /// Lets time pass. Operations that are done by now are added to `done`, in order.
    pub fn advance(&mut self, now: Duration, done: &mut Vec<Done>) {
        // In order of time, because channels share budgets.
        while let Some((at, index)) = self.first().filter(|(at, _)| *at <= now) {
            self.with(index, |scheduler, budget| scheduler.advance(at, budget, done));
        }
    }

    /// The time at which to [advance](Self::advance) next; `None` while nothing waits or is on its way.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.first().map(|(at, _)| at)
    }

    fn first(&self) -> Option<(Duration, usize)> {
        self.next.iter().enumerate().filter_map(|(index, next)| Some(((*next)?, index))).min()
    }

    fn with(&mut self, index: usize, act: impl FnOnce(&mut ChannelScheduler, &mut Budget)) {
        let Some((scheduler, owner)) = self.schedulers.get_mut(index).zip(self.owners.get(index)) else {
            return;
        };
        let budget = self.budgets.entry(*owner).or_insert_with(|| Budget::new(&self.settings));
        act(scheduler, budget);
        self.next[index] = scheduler.next(budget);
    }
}
