//! One blob in the cache.

use crate::{Claim, Pin};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use headstart_image::manifest::Tree;
use std::sync::Arc;

/// What names a blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobSpec {
    /// Its name in its store.
    pub digest: Digest,
    /// Its length in bytes.
    pub len: u64,
    /// Its hash tree. Without one its bytes are believed to its store until it is whole.
    pub tree: Option<Tree>,
    /// The store it comes from, as `Store::location` says it. Only looked at where there is no tree: bytes that
    /// nothing proves are not shared between disks of different stores.
    pub origin: Option<String>,
}

/// One blob in the cache.
pub struct CachedBlob {
    spec: BlobSpec,
}

fn later() -> Error {
    Error::new(ErrorKind::Unsupported, "not yet")
}

impl CachedBlob {
    /// What it was opened as.
    #[must_use]
    pub fn spec(&self) -> &BlobSpec {
        &self.spec
    }

    /// Bytes in a unit of presence: 16 KiB of data, 4 KiB of an outboard.
    #[must_use]
    pub fn unit(&self) -> u64 {
        16384
    }

    /// The outboard of its hash tree, as a cached blob of its own; its pages are accepted unverified.
    #[must_use]
    pub fn tree(&self) -> Option<&Arc<CachedBlob>> {
        None
    }

    /// Whether all bytes of `range` are local.
    #[must_use]
    pub fn is_local(&self, _range: ByteRange) -> bool {
        false
    }

    /// Names the runs of units of `range` that are not local: aligned, clipped to the blob's length, ascending.
    pub fn missing(&self, _range: ByteRange, _each: &mut dyn FnMut(ByteRange)) {}

    /// Names the runs of pages of the outboard (to be inserted into [`tree`](Self::tree)) that checking `range`
    /// needs and that are not local.
    pub fn tree_missing(&self, _range: ByteRange, _each: &mut dyn FnMut(ByteRange)) {}

    /// Bytes that are local.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        0
    }

    /// Takes bytes; they are visible when it returns.
    pub fn insert(&self, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Err(later())
    }

    /// Forgets the units that touch `range`.
    pub fn discard(&self, _range: ByteRange) -> Result<()> {
        Err(later())
    }

    /// Checks a blob without a tree by its digest once it is whole: `true` when it is whole and right, `false`
    /// when it is not whole. Wrong bytes are dropped, all of them, and the error is `Corrupt`.
    pub fn verify_whole(&self) -> Result<bool> {
        Err(later())
    }

    /// Claims what is missing of `range` and nobody else fetches.
    pub fn claim(self: &Arc<Self>, _range: ByteRange) -> Result<Claim> {
        Err(later())
    }

    /// Keeps `range` from being evicted, by any process, as long as the guard lives.
    pub fn pin(self: &Arc<Self>, _range: ByteRange) -> Result<Pin> {
        Err(later())
    }

    /// Calls `waker` once, at the next insert, discard or end of a claim of this blob in this process. Subscribe
    /// first, then look again whether what you wait for has happened.
    pub fn subscribe(&self, _waker: Box<dyn FnOnce() + Send>) {}
}

impl ReadAt for CachedBlob {
    fn len(&self) -> u64 {
        self.spec.len
    }

    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Absent, "not local"))
    }
}
