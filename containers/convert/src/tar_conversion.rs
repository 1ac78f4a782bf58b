//! The file system of a layer: that of the parent, changed by the entries of a tar.

use crate::apply::{Applier, LayerCounts};
use crate::content::EntryContent;
use crate::erofs_tree::ErofsTree;
use crate::estargz::{is_of_estargz, start_of};
use crate::ext4_tree::Ext4Tree;
use crate::extent_count::ExtentCount;
use crate::file_tree::FileTree;
use crate::layer_stream::TarStream;
use crate::options::{ConvertMode, ConvertOptions, EROFS_UUID, FILE_SYSTEM_UUID, HASH_SEED, layer_uuid};
use crate::parent_disk::ParentDisk;
use headstart_block::{Digest, Error, FileSystemKind, ReadAt, Result};
use headstart_erofs::{ErofsAttributes, ErofsFileSystem, ErofsSummary, NewErofs};
use headstart_ext4::{FileSystem, FileSystemSummary, InodeAttributes, InodeTime, NewFileSystem};
use headstart_file_blocks::BlockSink;
use headstart_lsmt::LayerMeta;
use headstart_tar::TarReader;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The place of a layer in its image.
#[derive(Clone)]
pub struct LayerPlace {
    /// The chain id of the layer.
    pub chain: Digest,
    /// The chain id of the layer below; `None` for the first layer.
    pub parent_chain: Option<Digest>,
    /// The disk of all layers below; `None` for the first layer.
    pub parent: Option<ParentDisk>,
}

/// A conversion of one tar.
pub(crate) struct TarConversion<'a> {
    pub(crate) place: &'a LayerPlace,
    pub(crate) options: &'a ConvertOptions,
    /// The digest that the compressed bytes must have.
    pub(crate) digest: Digest,
    /// The digest that the tar must have.
    pub(crate) diff_id: Digest,
}

/// The counts of a file system after a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenFileSystem {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Blocks of 4 KiB that are free.
    pub free_blocks: u64,
    /// Blocks of metadata that the layer has, because they differ from the parent's.
    pub metadata_blocks: u64,
}

impl From<FileSystemSummary> for WrittenFileSystem {
    fn from(of: FileSystemSummary) -> Self {
        let FileSystemSummary { size, free_blocks, metadata_blocks, .. } = of;
        Self { size, free_blocks, metadata_blocks }
    }
}

impl From<ErofsSummary> for WrittenFileSystem {
    fn from(of: ErofsSummary) -> Self {
        let ErofsSummary { size, free_blocks, metadata_blocks } = of;
        Self { size, free_blocks, metadata_blocks }
    }
}

/// A file system that was written.
pub(crate) struct WrittenTree {
    pub(crate) entries: LayerCounts,
    pub(crate) file_system: WrittenFileSystem,
    pub(crate) tar_bytes: u64,
}

impl TarConversion<'_> {
    /// The fields of the layer's header.
    pub(crate) fn meta(&self) -> LayerMeta {
        let LayerPlace { chain, parent_chain, parent } = self.place;
        LayerMeta {
            virtual_size: parent.as_ref().map_or(self.options.size, |parent| parent.disk().len()),
            uuid: layer_uuid(Some(chain)),
            parent_uuid: layer_uuid(parent_chain.as_ref()),
            ..LayerMeta::default()
        }
    }

    /// The count of the layer's extents, beside those of the layers below.
    pub(crate) fn extents(&self) -> ExtentCount {
        let below = self.place.parent.as_ref().map_or(0, ParentDisk::extents);
        ExtentCount::new(below, self.options.limits.extents)
    }

    /// Reads all of a tar, writes the blocks that it changes to `blocks`, and checks the digests.
    pub(crate) fn write<S: BlockSink>(&self, tar: &mut dyn TarStream, blocks: S) -> Result<(S, WrittenTree)> {
        let (parent, size) =
            (self.place.parent.as_ref().map(|parent| Arc::clone(parent.disk())), self.options.size);
        // All layers of a mode get the same blocks, whatever their form: those above must not depend on it.
        let has_tars = self.options.mode == ConvertMode::Turbo;
        match self.options.file_system {
            FileSystemKind::Ext4 => {
                let fs = match parent {
                    Some(parent) => FileSystem::open(parent, blocks)?,
                    None => empty_file_system(size).make(blocks)?,
                };
                let mut tree = Ext4Tree::new(fs);
                tree = if has_tars { tree.over_tars() } else { tree };
                let (entries, tar_bytes) = self.apply_all(&mut tree, tar)?;
                let (blocks, done) = tree.into_inner().finish()?;
                Ok((blocks, WrittenTree { entries, file_system: done.into(), tar_bytes }))
            }
            FileSystemKind::Erofs => {
                let fs = match parent {
                    Some(parent) => ErofsFileSystem::open(parent, blocks)?,
                    None => empty_erofs(size).make(blocks)?,
                };
                let mut tree = ErofsTree::new(fs);
                tree = if has_tars { tree.over_tars() } else { tree };
                let (entries, tar_bytes) = self.apply_all(&mut tree, tar)?;
                let (blocks, done) = tree.into_inner().finish()?;
                Ok((blocks, WrittenTree { entries, file_system: done.into(), tar_bytes }))
            }
        }
    }

    /// Applies all of a tar to a tree, and checks the digests. Returns the counts of entries, and the tar's length.
    fn apply_all<T: FileTree>(&self, tree: &mut T, tar: &mut dyn TarStream) -> Result<(LayerCounts, u64)> {
        let entries = self.apply(tree, tar)?;
        let sums = tar.sums()?;
        check_digest("it", &self.digest, &sums.digest)?;
        check_digest("its tar", &self.diff_id, &sums.diff_id)?;
        Ok((entries, sums.tar_bytes))
    }

    /// Applies all entries of a tar that are the image's, and reads it to its end.
    fn apply<T: FileTree>(&self, tree: &mut T, tar: &mut dyn TarStream) -> Result<LayerCounts> {
        let limits = &self.options.limits;
        let mut reader = TarReader::new(tar, limits.tar.clone());
        let mut applier = Applier::new(tree, limits.apply);
        if self.options.alone {
            applier = applier.keeping_whiteouts();
        }
        while let Some(entry) = reader.next_entry()? {
            let start = start_of(&entry, &mut reader)?;
            if !is_of_estargz(&entry, &start) {
                applier.apply(&entry, &mut EntryContent::after(&start, &entry, &mut reader))?;
            }
        }
        reader.finish()?;
        applier.finish()
    }
}

fn check_digest(thing: &str, expected: &Digest, found: &Digest) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let cause = format!("{thing} should have the digest {expected}, but has {found}");
    Err(Error::corrupt(cause).remedy("fetch it again; if that does not help, its image is damaged"))
}

/// An empty ext4 of `size` bytes: a root directory as containers' images begin with it.
#[must_use]
pub fn empty_file_system(size: u64) -> NewFileSystem {
    let root =
        InodeAttributes { mode: 0o755, uid: 0, gid: 0, mtime: InodeTime::default(), xattrs: BTreeMap::new() };
    NewFileSystem { size, uuid: FILE_SYSTEM_UUID, hash_seed: HASH_SEED, root }
}

/// An empty EROFS of `size` bytes, with the same root directory.
fn empty_erofs(size: u64) -> NewErofs {
    NewErofs { size, uuid: EROFS_UUID, root: ErofsAttributes { mode: 0o755, ..ErofsAttributes::default() } }
}
