//! The index of a directory: searched, and kept as entries are added.
//!
//! A search goes from the root by the hash of the name to one leaf, and on to the leaves after it as long as the index
//! says that names with that hash go on there (`htree`).
//!
//! An entry for which its leaf has no room makes the leaf two: the entries with the larger hashes, half of the bytes,
//! move to a new block, for which the index gets a slot. An index block that is full becomes two nodes in the same way
//! before that; the root, which has to stay in the first block, moves all its slots to a first node instead.

use crate::directory::{DirectoryBlocks, DirectoryEntry, FoundEntry, chain, dots, insert_in};
use crate::hash::HashSettings;
use crate::htree::{self, CONTINUES, IndexInfo, IndexKind};
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, Result};

/// The way through one index block.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The index block.
    block: u32,
    kind: IndexKind,
    /// The slot that the way goes through.
    slot: usize,
    /// Number of slots in the block.
    count: usize,
}

impl Step {
    /// The way through a block from its slot for `hash`.
    fn through(blocks: &mut dyn DirectoryBlocks, block: u32, kind: IndexKind, hash: u32) -> Result<Self> {
        let content = blocks.block(block)?;
        Ok(Self {
            block,
            kind,
            slot: htree::search(content, kind, hash)?,
            count: htree::count(content, kind)?,
        })
    }

    /// The block that the slot leads to.
    fn child(&self, blocks: &mut dyn DirectoryBlocks) -> Result<u32> {
        let child = htree::block_of(blocks.block(self.block)?, self.kind, self.slot);
        if child == 0 || child >= blocks.count() {
            return Err(Error::corrupt(format!(
                "a directory's index leads to block {child}, which it does not have"
            )));
        }
        Ok(child)
    }

    /// Goes on to the next slot if names with `hash` go on there, and returns whether they do; `None` if the slot is
    /// the last of its block.
    fn advance(&mut self, blocks: &mut dyn DirectoryBlocks, hash: u32) -> Result<Option<bool>> {
        if self.slot + 1 >= self.count {
            return Ok(None);
        }
        if htree::hash_of(blocks.block(self.block)?, self.kind, self.slot + 1) & !CONTINUES != hash {
            return Ok(Some(false));
        }
        self.slot += 1;
        Ok(Some(true))
    }

    fn is_full(&self) -> bool {
        self.count == self.kind.limit()
    }
}

/// The way from the root to a leaf.
struct Path {
    /// The settings of this index.
    settings: HashSettings,
    /// The hash that is searched for.
    hash: u32,
    root: Step,
    /// `None` if the root leads to leaves.
    node: Option<Step>,
    leaf: u32,
}

impl Path {
    /// The way to the first leaf that may have a name.
    fn to(blocks: &mut dyn DirectoryBlocks, settings: &HashSettings, name: &[u8]) -> Result<Self> {
        let info = IndexInfo::decode(blocks.block(0)?)?;
        let settings = settings.with_version(info.version)?;
        let hash = settings.hash(name);
        let root = Step::through(blocks, 0, IndexKind::Root, hash)?;
        let mut leaf = root.child(blocks)?;
        let mut node = None;
        if info.has_nodes {
            let step = Step::through(blocks, leaf, IndexKind::Node, hash)?;
            leaf = step.child(blocks)?;
            node = Some(step);
        }
        Ok(Self { settings, hash, root, node, leaf })
    }

    /// Goes on to the next leaf that may have names with the same hash. Returns `false` if there is none.
    fn advance(&mut self, blocks: &mut dyn DirectoryBlocks) -> Result<bool> {
        if let Some(node) = &mut self.node
            && let Some(goes_on) = node.advance(blocks, self.hash)?
        {
            self.leaf = node.child(blocks)?;
            return Ok(goes_on);
        }
        if self.root.advance(blocks, self.hash)? != Some(true) {
            return Ok(false);
        }
        self.leaf = self.root.child(blocks)?;
        if let Some(node) = &mut self.node {
            *node = Step { slot: 0, ..Step::through(blocks, self.leaf, IndexKind::Node, 0)? };
            self.leaf = node.child(blocks)?;
        }
        Ok(true)
    }

    /// The index block that has the slot of the leaf.
    fn lowest(&self) -> &Step {
        self.node.as_ref().unwrap_or(&self.root)
    }
}

/// Searches an indexed directory for a name other than "." and ".."; `None` if there is no such entry.
pub(super) fn find(
    blocks: &mut dyn DirectoryBlocks,
    settings: &HashSettings,
    name: &[u8],
) -> Result<Option<FoundEntry>> {
    let mut path = Path::to(blocks, settings, name)?;
    loop {
        if let Some(place) = chain::find(blocks.block(path.leaf)?, name)? {
            return Ok(Some(FoundEntry { block: path.leaf, place }));
        }
        if !path.advance(blocks)? {
            return Ok(None);
        }
    }
}

/// Adds an entry to an indexed directory.
pub(super) fn insert(
    blocks: &mut dyn DirectoryBlocks,
    settings: &HashSettings,
    entry: &DirectoryEntry<'_>,
) -> Result<()> {
    let path = Path::to(blocks, settings, entry.name)?;
    if insert_in(blocks, path.leaf, entry)? {
        return Ok(());
    }
    if !path.lowest().is_full() {
        return split_leaf(blocks, &path, entry);
    }
    make_room(blocks, &path)?;
    let path = Path::to(blocks, settings, entry.name)?;
    split_leaf(blocks, &path, entry)
}

/// Makes a linear directory of one block, which has no room for `entry`, an indexed one, and adds the entry.
pub(super) fn convert(
    blocks: &mut dyn DirectoryBlocks,
    settings: &HashSettings,
    entry: &DirectoryEntry<'_>,
) -> Result<()> {
    let info = IndexInfo { version: settings.with_version(settings.version)?.version, has_nodes: false };
    let before = *blocks.block(0)?;
    let (own, parent) = dots(&before)?;
    let entries = live_entries(&before)?;
    let leaf = blocks.append()?;
    chain::fill(blocks.block_mut(leaf)?, entries.into_iter().skip(2));
    htree::make_root(blocks.block_mut(0)?, own.inode, parent.inode, info, leaf);
    let path = Path::to(blocks, settings, entry.name)?;
    split_leaf(blocks, &path, entry)
}

/// The entries of a block, in the order of their places.
fn live_entries(block: &Block) -> Result<Vec<DirectoryEntry<'_>>> {
    let mut entries = Vec::new();
    for record in chain::records(block) {
        let record = record?;
        if record.inode != 0 {
            entries.push(record.entry(block));
        }
    }
    Ok(entries)
}

/// Makes the leaf of `path` two, adds a slot for the second one, and adds `entry` to one of them. The index block above
/// the leaf has room for a slot.
fn split_leaf(blocks: &mut dyn DirectoryBlocks, path: &Path, entry: &DirectoryEntry<'_>) -> Result<()> {
    let before = *blocks.block(path.leaf)?;
    let mut entries: Vec<_> =
        live_entries(&before)?.into_iter().map(|entry| (path.settings.hash(entry.name), entry)).collect();
    // Stable: entries with equal hashes keep their order.
    entries.sort_by_key(|&(hash, _)| hash);
    if entries.len() < 2 {
        // Only the room is in small parts, which other programs may leave behind.
        let all = entries.into_iter().map(|(_, entry)| entry).chain([*entry]);
        chain::fill(blocks.block_mut(path.leaf)?, all);
        return Ok(());
    }
    let (lower, upper) = entries.split_at(middle(&entries));
    let (Some(&(last, _)), Some(&(first, _))) = (lower.last(), upper.first()) else {
        return Err(Error::corrupt("a leaf of a directory's index has less than two entries"));
    };
    let added = blocks.append()?;
    chain::fill(blocks.block_mut(added)?, upper.iter().map(|&(_, entry)| entry));
    chain::fill(blocks.block_mut(path.leaf)?, lower.iter().map(|&(_, entry)| entry));
    let continues = if first == last { CONTINUES } else { 0 };
    let step = path.lowest();
    htree::add_slot(blocks.block_mut(step.block)?, step.kind, step.slot, first | continues, added)?;
    let goal = if path.hash >= first { added } else { path.leaf };
    if insert_in(blocks, goal, entry)? {
        return Ok(());
    }
    Err(Error::corrupt("half a leaf of a directory's index has no room for an entry"))
}

/// The number of the entry that the upper half of a leaf begins with, at least 1: half of the bytes go to each side,
/// give or take half an entry, so that either side has room for another entry. There are two entries or more.
fn middle(entries: &[(u32, DirectoryEntry<'_>)]) -> usize {
    let mut size = 0;
    let upper = entries
        .iter()
        .rev()
        .take_while(|(_, entry)| {
            let needed = chain::needed(entry.name.len());
            let fits = size + needed / 2 <= BLOCK_SIZE / 2;
            size += needed;
            fits
        })
        .count();
    // All of them are less than half a block if its room is in small parts.
    if upper < entries.len() { entries.len() - upper } else { entries.len() / 2 }
}

/// Makes room for a slot in the index block above the leaf of `path`, which is full.
fn make_room(blocks: &mut dyn DirectoryBlocks, path: &Path) -> Result<()> {
    let Some(node) = &path.node else {
        let slots = htree::slots(blocks.block(0)?, IndexKind::Root)?;
        let added = blocks.append()?;
        htree::make_node(blocks.block_mut(added)?, &slots);
        htree::raise_root(blocks.block_mut(0)?, added);
        return Ok(());
    };
    if path.root.is_full() {
        return Err(Error::unsupported("a directory has too many entries for an index of two levels")
            .remedy("spread the entries over several directories"));
    }
    let slots = htree::slots(blocks.block(node.block)?, IndexKind::Node)?;
    let (lower, upper) = slots.split_at(slots.len() / 2);
    let first = upper.first().map_or(0, |&(hash, _)| hash);
    let added = blocks.append()?;
    htree::make_node(blocks.block_mut(added)?, upper);
    htree::set_slots(blocks.block_mut(node.block)?, IndexKind::Node, lower);
    htree::add_slot(blocks.block_mut(0)?, IndexKind::Root, path.root.slot, first, added)
}
