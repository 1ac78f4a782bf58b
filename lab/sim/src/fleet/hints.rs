//! Hints: a tracker that counts what disks read, and agents that make a plan of its answers, which is that of all disks
//! of the host. Their messages take a round trip; the bytes are counted, and are too few to queue.

use super::Fleet;
use super::model::HintsModel;
use super::queue::Happening;
use crate::slab::Slab;
use headstart_block::{ByteRange, Plan, SLICE_SIZE};
use headstart_replay::time::Nanos;
use headstart_swarm::PeerKey;
use headstart_swarm::hints::{Hints, Tally};
use headstart_swarm::tracker::{HintAnswer, HintReport, ImageCounts, ImageKey, Tracker, TrackerSettings};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The image that all disks are of.
const IMAGE: ImageKey = ImageKey(1);

/// Bytes of a message without its list, and of an item of the list, which is written densely.
const HEAD: u64 = 60;
const ITEM: u64 = 6;

/// The tracker, and the state of agents.
#[derive(Debug)]
pub(super) struct Hinting {
    tracker: Tracker,
    /// By host.
    agents: Vec<Agent>,
    /// By disk: a bit for each slice that it has read.
    read: Vec<Vec<u64>>,
    under_way: Slab<UnderWay>,
}

#[derive(Debug)]
struct Agent {
    hints: Hints,
    /// Disks of the host.
    disks: Vec<u32>,
    /// The time of the entry in the queue for its report.
    entered: Nanos,
}

#[derive(Debug)]
enum UnderWay {
    Report(u32, HintReport),
    Answer(u32, HintAnswer),
}

impl Hinting {
    pub(super) fn new(model: &HintsModel, hosts: u32, disks: usize) -> Self {
        let mut tracker =
            Tracker::new(1, TrackerSettings { threshold: model.threshold, ..TrackerSettings::default() });
        if let Some(known) = &model.known {
            tracker.load(&ImageCounts { image: IMAGE, ..known.clone() });
        }
        let agent =
            || Agent { hints: Hints::new(IMAGE, model.every), disks: Vec::new(), entered: Nanos::NEVER };
        Self {
            tracker,
            agents: (0..hosts).map(|_| agent()).collect(),
            read: vec![Vec::new(); disks],
            under_way: Slab::default(),
        }
    }

    /// The slices of `range` that a disk has not read.
    fn unread(&self, disk: u32, range: ByteRange) -> impl Iterator<Item = u32> {
        let read = &self.read[disk as usize];
        let slices = range.offset() / SLICE_SIZE..range.end().div_ceil(SLICE_SIZE);
        slices
            .filter_map(|slice| u32::try_from(slice).ok())
            .filter(|slice| read.get(*slice as usize / 64).is_none_or(|word| word >> (slice % 64) & 1 == 0))
    }

    /// The tracker's counts at the end, and the tally of hints on all hosts.
    pub(super) fn outcome(&self) -> (Option<ImageCounts>, Tally) {
        let mut all = Tally::default();
        for tally in self.agents.iter().map(|agent| agent.hints.tally()) {
            all.reads += tally.reads;
            all.foreseen += tally.foreseen;
            all.hints += tally.hints;
            all.dropped += tally.dropped;
        }
        (self.tracker.counts(IMAGE), all)
    }
}

impl Fleet<'_> {
    /// Adds a new disk: it follows the present hints.
    pub(super) fn hints_join(&mut self, disk: u32, host: u32) {
        let Some(hinting) = &mut self.hinting else { return };
        let agent = &mut hinting.agents[host as usize];
        agent.hints.joined();
        agent.disks.push(disk);
        let plan = agent.hints.plan();
        if plan != Plan::Lazy && self.workload.plan == Plan::Lazy {
            self.follow(disk, plan);
        }
        self.report_when_due(host);
    }

    /// Notes that a disk's last read is complete.
    pub(super) fn hints_booted(&mut self, host: u32) {
        if let Some(hinting) = &mut self.hinting {
            hinting.agents[host as usize].hints.booted();
        }
    }

    /// `true` if a disk's read is to be reported.
    pub(super) fn hints_want(&self, disk: u32, range: ByteRange) -> bool {
        self.hinting.as_ref().is_some_and(|hinting| hinting.unread(disk, range).next().is_some())
    }

    /// Notes a disk's read, at the time `at` after its creation.
    pub(super) fn hints_note(&mut self, disk: u32, host: u32, range: ByteRange, at: Nanos) {
        let Some(hinting) = &mut self.hinting else { return };
        let new: Vec<u32> = hinting.unread(disk, range).collect();
        for slice in &new {
            let read = &mut hinting.read[disk as usize];
            let word = *slice as usize / 64;
            if read.len() <= word {
                read.resize(word + 1, 0);
            }
            read[word] |= 1 << (slice % 64);
            hinting.agents[host as usize].hints.read(*slice, Duration::from_nanos(at.0));
        }
        if !new.is_empty() {
            self.report_when_due(host);
        }
    }

    fn report_when_due(&mut self, host: u32) {
        let Some(hinting) = &mut self.hinting else { return };
        let agent = &mut hinting.agents[host as usize];
        let due = agent.hints.due().map(|due| Nanos::of_engine(due).max(self.now));
        if let Some(due) = due.filter(|due| *due < agent.entered) {
            agent.entered = due;
            self.agenda.enter(due, Happening::Report(host));
        }
    }

    /// Sends an agent's report, if there is anything to report.
    pub(super) fn report(&mut self, host: u32) {
        let half = Nanos(Nanos::from_duration(self.model.links.round_trip).0 / 2);
        let Some(hinting) = &mut self.hinting else { return };
        let agent = &mut hinting.agents[host as usize];
        if agent.entered != self.now || !self.hosts[host as usize].alive {
            return;
        }
        agent.entered = Nanos::NEVER;
        if let Some(report) = agent.hints.report(self.now.engine_time()) {
            self.hosts[host as usize].talk += HEAD + ITEM * report.accesses.len() as u64;
            let number = hinting.under_way.insert(UnderWay::Report(host, report));
            self.agenda.enter(self.now.plus(half), Happening::Hint(number));
        }
        self.report_when_due(host);
    }

    /// Takes a report that has come to the tracker, or its answer that has come to the agent.
    pub(super) fn hint(&mut self, number: u32) {
        let lost = self.has_no_tracker();
        let half = Nanos(Nanos::from_duration(self.model.links.round_trip).0 / 2);
        let Some(hinting) = &mut self.hinting else { return };
        match hinting.under_way.take(number).filter(|_| !lost) {
            Some(UnderWay::Report(host, report)) => {
                let answer = hinting.tracker.report(PeerKey(u64::from(host)), &report);
                self.hosts[host as usize].talk += HEAD + ITEM * answer.hints.len() as u64;
                let number = hinting.under_way.insert(UnderWay::Answer(host, answer));
                self.agenda.enter(self.now.plus(half), Happening::Hint(number));
            }
            Some(UnderWay::Answer(host, answer)) => {
                let agent = &mut hinting.agents[host as usize];
                if !agent.hints.on_answer(&answer) || self.workload.plan != Plan::Lazy {
                    return;
                }
                let plan = agent.hints.plan();
                for disk in agent.disks.clone() {
                    if self.disks[disk as usize].is_reading() && self.hosts[host as usize].alive {
                        self.follow(disk, plan.clone());
                    }
                }
            }
            None => {}
        }
    }
}
