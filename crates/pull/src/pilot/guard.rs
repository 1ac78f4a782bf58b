//! Whether one plan is worth following; see the head of [`pilot`](super).

use super::account::Account;
use super::{Preloading, Why};
use crate::{Plan, Switcher, Time};
use headstart_block::{PlanItem, SLICE_SIZE};
use std::sync::Arc;

/// So many items must be due before anything is said against a plan.
pub const DUE_MIN: u64 = 6;
/// The least share of the items that are due that must have been read.
pub const FLOOR: f64 = 0.34;
/// So many slices must be read before a plan can be called strange.
pub const READ_MIN: u64 = 16;
/// Guests are at most so many times as fast as those that were recorded: these may have been emulated.
pub const FASTER: u64 = 8;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    items: Arc<[PlanItem]>,
    /// The items by block.
    places: Vec<(u64, u32)>,
    /// Of each item: when it, or one that comes after it, is read first; in milliseconds after the boot's first read.
    expected: Vec<u32>,
    /// Of each item: whether the boot has read in its block.
    read: Vec<bool>,
    /// How many are here or on their way.
    passed: usize,
    /// The first of which so many are due; of them so many were read.
    due: usize,
    due_read: u64,
    /// Bytes of these.
    due_bytes: u64,
    due_read_bytes: u64,
    /// The latest moment at which something that was read is read first by other boots.
    reached_ms: u32,
    /// Slices that were read and are named.
    named: u64,
}

fn bytes(item: PlanItem) -> u64 {
    u64::from(item.mask.count_ones()) * SLICE_SIZE
}

impl Guard {
    /// Of the plan of a group, for a boot that has read so far.
    pub(super) fn of(switcher: &Switcher, group: usize, account: &Account) -> Self {
        let Some((group, plan)) = switcher.plan_of(group) else { return Self::default() };
        let items = Arc::clone(&plan.items);
        let mut places: Vec<(u64, u32)> = items.iter().map(|item| item.block).zip(0..).collect();
        places.sort_unstable();
        let mut least = u32::MAX;
        let mut expected: Vec<u32> = items
            .iter()
            .rev()
            .map(|item| {
                // Where nobody knows only the order counts.
                least = least.min(group.first_read_ms(item.block).unwrap_or(0));
                least
            })
            .collect();
        expected.reverse();
        let mut guard = Self { read: vec![false; items.len()], places, expected, items, ..Self::default() };
        for (block, slices) in account.reads() {
            guard.read(block, slices);
        }
        guard
    }

    /// Whether a plan says the same.
    pub(super) fn follows(&self, plan: &Plan) -> bool {
        matches!(plan, Plan::List(items) if *items == self.items)
    }

    /// The boot has read slices of a block, each told once.
    pub(super) fn read(&mut self, block: u64, slices: u32) {
        let first = self.places.partition_point(|(known, _)| *known < block);
        let mut mask = 0;
        for (_, place) in self.places[first..].iter().take_while(|(known, _)| *known == block) {
            let place = *place as usize;
            let item = self.items[place];
            mask |= item.mask;
            if self.read[place] {
                continue;
            }
            self.read[place] = true;
            self.reached_ms = self.reached_ms.max(self.expected[place]);
            if place < self.due {
                self.due_read += 1;
                self.due_read_bytes += bytes(item);
            }
        }
        self.named += u64::from((slices & mask).count_ones());
    }

    /// How far the engine is, if it follows this plan.
    pub(super) fn preloaded(&mut self, preloading: &Preloading, account: &mut Account) {
        let Plan::List(items) = &preloading.plan else { return };
        if !Arc::ptr_eq(items, &self.items) {
            return;
        }
        let passed = usize::try_from(preloading.items).unwrap_or(usize::MAX).min(self.items.len());
        while self.passed < passed {
            let item = self.items[self.passed];
            account.preloaded(item.block, item.mask);
            self.passed += 1;
        }
    }

    /// Moves what is due on, up to `passed` items.
    fn advance(&mut self, now: Time, account: &Account, passed: usize) {
        let by_order = usize::try_from(account.blocks_read() * 3 / 4).unwrap_or(usize::MAX);
        let elapsed = u64::try_from(account.elapsed(now).as_millis()).unwrap_or(u64::MAX);
        let by_time = elapsed.saturating_mul(FASTER).max(u64::from(self.reached_ms));
        while self.due < passed.min(by_order) && u64::from(self.expected[self.due]) <= by_time {
            let (item, read) = (self.items[self.due], self.read[self.due]);
            self.due += 1;
            self.due_bytes += bytes(item);
            self.due_read += u64::from(read);
            self.due_read_bytes += if read { bytes(item) } else { 0 };
        }
    }

    /// What is to be said against the plan by now.
    pub(super) fn objection(&mut self, now: Time, account: &Account) -> Option<Why> {
        if self.passed == 0 || self.passed == self.items.len() {
            return None;
        }
        self.advance(now, account, self.passed);
        self.verdict(account)
    }

    /// Whether nothing would be to be said against the plan if it had been followed from the beginning, and something
    /// for it.
    pub(super) fn would_pass(mut self, now: Time, account: &Account) -> bool {
        self.advance(now, account, self.items.len());
        self.due as u64 >= DUE_MIN && self.due_read * 2 >= self.due as u64 && self.verdict(account).is_none()
    }

    #[expect(clippy::cast_precision_loss, reason = "a share of some items")]
    fn verdict(&self, account: &Account) -> Option<Why> {
        let (due, read) = (self.due as u64, self.due_read);
        let below = (read as f64) < FLOOR * due as f64;
        if due >= DUE_MIN && read == 0 || due >= DUE_MIN + DUE_MIN / 2 && below {
            return Some(Why::Useless { due, read });
        }
        let (read, named) = (account.slices_read(), self.named);
        let below = |least: u64, share: u64| read >= least && named * share < read;
        let strange = below(READ_MIN, 16) || below(2 * READ_MIN, 10) || below(8 * READ_MIN, 4);
        strange.then_some(Why::Strange { read, named })
    }

    /// Bytes of the items that are due, and of those of them that were read.
    pub(super) fn due_bytes(&self) -> (u64, u64) {
        (self.due_bytes, self.due_read_bytes)
    }
}
