//! All channels of flash, each with its regular VM.

use super::{Budget, ChannelScheduler, Class, Done, SchedulerSettings, Speed, Ticket};
use crate::device::Geometry;
use crate::device::timing::FlashOp;
use std::collections::BTreeMap;
use std::time::Duration;

/// The schedulers of all channels of an SSD. The channels of one owner (a vSSD) share a [`Budget`].
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
    /// Returns the schedulers for flash of this layout. All channels belong to owner 0.
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

    /// Returns the source and settings of the channels' speed.
    #[must_use]
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// Gives a channel to another owner, `owner` being a vSSD's number, for operations submitted from now on.
    /// Does nothing if there is no such channel.
    pub fn set_owner(&mut self, channel: u16, owner: u32) {
        if let Some(of) = self.owners.get_mut(usize::from(channel)) {
            *of = owner;
            self.budgets.entry(owner).or_insert_with(|| Budget::new(&self.settings));
            self.budgets.retain(|owner, _| self.owners.contains(owner));
        }
    }

    /// Returns the allowance of an owner; `None` if the owner has no channel.
    #[must_use]
    pub fn budget(&self, owner: u32) -> Option<&Budget> {
        self.budgets.get(&owner)
    }

    /// Returns the scheduler of a channel; `None` if there is no such channel.
    #[must_use]
    pub fn scheduler(&self, channel: u16) -> Option<&ChannelScheduler> {
        self.schedulers.get(usize::from(channel))
    }

    /// Returns for each channel, in the order of their numbers, the time that a page program of a harvest VM takes
    /// there at present: [`ChannelScheduler::program_time`].
    #[must_use]
    pub fn program_times(&self, now: Duration) -> Vec<Duration> {
        self.schedulers.iter().map(|scheduler| scheduler.program_time(now)).collect()
    }

    /// Adds an operation to the queue of a channel. An operation for a channel that does not exist is never
    /// done.
    pub fn submit(&mut self, now: Duration, channel: u16, ticket: Ticket, class: Class, op: FlashOp) {
        self.with(usize::from(channel), |scheduler, budget| scheduler.submit(now, ticket, class, op, budget));
    }

    /// Notes that an operation of `class` on `channel` has ended, which the scheduler had reported as [`Done`], on a
    /// file or a real device: [`ChannelScheduler::ended`]. Does nothing if there is no such channel.
    pub fn ended(&mut self, now: Duration, channel: u16, class: Class) {
        self.with(usize::from(channel), |scheduler, budget| scheduler.ended(now, class, budget));
    }

    /// Notes regular operations that were not submitted, on a file or a real device:
    /// [`ChannelScheduler::passed`]. Does nothing if there is no such channel.
    pub fn passed(&mut self, channel: u16, last: Duration, in_flight: u32) {
        self.with(usize::from(channel), |scheduler, _| scheduler.passed(last, in_flight));
    }

    /// Advances all channels to `now`, and appends a [`Done`] to `done`, in order of time, for each operation that is
    /// done by then (on emulated flash) or may start by then (on a file or a real device).
    pub fn advance(&mut self, now: Duration, done: &mut Vec<Done>) {
        // In order of time, because channels share budgets.
        while let Some((at, index)) = self.first().filter(|(at, _)| *at <= now) {
            self.with(index, |scheduler, budget| scheduler.advance(at, budget, done));
        }
    }

    /// Returns the time at which [`Self::advance`] is due; `None` if no operation waits and, on emulated flash, none is
    /// under way.
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
