//! [`Members`]: the memory of a tracker that each member of the swarm answers for.
//!
//! A member has an account in a numbered slot. The account has a part for each image in which the member owns
//! something: the image itself, if the member reported it first, and the slices that it reported first, with the nodes
//! that they took in the image's tree. Slot 0 is the *commons*: entries that more than one member has reported and
//! whose first owner has given them up, and those that were loaded from a file. An account without parts is closed, and
//! its slot is given to another member.

use super::ImageKey;
use crate::PeerKey;
use headstart_block::exact;
use std::collections::BTreeMap;

/// The slot of entries that no single member answers for.
pub(super) const COMMONS: u32 = 0;

/// The nodes that each slot answers for.
pub(super) type Charges = BTreeMap<u32, usize>;

/// The weight of a part beside its nodes, in nodes: the memory of its entry.
const PART: usize = 2;

/// The part of an image that a member owns.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    nodes: usize,
    owns_image: bool,
    /// The last report about the image by this member (by any member, in the commons).
    last_report: u64,
}

#[derive(Clone, Debug, Default)]
struct Account {
    /// Nodes of all parts, and [`PART`] for each.
    weight: usize,
    images_owned: usize,
    parts: BTreeMap<ImageKey, Part>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Members {
    accounts: BTreeMap<u32, Account>,
    slots: BTreeMap<PeerKey, u32>,
}

/// The measure by which a tracker is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Weight,
    Images,
}

impl Default for Members {
    fn default() -> Self {
        Self { accounts: BTreeMap::from([(COMMONS, Account::default())]), slots: BTreeMap::new() }
    }
}

impl Members {
    /// The slot of a member, which gets an account if it has none.
    pub(super) fn slot(&mut self, member: PeerKey) -> u32 {
        if let Some(slot) = self.slots.get(&member) {
            return *slot;
        }
        let free = (COMMONS + 1..).zip(self.accounts.keys().skip(1)).find(|(slot, used)| slot != *used);
        let slot = free.map_or_else(
            || exact(self.accounts.len(), "there are fewer hosts than 32 bits count"),
            |(slot, _)| slot,
        );
        self.accounts.insert(slot, Account::default());
        self.slots.insert(member, slot);
        slot
    }

    /// Closes the accounts without parts.
    pub(super) fn close_empty(&mut self) {
        self.accounts.retain(|slot, account| *slot == COMMONS || !account.parts.is_empty());
        self.slots.retain(|_, slot| self.accounts.contains_key(slot));
    }

    /// The weight, or the images, that a slot answers for.
    pub(super) fn held(&self, slot: u32, measure: Measure) -> usize {
        self.accounts.get(&slot).map_or(0, |account| account.held(measure))
    }

    /// The same, for all slots.
    pub(super) fn held_by_all(&self, measure: Measure) -> usize {
        self.accounts.values().map(|account| account.held(measure)).sum()
    }

    /// The slot that answers for most.
    pub(super) fn largest(&self, measure: Measure) -> u32 {
        let largest = self.accounts.iter().max_by_key(|(_, account)| account.held(measure));
        largest.map_or(COMMONS, |(slot, _)| *slot)
    }

    /// The image of which the owner of a slot has said nothing for longest, other than `except`.
    pub(super) fn oldest(&self, slot: u32, except: Option<ImageKey>) -> Option<ImageKey> {
        let parts = self.accounts.get(&slot)?.parts.iter().filter(|(key, _)| Some(**key) != except);
        parts.min_by_key(|(_, part)| part.last_report).map(|(key, _)| *key)
    }

    /// The same, among the images that it reported first.
    pub(super) fn oldest_owned(&self, slot: u32) -> Option<ImageKey> {
        let parts = self.accounts.get(&slot)?.parts.iter().filter(|(_, part)| part.owns_image);
        parts.min_by_key(|(_, part)| part.last_report).map(|(key, _)| *key)
    }

    /// Notes that a member has reported an image.
    pub(super) fn on_report(&mut self, slot: u32, image: ImageKey, at: u64) {
        for slot in [COMMONS, slot] {
            let part = self.accounts.get_mut(&slot).and_then(|account| account.parts.get_mut(&image));
            if let Some(part) = part {
                part.last_report = at;
            }
        }
    }

    /// Makes a slot answer for more nodes of an image.
    pub(super) fn charge(&mut self, slot: u32, image: ImageKey, nodes: usize, at: u64) {
        let Some(account) = self.accounts.get_mut(&slot) else { return };
        let mut part = account.take(image).unwrap_or_default();
        (part.nodes, part.last_report) = (part.nodes + nodes, at);
        account.put(image, part);
    }

    /// Makes every slot answer for these nodes of an image, and for nothing else of it.
    pub(super) fn reassign(
        &mut self,
        image: ImageKey,
        owner: Option<u32>,
        charges: &Charges,
        last_report: u64,
    ) {
        for (slot, account) in &mut self.accounts {
            let before = account.take(image);
            let nodes = charges.get(slot).copied().unwrap_or(0);
            let owns_image = owner == Some(*slot);
            if nodes > 0 || owns_image {
                let last_report = before.map_or(last_report, |part| part.last_report);
                account.put(image, Part { nodes, owns_image, last_report });
            }
        }
    }
}

impl Account {
    fn held(&self, measure: Measure) -> usize {
        match measure {
            Measure::Weight => self.weight,
            Measure::Images => self.images_owned,
        }
    }

    fn take(&mut self, image: ImageKey) -> Option<Part> {
        let part = self.parts.remove(&image)?;
        self.weight -= part.nodes + PART;
        self.images_owned -= usize::from(part.owns_image);
        Some(part)
    }

    fn put(&mut self, image: ImageKey, part: Part) {
        self.weight += part.nodes + PART;
        self.images_owned += usize::from(part.owns_image);
        self.parts.insert(image, part);
    }
}
