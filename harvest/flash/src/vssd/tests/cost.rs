//! The cost of writing: pages programmed for each page written.

use super::toy::Toy;
use crate::device::{FlashBlock, Geometry};
use crate::vssd::{CollectStep, Effort, Place, Vssd, VssdSettings};
use headstart_block::random::Random;
use std::time::Duration;

/// One thing at a time; the journal is always durable.
pub(super) struct Simple {
    pub(super) vssd: Vssd,
    toy: Toy,
}

impl Simple {
    pub(super) fn new(geometry: Geometry, spare: u32) -> Self {
        let total = u64::from(geometry.total_blocks());
        let blocks = total * 100 / u64::from(100 + spare);
        let mut settings = VssdSettings::new(geometry, blocks * u64::from(geometry.block_size()));
        settings.spare = spare;
        let home: Vec<_> = (0..geometry.total_blocks()).map(|block| (FlashBlock(block), 0)).collect();
        Self { vssd: Vssd::new(&settings, &home).unwrap(), toy: Toy::new(geometry) }
    }

    fn step(&mut self, effort: Effort) -> bool {
        let Some(step) = self.vssd.collect_next(effort) else { return false };
        match step {
            CollectStep::Copy { from, page, to } => {
                let number = self.toy.read(from, page);
                self.toy.program(to.block, to.at, number);
                self.vssd.commit(to);
            }
            CollectStep::Erase { block } => {
                let wear = self.toy.erase(block);
                self.vssd.erased(block, wear).unwrap();
            }
            CollectStep::Sync { up_to } => {
                self.toy.flush();
                self.vssd.durable(up_to);
            }
        }
        true
    }

    pub(super) fn write(&mut self, page: u32) -> FlashBlock {
        loop {
            while self.vssd.is_short() && self.step(Effort::Needed) {}
            match self.vssd.place(page).unwrap() {
                Place::At(to) => {
                    self.toy.program(to.block, to.at, u64::from(page) + 1);
                    let block = to.block;
                    self.vssd.commit(to);
                    return block;
                }
                _ => assert!(self.step(Effort::Needed)),
            }
        }
    }

    pub(super) fn amplification(&mut self, writes: impl IntoIterator<Item = u32>) -> f64 {
        let (programs, mut count) = (self.toy.programs, 0_u64);
        for page in writes {
            self.write(page);
            count += 1;
        }
        (self.toy.programs - programs) as f64 / count as f64
    }
}

fn below(random: &mut Random, pages: u32) -> u32 {
    u32::try_from(random.below(pages as usize)).unwrap()
}

fn geometry() -> Geometry {
    Geometry { channels: 4, dies: 4, planes: 1, blocks: 64, pages: 64, page_size: 512 }
}

#[test]
fn sequential_writes_cost_one() {
    for spare in [7, 12] {
        let mut disk = Simple::new(geometry(), spare);
        let pages = disk.vssd.pages();
        let fresh = disk.amplification(0..pages);
        let again = disk.amplification((0..3).flat_map(|_| 0..pages));
        assert!(fresh <= 1.001 && again <= 1.02, "{spare}% to spare: {fresh} {again}");
        let (patches, memory) = (disk.vssd.map.patches(), disk.vssd.memory());
        assert!(patches * 20 < u64::from(pages), "{patches} of {pages} lie in log blocks: {memory:?}");
    }
}

#[test]
fn random_writes_cost_what_greedy_costs() {
    for (spare, most) in [(7, 2.6), (12, 2.3)] {
        let mut disk = Simple::new(geometry(), spare);
        let used = disk.vssd.pages() / 5 * 4;
        disk.amplification(0..used);
        let mut random = Random::new(1);
        let mut writes = |count: u32| (0..count).map(|_| below(&mut random, used)).collect::<Vec<_>>();
        disk.amplification(writes(used * 3));
        let cost = disk.amplification(writes(used * 3));
        assert!(cost < most, "{spare}% to spare: {cost}");
    }
}

#[test]
fn a_full_disk_still_takes_writes() {
    let geometry = Geometry { blocks: 16, ..geometry() };
    let mut disk = Simple::new(geometry, 7);
    let pages = disk.vssd.pages();
    disk.amplification(0..pages);
    let mut random = Random::new(1);
    let cost = disk.amplification((0..pages * 2).map(|_| below(&mut random, pages)));
    assert!(cost < 12.0, "{cost}");
}

/// Free blocks on a few channels or dies would make a transfer as slow as those.
#[test]
fn all_dies_are_erased_and_written_alike() {
    let (mut disk, geometry) = (Simple::new(geometry(), 7), geometry());
    let uneven = |blocks: &[FlashBlock]| {
        let mut counts = vec![0; usize::from(geometry.channels * geometry.dies)];
        for &block in blocks {
            counts[usize::from(geometry.channel(block) * geometry.dies + geometry.die(block))] += 1;
        }
        counts.iter().max().unwrap() - counts.iter().min().unwrap()
    };
    let pages = disk.vssd.pages();
    disk.amplification(0..pages);
    disk.vssd.trim(0, pages).unwrap();
    let mut erasing = Vec::new();
    while erasing.len() < 64 {
        let step = disk.vssd.collect_next(Effort::Idle).unwrap();
        assert!(!matches!(step, CollectStep::Copy { .. }), "there is nothing to copy");
        match step {
            CollectStep::Erase { block } => erasing.push(block),
            CollectStep::Sync { up_to } => disk.vssd.durable(up_to),
            CollectStep::Copy { .. } => {}
        }
    }
    assert!(uneven(&erasing) <= 1, "{erasing:?}");
    for block in erasing {
        let wear = disk.toy.erase(block);
        disk.vssd.erased(block, wear).unwrap();
    }
    let width = disk.vssd.settings().width();
    assert_eq!(width, 16);
    // The first page may be no transfer yet.
    let written: Vec<_> = (0..2 * width).map(|page| disk.write(page)).skip(16).collect();
    assert!(uneven(&written) <= 1, "{written:?}");
}

/// A disk on four channels that harvested two more.
fn harvester() -> Simple {
    let geometry = Geometry { channels: 6, ..geometry() };
    let home = (0..4).flat_map(|channel| geometry.blocks_of(channel)).map(|block| (FlashBlock(block), 0));
    let home: Vec<_> = home.collect();
    let settings = VssdSettings::new(geometry, 800 * u64::from(geometry.block_size()));
    let mut disk = Simple { vssd: Vssd::new(&settings, &home).unwrap(), toy: Toy::new(geometry) };
    for page in 0..20_000 {
        disk.write(page);
    }
    let harvested: Vec<_> = (4..6).flat_map(|channel| geometry.blocks_of(channel)).collect();
    let harvested: Vec<_> = harvested.into_iter().map(|block| (FlashBlock(block), 0)).collect();
    disk.vssd.add_slot(1, &harvested).unwrap();
    disk
}

/// The share of writes on the harvested channels.
fn share_there(disk: &mut Simple, pages: &[u32]) -> f64 {
    let geometry = disk.vssd.settings().geometry;
    let there = pages.iter().filter(|&&page| geometry.channel(disk.write(page)) >= 4).count();
    there as f64 / pages.len() as f64
}

#[test]
fn a_busy_channel_gets_little_until_it_is_free() {
    let mut disk = harvester();
    let mut random = Random::new(3);
    let mut shares = |disk: &mut Simple, slow: u32| {
        disk.vssd.set_program_times(|channel| Duration::from_millis(1) * if channel < 4 { 1 } else { slow });
        let scattered: Vec<_> = (0..20_000).map(|_| below(&mut random, 20_000)).collect();
        [share_there(disk, &(20_000..40_000).collect::<Vec<_>>()), share_there(disk, &scattered)]
    };
    let (busy, free) = (shares(&mut disk, 20), shares(&mut disk, 1));
    assert!(busy.iter().all(|&share| share < 0.02), "{busy:?}");
    assert!(free.iter().all(|&share| share > 0.25), "{free:?}");
}

/// With all free blocks on busy channels, writes and collecting still find a place.
#[test]
fn a_full_disk_on_busy_channels_takes_writes() {
    let mut disk = harvester();
    let pages = disk.vssd.pages();
    disk.vssd.set_program_times(|channel| Duration::from_millis(1) * if channel < 4 { 1 } else { 20 });
    let mut random = Random::new(1);
    let cost = disk.amplification((0..pages * 3).map(|_| below(&mut random, pages)));
    assert!(cost < 5.0, "{cost}");
}

#[test]
fn a_harvested_channel_is_used_at_once() {
    let mut disk = harvester();
    // New pages in order, and old ones at random.
    let mut random = Random::new(3);
    let ordered = share_there(&mut disk, &(20_000..40_000).collect::<Vec<_>>());
    let scattered: Vec<_> = (0..20_000).map(|_| below(&mut random, 20_000)).collect();
    let scattered = share_there(&mut disk, &scattered);
    assert!((0.25..0.45).contains(&ordered) && (0.25..0.45).contains(&scattered), "{ordered} {scattered}");
}

/// Also long after: home's dirty blocks are erased before the free blocks are all on the channels that came last.
#[test]
fn a_harvested_channel_is_not_used_alone() {
    let mut disk = harvester();
    let pages = 20_000;
    for pass in 0..6 {
        for first in (0..pages).step_by(2000) {
            let share = share_there(&mut disk, &(first..first + 2000).collect::<Vec<_>>());
            assert!((0.15..0.6).contains(&share), "pass {pass}, page {first}: {share}");
        }
    }
}
