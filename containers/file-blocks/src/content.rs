//! Content of files: a stream on its way to the data of a layer.

use crate::BLOCK_SIZE;
use crate::places::{FoundSectors, Places};
use headstart_block::{Result, to_usize};
use std::ops::Range;

/// Bytes that are read and written at once: a multiple of a block.
pub const PART: u64 = 1 << 20;

/// The place that the content of files is written to: the data of a layer.
pub trait BlockSink {
    /// Takes whole blocks, the content of the disk from byte `offset` on. No block is given twice, except that a block
    /// of metadata may be given at the end for a block that was freed in the same layer.
    ///
    /// # Errors
    /// Errors of the output.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Takes whole blocks with content of a file, as [`data`](Self::data) does. The file that the content comes from
    /// has the sectors `found` of it, too ([`FileContent::place`]): ascending, apart, and inside `bytes`.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    fn content(&mut self, offset: u64, bytes: &[u8], found: &[FoundSectors]) -> Result<()> {
        let _ = found;
        self.data(offset, bytes)
    }

    /// `true` if the parent has content of a file in the block at byte `offset` of the disk that cannot be read here,
    /// because it stayed in another file ([`content`](Self::content)). Metadata that takes such a block is written
    /// without a comparison.
    fn cannot_compare(&self, offset: u64) -> bool {
        let _ = offset;
        false
    }
}

/// The content of a file, as a stream.
pub trait FileContent {
    /// Length of the file in bytes, holes included.
    fn size(&self) -> u64;

    /// The ranges of the file, in bytes, that have data: ascending, apart, and not past the size. The others are holes.
    fn runs(&self) -> &[Range<u64>];

    /// Fills `buf` with the next bytes of data, one range after the other.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the stream ends before.
    fn read(&mut self, buf: &mut [u8]) -> Result<()>;

    /// The offset of the first byte of data in the file that the stream is a part of; the others follow without gaps.
    /// `None` if there is no such file, or it does not stay.
    fn place(&self) -> Option<u64> {
        None
    }

    /// Called when all data was read: `true` if the bytes behind it in that file are zeros, up to the next multiple of
    /// 512.
    ///
    /// # Errors
    /// Errors of the stream.
    fn ends_in_zeros(&mut self) -> Result<bool> {
        Ok(false)
    }
}

/// The content of a file that is written, with the places that it has in the file it comes from.
pub struct ContentSource<'a> {
    stream: ContentStream<'a>,
    places: Option<Places>,
}

impl<'a> ContentSource<'a> {
    /// All of `content`.
    #[must_use]
    pub fn new(content: &'a mut dyn FileContent) -> Self {
        let places = content.place().map(|first| Places::new(content.runs(), first));
        Self { stream: ContentStream::new(content), places }
    }

    /// Fills `buf` with the bytes of the file from `offset` on, and returns the sectors of them that another file has,
    /// too. Offsets must ascend, and only holes may be left out.
    ///
    /// # Errors
    /// Errors of the content.
    pub fn fill(&mut self, offset: u64, buf: &mut [u8]) -> Result<Vec<FoundSectors>> {
        self.stream.fill(offset, buf)?;
        let end = offset + buf.len() as u64;
        match &self.places {
            Some(places) => places.sectors(offset..end, &mut || self.stream.content.ends_in_zeros()),
            None => Ok(Vec::new()),
        }
    }
}

/// Fills a buffer with the bytes of an old file from an offset on.
type ReadOld<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// The content of a file that is compared with that of an old file of the same size, and written only if it differs.
pub struct ComparedContent<'a> {
    stream: ContentStream<'a>,
    size: u64,
    /// The first part that differs from the old file's, and its offset. All before is the same in both.
    part: Vec<u8>,
    part_at: u64,
}

impl<'a> ComparedContent<'a> {
    /// All of `content`.
    #[must_use]
    pub fn new(content: &'a mut dyn FileContent) -> Self {
        let size = content.size();
        Self { stream: ContentStream::new(content), size, part: Vec::new(), part_at: 0 }
    }

    /// Compares the content with the old file's up to the first part that differs; `true` if there is none.
    ///
    /// # Errors
    /// Errors of both.
    pub fn is_same(&mut self, read_old: &mut ReadOld<'_>) -> Result<bool> {
        let mut old = Vec::new();
        while self.part_at < self.size {
            let len = to_usize(PART.min(self.size - self.part_at));
            self.part.resize(len, 0);
            old.resize(len, 0);
            self.stream.fill(self.part_at, &mut self.part)?;
            read_old(self.part_at, &mut old)?;
            if self.part != old {
                return Ok(false);
            }
            self.part_at += len as u64;
        }
        Ok(true)
    }

    /// Fills `buf` with the bytes of the file from `offset` on, after the comparison found a difference. Offsets must
    /// ascend, and only holes may be left out.
    ///
    /// # Errors
    /// Errors of both.
    pub fn fill(&mut self, offset: u64, buf: &mut [u8], read_old: &mut ReadOld<'_>) -> Result<()> {
        let part = self.part_at..self.part_at + self.part.len() as u64;
        let (mut from, mut rest) = (offset, buf);
        // Parts come in order: equal ones from the old file, the one that differs from memory, the others from the
        // stream.
        while !rest.is_empty() {
            let end =
                [part.start, part.end, u64::MAX].into_iter().find(|&end| end > from).unwrap_or(u64::MAX);
            let (now, later) = rest.split_at_mut(to_usize((end - from).min(rest.len() as u64)));
            if end == part.start {
                read_old(from, now)?;
            } else if end == part.end {
                let start = to_usize(from - part.start);
                now.copy_from_slice(&self.part[start..start + now.len()]);
            } else {
                self.stream.fill(from, now)?;
            }
            from += now.len() as u64;
            rest = later;
        }
        Ok(())
    }
}

/// Number of blocks that `bytes` take.
#[must_use]
pub fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_SIZE as u64)
}

/// The blocks that runs of bytes touch, as runs that are apart.
#[must_use]
pub fn block_runs(runs: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut blocks: Vec<Range<u64>> = Vec::new();
    for run in runs.iter().filter(|run| run.start < run.end) {
        let (start, end) = (run.start / BLOCK_SIZE as u64, blocks_for(run.end));
        match blocks.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => blocks.push(start..end),
        }
    }
    blocks
}

/// Content as bytes of the file: zeros in holes.
struct ContentStream<'a> {
    content: &'a mut dyn FileContent,
    runs: Vec<Range<u64>>,
    /// The run that comes next or is being read.
    at: usize,
}

impl<'a> ContentStream<'a> {
    /// The bytes of `content`, from the first on.
    fn new(content: &'a mut dyn FileContent) -> Self {
        let runs = content.runs().to_vec();
        Self { content, runs, at: 0 }
    }

    /// Fills `buf` with the bytes of the file from `offset` on. Offsets must ascend, and only holes may be left out.
    fn fill(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset + buf.len() as u64;
        let mut done = offset;
        while let Some(run) = self.runs.get(self.at) {
            if run.is_empty() {
                self.at += 1;
                continue;
            }
            let (from, to) = (run.start.max(done), run.end.min(end));
            if from >= to {
                break;
            }
            buf[to_usize(done - offset)..to_usize(from - offset)].fill(0);
            self.content.read(&mut buf[to_usize(from - offset)..to_usize(to - offset)])?;
            done = to;
            if run.end > end {
                return Ok(());
            }
            self.at += 1;
        }
        buf[to_usize(done - offset)..].fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::Error;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Content whose byte at an offset tells the offset.
    struct Numbered {
        runs: Vec<Range<u64>>,
        next: (usize, u64),
    }

    impl Numbered {
        fn new(runs: Vec<Range<u64>>) -> Self {
            Self { runs, next: (0, 0) }
        }
    }

    fn byte(at: u64) -> u8 {
        (at % 255).to_le_bytes()[0] + 1
    }

    impl FileContent for Numbered {
        fn size(&self) -> u64 {
            self.runs.last().map_or(0, |run| run.end)
        }

        fn runs(&self) -> &[Range<u64>] {
            &self.runs
        }

        fn read(&mut self, buf: &mut [u8]) -> Result<()> {
            for to in buf {
                let (run, done) = &mut self.next;
                while self.runs.get(*run).is_some_and(|run| run.start + *done == run.end) {
                    (*run, *done) = (*run + 1, 0);
                }
                let run = self.runs.get(*run).ok_or_else(|| Error::corrupt("is cut off"))?;
                *to = byte(run.start + *done);
                *done += 1;
            }
            Ok(())
        }
    }

    /// Runs from lengths of holes and data in turn.
    fn runs(lengths: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut at = 0;
        let run = |&(hole, data): &(u64, u64)| {
            let start = at + hole;
            at = start + data;
            start..at
        };
        lengths.iter().map(run).collect()
    }

    proptest! {
        #[test]
        fn a_stream_gives_the_bytes_of_its_runs_and_zeros_between(
            lengths in proptest::collection::vec((0_u64..9000, 0_u64..9000), 0..12),
            cuts in proptest::collection::vec(1_usize..7000, 1..20),
            more in 0_u64..5000,
        ) {
            let runs = runs(&lengths);
            let mut content = Numbered::new(runs.clone());
            let size = content.size() + more;
            let expected: Vec<u8> = (0..size)
                .map(|at| if runs.iter().any(|run| run.contains(&at)) { byte(at) } else { 0 })
                .collect();
            let mut stream = ContentStream { content: &mut content, runs, at: 0 };
            let (mut found, mut next) = (Vec::new(), 0);
            while (found.len() as u64) < size {
                let len = cuts[next % cuts.len()].min(to_usize(size) - found.len());
                let mut buf = vec![0xee; len];
                stream.fill(found.len() as u64, &mut buf).unwrap();
                found.extend(buf);
                next += 1;
            }
            prop_assert!(found == expected);
        }

        #[test]
        fn runs_of_blocks_are_the_blocks_that_have_data(
            lengths in proptest::collection::vec((0_u64..20_000, 0_u64..20_000), 0..20),
        ) {
            let runs = runs(&lengths);
            let blocks = block_runs(&runs);
            let found: BTreeSet<u64> = blocks.iter().cloned().flatten().collect();
            let with_data = runs.iter().filter(|run| !run.is_empty());
            let expected = with_data.flat_map(|run| run.start / 4096..blocks_for(run.end)).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(blocks.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }

    #[test]
    fn holes_may_be_left_out_of_a_stream() {
        let runs = vec![0..10, 5000..5010, 10_000..10_001];
        let mut content = Numbered::new(runs.clone());
        let mut stream = ContentStream { content: &mut content, runs, at: 0 };
        let mut buf = [7; 4];
        for (at, expected) in [(0, [1, 2, 3, 4]), (4, [5, 6, 7, 8]), (8, [9, 10, 0, 0])] {
            stream.fill(at, &mut buf).unwrap();
            assert_eq!(buf, expected);
        }
        stream.fill(4998, &mut buf).unwrap();
        assert_eq!(buf, [0, 0, byte(5000), byte(5001)]);
    }

    #[test]
    fn a_stream_that_is_cut_off_is_an_error() {
        let mut content = Numbered::new(std::iter::once(0..10).collect());
        let mut stream =
            ContentStream { content: &mut content, runs: std::iter::once(0..11).collect(), at: 0 };
        assert!(stream.fill(0, &mut [0; 11]).is_err());
    }
}
