//! The entries of one block of a directory.
//!
//! A block is a chain of *records*, which fill it to its last byte. Integers are little-endian:
//!
//! | offset | | |
//! |---|---|---|
//! | 0 | u32 | inode; 0 if the record has no entry |
//! | 4 | u16 | bytes of the record up to the next one: a multiple of 4, at least 12 |
//! | 6 | u8 | bytes of the name, 1 to 255 |
//! | 7 | u8 | type: 1 regular file, 2 directory, 3 character device, 4 block device, 5 fifo, 6 socket, 7 symlink |
//! | 8 | | the name, without a zero at its end |
//!
//! A record may be longer than its entry needs. The room behind the entry is free. An entry is removed by joining its
//! record to the one before; the first record of a block keeps its place, with inode 0. Bytes that are freed become
//! zeros, so that nothing of removed names stays in a layer.

use crate::directory::DirectoryEntry;
use crate::little_endian::{put_u16, put_u32, u16_at, u32_at};
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, Result, exact};

/// Bytes of a record before the name.
const HEAD: usize = 8;
/// The least length of a record.
const SHORTEST: usize = 12;

/// Bytes that an entry needs for a name of `name` bytes.
pub(super) const fn needed(name: usize) -> usize {
    (HEAD + name).next_multiple_of(4)
}

/// One record of a block: checked, so that all of it lies in the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Offset in the block.
    pub(super) at: usize,
    /// Bytes up to the next record or the end of the block.
    pub(super) length: usize,
    /// Inode, 0 if there is no entry.
    pub(super) inode: u32,
    /// Byte of the type.
    pub(super) kind: u8,
    name: usize,
}

impl Record {
    /// The name of the entry, in the block that the record was read from.
    pub(super) fn name<'a>(&self, block: &'a Block) -> &'a [u8] {
        &block[self.at + HEAD..self.at + HEAD + self.name]
    }

    /// The entry, in the block that the record was read from.
    pub(super) fn entry<'a>(&self, block: &'a Block) -> DirectoryEntry<'a> {
        DirectoryEntry { name: self.name(block), inode: self.inode, kind: self.kind }
    }

    /// Bytes that the entry needs; 0 if there is none.
    pub(super) fn used(&self) -> usize {
        if self.inode == 0 { 0 } else { needed(self.name) }
    }

    fn decode(block: &Block, at: usize) -> Result<Self> {
        let damaged = |cause: &str| {
            Err(Error::corrupt(format!("an entry at byte {at} of a directory's block {cause}")))
        };
        if BLOCK_SIZE - at < SHORTEST {
            return damaged("is cut off");
        }
        let record = Self {
            at,
            length: usize::from(u16_at(block, at + 4)),
            inode: u32_at(block, at),
            kind: block[at + 7],
            name: usize::from(block[at + 6]),
        };
        if !record.length.is_multiple_of(4) || record.length < SHORTEST || record.length > BLOCK_SIZE - at {
            return damaged("has an impossible length");
        }
        if needed(record.name) > record.length {
            return damaged("is too short for its name");
        }
        if record.inode != 0 && record.name == 0 {
            return damaged("has no name");
        }
        Ok(record)
    }
}

/// All records of a block, with and without entries. Ends after the first error.
pub(super) struct Records<'a> {
    block: &'a Block,
    at: usize,
}

/// Returns the records of a block; see [`Records`].
pub(super) fn records(block: &Block) -> Records<'_> {
    Records { block, at: 0 }
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        if self.at >= BLOCK_SIZE {
            return None;
        }
        let record = Record::decode(self.block, self.at);
        self.at = record.as_ref().map_or(BLOCK_SIZE, |record| record.at + record.length);
        Some(record)
    }
}

/// A record that was searched for, and the one before it in the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundRecord {
    pub(super) record: Record,
    pub(super) before: Option<Record>,
}

/// Searches a block for the entry with a name; `None` if there is none.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the block is damaged up to that entry.
pub(super) fn find(block: &Block, name: &[u8]) -> Result<Option<FoundRecord>> {
    let mut before = None;
    for record in records(block) {
        let record = record?;
        if record.inode != 0 && record.name(block) == name {
            return Ok(Some(FoundRecord { record, before }));
        }
        before = Some(record);
    }
    Ok(None)
}

/// The first record with room for an entry of `size` bytes; `None` if there is none.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the block is damaged up to that record.
pub(super) fn find_room(block: &Block, size: usize) -> Result<Option<Record>> {
    for record in records(block) {
        let record = record?;
        if record.length - record.used() >= size {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// Stores an entry in a record that [`find_room`] found in this block.
pub(super) fn put(block: &mut Block, room: &Record, entry: &DirectoryEntry<'_>) {
    let used = room.used();
    if used > 0 {
        set_length(block, room.at, used);
    }
    write(block, room.at + used, room.length - used, entry);
}

/// Removes an entry that [`find`] found in this block.
pub(super) fn remove(block: &mut Block, found: &FoundRecord) {
    let (start, end) = (found.record.at, found.record.at + found.record.length);
    block[start..end].fill(0);
    match found.before {
        Some(before) => set_length(block, before.at, end - before.at),
        None => set_length(block, start, end),
    }
}

/// Fills a block with these entries, one behind the other. Together they need 4096 bytes at most.
pub(super) fn fill<'a>(block: &mut Block, entries: impl IntoIterator<Item = DirectoryEntry<'a>>) {
    block.fill(0);
    let (mut last, mut end) = (0, 0);
    for entry in entries {
        let size = needed(entry.name.len());
        write(block, end, size, &entry);
        (last, end) = (end, end + size);
    }
    set_length(block, last, BLOCK_SIZE - last);
}

fn write(block: &mut Block, at: usize, length: usize, entry: &DirectoryEntry<'_>) {
    let name_end = at + HEAD + entry.name.len();
    put_u32(block, at, entry.inode);
    set_length(block, at, length);
    block[at + 6] = exact(entry.name.len(), "names were checked to have 255 bytes at most");
    block[at + 7] = entry.kind;
    block[at + HEAD..name_end].copy_from_slice(entry.name);
    block[name_end..at + needed(entry.name.len())].fill(0);
}

fn set_length(block: &mut Block, at: usize, length: usize) {
    put_u16(block, at + 4, exact(length, "a record is not longer than its block"));
}
