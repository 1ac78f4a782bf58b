//! The place of each page of each logical block: one base block per logical block, and patches for exceptions.
//!
//! A page is in its block's *base*, at its own number, unless the block's *overlay* has a patch for it: another place,
//! or a hole that reads as zeros. A block without base reads as zeros unless it has a patch. The base is nothing but a
//! short way to write down many places; [`Map::rebase`] may choose another at any time and no page moves by it.

use headstart_block::exact;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A flash block as a vSSD knows it: the slot that it came with (8 bits; 0 is the vSSD's own), and its number there (24
/// bits). This is BlockFlex's [gSSD-ID, gLBA] (section 4.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Entry(u32);

/// Blocks of a slot, at most: the last number of the last slot stands for none.
pub(super) const SLOT_BLOCKS: u32 = (1 << 24) - 1;

/// The number of a block in its slot, or of blocks of a slot.
pub(super) fn in_slot(number: usize) -> u32 {
    exact(number, "a slot has fewer blocks than SLOT_BLOCKS")
}

impl Entry {
    pub(super) const NONE: Self = Self(u32::MAX);

    /// An entry; `number` is below [`SLOT_BLOCKS`].
    pub(super) fn new(slot: u8, number: u32) -> Self {
        Self(u32::from(slot) << 24 | number & SLOT_BLOCKS)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 >> 24) as usize
    }

    pub(super) fn number(self) -> usize {
        (self.0 & 0x00ff_ffff) as usize
    }
}

/// A page of a flash block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Spot {
    pub(super) entry: Entry,
    pub(super) page: u16,
}

/// The place of a page of a logical block that is not in the base. 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Patch {
    /// The page of the logical block.
    pub(super) page: u16,
    /// The page of the flash block.
    pub(super) at: u16,
    /// The flash block; [`Entry::NONE`] for a hole.
    pub(super) entry: Entry,
}

impl Patch {
    fn new(page: u16, spot: Option<Spot>) -> Self {
        let spot = spot.unwrap_or(Spot { entry: Entry::NONE, page: 0 });
        Self { page, at: spot.page, entry: spot.entry }
    }

    pub(super) fn spot(self) -> Option<Spot> {
        (self.entry != Entry::NONE).then_some(Spot { entry: self.entry, page: self.at })
    }
}

/// A hasher that spreads small numbers, always the same way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = headstart_block::random::mix(self.0 ^ u64::from(number));
    }
}

/// A table by small numbers.
pub(super) type Table<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// The map of a vSSD.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pages: u16,
    bases: Vec<Entry>,
    /// Patches by page, of the logical blocks that have any.
    overlays: Table<u32, Vec<Patch>>,
    patches: u64,
}

impl Map {
    pub(super) fn new(pages: u16, blocks: u32) -> Self {
        Self { pages, bases: vec![Entry::NONE; blocks as usize], overlays: Table::default(), patches: 0 }
    }

    /// Logical blocks.
    pub(super) fn blocks(&self) -> u32 {
        exact(self.bases.len(), "its length was set as a number of 32 bits")
    }

    /// Changes the number of logical blocks; those that go hold nothing.
    pub(super) fn resize(&mut self, blocks: u32) {
        self.bases.resize(blocks as usize, Entry::NONE);
        self.bases.shrink_to_fit();
    }

    pub(super) fn base(&self, block: u32) -> Option<Entry> {
        Some(self.bases[block as usize]).filter(|&base| base != Entry::NONE)
    }

    pub(super) fn overlay(&self, block: u32) -> &[Patch] {
        self.overlays.get(&block).map_or(&[], Vec::as_slice)
    }

    /// Logical blocks with an overlay, in no order, and its length.
    pub(super) fn overlaid(&self) -> impl Iterator<Item = (u32, usize)> {
        self.overlays.iter().map(|(&block, patches)| (block, patches.len()))
    }

    /// Patches of all overlays.
    pub(super) fn patches(&self) -> u64 {
        self.patches
    }

    pub(super) fn lookup(&self, block: u32, page: u16) -> Option<Spot> {
        if let Some(overlay) = self.overlays.get(&block)
            && let Ok(index) = overlay.binary_search_by_key(&page, |patch| patch.page)
        {
            return overlay[index].spot();
        }
        self.base(block).map(|entry| Spot { entry, page })
    }

    /// Pages of a logical block that are mapped.
    pub(super) fn mapped(&self, block: u32) -> u32 {
        let overlay = self.overlay(block);
        let patched = overlay.iter().filter(|patch| patch.entry != Entry::NONE).count();
        let based = self.base(block).map_or(0, |_| usize::from(self.pages) - overlay.len());
        exact(patched + based, "it is at most the number of pages of a block")
    }

    /// Maps a page, or unmaps it; returns the place that it was mapped to.
    pub(super) fn set(&mut self, block: u32, page: u16, spot: Option<Spot>) -> Option<Spot> {
        let base = self.bases[block as usize];
        let based = (base != Entry::NONE).then_some(Spot { entry: base, page });
        let overlay = self.overlays.entry(block).or_default();
        let found = overlay.binary_search_by_key(&page, |patch| patch.page);
        let old = found.map_or(based, |index| overlay[index].spot());
        match found {
            Ok(index) if spot == based => {
                overlay.remove(index);
                self.patches -= 1;
            }
            Ok(index) => overlay[index] = Patch::new(page, spot),
            Err(index) if spot != based => {
                overlay.insert(index, Patch::new(page, spot));
                self.patches += 1;
            }
            Err(_) => {}
        }
        if base != Entry::NONE && overlay.len() == usize::from(self.pages) {
            self.bases[block as usize] = Entry::NONE;
            let before = overlay.len();
            overlay.retain(|patch| patch.entry != Entry::NONE);
            self.patches -= (before - overlay.len()) as u64;
        }
        if overlay.is_empty() {
            self.overlays.remove(&block);
        }
        old
    }

    /// Forgets a logical block: returns its base with the number of its pages there, and its patches.
    pub(super) fn clear(&mut self, block: u32) -> (Option<(Entry, u16)>, Vec<Patch>) {
        let overlay = self.overlays.remove(&block).unwrap_or_default();
        self.patches -= overlay.len() as u64;
        let patched: u16 = exact(overlay.len(), "a page has one patch at most");
        let left = self.pages.saturating_sub(patched);
        let base = self.base(block).map(|entry| (entry, left));
        self.bases[block as usize] = Entry::NONE;
        (base, overlay)
    }

    /// Makes `entry` the base if fewer patches remain then; `true` if it did. No page moves.
    pub(super) fn rebase(&mut self, block: u32, entry: Entry) -> bool {
        if self.bases[block as usize] == entry {
            return false;
        }
        let here = |patch: &&Patch| patch.entry == entry && patch.at == patch.page;
        let gained = self.overlay(block).iter().filter(here).count();
        let remain = usize::from(self.pages) - gained;
        if gained == 0 || remain > self.overlay(block).len() {
            return false;
        }
        let places = (0..self.pages).map(|page| (page, self.lookup(block, page)));
        let fresh: Vec<Patch> = places
            .filter(|&(page, spot)| spot != Some(Spot { entry, page }))
            .map(|(page, spot)| Patch::new(page, spot))
            .collect();
        self.patches = self.patches - self.overlay(block).len() as u64 + fresh.len() as u64;
        self.bases[block as usize] = entry;
        if fresh.is_empty() {
            self.overlays.remove(&block);
        } else {
            self.overlays.insert(block, fresh);
        }
        true
    }

    /// Puts a logical block as it was saved; the caller has checked it.
    pub(super) fn put(&mut self, block: u32, base: Entry, overlay: Vec<Patch>) {
        self.bases[block as usize] = base;
        self.patches += overlay.len() as u64;
        if !overlay.is_empty() {
            self.overlays.insert(block, overlay);
        }
    }

    /// Bytes of the block map itself, and of the overlays.
    pub(super) fn memory(&self) -> (usize, usize) {
        let patches: usize = self.overlays.values().map(Vec::capacity).sum();
        let table = self.overlays.capacity() * size_of::<(u32, Vec<Patch>)>();
        (self.bases.capacity() * size_of::<Entry>(), patches * size_of::<Patch>() + table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_a_slot_and_a_number() {
        let entry = Entry::new(255, SLOT_BLOCKS - 1);
        assert_eq!(
            (entry.slot(), entry.number(), entry == Entry::NONE),
            (255, SLOT_BLOCKS as usize - 1, false)
        );
        assert_eq!((size_of::<Entry>(), size_of::<Patch>()), (4, 8));
    }

    proptest! {
        #[test]
        fn a_map_reads_as_an_array(steps in prop::collection::vec((0_u8..8, 0_u16..8, 0_u16..8, 0_u32..3), 0..200)) {
            let mut map = Map::new(8, 2);
            let mut model = [[None; 8]; 2];
            for (what, page, at, number) in steps {
                let block = u32::from(page) % 2;
                let spot = Spot { entry: Entry::new(1, number), page: if what < 3 { page } else { at } };
                match what {
                    0..=4 => {
                        let old = model[block as usize][page as usize].replace(spot);
                        prop_assert_eq!(map.set(block, page, Some(spot)), old);
                    }
                    5 => prop_assert_eq!(map.set(block, page, None), model[block as usize][page as usize].take()),
                    6 => {
                        map.rebase(block, spot.entry);
                    }
                    _ if at == 0 => {
                        let (base, patches) = map.clear(block);
                        let count = patches.iter().filter(|patch| patch.spot().is_some()).count();
                        let based = base.map_or(0, |(_, left)| usize::from(left));
                        prop_assert_eq!(count + based, model[block as usize].iter().flatten().count());
                        model[block as usize] = [None; 8];
                    }
                    _ => {}
                }
                for (block, pages) in (0..).zip(&model) {
                    for (page, &spot) in (0..).zip(pages) {
                        prop_assert_eq!(map.lookup(block, page), spot);
                    }
                    prop_assert_eq!(map.mapped(block) as usize, pages.iter().flatten().count());
                }
                prop_assert_eq!(map.patches(), map.overlaid().map(|(_, count)| count as u64).sum::<u64>());
            }
        }
    }
}
