//! The cache directory, as one process has it open.

use crate::blob::CachedBlob;
use crate::counts::CacheCounters;
use crate::earlier;
use crate::evict::{self, Evicted};
use crate::files::Directory;
use crate::sidecar::{BootId, Identity, Kind};
use crate::slots::HostSlot;
use crate::spec::BlobSpec;
use crate::storage::{CacheSettings, Storage, is_fault_of_disk};
use crate::sweep;
use crate::whole;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_hash_tree::{Tree, TreeRoot, outboard_len};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A cache directory that is shared with all processes of the host that have it open. No daemon is needed.
pub struct Cache {
    pub(crate) storage: Arc<Storage>,
    /// The blobs in use, by the stems of their files.
    blobs: Mutex<BTreeMap<String, Weak<CachedBlob>>>,
    next_number: AtomicU64,
}

/// The id of the running kernel.
fn boot_id() -> Result<BootId> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let failed = |e: Error| e.about(PATH).remedy("mount /proc");
    let text = std::fs::read_to_string(PATH).map_err(|e| failed(Error::io("cannot read", e)))?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let id = u128::from_str_radix(&digits, 16).map_err(|_| failed(Error::corrupt("is not an id")))?;
    Ok(id.to_be_bytes())
}

/// The spec and identity of a hash tree's outboard, as a blob in the cache.
fn outboard_of(tree: &Tree) -> Result<(BlobSpec, Identity)> {
    let spec = BlobSpec { digest: tree.digest, len: tree.size, tree: None, origin: None };
    // Its pages come unverified and are proven from this root at each use. Under another root they belong to another
    // blob; a manifest that names that root must neither reach nor spoil them.
    let root = *tree.root.as_bytes();
    let identity = Identity { kind: Kind::Outboard, root, ..spec.identity()? };
    Ok((spec, identity))
}

impl Cache {
    /// Opens a cache directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the directory is not a cache and holds other files; it is left unchanged.
    /// [`ErrorKind::Denied`] if the directory, or one in it that a cache uses (such as `images`), belongs to neither
    /// root nor this user. [`ErrorKind::Conflict`] if another process keeps the directory locked for 10 seconds. Errors
    /// of the operating system if the directory cannot be created, written or locked, or if `/proc` is not mounted.
    pub fn open(dir: &Path, settings: CacheSettings) -> Result<Arc<Self>> {
        Self::open_in_boot(dir, settings, boot_id()?)
    }

    /// Opens a directory that is a cache already; creates nothing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not a cache, otherwise those of [`open`](Self::open).
    pub fn open_existing(dir: &Path, settings: CacheSettings) -> Result<Arc<Self>> {
        if !Directory::is_there(dir)? {
            let cause = match dir.symlink_metadata() {
                Ok(_) if !dir.is_dir() => "is not a directory",
                Ok(_) => "is not a cache",
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => "there is no cache here",
                Err(e) => return Err(Error::io("cannot look for a cache", e).about(dir.display())),
            };
            return Err(Error::new(ErrorKind::NotFound, cause).about(dir.display()));
        }
        Self::open(dir, settings)
    }

    /// Checks that a directory is a cache or can become one, without creating anything. A directory that does not exist
    /// passes, and so does one that cannot be listed: [`open`](Self::open) checks more.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is not a cache and holds other files, [`ErrorKind::Denied`] if a directory in it
    /// that a cache would use (such as `images`) belongs to neither root nor this user; errors of the operating system
    /// if this user may not look for these directories.
    pub fn check_directory(dir: &Path) -> Result<()> {
        Directory::check_trusted(dir)?;
        // A cache is not listed: it may have very many files.
        match Directory::is_there(dir) {
            Ok(false) => Directory::check_is_free(dir),
            _ => Ok(()),
        }
    }

    /// Returns `true` if a directory is not empty and holds only entries of this program, such as recorded
    /// boots that a disk has saved before the cache was first opened. `false` if the directory cannot be read.
    #[must_use]
    pub fn is_begun(dir: &Path) -> bool {
        let is_empty = std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
        !is_empty && Directory::foreign_entry(dir).is_none()
    }

    /// Opens a cache directory as [`open`](Self::open) does. If the disk of the directory fails or accepts nothing, or
    /// if another process keeps the directory locked for 10 seconds, the returned cache works without a directory:
    /// fetched bytes are kept in memory. The second value is then the error of opening the directory, otherwise `None`.
    ///
    /// # Errors
    /// An error if the directory is the wrong one: it is not a directory, belongs to neither root nor this user, holds
    /// other files, or cannot be created for a reason other than its disk. Also an error if `/proc` is not mounted.
    pub fn open_or_bypass(dir: &Path, settings: CacheSettings) -> Result<(Arc<Self>, Option<Error>)> {
        match Self::open(dir, settings.clone()) {
            Ok(cache) => Ok((cache, None)),
            Err(error) if is_fault_of_disk(&error) => {
                Ok((Self::without_directory(dir, settings)?, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a cache without a directory: all goes through memory.
    pub(crate) fn without_directory(dir: &Path, settings: CacheSettings) -> Result<Arc<Self>> {
        Ok(Self::of(Storage::without_directory(dir, settings)?))
    }

    /// As [`open`](Self::open), as if in another run of the kernel.
    pub(crate) fn open_in_boot(dir: &Path, settings: CacheSettings, boot: BootId) -> Result<Arc<Self>> {
        let (storage, is_uncounted) = Storage::open(dir, settings, boot)?;
        if is_uncounted {
            evict::evict(&storage, u64::MAX)?;
        }
        Ok(Self::of(storage))
    }

    fn of(storage: Storage) -> Arc<Self> {
        let (blobs, next_number) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { storage: Arc::new(storage), blobs, next_number })
    }

    /// Takes one of `count` slots, which processes that use this directory share: a bound for something that many disks
    /// would do at once. Callers with another `count` share the first of the same slots. `None` if all are taken.
    #[must_use]
    pub fn take_slot(&self, count: u64) -> Option<HostSlot> {
        if self.storage.is_bypassing() {
            return None;
        }
        HostSlot::take(&self.storage.directory, count)
    }

    /// The path of the cache directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.storage.dir()
    }

    /// The settings with which the cache was opened.
    #[must_use]
    pub fn settings(&self) -> &CacheSettings {
        &self.storage.settings
    }

    /// The directory to use if the user names none: `/var/cache/headstart` for root, otherwise `headstart` in the
    /// user's own cache directory (`XDG_CACHE_HOME`, or `.cache` in `HOME`). Relative paths in these variables are
    /// ignored; if neither has an absolute one, `/var/cache/headstart`.
    #[must_use]
    pub fn default_dir() -> PathBuf {
        let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if rustix::process::geteuid().is_root() {
            return PathBuf::from("/var/cache/headstart");
        }
        let user = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
        user.unwrap_or_else(|| PathBuf::from("/var/cache")).join("headstart")
    }

    /// Opens a blob together with its hash tree's outboard (the file of the tree). All callers of the same [`Cache`]
    /// share one object for each identity as long as it is in use. The identity consists of the digest, the length, and
    /// a third part: the tree's root, or for a blob without a tree the origin. Creates no files yet. Existing files
    /// that cannot be used are no error: the blob's bytes are then kept in memory. May wait for a process that changes
    /// the cache directory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a blob of more than 1 TiB, [`ErrorKind::Corrupt`] if the tree's size
    /// does not fit a blob of this length.
    pub fn blob(self: &Arc<Self>, spec: &BlobSpec) -> Result<Arc<CachedBlob>> {
        let identity = spec.identity()?;
        let mut blobs = self.blobs.lock();
        let tree = match spec.tree {
            None => None,
            Some(tree) => {
                let (spec, identity) = outboard_of(&tree)?;
                Some(self.blob_of(&mut blobs, &spec, identity, None))
            }
        };
        let blob = self.blob_of(&mut blobs, spec, identity, tree);
        drop(blobs);
        earlier::take_over_tree(&blob, |tree| self.earlier_outboard(tree));
        Ok(blob)
    }

    /// The outboard of a hash tree as version 0.1.0 cached it, if it did: that version left the root out of the
    /// identity.
    fn earlier_outboard(self: &Arc<Self>, tree: &Tree) -> Result<Arc<CachedBlob>> {
        let (spec, identity) = outboard_of(tree)?;
        let identity = Identity { root: [0; 32], ..identity };
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let blob = Arc::new_cyclic(|me| CachedBlob::new(me, &self.storage, number, &spec, identity, None));
        blob.find_files();
        Ok(blob)
    }

    /// The blob of a pair of files, with its hash tree, separate from the object that disks of this process use: for
    /// callers that look at the content of the files.
    pub(crate) fn blob_apart(self: &Arc<Self>, identity: &Identity) -> Result<Arc<CachedBlob>> {
        let tree = (identity.kind == Kind::Verified).then(|| Tree {
            root: TreeRoot::from_bytes(identity.root),
            digest: Digest::from_bytes(identity.outboard),
            size: outboard_len(identity.len),
        });
        let open = |spec: &BlobSpec, identity, tree| {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let blob = Arc::new_cyclic(|me| CachedBlob::new(me, &self.storage, number, spec, identity, tree));
            blob.find_files();
            blob
        };
        let outboard = match &tree {
            Some(tree) => outboard_of(tree).map(|(spec, identity)| Some(open(&spec, identity, None)))?,
            None => None,
        };
        let spec = BlobSpec { digest: identity.digest, len: identity.len, tree, origin: None };
        Ok(open(&spec, identity.clone(), outboard))
    }

    fn blob_of(
        self: &Arc<Self>,
        blobs: &mut BTreeMap<String, Weak<CachedBlob>>,
        spec: &BlobSpec,
        identity: Identity,
        tree: Option<Arc<CachedBlob>>,
    ) -> Arc<CachedBlob> {
        let stem = identity.file_stem();
        if let Some(blob) = blobs.get(&stem).and_then(Weak::upgrade) {
            return blob;
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let blob = Arc::new_cyclic(|me| CachedBlob::new(me, &self.storage, number, spec, identity, tree));
        blob.find_files();
        // The process that brought the last unit may have ended before it checked the blob.
        whole::check_if_whole(&blob);
        blobs.retain(|_, blob| blob.strong_count() > 0);
        blobs.insert(stem, Arc::downgrade(&blob));
        blob
    }

    fn blobs_in_use(&self) -> Vec<Arc<CachedBlob>> {
        self.blobs.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Makes the bytes that this process inserted durable, advances the clock by which eviction judges the age of
    /// accesses, drops pages that the kernel need not keep ([`CacheSettings::page_cache`]), and evicts if the cache is
    /// nearly full. A process that has the cache open must call this every few seconds, from a background thread, and
    /// once before it ends: bytes that are not synced survive the end of every process, but not a loss of power.
    ///
    /// # Errors
    /// The first error of a blob or of the eviction; the other blobs are synced anyway. If the bytes of a blob cannot
    /// be written to the disk, those that are not durable are removed from the cache.
    pub fn sync(&self) -> Result<()> {
        self.storage.state.tick();
        let mut result = Ok(());
        let blobs = self.blobs_in_use();
        for blob in &blobs {
            let synced = blob.sync();
            result = result.and(synced);
        }
        sweep::sweep(&self.storage, &blobs);
        if self.is_crowded() {
            let evicted = self.evict().map(drop);
            result = result.and(evicted);
        }
        result
    }

    /// Returns `true` if the cache is filled to within 1/16 of its limit: call [`evict`](Self::evict) soon.
    /// An insert beyond the limit evicts by itself, which takes as long as a sync of the disk. Always `false` for a
    /// cache without a limit.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.storage.is_crowded()
    }

    /// Evicts the least useful chunks (64 KiB each) that are not pinned, until the cache is 1/8 below its
    /// limit. Does nothing if there is no limit, or if another thread or process is evicting.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn evict(&self) -> Result<Evicted> {
        let Some(limit) = self.storage.settings.size_limit else { return Ok(Evicted::default()) };
        Ok(evict::evict(&self.storage, Storage::low_mark(limit))?.unwrap_or_default())
    }

    /// The counters of this process since it opened the cache.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.storage.counts.read()
    }

    /// The total capacity of the cache in bytes: the bytes that it uses plus the free bytes of its disk, but at most
    /// its size limit ([`CacheSettings::size_limit`]). 0 if the cache works without a directory
    /// ([`open_or_bypass`](Self::open_or_bypass)).
    #[must_use]
    pub fn room(&self) -> u64 {
        self.storage.room()
    }
}
