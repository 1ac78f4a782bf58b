//! The blob of a layer that is written ahead of its commit, in the directory of the writable disk that it is of.
//!
//! Compression, digest and hash tree are done as the bytes come, so that at the commit only the rest is left. The files
//! are of no use to another process than the one that writes them until the layer is complete, and are removed with it.
//! A finished layer is staged in a store by another name for its file, or by a copy to another file system.

use crate::manifest::{ImageLayer, Tree};
use crate::new_layer::{LayerOutput, Packing};
use crate::store::{Staging, Writeback};
use headstart_block::guarded::{GuardedDir, Like};
use headstart_block::{Digest, Error, Result, private};
use headstart_hash_tree::sums::{BlobSums, DigestWriter, HashingWriter};
use headstart_lsmt::LayerSummary;
use headstart_lsmt::writable::SEALED_AHEAD;
use serde::{Deserialize, Serialize};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// The output of a layer that is written ahead: it compresses and hashes the layer's bytes and writes them to a file.
pub type AheadOutput = LayerOutput<HashingWriter<Writeback>>;

/// The files of one layer that is written ahead. They are removed when this is dropped.
pub struct AheadFiles {
    dir: GuardedDir,
    /// The path of the directory.
    path: PathBuf,
    layer: String,
    tree: String,
}

impl Drop for AheadFiles {
    fn drop(&mut self) {
        // Best effort: what stays is removed when the disk is opened again.
        let _ = self.dir.remove_file(&self.layer);
        let _ = self.dir.remove_file(&self.tree);
    }
}

/// A finished layer in the directory of its disk, as its process tells others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedLayer {
    /// The name of the file with the blob.
    layer_file: String,
    /// The name of the file with the outboard of its hash tree.
    tree_file: String,
    digest: String,
    size: u64,
    tree_root: String,
    tree_digest: String,
    tree_size: u64,
    index_offset: u64,
    summary: LayerSummary,
}

impl AheadFiles {
    /// Makes the files of the layer `number` in the directory `dir`, and the output of the layer.
    ///
    /// # Errors
    /// Errors of making the file and of the packing.
    pub fn create(dir: &Path, number: u64, packing: &Packing) -> Result<(Self, AheadOutput)> {
        let failed = |e| Error::io("cannot make a file for a layer", e).about(dir.display());
        let layer = format!("{SEALED_AHEAD}{number}");
        let guarded = GuardedDir::open(dir).map_err(failed)?;
        let file = guarded.create_file(&layer, Like::own(private::FILE_MODE)).map_err(failed)?;
        let tree = format!("{layer}.tree");
        let path = dir.join(&layer);
        let files = Self { dir: guarded, path: dir.to_owned(), layer, tree };
        let output = HashingWriter::new(Writeback::new(file, path), dir);
        Ok((files, LayerOutput::new(output, packing)?))
    }

    /// Completes the blob of the layer, to which all of the layer was written. Both files are on the disk afterwards.
    ///
    /// # Errors
    /// Errors of writing the files.
    pub fn finish(&self, output: AheadOutput, summary: LayerSummary) -> Result<SealedLayer> {
        let failed = |e| Error::io("cannot write", e).about(self.path.join(&self.tree).display());
        let (hashed, index_offset) = output.finish(summary.index_offset())?;
        let tree = self.dir.create_file(&self.tree, Like::own(private::FILE_MODE)).map_err(failed)?;
        let mut tree = DigestWriter::new(BufWriter::with_capacity(1 << 20, tree));
        let (out, BlobSums { digest, len, root }) = hashed.finish(&mut tree)?;
        let (tree, tree_digest, tree_size) = tree.finish();
        let tree = tree.into_inner().map_err(|e| failed(e.into_error()))?;
        out.file().sync_data().and_then(|()| tree.sync_data()).map_err(failed)?;
        Ok(SealedLayer {
            layer_file: self.layer.clone(),
            tree_file: self.tree.clone(),
            digest: digest.to_string(),
            size: len,
            tree_root: root.to_string(),
            tree_digest: tree_digest.to_string(),
            tree_size,
            index_offset,
            summary,
        })
    }
}

impl SealedLayer {
    /// The digest of its blob.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if it has none.
    pub fn digest(&self) -> Result<Digest> {
        self.digest.parse()
    }

    /// Bytes of its blob.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Stages the blob and the hash tree, whose files are in the directory `dir`, and describes them as a layer of an
    /// image.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if these are no names of such files, or no digests; errors of the files.
    pub(crate) fn stage(&self, dir: &Path, staging: &Staging) -> Result<(ImageLayer, LayerSummary)> {
        let digest: Digest = self.digest.parse()?;
        let tree =
            Tree { root: self.tree_root.parse()?, digest: self.tree_digest.parse()?, size: self.tree_size };
        for (name, digest, len) in
            [(&self.layer_file, digest, self.size), (&self.tree_file, tree.digest, self.tree_size)]
        {
            if !name.starts_with(SEALED_AHEAD) || name.contains('/') {
                return Err(Error::invalid(format!("`{}` is no file of a layer", name.escape_debug())));
            }
            staging.adopt(&dir.join(name), &digest, len)?;
        }
        let layer = ImageLayer::new(digest, self.size, tree).with_index_offset(self.index_offset);
        Ok((layer, self.summary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::open_layer_source;
    use crate::store::ImageStore;
    use headstart_block::{BlockDevice, ErrorKind, FileSource};
    use headstart_hash_tree::TreeRoot;
    use headstart_lsmt::writable::{NewDisk, WritableDisk};
    use headstart_lsmt::{Layer, LayerMeta, Stack};
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use uuid::Uuid;

    const SIZE: usize = 4 << 20;

    /// A disk in `dir`, half of whose layer was sealed ahead, and that layer, completed.
    fn completed(dir: &Path, packing: &Packing) -> (Vec<u8>, AheadFiles, SealedLayer) {
        let new = NewDisk { size: SIZE as u64, parent: String::new(), uuid: Uuid::from_u128(3) };
        let disk = WritableDisk::create(dir, None, &new).unwrap();
        let mut model: Vec<u8> =
            (0..u32::try_from(SIZE).unwrap()).map(|n| (n.wrapping_mul(2_654_435_761) >> 27) as u8).collect();
        disk.write_at(&model, 0).unwrap();
        let (files, output) = AheadFiles::create(dir, 1, packing).unwrap();
        let mut ahead = disk.begin_layer(output, LayerMeta::default()).unwrap();
        let pass = disk.seal_ahead(&mut ahead, &disk.data_marks(), SIZE as u64 / 2).unwrap();
        assert_eq!((pass.appended_bytes, pass.left_bytes), (SIZE as u64 / 2, SIZE as u64 / 2));
        for (start, byte) in [(8192, 1), (SIZE - 65536, 2)] {
            model[start..start + 4096].fill(byte);
            disk.write_at(&[byte; 4096], start as u64).unwrap();
        }
        let commit = disk.begin_commit().unwrap();
        let share = commit.share_of(&disk, &ahead).unwrap();
        assert_eq!(
            (share.sealed_bytes, share.unsealed_bytes),
            (SIZE as u64 / 2 - 4096, SIZE as u64 / 2 + 4096)
        );
        let (output, summary) = commit.complete(&disk, ahead, LayerMeta::default()).unwrap();
        let sealed = files.finish(output, summary).unwrap();
        (model, files, sealed)
    }

    fn check(packing: &Packing, store_dir: &Path) {
        let dir = tempfile::tempdir().unwrap();
        let vm = dir.path().join("vm");
        let (model, files, sealed) = completed(&vm, packing);
        let is_same = fs::metadata(&vm).unwrap().dev() == fs::metadata(store_dir).unwrap().dev();
        let store = ImageStore::create_or_open(store_dir.join("store")).unwrap();
        let staging = store.stage().unwrap();
        let (layer, summary) = sealed.stage(&vm, &staging).unwrap();
        assert_eq!(summary, sealed.summary);
        assert_eq!(fs::metadata(vm.join(&sealed.layer_file)).unwrap().nlink(), if is_same { 2 } else { 1 });
        drop(files);
        let left: Vec<_> = fs::read_dir(&vm).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(SEALED_AHEAD)), "{left:?}");
        // The sums are those of the bytes in their final order.
        let path = staging.path().join(layer.blob.digest.hex());
        let bytes = fs::read(&path).unwrap();
        assert_eq!((Digest::of(&bytes), bytes.len() as u64), (layer.blob.digest, sealed.size()));
        let tree = layer.tree.unwrap();
        assert_eq!(tree.root, TreeRoot::of(&bytes));
        assert_eq!(Digest::of(&fs::read(staging.path().join(tree.digest.hex())).unwrap()), tree.digest);
        let source = open_layer_source(Arc::new(FileSource::open(&path).unwrap())).unwrap();
        let disk = Stack::new(vec![Layer::open(source.source).unwrap()]).unwrap();
        let mut found = vec![0xee; SIZE];
        disk.read_at(&mut found, 0).unwrap();
        assert!(found == model && disk.size() == SIZE as u64);
    }

    #[test]
    fn a_layer_sealed_ahead_is_staged_by_a_name_or_a_copy() {
        let here = tempfile::tempdir().unwrap();
        check(&Packing::default(), here.path());
        check(&Packing::Plain, here.path());
        if let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") {
            check(&Packing::default(), elsewhere.path());
        }
    }

    #[test]
    fn files_that_are_no_layers_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let vm = dir.path().join("vm");
        let (_, _files, sealed) = completed(&vm, &Packing::default());
        let staging = ImageStore::create_or_open(dir.path().join("store")).unwrap().stage().unwrap();
        let refused = |change: &dyn Fn(&mut SealedLayer)| {
            let mut other = sealed.clone();
            change(&mut other);
            other.stage(&vm, &staging).unwrap_err().kind()
        };
        assert_eq!(refused(&|it| it.layer_file = "data".to_owned()), ErrorKind::Invalid);
        assert_eq!(refused(&|it| it.layer_file = format!("{SEALED_AHEAD}/../data")), ErrorKind::Invalid);
        assert_eq!(refused(&|it| it.layer_file = format!("{SEALED_AHEAD}2")), ErrorKind::NotFound);
        assert_eq!(refused(&|it| it.size += 1), ErrorKind::Corrupt);
        assert_eq!(refused(&|it| it.digest = "sha256:1".to_owned()), ErrorKind::Invalid);
    }

    /// One disk's layer is of no use to another, whose places name other content.
    #[test]
    fn the_layer_of_another_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let new = NewDisk { size: SIZE as u64, parent: String::new(), uuid: Uuid::from_u128(3) };
            WritableDisk::create(dir.path().join(name), None, &new).unwrap()
        };
        let (one, other) = (make("one"), make("other"));
        let mut ahead = one.begin_layer(Vec::new(), LayerMeta::default()).unwrap();
        let marks = other.data_marks();
        assert_eq!(other.seal_ahead(&mut ahead, &marks, 4096).unwrap_err().kind(), ErrorKind::Invalid);
        let commit = other.begin_commit().unwrap();
        assert_eq!(commit.share_of(&other, &ahead).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(commit.complete(&other, ahead, LayerMeta::default()).is_err());
    }
}
