//! The choice of restart points, while a gzip stream is inflated.
//!
//! Blocks begin where the compressor ended the block before, so a restart point is not where one would like it. The
//! rule is that of the reference: a limit goes up by the span; the last block that begins before the limit becomes a
//! restart point as soon as one begins at the limit or behind it. So the point that is chosen is known only later.
//! Until then it is *open*: the recorder keeps what the point may need, which is its window, and the compressed bytes
//! of the 32 KiB of data after it, by which the unused part of the window is found.
//!
//! The window is not copied when a block begins, since blocks may be tiny: it is still in the ring of the last 128 KiB,
//! and is copied when the ring is about to lose it.

use crate::format::WINDOW_SIZE;
use crate::index_writer::IndexWriter;
use crate::window_use::clear_unused;
use headstart_block::{Result, to_usize};
use std::collections::VecDeque;

/// Bytes of the ring that the inflater writes to; a power of two.
pub(crate) const RING: usize = 128 << 10;
/// Most bytes that are written to the ring at once.
pub(crate) const STEP: usize = 32 << 10;
/// Most compressed bytes that are kept for a point. The 32 KiB after it have more only if most of its blocks are empty;
/// the window is then kept whole.
const INPUT_MAX: usize = 128 << 10;

/// A block that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockStart {
    /// Offset of its first byte in the uncompressed data.
    pub(crate) inflated: u64,
    /// Offset of the first compressed byte that is the block's as a whole.
    pub(crate) compressed: u64,
    /// Number of bits of the byte before that are the block's, and these bits.
    pub(crate) bits: u8,
    pub(crate) bit_buf: u8,
}

struct OpenPoint {
    start: BlockStart,
    /// The window, once it is copied.
    window: Option<Box<[u8]>>,
    /// The compressed bytes after the point; `None` if they are too many.
    input: Option<Vec<u8>>,
    /// `true` if nothing that comes later can refer to the window.
    is_complete: bool,
    is_accepted: bool,
}

pub(crate) struct Recorder {
    span: u64,
    limit: u64,
    /// Points in the order of the data. Only the last may not be accepted yet.
    open: VecDeque<OpenPoint>,
    writer: IndexWriter,
}

impl Recorder {
    pub(crate) fn new(span: u32) -> Self {
        Self { span: span.into(), limit: 0, open: VecDeque::new(), writer: IndexWriter::new(span) }
    }

    /// A member begins: a restart point that needs no window.
    pub(crate) fn member_starts(&mut self, inflated: u64, compressed: u64) {
        for point in &mut self.open {
            point.is_complete = true;
        }
        self.settle_candidate(inflated);
        self.limit = self.limit.max((inflated / self.span + 1).saturating_mul(self.span));
        self.open.push_back(OpenPoint {
            start: BlockStart { inflated, compressed, bits: 0, bit_buf: 0 },
            window: Some(vec![0; WINDOW_SIZE].into()),
            input: None,
            is_complete: true,
            is_accepted: true,
        });
    }

    /// A block begins that is not the first of its member.
    pub(crate) fn block_starts(&mut self, start: BlockStart) {
        let is_at_limit = start.inflated.is_multiple_of(self.span) && start.inflated >= self.limit;
        self.settle_candidate(start.inflated);
        if start.inflated >= self.limit {
            let past = start.inflated / self.span + u64::from(is_at_limit);
            self.limit = past.max(start.inflated.div_ceil(self.span)).saturating_mul(self.span);
        }
        self.open.push_back(OpenPoint {
            start,
            window: None,
            input: Some(Vec::new()),
            is_complete: false,
            is_accepted: is_at_limit,
        });
    }

    /// Accepts the candidate if something begins behind the limit at `inflated`, and forgets it otherwise.
    fn settle_candidate(&mut self, inflated: u64) {
        if let Some(candidate) = self.open.pop_back_if(|point| !point.is_accepted)
            && inflated > self.limit
        {
            self.open.push_back(OpenPoint { is_accepted: true, ..candidate });
        }
    }

    /// Copies the windows that the next step would overwrite. `inflated` bytes are in the ring, the next goes to `at`.
    pub(crate) fn before_step(&mut self, ring: &[u8], at: usize, inflated: u64) {
        let kept = (RING - STEP - WINDOW_SIZE) as u64;
        for point in &mut self.open {
            if point.window.is_none() && inflated - point.start.inflated > kept {
                point.window = Some(window_of(ring, at, inflated - point.start.inflated));
            }
        }
    }

    /// Takes note of a step: compressed bytes that were fed, after which `inflated` bytes are in the ring.
    pub(crate) fn after_step(&mut self, fed: &[u8], inflated: u64) {
        for point in self.open.iter_mut().filter(|point| !point.is_complete) {
            point.input = point.input.take().filter(|input| input.len() + fed.len() <= INPUT_MAX);
            if let Some(input) = &mut point.input {
                input.extend_from_slice(fed);
            }
            point.is_complete = inflated - point.start.inflated >= WINDOW_SIZE as u64;
        }
    }

    /// Hands the points on that are accepted and complete.
    pub(crate) fn hand_on(&mut self, ring: &[u8], at: usize, inflated: u64) -> Result<()> {
        while let Some(point) = self.open.pop_front_if(|point| point.is_accepted && point.is_complete) {
            let OpenPoint { start, window, input, .. } = point;
            let mut window = window.unwrap_or_else(|| window_of(ring, at, inflated - start.inflated));
            if let Some(input) = input {
                clear_unused(&mut window, start.bits, start.bit_buf, &input);
            }
            self.writer.push(start.inflated, start.compressed, start.bits, &window)?;
        }
        Ok(())
    }

    /// The stream has ended: no point stays open. The last candidate is worth a point if the limit was passed.
    pub(crate) fn end(&mut self, ring: &[u8], at: usize, inflated: u64) -> Result<()> {
        for point in &mut self.open {
            point.is_complete = true;
        }
        self.settle_candidate(inflated);
        self.hand_on(ring, at, inflated)
    }

    pub(crate) fn into_writer(self) -> IndexWriter {
        self.writer
    }
}

/// The 32 KiB of the ring that end `back` bytes before `at`.
fn window_of(ring: &[u8], at: usize, back: u64) -> Box<[u8]> {
    let start = (at + 2 * RING - to_usize(back) - WINDOW_SIZE) % RING;
    let (end, begin) = ring.split_at(start);
    begin.iter().chain(end).take(WINDOW_SIZE).copied().collect()
}
