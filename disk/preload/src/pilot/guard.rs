//! The judgement on one plan's worth; see the head of [`pilot`](super).

use super::StopReason;
use super::account::Account;
use crate::Switcher;
use headstart_block::{Plan, PlanItem, SLICE_SIZE, Time, saturating, to_usize};
use headstart_pull::Preloading;
use std::sync::Arc;

/// The minimum number of due items (preloaded items that the boot should have read by now) before a plan is judged by
/// them: from this number on preloading stops if none of them was read, from one and a half times the number on by
/// [`FLOOR`].
pub const DUE_MIN: u64 = 6;
/// The minimum share, 0 to 1, of the due items in whose block the boot must have read. If the share is smaller, and at
/// least one and a half times [`DUE_MIN`] items are due, preloading by this plan stops.
pub const FLOOR: f64 = 0.34;
/// The minimum number of slices (64 KiB) that the boot must have read before a plan is judged by the share of
/// them that it names.
pub const READ_MIN: u64 = 16;
/// The assumed maximum speed of a guest relative to the recorded ones, as a factor. It is large because
/// recorded guests may have run in an emulator.
pub const FASTER: u64 = 8;

/// The guard of a plan; see the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    items: Arc<[PlanItem]>,
    /// The items by block.
    places: Vec<(u64, u32)>,
    /// For each item, the time at which it, or one after it, is read first, in milliseconds after the boot's first
    /// read.
    expected: Vec<u32>,
    /// For each item, `true` if the boot has read in its block.
    read: Vec<bool>,
    /// The number of items that are here or on their way.
    passed: usize,
    /// The number of due items, which are the first ones, and the number of those that were read.
    due: usize,
    due_read: u64,
    /// The bytes of these items.
    due_bytes: u64,
    due_read_bytes: u64,
    /// The latest time at which other boots first read a block that this one has read.
    reached_ms: u32,
    /// Slices that were read and are named.
    named: u64,
}

fn bytes(item: PlanItem) -> u64 {
    u64::from(item.mask.count_ones()) * SLICE_SIZE
}

impl Guard {
    /// The guard of a group's plan, for a boot with these reads.
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
                // If the times are unknown only the order counts.
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

    /// `true` if a plan is the same.
    pub(super) fn follows(&self, plan: &Plan) -> bool {
        matches!(plan, Plan::List(items) if *items == self.items)
    }

    /// Notes that the boot has read slices of a block, each reported once.
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

    /// Notes the engine's progress, if it follows this plan.
    pub(super) fn preloaded(&mut self, preloading: &Preloading, account: &mut Account) {
        let Plan::List(items) = &preloading.plan else { return };
        if !Arc::ptr_eq(items, &self.items) {
            return;
        }
        let passed = to_usize(preloading.items).min(self.items.len());
        while self.passed < passed {
            let item = self.items[self.passed];
            account.preloaded(item.block, item.mask);
            self.passed += 1;
        }
    }

    /// Advances the due items, up to `passed` items.
    fn advance(&mut self, now: Time, account: &Account, passed: usize) {
        let by_order = to_usize(account.blocks_read() * 3 / 4);
        let elapsed = saturating::<u64>(account.elapsed(now).as_millis());
        let by_time = elapsed.saturating_mul(FASTER).max(u64::from(self.reached_ms));
        while self.due < passed.min(by_order) && u64::from(self.expected[self.due]) <= by_time {
            let (item, read) = (self.items[self.due], self.read[self.due]);
            self.due += 1;
            self.due_bytes += bytes(item);
            self.due_read += u64::from(read);
            self.due_read_bytes += if read { bytes(item) } else { 0 };
        }
    }

    /// The objection to the plan by now, if there is one.
    pub(super) fn objection(&mut self, now: Time, account: &Account) -> Option<StopReason> {
        if self.passed == 0 || self.passed == self.items.len() {
            return None;
        }
        self.advance(now, account, self.passed);
        self.verdict(account)
    }

    /// `true` if there would be no objection to the plan if it had been followed from the beginning, and something
    /// speaks for it.
    pub(super) fn would_pass(mut self, now: Time, account: &Account) -> bool {
        self.advance(now, account, self.items.len());
        self.due as u64 >= DUE_MIN && self.due_read * 2 >= self.due as u64 && self.verdict(account).is_none()
    }

    #[expect(clippy::cast_precision_loss, reason = "a share of some items")]
    fn verdict(&self, account: &Account) -> Option<StopReason> {
        let (due, read) = (self.due as u64, self.due_read);
        let below = (read as f64) < FLOOR * due as f64;
        if due >= DUE_MIN && read == 0 || due >= DUE_MIN + DUE_MIN / 2 && below {
            return Some(StopReason::Useless { due, read });
        }
        let (read, named) = (account.slices_read(), self.named);
        let below = |least: u64, share: u64| read >= least && named * share < read;
        let strange = below(READ_MIN, 16) || below(2 * READ_MIN, 10) || below(8 * READ_MIN, 4);
        strange.then_some(StopReason::Strange { read, named })
    }

    /// The bytes of the due items, and of the due items that were read.
    pub(super) fn due_bytes(&self) -> (u64, u64) {
        (self.due_bytes, self.due_read_bytes)
    }
}
