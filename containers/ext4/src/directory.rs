//! The entries of one directory: searched, added and removed.
//!
//! A directory is a sequence of blocks. Each block is a chain of entries (`chain`). The first two entries of the first
//! block are the directory itself, ".", and its parent, "..".
//!
//! * A *linear* directory has its entries in any order. A new entry goes to the first room that is large enough.
//! * An *indexed* directory has a tree in its first block and, if it is large, in some others (`htree`), which leads
//!   from the hash of a name to the block that has it (`index`). The inode's flag `INDEX_FL` (0x1000) says that
//!   a directory is indexed; it has to be set when [`insert`] reports that the directory is indexed.
//!
//! Changes are made as Linux makes them: a directory that outgrows its first block gets an index, a full block is split
//! into two halves. What becomes of a directory depends on its blocks and on the order of the changes only.
//!
//! No block is ever given back: an indexed directory keeps leaves without entries, as Linux does.
//!
//! Blocks have no checksums here: the feature `metadata_csum` is not supported.

mod chain;
mod index;

pub(crate) use crate::hash::HashSettings;

use crate::htree::DIRECTORY_TYPE;
use crate::{BLOCK_SIZE, Block};
use chain::{FoundRecord, needed};
use headstart_block::{Error, Result};
use std::ops::Range;

/// The longest name of an entry, in bytes.
pub(crate) const LONGEST_NAME: usize = 255;

/// The blocks of a directory, numbered from 0.
pub(crate) trait DirectoryBlocks {
    /// Number of blocks.
    fn count(&self) -> u32;

    /// A block, to read it.
    ///
    /// # Errors
    /// Errors of the disk; [`headstart_block::ErrorKind::Corrupt`] if the directory has no such block.
    fn block(&mut self, n: u32) -> Result<&Block>;

    /// A block, to change it.
    ///
    /// # Errors
    /// As [`DirectoryBlocks::block`].
    fn block_mut(&mut self, n: u32) -> Result<&mut Block>;

    /// Adds a block of zeros and returns its number.
    ///
    /// # Errors
    /// Errors of the disk, and if it is full.
    fn append(&mut self) -> Result<u32>;
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryEntry<'a> {
    /// The name: 1 to 255 bytes other than 0 and "/".
    pub(crate) name: &'a [u8],
    /// Number of the inode, not 0.
    pub(crate) inode: u32,
    /// Byte of the type: see `chain`.
    pub(crate) kind: u8,
}

impl DirectoryEntry<'_> {
    /// Refuses entries that a directory cannot have.
    fn check(&self) -> Result<()> {
        let cause = match self.name {
            [] => "is empty",
            b"." | b".." => "means a directory itself or its parent",
            name if name.len() > LONGEST_NAME => "is longer than 255 bytes",
            name if name.iter().any(|&byte| byte == 0 || byte == b'/') => "has a zero byte or a slash",
            _ if self.inode == 0 => "has no inode",
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("the name \"{}\" {cause}", self.name.escape_ascii())))
    }
}

/// The block that has a name, and the place in it.
#[derive(Clone, Copy, Debug)]
struct FoundEntry {
    block: u32,
    place: FoundRecord,
}

/// The only block of a directory without entries, with the inode `own`, in the directory `parent`; for the root
/// directory both are the same.
pub(crate) fn empty(own: u32, parent: u32) -> Block {
    let entry = |name, inode| DirectoryEntry { name, inode, kind: DIRECTORY_TYPE };
    let mut block = [0; BLOCK_SIZE];
    chain::fill(&mut block, [entry(b".", own), entry(b"..", parent)]);
    block
}

/// Searches a directory for a name. Returns inode and type; `None` if there is no such entry.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the directory is damaged where it was searched,
/// [`headstart_block::ErrorKind::Unsupported`] for an unknown kind of index; errors of the disk.
pub(crate) fn lookup(
    blocks: &mut dyn DirectoryBlocks,
    indexed: bool,
    hash: &HashSettings,
    name: &[u8],
) -> Result<Option<(u32, u8)>> {
    let found = find(blocks, indexed, hash, name)?;
    Ok(found.map(|found| (found.place.record.inode, found.place.record.kind)))
}

/// Adds an entry, whose name the directory does not have; the caller has searched for it. Returns `true` if the
/// directory is indexed afterwards.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] for an entry that no directory can have,
/// [`headstart_block::ErrorKind::Unsupported`] if an index of two levels is full, and as [`lookup`] and
/// [`DirectoryBlocks::append`]. The directory may be damaged after an error of the disk, and when the disk is full.
pub(crate) fn insert(
    blocks: &mut dyn DirectoryBlocks,
    indexed: bool,
    hash: &HashSettings,
    entry: &DirectoryEntry<'_>,
) -> Result<bool> {
    entry.check()?;
    if indexed {
        index::insert(blocks, hash, entry)?;
        return Ok(true);
    }
    if insert_in_any(blocks, entry)? {
        return Ok(false);
    }
    if blocks.count() == 1 {
        index::convert(blocks, hash, entry)?;
        return Ok(true);
    }
    append_with(blocks, entry)?;
    Ok(false)
}

/// Adds an entry to a directory that is not indexed and must not become so, because the file system does not have
/// the feature `dir_index`.
///
/// # Errors
/// As [`insert`].
pub(crate) fn insert_linear(blocks: &mut dyn DirectoryBlocks, entry: &DirectoryEntry<'_>) -> Result<()> {
    entry.check()?;
    if insert_in_any(blocks, entry)? { Ok(()) } else { append_with(blocks, entry) }
}

/// Removes an entry. Returns the inode and type that it had; `None` if there is no such entry.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] for "." and "..", and as [`lookup`].
pub(crate) fn remove(
    blocks: &mut dyn DirectoryBlocks,
    indexed: bool,
    hash: &HashSettings,
    name: &[u8],
) -> Result<Option<(u32, u8)>> {
    if is_dot(name) {
        return Err(Error::invalid("\".\" and \"..\" cannot be removed from a directory"));
    }
    let Some(found) = find(blocks, indexed, hash, name)? else { return Ok(None) };
    chain::remove(blocks.block_mut(found.block)?, &found.place);
    Ok(Some((found.place.record.inode, found.place.record.kind)))
}

/// A function that is called with the name, inode and type of each entry.
pub(crate) type EachEntry<'a> = &'a mut dyn FnMut(&[u8], u32, u8) -> Result<()>;

/// Blocks of a part of a directory, of which large ones are listed part by part: 64 have at most 21,800 names.
const PART_BLOCKS: u32 = 64;

/// The blocks of a part of a directory, counted from 0; `None` behind the last part. A directory has at least one.
pub(crate) fn part(blocks: &dyn DirectoryBlocks, part: u32) -> Option<Range<u32>> {
    let start = part.checked_mul(PART_BLOCKS).filter(|start| part == 0 || *start < blocks.count())?;
    Some(start..start.saturating_add(PART_BLOCKS).min(blocks.count()))
}

/// Calls `each` with the name, inode and type of every entry of some blocks but "." and "..", in the order of the
/// blocks.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the directory is damaged; errors of the disk and of `each`.
pub(crate) fn each_entry(
    blocks: &mut dyn DirectoryBlocks,
    range: Range<u32>,
    each: EachEntry<'_>,
) -> Result<()> {
    // Blocks of an index show no entries but "." and "..", so they need no special treatment.
    for number in range {
        let block = blocks.block(number)?;
        for record in chain::records(block) {
            let record = record?;
            let name = record.name(block);
            if record.inode != 0 && !is_dot(name) {
                each(name, record.inode, record.kind)?;
            }
        }
    }
    Ok(())
}

/// Calls `each` with every entry of all parts.
#[cfg(test)]
fn each_of_all(blocks: &mut dyn DirectoryBlocks, each: EachEntry<'_>) -> Result<()> {
    let parts: Vec<_> = (0..).map_while(|number| part(blocks, number)).collect();
    parts.into_iter().try_for_each(|range| each_entry(blocks, range, each))
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// The entries "." and ".." of a directory's first block.
fn dots(block: &Block) -> Result<(chain::Record, chain::Record)> {
    let mut records = chain::records(block);
    if let (Some(own), Some(parent)) = (records.next().transpose()?, records.next().transpose()?)
        && own.name(block) == b"."
        && parent.name(block) == b".."
        && own.inode != 0
        && parent.inode != 0
    {
        return Ok((own, parent));
    }
    Err(Error::corrupt("a directory does not begin with the entries \".\" and \"..\""))
}

fn find(
    blocks: &mut dyn DirectoryBlocks,
    indexed: bool,
    hash: &HashSettings,
    name: &[u8],
) -> Result<Option<FoundEntry>> {
    if indexed && !is_dot(name) {
        return index::find(blocks, hash, name);
    }
    for block in 0..blocks.count() {
        if let Some(place) = chain::find(blocks.block(block)?, name)? {
            return Ok(Some(FoundEntry { block, place }));
        }
    }
    Ok(None)
}

/// Adds an entry to the first block that has room for it. Returns `false` if none has.
fn insert_in_any(blocks: &mut dyn DirectoryBlocks, entry: &DirectoryEntry<'_>) -> Result<bool> {
    for block in 0..blocks.count() {
        if insert_in(blocks, block, entry)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds an entry to a block. Returns `false` if it has no room for it.
fn insert_in(blocks: &mut dyn DirectoryBlocks, block: u32, entry: &DirectoryEntry<'_>) -> Result<bool> {
    let Some(room) = chain::find_room(blocks.block(block)?, needed(entry.name.len()))? else {
        return Ok(false);
    };
    chain::put(blocks.block_mut(block)?, &room, entry);
    Ok(true)
}

/// Adds an entry in a new block. The directory has blocks already, if only for "." and "..".
fn append_with(blocks: &mut dyn DirectoryBlocks, entry: &DirectoryEntry<'_>) -> Result<()> {
    if blocks.count() == 0 {
        return Err(Error::corrupt("a directory has no blocks"));
    }
    let block = blocks.append()?;
    chain::fill(blocks.block_mut(block)?, [*entry]);
    Ok(())
}

#[cfg(test)]
mod tests;
