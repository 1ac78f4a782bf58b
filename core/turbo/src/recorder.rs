//! The choice of restart points, while a gzip stream is inflated.
//!
//! Blocks begin where the compressor ended the block before, so a restart point is not where one would like it. The
//! rule is that of the reference: a limit goes up by the span; the last block that begins before the limit becomes a
//! restart point as soon as one begins at the limit or behind it. So the point that is chosen is known only later.
//! Until then it is *open*: the recorder keeps what the point may need, which is its window, and the 32 KiB of data
//! after it with their compressed bytes, by which the first bit of the block and the unused part of the window are
//! found.
//!
//! The data around is not copied when a block begins, since blocks may be tiny: it is still in the ring of the last
//! 128 KiB, and is copied when the ring is about to lose it.

use crate::format::WINDOW_SIZE;
use crate::index_writer::IndexWriter;
use crate::point_writer::{BlockBegin, FoundPoint, PointWriter};
use headstart_block::{Error, Result, to_usize};
use std::collections::VecDeque;

/// Bytes of the ring that the inflater writes to. A prime number, as [`STEP`] is: where a block ends with the room that
/// the inflater has, the end is not noticed, and compressors make blocks of round sizes.
pub(crate) const RING: usize = 131_071;
/// Most bytes that are written to the ring at once.
pub(crate) const STEP: usize = 32_749;
/// Most compressed bytes that are kept for a point. The 32 KiB after it have more only if most of its blocks are empty;
/// there is no restart point then.
const INPUT_MAX: usize = 128 << 10;

/// A block that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockStart {
    /// Offset of its first byte in the uncompressed data.
    pub(crate) inflated: u64,
    /// Offset of the first compressed byte that is the block's as a whole.
    pub(crate) compressed: u64,
    /// The byte before, of which some high bits may be the block's.
    pub(crate) before: u8,
}

/// The data around a place.
struct Around {
    /// The 32 KiB before.
    window: Box<[u8]>,
    /// The 32 KiB behind, as far as there are any.
    data: Box<[u8]>,
}

struct OpenPoint {
    start: BlockStart,
    /// The window, and the data after it, once they are copied.
    around: Option<Around>,
    /// The compressed bytes after the point; `None` if they are too many, or are not needed: for a member's start.
    input: Option<Vec<u8>>,
    is_member: bool,
    /// `true` if nothing that comes later can refer to the window.
    is_complete: bool,
    is_accepted: bool,
}

pub(crate) struct Recorder {
    span: u64,
    limit: u64,
    /// Points in the order of the data. Only the last may not be accepted yet.
    open: VecDeque<OpenPoint>,
    writer: PointWriter,
}

impl Recorder {
    pub(crate) fn new(span: u32) -> Result<Self> {
        Ok(Self { span: span.into(), limit: 0, open: VecDeque::new(), writer: PointWriter::new(span)? })
    }

    /// A member begins: a restart point that needs no window.
    pub(crate) fn member_starts(&mut self, inflated: u64, compressed: u64) {
        for point in &mut self.open {
            point.is_complete = true;
        }
        self.settle_candidate(inflated);
        self.limit = self.limit.max((inflated / self.span + 1).saturating_mul(self.span));
        self.open.push_back(OpenPoint {
            start: BlockStart { inflated, compressed, before: 0 },
            around: Some(Around { window: vec![0; WINDOW_SIZE].into(), data: Box::default() }),
            input: None,
            is_member: true,
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
            around: None,
            input: Some(Vec::new()),
            is_member: false,
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

    /// Copies the data that the next step would overwrite. `inflated` bytes are in the ring, the next goes to `at`.
    pub(crate) fn before_step(&mut self, ring: &[u8], at: usize, inflated: u64) {
        let kept = (RING - STEP - WINDOW_SIZE) as u64;
        for point in &mut self.open {
            if point.around.is_none() && inflated - point.start.inflated > kept {
                point.around = Some(around(ring, at, inflated - point.start.inflated));
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
            let OpenPoint { start, around: copied, input, is_member, .. } = point;
            let found = copied.unwrap_or_else(|| around(ring, at, inflated - start.inflated));
            let Around { window, data } = found;
            let BlockStart { inflated, compressed, before } = start;
            let block = input.map(|input| BlockBegin { before, input, data });
            if is_member || block.is_some() {
                self.writer.push(FoundPoint { inflated, compressed, window, block })?;
            }
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

    /// Lets another thread make the index. For a recorder that has no point yet.
    pub(crate) fn with_thread(self) -> Result<Self> {
        let span =
            u32::try_from(self.span).map_err(|_| Error::invalid("the span of an index is too large"))?;
        Ok(Self { writer: PointWriter::with_thread(span)?, ..self })
    }

    pub(crate) fn into_writer(self) -> Result<IndexWriter> {
        self.writer.finish()
    }
}

/// The data in the ring around the place `back` bytes before `at`.
fn around(ring: &[u8], at: usize, back: u64) -> Around {
    let back = to_usize(back);
    let start = (at + 2 * RING - back - WINDOW_SIZE) % RING;
    let (end, begin) = ring.split_at(start);
    let mut data = begin.iter().chain(end).copied();
    let window = data.by_ref().take(WINDOW_SIZE).collect();
    Around { window, data: data.take(back.min(WINDOW_SIZE)).collect() }
}
