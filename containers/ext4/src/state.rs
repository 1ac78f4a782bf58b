//! The file system that is being changed: its superblock, descriptors, inodes and blocks, without names.

use crate::BLOCK_SIZE;
use crate::allocation::Allocator;
use crate::extents::{self, BlockSearch, Extent, ExtentMap, MAX_EXTENT};
use crate::features::EXT_ATTR;
use crate::geometry::Geometry;
use crate::inode::{Inode, USES_EXTENTS};
use crate::superblock::{self, Superblock};
use crate::xattr::{self, ExtendedAttribute};
use headstart_block::{Error, Result, exact, to_usize};
use headstart_file_blocks::{ChangedBlocks, blocks_for};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of an inode.
pub(crate) const INODE_SIZE: usize = superblock::INODE_SIZE as usize;
/// Sectors of 512 bytes in a block, the unit of an inode's count of blocks.
const SECTORS: u64 = BLOCK_SIZE as u64 / 512;

/// The parts of a file system that operations on inodes share.
pub(crate) struct State {
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) blocks: ChangedBlocks,
    pub(crate) allocator: Allocator,
}

impl State {
    /// Reads an inode.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if there is no such inode or it is damaged; errors of the parent.
    pub(crate) fn inode(&mut self, number: u32) -> Result<Inode> {
        let (block, at) = self.place_of_inode(number)?;
        self.blocks
            .with(block, |content| {
                Inode::decode(content[at..at + INODE_SIZE].first_chunk().ok_or_else(no_inode)?)
            })
            .map_err(|error| error.about(format!("inode {number}")))
    }

    /// Stores an inode.
    ///
    /// # Errors
    /// Errors of the parent.
    pub(crate) fn put_inode(&mut self, number: u32, inode: &Inode) -> Result<()> {
        let encoded = inode.encode();
        self.put_inode_bytes(number, &encoded)
    }

    /// Makes an inode free: all its bytes become zeros, whatever they were, so that equal file systems have equal
    /// bytes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it is free already; errors of the parent.
    pub(crate) fn clear_inode(&mut self, number: u32, directory: bool) -> Result<()> {
        self.put_inode_bytes(number, &[0; INODE_SIZE])?;
        self.allocator.free_inode(&mut self.blocks, number, directory)
    }

    fn put_inode_bytes(&mut self, number: u32, bytes: &[u8; INODE_SIZE]) -> Result<()> {
        let (block, at) = self.place_of_inode(number)?;
        self.blocks.get_mut(block)?[at..at + INODE_SIZE].copy_from_slice(bytes);
        Ok(())
    }

    /// The block of a table that has an inode, and the inode's offset in it.
    fn place_of_inode(&self, number: u32) -> Result<(u64, usize)> {
        let (group, index) = self.geometry.group_of_inode(number)?;
        let table = self.allocator.groups().get(group as usize).ok_or_else(no_inode)?.inode_table;
        let offset = to_usize(u64::from(index)) * INODE_SIZE;
        Ok((table + (offset / BLOCK_SIZE) as u64, offset % BLOCK_SIZE))
    }

    /// Returns the extents of a file or directory, and the blocks of their tree.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the tree is damaged; errors of the parent.
    pub(crate) fn extents(&mut self, inode: &Inode) -> Result<ExtentMap> {
        let end = self.geometry.blocks();
        let blocks = &mut self.blocks;
        extents::of_inode(inode, end, &mut |number| blocks.with(number, |content| Ok(Box::new(*content))))
    }

    /// Returns the block of the disk that has block `logical` of a file or directory; `None` in a hole, and for blocks
    /// that are not written. Only the parts of the tree that lead there are read.
    ///
    /// # Errors
    /// As [`State::extents`].
    pub(crate) fn block_of(&mut self, inode: &Inode, logical: u32) -> Result<Option<u64>> {
        let mut search = BlockSearch::new(inode, logical, self.geometry.blocks())?;
        while let Some(number) = search.wanted() {
            self.blocks.with(number, |content| search.go_on(content))?;
        }
        Ok(search.found())
    }

    /// `true` if all of a file's content is where the parent has it: nothing of it was written by this layer.
    ///
    /// # Errors
    /// As [`State::extents`].
    pub(crate) fn has_content_of_parent(&mut self, inode: &Inode) -> Result<bool> {
        let map = self.extents(inode)?;
        Ok(map.extents.iter().all(|extent| self.allocator.is_of_parent(&extent.run())))
    }

    /// Gives an inode other extents, whose blocks are taken already. The new tree takes the blocks of the one before,
    /// `old_tree`, first; those that are left become free.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file system is full; errors of the parent.
    pub(crate) fn set_extents(
        &mut self,
        inode: &mut Inode,
        extents: &[Extent],
        old_tree: &[u64],
    ) -> Result<()> {
        let (allocator, blocks) = (&mut self.allocator, &mut self.blocks);
        let mut old = old_tree.iter();
        let built = extents::build(extents, &mut || match old.next() {
            Some(&number) => Ok(number),
            None => allocator.take_metadata_block(blocks),
        })?;
        self.free_blocks(old.as_slice())?;
        let content: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
        let acl = u64::from(inode.file_acl != 0);
        inode.blocks = (content + built.blocks.len() as u64 + acl) * SECTORS;
        inode.block = built.i_block;
        inode.flags |= USES_EXTENTS;
        for (number, content) in built.blocks {
            *self.blocks.fresh(number)? = *content;
        }
        Ok(())
    }

    /// Frees everything that an inode has: content, tree of extents and block of attributes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it has blocks that are free; errors of the parent.
    pub(crate) fn free_content(&mut self, inode: &mut Inode) -> Result<()> {
        if inode.has_blocks() {
            let map = self.extents(inode)?;
            for extent in &map.extents {
                self.allocator.free_run(extent.run())?;
            }
            self.free_blocks(&map.tree_blocks)?;
        }
        self.free_attribute_block(inode)
    }

    /// Frees single blocks of metadata.
    pub(crate) fn free_blocks(&mut self, numbers: &[u64]) -> Result<()> {
        for &number in numbers {
            self.allocator.free_run(number..number + 1)?;
            self.blocks.forget(number);
        }
        Ok(())
    }

    /// Returns the extended attributes of an inode, sorted by name.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if they are damaged; errors of the parent.
    pub(crate) fn attributes(&mut self, inode: &Inode) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut found = xattr::decode_in_inode(&inode.in_inode)?;
        if inode.file_acl != 0 {
            found.extend(self.blocks.with(inode.file_acl, xattr::decode_block)?);
        }
        Ok(found.into_iter().map(|attribute| (attribute.name, attribute.value)).collect())
    }

    /// Gives an inode these extended attributes instead of those that it has.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if they take more room than an inode and a block have.
    pub(crate) fn set_attributes(
        &mut self,
        inode: &mut Inode,
        attributes: &[ExtendedAttribute],
    ) -> Result<()> {
        self.free_attribute_block(inode)?;
        let encoded = xattr::encode(attributes, inode.attribute_space())?;
        inode.in_inode = encoded.in_inode;
        if let Some(content) = encoded.block {
            let number = self.allocator.take_metadata_block(&mut self.blocks)?;
            *self.blocks.fresh(number)? = *content;
            inode.file_acl = number;
            inode.blocks += SECTORS;
        }
        if !attributes.is_empty() {
            // The kernel does so at the first attribute, too.
            self.superblock.features = self.superblock.features.with(EXT_ATTR);
        }
        Ok(())
    }

    /// Takes the block of attributes away from an inode. Other inodes may have the same block: a count in it says so.
    fn free_attribute_block(&mut self, inode: &mut Inode) -> Result<()> {
        let number = std::mem::take(&mut inode.file_acl);
        if number == 0 {
            return Ok(());
        }
        inode.blocks = inode.blocks.saturating_sub(SECTORS);
        if number >= self.geometry.blocks() {
            return Err(Error::corrupt(format!("block {number} of extended attributes is not on the disk")));
        }
        let users = self.blocks.with(number, xattr::users)?;
        if users > 1 {
            xattr::set_users(self.blocks.get_mut(number)?, users - 1);
            return Ok(());
        }
        self.free_blocks(&[number])
    }

    /// Takes a new inode, which has nothing yet.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there is none left.
    pub(crate) fn take_inode(&mut self, directory: bool) -> Result<u32> {
        self.allocator.take_inode(&mut self.blocks, directory)
    }

    /// Number of blocks of a directory.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if its size is not that of whole blocks, or more than 32 bits count.
    pub(crate) fn directory_blocks(inode: &Inode) -> Result<u32> {
        if !inode.size.is_multiple_of(BLOCK_SIZE as u64) {
            return Err(Error::corrupt(format!("a directory has {} bytes, not whole blocks", inode.size)));
        }
        u32::try_from(blocks_for(inode.size)).map_err(|_| Error::corrupt("a directory of more than 16 TiB"))
    }
}

fn no_inode() -> Error {
    Error::corrupt("an inode lies outside the tables of inodes")
}

/// Number of the root directory's inode.
pub(crate) const ROOT: u32 = 2;

/// Appends blocks of the disk, which become those of the file from `logical` on, to its extents: joined to the last one
/// where that goes on.
pub(crate) fn append_run(extents: &mut Vec<Extent>, logical: u32, run: Range<u64>) {
    let (mut logical, mut start) = (logical, run.start);
    while start < run.end {
        let room = match extents.last() {
            Some(last) if !last.unwritten && last.run().end == start && last.end() == u64::from(logical) => {
                MAX_EXTENT - last.len
            }
            _ => 0,
        };
        if room == 0 {
            extents.push(Extent { logical, start, len: 0, unwritten: false });
        }
        let room = if room == 0 { MAX_EXTENT } else { room };
        let more = exact::<u16>((run.end - start).min(u64::from(room)), "at most MAX_EXTENT");
        if let Some(last) = extents.last_mut() {
            last.len += more;
        }
        logical += u32::from(more);
        start += u64::from(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::support::blank;
    use headstart_file_blocks::FileKind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn appended_runs_are_a_list_of_blocks(
            runs in proptest::collection::vec((0_u64..3, 1_u64..50_000), 1..12),
        ) {
            let (mut extents, mut model, mut logical, mut next) = (Vec::new(), Vec::new(), 0, 100);
            for (gap, len) in runs {
                next += gap;
                append_run(&mut extents, logical, next..next + len);
                model.extend(next..next + len);
                next += len;
                logical += u32::try_from(len).unwrap();
            }
            let found: Vec<_> = extents.iter().flat_map(Extent::run).collect();
            prop_assert!(found == model);
            let mut end = 0;
            for extent in &extents {
                prop_assert!((1..=MAX_EXTENT).contains(&extent.len) && u64::from(extent.logical) == end);
                end = extent.end();
            }
            // Extents that go on where the one before ends are there only if that one is as long as possible.
            let joined = extents.windows(2).all(|pair| pair[0].run().end != pair[1].start || pair[0].len == MAX_EXTENT);
            prop_assert!(joined);
        }
    }

    #[test]
    fn a_hole_or_unwritten_blocks_are_not_joined() {
        let mut extents = Vec::new();
        append_run(&mut extents, 0, 10..12);
        append_run(&mut extents, 3, 12..13);
        extents.push(Extent { logical: 4, start: 13, len: 1, unwritten: true });
        append_run(&mut extents, 5, 14..15);
        assert_eq!(extents.iter().map(|extent| extent.len).collect::<Vec<_>>(), [2, 1, 1, 1]);
    }

    #[test]
    fn a_new_tree_takes_the_blocks_of_the_old_one_first() {
        let mut state = blank(64 << 20).state;
        let extents: Vec<_> = (0..1500_u32)
            .map(|n| Extent { logical: 2 * n, start: 5000 + 2 * u64::from(n), len: 1, unwritten: false })
            .collect();
        let mut inode = Inode::new(FileKind::Regular, 32);
        state.set_extents(&mut inode, &extents[..1400], &[]).unwrap();
        let before = state.extents(&inode).unwrap();
        assert_eq!((before.tree_blocks.len(), inode.blocks), (6, (1400 + 6) * SECTORS));
        state.set_extents(&mut inode, &extents, &before.tree_blocks).unwrap();
        let after = state.extents(&inode).unwrap();
        assert_eq!((&after.extents, after.tree_blocks.len()), (&extents, 6));
        assert!(after.tree_blocks.iter().all(|block| before.tree_blocks.contains(block)));
        state.set_extents(&mut inode, &extents[..3], &after.tree_blocks).unwrap();
        assert_eq!(state.extents(&inode).unwrap().tree_blocks, [0; 0]);
        assert_eq!(inode.blocks, 3 * SECTORS);
    }

    #[test]
    fn a_block_of_attributes_goes_with_its_last_user() {
        let mut state = blank(8 << 20).state;
        state.superblock.features = Features::default();
        let long = [ExtendedAttribute { name: b"user.long".to_vec(), value: vec![1; 2000] }];
        let mut inode = Inode::new(FileKind::Regular, 32);
        state.set_attributes(&mut inode, &long).unwrap();
        assert!(state.superblock.features.has(EXT_ATTR));
        let block = inode.file_acl;
        assert_eq!(state.attributes(&inode).unwrap()[&b"user.long"[..]], vec![1; 2000]);
        xattr::set_users(state.blocks.get_mut(block).unwrap(), 2);
        let mut other = inode.clone();
        state.set_attributes(&mut other, &[]).unwrap();
        assert_eq!((other.file_acl, other.blocks), (0, 0));
        assert_eq!(xattr::users(state.blocks.get(block).unwrap()).unwrap(), 1);
        state.free_content(&mut inode).unwrap();
        assert_eq!((inode.file_acl, inode.blocks), (0, 0));
        inode.file_acl = 1 << 40;
        assert!(state.free_content(&mut inode).is_err());
    }

    #[test]
    fn inodes_that_do_not_exist_are_errors() {
        let mut state = blank(8 << 20).state;
        let last = state.superblock.inodes_count;
        assert!(state.inode(last).is_ok());
        for number in [0, last + 1, u32::MAX] {
            assert!(state.inode(number).is_err());
        }
        assert!(state.clear_inode(last, false).is_err(), "it is free");
        let mut inode = Inode::new(FileKind::Directory, 32);
        inode.size = 5000;
        assert!(State::directory_blocks(&inode).is_err());
        inode.size = 1 << 44;
        assert!(State::directory_blocks(&inode).is_err());
    }
}
