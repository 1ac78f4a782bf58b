//! Directories in memory, and a plain check of all that must hold in one.

use crate::directory::{DirectoryBlocks, DirectoryEntry, chain, dots, empty, insert};
use crate::hash::{HALF_MD4, HashSettings};
use crate::htree::{CONTINUES, IndexInfo, IndexKind, slots};
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Inode and type of each name.
pub(super) type Listing = BTreeMap<Vec<u8>, (u32, u8)>;

/// The inode of directories in tests, and of their parents.
pub(super) const OWN: u32 = 12;
pub(super) const PARENT: u32 = 2;

pub(super) fn half_md4() -> HashSettings {
    HashSettings { version: HALF_MD4, seed: [1, 2, 3, 4], unsigned: false }
}

/// The blocks of a directory in memory.
#[derive(Clone)]
pub(super) struct MemoryBlocks {
    pub(super) blocks: Vec<Box<Block>>,
    /// The most blocks that there may be.
    pub(super) limit: usize,
}

impl MemoryBlocks {
    pub(super) fn new(blocks: Vec<Box<Block>>) -> Self {
        Self { blocks, limit: 100_000 }
    }
}

impl DirectoryBlocks for MemoryBlocks {
    fn count(&self) -> u32 {
        u32::try_from(self.blocks.len()).unwrap()
    }

    fn block(&mut self, n: u32) -> Result<&Block> {
        self.block_mut(n).map(|block| &*block)
    }

    fn block_mut(&mut self, n: u32) -> Result<&mut Block> {
        let block = self.blocks.get_mut(n as usize);
        block.map(|block| &mut **block).ok_or_else(|| Error::corrupt("no such block"))
    }

    fn append(&mut self) -> Result<u32> {
        if self.blocks.len() >= self.limit {
            return Err(Error::invalid("full"));
        }
        self.blocks.push(Box::new([0; BLOCK_SIZE]));
        Ok(self.count() - 1)
    }
}

/// A directory to which these entries were added, one after the other: names of regular files, and their inodes.
/// Returns `true` with it if it is indexed.
pub(super) fn directory_of<N: AsRef<[u8]>>(
    (own, parent): (u32, u32),
    entries: impl IntoIterator<Item = (N, u32)>,
    settings: &HashSettings,
) -> (MemoryBlocks, bool) {
    let mut directory = MemoryBlocks::new(vec![Box::new(empty(own, parent))]);
    let mut indexed = false;
    for (name, inode) in entries {
        let entry = DirectoryEntry { name: name.as_ref(), inode, kind: 1 };
        indexed = insert(&mut directory, indexed, settings, &entry).unwrap();
    }
    (directory, indexed)
}

/// A name of 1 to `longest` bytes, different for each number below 65,536, with any bytes but 0 and "/".
pub(super) fn name(number: u16, longest: usize) -> Vec<u8> {
    let mixed = u32::from(number).wrapping_mul(2_654_435_769);
    let length = 5 + (mixed >> 16) as usize % (longest - 4);
    let mut name = format!("{number:05}").into_bytes();
    name.extend((5..length).map(|n| (mixed >> (n % 24)).to_le_bytes()[0]));
    for byte in &mut name {
        if matches!(*byte, 0 | b'/') {
            *byte = 0xe9;
        }
    }
    name
}

/// Checks a directory in every respect, and returns its entries but "." and "..".
pub(super) fn check(directory: &MemoryBlocks, indexed: bool, settings: &HashSettings) -> Listing {
    let mut found = Listing::new();
    let blocks = &directory.blocks;
    dots(&blocks[0]).unwrap();
    if !indexed {
        for (n, block) in blocks.iter().enumerate() {
            for (name, inode, kind) in entries_of(block).into_iter().skip(if n == 0 { 2 } else { 0 }) {
                assert_eq!(found.insert(name, (inode, kind)), None);
            }
        }
        return found;
    }
    assert_eq!(entries_of(&blocks[0]).len(), 2);
    let info = IndexInfo::decode(&blocks[0]).unwrap();
    let settings = settings.with_version(info.version).unwrap();
    let mut seen = BTreeSet::from([0]);
    let mut leaves = slots(&blocks[0], IndexKind::Root).unwrap();
    if info.has_nodes {
        let mut below = Vec::new();
        for (hash, node) in leaves {
            assert!(seen.insert(node) && entries_of(&blocks[node as usize]).is_empty());
            let mut slots = slots(&blocks[node as usize], IndexKind::Node).unwrap();
            slots[0].0 = hash;
            below.append(&mut slots);
        }
        leaves = below;
    }
    for (n, &(low, leaf)) in leaves.iter().enumerate() {
        assert!(seen.insert(leaf), "block {leaf} is in the index twice");
        let high = leaves.get(n + 1).map_or(u32::MAX, |&(hash, _)| hash);
        assert!(low <= high);
        for (name, inode, kind) in entries_of(&blocks[leaf as usize]) {
            let hash = settings.hash(&name);
            assert!(low & !CONTINUES <= hash && hash < high, "{low:x} <= {hash:x} < {high:x}");
            assert_eq!(found.insert(name, (inode, kind)), None);
        }
    }
    assert_eq!(seen.len(), blocks.len(), "each block is in the index");
    found
}

/// The entries of a block, which is a whole chain.
fn entries_of(block: &Block) -> Vec<(Vec<u8>, u32, u8)> {
    let records: Vec<_> = chain::records(block).map(Result::unwrap).collect();
    assert_eq!(records.iter().map(|record| record.length).sum::<usize>(), BLOCK_SIZE);
    let live = records.iter().filter(|record| record.inode != 0);
    live.map(|record| (record.name(block).to_vec(), record.inode, record.kind)).collect()
}
