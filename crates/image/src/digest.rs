//! Digests: the names of blobs, and the writer that finds them while the bytes pass through.
//!
//! Everything that is known of a blob (its SHA-256, its length, its hash tree) is computed once, in the
//! pass that writes it: nothing is read again to be named. Stores name blobs by SHA-256 alone; other
//! algorithms that OCI allows are refused, since nobody writes them.

use crate::hash_tree::{TreeBuilder, TreeRoot};
use headstart_block::{Error, Result};
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

/// The one algorithm, as it stands before the colon and as a directory of a store.
pub const SHA256: &str = "sha256";

/// Most bytes hashed between two writes: they are then still in the cache when the second hash reads them.
const STEP: usize = 256 * 1024;

/// The SHA-256 of a blob: its name in a store, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 64 hexadecimal digits without the algorithm: the blob's file name in a store.
    #[must_use]
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// The digest whose 64 lower-case hexadecimal digits are `hex`, or `None`.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Self> {
        parse_hex(hex).map(Self)
    }
}

/// 32 bytes from 64 lower-case hexadecimal digits.
pub(crate) fn parse_hex(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    blake3::Hash::from_hex(hex).ok().map(Into::into)
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((SHA256, hex)) => Self::from_hex(hex).ok_or_else(|| {
                Error::invalid(format!("`{text}` is not a digest"))
                    .remedy("a digest is sha256: and 64 lower-case hexadecimal digits")
            }),
            Some((algorithm @ ("sha384" | "sha512"), _)) => {
                Err(Error::unsupported(format!("digests of kind {algorithm} are not supported, only sha256")))
            }
            _ => Err(Error::invalid(format!("`{}` is not a digest", text.escape_debug()))
                .remedy("a digest is sha256: and 64 lower-case hexadecimal digits")),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SHA256}:{}", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Passes bytes on and finds their digest and number.
pub struct DigestWriter<W> {
    inner: W,
    sha256: Sha256,
    len: u64,
}

impl<W: Write> DigestWriter<W> {
    /// Hashes what is written to `inner` through it.
    pub fn new(inner: W) -> Self {
        Self { inner, sha256: Sha256::new(), len: 0 }
    }

    /// The writer below, the digest and the length in bytes of all that was written.
    pub fn finish(self) -> (W, Digest, u64) {
        (self.inner, Digest(self.sha256.finalize().into()), self.len)
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

/// What one pass over a blob tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobSums {
    /// Its name.
    pub digest: Digest,
    /// Its length in bytes.
    pub len: u64,
    /// The root of its hash tree: its plain BLAKE3 hash.
    pub root: TreeRoot,
}

/// Passes a blob's bytes on and finds its digest, length and hash tree on the way, in bounded memory.
pub struct HashingWriter<W> {
    inner: DigestWriter<W>,
    tree: TreeBuilder,
}

impl<W: Write> HashingWriter<W> {
    /// Hashes what is written to `inner`. Trees of blobs over a few GiB are spooled to an unnamed file in
    /// `spool_dir`, which therefore should be on the file system that the tree will be written to.
    pub fn new(inner: W, spool_dir: &Path) -> Self {
        Self { inner: DigestWriter::new(inner), tree: TreeBuilder::new(spool_dir) }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the hash tree's outboard to `outboard`; gives the writer below and what was found.
    ///
    /// # Errors
    /// What writing the outboard or reading its spooled parts reports.
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
    use headstart_block::ErrorKind;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn prints_what_it_parses() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        let digest: Digest = EMPTY.parse().unwrap();
        assert_eq!((digest, format!("sha256:{}", digest.hex())), (Digest::of(b""), EMPTY.to_owned()));
    }

    #[test]
    fn refuses_what_is_no_sha256() {
        for text in ["", "sha256", "sha256:", &EMPTY[..70], &EMPTY.to_uppercase(), "sha256:../../etc/passwd"]
        {
            assert_eq!(text.parse::<Digest>().unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        // Right length in bytes, but not in digits.
        assert!(format!("sha256:{}", "é".repeat(32)).parse::<Digest>().is_err());
        let sha512 = format!("sha512:{}", "0".repeat(128));
        assert_eq!(sha512.parse::<Digest>().unwrap_err().kind(), ErrorKind::Unsupported);
    }

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
