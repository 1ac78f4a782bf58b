//! The flash of a host as its parts see it: every read, program and erasure goes through here, in its turn.
//!
//! It counts, waits at the gate, and knows which blocks are certainly clean: erased for ever since this process began
//! and not programmed since. A block that is clean need not be erased again when it changes hands; of all others
//! nothing is known, and they are.

use crate::flash::{Flash, FlashBlock, FlashError, Geometry, lock};
use crate::gate::{Gate, What};
use crate::lane::Class;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Blocks erased at a time on flash whose erasures share a wait for the disk.
const TOGETHER: usize = 64;

/// The flash, the gate before it, and what was done to it.
pub(crate) struct Media {
    flash: Arc<dyn Flash>,
    gate: Gate,
    geometry: Geometry,
    emulated: bool,
    clean: Vec<AtomicU64>,
    read: AtomicU64,
    programmed: AtomicU64,
    harvest_erased: AtomicU64,
    given_up: AtomicU64,
    /// Erasures for harvest VMs by channel.
    harvest_wear: Mutex<BTreeMap<u16, u64>>,
}

/// What was done since the host was opened: bytes, and flash blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) read: u64,
    pub(crate) programmed: u64,
    pub(crate) harvest_erased: u64,
    /// Pages.
    pub(crate) given_up: u64,
}

impl Media {
    /// `emulated` says that the gate gives operations their time; `clean` that all blocks are known to be erased.
    pub(crate) fn new(flash: Arc<dyn Flash>, gate: Gate, emulated: bool, clean: bool) -> Self {
        let geometry = flash.geometry();
        let words = geometry.total_blocks().div_ceil(64);
        let word = || AtomicU64::new(if clean { u64::MAX } else { 0 });
        Self {
            flash,
            gate,
            geometry,
            emulated,
            clean: (0..words).map(|_| word()).collect(),
            read: AtomicU64::new(0),
            programmed: AtomicU64::new(0),
            harvest_erased: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            harvest_wear: Mutex::default(),
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether operations that are entered together run at the same time.
    pub(crate) fn is_emulated(&self) -> bool {
        self.emulated
    }

    pub(crate) fn is_bad(&self, block: FlashBlock) -> bool {
        self.flash.is_bad(block)
    }

    pub(crate) fn wear(&self, block: FlashBlock) -> u32 {
        self.flash.wear(block)
    }

    /// Blocks with how often each was erased.
    pub(crate) fn worn(&self, blocks: impl IntoIterator<Item = FlashBlock>) -> Vec<(FlashBlock, u32)> {
        blocks.into_iter().map(|block| (block, self.wear(block))).collect()
    }

    /// Reads, with leave from the gate.
    pub(crate) fn read(&self, block: FlashBlock, offset: u32, buf: &mut [u8]) -> Result<(), FlashError> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.flash.read(block, offset, buf)
    }

    /// Whether flash other than this block can be read.
    pub(crate) fn answers(&self, apart: FlashBlock) -> bool {
        self.flash.answers(apart)
    }

    /// So many pages are lost that cannot be read.
    pub(crate) fn gave_up(&self, pages: u64) {
        self.given_up.fetch_add(pages, Ordering::Relaxed);
    }

    /// Programs, with leave from the gate.
    pub(crate) fn program(&self, block: FlashBlock, page: u32, data: &[u8]) -> Result<(), FlashError> {
        if let Some(word) = self.clean.get(block.0 as usize / 64) {
            word.fetch_and(!(1 << (block.0 % 64)), Ordering::AcqRel);
        }
        self.programmed.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.flash.program(block, page, data)
    }

    /// Waits for its turn and erases a block that stays with whom it belongs to. What it held may be there again after
    /// a loss of power: no map speaks of it then, and it is erased anew before it is used, or changes hands.
    pub(crate) fn erase(&self, class: Class, block: FlashBlock) -> Result<(), FlashError> {
        let bundle = [(block, What::Erase)];
        let _pass = self.gate.enter(class, &bundle);
        let for_ever = self.flash.erase_soon(block)?;
        self.note(class, block, for_ever);
        Ok(())
    }

    /// Erases blocks of one channel that are not certainly clean; those that could not be erased.
    pub(crate) fn erase_all(
        &self,
        class: Class,
        blocks: &[FlashBlock],
        go_on: impl Fn() -> bool,
    ) -> Result<Vec<FlashBlock>, FlashError> {
        let dirty: Vec<FlashBlock> =
            blocks.iter().copied().filter(|block| !self.is_clean(*block) || self.is_bad(*block)).collect();
        let mut bad = Vec::new();
        for part in dirty.chunks(if self.emulated { 1 } else { TOGETHER }) {
            if !go_on() {
                let error =
                    headstart_block::Error::new(crate::ErrorKind::Cancelled, "the host is being closed");
                return Err(FlashError::Failed(error));
            }
            let bundle = [(part[0], What::Erase)];
            let _pass = self.gate.enter(class, &bundle);
            for (block, erased) in part.iter().zip(self.flash.erase_many(part)) {
                match erased {
                    Ok(()) => self.note(class, *block, true),
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
        let counts = [&self.read, &self.programmed, &self.harvest_erased, &self.given_up];
        let [read, programmed, harvest_erased, given_up] = counts.map(|count| count.load(Ordering::Relaxed));
        Done { read, programmed, harvest_erased, given_up }
    }

    /// Erasures of a channel for harvest VMs since the host was opened.
    pub(crate) fn harvest_wear(&self, channel: u16) -> u64 {
        lock(&self.harvest_wear).get(&channel).copied().unwrap_or(0)
    }

    fn is_clean(&self, block: FlashBlock) -> bool {
        let word = self.clean.get(block.0 as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) & 1 << (block.0 % 64) != 0)
    }

    /// A block was erased, perhaps for ever.
    fn note(&self, class: Class, block: FlashBlock, for_ever: bool) {
        if let Some(word) = self.clean.get(block.0 as usize / 64).filter(|_| for_ever) {
            word.fetch_or(1 << (block.0 % 64), Ordering::AcqRel);
        }
        if class.is_harvest() {
            self.harvest_erased.fetch_add(1, Ordering::Relaxed);
            *lock(&self.harvest_wear).entry(self.geometry.channel(block)).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::FileFlash;
    use crate::lane::{Lanes, Settings, Speed};

    #[test]
    fn what_was_erased_for_its_owner_is_erased_for_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry { channels: 1, dies: 1, planes: 1, blocks: 4, pages: 2, page_size: 4096 };
        let path = dir.path().join("flash");
        let flash = FileFlash::create(&path, &FileFlash::table_beside(&path), geometry).unwrap();
        let lanes = Lanes::new(&geometry, Speed::Bucket { rate: None, burst: 1 }, Settings::default());
        let gate = Gate::new(geometry, lanes, || std::time::Duration::ZERO);
        let media = Media::new(Arc::new(flash), gate, false, true);
        let block = FlashBlock(1);
        let hand_over = || media.erase_all(Class::RegularCollect, &[block], || true).unwrap();
        hand_over();
        assert_eq!(media.wear(block), 0, "it was clean");
        media.program(block, 0, &[7; 4096]).unwrap();
        media.erase(Class::RegularCollect, block).unwrap();
        let mut page = [1; 4096];
        media.read(block, 0, &mut page).unwrap();
        assert_eq!((page, media.wear(block)), ([0; 4096], 1));
        // After a loss of power the old page may be there: the next must not have the block so.
        hand_over();
        hand_over();
        assert_eq!(media.wear(block), 2);
    }
}
