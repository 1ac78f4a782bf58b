//! The scheduler of a channel: operations of regular VMs come first, whatever that costs harvest VMs. No operation
//! starves.
//!
//! A [`ChannelScheduler`] is a channel with its queues: one for each of four [classes](Class) and each die, in order of
//! arrival. An operation that has started runs to its end (flash cannot be interrupted, unless it can
//! [suspend](crate::device::timing::Speeds::suspend) erasures), so strict priority alone does not protect a regular VM:
//! its reads would find the dies full of programs of 0.9 ms that started just before. Two mechanisms protect it:
//!
//! * the *guard*: an operation of a harvest VM normally starts only if no operation of a higher class waits and no
//!   operation of the regular VM came for 2 ms ([`SchedulerSettings::guard`]);
//! * the *budget* ([`Budget`]), which all channels of a regular VM share. The time for which harvest operations make
//!   regular ones wait is measured. By default it may be at most 3% of the time of the regular VM's threads for reads
//!   and programs, and 1% for erasures. If more was used (the VM is *in debt*), harvest operations wait. While the
//!   budget is at least half full, harvest operations need not wait for the 2 ms. So a regular VM loses at most these
//!   shares of its throughput, whether its threads compute or wait for I/O.
//!
//! *Guarantees*, in which `bound` and `limit` are of the [`SchedulerSettings`]. (1) While an operation of a higher
//! class waits, an operation of a lower class starts only after it has waited for `bound` itself. Such operations of a
//! class start one at a time, and those of harvest VMs only if the regular VM is not in debt. (2) A harvest VM's
//! operation that is first in its queue and has waited for `limit` (an erasure for four times that) starts as soon as
//! its die is free, before all others: nothing starves. The scheduler counts the waits of the class's other operations
//! anew when one starts in this way. (3) Operations of a class on the same die start in the order in which they came.
//! (4) The scheduler never rests while an operation waits that may start.
//!
//! A file or a real device has no emulated speed ([`Speed::Bucket`]); a token bucket may limit its channels. There an
//! operation is reported as done when it may begin, and the driver reports when it has
//! [ended](ChannelScheduler::ended). The cost of waiting cannot be measured there, so there is no budget: the guard and
//! `bound` are the only protection, and at most [`SchedulerSettings::depth`] harvest operations of a channel are under
//! way at once. An operation that has waited for `limit` starts even beyond that number.
//!
//! Times are `Duration`s since a zero that the *driver* (the code that calls the scheduler) chooses. A scheduler that
//! is called late loses nothing: it starts each operation as of the moment at which the operation could have started.

mod budget;
mod channels;
mod held;
mod pace;
#[cfg(test)]
mod tests;

pub use budget::Budget;
pub use channels::ChannelSchedulers;
pub use pace::Speed;

use crate::device::Geometry;
use crate::device::timing::{FlashOp, Work};
use held::Held;
use pace::Pace;
use std::collections::VecDeque;
use std::time::Duration;

/// The class of an operation, by the VM that it serves and by whether the VM waits for it; the most important
/// class first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Reads and writes that a regular VM waits for.
    Regular,
    /// Garbage collection for a regular VM's vSSD.
    RegularCollect,
    /// Reads and writes that a harvest VM waits for.
    Harvest,
    /// Garbage collection for a harvest VM's vSSD, and erasures of flash that was lent.
    HarvestCollect,
}

impl Class {
    /// All classes, the most important first.
    pub const ALL: [Self; 4] = [Self::Regular, Self::RegularCollect, Self::Harvest, Self::HarvestCollect];

    /// Returns `true` if the class serves a harvest VM.
    #[must_use]
    pub fn is_harvest(self) -> bool {
        self >= Self::Harvest
    }
}

/// The number of an operation. The driver (the code that calls the scheduler) chooses it, and uses it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The report that an operation is done (on emulated flash) or may start (on a file or a real device, which take time
/// of their own). In the second case the driver reports the end of the operation by [`ChannelScheduler::ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The operation's number.
    pub ticket: Ticket,
    /// The time at which the operation was done, or from which it may start, on the driver's clock.
    pub at: Duration,
}

/// The settings by which regular VMs are protected from harvest VMs on their channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerSettings {
    /// The duration for which no regular operation may have arrived (on a file or a real device, arrived or ended)
    /// before a harvest operation starts. On emulated flash it has no effect while the [`Budget`] is at least half
    /// full.
    pub guard: Duration,
    /// The duration for which an operation waits before it may start ahead of a higher class.
    pub bound: Duration,
    /// The time for which a harvest VM's operation waits before it starts ahead of all others, as soon as its die is
    /// free; four times that for an erasure.
    pub limit: Duration,
    /// The share of the time of a regular VM's threads that waiting for harvest reads and programs may take,
    /// 0 to 1.
    pub share: f64,
    /// The share of the time of a regular VM's threads that waiting for harvest VMs' erasures may take, 0 to
    /// 1.
    pub erase_share: f64,
    /// The limit of harvest operations under way at once on one channel of a file or a real device; only operations
    /// that have waited for `limit` exceed it. It has no effect on emulated flash.
    pub depth: u32,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            guard: Duration::from_millis(2),
            bound: Duration::from_millis(50),
            limit: Duration::from_secs(1),
            share: 0.03,
            erase_share: 0.01,
            depth: 2,
        }
    }
}

/// The scheduler of one channel: queues of waiting operations for each [`Class`], with priority for regular
/// VMs.
#[derive(Clone, Debug)]
pub struct ChannelScheduler {
    settings: SchedulerSettings,
    pace: Pace,
    now: Duration,
    /// By class, then die.
    queues: [Vec<VecDeque<Waiting>>; 4],
    waiting: [usize; 4],
    flights: Vec<Flight>,
    /// Operations that ended, and were not reported yet.
    done: Vec<Done>,
    /// The number of the next operation.
    came: u64,
    last_regular: Option<Duration>,
    /// The time at which an operation of the class last went ahead of its turn.
    forced: [Duration; 4],
    /// The spans that harvest operations held, while a regular one may have waited for them.
    holds: VecDeque<Hold>,
    /// Operations that have leave and have not ended, of regular and of harvest VMs.
    in_flight: [u32; 2],
    held: Held,
    /// The duration of a program on an otherwise idle channel.
    alone: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    op: FlashOp,
    since: Duration,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    ticket: Ticket,
    class: Class,
    done: Duration,
    erase: bool,
}

/// The spans that a harvest operation held.
#[derive(Clone, Debug)]
struct Hold {
    die: u16,
    span: crate::device::timing::Span,
    erase: bool,
}

/// The moment at which an operation may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    at: Duration,
    /// `true` if it goes ahead of a higher class, or is in debt.
    forced: bool,
}

impl ChannelScheduler {
    /// Returns the scheduler of an idle channel of flash with this layout.
    #[must_use]
    pub fn new(geometry: &Geometry, speed: Speed, settings: SchedulerSettings) -> Self {
        let pace = Pace::new(geometry, speed);
        let queues = [(); 4].map(|()| vec![VecDeque::new(); pace.dies()]);
        let (held, alone) = (Held::new(pace.dies()), pace.alone(geometry.page_size));
        Self {
            settings,
            pace,
            now: Duration::ZERO,
            queues,
            waiting: [0; 4],
            flights: Vec::new(),
            done: Vec::new(),
            came: 0,
            last_regular: None,
            forced: [Duration::ZERO; 4],
            holds: VecDeque::new(),
            in_flight: [0; 2],
            held,
            alone,
        }
    }

    /// Adds an operation that came at `now` to the queue of its class. `budget` is the allowance of the regular VM that
    /// owns the channel. A later [`Self::advance`] reports the operation.
    pub fn submit(&mut self, now: Duration, ticket: Ticket, class: Class, op: FlashOp, budget: &mut Budget) {
        self.run(now, budget);
        if !class.is_harvest() {
            // The VM's writes wait for its collector, once it has no room.
            self.last_regular = Some(self.now);
        }
        if class == Class::Regular {
            budget.came(self.now);
        }
        self.came += 1;
        let die = usize::from(op.die) % self.pace.dies();
        let waiting = Waiting { ticket, op, since: self.now, number: self.came };
        self.queues[class as usize][die].push_back(waiting);
        self.waiting[class as usize] += 1;
        self.start_all(budget);
    }

    /// Advances the channel to `now`, and appends a [`Done`] to `done`, in order of time, for each operation that is
    /// done by then (on emulated flash) or may start by then (on a file or a real device).
    pub fn advance(&mut self, now: Duration, budget: &mut Budget, done: &mut Vec<Done>) {
        self.run(now, budget);
        done.append(&mut self.done);
    }

    /// Returns the time at which [`Self::advance`] is due; `None` if no operation waits and, on emulated flash, none is
    /// under way.
    #[must_use]
    pub fn next(&self, budget: &Budget) -> Option<Duration> {
        if self.done.is_empty() { self.next_event(budget) } else { Some(self.now) }
    }

    /// Notes that an operation of `class` has ended, which the scheduler had reported as [`Done`], on a file or a real
    /// device. Not to be called for emulated flash, whose operations the scheduler ends itself.
    pub fn ended(&mut self, now: Duration, class: Class, budget: &mut Budget) {
        self.run(now, budget);
        if class != Class::RegularCollect {
            let in_flight = &mut self.in_flight[usize::from(class.is_harvest())];
            *in_flight = in_flight.saturating_sub(1);
        }
        if class.is_harvest() {
            self.held.ended(self.now);
        }
        if class == Class::Regular {
            self.last_regular = Some(self.now);
        }
        self.start_all(budget);
    }

    /// Notes regular operations that were not submitted, on a file or a real device: the latest of them started or
    /// ended at `last`, and `in_flight` of them have not ended.
    pub fn passed(&mut self, last: Duration, in_flight: u32) {
        self.last_regular = self.last_regular.max(Some(last));
        self.in_flight[0] = in_flight;
    }

    /// Returns the number of operations of `class` that have not started.
    #[must_use]
    pub fn waiting(&self, class: Class) -> usize {
        self.waiting[class as usize]
    }

    /// Returns the time that a page program of a harvest VM takes on this channel at present, for comparing channels.
    /// Waits for operations of regular VMs are included, waits for operations of harvest VMs are not.
    #[must_use]
    pub fn program_time(&self, now: Duration) -> Duration {
        let of = |front: &Waiting| self.held.with(now, now.saturating_sub(self.waits_since(front)));
        let programs =
            self.fronts().filter(|(class, front)| *class == Class::Harvest && is_program(front.op));
        let held = programs.map(|(_, front)| of(front)).fold(self.held.at(now), f64::max);
        self.alone + Duration::from_secs_f64(held)
    }

    /// The time since which the first of a queue of harvest VMs waits for others than them.
    fn waits_since(&self, front: &Waiting) -> Duration {
        let since = self.held.waits_since(usize::from(front.op.die) % self.pace.dies(), front.since);
        // The waits for a bucket's tokens are mostly their own.
        if self.pace.is_bucket() { since.max(self.pace.ready(front.op)) } else { since }
    }

    fn run(&mut self, now: Duration, budget: &mut Budget) {
        self.start_all(budget);
        while let Some(next) = self.next_event(budget).filter(|next| *next <= now) {
            self.now = self.now.max(next);
            self.end_flights(budget);
            self.start_all(budget);
        }
        self.now = self.now.max(now);
        budget.advance(self.now);
    }

    fn next_event(&self, budget: &Budget) -> Option<Duration> {
        let ends = self.flights.iter().map(|flight| flight.done).min();
        let starts = self.fronts().map(|(class, front)| self.turn(class, front, budget).at).min();
        let starts = starts.filter(|at| *at < Duration::MAX);
        // A start that is possible already has happened, unless time stands still: then it comes next.
        [ends, starts.map(|at| at.max(self.now + Duration::from_nanos(1)))].into_iter().flatten().min()
    }

    fn end_flights(&mut self, budget: &mut Budget) {
        while let Some((index, done)) = self.first_flight().filter(|(_, done)| *done <= self.now) {
            let flight = self.flights.swap_remove(index);
            self.notify(flight, done, budget);
        }
    }

    fn first_flight(&self) -> Option<(usize, Duration)> {
        let flights = self.flights.iter().enumerate();
        flights.map(|(index, flight)| (index, flight.done)).min_by_key(|(_, done)| *done)
    }

    fn notify(&mut self, flight: Flight, at: Duration, budget: &mut Budget) {
        if flight.class == Class::Regular {
            budget.went(at);
        }
        self.done.push(Done { ticket: flight.ticket, at });
    }

    /// The first of each queue.
    fn fronts(&self) -> impl Iterator<Item = (Class, &Waiting)> {
        let of = |class: Class| {
            self.queues[class as usize].iter().filter_map(move |queue| Some((class, queue.front()?)))
        };
        Class::ALL.into_iter().filter(|class| self.waiting[*class as usize] > 0).flat_map(of)
    }

    /// Starts all that may start now.
    fn start_all(&mut self, budget: &mut Budget) {
        budget.advance(self.now);
        loop {
            let turns = self.fronts().map(|(class, front)| (self.turn(class, front, budget), class, front));
            let ready = turns.filter(|(turn, _, _)| turn.at <= self.now);
            let first = ready.min_by_key(|(turn, class, front)| (!turn.forced, *class, front.number));
            let Some((turn, class, front)) = first else { break };
            let (forced, die) = (turn.forced, usize::from(front.op.die) % self.pace.dies());
            let Some(front) = self.queues[class as usize][die].pop_front() else { break };
            self.waiting[class as usize] -= 1;
            if forced {
                self.forced[class as usize] = self.now;
            }
            self.start(class, front, budget);
        }
        let regular = self.fronts().filter(|(class, _)| !class.is_harvest());
        let oldest = regular.map(|(_, front)| front.since).min().unwrap_or(self.now);
        self.holds.retain(|hold| hold.span.die.end.max(hold.span.bus.end) > oldest);
    }

    fn start(&mut self, class: Class, front: Waiting, budget: &mut Budget) {
        if !class.is_harvest() {
            self.charge(&front, budget);
        }
        if class == Class::Harvest && is_program(front.op) {
            self.held.add(self.now, self.now.saturating_sub(self.waits_since(&front)));
        }
        let span = self.pace.start(self.now, front.op);
        let erase = front.op.work == Work::Erase;
        let flight = Flight { ticket: front.ticket, class, done: span.die.end, erase };
        if class.is_harvest() {
            self.held.started(usize::from(front.op.die) % self.pace.dies(), &span);
            self.holds.push_back(Hold { die: front.op.die, span, erase });
        }
        if self.pace.is_bucket() {
            if class != Class::RegularCollect {
                self.in_flight[usize::from(class.is_harvest())] += 1;
            }
            self.notify(flight, self.now, budget);
            return;
        }
        self.flights.push(flight);
        // A running erasure may have been suspended for this one.
        if let Some(until) = self.pace.erasing() {
            let now = self.now;
            self.flights.iter_mut().filter(|it| it.erase && it.done > now).for_each(|it| it.done = until);
        }
    }

    /// Charges the time for which harvest operations made this one wait.
    fn charge(&self, front: &Waiting, budget: &mut Budget) {
        let mine = |hold: &Hold| {
            let span = if hold.die == front.op.die { &hold.span.die } else { &hold.span.bus };
            (span.start, span.end, hold.erase)
        };
        let mut held: Vec<_> = self.holds.iter().map(mine).collect();
        held.sort_unstable();
        let mut covered = front.since;
        for (from, until, erase) in held {
            let (from, until) = (from.max(covered), until.min(self.now));
            if from < until {
                budget.charge(until - from, erase);
                covered = until;
            }
        }
    }

    /// The moment at which the first of a queue may start, as things stand.
    fn turn(&self, class: Class, front: &Waiting, budget: &Budget) -> Turn {
        let ready = self.pace.ready(front.op);
        let higher =
            Class::ALL.into_iter().take_while(|it| *it < class).any(|it| self.waiting[it as usize] > 0);
        let waits = front.since.max(self.forced[class as usize]);
        let bound = waits + self.settings.bound;
        if !class.is_harvest() {
            return Turn {
                at: if higher { ready.max(bound) } else { ready },
                forced: higher && class != Class::Regular,
            };
        }
        let erase = front.op.work == Work::Erase;
        let limit = waits + self.settings.limit * if erase { 4 } else { 1 };
        let quiet = self.last_regular.map_or(Duration::ZERO, |last| last + self.settings.guard);
        let (usual, early) = if self.pace.is_bucket() {
            let free = self.in_flight[1] < self.settings.depth;
            let usual = (free && self.in_flight[0] == 0).then_some(quiet);
            (usual, if free { bound } else { limit })
        } else {
            let out_of_debt = budget.has_at(0.0, erase);
            let usual = quiet.max(out_of_debt).min(budget.has_at(0.5, erase));
            (Some(usual), bound.max(out_of_debt).min(limit))
        };
        let usual = usual.filter(|_| !higher).map(|at| ready.max(at));
        match usual {
            Some(at) if at <= ready.max(early) => Turn { at, forced: false },
            _ => Turn { at: ready.max(early), forced: true },
        }
    }
}

fn is_program(op: FlashOp) -> bool {
    matches!(op.work, Work::Program(_))
}
