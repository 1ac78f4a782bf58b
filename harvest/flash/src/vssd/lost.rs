//! Pages that were lost: their slot had to go with its content, or the flash cannot read them any more.
//!
//! Only a disk that borrows flash can meet the first; the second can happen to any disk. A read of such a page returns
//! an error, rather than zeros or, worse, bytes of the flash's next holder; writing it whole, or trimming it, makes it
//! a page like any other.

use super::Vssd;
use super::change::{Change, ChangeKind};
use super::map::Spot;
use super::place::Placement;
use super::space::State;
use crate::device::FlashBlock;
use crate::{Error, ErrorKind, Result};
use headstart_block::exact;
use std::ops::Range;

/// Lost pages, as bits: 1 MiB for 128 GiB, and no memory if nothing was lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Lost {
    words: Vec<u64>,
    count: u64,
}

impl Lost {
    /// The lost pages of a snapshot, for a disk of `pages`.
    pub(super) fn of(words: Vec<u64>, pages: u32) -> Option<Self> {
        let count = words.iter().map(|word| u64::from(word.count_ones())).sum();
        let mut lost = Self { words, count };
        lost.shorten();
        let end = lost.words.len() as u64 * 64;
        let beyond =
            lost.words.last().is_some_and(|last| end - u64::from(last.leading_zeros()) > pages.into());
        (!beyond).then_some(lost)
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn add(&mut self, page: u32) {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.count += u64::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    /// Notes that these pages are not lost any more.
    pub(super) fn remove(&mut self, run: Range<u32>) {
        if self.count == 0 {
            return;
        }
        self.each_word(run, |word, bits| {
            let gone = *word & bits;
            *word &= !bits;
            u64::from(gone.count_ones())
        });
        self.shorten();
    }

    /// Forgets words without a lost page at the end: the disk may have become smaller.
    fn shorten(&mut self) {
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.words.truncate(used);
        if used == 0 {
            self.words = Vec::new();
        }
    }

    /// `true` if any of them is lost.
    pub(super) fn any(&self, run: Range<u32>) -> bool {
        let end = (self.words.len() as u64 * 64).min(run.end.into());
        let end: u32 = exact(end, "it is at most the run's end");
        self.count > 0
            && run.start < end
            && words(run.start..end).any(|(word, bits)| self.words[word] & bits != 0)
    }

    fn each_word(&mut self, run: Range<u32>, mut act: impl FnMut(&mut u64, u64) -> u64) {
        let end = (self.words.len() as u64 * 64).min(run.end.into());
        let end: u32 = exact(end, "it is at most the run's end");
        for (word, bits) in words(run.start.min(end)..end) {
            self.count -= act(&mut self.words[word], bits);
        }
    }
}

/// The words of a run, and the bits of it there.
fn words(run: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (run.start / 64, run.end.div_ceil(64));
    (first..last).filter(move |_| run.start < run.end).map(move |word| {
        let low = if word == first { u64::MAX << (run.start % 64) } else { u64::MAX };
        let high = if word + 1 == last && !run.end.is_multiple_of(64) {
            u64::MAX >> (64 - run.end % 64)
        } else {
            u64::MAX
        };
        (word as usize, low & high)
    })
}

impl Vssd {
    /// Gives up the content of a slot (a gSSD's blocks): the pages stored there are lost. Nothing more is
    /// written to the slot, and copies to it are discarded. The slot is [drained](Self::drained) once the change is
    /// durable and all placements in the slot have been answered. If a write of the user that was placed in the
    /// slot before is committed after this call, the caller must repeat the call. Returns the change to write to the
    /// journal, or `None` if the slot stores no page.
    ///
    /// # Errors
    /// NotFound if there is no such slot; Invalid for slot 0, the vSSD's own blocks.
    pub fn abandon_slot(&mut self, slot: u8) -> Result<Option<Change>> {
        let about = |error: Error| error.about(format!("slot {slot} of a vSSD"));
        if slot == 0 {
            return Err(about(Error::invalid("has the vSSD's own blocks")));
        }
        let pools = self.space.pools_of(slot, None);
        if pools.is_empty() {
            return Err(about(Error::new(ErrorKind::NotFound, "is not there")));
        }
        for &pool in &pools {
            self.space.set_draining(pool, true);
            self.space.set_closed(pool, true);
            let entries: Vec<_> = self.space.pool(pool).entries().collect();
            entries.into_iter().for_each(|entry| self.seal(entry));
        }
        let before = self.stored;
        let change = self.next_change(ChangeKind::Abandoned { slot });
        self.abandon(slot);
        if self.stored == before {
            self.last -= 1;
            return Ok(None);
        }
        Ok(Some(change))
    }

    /// Unmaps the pages of a slot: they are lost.
    pub(super) fn abandon(&mut self, slot: u8) {
        let pages: u16 = exact(self.settings.geometry.pages, "settings with more pages a block are refused");
        for pool in self.space.pools_of(slot, None) {
            for entry in self.space.pool(pool).entries() {
                for page in 0..pages {
                    if self.space.info(entry).valid == 0 {
                        break;
                    }
                    let Some(holder) = self.holder(Spot { entry, page }) else { continue };
                    self.lose_page(holder);
                }
            }
        }
    }

    /// Unmaps a page as lost; `None` if it reads as zeros.
    pub(super) fn lose_page(&mut self, page: u32) -> Option<Spot> {
        let (block, at) = self.stripe.locate(page);
        let old = self.map.lookup(block, at)?;
        self.map.set(block, at, None);
        self.stored -= 1;
        self.lost.add(page);
        self.forget(old.entry, 1);
        Some(old)
    }

    /// Answers [`CollectStep::Copy`](super::CollectStep::Copy): the page to copy cannot be read at present. The block
    /// that holds it is not collected again before [`Vssd::look_again`].
    pub fn unread(&mut self, placement: Placement) {
        if let Some(from) = placement.from {
            self.tasks.put_off(from.entry);
        }
        let change = self.failed(placement, false);
        debug_assert!(change.is_none(), "nothing was said to be bad");
    }

    /// Allows blocks that [`Vssd::unread`] put off to be collected again.
    pub fn look_again(&mut self) {
        self.tasks.look_again();
    }

    /// Answers [`CollectStep::Copy`](super::CollectStep::Copy): the page to copy can never be read again and is lost.
    /// Returns the change to write to the journal, or `None` if the page was written, trimmed or moved meanwhile: then
    /// it is not lost.
    pub fn lose(&mut self, placement: Placement) -> Option<Change> {
        let (page, from) = (placement.page, placement.from);
        let (block, at) = self.stripe.locate(page);
        let there = page < self.pages && from.is_some() && self.map.lookup(block, at) == from;
        let change = there.then(|| self.next_change(ChangeKind::Lost { page }));
        if there {
            self.lose_page(page);
        }
        let failed = self.failed(placement, false);
        debug_assert!(failed.is_none(), "nothing was said to be bad");
        change
    }

    /// Returns `true` if any of the disk's `count` pages from `first` on was lost, and not written or trimmed since.
    #[must_use]
    pub fn is_lost(&self, first: u32, count: u32) -> bool {
        self.lost.any(first..first.saturating_add(count))
    }

    /// Returns `true` if the vSSD has blocks in slot `slot`; slot 0 has its own blocks.
    #[must_use]
    pub fn has_slot(&self, slot: u8) -> bool {
        !self.space.pools_of(slot, None).is_empty()
    }

    /// Returns the numbers of the slots with borrowed blocks: all except slot 0, which has the vSSD's own.
    #[must_use]
    pub fn harvested(&self) -> Vec<u8> {
        self.space.slots().map(|(slot, _)| slot).filter(|slot| *slot > 0 && self.has_slot(*slot)).collect()
    }

    /// Returns `true` if slot `slot` is being drained on all of its channels, so that writes of the disk no longer go
    /// there; `false` if only some of its channels are. Also `true` if the vSSD has no such slot.
    #[must_use]
    pub fn is_draining(&self, slot: u8) -> bool {
        self.space.pools_of(slot, None).iter().all(|pool| self.space.pool(*pool).draining)
    }

    /// Returns `true` if `block` is one of the vSSD's own that is lent.
    #[must_use]
    pub fn is_lent(&self, block: FlashBlock) -> bool {
        self.space.find(block).is_some_and(|entry| self.space.info(entry).state == State::Lent)
    }

    /// Returns the vSSD's own blocks that are lent.
    #[must_use]
    pub fn lent_blocks(&self) -> Vec<FlashBlock> {
        let lent = |entry: &super::map::Entry| self.space.info(*entry).state == State::Lent;
        self.space.entries().into_iter().filter(lent).map(|entry| self.space.block(entry)).collect()
    }

    /// Returns the number of pages of the disk that were lost, and not written or trimmed since.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lost_pages_are_as_in_a_list(steps in prop::collection::vec((any::<bool>(), 0_u32..300, 0_u32..140), 0..40)) {
            let (mut lost, mut model) = (Lost::default(), [false; 512]);
            for (add, first, count) in steps {
                let run = first..first + count;
                let any = model[first as usize..run.end as usize].contains(&true);
                prop_assert_eq!(lost.any(run.clone()), any);
                model[first as usize..run.end as usize].fill(add);
                if add {
                    run.for_each(|page| lost.add(page));
                } else {
                    lost.remove(run);
                }
                prop_assert_eq!(lost.count(), model.iter().filter(|lost| **lost).count() as u64);
                let again = Lost::of(lost.words().to_vec(), 512).unwrap();
                prop_assert_eq!(again.count(), lost.count());
            }
        }
    }

    #[test]
    fn lost_pages_are_cut_to_a_smaller_disk() {
        let mut lost = Lost::default();
        [10, 9000].into_iter().for_each(|page| lost.add(page));
        lost.remove(1000..10_000);
        assert_eq!((lost.words().len(), lost.count()), (1, 1));
        // As earlier journals have it.
        assert!(Lost::of(vec![1 << 10, 0, 0, 0], 100).is_some_and(|lost| lost.count() == 1));
    }

    #[test]
    fn a_snapshot_cannot_lose_what_is_beyond_the_disk() {
        assert!(Lost::of(vec![1 << 9], 10).is_some());
        assert!(Lost::of(vec![1 << 10], 10).is_none());
        assert!(Lost::of(vec![0, 1], 64).is_none());
    }
}
