//! The content that reads have been given: when all of a frame was, nothing needs its compressed bytes any more.
//!
//! Reads mark blocks of [`BLOCK`] bytes of the content, which are smaller than most frames: a frame of which a small
//! read wanted a part is still needed for the rest. Marks are never taken back. So a source hears once of each frame,
//! and a frame that is read again shows that no layer above keeps what it was given: its bytes stay.
//!
//! (DADI's journal version, section 3.3.1, drops a page as soon as its last byte was used, whatever became of the bytes
//! before it. Here the frames decide; reads are often smaller than a frame.)

use headstart_block::bits::words_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of content that share a mark.
const BLOCK: u64 = 4096;

/// A mark for each block of the content: 32 bytes for a MiB.
#[derive(Debug)]
pub(crate) struct Decoded {
    blocks: Box<[AtomicU64]>,
}

impl Decoded {
    /// Nothing of `len` bytes was given out yet.
    pub(crate) fn new(len: u64) -> Self {
        let words = len.div_ceil(BLOCK).div_ceil(u64::BITS.into());
        Self { blocks: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Marks the blocks that `content`, a range of bytes, touches. `true` if one of them had no mark.
    pub(crate) fn mark(&self, content: Range<u64>) -> bool {
        let mut is_new = false;
        for (at, mask) in words_of(&blocks_of(content)) {
            let Some(word) = self.blocks.get(at) else { continue };
            // Most often nothing is new where a block is read again: then the cache line stays shared.
            if word.load(Ordering::Relaxed) & mask != mask {
                // Of two threads that complete two frames on one page at the same time, one has to see both: each
                // marks first and looks afterwards, in one order for all threads.
                is_new |= word.fetch_or(mask, Ordering::SeqCst) & mask != mask;
            }
        }
        is_new
    }

    /// `true` if all blocks that `content` touches have marks.
    pub(crate) fn has(&self, content: Range<u64>) -> bool {
        words_of(&blocks_of(content)).all(|(at, mask)| {
            self.blocks.get(at).is_some_and(|word| word.load(Ordering::SeqCst) & mask == mask)
        })
    }
}

fn blocks_of(content: Range<u64>) -> Range<u64> {
    content.start / BLOCK..content.end.div_ceil(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_decoded_when_each_of_its_blocks_was_read() {
        let decoded = Decoded::new(100_000);
        assert!(!decoded.has(0..32768));
        assert!(decoded.mark(0..20_000));
        assert!(!decoded.mark(100..19_000), "read before");
        assert!(!decoded.has(0..32768));
        assert!(decoded.mark(20_000..32768));
        assert!(decoded.has(0..32768) && !decoded.has(32768..65536));
        // The last frame is short.
        assert!(decoded.mark(98_304..100_000));
        assert!(decoded.has(98_304..100_000) && !decoded.has(65536..100_000));
    }
}
