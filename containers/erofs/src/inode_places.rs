//! Places of inodes, and the names of those that moved.
//!
//! An inode that is new, or has grown out of its place, is put behind all other blocks, in order of nodes. An inode
//! with what follows it stays in one block if it can; otherwise it begins with a block.
//!
//! The number of an inode is its place, so a name that leads to one that moved changes, as do `.` and `..`. The names
//! of a file are known to its directories only: if they are not all among the changes of the layer, all directories are
//! searched for them. That is rare: a file or directory of a lower layer got more or longer extended attributes.

use crate::directory_walk::DirectoryWalk;
use crate::inode::{SLOT, slots};
use crate::state::{FIRST_NEW, INODE, NAMED, PLACE, SEARCHED, State, key};
use crate::superblock::ROOT_NID;
use headstart_block::{Error, Result, to_usize};
use headstart_file_blocks::{BLOCK_SIZE, FileKind};

/// The places of inodes of a finished layer.
pub(crate) struct InodePlaces {
    /// `true` if an inode of the parent moved.
    has_moved: bool,
}

/// Room for inodes in blocks that follow each other.
#[derive(Default)]
struct Room {
    /// The place of the next byte, and the end of the room.
    at: u64,
    end: u64,
}

impl Room {
    /// Takes a place of so many bytes.
    fn take(&mut self, state: &mut State, bytes: usize) -> Result<u64> {
        let bytes = slots(bytes) * SLOT;
        if self.end - self.at < bytes {
            let count = bytes.div_ceil(BLOCK_SIZE as u64);
            let start = u64::from(state.take(count)?);
            for block in start..start + count {
                state.blocks.fresh(block)?;
            }
            (self.at, self.end) = (start * BLOCK_SIZE as u64, (start + count) * BLOCK_SIZE as u64);
        }
        let place = self.at;
        self.at += bytes;
        Ok(place / SLOT)
    }
}

/// The nodes that changed and are still there, one after the other, with their bytes.
pub(crate) fn next_changed(state: &mut State, after: Option<u64>) -> Result<Option<(u64, Vec<u8>)>> {
    let mut from = after.map_or_else(|| vec![INODE], |node| key(INODE, node).to_vec());
    while let Some((found, record)) = state.changes.next(&[INODE], &from)? {
        let node = found.get(1..).and_then(|bytes| bytes.first_chunk()).copied();
        match node {
            Some(node) if !record.is_empty() => return Ok(Some((u64::from_be_bytes(node), record))),
            _ => from = found,
        }
    }
    Ok(None)
}

impl InodePlaces {
    /// Finds a place for each inode that changed, and has the names that lead to those that moved written again.
    pub(crate) fn find(state: &mut State) -> Result<Self> {
        let (mut room, mut last) = (Room::default(), None);
        let (mut has_moved, mut has_unnamed) = (false, false);
        while let Some((node, record)) = next_changed(state, last)? {
            last = Some(node);
            if node < FIRST_NEW {
                if node == ROOT_NID || slots(record.len()) <= slots(state.old_length(node)?) {
                    continue;
                }
                has_moved = true;
                has_unnamed |= state.changes.get(&key(NAMED, node))?.is_none();
            }
            let place = room.take(state, record.len())?;
            state.changes.put(&key(PLACE, node), &place.to_be_bytes())?;
        }
        let this = Self { has_moved };
        if has_unnamed {
            this.name_moved(state)?;
        }
        Ok(this)
    }

    /// The number of a node's inode.
    pub(crate) fn number(&self, state: &mut State, node: u64) -> Result<u64> {
        if node < FIRST_NEW && !self.has_moved {
            return Ok(node);
        }
        match state.changes.get(&key(PLACE, node))? {
            Some(place) => Ok(place.first_chunk().map_or(node, |place| u64::from_be_bytes(*place))),
            None if node < FIRST_NEW => Ok(node),
            None => Err(Error::invalid("a name leads to a file that was removed")),
        }
    }

    /// Searches all directories for names of inodes of the parent that moved, and puts these among the changes.
    fn name_moved(&self, state: &mut State) -> Result<()> {
        let mut pending = vec![ROOT_NID];
        while let Some(dir) = pending.pop() {
            // A damaged parent may have a directory in two places.
            if state.changes.get(&key(SEARCHED, dir))?.is_some() {
                continue;
            }
            state.changes.put(&key(SEARCHED, dir), &[])?;
            let mut walk = DirectoryWalk::new(state, dir, Vec::new())?;
            while let Some(entry) = walk.next(state)? {
                if entry.kind == FileKind::Directory.entry_type() && !entry.is_dots() {
                    pending.push(entry.node);
                }
                if entry.node < FIRST_NEW && self.number(state, entry.node)? != entry.node {
                    state.put_name(dir, &entry.name, entry.node, entry.kind)?;
                }
            }
        }
        Ok(())
    }

    /// Writes all inodes that changed to their places.
    pub(crate) fn write(&self, state: &mut State) -> Result<()> {
        let mut last = None;
        while let Some((node, record)) = next_changed(state, last)? {
            last = Some(node);
            let mut at = self.number(state, node)? * SLOT;
            let mut rest = &record[..];
            while !rest.is_empty() {
                let start = to_usize(at % BLOCK_SIZE as u64);
                let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - start));
                let block = state.blocks.get_mut(at / BLOCK_SIZE as u64)?;
                block[start..start + now.len()].copy_from_slice(now);
                at += now.len() as u64;
                rest = later;
            }
        }
        Ok(())
    }
}
