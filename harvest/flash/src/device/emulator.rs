//! Emulated flash in memory, or in a sparse file of the caller's. It keeps the rules of NAND, and fails on request.
//!
//! The emulator takes no time: the [scheduler](crate::scheduler) models the duration of operations. Its state:
//! * *rules*: pages of a block are programmed in ascending order, each once between two erasures;
//! * *bad blocks*: a share of all blocks, drawn from a seed, and each block on which a program or an erasure failed. A
//!   failed program leaves the first half of its pages (rounded down), a failed erasure leaves the data;
//! * *unreadable pages*: single ones, until their block is erased; or all pages ([`Emulator::unplug`]). An erasure may
//!   also fail for a passing reason;
//! * *power*: pages programmed since the last flush are volatile. After a [loss](Emulator::lose_power) each such page
//!   is there, is gone, or is torn at a sector; flushed pages are there. Power can be cut in the middle of the n-th
//!   operation that changes something ([`Emulator::cut_power_after`]): that operation is then done in part.
//!
//! A page that was lost or torn still counts as programmed: its block has to be erased before the page is programmed
//! again.

use super::{Flash, FlashBlock, FlashError, Geometry, failed, outside, whole_pages, within};
use headstart_block::random::Random;
use headstart_block::{Error, ErrorKind, SECTOR_SIZE, exact, to_usize};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The rates at which emulated flash fails at random. By default it never does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashFaults {
    /// The seed of the random numbers; the same seed gives the same faults.
    pub seed: u64,
    /// The share of blocks that are bad from the start, 0 to 1. Makers of flash allow 0.02.
    pub made_bad: f64,
    /// The probability that a program operation fails, 0 to 1.
    pub program: f64,
    /// The probability that an erasure fails, 0 to 1.
    pub erase: f64,
}

impl Default for FlashFaults {
    fn default() -> Self {
        Self { seed: 1, made_bad: 0.0, program: 0.0, erase: 0.0 }
    }
}

/// Counts of the operations on emulated flash, since the flash was made or since power last came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashCounts {
    /// Bytes read.
    pub read: u64,
    /// Bytes programmed.
    pub programmed: u64,
    /// Number of blocks erased.
    pub erased: u64,
    /// Number of flushes.
    pub flushed: u64,
}

/// Emulated flash in memory or in a file, which fails on request: random faults, chosen faults, loss of
/// power.
pub struct Emulator {
    geometry: Geometry,
    blocks: Vec<Mutex<Block>>,
    file: Option<Arc<File>>,
    faults: FlashFaults,
    random: Mutex<Random>,
    injected: Mutex<InjectedFaults>,
    /// Blocks with volatile pages.
    volatile: Mutex<BTreeSet<u32>>,
    /// Changes until power goes; `u64::MAX` for never.
    left: AtomicU64,
    dead: AtomicBool,
    unplugged: AtomicBool,
    counts: [AtomicU64; 4],
}

/// Blocks whose next operation is to fail.
#[derive(Clone, Debug, Default)]
struct InjectedFaults {
    program: BTreeSet<u32>,
    erase: BTreeSet<u32>,
    /// Erasures that fail for a passing reason.
    busy: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    wear: u32,
    bad: bool,
    /// The first page that can still be programmed.
    next: u32,
    /// The content in memory: pages that are not all zeros.
    pages: BTreeMap<u32, Box<[u8]>>,
    /// Programmed since the last flush.
    volatile: BTreeSet<u32>,
    /// Pages that cannot be read.
    unreadable: BTreeSet<u32>,
}

/// The part of an operation that is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Part,
}

impl Emulator {
    /// Makes flash in memory, all erased. It takes memory only for programmed pages that are not all zeros.
    #[must_use]
    pub fn new(geometry: Geometry, faults: FlashFaults) -> Self {
        Self::with(geometry, faults, None)
    }

    /// Makes flash in a file, for sizes beyond the memory's. The file is truncated, then extended sparsely to
    /// the flash's size.
    ///
    /// # Errors
    /// The file cannot be resized.
    pub fn in_file(geometry: Geometry, faults: FlashFaults, file: File) -> Result<Self, Error> {
        let resize = |len| file.set_len(len).map_err(|error| Error::io("cannot be resized", error));
        resize(0)?;
        resize(geometry.size())?;
        Ok(Self::with(geometry, faults, Some(Arc::new(file))))
    }

    fn with(geometry: Geometry, faults: FlashFaults, file: Option<Arc<File>>) -> Self {
        let mut random = Random::new(faults.seed);
        let mut block = || Mutex::new(Block { bad: random.unit() < faults.made_bad, ..Block::default() });
        let blocks = (0..geometry.total_blocks()).map(|_| block()).collect();
        Self::of(geometry, blocks, file, faults, random)
    }

    fn of(
        geometry: Geometry,
        blocks: Vec<Mutex<Block>>,
        file: Option<Arc<File>>,
        faults: FlashFaults,
        random: Random,
    ) -> Self {
        Self {
            geometry,
            blocks,
            file,
            faults,
            random: Mutex::new(random),
            injected: Mutex::default(),
            volatile: Mutex::default(),
            left: AtomicU64::new(u64::MAX),
            dead: AtomicBool::new(false),
            unplugged: AtomicBool::new(false),
            counts: Default::default(),
        }
    }

    /// Makes the next program operation on `block` fail, as on a bad block.
    pub fn fail_next_program(&self, block: FlashBlock) {
        self.injected.lock().program.insert(block.0);
    }

    /// Makes the next erasure of `block` fail, as on a bad block.
    pub fn fail_next_erase(&self, block: FlashBlock) {
        self.injected.lock().erase.insert(block.0);
    }

    /// Makes the next erasure of `block` fail for a passing reason: the block is not bad, and a retry
    /// succeeds.
    pub fn interrupt_next_erase(&self, block: FlashBlock) {
        self.injected.lock().busy.insert(block.0);
    }

    /// Makes one page unreadable until its block is erased.
    ///
    /// # Errors
    /// There is no such block, or the power is off.
    pub fn make_unreadable(&self, block: FlashBlock, page: u32) -> Result<(), FlashError> {
        self.block(block)?.unreadable.insert(page);
        Ok(())
    }

    /// Makes all pages unreadable (`true`), as with a loose cable, or ends that (`false`): pages that
    /// [`Self::make_unreadable`] was called for stay unreadable.
    pub fn unplug(&self, unplugged: bool) {
        self.unplugged.store(unplugged, Ordering::SeqCst);
    }

    /// Cuts the power in the middle of a program, erasure or flush: `changes` more of these operations succeed, and
    /// the next one is done in part and fails. Every later operation fails too. [`Self::lose_power`] then returns
    /// the flash with the remaining content.
    pub fn cut_power_after(&self, changes: u64) {
        self.left.store(changes, Ordering::Relaxed);
    }

    /// Cuts the power now: all later operations on `self` fail. Returns the flash as it is when the power is back:
    /// each page that was not flushed is there, is gone, or is torn at a sector, by chance.
    #[must_use]
    pub fn lose_power(&self) -> Self {
        self.dead.store(true, Ordering::SeqCst);
        let mut random = self.random.lock().clone();
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (number, block) in (0..).zip(&self.blocks) {
            let mut block = std::mem::take(&mut *block.lock());
            for page in std::mem::take(&mut block.volatile) {
                match random.below(3) {
                    0 => {}
                    1 => self.tear(number, &mut block, page, 0),
                    _ => {
                        let sectors = to_usize(u64::from(self.geometry.page_size) / SECTOR_SIZE);
                        self.tear(number, &mut block, page, random.below(sectors));
                    }
                }
            }
            blocks.push(Mutex::new(block));
        }
        Self::of(self.geometry, blocks, self.file.clone(), self.faults, random)
    }

    /// Returns a copy of this flash with the same content, for tests that try several continuations. The copy is in
    /// memory: of flash in a file ([`Self::in_file`]) the content is not copied. Faults that were requested for later
    /// operations are not copied either, and the copy has power.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn copied(&self) -> Self {
        let blocks = self.blocks.iter().map(|block| Mutex::new(block.lock().clone())).collect();
        Self::of(self.geometry, blocks, None, self.faults, self.random.lock().clone())
    }

    /// Returns the counts of operations since this flash was made or the power came back.
    #[must_use]
    pub fn counts(&self) -> FlashCounts {
        let [read, programmed, erased, flushed] = &self.counts;
        let [read, programmed, erased, flushed] =
            [read, programmed, erased, flushed].map(|it| it.load(Ordering::Relaxed));
        FlashCounts { read, programmed, erased, flushed }
    }

    /// Returns the bad blocks: bad from the start, or since a program or erasure failed.
    #[must_use]
    pub fn bad_blocks(&self) -> Vec<FlashBlock> {
        (0..self.geometry.total_blocks()).map(FlashBlock).filter(|block| self.is_bad(*block)).collect()
    }

    fn block(&self, block: FlashBlock) -> Result<MutexGuard<'_, Block>, FlashError> {
        let found = usize::try_from(block.0).ok().and_then(|index| self.blocks.get(index));
        let found = found.ok_or_else(|| outside(block))?;
        let guard = found.lock();
        if self.dead.load(Ordering::SeqCst) { Err(no_power()) } else { Ok(guard) }
    }

    /// Counts one more change; tells if it is done whole or power goes in the middle of it.
    fn change(&self) -> Result<Extent, FlashError> {
        let less = |left: u64| Some(if left == u64::MAX { left } else { left.saturating_sub(1) });
        let was = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if was == Ok(0) {
            // Only the first operation that finds no change left was at work at the cut.
            return if self.dead.swap(true, Ordering::SeqCst) { Err(no_power()) } else { Ok(Extent::Part) };
        }
        Ok(Extent::Whole)
    }

    fn chance(&self, share: f64) -> bool {
        share > 0.0 && self.random.lock().unit() < share
    }

    /// Keeps the first `sectors` sectors of a page.
    fn tear(&self, number: u32, block: &mut Block, page: u32, sectors: usize) {
        let keep = sectors * 512;
        if let Some(bytes) = block.pages.get_mut(&page) {
            bytes[keep..].fill(0);
        }
        if let Some(file) = &self.file {
            let len = self.geometry.page_size as usize - keep;
            let at = self.position(number, page * self.geometry.page_size) + keep as u64;
            // A file that cannot be written keeps the page whole, which is one of the allowed outcomes.
            file.write_all_at(&vec![0; len], at).unwrap_or_default();
        }
    }

    fn position(&self, block: u32, offset: u32) -> u64 {
        u64::from(block) * u64::from(self.geometry.block_size()) + u64::from(offset)
    }

    fn store(
        &self,
        number: FlashBlock,
        block: &mut Block,
        page: u32,
        bytes: &[u8],
    ) -> Result<(), FlashError> {
        match &self.file {
            Some(file) => {
                let at = self.position(number.0, page * self.geometry.page_size);
                file.write_all_at(bytes, at).map_err(|error| failed("cannot write emulated flash", error))?;
            }
            None if bytes.iter().any(|byte| *byte != 0) => {
                block.pages.insert(page, bytes.into());
            }
            None => {}
        }
        block.volatile.insert(page);
        Ok(())
    }

    /// Zeros the pages from `first` on.
    fn clear(&self, number: FlashBlock, block: &mut Block, first: u32) -> Result<(), FlashError> {
        if let Some(file) = &self.file {
            let start = first * self.geometry.page_size;
            let len = u64::from(self.geometry.block_size() - start);
            super::file::zero(file, self.position(number.0, start), len)
                .map_err(|error| failed("cannot erase emulated flash", error))?;
        }
        block.pages.retain(|page, _| *page < first);
        block.volatile.retain(|page| *page < first);
        block.unreadable.retain(|page| *page < first);
        Ok(())
    }

    fn count(&self, which: usize, more: usize) {
        self.counts[which].fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl Flash for Emulator {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, block: FlashBlock, offset: u32, buf: &mut [u8]) -> Result<(), FlashError> {
        within(&self.geometry, block, offset, buf.len())?;
        let held = self.block(block)?;
        let size = self.geometry.page_size;
        let len: u32 = exact(buf.len(), "it is within a block, whose size has 32 bits");
        let pages = offset / size..(offset + len).div_ceil(size);
        let unplugged = self.unplugged.load(Ordering::SeqCst).then_some(pages.start);
        if let Some(page) = unplugged.or_else(|| held.unreadable.range(pages).next().copied()) {
            return Err(FlashError::Unreadable(block, page));
        }
        self.count(0, buf.len());
        if let Some(file) = &self.file {
            drop(held);
            let at = self.position(block.0, offset);
            return file.read_exact_at(buf, at).map_err(|error| failed("cannot read emulated flash", error));
        }
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let within = (at % size) as usize;
            let len = rest.len().min(size as usize - within);
            let (part, more) = rest.split_at_mut(len);
            match held.pages.get(&(at / size)) {
                Some(page) => part.copy_from_slice(&page[within..within + len]),
                None => part.fill(0),
            }
            at += exact::<u32>(len, "it is within a page, whose size has 32 bits");
            rest = more;
        }
        Ok(())
    }

    fn program(&self, block: FlashBlock, page: u32, data: &[u8]) -> Result<(), FlashError> {
        let size = self.geometry.page_size as usize;
        let pages = whole_pages(&self.geometry, block, page, data.len())?;
        let mut held = self.block(block)?;
        if held.bad {
            return Err(FlashError::Bad(block));
        }
        if page < held.next {
            return Err(FlashError::NotErased(block, page));
        }
        let extent = self.change()?;
        let fails = self.injected.lock().program.remove(&block.0) || self.chance(self.faults.program);
        let done = if fails || extent == Extent::Part { pages / 2 } else { pages };
        for (page, bytes) in (page..page + done).zip(data.chunks_exact(size)) {
            self.store(block, &mut held, page, bytes)?;
        }
        held.next = page + pages;
        self.volatile.lock().insert(block.0);
        if extent == Extent::Part {
            return Err(no_power());
        }
        if fails {
            held.bad = true;
            return Err(FlashError::Bad(block));
        }
        self.count(1, data.len());
        Ok(())
    }

    fn erase(&self, block: FlashBlock) -> Result<(), FlashError> {
        let mut held = self.block(block)?;
        if held.bad {
            return Err(FlashError::Bad(block));
        }
        if self.injected.lock().busy.remove(&block.0) {
            return Err(FlashError::Failed(Error::new(ErrorKind::Io, "emulated flash is busy")));
        }
        if self.change()? == Extent::Part {
            let first = held.next / 2;
            self.clear(block, &mut held, first)?;
            return Err(no_power());
        }
        if self.injected.lock().erase.remove(&block.0) || self.chance(self.faults.erase) {
            held.bad = true;
            return Err(FlashError::Bad(block));
        }
        self.clear(block, &mut held, 0)?;
        held.next = 0;
        held.wear = held.wear.saturating_add(1);
        self.count(2, 1);
        Ok(())
    }

    fn flush(&self) -> Result<(), FlashError> {
        let extent = self.change()?;
        if extent == Extent::Whole && self.dead.load(Ordering::SeqCst) {
            return Err(no_power());
        }
        let all = std::mem::take(&mut *self.volatile.lock());
        let done = if extent == Extent::Part { all.len() / 2 } else { all.len() };
        for number in all.into_iter().take(done) {
            if let Some(block) = usize::try_from(number).ok().and_then(|index| self.blocks.get(index)) {
                block.lock().volatile.clear();
            }
        }
        self.count(3, 1);
        if extent == Extent::Part { Err(no_power()) } else { Ok(()) }
    }

    fn answers(&self, _apart: FlashBlock) -> bool {
        !self.unplugged.load(Ordering::SeqCst) && !self.dead.load(Ordering::SeqCst)
    }

    fn is_bad(&self, block: FlashBlock) -> bool {
        usize::try_from(block.0)
            .ok()
            .and_then(|index| self.blocks.get(index))
            .is_none_or(|block| block.lock().bad)
    }

    fn wear(&self, block: FlashBlock) -> u32 {
        let found = usize::try_from(block.0).ok().and_then(|index| self.blocks.get(index));
        found.map_or(0, |block| block.lock().wear)
    }
}

fn no_power() -> FlashError {
    FlashError::Failed(Error::new(ErrorKind::Io, "emulated flash has no power"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Geometry =
        Geometry { channels: 1, dies: 1, planes: 1, blocks: 4, pages: 4, page_size: 1024 };
    const BLOCK: FlashBlock = FlashBlock(2);

    fn both(faults: FlashFaults) -> [Emulator; 2] {
        let in_file = Emulator::in_file(SMALL, faults, tempfile::tempfile().unwrap()).unwrap();
        [Emulator::new(SMALL, faults), in_file]
    }

    fn whole(flash: &Emulator) -> Vec<u8> {
        let mut bytes = vec![1; 4096];
        flash.read(BLOCK, 0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn some_blocks_are_bad_from_the_factory() {
        let geometry = Geometry { blocks: 1000, ..SMALL };
        let flash = Emulator::new(geometry, FlashFaults { made_bad: 0.02, ..FlashFaults::default() });
        let bad = flash.bad_blocks();
        assert!((10..35).contains(&bad.len()), "{}", bad.len());
        assert!(matches!(flash.erase(bad[0]), Err(FlashError::Bad(_))));
        assert!(matches!(flash.program(bad[0], 0, &[1; 1024]), Err(FlashError::Bad(_))));
        assert_eq!(flash.lose_power().bad_blocks(), bad);
    }

    #[test]
    fn failed_operations_leave_the_documented_state() {
        for flash in both(FlashFaults::default()) {
            flash.program(BLOCK, 0, &[5; 1024]).unwrap();
            flash.fail_next_program(BLOCK);
            assert!(matches!(flash.program(BLOCK, 1, &[6; 2048]), Err(FlashError::Bad(BLOCK))));
            assert_eq!(whole(&flash), [[5; 1024], [6; 1024], [0; 1024], [0; 1024]].concat());
            assert!(flash.is_bad(BLOCK) && flash.erase(BLOCK).is_err());
        }
        for flash in both(FlashFaults::default()) {
            flash.program(BLOCK, 0, &[5; 4096]).unwrap();
            flash.fail_next_erase(BLOCK);
            assert!(matches!(flash.erase(BLOCK), Err(FlashError::Bad(BLOCK))));
            assert_eq!(whole(&flash), [5; 4096]);
            assert_eq!(flash.wear(BLOCK), 0);
        }
        let flash = Emulator::new(SMALL, FlashFaults { erase: 1.0, program: 1.0, ..FlashFaults::default() });
        assert!(flash.erase(BLOCK).is_err() && flash.program(FlashBlock(1), 0, &[1; 1024]).is_err());
    }

    #[test]
    fn unreadable_pages_stay_so_until_an_erasure() {
        for flash in both(FlashFaults::default()) {
            flash.program(BLOCK, 0, &[5; 4096]).unwrap();
            flash.flush().unwrap();
            flash.make_unreadable(BLOCK, 2).unwrap();
            assert!(flash.answers(BLOCK));
            let after = flash.lose_power();
            after.read(BLOCK, 0, &mut [0; 2048]).unwrap();
            assert!(matches!(after.read(BLOCK, 0, &mut [0; 4096]), Err(FlashError::Unreadable(BLOCK, 2))));
            assert!(matches!(after.read(BLOCK, 3071, &mut [0]), Err(FlashError::Unreadable(BLOCK, 2))));
            after.unplug(true);
            assert!(matches!(after.read(BLOCK, 1024, &mut [0]), Err(FlashError::Unreadable(BLOCK, 1))));
            assert!(!after.answers(BLOCK));
            after.unplug(false);
            after.interrupt_next_erase(BLOCK);
            assert!(matches!(after.erase(BLOCK), Err(FlashError::Failed(_))) && !after.is_bad(BLOCK));
            after.erase(BLOCK).unwrap();
            assert_eq!(whole(&after), [0; 4096]);
        }
    }

    #[test]
    fn a_loss_of_power_takes_unflushed_pages() {
        let mut seen = [0; 3];
        for seed in 0..40 {
            for flash in both(FlashFaults { seed, ..FlashFaults::default() }) {
                flash.program(BLOCK, 0, &[5; 1024]).unwrap();
                flash.flush().unwrap();
                flash.program(BLOCK, 1, &[6; 2048]).unwrap();
                let after = flash.lose_power();
                assert!(
                    flash.read(BLOCK, 0, &mut [0]).is_err()
                        && flash.flush().is_err()
                        && flash.erase(BLOCK).is_err()
                );
                let bytes = whole(&after);
                assert_eq!(bytes[..1024], [5; 1024]);
                for page in bytes[1024..3072].chunks(1024) {
                    let kept = page.iter().take_while(|byte| **byte == 6).count();
                    assert!(kept % 512 == 0 && page[kept..].iter().all(|byte| *byte == 0));
                    seen[kept / 512] += 1;
                }
                assert!(matches!(after.program(BLOCK, 1, &[1; 1024]), Err(FlashError::NotErased(_, 1))));
                after.erase(BLOCK).unwrap();
                assert_eq!(whole(&after), [0; 4096]);
                assert_eq!(whole(&after.lose_power()), [0; 4096]);
            }
        }
        assert!(seen.iter().all(|count| *count > 15), "{seen:?}");
    }

    /// Power goes in the middle of each change in turn: data that was flushed before is there, and an erasure that
    /// returned stays done.
    #[test]
    fn power_can_go_at_every_change() {
        for cut in 0..6 {
            for flash in both(FlashFaults::default()) {
                flash.cut_power_after(cut);
                let results = [
                    flash.program(BLOCK, 0, &[5; 2048]),
                    flash.flush(),
                    flash.erase(BLOCK),
                    flash.program(BLOCK, 0, &[6; 1024]),
                    flash.flush(),
                ];
                let passed = results.iter().take_while(|result| result.is_ok()).count();
                assert_eq!(passed as u64, cut.min(5));
                assert!(results[passed..].iter().all(Result::is_err));
                let after = flash.lose_power();
                let (bytes, wear) = (whole(&after), after.wear(BLOCK));
                match cut {
                    2 => assert!(wear == 0 && bytes[..1024] == [5; 1024]),
                    3.. => assert!(wear == 1 && bytes.iter().all(|byte| [0, 6].contains(byte))),
                    _ => assert!(bytes.iter().all(|byte| [0, 5].contains(byte))),
                }
                assert!(cut != 5 || bytes[..1024] == [6; 1024]);
            }
        }
    }

    #[test]
    fn zeros_take_no_memory_and_all_is_counted() {
        let flash = Emulator::new(SMALL, FlashFaults::default());
        flash.program(BLOCK, 0, &[0; 2048]).unwrap();
        assert!(flash.blocks[2].lock().pages.is_empty());
        assert!(matches!(flash.program(BLOCK, 1, &[0; 1024]), Err(FlashError::NotErased(_, 1))));
        flash.erase(BLOCK).unwrap();
        flash.flush().unwrap();
        flash.read(BLOCK, 100, &mut [0; 10]).unwrap();
        assert_eq!(flash.counts(), FlashCounts { read: 10, programmed: 2048, erased: 1, flushed: 1 });
    }
}
