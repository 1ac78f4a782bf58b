//! Content of files: taken from a stream, given to the layer at once, and kept where the parent has it already.
//!
//! Content without holes goes to consecutive blocks behind all others. Other content is in chunks, each of which is a
//! hole or in consecutive blocks. A chunk has 4 KiB, or as many times 2 as it takes for a file to have not more than
//! 16,384 of them; blocks of a chunk that have no data are not written, but their places are taken.
//!
//! # Files that stay the same
//! Content that comes again for a file of the parent is compared with the parent's, part by part, while it streams in.
//! If all is equal, the file keeps its blocks. If not, what was equal so far is copied from the parent.

use crate::inode::{HOLE, Inode, InodeContent, chunk_bits};
use crate::state::State;
use headstart_block::{Error, Result, to_usize};
use headstart_file_blocks::{
    BLOCK_SIZE, BlockSink, ComparedContent, ContentSource, FileContent, FoundSectors, PART, block_runs,
    blocks_for,
};
use std::ops::Range;

/// Writes the content of a file.
pub(crate) fn write(
    state: &mut State,
    sink: &mut dyn BlockSink,
    inode: &mut Inode,
    content: &mut dyn FileContent,
) -> Result<()> {
    let (size, runs) = (content.size(), block_runs(content.runs()));
    let mut source = ContentSource::new(content);
    write_runs(state, sink, inode, size, &runs, &mut |_, at, buf| source.fill(at, buf))
}

/// Compares content with that of a file of the parent, and writes it if they differ. Both have the same size.
pub(crate) fn keep_or_write(
    state: &mut State,
    sink: &mut dyn BlockSink,
    inode: &mut Inode,
    content: &mut dyn FileContent,
) -> Result<()> {
    let (size, runs) = (content.size(), block_runs(content.runs()));
    let old = inode.clone();
    let mut compared = ComparedContent::new(content);
    if compared.is_same(&mut |at, buf| read(state, &old, at, buf))? {
        return Ok(());
    }
    write_runs(state, sink, inode, size, &runs, &mut |state, from, buf| {
        compared.fill(from, buf, &mut |at, buf| read(state, &old, at, buf))?;
        Ok(Vec::new())
    })
}

/// `true` if all of a file's content is the parent's.
pub(crate) fn is_of_parent(state: &State, inode: &Inode) -> bool {
    let (end, blocks) = (u64::from(state.parent_end), blocks_for(inode.size));
    match &inode.content {
        InodeContent::Blocks(start) => u64::from(*start).saturating_add(blocks) <= end,
        InodeContent::Chunks { bits, starts } => (0..blocks)
            .step_by(1 << bits)
            .zip(starts)
            .all(|(at, start)| *start == HOLE || u64::from(*start) + (blocks - at).min(1 << bits) <= end),
        _ => true,
    }
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
    let blocks = blocks_for(size);
    inode.size = size;
    let is_whole = blocks == 0 || matches!(runs, [run] if *run == (0..blocks));
    if is_whole {
        let start = if blocks == 0 { 0 } else { state.take(blocks)? };
        inode.content = InodeContent::Blocks(start);
    } else {
        inode.content = take_chunks(state, size, runs)?;
        state.superblock.has_chunked_files = true;
    }
    let mut buf = Vec::new();
    for run in runs {
        let mut block = run.start;
        while block < run.end {
            let (Some(place), len) = inode.run_of(block) else {
                return Err(Error::invalid("a part of a file with data has no place"));
            };
            let len = len.min(run.end - block).min(PART / BLOCK_SIZE as u64);
            buf.resize(to_usize(len) * BLOCK_SIZE, 0);
            let offset = block * BLOCK_SIZE as u64;
            let inside = to_usize((buf.len() as u64).min(size - offset));
            let found = fill(state, offset, &mut buf[..inside])?;
            buf[inside..].fill(0);
            sink.content(place * BLOCK_SIZE as u64, &buf, &found)?;
            block += len;
        }
    }
    Ok(())
}

/// Takes blocks for the chunks of a file that have data.
fn take_chunks(state: &mut State, size: u64, runs: &[Range<u64>]) -> Result<InodeContent> {
    let (bits, blocks) = (chunk_bits(size), blocks_for(size));
    let mut starts = Vec::new();
    let mut runs = runs.iter().peekable();
    for at in (0..blocks).step_by(1 << bits) {
        let end = (at + (1 << bits)).min(blocks);
        while runs.next_if(|run| run.end <= at).is_some() {}
        let has_data = runs.peek().is_some_and(|run| run.start < end);
        starts.push(if has_data { state.take(end - at)? } else { HOLE });
    }
    Ok(InodeContent::Chunks { bits, starts })
}

/// Reads content of a file, all of which is the parent's, inside its size.
pub(crate) fn read(state: &mut State, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
    let Some(parent) = state.blocks.parent() else {
        buf.fill(0);
        return Ok(());
    };
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        let (block, inside) = (at / BLOCK_SIZE as u64, at % BLOCK_SIZE as u64);
        let (place, len) = inode.run_of(block);
        let bytes = len.saturating_mul(BLOCK_SIZE as u64).saturating_sub(inside);
        let len = to_usize(bytes.min((buf.len() - done) as u64));
        if len == 0 {
            return Err(Error::corrupt("a file has less content than its size"));
        }
        let now = &mut buf[done..done + len];
        match place {
            Some(place) => parent.read(place * BLOCK_SIZE as u64 + inside, now)?,
            None => now.fill(0),
        }
        done += len;
    }
    Ok(())
}

/// The target of a symbolic link: in its inode, or in a block of its own.
pub(crate) fn link_target(state: &mut State, inode: &Inode) -> Result<Vec<u8>> {
    let damaged = || Error::corrupt("the target of a symbolic link is damaged");
    match &inode.content {
        InodeContent::Target(target) => Ok(target.clone()),
        InodeContent::Blocks(block) => {
            let content = state.blocks.get((*block).into())?;
            content.get(..to_usize(inode.size)).map(<[u8]>::to_vec).ok_or_else(damaged)
        }
        _ => Err(damaged()),
    }
}
