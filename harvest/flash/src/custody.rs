//! Custody: the record of the vSSD that may use each flash block. It guarantees that no block changes hands unerased.
//!
//! A block has a *lender*, the vSSD that owns its channel and may lend it, and a holder: its lender, an unused gSSD, or
//! the borrower that the gSSD is leased to. Custody follows the broker's steps ([`Custody::apply`], live and after a
//! crash alike):
//!
//! ```text
//!  lender --Carved--> gSSD, dirty --Erased--> gSSD, clean --Leased--> borrower
//!   ^                   ^                     |  ^                    |
//!   |                   `------ Detached -----|--|--------------------'
//!   `----------------- Returned --------------'
//! ```
//!
//! Only an erasure makes a dirty gSSD clean, and only from a clean gSSD do blocks go to a borrower or back to the
//! lender. Any other step is refused, with nothing changed: then the journal or the broker is wrong. While a gSSD is
//! unused, no vSSD may touch its blocks. A block whose erasure failed never has a holder again, because its data is
//! still there.
//!
//! [`Custody::may_touch`] is called for every read and write, and costs one atomic load. It is a second check: FTLs
//! touch only their own blocks anyway, and the driver (the code that carries out the broker's actions) waits for the
//! I/O under way before a gSSD counts as detached.
//!
//! Channels change owners in pairs (`Swapped`), and only if all blocks of both are with their owners and were erased;
//! the driver must erase them before the step. A channel of a deleted vSSD is given to another only after it was wiped.
//! Custody takes blocks that were never owned as clean, so the driver must erase flash that is new to the host before
//! the first step.

use crate::device::{FlashBlock, Geometry};
use crate::step::{BlockRun, BrokerStep};
use crate::{Error, ErrorKind, GssdId, Result, VssdId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};

/// No vSSD may touch the block. Any other word except [`BAD`] is the number of the vSSD that may, plus one.
const NOBODY: u32 = 0;
/// The block is bad.
const BAD: u32 = u32::MAX;

/// The present holder of a flash block: the vSSD that may use it now, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No vSSD may use the block: it is in a gSSD that is not on lease, or its channel has no owner.
    Nobody,
    /// This vSSD may use the block, as its owner or as its borrower.
    Vssd(VssdId),
    /// The block is bad, because it could not be erased: no vSSD may ever use it.
    Bad,
}

/// Access control for all flash blocks of an SSD: records the vSSD that may use each block, and refuses to
/// pass on a block that was not erased. Takes 4 bytes of memory for each block. All methods may be called
/// from any thread.
#[derive(Debug)]
pub struct Custody {
    geometry: Geometry,
    words: Vec<AtomicU32>,
    ledger: Mutex<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    /// The owner of each channel.
    channels: BTreeMap<u16, VssdId>,
    gssds: BTreeMap<GssdId, Holding>,
    /// Blocks that went back to the lender and were not taken by the lender's FTL yet.
    returned: BTreeMap<GssdId, Vec<BlockRun>>,
    bad: BTreeSet<u32>,
}

#[derive(Debug)]
struct Holding {
    lender: VssdId,
    blocks: Vec<BlockRun>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Dirty,
    Clean,
    Held,
}

impl Custody {
    /// Returns the custody of an SSD in its first state: no channel has an owner, and all blocks are erased.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let words = (0..geometry.total_blocks()).map(|_| AtomicU32::new(NOBODY)).collect();
        Self { geometry, words, ledger: Mutex::default() }
    }

    /// Returns the custody that results from the steps of a journal, applied in order. The blocks of a gSSD count as
    /// erased only if a step says that they were erased after the gSSD was made or last detached.
    ///
    /// # Errors
    /// As [`Custody::apply`].
    pub fn recover<'a>(geometry: Geometry, steps: impl IntoIterator<Item = &'a BrokerStep>) -> Result<Self> {
        let custody = Self::new(geometry);
        steps.into_iter().try_for_each(|step| custody.apply(step))?;
        custody.lock().returned.clear();
        Ok(custody)
    }

    /// Returns `true` if `vssd` may read, program and erase `block` now; `false` also if the SSD has no such block.
    #[must_use]
    #[inline]
    pub fn may_touch(&self, vssd: VssdId, block: FlashBlock) -> bool {
        let word = self.words.get(block.0 as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) == word_of(vssd) && word_of(vssd) != BAD)
    }

    /// Returns the present holder of `block`; [`Holder::Nobody`] if the SSD has no such block.
    #[must_use]
    pub fn holder(&self, block: FlashBlock) -> Holder {
        match self.words.get(block.0 as usize).map_or(NOBODY, |word| word.load(Ordering::Acquire)) {
            NOBODY => Holder::Nobody,
            BAD => Holder::Bad,
            word => Holder::Vssd(VssdId(word - 1)),
        }
    }

    /// Returns the blocks of a gSSD (lent flash), without the bad ones; empty if there is no such gSSD.
    #[must_use]
    pub fn blocks(&self, gssd: GssdId) -> Vec<BlockRun> {
        self.lock().gssds.get(&gssd).map(|holding| holding.blocks.clone()).unwrap_or_default()
    }

    /// Returns the blocks that a returned gSSD gave back to its lender, erased and without bad ones. The lender's
    /// FTL is to take them. The result is empty on later calls for the same gSSD, for a gSSD that was not returned,
    /// and for one that was returned by a step passed to [`Custody::recover`].
    #[must_use]
    pub fn take_returned(&self, gssd: GssdId) -> Vec<BlockRun> {
        self.lock().returned.remove(&gssd).unwrap_or_default()
    }

    /// Returns the gSSDs that `lender` has lent, each with its blocks. The lender's FTL must not use these
    /// blocks, even if the FTL's own state says that they are its own.
    #[must_use]
    pub fn lent(&self, lender: VssdId) -> Vec<(GssdId, Vec<BlockRun>)> {
        let ledger = self.lock();
        let lent = ledger.gssds.iter().filter(|(_, holding)| holding.lender == lender);
        lent.map(|(id, holding)| (*id, holding.blocks.clone())).collect()
    }

    /// Returns the bad blocks: those that could not be erased, and that no vSSD may use. In ascending order.
    #[must_use]
    pub fn bad(&self) -> Vec<BlockRun> {
        BlockRun::gather(self.lock().bad.iter().map(|block| FlashBlock(*block)))
    }

    /// Applies a step of the broker. The caller applies each step after it is durable in the journal, and before it
    /// does anything that follows from the step.
    ///
    /// # Errors
    /// The step is not allowed: a block is not with the holder that the step assumes, or would change hands without
    /// having been erased; or the step names a block, channel or gSSD that does not exist. Nothing was changed.
    pub fn apply(&self, step: &BrokerStep) -> Result<()> {
        let mut ledger = self.lock();
        match step {
            BrokerStep::Created { vssd, channels, .. } => self.own(&mut ledger, *vssd, channels),
            BrokerStep::Deleted { vssd, bad } => self.disown(&mut ledger, *vssd, bad),
            BrokerStep::Carved { gssd, lender, capacity, blocks, .. } => {
                self.carve(&mut ledger, *gssd, *lender, *capacity, blocks)
            }
            BrokerStep::Erased { gssd, bad } => self.clean(&mut ledger, *gssd, bad),
            BrokerStep::Leased { gssd, borrower, .. } => {
                let holding = holding(&mut ledger, *gssd, State::Clean)?;
                holding.state = State::Held;
                self.set(&holding.blocks, word_of(*borrower));
                Ok(())
            }
            BrokerStep::Detached { gssd } => {
                let holding = holding(&mut ledger, *gssd, State::Held)?;
                holding.state = State::Dirty;
                self.set(&holding.blocks, NOBODY);
                Ok(())
            }
            BrokerStep::Returned { gssd } => {
                holding(&mut ledger, *gssd, State::Clean)?;
                if let Some(Holding { lender, blocks, .. }) = ledger.gssds.remove(gssd) {
                    self.set(&blocks, word_of(lender));
                    ledger.returned.insert(*gssd, blocks);
                }
                Ok(())
            }
            BrokerStep::Bad { blocks } => {
                self.check(blocks, |_| true).map_err(|error| error.about("bad blocks"))?;
                self.set(blocks, BAD);
                ledger.bad.extend(blocks.iter().flat_map(|run| run.blocks()).map(|block| block.0));
                Ok(())
            }
            BrokerStep::Swapped { one, other, bad } => self.swap(&mut ledger, *one, *other, bad),
            BrokerStep::Deleting { .. }
            | BrokerStep::Evacuating { .. }
            | BrokerStep::Kept { .. }
            | BrokerStep::Leaving { .. }
            | BrokerStep::Withdrawn { .. }
            | BrokerStep::Redated { .. }
            | BrokerStep::Next { .. } => Ok(()),
        }
    }

    fn own(&self, ledger: &mut Ledger, vssd: VssdId, channels: &[u16]) -> Result<()> {
        if word_of(vssd) == BAD {
            return Err(Error::invalid("its number is too large").about(format_args!("vSSD {}", vssd.0)));
        }
        if channels.iter().collect::<BTreeSet<_>>().len() < channels.len() {
            let error = Error::invalid("a channel is named twice");
            return Err(error.about(format_args!("vSSD {}", vssd.0)));
        }
        for channel in channels {
            if *channel >= self.geometry.channels {
                return Err(
                    Error::invalid("the SSD has no such channel").about(format_args!("channel {channel}"))
                );
            }
            if let Some(owner) = ledger.channels.get(channel) {
                let cause = format!("vSSD {} owns it", owner.0);
                return Err(Error::new(ErrorKind::Conflict, cause).about(format_args!("channel {channel}")));
            }
        }
        for channel in channels {
            ledger.channels.insert(*channel, vssd);
            for word in self.channel(*channel).filter(|word| word.load(Ordering::Relaxed) != BAD) {
                word.store(word_of(vssd), Ordering::Release);
            }
        }
        Ok(())
    }

    fn disown(&self, ledger: &mut Ledger, vssd: VssdId, bad: &[FlashBlock]) -> Result<()> {
        if let Some((gssd, _)) = ledger.gssds.iter().find(|(_, holding)| holding.lender == vssd) {
            let cause = format!("it still lends gSSD {}", gssd.0);
            return Err(Error::new(ErrorKind::Conflict, cause).about(format_args!("vSSD {}", vssd.0)));
        }
        let (of_lender, is_bad) = (word_of(vssd), |word| word == BAD);
        let bad = BlockRun::gather(bad.iter().copied());
        self.check(&bad, |word| word == of_lender || is_bad(word))?;
        self.set(&bad, BAD);
        ledger.bad.extend(bad.iter().flat_map(|run| run.blocks()).map(|block| block.0));
        let channels = ledger.channels.iter().filter(|(_, owner)| **owner == vssd);
        let channels: Vec<u16> = channels.map(|(channel, _)| *channel).collect();
        for channel in channels {
            ledger.channels.remove(&channel);
            for word in self.channel(channel).filter(|word| !is_bad(word.load(Ordering::Relaxed))) {
                word.store(NOBODY, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Lets two channels change owners, all blocks of which are with their owners.
    fn swap(
        &self,
        ledger: &mut Ledger,
        one: (VssdId, u16),
        other: (VssdId, u16),
        bad: &[FlashBlock],
    ) -> Result<()> {
        for (vssd, channel) in [one, other] {
            let about = |error: Error| error.about(format_args!("channel {channel}"));
            if ledger.channels.get(&channel) != Some(&vssd) {
                let cause = format!("vSSD {} does not own it", vssd.0);
                return Err(about(Error::new(ErrorKind::Conflict, cause)));
            }
            let of_lender = |word: &AtomicU32| [word_of(vssd), BAD].contains(&word.load(Ordering::Relaxed));
            if !self.channel(channel).all(of_lender) {
                return Err(about(Error::new(ErrorKind::Conflict, "some of it is lent")));
            }
        }
        let channels = [one.1, other.1];
        if bad.iter().any(|block| !channels.contains(&self.geometry.channel(*block))) {
            return Err(Error::corrupt("a block is bad that is of neither channel").about("channels"));
        }
        self.set(&BlockRun::gather(bad.iter().copied()), BAD);
        ledger.bad.extend(bad.iter().map(|block| block.0));
        for ((_, channel), (vssd, _)) in [(one, other), (other, one)] {
            ledger.channels.insert(channel, vssd);
            for word in self.channel(channel).filter(|word| word.load(Ordering::Relaxed) != BAD) {
                word.store(word_of(vssd), Ordering::Release);
            }
        }
        Ok(())
    }

    fn carve(
        &self,
        ledger: &mut Ledger,
        gssd: GssdId,
        lender: VssdId,
        capacity: u32,
        blocks: &[BlockRun],
    ) -> Result<()> {
        let about = |error: Error| error.about(format_args!("gSSD {}", gssd.0));
        if ledger.gssds.contains_key(&gssd) {
            return Err(about(Error::new(ErrorKind::Conflict, "there is one of this number already")));
        }
        let of_lender = word_of(lender);
        self.check(blocks, |word| word == of_lender).map_err(about)?;
        // A block named twice is with its lender both times: so the number of named blocks must also equal the
        // capacity.
        let blocks = ordered(blocks.to_vec());
        let overlap = blocks.windows(2).any(|pair| pair[0].first.0 + pair[0].count > pair[1].first.0);
        if overlap || blocks.iter().map(|run| u64::from(run.count)).sum::<u64>() != u64::from(capacity) {
            return Err(about(Error::corrupt("its blocks are not as many as it should have")));
        }
        self.set(&blocks, NOBODY);
        ledger.gssds.insert(gssd, Holding { lender, blocks, state: State::Dirty });
        Ok(())
    }

    fn clean(&self, ledger: &mut Ledger, gssd: GssdId, bad: &[FlashBlock]) -> Result<()> {
        let holding = holding(ledger, gssd, State::Dirty)?;
        if !bad.is_empty() {
            let bad: BTreeSet<FlashBlock> = bad.iter().copied().collect();
            let has = |block: &FlashBlock| holding.blocks.iter().any(|run| run.contains(*block));
            if !bad.iter().all(has) {
                let cause = "a block is bad that is not its own";
                return Err(Error::corrupt(cause).about(format_args!("gSSD {}", gssd.0)));
            }
            let all = holding.blocks.iter().flat_map(|run| run.blocks());
            holding.blocks = BlockRun::gather(all.filter(|block| !bad.contains(block)));
            self.set(&BlockRun::gather(bad.iter().copied()), BAD);
            holding.state = State::Clean;
            ledger.bad.extend(bad.iter().map(|block| block.0));
            return Ok(());
        }
        holding.state = State::Clean;
        Ok(())
    }

    /// Fails unless all these blocks exist and `fits` accepts their words.
    fn check(&self, blocks: &[BlockRun], fits: impl Fn(u32) -> bool) -> Result<()> {
        for run in blocks {
            let all_fit = self.words_of(run).map(|words| {
                // All are looked at, so that the loop has no exit and is as fast as memory.
                words.iter().fold(true, |fit, word| fit & fits(word.load(Ordering::Relaxed)))
            });
            match all_fit {
                Some(true) => {}
                Some(false) => {
                    let cause = format!("a flash block from {} on is not its lender's to lend", run.first.0);
                    return Err(Error::new(ErrorKind::Conflict, cause));
                }
                None => return Err(Error::corrupt(format!("there is no flash block {}", run.first.0))),
            }
        }
        Ok(())
    }

    /// Sets the words of blocks that exist.
    fn set(&self, blocks: &[BlockRun], word: u32) {
        for run in blocks {
            let words = self.words_of(run).unwrap_or_default();
            words.iter().for_each(|slot| slot.store(word, Ordering::Release));
        }
    }

    fn words_of(&self, run: &BlockRun) -> Option<&[AtomicU32]> {
        let first = run.first.0 as usize;
        self.words.get(first..first.checked_add(run.count as usize)?)
    }

    fn channel(&self, channel: u16) -> impl Iterator<Item = &AtomicU32> {
        let range = self.geometry.blocks_of(channel);
        self.words.get(range.start as usize..range.end as usize).unwrap_or_default().iter()
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }
}

/// The word of a block that `vssd` may touch.
fn word_of(vssd: VssdId) -> u32 {
    vssd.0.saturating_add(1)
}

fn ordered(mut blocks: Vec<BlockRun>) -> Vec<BlockRun> {
    if !blocks.is_sorted_by_key(|run| run.first) {
        blocks.sort_unstable_by_key(|run| run.first);
    }
    blocks
}

/// A gSSD's holding, which must be in this state.
fn holding(ledger: &mut Ledger, gssd: GssdId, state: State) -> Result<&mut Holding> {
    let error =
        |cause: &'static str| Error::new(ErrorKind::Conflict, cause).about(format_args!("gSSD {}", gssd.0));
    let holding = ledger.gssds.get_mut(&gssd).ok_or_else(|| error("there is none of this number"))?;
    if holding.state == state {
        return Ok(holding);
    }
    Err(error(match holding.state {
        State::Dirty => "its blocks were not erased",
        State::Clean => "its blocks are clean and have no owner",
        State::Held => "a borrower has its blocks",
    }))
}

#[cfg(test)]
mod tests;
