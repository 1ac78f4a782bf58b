//! The places of a file's blocks: extents in a tree, and the lists of block numbers of ext2 and ext3.
//!
//! # Trees of extents
//! Each node has a header of 12 bytes and then records of 12 bytes, little-endian. The root is in the 60 bytes of the
//! inode and has room for 4 records; the other nodes are blocks with room for 340.
//!
//! | header: byte | size | field |
//! |---|---|---|
//! | 0 | 2 | 0xF30A |
//! | 2, 4 | 2 | number of records; records that there is room for |
//! | 6 | 2 | depth: 0 in a leaf, at most 5 in the root |
//! | 8 | 4 | generation, not used |
//!
//! | leaf: byte | size | field |
//! |---|---|---|
//! | 0 | 4 | first block of the file |
//! | 4 | 2 | number of blocks: 1 to 32,768; above, 32,768 more than there are, which read as zeros |
//! | 6, 8 | 2, 4 | first block of the disk, high and low |
//!
//! | index: byte | size | field |
//! |---|---|---|
//! | 0 | 4 | first block of the file below this node |
//! | 4, 8 | 4, 2 | block with the node below, low and high |
//! | 10 | 2 | not used |
//!
//! # Lists
//! 15 block numbers of 4 bytes: 12 of the first blocks of the file, then a block with 1024 more numbers, one with the
//! numbers of 1024 such blocks, and one with another level. 0 stands for a hole. Files keep this form until they get
//! other content.
//!
//! The place of one block is found without the others (`search`).

mod search;

pub(crate) use search::BlockSearch;

use crate::inode::{Inode, PLACES, USES_EXTENTS};
use crate::little_endian::{put_u16, put_u32, u16_at, u32_at};
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, Result, exact};
use std::collections::BTreeSet;
use std::ops::Range;

/// Number that a node begins with.
const MAGIC: u16 = 0xf30a;
/// Bytes of a header, and of a record.
const RECORD: usize = 12;
/// Records in the root.
const IN_ROOT: usize = (PLACES - RECORD) / RECORD;
/// Records in a block.
const IN_BLOCK: usize = (BLOCK_SIZE - RECORD) / RECORD;
/// The deepest root.
const MAX_DEPTH: u16 = 5;
/// The most blocks of an extent; above, the stored number means blocks that are not written.
pub(crate) const MAX_EXTENT: u16 = 32_768;
/// Numbers in a block of a list.
const IN_LIST: u32 = 1024;
/// Block numbers in an inode that are those of content.
const DIRECT: usize = 12;

/// Consecutive blocks of a file that are consecutive on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block of the file.
    pub(crate) logical: u32,
    /// First block of the disk, less than 2^48.
    pub(crate) start: u64,
    /// Number of blocks: 1 to 32,768, or to 32,767 if they are not written.
    pub(crate) len: u16,
    /// `true` if the blocks read as zeros, whatever they hold.
    pub(crate) unwritten: bool,
}

impl Extent {
    /// One past the last block of the file.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.len)
    }

    /// The blocks of the disk.
    pub(crate) fn run(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.len)
    }
}

/// The places of all blocks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtentMap {
    /// The extents, in order of the file's blocks. Blocks in none of them are holes.
    pub(crate) extents: Vec<Extent>,
    /// The blocks that hold the tree or the lists, without the inode, each one once.
    pub(crate) tree_blocks: Vec<u64>,
}

/// A reader of blocks, given by their numbers.
pub(crate) type ReadBlock<'a> = &'a mut dyn FnMut(u64) -> Result<Box<Block>>;

/// Returns the places of the blocks of an inode, on a disk of `end` blocks; none for files without blocks.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if they are outside the disk or contradict each other; errors of `read`.
pub(crate) fn of_inode(inode: &Inode, end: u64, read: ReadBlock<'_>) -> Result<ExtentMap> {
    if !inode.has_blocks() {
        Ok(ExtentMap::default())
    } else if inode.flags & USES_EXTENTS != 0 {
        of_tree(&inode.block, end, read)
    } else {
        of_lists(&inode.block, end, read)
    }
}

/// Returns the places of blocks in a tree of extents whose root is `root`.
fn of_tree(root: &[u8; PLACES], end: u64, read: ReadBlock<'_>) -> Result<ExtentMap> {
    let mut tree = Tree { map: ExtentMap::default(), disk_end: end, file_end: 0, read };
    let depth = u16_at(root, 6);
    if depth > MAX_DEPTH {
        return Err(damaged(&format!("is {depth} deep")));
    }
    tree.add_node(root, depth, 0..1 << 32)?;
    Ok(tree.map)
}

/// A tree that is being read.
///
/// It cannot go round in circles: the depth goes down by one at each step, every node below the root has a record, and
/// blocks of the file only go up. So no more is read than there is.
struct Tree<'a> {
    map: ExtentMap,
    disk_end: u64,
    /// One past the last block of the file in the extents so far.
    file_end: u64,
    read: ReadBlock<'a>,
}

impl Tree<'_> {
    /// Adds the extents below a node that has the file's blocks `range`.
    fn add_node(&mut self, node: &[u8], depth: u16, range: Range<u64>) -> Result<()> {
        let records = records_of(node, depth)?.iter();
        if depth == 0 {
            return records.map(extent_of).try_for_each(|extent| self.add_extent(extent, &range));
        }
        let children: Vec<_> = records.map(child_of).collect();
        for (at, &(first, block)) in children.iter().enumerate() {
            let end = children.get(at + 1).map_or(range.end, |(next, _)| u64::from(*next));
            if u64::from(first) < range.start || end > range.end || u64::from(first) >= end {
                return Err(damaged("has nodes out of order"));
            }
            check_child(block, self.disk_end)?;
            let child = (self.read)(block)?;
            self.map.tree_blocks.push(block);
            self.add_node(&*child, depth - 1, u64::from(first)..end)?;
        }
        Ok(())
    }

    fn add_extent(&mut self, extent: Extent, range: &Range<u64>) -> Result<()> {
        check_extent(&extent, self.disk_end)?;
        if u64::from(extent.logical) < self.file_end.max(range.start) || extent.end() > range.end {
            return Err(damaged(&format!("has block {} of the file out of order or twice", extent.logical)));
        }
        self.file_end = extent.end();
        self.map.extents.push(extent);
        Ok(())
    }
}

/// The records of a node of a tree.
fn records_of(node: &[u8], depth: u16) -> Result<&[[u8; RECORD]]> {
    let is_root = node.len() == PLACES;
    let (count, room) = (usize::from(u16_at(node, 2)), usize::from(u16_at(node, 4)));
    if u16_at(node, 0) != MAGIC || u16_at(node, 6) != depth {
        return Err(damaged("has a node of another kind or depth"));
    }
    let most = if is_root { IN_ROOT } else { IN_BLOCK };
    let may_be_empty = is_root && depth == 0;
    if count > room || room > most || (count == 0 && !may_be_empty) {
        return Err(damaged(&format!("has a node with {count} of {room} records")));
    }
    Ok(&node[RECORD..].as_chunks().0[..count])
}

/// Checks that a node below another one is on the disk.
fn check_child(block: u64, disk_end: u64) -> Result<()> {
    if block == 0 || block >= disk_end {
        return Err(damaged(&format!("has a node at block {block}, outside the disk")));
    }
    Ok(())
}

/// Checks that an extent has blocks, all of them on the disk.
fn check_extent(extent: &Extent, disk_end: u64) -> Result<()> {
    let is_on_disk = extent.start != 0 && extent.run().end <= disk_end;
    if extent.len == 0 || !is_on_disk {
        return Err(damaged(&format!(
            "has {} blocks at block {}, outside the disk",
            extent.len, extent.start
        )));
    }
    Ok(())
}

fn extent_of(record: &[u8; RECORD]) -> Extent {
    let stored = u16_at(record, 4);
    let unwritten = stored > MAX_EXTENT;
    Extent {
        logical: u32_at(record, 0),
        start: u64::from(u32_at(record, 8)) | u64::from(u16_at(record, 6)) << 32,
        len: if unwritten { stored - MAX_EXTENT } else { stored },
        unwritten,
    }
}

/// The first block of the file below an index record, and the block of the node.
fn child_of(record: &[u8; RECORD]) -> (u32, u64) {
    (u32_at(record, 0), u64::from(u32_at(record, 4)) | u64::from(u16_at(record, 8)) << 32)
}

fn damaged(what: &str) -> Error {
    Error::corrupt(format!("a file's tree of extents {what}"))
}

/// Returns the places of blocks in the lists whose beginning is `places`.
fn of_lists(places: &[u8; PLACES], end: u64, read: ReadBlock<'_>) -> Result<ExtentMap> {
    let mut lists = Lists { map: ExtentMap::default(), seen: BTreeSet::new(), disk_end: end, next: 0, read };
    for at in 0..DIRECT {
        lists.add(u32_at(places, 4 * at), 0)?;
    }
    for depth in 1..=3 {
        lists.add(u32_at(places, 4 * (DIRECT + depth - 1)), exact(depth, "at most 3"))?;
    }
    Ok(lists.map)
}

/// Checks that a block of a list is on the disk.
fn check_listed(block: u32, disk_end: u64) -> Result<()> {
    if u64::from(block) >= disk_end {
        return Err(Error::corrupt(format!("a file has block {block}, outside the disk")));
    }
    Ok(())
}

/// Lists that are being read.
struct Lists<'a> {
    map: ExtentMap,
    /// The blocks of lists so far: one that comes again would make the lists endless.
    seen: BTreeSet<u32>,
    disk_end: u64,
    /// The next block of the file, up to 12 + 1024 + 1024^2 + 1024^3.
    next: u32,
    read: ReadBlock<'a>,
}

impl Lists<'_> {
    /// Adds what is at a block: content, or a list with `depth` levels.
    fn add(&mut self, block: u32, depth: u32) -> Result<()> {
        if block == 0 {
            self.next += IN_LIST.pow(depth);
            return Ok(());
        }
        check_listed(block, self.disk_end)?;
        if depth == 0 {
            self.add_content(u64::from(block));
            return Ok(());
        }
        if !self.seen.insert(block) {
            return Err(Error::corrupt(format!("block {block} is in the lists of a file's blocks twice")));
        }
        self.map.tree_blocks.push(u64::from(block));
        let list = (self.read)(u64::from(block))?;
        list.chunks_exact(4).try_for_each(|number| self.add(u32_at(number, 0), depth - 1))
    }

    fn add_content(&mut self, block: u64) {
        match self.map.extents.last_mut() {
            Some(last)
                if last.start + u64::from(last.len) == block
                    && last.end() == u64::from(self.next)
                    && last.len < MAX_EXTENT =>
            {
                last.len += 1;
            }
            _ => self.map.extents.push(Extent { logical: self.next, start: block, len: 1, unwritten: false }),
        }
        self.next += 1;
    }
}

/// A tree of extents that was made.
#[derive(Debug)]
pub(crate) struct BuiltExtents {
    /// The root, for the inode.
    pub(crate) i_block: [u8; PLACES],
    /// The nodes below the root, with their places on the disk.
    pub(crate) blocks: Vec<(u64, Box<Block>)>,
}

/// Makes the tree of `extents`, which are in order of the file's blocks. Up to four are in the root; for more, the
/// leaves and then each level above are filled one after the other, each as far as possible. `take_block` gives a
/// free block for each node, in this order.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the extents are out of order, overlap, or are out of range; errors of
/// `take_block`.
pub(crate) fn build(extents: &[Extent], take_block: &mut dyn FnMut() -> Result<u64>) -> Result<BuiltExtents> {
    check(extents)?;
    let mut records: Vec<[u8; RECORD]> = extents.iter().map(record_of).collect();
    let (mut blocks, mut depth) = (Vec::new(), 0);
    while records.len() > IN_ROOT {
        let mut above = Vec::with_capacity(records.len().div_ceil(IN_BLOCK));
        for part in records.chunks(IN_BLOCK) {
            let (number, mut node) = (take_block()?, Box::new([0; BLOCK_SIZE]));
            fill_node(&mut *node, depth, part);
            above.push(index_record(&part[0], number)?);
            blocks.push((number, node));
        }
        (records, depth) = (above, depth + 1);
    }
    let mut i_block = [0; PLACES];
    fill_node(&mut i_block, depth, &records);
    Ok(BuiltExtents { i_block, blocks })
}

/// Checks that extents can be stored.
fn check(extents: &[Extent]) -> Result<()> {
    let mut end = 0;
    for extent in extents {
        let most = if extent.unwritten { MAX_EXTENT - 1 } else { MAX_EXTENT };
        if !(1..=most).contains(&extent.len) || extent.start >= 1 << 48 || extent.end() > u64::from(u32::MAX)
        {
            return Err(Error::invalid(format!("{extent:?} cannot be stored")));
        }
        if u64::from(extent.logical) < end {
            return Err(Error::invalid(format!("{extent:?} is out of order")));
        }
        end = extent.end();
    }
    Ok(())
}

fn record_of(extent: &Extent) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let start = extent.start.to_le_bytes();
    put_u32(&mut record, 0, extent.logical);
    put_u16(&mut record, 4, if extent.unwritten { MAX_EXTENT + extent.len } else { extent.len });
    record[6..8].copy_from_slice(&start[4..6]);
    record[8..12].copy_from_slice(&start[..4]);
    record
}

/// The record of a node that begins with the record `first` and is at a block of the disk.
fn index_record(first: &[u8; RECORD], block: u64) -> Result<[u8; RECORD]> {
    if block == 0 || block >= 1 << 48 {
        return Err(Error::invalid(format!("block {block} cannot hold a node of a tree of extents")));
    }
    let mut record = [0; RECORD];
    record[..4].copy_from_slice(&first[..4]);
    record[4..10].copy_from_slice(&block.to_le_bytes()[..6]);
    Ok(record)
}

fn fill_node(node: &mut [u8], depth: u16, records: &[[u8; RECORD]]) {
    let room = if node.len() == PLACES { IN_ROOT } else { IN_BLOCK };
    put_u16(node, 0, MAGIC);
    put_u16(node, 2, exact(records.len(), "a node has at most 340 records"));
    put_u16(node, 4, exact(room, "340 at most"));
    put_u16(node, 6, depth);
    for (place, record) in node[RECORD..].chunks_exact_mut(RECORD).zip(records) {
        place.copy_from_slice(record);
    }
}

#[cfg(test)]
mod tests;
