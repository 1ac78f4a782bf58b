//! Content of files: taken from a stream, given to the layer at once, and kept where the parent has it already.
//!
//! The content of a file goes to consecutive blocks and straight to the layer, in parts of up to [`PART`] bytes. It is
//! never read again. Holes take no blocks.
//!
//! # Files that stay the same
//! A layer that changes only the mode or the time of a file brings its whole content again. It is compared with the
//! parent's, part by part, while it streams in. If all is equal, the file keeps its blocks. If not, what was equal so
//! far is copied from the parent, and the file gets new blocks.

use crate::BLOCK_SIZE;
use crate::directory;
use crate::extents::{Extent, ExtentMap};
use crate::features::LARGE_FILE;
use crate::inode::Inode;
use crate::places::{FoundSectors, Places};
use crate::read::BlockReader;
use crate::state::{State, append_run};
use headstart_block::{Error, Result, exact, to_usize};
use std::ops::Range;

/// Bytes that are read and written at once: a multiple of a block.
const PART: u64 = 1 << 20;
/// Bytes of the largest file that is possible without the feature `large_file`.
const SMALL_FILE: u64 = (1 << 31) - 1;
/// Blocks of the largest file that 32-bit logical block numbers can describe.
const MAX_BLOCKS: u64 = (1 << 32) - 1;

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

/// Writes content into new blocks of a file without any.
pub(crate) fn write(
    state: &mut State,
    sink: &mut dyn BlockSink,
    inode: &mut Inode,
    content: &mut dyn FileContent,
) -> Result<()> {
    let (size, runs) = (content.size(), content.runs().to_vec());
    let places = content.place().map(|first| Places::new(&runs, first));
    let mut stream = Stream { content, runs: runs.clone(), at: 0 };
    write_runs(state, sink, inode, size, &runs, &mut |_, at, buf| {
        stream.fill(at, buf)?;
        let end = at + buf.len() as u64;
        match &places {
            Some(places) => places.sectors(at..end, &mut || stream.content.ends_in_zeros()),
            None => Ok(Vec::new()),
        }
    })
}

/// Compares content with that of a file of the parent; if they differ, the file gets new blocks with the new content.
/// Both have the same size.
pub(crate) fn keep_or_write(
    state: &mut State,
    sink: &mut dyn BlockSink,
    inode: &mut Inode,
    content: &mut dyn FileContent,
) -> Result<()> {
    let (size, runs) = (content.size(), content.runs().to_vec());
    let old = state.extents(inode)?;
    let mut stream = Stream { content, runs: runs.clone(), at: 0 };
    let (mut new_part, mut old_part) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < size {
        let len = to_usize(PART.min(size - at));
        new_part.resize(len, 0);
        old_part.resize(len, 0);
        stream.fill(at, &mut new_part)?;
        read_old(state, &old, at, &mut old_part)?;
        if new_part != old_part {
            break;
        }
        at += len as u64;
    }
    if at >= size {
        return Ok(());
    }
    let acl = std::mem::take(&mut inode.file_acl);
    state.free_content(inode)?;
    inode.file_acl = acl;
    let part = at..at + new_part.len() as u64;
    write_runs(state, sink, inode, size, &runs, &mut |state, from, buf| {
        let mut from = from;
        let mut rest = buf;
        // Parts come in order: equal ones from the parent, the one that differs from memory, the others from the
        // stream.
        while !rest.is_empty() {
            let end =
                [part.start, part.end, u64::MAX].into_iter().find(|&end| end > from).unwrap_or(u64::MAX);
            let (now, later) = rest.split_at_mut(to_usize((end - from).min(rest.len() as u64)));
            if end == part.start {
                read_old(state, &old, from, now)?;
            } else if end == part.end {
                let start = to_usize(from - part.start);
                now.copy_from_slice(&new_part[start..start + now.len()]);
            } else {
                stream.fill(from, now)?;
            }
            from += now.len() as u64;
            rest = later;
        }
        Ok(Vec::new())
    })
}

/// Source of a file's bytes: fills a buffer with those from an offset on, and says which sectors of them another file
/// has, too. Offsets ascend.
type Fill<'a> = dyn FnMut(&mut State, u64, &mut [u8]) -> Result<Vec<FoundSectors>> + 'a;

/// Takes blocks for the runs of a file, and writes them.
fn write_runs(
    state: &mut State,
    sink: &mut dyn BlockSink,
    inode: &mut Inode,
    size: u64,
    runs: &[Range<u64>],
    fill: &mut Fill<'_>,
) -> Result<()> {
    if State::blocks_for(size) > MAX_BLOCKS {
        return Err(Error::unsupported(format!(
            "a file of {size} bytes is more than ext4 can describe, 16 TiB"
        )));
    }
    if size > SMALL_FILE {
        // The kernel does so at the first large file, too.
        state.superblock.features = state.superblock.features.with(LARGE_FILE);
    }
    let mut extents = Vec::new();
    let mut buf = Vec::new();
    for blocks in block_runs(runs) {
        let mut next = blocks.start;
        while next < blocks.end {
            let run = state
                .allocator
                .take_run(&mut state.blocks, (blocks.end - next).min(PART / BLOCK_SIZE as u64))?;
            let bytes = (run.end - run.start) * BLOCK_SIZE as u64;
            buf.resize(to_usize(bytes), 0);
            let start = next * BLOCK_SIZE as u64;
            let inside = to_usize(bytes.min(size - start));
            let found = fill(state, start, &mut buf[..inside])?;
            buf[inside..].fill(0);
            sink.content(run.start * BLOCK_SIZE as u64, &buf, &found)?;
            append_run(&mut extents, exact(next, "fewer blocks than 32 bits count"), run.clone());
            next += run.end - run.start;
        }
    }
    inode.size = size;
    state.set_extents(inode, &extents, &[])
}

/// The blocks that runs of bytes touch, as runs that are apart.
fn block_runs(runs: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut blocks: Vec<Range<u64>> = Vec::new();
    for run in runs.iter().filter(|run| run.start < run.end) {
        let (start, end) = (run.start / BLOCK_SIZE as u64, State::blocks_for(run.end));
        match blocks.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => blocks.push(start..end),
        }
    }
    blocks
}

/// Content as bytes of the file: zeros in holes.
struct Stream<'a> {
    content: &'a mut dyn FileContent,
    runs: Vec<Range<u64>>,
    /// The run that comes next or is being read.
    at: usize,
}

impl Stream<'_> {
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

/// Reads content of a file, all of which is the parent's.
pub(crate) fn read(state: &mut State, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
    let extents = state.extents(inode)?;
    read_old(state, &extents, offset, buf)
}

/// Reads content that a file has in the parent.
fn read_old(state: &mut State, old: &ExtentMap, offset: u64, buf: &mut [u8]) -> Result<()> {
    buf.fill(0);
    let Some(parent) = state.blocks.parent() else { return Ok(()) };
    let end = offset + buf.len() as u64;
    for extent in old.extents.iter().filter(|extent| !extent.unwritten) {
        read_extent(parent, extent, offset..end, buf)?;
    }
    Ok(())
}

/// Reads the part of an extent that lies in `range`, the bytes of the file that `buf` gets.
fn read_extent(parent: &mut BlockReader, extent: &Extent, range: Range<u64>, buf: &mut [u8]) -> Result<()> {
    let start = u64::from(extent.logical) * BLOCK_SIZE as u64;
    let stop = start + u64::from(extent.len) * BLOCK_SIZE as u64;
    let (from, to) = (start.max(range.start), stop.min(range.end));
    if from >= to {
        return Ok(());
    }
    let place = extent.start * BLOCK_SIZE as u64 + (from - start);
    parent.read(place, &mut buf[to_usize(from - range.start)..to_usize(to - range.start)])
}

/// Stores the target of a new symbolic link: in the inode if it fits there, else in a block.
pub(crate) fn fill_symlink(state: &mut State, inode: &mut Inode, target: &[u8]) -> Result<()> {
    if inode.set_fast_symlink(target) {
        return Ok(());
    }
    inode.size = target.len() as u64;
    let place = state.allocator.take_metadata_block(&mut state.blocks)?;
    state.blocks.fresh(place)?[..target.len()].copy_from_slice(target);
    let mut extents = Vec::new();
    append_run(&mut extents, 0, place..place + 1);
    state.set_extents(inode, &extents, &[])
}

/// Reads the target of a symbolic link.
pub(crate) fn link_target(state: &mut State, inode: &Inode) -> Result<Vec<u8>> {
    if let Some(target) = inode.fast_symlink()? {
        return Ok(target.to_vec());
    }
    let damaged = || Error::corrupt("the target of a symbolic link is damaged");
    let len = to_usize(inode.size);
    let place = state.extents(inode)?.block(0).ok_or_else(damaged)?;
    state.blocks.with(place, |content| content.get(..len).map(<[u8]>::to_vec).ok_or_else(damaged))
}

/// Gives a new directory its first block.
pub(crate) fn fill_directory(state: &mut State, inode: &mut Inode, own: u32, parent: u32) -> Result<()> {
    let place = state.allocator.take_metadata_block(&mut state.blocks)?;
    *state.blocks.fresh(place)? = directory::empty(own, parent);
    inode.size = BLOCK_SIZE as u64;
    let mut extents = Vec::new();
    append_run(&mut extents, 0, place..place + 1);
    state.set_extents(inode, &extents, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
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
            let mut stream = Stream { content: &mut content, runs, at: 0 };
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
            let expected = with_data.flat_map(|run| run.start / 4096..State::blocks_for(run.end)).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(blocks.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }

    #[test]
    fn holes_may_be_left_out_of_a_stream() {
        let runs = vec![0..10, 5000..5010, 10_000..10_001];
        let mut content = Numbered::new(runs.clone());
        let mut stream = Stream { content: &mut content, runs, at: 0 };
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
        let mut stream = Stream { content: &mut content, runs: std::iter::once(0..11).collect(), at: 0 };
        assert!(stream.fill(0, &mut [0; 11]).is_err());
    }
}
