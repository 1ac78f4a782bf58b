//! Work without waiters: the amount of it on the link, and the choice of the next request.

use super::{BUDGET, Engine, UNVERIFIED_MAX};
use crate::estimator::Pace;
use crate::request::Past;
use crate::window::Shape;
use crate::{BackgroundSharing, BlobRange, BlobView, EngineAction, EngineSettings, Priority};
use std::time::Duration;

/// The time after a miss from which on the next one need not be expected.
const CALM: Duration = Duration::from_millis(250);

/// The requests that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    None,
    /// Beside a stream: blocks that are read on at this moment and that the plan did not name.
    Urgent,
    Any,
}

impl Engine {
    /// Sends background requests while there is room. Returns `true` if there is more work than one event may do.
    pub(super) fn send_background(&mut self, view: &dyn BlobView, actions: &mut Vec<EngineAction>) -> bool {
        let mut budget = BUDGET;
        let surveying =
            !self.fill.is_off() && self.fill.survey(self.now, &mut budget, self.requests.fills() > 0, view);
        let mut room = self.room();
        while room != Room::None && self.send_one(room, &mut budget, view, actions) {
            room = self.room();
        }
        surveying || (room != Room::None && budget == 0)
    }

    /// `true` if the background may use the link at all.
    pub(super) fn misses_allow(&self) -> bool {
        match self.settings.sharing {
            // The bytes of a request that is sent at the same moment would come between those of a miss, not behind
            // them.
            BackgroundSharing::Fill => {
                self.queues.is_empty(Priority::Miss)
                    && (self.wire.misses() == 0 || self.now >= self.misses_left_at)
            }
            BackgroundSharing::Strict => self.reads.is_empty(),
        }
    }

    /// The kind of request that the link takes one more of.
    fn room(&self) -> Room {
        let (settings, depth) = (&self.settings, self.wire.background());
        if !self.misses_allow() || self.now < self.store.paused_until() || depth >= settings.depth_max {
            return Room::None;
        }
        let pace = self.pace();
        let streaming = !self.streams.is_empty() && self.streams_flow(pace);
        let enough = if self.reads.is_empty() && !streaming { settings.depth_min } else { 0 };
        if depth < enough || self.wire.bytes() <= pace.pipe {
            Room::Any
        } else if streaming && self.beside_streams() <= pace.pipe {
            Room::Urgent
        } else {
            Room::None
        }
    }

    pub(super) fn pace(&self) -> Pace {
        let calm = self.reads.is_empty() && self.last_miss.is_none_or(|at| self.now.since(at) > CALM);
        self.estimator.pace(&self.settings, calm)
    }

    /// Sends the next request; returns `true` if there was one.
    fn send_one(
        &mut self,
        room: Room,
        budget: &mut u32,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) -> bool {
        if room == Room::Urgent {
            let EngineSettings { gap, look_ahead, .. } = self.settings;
            let max = self.pace().request;
            let shape = Shape { gap, max, look_ahead, long: max, streamed: max };
            let next = self.preload.take_urgent(shape, budget, view, &self.active, &mut self.counters);
            return self.send_new(next, Priority::Preload, view, actions);
        }
        if let Some(fetch) = self.queues.pop(Priority::Preload) {
            self.send(fetch, view, actions);
            return true;
        }
        if self.requests.background() >= self.settings.depth_max.saturating_add(UNVERIFIED_MAX) {
            return false;
        }
        let EngineSettings { gap, look_ahead, stream_min, stream_max, .. } = self.settings;
        let Pace { request: max, probe, .. } = self.pace();
        let long = if probe { max } else { stream_max };
        let shape = Shape { gap, max, look_ahead, long, streamed: stream_min };
        let next = self.preload.take(shape, budget, view, &self.active, &mut self.counters);
        if self.send_new(next, Priority::Preload, view, actions) {
            return true;
        }
        if *budget == 0 {
            return false;
        }
        if let Some(fetch) = self.queues.pop(Priority::Fill) {
            self.send(fetch, view, actions);
            return true;
        }
        let next = self.fill.take(self.now, shape.short(), budget, view, &self.active);
        self.send_new(next, Priority::Fill, view, actions)
    }

    /// Makes a request of a range and sends it, if there is one; returns `true` if there was.
    fn send_new(
        &mut self,
        range: Option<BlobRange>,
        priority: Priority,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) -> bool {
        let Some(range) = range else { return false };
        let fetch = self.request(range, priority, Past::default());
        self.send(fetch, view, actions);
        true
    }
}
