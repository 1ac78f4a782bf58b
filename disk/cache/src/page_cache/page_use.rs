//! The pages of one blob's file that are used up, and its chunks that were touched: bits that threads set as they read.

use crate::presence;
use crate::sidecar::CHUNK;
use headstart_block::ByteRange;
use headstart_block::bits::{WORD_BITS, words_of};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// The most pages of a folio, the unit in which the kernel read pages, and drops them: only whole ones, each of which
/// begins at a multiple of its length. 2 MiB.
const FOLIO_MAX: u64 = (2 << 20) / PAGE;

/// The bits of a blob: 33 bytes for a MiB, and a bit a chunk twice.
pub(crate) struct PageUse {
    /// The length of the blob, in bytes.
    len: u64,
    /// Pages of which nothing is needed any more.
    used: Box<[AtomicU64]>,
    /// A bit for each [`FOLIO_MAX`] pages, of which some are newly used up.
    changed: Box<[AtomicU64]>,
    /// Chunks that were read or inserted since the last sweep.
    touched: Box<[AtomicU64]>,
    /// Chunks in the queue.
    queued: Box<[AtomicU64]>,
    /// `true` if a bit of `changed` or `touched` may be set.
    is_changed: AtomicBool,
}

impl PageUse {
    /// The bits of a blob of `len` bytes: nothing was touched yet.
    pub(crate) fn new(len: u64) -> Self {
        let pages = len.div_ceil(PAGE);
        let chunks = len.div_ceil(CHUNK);
        Self {
            len,
            used: bits(pages),
            changed: bits(pages.div_ceil(FOLIO_MAX)),
            touched: bits(chunks),
            queued: bits(chunks),
            is_changed: AtomicBool::new(false),
        }
    }

    /// Notes that chunks were read or inserted.
    pub(crate) fn touch(&self, chunks: &Range<u64>) {
        if set_new(&self.touched, chunks) {
            self.is_changed.store(true, Ordering::Release);
        }
    }

    /// Notes that nothing needs the bytes of `range` any more. Pages that it has only in part stay.
    pub(crate) fn use_up(&self, range: ByteRange) {
        // The last page ends with the blob.
        let end = if range.end() >= self.len { self.len.div_ceil(PAGE) } else { range.end() / PAGE };
        let pages = range.offset().div_ceil(PAGE)..end;
        if pages.is_empty() || !set_new(&self.used, &pages) {
            return;
        }
        set_new(&self.changed, &(pages.start / FOLIO_MAX..pages.end.div_ceil(FOLIO_MAX)));
        self.is_changed.store(true, Ordering::Release);
    }

    /// `true` if something was noted since this was called last.
    pub(crate) fn take_changed(&self) -> bool {
        self.is_changed.swap(false, Ordering::AcqRel)
    }

    /// Has the next sweep look again, though nothing new is noted.
    pub(crate) fn look_again(&self) {
        self.is_changed.store(true, Ordering::Release);
    }

    /// Names the ranges of bytes that were used up since the last call, in whole pages, with those that were used up
    /// before in the same folios. Ascending, and not adjacent.
    pub(crate) fn take_used(&self, each: &mut dyn FnMut(ByteRange)) {
        let mut joined = 0..0;
        let mut name = |run: Range<u64>| {
            let end = (run.end * PAGE).min(self.len);
            if !run.is_empty() {
                each(ByteRange::between(run.start * PAGE, end));
            }
        };
        for (at, word) in (0u64..).zip(&*self.changed) {
            let found = word.swap(0, Ordering::AcqRel);
            for folio in (0..WORD_BITS).filter(|bit| found >> bit & 1 == 1).map(|bit| at * WORD_BITS + bit) {
                presence::runs(&self.used, &(folio * FOLIO_MAX..(folio + 1) * FOLIO_MAX), true, &mut |run| {
                    if run.start == joined.end {
                        joined.end = run.end;
                    } else {
                        name(std::mem::replace(&mut joined, run));
                    }
                });
            }
        }
        name(joined);
    }

    /// Names the chunks that were touched since the last call and are not in the queue: they are in it now.
    pub(crate) fn take_touched(&self, each: &mut dyn FnMut(u64)) {
        for (at, (touched, queued)) in (0u64..).zip(self.touched.iter().zip(&*self.queued)) {
            if touched.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let found = touched.swap(0, Ordering::AcqRel);
            let new = found & !queued.fetch_or(found, Ordering::AcqRel);
            (0..WORD_BITS).filter(|bit| new >> bit & 1 == 1).for_each(|bit| each(at * WORD_BITS + bit));
        }
    }

    /// Notes that a chunk left the queue. Returns its bytes, with those of the chunks behind it that are not in the
    /// queue, as far as the kernel may have read ahead.
    pub(crate) fn leave_queue(&self, chunk: u64) -> ByteRange {
        presence::clear(&self.queued, &(chunk..chunk + 1));
        let mut end = chunk + 1;
        let last = (chunk + FOLIO_MAX * PAGE / CHUNK).min(self.len.div_ceil(CHUNK));
        while end < last && presence::count(&self.queued, &(end..end + 1)) == 0 {
            end += 1;
        }
        ByteRange::between((chunk * CHUNK).min(self.len), (end * CHUNK).min(self.len))
    }
}

fn bits(len: u64) -> Box<[AtomicU64]> {
    (0..len.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect()
}

/// Sets bits; `true` if one was not set. Writes nothing if all are set, so that cache lines stay shared.
fn set_new(bits: &[AtomicU64], range: &Range<u64>) -> bool {
    let mut is_new = false;
    for (at, mask) in words_of(range) {
        let Some(word) = bits.get(at) else { continue };
        if word.load(Ordering::Relaxed) & mask != mask {
            is_new |= word.fetch_or(mask, Ordering::AcqRel) & mask != mask;
        }
    }
    is_new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(pages: &PageUse) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        pages.take_used(&mut |range| found.push((range.offset() / PAGE, range.end().div_ceil(PAGE))));
        found
    }

    fn touched(pages: &PageUse) -> Vec<u64> {
        let mut found = Vec::new();
        pages.take_touched(&mut |chunk| found.push(chunk));
        found
    }

    #[test]
    fn only_whole_pages_are_used_up_and_each_is_named_once() {
        let pages = PageUse::new(100 * PAGE + 10);
        pages.use_up(ByteRange::between(100, 3 * PAGE + 1));
        pages.use_up(ByteRange::between(10 * PAGE, 11 * PAGE - 1));
        assert!(pages.take_changed() && !pages.take_changed());
        assert_eq!(used(&pages), [(1, 3)]);
        assert!(used(&pages).is_empty());
        pages.use_up(ByteRange::between(2 * PAGE, 3 * PAGE));
        assert!(!pages.take_changed() && used(&pages).is_empty(), "used up before");
        // The blob's last page is short.
        pages.use_up(ByteRange::between(100 * PAGE, 100 * PAGE + 10));
        assert_eq!(used(&pages), [(1, 3), (100, 101)]);
    }

    #[test]
    fn pages_of_the_same_folio_are_named_again() {
        let pages = PageUse::new(4000 * PAGE);
        pages.use_up(ByteRange::between(60 * PAGE, 70 * PAGE));
        pages.use_up(ByteRange::between(2000 * PAGE, 2001 * PAGE));
        assert_eq!(used(&pages), [(60, 70), (2000, 2001)]);
        pages.use_up(ByteRange::between(70 * PAGE, 600 * PAGE));
        assert_eq!(used(&pages), [(60, 600)], "joined where folios meet");
        pages.use_up(ByteRange::between(600 * PAGE, 601 * PAGE));
        assert_eq!(used(&pages), [(512, 601)]);
    }

    #[test]
    fn a_chunk_is_queued_once_until_it_leaves() {
        let pages = PageUse::new(300 * CHUNK);
        pages.touch(&(3..5));
        pages.touch(&(70..71));
        assert_eq!(touched(&pages), [3, 4, 70]);
        pages.touch(&(4..6));
        assert_eq!(touched(&pages), [5]);
        assert_eq!(pages.leave_queue(3), ByteRange::between(3 * CHUNK, 4 * CHUNK));
        // The chunks behind it came by reading ahead; at most 2 MiB of them.
        assert_eq!(pages.leave_queue(5), ByteRange::between(5 * CHUNK, 37 * CHUNK));
        assert_eq!(pages.leave_queue(70), ByteRange::between(70 * CHUNK, 102 * CHUNK));
        pages.touch(&(3..4));
        assert_eq!(touched(&pages), [3]);
    }
}
