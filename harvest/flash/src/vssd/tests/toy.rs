//! A flash that keeps one number a page, and NAND's rules.

use crate::device::{FlashBlock, Geometry};
use std::collections::{BTreeMap, BTreeSet};

/// The value of a page that was programmed and lost.
pub(super) const GARBAGE: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub(super) struct Toy {
    pub(super) geometry: Geometry,
    /// The pages of each block that is not erased.
    blocks: BTreeMap<FlashBlock, BTreeMap<u32, u64>>,
    wear: BTreeMap<FlashBlock, u32>,
    pub(super) bad: BTreeSet<FlashBlock>,
    unflushed: Vec<(FlashBlock, u32)>,
    pub(super) programs: u64,
    pub(super) erasures: u64,
}

impl Toy {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            blocks: BTreeMap::new(),
            wear: BTreeMap::new(),
            bad: BTreeSet::new(),
            unflushed: Vec::new(),
            programs: 0,
            erasures: 0,
        }
    }

    pub(super) fn read(&self, block: FlashBlock, page: u32) -> u64 {
        self.blocks.get(&block).and_then(|pages| pages.get(&page)).copied().unwrap_or(0)
    }

    pub(super) fn program(&mut self, block: FlashBlock, page: u32, number: u64) {
        assert!(!self.bad.contains(&block), "a bad block is programmed");
        assert!(page < self.geometry.pages);
        let pages = self.blocks.entry(block).or_default();
        let last = pages.last_key_value();
        assert!(
            last.is_none_or(|(&last, _)| last < page),
            "page {page} of {block:?} is programmed out of order"
        );
        pages.insert(page, number);
        self.unflushed.push((block, page));
        self.programs += 1;
    }

    /// Makes a program fail: the block cannot be programmed any more, and the page may hold anything.
    pub(super) fn program_fails(&mut self, block: FlashBlock, page: u32) {
        self.program(block, page, GARBAGE);
        self.bad.insert(block);
    }

    pub(super) fn erase(&mut self, block: FlashBlock) -> u32 {
        assert!(!self.bad.contains(&block), "a bad block is erased");
        self.blocks.remove(&block);
        self.unflushed.retain(|&(other, _)| other != block);
        self.erasures += 1;
        let wear = self.wear.entry(block).or_default();
        *wear += 1;
        *wear
    }

    pub(super) fn wear(&self, block: FlashBlock) -> u32 {
        self.wear.get(&block).copied().unwrap_or(0)
    }

    /// `true` if a block holds nothing and can be programmed.
    pub(super) fn is_erased(&self, block: FlashBlock) -> bool {
        !self.blocks.contains_key(&block) && !self.bad.contains(&block)
    }

    pub(super) fn flush(&mut self) {
        self.unflushed.clear();
    }

    /// Loses power: some of the unflushed pages are kept.
    pub(super) fn lose(&mut self, mut keeps: impl FnMut() -> bool) {
        for (block, page) in std::mem::take(&mut self.unflushed) {
            if !keeps() {
                self.blocks.entry(block).or_default().insert(page, GARBAGE);
            }
        }
    }
}
