//! The whole state of a vSSD at once: taken, and restored from possibly damaged bytes.

use super::map::{Entry, Patch};
use super::settings::VssdSettings;
use super::space::State;
use super::stripe::Stripe;
use super::{FlashBlock, Vssd};
use crate::{Error, Result};
use headstart_block::{exact, to_usize};
use serde::{Deserialize, Serialize};

/// A flash block in a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kept {
    /// In use or free: the map decides that.
    Here,
    /// In use, and failing.
    Failing,
    /// Lent.
    Lent,
    /// Bad.
    Bad,
    /// Gone with its channel.
    Gone,
}

/// The whole state of a vSSD, to be stored in the journal in place of earlier changes. It consists of long
/// lists of plain numbers, because copying these is fast and the vSSD is locked meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The number of the last [`Change`](super::Change) that it includes.
    pub number: u64,
    settings: VssdSettings,
    slots: Vec<(u8, Vec<(FlashBlock, Kept)>)>,
    bases: Vec<Entry>,
    /// Logical blocks with patches, and the number of these.
    overlaid: Vec<(u32, u32)>,
    patches: Vec<Patch>,
    lost: Vec<u64>,
}

impl Snapshot {
    /// The patches of each logical block; `None` if there are fewer than counted.
    fn overlays(&self) -> Option<Vec<(u32, &[Patch])>> {
        let mut rest = self.patches.as_slice();
        let lists = self.overlaid.iter().map(|&(block, count)| {
            let (list, more) = rest.split_at_checked(count as usize)?;
            rest = more;
            Some((block, list))
        });
        let lists: Option<Vec<_>> = lists.collect();
        lists.filter(|_| rest.is_empty())
    }
}

impl Vssd {
    /// Returns the whole state, to be stored in the journal in place of all changes so far. Placements that are
    /// not committed yet are not part of the state.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let kept = |info: &super::space::Info| match info.state {
            State::Lent => Kept::Lent,
            State::Bad => Kept::Bad,
            State::Vacant => Kept::Gone,
            _ if info.failing => Kept::Failing,
            _ => Kept::Here,
        };
        let slots = self.space.slots().map(|(number, slot)| {
            (number, slot.blocks.iter().copied().zip(slot.info.iter().map(kept)).collect())
        });
        let blocks = 0..self.map.blocks();
        let count = |length: usize| exact::<u32>(length, "a page has one patch at most");
        let mut overlaid: Vec<_> =
            self.map.overlaid().map(|(block, length)| (block, count(length))).collect();
        overlaid.sort_unstable();
        let mut patches = Vec::with_capacity(to_usize(self.map.patches()));
        overlaid.iter().for_each(|(block, _)| patches.extend_from_slice(self.map.overlay(*block)));
        Snapshot {
            number: self.last,
            settings: self.settings.clone(),
            slots: slots.collect(),
            bases: blocks.map(|block| self.map.base(block).unwrap_or(Entry::NONE)).collect(),
            overlaid,
            patches,
            lost: self.lost.words().to_vec(),
        }
    }

    /// Returns a vSSD with the state of a snapshot. [`Vssd::recovered`] makes it ready for use.
    ///
    /// # Errors
    /// Corrupt if the snapshot contradicts itself.
    pub fn restore(snapshot: &Snapshot) -> Result<Self> {
        let corrupt = |cause: &'static str| Error::corrupt(cause).about("a vSSD's snapshot");
        let settings = &snapshot.settings;
        let pages = settings.check().map_err(|error| corrupt("has impossible settings").caused_by(error))?;
        let stripe = Stripe::new(settings.width(), settings.unit, settings.geometry.pages);
        if snapshot.bases.len() != stripe.blocks(pages) as usize {
            return Err(corrupt("maps another size"));
        }
        // Its own blocks need not be as many as for a new one: some may be bad, some of its size may be harvested.
        let mut vssd = Self::empty(settings, pages);
        vssd.replaying = true;
        for (slot, blocks) in &snapshot.slots {
            let here: Vec<_> = blocks.iter().map(|&(block, _)| (block, 0)).collect();
            let channel = |block: &(FlashBlock, u32)| settings.geometry.channel(block.0);
            let mut channels = here.chunk_by(|a, b| channel(a) == channel(b));
            if channels.any(|blocks| blocks.windows(2).any(|pair| pair[0].0 >= pair[1].0)) {
                return Err(corrupt("has blocks out of order"));
            }
            vssd.space
                .add_ordered(*slot, &here)
                .map_err(|error| corrupt("has impossible blocks").caused_by(error))?;
            for (number, &(_, kept)) in (0..).zip(blocks) {
                let entry = Entry::new(*slot, number);
                match kept {
                    Kept::Here => {}
                    Kept::Failing => vssd.space.fail(entry),
                    Kept::Lent => vssd.space.put(entry, State::Lent),
                    Kept::Bad => vssd.space.put(entry, State::Bad),
                    Kept::Gone => vssd.space.put(entry, State::Vacant),
                }
            }
        }
        vssd.last = snapshot.number;
        vssd.lost = super::lost::Lost::of(snapshot.lost.clone(), pages)
            .ok_or_else(|| corrupt("lost what it never had"))?;
        vssd.restore_map(snapshot).map_err(corrupt)?;
        Ok(vssd)
    }

    /// Puts the map, all of which is checked.
    fn restore_map(&mut self, snapshot: &Snapshot) -> Result<(), &'static str> {
        let pages = self.settings.geometry.pages;
        let lists = snapshot.overlays().ok_or("has other patches than it says")?;
        let mut overlays = lists.iter().peekable();
        for (block, &base) in (0..).zip(&snapshot.bases) {
            let overlay =
                overlays.next_if(|(number, _)| *number == block).map_or(&[][..], |&(_, patches)| patches);
            let ascending = overlay.windows(2).all(|pair| pair[0].page < pair[1].page);
            let inside = |patch: &Patch| u32::from(patch.page) < pages && u32::from(patch.at) < pages;
            if !ascending || !overlay.iter().all(inside) {
                return Err("has patches out of order");
            }
            let based = base != Entry::NONE;
            if based
                && (overlay.len() >= pages as usize || !self.is_here(base) || self.space.info(base).valid > 0)
            {
                return Err("has a base that cannot be");
            }
            if !based && overlay.iter().any(|patch| patch.spot().is_none()) {
                return Err("has holes in nothing");
            }
            self.map.put(block, base, overlay.to_vec());
            if based {
                // Every page of it counts; patches elsewhere take away again below.
                self.space.set_owner(base, block, &self.stripe);
                let left: u16 =
                    exact(pages as usize - overlay.len(), "settings with more pages a block are refused");
                self.space.change(base, |info| info.valid = left);
                self.stored += u64::from(left);
            }
        }
        if overlays.next().is_some() {
            return Err("has patches of no block");
        }
        for (block, patch) in lists.iter().flat_map(|(block, list)| list.iter().map(move |p| (*block, p))) {
            let Some(spot) = patch.spot() else { continue };
            let page = u32::try_from(self.stripe.page(block, patch.page)).ok();
            let page = page.filter(|page| self.is_here(spot.entry) && *page < self.pages);
            let page = page.ok_or("maps what is not there")?;
            self.claim(spot, page).map_err(|_| "maps two pages to one place")?;
            self.stored += 1;
        }
        let whole = |block| self.map.base(block).is_none() || self.stripe.is_whole(block, self.pages);
        let beyond = |block: u32| {
            let page = |at| self.stripe.page(block, at) >= u64::from(self.pages);
            (0..exact::<u16>(pages, "settings with more pages a block are refused"))
                .any(|at| page(at) && self.map.lookup(block, at).is_some())
        };
        if (0..self.map.blocks()).any(|block| !whole(block) && beyond(block)) {
            return Err("maps pages beyond the disk");
        }
        Ok(())
    }
}
