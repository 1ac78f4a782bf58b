//! The account of a boot: the slices that it has read, and those that were preloaded for it.

use headstart_block::{SLICE_SIZE, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// Blocks that are told apart; if a boot reads in more, the later ones are not counted. 128 GiB.
const BLOCKS_MAX: usize = 1 << 16;

/// Slices of one block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    read: u32,
    preloaded: u32,
}

/// The account of a boot; see the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    blocks: BTreeMap<u64, Block>,
    /// The time at which the boot began to read.
    began: Option<Time>,
    /// The numbers of blocks and of slices in which it has read.
    blocks_read: u64,
    slices_read: u64,
    preloaded: u64,
    used: u64,
}

impl Account {
    fn block(&mut self, block: u64) -> Option<&mut Block> {
        if self.blocks.len() >= BLOCKS_MAX && !self.blocks.contains_key(&block) {
            return None;
        }
        Some(self.blocks.entry(block).or_default())
    }

    /// Notes that slices of a block were read; returns those that were read for the first time.
    pub(super) fn read(&mut self, now: Time, block: u64, slices: u32) -> u32 {
        self.began.get_or_insert(now);
        let Some(known) = self.block(block) else { return 0 };
        let (before, new) = (known.read, slices & !known.read);
        known.read |= slices;
        let used = new & known.preloaded;
        self.blocks_read += u64::from(before == 0 && new != 0);
        self.slices_read += u64::from(new.count_ones());
        self.used += u64::from(used.count_ones());
        new
    }

    /// Notes that slices of a block are here, or on their way.
    pub(super) fn preloaded(&mut self, block: u64, slices: u32) {
        let Some(known) = self.block(block) else { return };
        let new = slices & !known.preloaded;
        known.preloaded |= slices;
        let used = new & known.read;
        self.preloaded += u64::from(new.count_ones());
        self.used += u64::from(used.count_ones());
    }

    /// The reads so far: blocks and their slices.
    pub(super) fn reads(&self) -> impl Iterator<Item = (u64, u32)> {
        self.blocks.iter().filter(|(_, known)| known.read != 0).map(|(block, known)| (*block, known.read))
    }

    /// The time for which it has been reading.
    pub(super) fn elapsed(&self, now: Time) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.since(began))
    }

    pub(super) fn blocks_read(&self) -> u64 {
        self.blocks_read
    }

    pub(super) fn slices_read(&self) -> u64 {
        self.slices_read
    }

    pub(super) fn preloaded_bytes(&self) -> u64 {
        self.preloaded * SLICE_SIZE
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used * SLICE_SIZE
    }
}
