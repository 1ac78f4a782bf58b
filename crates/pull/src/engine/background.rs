//! Work that nobody waits for: how much of it is on the link, and what comes next.

use super::{BUDGET, Engine, UNVERIFIED_MAX};
use crate::estimator::Pace;
use crate::request::Past;
use crate::window::Shape;
use crate::{Action, Priority, Settings, Sharing, World};
use std::time::Duration;

/// So long after a miss the next one need not be expected.
const CALM: Duration = Duration::from_millis(250);

impl Engine {
    /// Sends background requests while there is room. Returns whether there is more to look at than one event may.
    pub(super) fn send_background(&mut self, world: &dyn World, actions: &mut Vec<Action>) -> bool {
        let mut budget = BUDGET;
        let surveying =
            !self.left.is_off() && self.left.survey(self.now, &mut budget, self.requests.left() > 0, world);
        let mut room = self.has_room();
        while room && self.send_one(&mut budget, world, actions) {
            room = self.has_room();
        }
        surveying || (room && budget == 0)
    }

    /// Whether the link takes one more.
    fn has_room(&self) -> bool {
        let (idle, settings) = (self.reads.is_empty(), &self.settings);
        let misses_allow = match settings.sharing {
            // What is asked for at the same moment would come between the bytes of a miss, not behind them.
            Sharing::Fill => {
                self.queues.is_empty(Priority::Miss)
                    && (self.wire.misses() == 0 || self.now >= self.misses_left_at)
            }
            Sharing::Strict => idle,
        };
        let depth = self.wire.background();
        let enough = if idle { settings.depth_min } else { 0 };
        misses_allow
            && self.now >= self.sources.paused_until()
            && depth < settings.depth_max
            && (depth < enough || self.wire.bytes() <= self.pace().pipe)
    }

    fn pace(&self) -> Pace {
        let calm = self.reads.is_empty() && self.last_miss.is_none_or(|at| self.now.since(at) > CALM);
        self.estimator.pace(&self.settings, calm)
    }

    /// Sends the next one; whether there was one.
    fn send_one(&mut self, budget: &mut u32, world: &dyn World, actions: &mut Vec<Action>) -> bool {
        if let Some(fetch) = self.queues.pop(Priority::Preload) {
            self.send(fetch, world, actions);
            return true;
        }
        if self.requests.background() >= self.settings.depth_max.saturating_add(UNVERIFIED_MAX) {
            return false;
        }
        let Settings { gap, look_ahead, .. } = self.settings;
        let shape = Shape { gap, max: self.pace().request, look_ahead };
        let next = self.preload.take(shape, budget, world, &self.active, &mut self.counters);
        if let Some(range) = next {
            let fetch = self.request(range, Priority::Preload, Past::default());
            self.send(fetch, world, actions);
            return true;
        }
        if *budget == 0 {
            return false;
        }
        if let Some(fetch) = self.queues.pop(Priority::Left) {
            self.send(fetch, world, actions);
            return true;
        }
        let Some(range) = self.left.take(self.now, shape, budget, world, &self.active) else { return false };
        let fetch = self.request(range, Priority::Left, Past::default());
        self.send(fetch, world, actions);
        true
    }
}
