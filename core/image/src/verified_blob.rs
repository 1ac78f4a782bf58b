//! A blob that is checked against its hash tree as it is read.
//!
//! Every 16 KiB group is checked when it is first read, and recorded in a bitmap (a bit for each group: 8 KiB for a
//! gigabyte), so that reading it again costs only a look at the bitmap. The check comes directly after reading the
//! stored file, before any wrapper is removed, so nothing unverified reaches a parser, a codec or a guest.

use headstart_block::{ByteRange, Error, ErrorKind, FileSource, ReadAt, Result, copy_source};
use headstart_hash_tree::sums::HashingWriter;
use headstart_hash_tree::{GROUP_SIZE, HashTree, TreeRoot};
use std::io::{self, IoSliceMut};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A blob whose bytes are checked against its hash tree when they are read. A read fails with
/// [`headstart_block::ErrorKind::Corrupt`] if it needs bytes of a 16 KiB group that does not match the tree. A group
/// that was found right is not checked again.
pub struct VerifiedBlob<B = FileSource> {
    blob: B,
    /// The name for messages.
    name: String,
    tree: HashTree<Box<dyn ReadAt>>,
    /// A bit for each group that was found right.
    right: Box<[AtomicU64]>,
}

impl VerifiedBlob {
    /// Combines `blob` with its hash tree, given by the tree's root hash and its `outboard` (inner nodes).
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `outboard` does not belong to a blob of this length.
    pub fn new(blob: FileSource, root: TreeRoot, outboard: Box<dyn ReadAt>) -> Result<Self> {
        let name = blob.path().display().to_string();
        Self::over(blob, name, root, outboard)
    }

    /// Combines `blob` with a hash tree whose outboard (inner nodes) is lost, for instance because another
    /// tool did not copy it. Reads the whole blob once to compute the tree again, and compares the root.
    /// Large trees are buffered in temporary files in the directory `spool`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the computed root differs from `root`; errors of reading
    /// the blob.
    pub fn rebuild(blob: FileSource, root: TreeRoot, spool: &Path) -> Result<Self> {
        let mut hashes = HashingWriter::new(io::sink(), spool);
        copy_source(&blob, &mut hashes, &mut |_| Ok(()))?;
        let mut outboard = Vec::new();
        let (_, sums) = hashes.finish(&mut outboard)?;
        if sums.root != root {
            return Err(
                Error::corrupt(format!("its hash tree's root is {}, not {root}", sums.root)).remedy(DAMAGED)
            );
        }
        Self::new(blob, root, Box::new(outboard))
    }
}

/// The remedy of a blob whose bytes are not those of its hash tree.
const DAMAGED: &str = "the blob is damaged: fetch or import it again, or repair it from a copy by `headstart image \
                       verify IMAGE --repair-from COPY`";

impl<B: ReadAt> VerifiedBlob<B> {
    /// Works as [`VerifiedBlob::new`] for a blob that is not a local file. `name` stands for the blob in
    /// error messages.
    ///
    /// # Errors
    /// As [`VerifiedBlob::new`].
    pub fn over(blob: B, name: String, root: TreeRoot, outboard: Box<dyn ReadAt>) -> Result<Self> {
        let tree = HashTree::open(root, outboard, blob.len())?;
        let words = blob.len().div_ceil(GROUP_SIZE).div_ceil(64);
        let right = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { blob, name, tree, right })
    }

    /// Checks the groups that hold `wanted` bytes at `offset`, unless they were found right before.
    fn check(&self, wanted: usize, offset: u64) -> Result<()> {
        let Some(range) =
            ByteRange::new(offset, wanted as u64).filter(|range| range.end() <= self.blob.len())
        else {
            // The file's own error is the right one.
            return Ok(());
        };
        let groups = range.offset() / GROUP_SIZE..range.end().div_ceil(GROUP_SIZE);
        if range.is_empty() || groups.clone().all(|group| self.is_right(group)) {
            return Ok(());
        }
        self.tree.verify(&self.blob, range).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => e.about(&self.name).remedy(DAMAGED),
            // The store cannot be reached, or the user wants to stop: that says nothing about the bytes.
            _ => e.about(&self.name),
        })?;
        for group in groups {
            let (word, bit) = place(group);
            self.right[word].fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    fn is_right(&self, group: u64) -> bool {
        let (word, bit) = place(group);
        self.right[word].load(Ordering::Relaxed) & bit != 0
    }
}

/// The word of the bitmap that has a group's bit, and the bit.
fn place(group: u64) -> (usize, u64) {
    let word = (group / 64) as usize;
    (word, 1 << (group % 64))
}

impl<B: ReadAt> ReadAt for VerifiedBlob<B> {
    fn len(&self) -> u64 {
        self.blob.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(buf.len(), offset)?;
        self.blob.read_at(buf, offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.check(bufs.iter().map(|buf| buf.len()).sum(), offset)?;
        self.blob.read_vectored_at(bufs, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_hash_tree::TreeBuilder;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_damaged_group_is_never_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blob");
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut builder = TreeBuilder::new(dir.path());
        builder.update(&bytes).unwrap();
        let mut outboard = Vec::new();
        let root = builder.finish(&mut outboard).unwrap();

        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes[100_000] ^ 1], 100_000).unwrap();
        let blob = VerifiedBlob::new(FileSource::open(&path).unwrap(), root, Box::new(outboard)).unwrap();
        let mut buf = vec![0; 4000];
        for _ in 0..2 {
            blob.read_at(&mut buf, 20_000).unwrap();
            assert!(buf == bytes[20_000..24_000]);
            for offset in [98_400, 99_999, 100_000] {
                assert_eq!(
                    blob.read_at(&mut buf, offset).unwrap_err().kind(),
                    ErrorKind::Corrupt,
                    "{offset}"
                );
            }
        }
        assert!(blob.read_at(&mut buf, 199_000).is_err());
        let rebuilt = VerifiedBlob::rebuild(FileSource::open(&path).unwrap(), root, dir.path());
        assert_eq!(rebuilt.err().unwrap().kind(), ErrorKind::Corrupt);
        file.write_all_at(&[bytes[100_000]], 100_000).unwrap();
        let rebuilt = VerifiedBlob::rebuild(FileSource::open(&path).unwrap(), root, dir.path()).unwrap();
        rebuilt.read_at(&mut buf, 99_999).unwrap();
        assert!(buf == bytes[99_999..103_999]);
    }
}
