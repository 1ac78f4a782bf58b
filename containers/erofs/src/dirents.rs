//! Blocks of directories, byte by byte: entries in order of their names, `.` and `..` among them.
//!
//! ```text
//! entry: 0 number of the inode, 8   8 place of the name in the block, 2   10 kind   11 zero
//! block: entries, then their names in the same order; the last one ends with a zero or the block
//! ```
//!
//! Blocks of a directory follow each other in order of names, too. A block need not be full.

use crate::superblock::{bytes_at, u16_at};
use headstart_block::{Error, Result, exact};
use headstart_file_blocks::{BLOCK_SIZE, Block};

/// Bytes of an entry without its name.
const ENTRY: usize = 12;
/// Bytes of the longest name.
const MAX_NAME: usize = 255;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dirent {
    pub(crate) name: Vec<u8>,
    /// The number of the inode, or of the node that it will be of.
    pub(crate) node: u64,
    /// The number of the kind of file.
    pub(crate) kind: u8,
}

impl Dirent {
    /// Bytes that the entry takes in a block.
    pub(crate) fn size(&self) -> usize {
        ENTRY + self.name.len()
    }

    /// `true` for `.` and `..`.
    pub(crate) fn is_dots(&self) -> bool {
        is_dots(&self.name)
    }
}

/// `true` for `.` and `..`.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Makes a block of entries that are in order and fit into it.
pub(crate) fn encode(entries: &[Dirent]) -> Block {
    let mut block = [0; BLOCK_SIZE];
    let mut place = ENTRY * entries.len();
    for (entry, at) in entries.iter().zip((0..).step_by(ENTRY)) {
        block[at..at + 8].copy_from_slice(&entry.node.to_le_bytes());
        let short: u16 = exact(place as u64, "places in a block have 12 bits");
        block[at + 8..at + 10].copy_from_slice(&short.to_le_bytes());
        block[at + 10] = entry.kind;
        block[place..place + entry.name.len()].copy_from_slice(&entry.name);
        place += entry.name.len();
    }
    block
}

/// Returns the entries of a block.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if it is damaged.
pub(crate) fn decode(block: &Block) -> Result<Vec<Dirent>> {
    let damaged = || Error::corrupt("a directory is damaged");
    let first = usize::from(u16_at(block, 8));
    if first == 0 || !first.is_multiple_of(ENTRY) || first >= BLOCK_SIZE {
        return Err(damaged());
    }
    let mut entries: Vec<Dirent> = Vec::with_capacity(first / ENTRY);
    for at in (0..first).step_by(ENTRY) {
        let start = usize::from(u16_at(block, at + 8));
        let end = if at + ENTRY < first { usize::from(u16_at(block, at + ENTRY + 8)) } else { BLOCK_SIZE };
        let name = block.get(start..end).filter(|_| start >= first).ok_or_else(damaged)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let is_behind = entries.last().is_none_or(|last| *last.name < *name);
        if name.is_empty() || name.len() > MAX_NAME || name.contains(&b'/') || !is_behind {
            return Err(damaged());
        }
        let node = u64::from_le_bytes(bytes_at(block, at));
        entries.push(Dirent { name: name.to_vec(), node, kind: block[at + 10] });
    }
    Ok(entries)
}

/// The first name of a block.
///
/// # Errors
/// As [`decode`].
pub(crate) fn first_name(block: &Block) -> Result<&[u8]> {
    let damaged = || Error::corrupt("a directory is damaged");
    let start = usize::from(u16_at(block, 8));
    let end = if start > ENTRY { usize::from(u16_at(block, ENTRY + 8)) } else { BLOCK_SIZE };
    let name = block.get(start..end).ok_or_else(damaged)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    if name.is_empty() || start < ENTRY { Err(damaged()) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_are_read_as_they_were_written(
            names in prop::collection::btree_set(
                prop::collection::vec((1..=255_u8).prop_filter("a slash", |byte| *byte != b'/'), 1..256),
                1..16,
            ),
        ) {
            let entries = names.into_iter().zip(0..);
            let entries: Vec<_> = entries.map(|(name, node)| Dirent { name, node, kind: 1 }).collect();
            let fitting = (1..=entries.len()).rev().find(|len| {
                entries[..*len].iter().map(Dirent::size).sum::<usize>() <= BLOCK_SIZE
            });
            let entries = &entries[..fitting.unwrap()];
            let block = encode(entries);
            prop_assert_eq!(decode(&block).unwrap(), entries);
            prop_assert_eq!(first_name(&block).unwrap(), &entries[0].name);
        }

        #[test]
        fn damaged_blocks_are_refused_or_in_order(
            damage in prop::collection::vec((0..100_usize, any::<u8>()), 1..5),
        ) {
            let name = |text: &str| Dirent { name: text.into(), node: 3, kind: 2 };
            let mut block = encode(&[name("."), name(".."), name("a"), name("bc")]);
            for (at, value) in damage {
                block[at] = value;
            }
            if let Ok(entries) = decode(&block) {
                prop_assert!(entries.windows(2).all(|pair| pair[0].name < pair[1].name));
                prop_assert_eq!(first_name(&block).unwrap(), &entries[0].name);
            }
        }
    }
}
