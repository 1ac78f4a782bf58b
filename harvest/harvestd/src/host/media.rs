//! The flash of a host as its parts see it: every read, program and erasure goes through here, in its turn. It counts,
//! waits at the queue, and knows which blocks are certainly clean: erased for ever and not programmed since. A block
//! that is clean need not be erased again before it is used or changes hands; nothing is known of all others, and they
//! are.
//!
//! # Restarts
//!
//! A host that is closed in good order writes the clean blocks to its journal ([`Media::end`]), and programs nothing
//! from then on. The next start believes that list only if the journal was closed right after it, and makes durable
//! that the journal is open again before it programs anything. So after a crash nothing is known of any block, and each
//! is erased before it is used.

use super::meta::Meta;
use headstart_block::{Error, ErrorKind};
use headstart_flash::device::{Flash, FlashBlock, FlashError, Geometry};
use headstart_flash::queue::{ChannelQueue, FlashAccess};
use headstart_flash::scheduler::Class;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Blocks erased at a time on flash whose erasures share a wait for the disk.
const TOGETHER: usize = 64;

/// The state of a block that was programmed, or of which nothing is known.
const UNKNOWN: u8 = 0;
/// The state of a block that was erased, but may hold its old data again after a loss of power.
const VOLATILE: u8 = 1;
/// The state of a block that was [`VOLATILE`] when the flush began that is under way.
const FLUSHING: u8 = 2;
/// The state of a block that was erased for ever.
const CLEAN: u8 = 3;

/// The flash, the queue before it, and the counts of operations.
pub(crate) struct Media {
    flash: Arc<dyn Flash>,
    queue: ChannelQueue,
    geometry: Geometry,
    emulated: bool,
    states: Vec<AtomicU8>,
    /// `true` once nothing is programmed any more.
    ended: AtomicBool,
    read: AtomicU64,
    programmed: AtomicU64,
    given_up: AtomicU64,
    failed: AtomicU64,
    /// The reason that the last program failed, until one succeeds.
    failing: Mutex<Option<String>>,
    is_failing: AtomicBool,
    /// Erasures for harvest VMs by channel, since the flash was made.
    harvest_wear: Vec<AtomicU64>,
    /// Of those, the ones that the journal knows of.
    saved_wear: AtomicU64,
}

/// Erasures for harvest VMs that a crash may leave uncounted, as many as the table of a [`FileFlash`] may of all.
///
/// [`FileFlash`]: headstart_flash::device::FileFlash
pub(crate) const UNSAVED_WEAR: u64 = 1024;

/// Counts since the host was opened: bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) read: u64,
    pub(crate) programmed: u64,
    /// Pages.
    pub(crate) given_up: u64,
}

impl Media {
    /// `emulated`: the queue gives operations their time; `clean`: all blocks are known to be erased.
    pub(crate) fn new(flash: Arc<dyn Flash>, queue: ChannelQueue, emulated: bool, clean: bool) -> Self {
        let geometry = flash.geometry();
        let state = if clean { CLEAN } else { UNKNOWN };
        Self {
            flash,
            queue,
            geometry,
            emulated,
            states: (0..geometry.total_blocks()).map(|_| AtomicU8::new(state)).collect(),
            ended: AtomicBool::new(false),
            read: AtomicU64::new(0),
            programmed: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failing: Mutex::default(),
            is_failing: AtomicBool::new(false),
            harvest_wear: (0..geometry.channels).map(|_| AtomicU64::new(0)).collect(),
            saved_wear: AtomicU64::new(0),
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn queue(&self) -> &ChannelQueue {
        &self.queue
    }

    /// `true` if the queue gives operations their time: then those of a batch enter together and use their dies at
    /// once. On real flash each read or program of a harvest VM enters by itself and holds its permit while it runs, so
    /// that a regular VM waits for one of them, not for 64. (Erasures that change hands share a permit, as they share a
    /// sync.)
    pub(crate) fn is_emulated(&self) -> bool {
        self.emulated
    }

    pub(crate) fn is_bad(&self, block: FlashBlock) -> bool {
        self.flash.is_bad(block)
    }

    pub(crate) fn wear(&self, block: FlashBlock) -> u32 {
        self.flash.wear(block)
    }

    /// Blocks, each with its number of erasures.
    pub(crate) fn worn(&self, blocks: impl IntoIterator<Item = FlashBlock>) -> Vec<(FlashBlock, u32)> {
        blocks.into_iter().map(|block| (block, self.wear(block))).collect()
    }

    /// Reads, with leave from the queue.
    pub(crate) fn read(&self, block: FlashBlock, offset: u32, buf: &mut [u8]) -> Result<(), FlashError> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.flash.read(block, offset, buf)
    }

    /// `true` if flash other than this block can be read.
    pub(crate) fn answers(&self, apart: FlashBlock) -> bool {
        self.flash.answers(apart)
    }

    /// Counts pages that are lost because they cannot be read.
    pub(crate) fn gave_up(&self, pages: u64) {
        self.given_up.fetch_add(pages, Ordering::Relaxed);
    }

    /// Programs, with leave from the queue.
    pub(crate) fn program(&self, block: FlashBlock, page: u32, data: &[u8]) -> Result<(), FlashError> {
        // Before the check for the end: `Media::end` looks at the states after it sets that.
        if let Some(state) = self.states.get(block.0 as usize) {
            state.store(UNKNOWN, Ordering::SeqCst);
        }
        if self.ended.load(Ordering::SeqCst) {
            return Err(closing());
        }
        self.programmed.fetch_add(data.len() as u64, Ordering::Relaxed);
        let programmed = self.flash.program(block, page, data);
        match &programmed {
            Err(FlashError::Failed(error)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                *self.failing.lock() = Some(error.to_string());
                self.is_failing.store(true, Ordering::Release);
            }
            Ok(()) if self.is_failing.load(Ordering::Acquire) => {
                self.is_failing.store(false, Ordering::Release);
                *self.failing.lock() = None;
            }
            _ => {}
        }
        programmed
    }

    /// The number of programs that failed though the flash is not worn, and the cause of the last if none has succeeded
    /// since.
    pub(crate) fn failures(&self) -> (u64, Option<String>) {
        (self.failed.load(Ordering::Relaxed), self.failing.lock().clone())
    }

    /// Waits for its turn and erases a block that keeps its holder. Its old data may be there again after a loss of
    /// power: no map names it then, and it is erased again before it is used, or changes hands.
    pub(crate) fn erase(&self, class: Class, block: FlashBlock) -> Result<(), FlashError> {
        let bundle = [(block, FlashAccess::Erase)];
        let _permit = self.queue.enter(class, &bundle);
        let for_ever = self.flash.erase_soon(block)?;
        self.note(class.is_harvest(), block, for_ever);
        Ok(())
    }

    /// Erases blocks of one channel that are not certainly clean, when no more urgent operation waits; returns those
    /// that could not be erased. `for_harvest` tells whose wear that is.
    pub(crate) fn erase_all(
        &self,
        for_harvest: bool,
        blocks: &[FlashBlock],
        go_on: impl Fn() -> bool,
    ) -> Result<Vec<FlashBlock>, FlashError> {
        let dirty: Vec<FlashBlock> = blocks.iter().copied().filter(|block| !self.is_clean(*block)).collect();
        let mut bad = Vec::new();
        for part in dirty.chunks(if self.emulated { 1 } else { TOGETHER }) {
            if !go_on() {
                return Err(closing());
            }
            let bundle = [(part[0], FlashAccess::Erase)];
            let _permit = self.queue.enter(Class::HarvestCollect, &bundle);
            for (block, erased) in part.iter().zip(self.flash.erase_many(part)) {
                match erased {
                    Ok(()) => self.note(for_harvest, *block, true),
                    Err(FlashError::Bad(block)) => bad.push(block),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(bad)
    }

    pub(crate) fn flush(&self) -> Result<(), FlashError> {
        self.flash.flush()
    }

    pub(crate) fn done(&self) -> Done {
        let counts = [&self.read, &self.programmed, &self.given_up];
        let [read, programmed, given_up] = counts.map(|count| count.load(Ordering::Relaxed));
        Done { read, programmed, given_up }
    }

    /// Erasures of channels for harvest VMs since the flash was made.
    pub(crate) fn harvest_wear(&self, channels: impl IntoIterator<Item = u16>) -> u64 {
        let counts = channels.into_iter().filter_map(|channel| self.harvest_wear.get(usize::from(channel)));
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The journal's record of erasures for harvest VMs, if at least `least` of them are not in the journal.
    pub(crate) fn unsaved_wear(&self, least: u64) -> Option<Meta> {
        let sum = self.harvest_wear(0..self.geometry.channels);
        let due = sum.saturating_sub(self.saved_wear.load(Ordering::Relaxed)) >= least;
        due.then(|| {
            self.saved_wear.store(sum, Ordering::Relaxed);
            self.wear_record()
        })
    }

    /// The record of erasures for harvest VMs for the journal.
    pub(crate) fn wear_record(&self) -> Meta {
        Meta::HarvestWear(self.harvest_wear.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }

    /// Takes the journal's record of erasures for harvest VMs.
    pub(crate) fn recover_wear(&self, wear: &[u64]) {
        for (count, known) in self.harvest_wear.iter().zip(wear) {
            count.store(*known, Ordering::Relaxed);
        }
        self.saved_wear.store(wear.iter().sum(), Ordering::Relaxed);
    }

    /// `true` if a block is certainly erased, and was not found bad.
    pub(crate) fn is_clean(&self, block: FlashBlock) -> bool {
        let state = self.states.get(block.0 as usize);
        state.is_some_and(|state| state.load(Ordering::SeqCst) == CLEAN) && !self.is_bad(block)
    }

    /// Programs nothing from now on, and returns the record of the blocks that are clean, after a flush.
    pub(crate) fn end(&self) -> Result<Meta, FlashError> {
        self.ended.store(true, Ordering::SeqCst);
        let replace = |from, to| {
            for state in &self.states {
                let _ = state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
            }
        };
        replace(VOLATILE, FLUSHING);
        self.flash.flush()?;
        replace(FLUSHING, CLEAN);
        let mut bits = vec![0; self.states.len().div_ceil(8)];
        for block in (0..self.geometry.total_blocks()).filter(|block| self.is_clean(FlashBlock(*block))) {
            bits[block as usize / 8] |= 1 << (block % 8);
        }
        Ok(Meta::Clean(bits))
    }

    /// Takes the record of clean blocks from the journal of a host that was closed in good order.
    pub(crate) fn recover_clean(&self, bits: &[u8]) {
        for (block, state) in self.states.iter().enumerate() {
            if bits.get(block / 8).is_some_and(|byte| byte & 1 << (block % 8) != 0) {
                state.store(CLEAN, Ordering::SeqCst);
            }
        }
    }

    /// Notes that a block was erased, for ever or not.
    fn note(&self, for_harvest: bool, block: FlashBlock, for_ever: bool) {
        if let Some(state) = self.states.get(block.0 as usize) {
            state.store(if for_ever { CLEAN } else { VOLATILE }, Ordering::SeqCst);
        }
        if for_harvest {
            let count = self.harvest_wear.get(usize::from(self.geometry.channel(block)));
            count.map(|count| count.fetch_add(1, Ordering::Relaxed));
        }
    }
}

fn closing() -> FlashError {
    FlashError::Failed(Error::new(ErrorKind::Cancelled, "the host is being closed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_flash::device::FileFlash;
    use headstart_flash::scheduler::{ChannelSchedulers, SchedulerSettings, Speed};
    use std::time::Duration;

    const GEOMETRY: Geometry =
        Geometry { channels: 1, dies: 1, planes: 1, blocks: 4, pages: 2, page_size: 4096 };

    /// Flash in a file; `clean` if all of it is erased.
    fn opened(dir: &std::path::Path, clean: bool) -> Media {
        let (path, geometry) = (dir.join("flash"), GEOMETRY);
        let table = FileFlash::table_beside(&path);
        let flash = if clean {
            FileFlash::create(&path, &table, geometry).unwrap()
        } else {
            FileFlash::open(&path, &table).unwrap()
        };
        let settings = SchedulerSettings { guard: Duration::ZERO, ..SchedulerSettings::default() };
        let schedulers = ChannelSchedulers::new(&geometry, Speed::Bucket { rate: None, burst: 1 }, settings);
        let queue = ChannelQueue::new(geometry, schedulers, || Duration::ZERO);
        Media::new(Arc::new(flash), queue, false, clean)
    }

    /// The bits of a record of clean blocks.
    fn bits_of(record: &Meta) -> &[u8] {
        let Meta::Clean(bits) = record else { unreachable!("{record:?}") };
        bits
    }

    /// The blocks of a record, by their numbers.
    fn listed(record: &Meta) -> Vec<u32> {
        let bits = bits_of(record);
        (0..GEOMETRY.total_blocks())
            .filter(|block| bits[*block as usize / 8] & 1 << (block % 8) != 0)
            .collect()
    }

    #[test]
    fn clean_blocks_stay_clean_over_an_orderly_restart() {
        let dir = tempfile::tempdir().unwrap();
        let page = [7; 4096];
        let media = opened(dir.path(), true);
        for block in [0, 1, 3] {
            media.program(FlashBlock(block), 0, &page).unwrap();
        }
        media.erase(Class::RegularCollect, FlashBlock(1)).unwrap();
        assert!(!media.is_clean(FlashBlock(1)), "a loss of power may bring it back");
        let ended = media.end().unwrap();
        let bits = bits_of(&ended);
        assert_eq!(listed(&ended), [1, 2]);
        assert!(media.program(FlashBlock(2), 0, &page).is_err(), "the list would not be true");
        let read = |media: &Media| {
            let mut page = [1; 4096];
            media.read(FlashBlock(2), 0, &mut page).unwrap();
            page
        };
        assert_eq!(read(&media), [0; 4096]);
        drop(media);
        let media = opened(dir.path(), false);
        assert_eq!(listed(&media.end().unwrap()), [0; 0], "nothing is known without the list");
        drop(media);
        let media = opened(dir.path(), false);
        media.recover_clean(bits);
        media.erase_all(true, &[1, 2].map(FlashBlock), || true).unwrap();
        assert_eq!([1, 2].map(|block| media.wear(FlashBlock(block))), [1, 0]);
        media.program(FlashBlock(1), 0, &page).unwrap();
        assert_eq!(listed(&media.end().unwrap()), [2]);
    }

    #[test]
    fn a_block_that_changes_hands_is_erased_durably() {
        let dir = tempfile::tempdir().unwrap();
        let media = opened(dir.path(), true);
        let block = FlashBlock(1);
        let hand_over = || media.erase_all(true, &[block], || true).unwrap();
        hand_over();
        assert_eq!(media.wear(block), 0, "it was clean");
        media.program(block, 0, &[7; 4096]).unwrap();
        media.erase(Class::RegularCollect, block).unwrap();
        let mut page = [1; 4096];
        media.read(block, 0, &mut page).unwrap();
        assert_eq!((page, media.wear(block)), ([0; 4096], 1));
        // After a loss of power the old page may be there: the next holder must not get the block so.
        hand_over();
        hand_over();
        assert_eq!(media.wear(block), 2);
    }
}
