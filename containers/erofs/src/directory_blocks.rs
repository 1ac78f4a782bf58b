//! Directories that changed, written at the end.
//!
//! Blocks of a directory of the parent are changed in place, if each has room for the names that are new in it, and
//! none becomes empty. Otherwise all of the directory is written behind all other blocks.

use crate::directory_walk::DirectoryWalk;
use crate::dirents::{self, Dirent};
use crate::inode::InodeContent;
use crate::inode_places::InodePlaces;
use crate::state::{INODE, NAME, State, changed, key, name_key};
use headstart_block::Result;
use headstart_file_blocks::BLOCK_SIZE;
use std::ops::Range;

/// Bytes of entries in a block of a directory that has more than one: the rest is left for names to come.
const FILLED: usize = BLOCK_SIZE - BLOCK_SIZE / 8;

/// Writes all directories in which names changed.
pub(crate) fn write(state: &mut State, places: &InodePlaces) -> Result<()> {
    let mut from = vec![NAME];
    while let Some((found, _)) = state.changes.next(&[NAME], &from)? {
        let Some(dir) = found.get(1..).and_then(|bytes| bytes.first_chunk()) else { break };
        let dir = u64::from_be_bytes(*dir);
        from = key(NAME, dir + 1).to_vec();
        // No name is empty, so the first of the next directory is behind this.
        if state.changes.get(&key(INODE, dir))?.is_some_and(|record| record.is_empty()) {
            continue;
        }
        let blocks = state.old_blocks(dir)?;
        if blocks.is_empty() || !change_in_place(state, places, dir, &blocks)? {
            write_anew(state, places, dir)?;
        }
    }
    Ok(())
}

/// Entries of a block with changes.
struct ChangedBlock {
    number: u64,
    entries: Vec<Dirent>,
}

impl ChangedBlock {
    /// Puts the block among those that are written; `false` if it has no room for its entries, or none are left.
    fn write(self, state: &mut State) -> Result<bool> {
        let size: usize = self.entries.iter().map(Dirent::size).sum();
        let fits = !self.entries.is_empty() && size <= BLOCK_SIZE;
        if fits {
            *state.blocks.get_mut(self.number)? = dirents::encode(&self.entries);
        }
        Ok(fits)
    }
}

/// Changes the blocks of a directory of the parent; `false` if that is not possible: then nothing was changed.
fn change_in_place(state: &mut State, places: &InodePlaces, dir: u64, blocks: &Range<u64>) -> Result<bool> {
    let mut open: Option<ChangedBlock> = None;
    let mut written = Vec::new();
    let mut from = name_key(dir, &[]);
    let mut fits = true;
    while let (true, Some((found, value))) = (fits, state.changes.next(&key(NAME, dir), &from)?) {
        let name = found.get(9..).unwrap_or_default();
        let number = state.block_with(blocks, name)?;
        if open.as_ref().is_none_or(|open| open.number != number) {
            written.extend(open.as_ref().map(|open| open.number));
            fits = open.map_or(Ok(true), |open| open.write(state))?;
            open = Some(ChangedBlock { number, entries: dirents::decode(state.blocks.get(number)?)? });
        }
        if let Some(open) = &mut open {
            let at = open.entries.binary_search_by(|entry| (*entry.name).cmp(name));
            match (at, changed(name, &value)) {
                (Ok(at), None) => _ = open.entries.remove(at),
                (Err(_), None) => {}
                (at, Some(mut entry)) => {
                    entry.node = places.number(state, entry.node)?;
                    match at {
                        Ok(at) => open.entries[at] = entry,
                        Err(at) => open.entries.insert(at, entry),
                    }
                }
            }
        }
        from = found;
    }
    fits = fits && open.map_or(Ok(true), |open| open.write(state))?;
    if !fits {
        written.into_iter().for_each(|number| state.blocks.forget(number));
    }
    Ok(fits)
}

/// Blocks of a directory that is written, one behind the other.
#[derive(Default)]
struct NewBlocks {
    first: Option<u32>,
    count: u64,
    entries: Vec<Dirent>,
    size: usize,
}

impl NewBlocks {
    fn add(&mut self, state: &mut State, entry: Dirent) -> Result<()> {
        let limit = if self.count == 0 { BLOCK_SIZE } else { FILLED };
        if self.size + entry.size() > limit {
            let mut sum = 0;
            let kept = self.entries.iter().take_while(|entry| {
                sum += entry.size();
                sum <= FILLED
            });
            let rest = self.entries.split_off(kept.count().max(1));
            self.write(state)?;
            self.size = rest.iter().map(Dirent::size).sum();
            self.entries = rest;
        }
        self.size += entry.size();
        self.entries.push(entry);
        Ok(())
    }

    fn write(&mut self, state: &mut State) -> Result<()> {
        let block = state.take(1)?;
        *state.blocks.fresh(block.into())? = dirents::encode(&self.entries);
        self.first.get_or_insert(block);
        self.count += 1;
        Ok(())
    }
}

/// Writes all of a directory to new blocks.
fn write_anew(state: &mut State, places: &InodePlaces, dir: u64) -> Result<()> {
    let mut walk = DirectoryWalk::new(state, dir, Vec::new())?;
    let mut new = NewBlocks::default();
    while let Some(mut entry) = walk.next(state)? {
        entry.node = places.number(state, entry.node)?;
        new.add(state, entry)?;
    }
    new.write(state)?;
    let mut inode = state.directory(dir)?;
    inode.size = new.count * BLOCK_SIZE as u64;
    inode.content = InodeContent::Blocks(new.first.unwrap_or(0));
    state.put_inode(dir, &inode)
}
