//! Writers that compute a blob's digest, and its hash tree, while the blob's bytes pass through.
//!
//! All facts about a blob (its SHA-256, its length, its hash tree) are computed once, in the pass that writes it: no
//! blob is read again to find its digest.

use crate::{TreeBuilder, TreeRoot};
use headstart_block::{Digest, Result};
use sha2::{Digest as _, Sha256};
use std::io::{self, Write};
use std::path::Path;

/// The most bytes hashed between two writes: they are then still in the cache when the second hash reads them.
const STEP: usize = 256 * 1024;

/// A writer that passes bytes on to another writer, and computes their SHA-256 and their number.
pub struct DigestWriter<W> {
    inner: W,
    sha256: Sha256,
    len: u64,
}

impl<W: Write> DigestWriter<W> {
    /// Starts a digest over no bytes; whatever is written to this writer goes to `inner`.
    pub fn new(inner: W) -> Self {
        Self { inner, sha256: Sha256::new(), len: 0 }
    }

    /// Returns the inner writer, and the SHA-256 and the length in bytes of everything that was written.
    pub fn finish(self) -> (W, Digest, u64) {
        (self.inner, Digest::from_bytes(self.sha256.finalize().into()), self.len)
    }
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buf)?;
        self.sha256.update(&buf[..written]);
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The digest, length and hash tree root of a blob, computed in the pass that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobSums {
    /// The SHA-256 of the blob: its name in a store.
    pub digest: Digest,
    /// Length of the blob in bytes.
    pub len: u64,
    /// The root of the blob's hash tree, which equals its plain BLAKE3 hash.
    pub root: TreeRoot,
}

/// A writer that passes a blob's bytes on and computes its digest, length and hash tree, in bounded memory.
pub struct HashingWriter<W> {
    inner: DigestWriter<W>,
    tree: TreeBuilder,
}

impl<W: Write> HashingWriter<W> {
    /// Starts the sums over no bytes; whatever is written to this writer goes to `inner`. The tree nodes of a
    /// blob of more than about 1 GiB are kept in an unnamed file in `spool_dir`, which should be on the file
    /// system that the outboard will be written to.
    pub fn new(inner: W, spool_dir: &Path) -> Self {
        Self { inner: DigestWriter::new(inner), tree: TreeBuilder::new(spool_dir) }
    }

    /// The number of bytes written so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// `true` if nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the outboard (the blob's length, then the nodes of the hash tree) to `outboard`, and returns the inner
    /// writer and the sums.
    ///
    /// # Errors
    /// Errors of writing the outboard or of reading its spooled parts.
    pub fn finish(self, outboard: impl Write) -> Result<(W, BlobSums)> {
        let root = self.tree.finish(outboard)?;
        let (inner, digest, len) = self.inner.finish();
        Ok((inner, BlobSums { digest, len, root }))
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(&buf[..buf.len().min(STEP)])?;
        self.tree.update(&buf[..written])?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_finds_all_sums() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..700_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut writer = HashingWriter::new(Vec::new(), dir.path());
        for piece in bytes.chunks(300_001) {
            writer.write_all(piece).unwrap();
        }
        let mut outboard = Vec::new();
        let (copy, sums) = writer.finish(&mut outboard).unwrap();
        assert!(copy == bytes);
        assert_eq!(sums.digest, Digest::of(&bytes));
        assert_eq!((sums.len, sums.root), (700_000, TreeRoot::of(&bytes)));
    }
}
