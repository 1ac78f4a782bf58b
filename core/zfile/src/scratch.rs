//! The state that a thread keeps between reads: codec contexts, a place for compressed bytes, and the frame it
//! decompressed last.
//!
//! A reader is shared by many threads and must neither allocate nor lock for a read, so changing state belongs to
//! the thread. All readers of a thread share one scratch: its size does not grow with the number of layers of an
//! image. The frame names its reader by the reader's id, which is never used again.
//!
//! The scratch is taken out of its thread's slot for the time of a read, not borrowed. A reader whose
//! source is itself made of ZFiles then finds the slot empty and works on a fresh one, which is slow but
//! right, where a borrow would panic.

use crate::codec::Decompressor;
use crate::format::FRAME_SIZE_MAX;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The epoch of remembered frames, raised when threads must not use them any more.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Makes every thread discard the decompressed frame that it keeps for small sequential reads. Call this after wrong
/// bytes of a source were replaced, so that no read that starts afterwards returns the old content. A frame that a
/// read in progress keeps is discarded too.
pub fn forget_recent_frames() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
}

thread_local! {
    static SLOT: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// One thread's contexts and buffers.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Codec contexts.
    pub(crate) decompressor: Decompressor,
    /// Compressed bytes, for sources that are not in memory.
    pub(crate) fetched: Buffer,
    /// The frame that was last needed in part.
    pub(crate) recent: RecentFrame,
}

/// Bytes that grow to the largest size asked for and stay there.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// The first `len` bytes, whatever they hold.
    pub(crate) fn first(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        &mut self.0[..len]
    }
}

/// The start of a decompressed frame, and its owner.
pub(crate) struct RecentFrame {
    bytes: Box<[u8]>,
    /// Reader id and frame number; no reader has id 0.
    owner: (u64, usize),
    /// The number of bytes that are there.
    valid: usize,
    /// The epoch in which its source was read, and that in which the present read began.
    epoch: u64,
    now: u64,
}

impl Default for RecentFrame {
    fn default() -> Self {
        Self { bytes: vec![0; FRAME_SIZE_MAX as usize].into(), owner: (0, 0), valid: 0, epoch: 0, now: 0 }
    }
}

impl RecentFrame {
    /// The number of bytes of `frame` of reader `reader` that are there.
    pub(crate) fn valid(&self, reader: u64, frame: usize) -> usize {
        if self.owner == (reader, frame) && self.epoch == self.now { self.valid } else { 0 }
    }

    /// The bytes that are there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.valid]
    }

    /// Forgets the frame and has `fill` put the first `len` bytes of another in its place; they count
    /// only if it succeeds.
    pub(crate) fn replace<E>(
        &mut self,
        reader: u64,
        frame: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<&[u8], E> {
        self.valid = 0;
        fill(&mut self.bytes[..len])?;
        (self.owner, self.valid, self.epoch) = ((reader, frame), len, self.now);
        Ok(self.bytes())
    }
}

/// Runs `read` with this thread's scratch.
pub(crate) fn with<T>(read: impl FnOnce(&mut Scratch) -> T) -> T {
    // The slot is gone while a thread ends; destructors that still read get a scratch of their own.
    let mut scratch = SLOT.try_with(Cell::take).ok().flatten().unwrap_or_default();
    scratch.recent.now = EPOCH.load(Ordering::Acquire);
    let result = read(&mut scratch);
    let _ = SLOT.try_with(|slot| slot.set(Some(scratch)));
    result
}
