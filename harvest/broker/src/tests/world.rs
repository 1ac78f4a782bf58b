//! A host that crashes: after each action of random lives, with torn journals, and goes on.
//!
//! The world is the state of a host: flash blocks, each with the last writer since its erasure; lenders with data that
//! must never be lost or touched by another; borrowers whose data must be there until they are told otherwise. Its
//! driver does actions by the rule of the journal, long ones later and in any order. After each action custody,
//! contents and the broker are checked, and at the end that nothing is left on its way.

use super::*;
use headstart_block::random::Random;
use headstart_flash::custody::Holder;
use headstart_flash::device::Geometry;
use headstart_flash::journal::{self, JournalRecord};
use std::collections::BTreeSet;

const CHANNEL_BLOCKS: u32 = 8;
const HOMES: [(u32, VssdKind, &[u16]); 4] = [
    (1, VssdKind::Regular, &[0, 1]),
    (2, VssdKind::Regular, &[2]),
    (3, VssdKind::Unsold, &[3, 4]),
    (4, VssdKind::Regular, &[5]),
];
const BORROWERS: [(u32, &[u16]); 2] = [(11, &[6]), (12, &[])];

fn geometry() -> Geometry {
    Geometry { channels: 7, dies: 1, planes: 1, blocks: CHANNEL_BLOCKS, pages: 1, page_size: 4096 }
}

fn settings() -> BrokerSettings {
    let grain = Grain { bandwidth: 1, capacity: 2, lasts: MINUTE * 30 };
    BrokerSettings {
        grain,
        per_home: 2,
        forecasts_to_reclaim: 2,
        overstay: Some(MINUTE * 60),
        ..BrokerSettings::default()
    }
}

/// The host crashed.
struct Crash;

struct World {
    random: Random,
    now: Time,
    broker: Broker,
    custody: Custody,
    /// The durable content of the journal's file.
    journal: Vec<u8>,
    chain: journal::Chain,
    /// Long actions that were begun.
    tasks: Vec<BrokerAction>,
    /// The last writer of each block.
    content: Vec<Option<VssdId>>,
    /// Blocks with data, each with its owner.
    live: BTreeMap<FlashBlock, VssdId>,
    bad: BTreeSet<FlashBlock>,
    /// The present number of each vSSD: a number is used once.
    numbers: BTreeMap<u32, VssdId>,
    next_number: u32,
    /// Actions until the crash.
    left: Option<usize>,
    actions: usize,
}

impl World {
    fn new(seed: u64, crash_after: Option<usize>) -> Self {
        Self {
            random: Random::new(seed),
            now: Time(0),
            broker: Broker::new(settings()),
            custody: Custody::new(geometry()),
            journal: journal::front(1),
            chain: journal::Chain::begin(1),
            tasks: Vec::new(),
            content: vec![None; geometry().total_blocks() as usize],
            live: BTreeMap::new(),
            bad: BTreeSet::new(),
            numbers: BTreeMap::new(),
            next_number: 100,
            left: crash_after,
            actions: 0,
        }
    }

    /// An instant at which the host may crash.
    fn instant(&mut self) -> Result<(), Crash> {
        self.actions += 1;
        self.check();
        match self.left.as_mut() {
            Some(0) => Err(Crash),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn event(&mut self, event: BrokerEvent) -> Result<(), Crash> {
        if let BrokerEvent::Release { borrower: vssd, gssd: None } | BrokerEvent::Deleted { vssd } = event {
            self.live.retain(|_, owner| *owner != vssd);
        }
        let mut actions = Vec::new();
        self.broker.on_event(self.now, event, &mut actions);
        self.begin(actions)
    }

    fn begin(&mut self, actions: Vec<BrokerAction>) -> Result<(), Crash> {
        for action in actions {
            match action {
                BrokerAction::Journal(step) => {
                    let (mut record, mut frame) = (Vec::new(), Vec::new());
                    journal::encode(&JournalRecord::Broker(step.clone()), &mut record).unwrap();
                    let before = self.chain;
                    self.chain.append(&record, &mut frame);
                    if self.left == Some(0) {
                        // Torn: none of it, some of it, or all but a byte.
                        let some = self.random.below(frame.len());
                        self.journal.extend(&frame[..some]);
                        self.chain = before;
                        return Err(Crash);
                    }
                    self.journal.extend(frame);
                    self.custody.apply(&step).unwrap();
                    if let BrokerStep::Leased { gssd, .. } = &step {
                        assert!(
                            self.blocks(*gssd).iter().all(|block| self.content[block.0 as usize].is_none())
                        );
                    }
                }
                BrokerAction::Return { gssd, lender } => {
                    for block in self.custody.take_returned(gssd).into_iter().flat_map(BlockRun::blocks) {
                        assert!(self.custody.may_touch(lender, block));
                        assert_eq!(self.content[block.0 as usize], None, "unerased at home");
                    }
                }
                BrokerAction::Report(BrokerReport { vssd: borrower, what, .. }) => {
                    if matches!(what, Notice::Evicted { .. }) {
                        self.live.retain(|_, owner| *owner != borrower);
                    }
                }
                BrokerAction::Attach { gssd, borrower, .. } => {
                    assert!(self.blocks(gssd).iter().all(|block| self.custody.may_touch(borrower, *block)));
                }
                BrokerAction::Answer { .. } | BrokerAction::Keep { .. } => {}
                long => self.tasks.push(long),
            }
            self.instant()?;
        }
        Ok(())
    }

    fn blocks(&self, gssd: GssdId) -> Vec<FlashBlock> {
        self.custody.blocks(gssd).into_iter().flat_map(BlockRun::blocks).collect()
    }

    /// Blocks that a vSSD may touch and has no data in.
    fn free(&self, vssd: VssdId) -> Vec<FlashBlock> {
        let all = (0..geometry().total_blocks()).map(FlashBlock);
        all.filter(|block| self.custody.may_touch(vssd, *block) && !self.live.contains_key(block)).collect()
    }

    /// Erases a block, or fails.
    fn erase(&mut self, block: FlashBlock) -> Result<bool, Crash> {
        assert!(!self.live.contains_key(&block), "data is erased");
        if self.random.below(40) == 0 || self.bad.contains(&block) {
            self.bad.insert(block);
        } else {
            self.content[block.0 as usize] = None;
        }
        self.instant()?;
        Ok(!self.bad.contains(&block))
    }

    fn write(&mut self, vssd: VssdId, block: FlashBlock) {
        assert!(self.custody.may_touch(vssd, block));
        let content = &mut self.content[block.0 as usize];
        assert!(content.is_none_or(|writer| writer == vssd), "reads what {content:?} wrote");
        *content = Some(vssd);
        self.live.insert(block, vssd);
    }

    /// Does a long action that was begun.
    fn finish(&mut self, task: usize) -> Result<(), Crash> {
        match self.tasks.swap_remove(task) {
            BrokerAction::Carve { gssd, lender, bandwidth, capacity } => {
                let mut blocks = self.free(lender);
                blocks.retain(|block| !self.bad.contains(block));
                blocks.truncate(capacity as usize);
                let capacity = u32::try_from(blocks.len()).unwrap();
                self.event(BrokerEvent::Carved {
                    gssd,
                    bandwidth,
                    capacity,
                    blocks: BlockRun::gather(blocks),
                })
            }
            BrokerAction::Erase { gssd } => {
                let mut bad = Vec::new();
                for block in self.blocks(gssd) {
                    if !self.erase(block)? {
                        bad.push(block);
                    }
                }
                self.event(BrokerEvent::Erased { gssd, bad })
            }
            BrokerAction::Evacuate { gssd, borrower, .. } => self.evacuate(gssd, borrower),
            BrokerAction::Detach { gssd, borrower, .. } => {
                for block in self.blocks(gssd) {
                    assert!(!self.live.contains_key(&block), "{borrower:?} loses data without a word");
                }
                self.event(BrokerEvent::Detached { gssd })
            }
            BrokerAction::Wipe { vssd } => {
                let mut bad = Vec::new();
                self.live.retain(|_, owner| *owner != vssd);
                for block in self.free(vssd) {
                    if !self.erase(block)? {
                        bad.push(block);
                    }
                }
                self.event(BrokerEvent::Wiped { vssd, bad })
            }
            other => unreachable!("{other:?} is not long"),
        }
    }

    fn evacuate(&mut self, gssd: GssdId, borrower: VssdId) -> Result<(), Crash> {
        let held = self.broker.slots(borrower).any(|(_, id)| id == gssd);
        let stays = |id: &GssdId| self.broker.stage(*id) == Some(Stage::Leased);
        let into: Vec<GssdId> = self.broker.slots(borrower).map(|(_, id)| id).filter(stays).collect();
        if !held || self.broker.stage(gssd) != Some(Stage::Evacuating) {
            return Ok(());
        }
        let mut space: Vec<FlashBlock> = into.into_iter().flat_map(|id| self.blocks(id)).collect();
        space.retain(|block| !self.live.contains_key(block) && !self.bad.contains(block));
        for block in self.blocks(gssd) {
            if self.live.contains_key(&block) {
                let Some(to) = space.pop() else {
                    return self.event(BrokerEvent::EvacuationFailed { gssd, cause: "no space".to_owned() });
                };
                self.write(borrower, to);
                self.live.remove(&block);
                self.instant()?;
            }
        }
        self.event(BrokerEvent::Evacuated { gssd })
    }

    /// Lives for `events` events.
    fn live(&mut self, events: usize) -> Result<(), Crash> {
        for _ in 0..events {
            self.now = self.now + Duration::from_secs(self.random.below(400) as u64);
            if !self.tasks.is_empty() && self.random.below(2) == 0 {
                let task = self.random.below(self.tasks.len());
                self.finish(task)?;
            } else {
                self.happen()?;
            }
        }
        Ok(())
    }

    fn happen(&mut self) -> Result<(), Crash> {
        let (lender, _, channels) = HOMES[self.random.below(HOMES.len())];
        let (borrower, own) = BORROWERS[self.random.below(BORROWERS.len())];
        let known = |id: u32| self.numbers.get(&id).copied().filter(|id| self.broker.vssds.contains_key(id));
        let (Some(lender), Some(borrower)) = (known(lender), known(borrower)) else { return self.create() };
        let owned = u32::try_from(channels.len()).unwrap() * CHANNEL_BLOCKS;
        let mut below = |below: u32| u32::try_from(self.random.below(below as usize)).unwrap();
        let (bandwidth, capacity, lasts) = (below(3), below(owned + 1), MINUTE * below(300));
        let bandwidth = u16::try_from(bandwidth).unwrap();
        match below(20) {
            0..5 => self.event(BrokerEvent::Forecast { vssd: lender, bandwidth, capacity, lasts }),
            5..9 => {
                let (partial, grow) = (below(2) == 0, below(2) == 0);
                let (request, vm, lasts) = (BrokerRequestId(1), "vm".to_owned(), lasts / 4);
                let request =
                    BrokerRequest { request, vm, borrower, bandwidth, capacity, lasts, partial, grow };
                self.event(BrokerEvent::Request(request))
            }
            9 => self.event(BrokerEvent::Forecast { vssd: borrower, bandwidth, capacity, lasts }),
            10 => self.event(BrokerEvent::Release { borrower, gssd: None }),
            11 => {
                let gssd = self.broker.slots(borrower).last().map_or(GssdId(0), |(_, id)| id);
                self.event(BrokerEvent::Release { borrower, gssd: Some(gssd) })
            }
            12 => self.event(BrokerEvent::SpacePressure { lender, bandwidth: 0, capacity: capacity / 2 }),
            13..15 => self.event(BrokerEvent::Tick),
            15 if below(4) == 0 => self.event(BrokerEvent::Deleted { vssd: lender }),
            16 if below(4) == 0 && !own.is_empty() => self.event(BrokerEvent::Deleted { vssd: borrower }),
            17 if below(3) == 0 => self.swap(lender, borrower),
            _ => {
                let writer = if below(3) == 0 { lender } else { borrower };
                self.work(writer)
            }
        }
    }

    /// Swaps two channels between owners, if no part of them is lent: emptied and erased before.
    fn swap(&mut self, one: VssdId, borrower: VssdId) -> Result<(), Crash> {
        let known: Vec<VssdId> = self.broker.vssds.keys().copied().filter(|id| *id != one).collect();
        let other = if self.random.below(2) == 0 { borrower } else { known[self.random.below(known.len())] };
        let channels = [one, other].map(|id| self.broker.channels(id).to_vec());
        if channels.iter().any(Vec::is_empty) {
            return Ok(());
        }
        let channels = channels.map(|list| list[self.random.below(list.len())]);
        let blocks =
            channels.map(|channel| geometry().blocks_of(channel).map(FlashBlock).collect::<Vec<_>>());
        let lender =
            |block: &FlashBlock, id| [Holder::Vssd(id), Holder::Bad].contains(&self.custody.holder(*block));
        let at_home =
            |(id, blocks): (&VssdId, &Vec<FlashBlock>)| blocks.iter().all(|block| lender(block, *id));
        if ![one, other].iter().zip(&blocks).all(at_home) {
            return Ok(());
        }
        let mut bad = Vec::new();
        for block in blocks.into_iter().flatten() {
            // Its data is elsewhere.
            self.live.remove(&block);
            if !self.erase(block)? {
                bad.push(block);
            }
        }
        self.event(BrokerEvent::Swapped { one: (one, channels[0]), other: (other, channels[1]), bad })
    }

    /// Creates a vSSD that does not exist.
    fn create(&mut self) -> Result<(), Crash> {
        let borrowers = BORROWERS.map(|(id, channels)| (id, VssdKind::Harvest, channels));
        for (id, kind, channels) in HOMES.into_iter().chain(borrowers) {
            let there = self.numbers.get(&id).is_some_and(|id| self.broker.vssds.contains_key(id));
            if !there {
                let vssd = VssdId(self.next_number);
                self.next_number += 1;
                self.numbers.insert(id, vssd);
                let bandwidth = u16::try_from(channels.len()).unwrap();
                let capacity = u32::from(bandwidth) * CHANNEL_BLOCKS;
                // As many as it had, which need not be the same.
                let owned: BTreeSet<u16> =
                    self.broker.vssds.values().flat_map(|vssd| vssd.channels.iter().copied()).collect();
                let free = (0..geometry().channels).filter(|channel| !owned.contains(channel));
                let channels = free.take(channels.len()).collect();
                self.event(BrokerEvent::Created { vssd, kind, bandwidth, capacity, channels })?;
            }
        }
        Ok(())
    }

    /// Writes to a free block, or frees one.
    fn work(&mut self, vssd: VssdId) -> Result<(), Crash> {
        let unsold = self.broker.vssds.get(&vssd).is_none_or(|vssd| vssd.kind == VssdKind::Unsold);
        let mine: Vec<FlashBlock> =
            self.live.iter().filter(|(_, owner)| **owner == vssd).map(|(block, _)| *block).collect();
        // An FTL puts nothing into a slot that is to leave.
        let slots = self.broker.slots(vssd).map(|(_, id)| id);
        let leaving: Vec<FlashBlock> = slots
            .filter(|id| self.broker.stage(*id) != Some(Stage::Leased))
            .flat_map(|id| self.blocks(id))
            .collect();
        let mut free = self.free(vssd);
        free.retain(|block| !leaving.contains(block));
        if self.random.below(3) == 0 && !mine.is_empty() {
            self.live.remove(&mine[self.random.below(mine.len())]);
        } else if !free.is_empty() && !unsold {
            let block = free[self.random.below(free.len())];
            if !self.bad.contains(&block) {
                self.write(vssd, block);
            }
        }
        self.instant()
    }

    fn check(&self) {
        for (block, owner) in &self.live {
            assert_eq!(self.content[block.0 as usize], Some(*owner), "{block:?} lost its data");
            assert!(self.custody.may_touch(*owner, *block), "{block:?} is not {owner:?}'s");
        }
        for (block, content) in self.content.iter().enumerate() {
            let block = FlashBlock(u32::try_from(block).unwrap());
            // A holder that may read it finds only its own data.
            if let (Holder::Vssd(holder), Some(writer)) = (self.custody.holder(block), content) {
                assert_eq!(holder, *writer, "{block:?} can be read by the next");
            }
        }
    }

    /// Starts again after a crash, from the journal alone.
    fn restart(&mut self) {
        self.left = None;
        self.tasks.clear();
        let decoded = journal::decode(&self.journal).unwrap();
        self.journal.truncate(usize::try_from(decoded.end.end).unwrap());
        let steps: Vec<BrokerStep> = decoded
            .records
            .into_iter()
            .map(|record| match record {
                JournalRecord::Broker(step) => step,
                other => unreachable!("{other:?}"),
            })
            .collect();
        self.custody = Custody::recover(geometry(), &steps).unwrap();
        let mut actions = Vec::new();
        self.broker = Broker::recover(settings(), self.now, &steps, &mut actions).unwrap();
        self.check();
        assert!(self.begin(actions).is_ok());
        self.check_snapshot();
    }

    /// A snapshot leads to the same state.
    fn check_snapshot(&self) {
        let steps = self.broker.snapshot(self.custody.bad(), |gssd| self.custody.blocks(gssd));
        let custody = Custody::recover(geometry(), &steps).unwrap();
        let all = (0..geometry().total_blocks()).map(FlashBlock);
        all.for_each(|block| assert_eq!(custody.holder(block), self.custody.holder(block), "{block:?}"));
        let mut again = Broker::new(settings());
        steps.iter().for_each(|step| again.apply(step).unwrap());
        assert_eq!(again.snapshot(custody.bad(), |gssd| custody.blocks(gssd)), steps);
    }

    fn finish_tasks(&mut self) -> Result<(), Crash> {
        while !self.tasks.is_empty() {
            let task = self.random.below(self.tasks.len());
            self.finish(task)?;
        }
        let mut pooled = 0;
        for (id, entry) in &self.broker.gssds {
            match entry.stage {
                Stage::Pooled => pooled += 1,
                Stage::Leased => assert!(entry.deadline.is_some(), "{id:?} is leased for ever"),
                stage => unreachable!("{id:?} is stuck: {stage:?}"),
            }
            assert!(!entry.withdrawn && self.broker.vssds[&entry.gssd.lender].lent.contains(id));
            let borrower = entry.gssd.borrower.and_then(|borrower| self.broker.vssds.get(&borrower));
            assert_eq!(
                borrower.and_then(|borrower| borrower.slots.get(&entry.slot)) == Some(id),
                entry.gssd.in_use
            );
        }
        assert_eq!(self.broker.pool.len(), pooled, "one is lost or twice in the pool");
        assert!(self.broker.vssds.values().all(|vssd| !vssd.deleting), "a vSSD is stuck");
        self.check_snapshot();
        Ok(())
    }

    /// Deletes all vSSDs: nothing may be left.
    fn end(&mut self) -> Result<(), Crash> {
        self.finish_tasks()?;
        let all: Vec<VssdId> = self.broker.vssds.keys().copied().collect();
        for vssd in all {
            self.event(BrokerEvent::Deleted { vssd })?;
        }
        self.finish_tasks()?;
        assert!(self.broker.vssds.is_empty() && self.broker.gssds.is_empty() && self.live.is_empty());
        for (block, content) in self.content.iter().enumerate() {
            let block = FlashBlock(u32::try_from(block).unwrap());
            let bad = self.custody.holder(block) == Holder::Bad;
            assert!(bad || (content.is_none() && self.custody.holder(block) == Holder::Nobody), "{block:?}");
        }
        Ok(())
    }
}

/// A life that crashes after `crash_after` actions, if it gets that far; returns the number of actions.
fn life(seed: u64, events: usize, crash_after: Option<usize>) -> usize {
    let mut world = World::new(seed, crash_after);
    if world.live(events).and_then(|()| world.end()).is_err() {
        world.restart();
        // And once more, soon or later.
        world.left = Some(world.random.below(100));
        if world.live(events / 4).and_then(|()| world.end()).is_err() {
            world.restart();
            assert!(world.live(20).and_then(|()| world.end()).is_ok());
        }
    }
    world.actions
}

#[test]
fn a_host_may_crash_after_any_action() {
    for seed in 0..6 {
        let actions = life(seed, 250, None);
        assert!(actions > 250, "{actions}");
        (0..actions).for_each(|crash| {
            life(seed, 250, Some(crash));
        });
    }
}

#[test]
fn long_lives_come_to_every_stage() {
    let mut sum = Counters::default();
    for seed in 100..130 {
        let mut world = World::new(seed, None);
        assert!(world.live(2000).is_ok());
        let counters = world.broker.counters();
        sum.early += counters.early;
        sum.migrated += counters.migrated;
        sum.evicted += counters.evicted;
        sum.added += counters.added;
        sum.released += counters.released;
        sum.bad_blocks += counters.bad_blocks;
        sum.expired += counters.expired;
        sum.replacements += counters.replacements;
        assert!(world.end().is_ok());
    }
    let reached =
        [sum.early, sum.migrated, sum.evicted, sum.added, sum.released, sum.bad_blocks, sum.expired];
    assert!(reached.iter().all(|count| *count > 5) && sum.replacements > 5, "{sum:?}");
}
