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
use crate::state::{State, append_run};
use headstart_block::{Error, Result, exact, to_usize};
use headstart_file_blocks::{
    BlockReader, BlockSink, ComparedContent, ContentSource, FileContent, FoundSectors, PART, block_runs,
    blocks_for,
};
use std::ops::Range;

/// Bytes of the largest file that is possible without the feature `large_file`.
const SMALL_FILE: u64 = (1 << 31) - 1;
/// Blocks of the largest file that 32-bit logical block numbers can describe.
const MAX_BLOCKS: u64 = (1 << 32) - 1;

/// Writes content into new blocks of a file without any.
pub(crate) fn write(
    state: &mut State,
    sink: &mut dyn BlockSink,
    inode: &mut Inode,
    content: &mut dyn FileContent,
) -> Result<()> {
    let (size, runs) = (content.size(), content.runs().to_vec());
    let mut source = ContentSource::new(content);
    write_runs(state, sink, inode, size, &runs, &mut |_, at, buf| source.fill(at, buf))
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
    let mut compared = ComparedContent::new(content);
    if compared.is_same(&mut |at, buf| read_old(state, &old, at, buf))? {
        return Ok(());
    }
    let acl = std::mem::take(&mut inode.file_acl);
    state.free_content(inode)?;
    inode.file_acl = acl;
    write_runs(state, sink, inode, size, &runs, &mut |state, from, buf| {
        compared.fill(from, buf, &mut |at, buf| read_old(state, &old, at, buf))?;
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
    if blocks_for(size) > MAX_BLOCKS {
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
    let place = state.block_of(inode, 0)?.ok_or_else(damaged)?;
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
