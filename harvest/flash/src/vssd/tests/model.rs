//! Anything at all, in any order, with many things under way, against an array; with crashes and recovery.

use super::toy::Toy;
use crate::device::{FlashBlock, Geometry};
use crate::vssd::space::{LOG, State};
use crate::vssd::{
    Change, ChangeKind, CollectStep, Effort, Pins, Place, Placement, ReadPin, Snapshot, Vssd, VssdSettings,
};
use headstart_block::ErrorKind;
use headstart_block::random::Random;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const PAGES: u32 = 8;
const SECRET: u64 = 1 << 60;
/// The value of a lost page in the model.
const LOST: u64 = 1 << 61;

fn geometry() -> Geometry {
    Geometry { channels: 4, dies: 2, planes: 1, blocks: 12, pages: PAGES, page_size: 512 }
}

/// A placement under way.
struct Flight {
    to: Placement,
    /// The number that is written; a copy reads it when it is programmed.
    number: Option<u64>,
    from: Option<(FlashBlock, u32)>,
    programmed: bool,
}

struct Reader {
    _pin: ReadPin<'static>,
    at: (FlashBlock, u32),
    number: u64,
}

/// A driver that keeps the rules, and checks the result.
pub(super) struct Driver {
    pub(super) vssd: Vssd,
    pub(super) toy: Toy,
    pub(super) random: Random,
    /// The value of every page.
    pages: Vec<u64>,
    flights: Vec<Flight>,
    erasing: Vec<FlashBlock>,
    readers: Vec<Reader>,
    pins: &'static Pins,
    /// The saved snapshot, with the pages at that time, and the changes since with their effect on the pages.
    saved: (Snapshot, Vec<u64>),
    journal: Vec<(Change, Effect)>,
    /// The number of the journal's changes that are durable.
    durable: usize,
    lent: Vec<FlashBlock>,
    /// Blocks of other vSSDs, by slot: 1 or 2.
    foreign: [Option<Vec<FlashBlock>>; 2],
    next: u64,
    failures: u32,
}

#[derive(Clone, Debug)]
enum Effect {
    None,
    Write(u32, u64),
    Zero(u32, u32),
    Resize(usize),
}

fn pins_of(vssd: &Vssd) -> &'static Pins {
    Box::leak(Box::new(vssd.pins()))
}

impl Driver {
    pub(super) fn new(blocks: u64, interleave: u32, seed: u64) -> Self {
        let geometry = geometry();
        let mut settings = VssdSettings {
            interleave,
            ..VssdSettings::new(geometry, blocks * u64::from(geometry.block_size()))
        };
        settings.overlay_limit = 0;
        let home: Vec<_> = (0..48).map(|block| (FlashBlock(block), 0)).collect();
        let vssd = Vssd::new(&settings, &home).unwrap();
        let pages = vec![0; vssd.pages() as usize];
        let mut toy = Toy::new(geometry);
        // Others' blocks hold secrets before they are handed over.
        for block in 48..96 {
            toy.program(FlashBlock(block), 0, SECRET);
        }
        Self {
            saved: (vssd.snapshot(), pages.clone()),
            pins: pins_of(&vssd),
            vssd,
            toy,
            random: Random::new(seed),
            pages,
            flights: Vec::new(),
            erasing: Vec::new(),
            readers: Vec::new(),
            journal: Vec::new(),
            durable: 0,
            lent: Vec::new(),
            foreign: [None, None],
            next: 1,
            failures: 0,
        }
    }

    /// Notes a change that changes no page.
    pub(super) fn note(&mut self, change: Option<Change>) {
        self.record(change, Effect::None);
    }

    /// Writes a page if there is a place, and does not wait for room that never comes.
    pub(super) fn write_or_be_refused(&mut self, page: u32) {
        for tries in 0.. {
            match self.vssd.place(page) {
                Ok(Place::Collect) => {
                    let stepped = self.step(Effort::Needed);
                    self.finish();
                    assert!(stepped || tries < 3, "page {page} waits for nothing");
                }
                Ok(Place::At(to)) => {
                    let number = Some(self.next);
                    self.next += 1;
                    self.flights.push(Flight { to, number, from: None, programmed: false });
                    self.finish();
                    return;
                }
                Ok(Place::Recall) => unreachable!("nothing is lent"),
                Err(error) => return assert_eq!(error.kind(), ErrorKind::NoSpace),
            }
        }
    }

    fn record(&mut self, change: Option<Change>, effect: Effect) {
        if let Some(change) = change {
            self.journal.push((change, effect));
        }
    }

    pub(super) fn sync(&mut self) {
        self.toy.flush();
        self.durable = self.journal.len();
        if let Some((change, _)) = self.journal.last() {
            self.vssd.durable(change.number);
        }
    }

    /// Saves a snapshot; `keeps` if changes that are in it stay in the journal, too.
    fn checkpoint(&mut self, keeps: bool) {
        self.toy.flush();
        self.saved = (self.vssd.snapshot(), self.pages.clone());
        self.vssd.durable(self.saved.0.number);
        if !keeps {
            self.journal.clear();
        }
        self.durable = self.journal.len();
    }

    /// Begins a write; `false` if there is no room at all.
    pub(super) fn write(&mut self, page: u32) -> bool {
        for attempt in 0..10_000 {
            assert!(attempt < 9_999, "collecting does not end: {:?}", self.vssd.usage());
            match self.vssd.place(page) {
                Ok(Place::At(to)) => {
                    let number = Some(self.next);
                    self.next += 1;
                    self.flights.push(Flight { to, number, from: None, programmed: false });
                    return true;
                }
                Ok(Place::Collect) => {
                    let busy = !self.flights.is_empty() || !self.erasing.is_empty();
                    self.finish();
                    self.vssd.look_again();
                    if !self.step(Effort::Needed) && !busy {
                        assert!(!self.readers.is_empty(), "nothing to collect: {:?}", self.vssd.usage());
                        self.end_read(0);
                    }
                    self.finish();
                }
                Ok(Place::Recall) => {
                    assert!(!self.lent.is_empty());
                    self.take_back(4);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    assert!(self.lent.is_empty());
                    let usage = self.vssd.usage();
                    let stored = usage.stored + self.flights.len() as u64;
                    let bad = self.failures > 0 && stored + u64::from(PAGES) > usage.capacity;
                    assert!(stored >= usage.capacity || bad, "{usage:?}");
                    return false;
                }
            }
        }
        false
    }

    /// Begins a step of the collector.
    pub(super) fn step(&mut self, effort: Effort) -> bool {
        match self.vssd.collect_next(effort) {
            None => return false,
            Some(CollectStep::Copy { from, page, to }) => {
                self.flights.push(Flight { to, number: None, from: Some((from, page)), programmed: false });
            }
            Some(CollectStep::Erase { block }) => self.erasing.push(block),
            Some(CollectStep::Sync { up_to }) => {
                assert!(self.journal.last().is_some_and(|(change, _)| change.number >= up_to));
                self.sync();
            }
        }
        true
    }

    /// Programs a placement under way if it is its turn.
    fn program(&mut self, index: usize, fails: bool) {
        let flight = &mut self.flights[index];
        if flight.programmed || !self.vssd.turn(&flight.to) {
            return;
        }
        let number = flight.number.unwrap_or_else(|| {
            let (block, page) = flight.from.unwrap();
            self.toy.read(block, page)
        });
        let (block, at) = (flight.to.block, flight.to.at);
        if self.toy.bad.contains(&block) || fails && self.failures < 4 {
            if !self.toy.bad.contains(&block) {
                self.failures += 1;
                self.toy.program_fails(block, at);
            }
            let flight = self.flights.swap_remove(index);
            let change = self.vssd.failed(flight.to, true);
            self.record(change, Effect::None);
            return;
        }
        self.toy.program(block, at, number);
        flight.programmed = true;
        flight.number = Some(number);
    }

    fn commit(&mut self, index: usize) {
        if !self.flights[index].programmed {
            return;
        }
        let flight = self.flights.swap_remove(index);
        let (page, number) = (flight.to.page, flight.number.unwrap());
        let change = self.vssd.commit(flight.to);
        if flight.from.is_some() {
            if change.is_some() {
                assert_eq!(self.pages[page as usize], number, "a copy changed page {page}");
            }
            self.record(change, Effect::Write(page, number));
        } else if (page as usize) < self.pages.len() {
            self.pages[page as usize] = number;
            assert!(change.is_some());
            self.record(change, Effect::Write(page, number));
        } else {
            assert!(change.is_none());
        }
    }

    fn erase(&mut self, index: usize, fails: bool, passes: bool) {
        let block = self.erasing.swap_remove(index);
        assert!(self.readers.iter().all(|reader| reader.at.0 != block), "what is read is erased");
        let bad = self.toy.bad.contains(&block);
        if bad || fails && self.failures < 4 {
            self.failures += u32::from(!bad);
            self.toy.bad.insert(block);
            let change = self.vssd.erase_failed(block).unwrap();
            self.record(Some(change), Effect::None);
        } else if passes {
            self.vssd.erase_later(block).unwrap();
        } else {
            let wear = self.toy.erase(block);
            self.vssd.erased(block, wear).unwrap();
        }
    }

    /// Makes the page that a copy was to read unreadable: for now, or `ever`.
    fn unread(&mut self, index: usize, ever: bool) {
        if self.flights[index].from.is_none() || self.flights[index].programmed {
            return;
        }
        let flight = self.flights.swap_remove(index);
        if !ever {
            self.vssd.unread(flight.to);
            return;
        }
        let (page, from) = (flight.to.page, flight.from);
        let there = (page as usize) < self.pages.len() && self.vssd.locate(page).unwrap() == from;
        let change = self.vssd.lose(flight.to);
        assert_eq!(change.is_some(), there);
        if there {
            self.pages[page as usize] = LOST;
        }
        self.record(change, Effect::Write(page, LOST));
    }

    /// Ends all that is under way.
    pub(super) fn finish(&mut self) {
        while !self.flights.is_empty() {
            let before = self.flights.len();
            for index in (0..self.flights.len()).rev() {
                if index < self.flights.len() {
                    self.program(index, false);
                }
            }
            for index in (0..self.flights.len()).rev() {
                self.commit(index);
            }
            assert!(self.flights.len() < before, "nothing has its turn");
        }
        while !self.erasing.is_empty() {
            self.erase(0, false, false);
        }
    }

    fn trim(&mut self, first: u32, count: u32) {
        let change = self.vssd.trim(first, count).unwrap();
        let range = first as usize..(first + count) as usize;
        assert_eq!(change.is_some(), self.pages[range.clone()].iter().any(|&number| number > 0));
        self.pages[range].fill(0);
        self.record(change, Effect::Zero(first, count));
    }

    fn lend(&mut self, channel: u16, count: u32) {
        let (channels, most) = self.vssd.lendable(0);
        let there = channels.iter().find(|&&(other, _)| other == channel).map_or(0, |&(_, count)| count);
        let lent = self.vssd.lend(&[(channel, count)], 0);
        assert_eq!(lent.is_ok(), count <= there.min(most), "{channels:?} {most} {count}");
        let Ok((blocks, change)) = lent else { return };
        assert!(blocks.iter().all(|&block| self.toy.geometry.channel(block) == channel));
        self.record(Some(change), Effect::None);
        self.sync();
        // The new holder erases and uses them.
        for block in blocks {
            if self.toy.bad.contains(&block) {
                let change = self.vssd.lost_block(block).unwrap();
                self.record(Some(change), Effect::None);
                continue;
            }
            self.toy.erase(block);
            self.toy.program(block, 3, SECRET);
            self.lent.push(block);
        }
    }

    fn take_back(&mut self, count: usize) {
        let (bad, blocks): (Vec<_>, Vec<_>) =
            self.lent.drain(..count.min(self.lent.len())).partition(|block| self.toy.bad.contains(block));
        for block in bad {
            let change = self.vssd.lost_block(block).unwrap();
            self.record(Some(change), Effect::None);
        }
        let back: Vec<_> = blocks.iter().map(|&block| (block, self.toy.erase(block))).collect();
        let change = self.vssd.take_back(&back).unwrap();
        self.record(Some(change), Effect::None);
    }

    pub(super) fn add_slot(&mut self, slot: usize) {
        if self.foreign[slot].is_some() {
            return;
        }
        let first = u32::try_from(slot).unwrap() * 24 + 48;
        let blocks: Vec<_> =
            (first..first + 24).map(FlashBlock).filter(|block| !self.toy.bad.contains(block)).collect();
        let clean: Vec<_> = blocks.iter().map(|&block| (block, self.toy.erase(block))).collect();
        let change = self.vssd.add_slot(u8::try_from(slot + 1).unwrap(), &clean).unwrap();
        self.foreign[slot] = Some(blocks);
        self.record(Some(change), Effect::None);
    }

    pub(super) fn remove_slot(&mut self, slot: usize) {
        let number = u8::try_from(slot + 1).unwrap();
        if !self.vssd.drained(number, None) {
            return;
        }
        let leaving = self.vssd.remove_slot(number, None).unwrap();
        self.record(Some(leaving.change), Effect::None);
        self.sync();
        let blocks = self.foreign[slot].take().unwrap();
        assert_eq!(leaving.blocks.len() + leaving.bad.len(), blocks.len());
        for block in leaving.blocks {
            // Reads under way are waited for.
            while let Some(index) = self.readers.iter().position(|reader| reader.at.0 == block) {
                self.end_read(index);
            }
            if !self.toy.bad.contains(&block) {
                self.toy.erase(block);
                self.toy.program(block, 0, SECRET);
            }
        }
    }

    fn resize(&mut self, pages: u32) {
        let Ok(change) = self.vssd.resize(u64::from(pages) * 512) else { return };
        self.pages.resize(pages as usize, 0);
        self.record(Some(change), Effect::Resize(pages as usize));
    }

    fn read(&mut self, page: u32) {
        let Some((block, at)) = self.vssd.locate(page).unwrap() else { return };
        let pin = self.pins.pin(block);
        self.readers.push(Reader { _pin: pin, at: (block, at), number: self.pages[page as usize] });
    }

    fn end_read(&mut self, index: usize) {
        let reader = self.readers.swap_remove(index);
        assert_eq!(self.toy.read(reader.at.0, reader.at.1), reader.number);
    }

    /// Loses power: of the changes that were being made durable some prefix is.
    pub(super) fn crash(&mut self) {
        let more = self.random.below(self.journal.len() - self.durable + 1);
        if more > 0 {
            // They were being written, for which the flash was flushed before.
            self.toy.flush();
        }
        let random = &mut self.random;
        self.toy.lose(|| random.below(2) == 0);
        self.journal.truncate(self.durable + more);
        let mut vssd = Vssd::restore(&self.saved.0).unwrap();
        let mut pages = self.saved.1.clone();
        for (change, effect) in &self.journal {
            vssd.apply(change).unwrap();
            if change.number <= self.saved.0.number {
                continue;
            }
            match *effect {
                Effect::Write(page, number) => pages[page as usize] = number,
                Effect::Zero(first, count) => pages[first as usize..(first + count) as usize].fill(0),
                Effect::Resize(count) => pages.resize(count, 0),
                _ => {}
            }
        }
        // Sometimes the erased blocks are known.
        let (is_known, toy) = (self.random.below(2) == 0, &self.toy);
        vssd.recovered(|block| toy.wear(block), |block| is_known && toy.is_erased(block));
        self.durable = self.journal.len();
        self.readers.clear();
        self.flights.clear();
        self.erasing.clear();
        self.pins = pins_of(&vssd);
        (self.vssd, self.pages) = (vssd, pages);
        self.reconcile();
        self.audit();
    }

    /// Takes the lent and harvested blocks from the recovered vSSD.
    fn reconcile(&mut self) {
        let kept = self.vssd.snapshot();
        let restored = Vssd::restore(&kept).unwrap();
        assert_eq!(restored.snapshot(), kept);
        for slot in 0..2 {
            let there = self.vssd.space.slot(u8::try_from(slot).unwrap() + 1).map(|slot| slot.blocks.clone());
            self.foreign[slot] = there;
        }
        let entries = self.vssd.space.entries();
        let lent = entries.iter().filter(|&&entry| self.vssd.space.info(entry).state == State::Lent);
        self.lent = lent.map(|&entry| self.vssd.space.block(entry)).collect();
    }

    /// Checks that everything reads as it should, and all counts are right.
    pub(super) fn audit(&self) {
        let vssd = &self.vssd;
        for (page, &number) in (0..).zip(&self.pages) {
            let none = if vssd.is_lost(page, 1) { LOST } else { 0 };
            let found = vssd.locate(page).unwrap().map_or(none, |(block, at)| self.toy.read(block, at));
            assert_eq!(found, number, "page {page}");
        }
        let mut valid = BTreeMap::new();
        let mut stored = 0;
        for block in 0..vssd.map.blocks() {
            for at in 0..8 {
                if let Some(spot) = vssd.map.lookup(block, at) {
                    *valid.entry(spot.entry).or_insert(0_u16) += 1;
                    stored += 1;
                    let info = vssd.space.info(spot.entry);
                    assert_eq!(
                        vssd.holder(spot).map(u64::from),
                        Some(vssd.stripe.page(block, at)),
                        "{info:?}"
                    );
                }
            }
        }
        assert_eq!(vssd.stored, stored);
        for entry in vssd.space.entries() {
            let info = vssd.space.info(entry);
            assert_eq!(info.valid, valid.get(&entry).copied().unwrap_or(0), "{info:?}");
            let holds = matches!(info.state, State::Open | State::Sealed);
            assert!(holds || info.valid == 0 && info.holds == 0, "{info:?}");
            assert!(info.state != State::Sealed || info.valid + info.holds > 0, "{info:?}");
            assert!(info.owner == LOG || holds || info.valid == 0);
        }
        assert_eq!(vssd.users(), self.flights.iter().filter(|flight| flight.from.is_none()).count() as u64);
    }

    fn any(&mut self, (what, a, b): (u8, u16, u16)) {
        let pages = self.vssd.pages();
        let page = u32::from(a) % pages;
        let pick = |length: usize| usize::from(a) % length;
        match what {
            0..=15 => drop(self.write(page)),
            16..=19 => {
                for page in page..(page + u32::from(b) % 64).min(pages) {
                    self.write(page);
                }
            }
            20..=39 if !self.flights.is_empty() => self.program(pick(self.flights.len()), b % 64 == 0),
            40..=59 if !self.flights.is_empty() => self.commit(pick(self.flights.len())),
            60..=65 => drop(self.step(if b % 4 == 0 { Effort::Idle } else { Effort::Needed })),
            66..=69 if !self.erasing.is_empty() => {
                self.erase(pick(self.erasing.len()), b % 16 == 0, b % 16 == 1);
            }
            70..=72 => self.trim(page, u32::from(b) % (pages - page).min(70)),
            73..=75 => self.sync(),
            76 => self.checkpoint(b % 2 == 0),
            77..=78 => self.lend(a % 2, u32::from(b) % 12),
            79 => self.take_back(usize::from(a) % 12),
            80 => self.add_slot(pick(2)),
            81 => drop(self.vssd.drain_slot(u8::try_from(pick(2) + 1).unwrap(), None)),
            82..=83 => self.remove_slot(pick(2)),
            84 if b % 4 == 0 => self.vssd.keep_slot(u8::try_from(pick(2) + 1).unwrap(), None),
            85..=88 => self.read(page),
            89..=92 if !self.readers.is_empty() => self.end_read(pick(self.readers.len())),
            93 => self.crash(),
            94 => self.finish(),
            97..=98 if !self.flights.is_empty() => self.unread(pick(self.flights.len()), b % 2 == 0),
            99 => self.vssd.look_again(),
            95 if b % 4 == 0 => self.resize(1 + u32::from(a) % 500),
            96 => {
                for _ in 0..b % 64 {
                    self.step(Effort::Needed);
                    self.finish();
                }
            }
            97 => {
                let slow = |channel: u16| u64::from(a >> (channel * 4) & 15).pow(2);
                self.vssd.set_program_times(|channel| Duration::from_micros(slow(channel)));
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_vssd_reads_as_an_array(
        blocks in 4_u64..43, interleave in prop::sample::select(vec![1_u32, 2, 4, 8]), seed: u64,
        steps in prop::collection::vec((0_u8..100, any::<u16>(), any::<u16>()), 0..600),
    ) {
        let mut driver = Driver::new(blocks, interleave, seed);
        for (number, step) in steps.into_iter().enumerate() {
            driver.any(step);
            if number % 32 == 0 {
                driver.audit();
            }
        }
        while !driver.readers.is_empty() {
            driver.end_read(0);
        }
        driver.finish();
        driver.audit();
        driver.take_back(100);
        driver.vssd.look_again();
        // Once nothing more is written, the collector comes to an end.
        let mut steps = 0;
        while driver.step(Effort::Idle) {
            driver.finish();
            steps += 1;
            prop_assert!(steps < 20_000, "the collector does not end");
        }
        driver.audit();
        driver.crash();
    }
}

/// Changes out of order, or that contradict the state, are refused and do not panic.
#[test]
fn a_journal_that_lies_is_refused() {
    let mut driver = Driver::new(8, 2, 1);
    for page in 0..40 {
        driver.write(page);
        driver.finish();
    }
    let changes: Vec<Change> = driver.journal.iter().map(|(change, _)| change.clone()).collect();
    let fresh = || Vssd::restore(&driver.saved.0).unwrap();
    assert!(fresh().apply(&changes[1]).is_err(), "one is missing");
    let said = |what| {
        let mut vssd = fresh();
        vssd.apply(&changes[0]).unwrap();
        vssd.apply(&Change { number: 2, what })
    };
    let ChangeKind::Map { block, at, .. } = changes[0].what else { unreachable!() };
    let beyond = FlashBlock(u32::MAX);
    let lies = [
        ChangeKind::Map { page: 1, block, at },
        ChangeKind::Map { page: 64, block, at: 7 },
        ChangeKind::Map { page: 1, block, at: 8 },
        ChangeKind::Map { page: 1, block: beyond, at: 0 },
        ChangeKind::Unmap { first: 60, count: 5 },
        ChangeKind::Unmap { first: u32::MAX, count: 5 },
        ChangeKind::Lent { blocks: vec![block] },
        ChangeKind::Returned { blocks: vec![block] },
        ChangeKind::Failing { block: beyond },
        ChangeKind::Added { slot: 0, blocks: vec![FlashBlock(50)] },
        ChangeKind::Added { slot: 1, blocks: vec![block] },
        ChangeKind::Removed { slot: 0, channel: None },
        ChangeKind::Resized { size: 1 },
        ChangeKind::Resized { size: 1 << 40 },
        ChangeKind::Lost { page: 1 },
        ChangeKind::Lost { page: 64 },
    ];
    for what in lies {
        assert_eq!(said(what.clone()).unwrap_err().kind(), ErrorKind::Corrupt, "{what:?}");
    }
}

proptest! {
    /// A snapshot with any byte changed is refused, or restored to a vSSD that works.
    #[test]
    fn a_damaged_snapshot_does_no_harm(at: prop::sample::Index, byte: u8) {
        let mut driver = Driver::new(8, 2, 1);
        for page in (0..64).chain([3, 9, 17, 40]) {
            driver.write(page);
            driver.finish();
        }
        driver.trim(20, 5);
        driver.lend(0, 3);
        let mut bytes = postcard::to_allocvec(&driver.vssd.snapshot()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(snapshot) = postcard::from_bytes::<Snapshot>(&bytes)
            && let Ok(mut vssd) = Vssd::restore(&snapshot)
        {
            vssd.recovered(|_| 0, |block| block.0 % 2 == 0);
            for page in 0..vssd.pages().min(100) {
                let _ = vssd.locate(page);
                let _ = vssd.place(page);
            }
            let _ = vssd.collect_next(Effort::Idle);
        }
    }
}
