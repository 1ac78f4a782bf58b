//! The cache directory.

use crate::{BlobSpec, CachedBlob};
use headstart_block::{Digest, Error, ErrorKind, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a cache behaves.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    /// Most bytes it holds; `None`: as many as the disk has.
    pub size_limit: Option<u64>,
    /// Most bytes of a process's memory that hold what the disk did not take.
    pub overlay_limit: u64,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { size_limit: None, overlay_limit: 32 << 20 }
    }
}

/// A cache directory, shared with other processes.
pub struct Cache {
    dir: PathBuf,
}

/// What one process counted since it opened the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Bytes inserted and written.
    pub inserted_bytes: u64,
    /// Bytes kept in memory because the disk did not take them.
    pub bypassed_bytes: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// Inserts that failed their check.
    pub corrupt_inserts: u64,
    /// Reads of the cache's files that failed.
    pub failed_reads: u64,
}

/// A blob in the cache.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its name.
    pub digest: Digest,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes of it that are local.
    pub local_bytes: u64,
    /// Whether a process has it open.
    pub in_use: bool,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    /// Blobs.
    pub blobs: u64,
    /// Bytes of them that are local.
    pub local_bytes: u64,
}

/// What an eviction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evicted {
    /// Bytes given back.
    pub bytes: u64,
    /// Bytes left.
    pub left_bytes: u64,
}

fn later() -> Error {
    Error::new(ErrorKind::Unsupported, "not yet")
}

impl Cache {
    /// Opens a cache directory, which is made where it is not there.
    pub fn open(_dir: &Path, _settings: CacheSettings) -> Result<Arc<Self>> {
        Err(later())
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory to use where the user names none.
    #[must_use]
    pub fn default_dir() -> PathBuf {
        PathBuf::from("/var/cache/headstart")
    }

    /// A blob; the same one for the same name as long as one is in use.
    pub fn blob(self: &Arc<Self>, _spec: &BlobSpec) -> Result<Arc<CachedBlob>> {
        Err(later())
    }

    /// Makes what is local durable; a background thread calls it every few seconds, and before the end.
    pub fn sync(&self) -> Result<()> {
        Err(later())
    }

    /// Whether there is so much in it that [`evict`](Self::evict) should be called soon.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        false
    }

    /// Evicts down to the low watermark where it is crowded and no other process does already.
    pub fn evict(&self) -> Result<Evicted> {
        Err(later())
    }

    /// What this process counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// All blobs.
    pub fn list(&self) -> Result<Vec<Entry>> {
        Err(later())
    }

    /// What it holds in all.
    pub fn usage(&self) -> Result<Usage> {
        Err(later())
    }

    /// Removes a blob and its hash tree.
    pub fn remove(&self, _digest: &Digest) -> Result<u64> {
        Err(later())
    }

    /// Evicts what is not pinned, the least useful first, until at most `target` bytes are left.
    pub fn prune(&self, _target: u64) -> Result<Evicted> {
        Err(later())
    }
}
