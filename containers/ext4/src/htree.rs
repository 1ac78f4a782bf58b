//! The blocks of a directory's index, byte by byte.
//!
//! A directory with an index, a *hash tree*, has two kinds of blocks: *leaves* with entries, as every directory has,
//! and *index blocks*. Its first block is the *root* of the index. The root leads to leaves or, if it has one more
//! level, to *nodes*, which lead to leaves. More levels take a feature (`large_dir`) that is not supported here.
//!
//! Readers that know nothing of the index see entries of a directory in all blocks: the root shows "." and "..", a
//! node an unused entry as long as the block. Integers are little-endian.
//!
//! | root | node | |
//! |---|---|---|
//! | 0 | | u32 the directory's inode, u16 12, u8 1, u8 2, "." and three zeros |
//! | 12 | | u32 the parent's inode, u16 4084, u8 2, u8 2, ".." and two zeros |
//! | 24 | | u32 0 |
//! | 28 | | u8 number of the hash, see `hash` |
//! | 29 | | u8 8, the bytes from 24 up to the slots |
//! | 30 | | u8 number of levels of nodes, 0 or 1 |
//! | 31 | | u8 flags; an odd number means something unknown |
//! | | 0 | u32 0, u16 4096, u16 0: the unused entry |
//! | 32 | 8 | slots of 8 bytes, 508 of them in a root and 511 in a node |
//!
//! A slot is u32 hash, u32 number of a block of the directory (of which 28 bits count), in ascending order of hashes.
//! The block of a slot has the names with hashes from that of the slot to that of the next slot. The first slot has no
//! hash: its block has all names with smaller hashes. In its place are u16 number of slots that fit (508 or 511) and
//! u16 number of slots that are used, at least 1.
//!
//! Names with one hash may not fit in one leaf. If the names of the block before go on in the block of a slot, the hash
//! of the slot is odd: the *continuation bit*, which no hash of a name has, is set. Then a search of the hash lands in
//! the first block that has it, and goes on for as long as slots have that hash with the bit.

use crate::little_endian::{put_u16, put_u32, u16_at, u32_at};
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, Result, exact};

/// Set in the hash of a slot whose block goes on with the names of the block before.
pub(crate) const CONTINUES: u32 = 1;
/// The file type of directories, in entries.
pub(crate) const DIRECTORY_TYPE: u8 = 2;

/// Bits of a slot's number of a block that count.
const BLOCK_BITS: u32 = 0x0fff_ffff;
/// Bytes of a slot.
const SLOT: usize = 8;
/// Offset of the root's description.
const INFO: usize = 24;
/// Bytes of the root's description.
const INFO_LENGTH: u8 = 8;

/// A kind of index block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexKind {
    /// The first block of the directory.
    Root,
    /// A block between the root and leaves.
    Node,
}

impl IndexKind {
    /// Offset of the slots.
    const fn slots(self) -> usize {
        match self {
            Self::Root => INFO + INFO_LENGTH as usize,
            Self::Node => 8,
        }
    }

    /// Number of slots that fit: 508 or 511.
    pub(crate) const fn limit(self) -> usize {
        (BLOCK_SIZE - self.slots()) / SLOT
    }
}

/// Settings of an index, from its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexInfo {
    /// Number of the hash; any number.
    pub(crate) version: u8,
    /// `true` if there are nodes between the root and the leaves.
    pub(crate) has_nodes: bool,
}

impl IndexInfo {
    /// Reads the description in a root.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it is damaged, [`headstart_block::ErrorKind::Unsupported`] for more
    /// levels than two or unknown flags.
    pub(crate) fn decode(root: &Block) -> Result<Self> {
        let [version, length, levels, flags] = [28, 29, 30, 31].map(|at| root[at]);
        if u32_at(root, INFO) != 0 || length != INFO_LENGTH {
            return Err(Error::corrupt("the root of a directory's index is damaged"));
        }
        if levels > 1 || flags & 1 != 0 {
            return Err(Error::unsupported(format!(
                "a directory's index has {levels} levels of nodes, flags {flags}"
            ))
            .remedy("make the file system without large_dir"));
        }
        Ok(Self { version, has_nodes: levels == 1 })
    }
}

/// Makes `block` the root of an index with one slot, for the block `child`.
pub(crate) fn make_root(block: &mut Block, own: u32, parent: u32, info: IndexInfo, child: u32) {
    block.fill(0);
    put_u32(block, 0, own);
    block[4..9].copy_from_slice(&[12, 0, 1, DIRECTORY_TYPE, b'.']);
    put_u32(block, 12, parent);
    put_u16(block, 16, exact(BLOCK_SIZE - 12, "a block has 4096 bytes"));
    block[18..22].copy_from_slice(&[2, DIRECTORY_TYPE, b'.', b'.']);
    block[28] = info.version;
    block[29] = INFO_LENGTH;
    block[30] = u8::from(info.has_nodes);
    set_slots(block, IndexKind::Root, &[(0, child)]);
}

/// Makes `block` a node with these slots: hash and block of each. There are 1 to 511; the first hash does not count.
pub(crate) fn make_node(block: &mut Block, slots: &[(u32, u32)]) {
    block.fill(0);
    put_u16(block, 4, exact(BLOCK_SIZE, "a block has 4096 bytes"));
    set_slots(block, IndexKind::Node, slots);
}

/// Says in a root that there are nodes, and gives it one slot, for the node `child`.
pub(crate) fn raise_root(block: &mut Block, child: u32) {
    block[30] = 1;
    set_slots(block, IndexKind::Root, &[(0, child)]);
}

/// Replaces all slots of an index block: 1 to [`IndexKind::limit`]. The first hash does not count.
pub(crate) fn set_slots(block: &mut Block, kind: IndexKind, slots: &[(u32, u32)]) {
    block[kind.slots()..].fill(0);
    for (n, &(hash, child)) in slots.iter().enumerate() {
        let at = kind.slots() + n * SLOT;
        put_u32(block, at, hash);
        put_u32(block, at + 4, child);
    }
    put_u16(block, kind.slots(), exact(kind.limit(), "a block has room for 511 slots at most"));
    set_count(block, kind, slots.len());
}

/// Returns the slots of an index block: hash, 0 for the first one, and block of each.
pub(crate) fn slots(block: &Block, kind: IndexKind) -> Result<Vec<(u32, u32)>> {
    Ok((0..count(block, kind)?).map(|n| (hash_of(block, kind, n), block_of(block, kind, n))).collect())
}

/// Number of slots of an index block that are used, at least 1.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if it is 0 or more than there is room for, or the room is not what it must
/// be.
pub(crate) fn count(block: &Block, kind: IndexKind) -> Result<usize> {
    let [limit, count] = [0, 2].map(|at| usize::from(u16_at(block, kind.slots() + at)));
    if limit != kind.limit() || count == 0 || count > limit {
        return Err(Error::corrupt(format!("a block of a directory's index has {count} slots of {limit}")));
    }
    Ok(count)
}

/// The hash of slot `n`, with the continuation bit; 0 for the first slot. `n` is below [`IndexKind::limit`].
pub(crate) fn hash_of(block: &Block, kind: IndexKind, n: usize) -> u32 {
    if n == 0 { 0 } else { u32_at(block, kind.slots() + n * SLOT) }
}

/// The block of slot `n`, any number of 28 bits. `n` is below [`IndexKind::limit`].
pub(crate) fn block_of(block: &Block, kind: IndexKind, n: usize) -> u32 {
    u32_at(block, kind.slots() + n * SLOT + 4) & BLOCK_BITS
}

/// The slot that a search for the names with a hash begins with: the last one with a hash that is not larger.
///
/// # Errors
/// As [`count`].
pub(crate) fn search(block: &Block, kind: IndexKind, hash: u32) -> Result<usize> {
    let (mut low, mut high) = (0, count(block, kind)?);
    // Invariant: the slot `low` is not beyond the wanted one, `high` is.
    while high - low > 1 {
        let middle = low.midpoint(high);
        if hash_of(block, kind, middle) <= hash {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Adds a slot after slot `n`.
///
/// # Errors
/// As [`count`], and if there is no room for another slot or there is no slot `n`.
pub(crate) fn add_slot(block: &mut Block, kind: IndexKind, n: usize, hash: u32, child: u32) -> Result<()> {
    let count = count(block, kind)?;
    if n >= count || count == kind.limit() {
        return Err(Error::corrupt(format!("a block of a directory's index has no room after slot {n}")));
    }
    let place = kind.slots() + (n + 1) * SLOT;
    block.copy_within(place..kind.slots() + count * SLOT, place + SLOT);
    put_u32(block, place, hash);
    put_u32(block, place + 4, child);
    set_count(block, kind, count + 1);
    Ok(())
}

fn set_count(block: &mut Block, kind: IndexKind, count: usize) {
    put_u16(block, kind.slots() + 2, exact(count, "a block has room for 511 slots at most"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_finds_the_last_slot_that_is_not_beyond_the_hash() {
        let hashes = [0, 10, 10, 11, 20, 0xffff_fffc];
        let mut node = [0; BLOCK_SIZE];
        make_node(&mut node, &hashes.map(|hash| (hash, 7)));
        for wanted in [0, 2, 8, 10, 12, 18, 20, 22, 0xffff_fffa, 0xffff_fffc] {
            let slow = (1..hashes.len()).rev().find(|&n| hashes[n] <= wanted).unwrap_or(0);
            assert_eq!(search(&node, IndexKind::Node, wanted).unwrap(), slow, "{wanted}");
        }
    }

    #[test]
    fn slots_are_added_until_the_block_is_full() {
        for kind in [IndexKind::Root, IndexKind::Node] {
            let mut block = [0; BLOCK_SIZE];
            set_slots(&mut block, kind, &[(0, 1)]);
            let mut expected = vec![(0, 1)];
            for n in 1..u32::try_from(kind.limit()).unwrap() {
                let after = expected.len() * 2 / 3;
                add_slot(&mut block, kind, after, n, n + 1).unwrap();
                expected.insert(after + 1, (n, n + 1));
            }
            assert_eq!(slots(&block, kind).unwrap(), expected);
            assert!(add_slot(&mut block, kind, 0, 5, 5).is_err());
        }
        assert_eq!((IndexKind::Root.limit(), IndexKind::Node.limit()), (508, 511));
    }

    #[test]
    fn a_damaged_root_or_count_is_refused() {
        let mut root = [0; BLOCK_SIZE];
        make_root(&mut root, 12, 2, IndexInfo { version: 1, has_nodes: false }, 1);
        assert_eq!(IndexInfo::decode(&root).unwrap(), IndexInfo { version: 1, has_nodes: false });
        for (at, value) in [(24, 1), (29, 9), (30, 2), (31, 1)] {
            let mut damaged = root;
            damaged[at] = value;
            assert!(IndexInfo::decode(&damaged).is_err(), "{at}");
        }
        for (at, value) in [(32, 1), (34, 0), (35, 255)] {
            let mut damaged = root;
            damaged[at] = value;
            assert!(count(&damaged, IndexKind::Root).is_err(), "{at}");
        }
    }
}
