//! An image's blobs as the pull engine sees them: the blobs that hold the disk's bytes, and the bytes that are missing.

use headstart_block::{BlockDevice, ByteRange, ReadAt};
use headstart_cache::CachedBlob;
use headstart_image::turbo::InflatedCache;
use headstart_lsmt::Stack;
use headstart_pull::{BlobRange, BlobView, DiskBlobId};
use std::sync::Arc;

/// The blobs of an image in the cache, and the location of the disk's bytes in them.
pub struct Blobs {
    stack: Arc<Stack>,
    /// The layers' blobs and the targets of TurboOCI layers, each once, and behind them the hash trees of those that
    /// have one.
    blobs: Vec<Arc<CachedBlob>>,
    /// The number of layers' blobs and targets among them.
    data: usize,
    /// The tree of each of these.
    trees: Vec<Option<DiskBlobId>>,
    /// The blob of each source of the stack.
    of_source: Vec<DiskBlobId>,
    /// Uncompressed data of targets; `None` if there are none.
    inflated: Option<Arc<InflatedCache>>,
}

impl Blobs {
    /// Makes the blobs of an image; `of_source` gives for each source of `stack` its place in `blobs`, `inflated` is
    /// the uncompressed data of targets, if there are any.
    pub(crate) fn new(
        stack: Arc<Stack>,
        blobs: Vec<Arc<CachedBlob>>,
        of_source: &[usize],
        inflated: Option<Arc<InflatedCache>>,
    ) -> Self {
        let data = blobs.len();
        let mut all = blobs;
        let trees = (0..data)
            .map(|n| {
                let tree = Arc::clone(all[n].tree()?);
                all.push(tree);
                Some(id(all.len() - 1))
            })
            .collect();
        let of_source = of_source.iter().map(|n| id(*n)).collect();
        Self { stack, blobs: all, data, trees, of_source, inflated }
    }

    /// Forgets what was made of the blobs' bytes and is kept in memory, because some of these bytes were wrong.
    pub(crate) fn forget_decoded(&self) {
        headstart_zfile::forget_recent_frames();
        if let Some(inflated) = &self.inflated {
            inflated.clear();
        }
    }

    /// `true` if wrong bytes of `part` of the disk may come right when they are fetched again; or already have, because
    /// another reader may have found them wrong too.
    pub(crate) fn are_doubtful(&self, part: ByteRange) -> bool {
        let mut doubtful = false;
        self.each_doubtful(part, &mut |_, _| doubtful = true);
        doubtful
    }

    /// A blob that has bytes of `part` of the disk and that nothing proves.
    pub(crate) fn unproven(&self, part: ByteRange) -> Option<&CachedBlob> {
        let mut unproven = None;
        self.each_doubtful(part, &mut |blob, _| {
            if !blob.is_proven() {
                unproven.get_or_insert(blob);
            }
        });
        unproven
    }

    /// Forgets the wrong bytes among those of `part`, as far as they can be told apart.
    pub(crate) fn discard_wrong(&self, part: ByteRange) {
        self.each_doubtful(part, &mut |blob, range| {
            if let Err(error) = blob.discard_wrong(range) {
                tracing::warn!(%error, "cannot forget what is wrong");
            }
        });
    }

    fn each_doubtful<'a>(&'a self, part: ByteRange, each: &mut dyn FnMut(&'a CachedBlob, ByteRange)) {
        self.ranges(part, &mut |found| {
            if let Some(blob) = self.get(found.blob).filter(|blob| !blob.is_refused()) {
                each(blob, found.range);
            }
        });
    }

    /// The number of local bytes of the layers' blobs that neither a hash tree nor the digest of a complete
    /// blob has verified.
    #[must_use]
    pub fn unproven_bytes(&self) -> u64 {
        let unproven = self.data().iter().filter(|blob| !blob.is_proven());
        unproven.map(|blob| blob.local_bytes()).sum()
    }

    /// Keeps what comes next in memory for a while: see [`CachedBlob::bypass_for_now`].
    pub(crate) fn bypass_for_now(&self) {
        // All are in one cache.
        self.blobs.first().into_iter().for_each(|blob| blob.bypass_for_now());
    }

    pub(crate) fn get(&self, blob: DiskBlobId) -> Option<&Arc<CachedBlob>> {
        self.blobs.get(blob.0 as usize)
    }

    /// The blobs of the image's layers, and behind them those that TurboOCI layers have their data in; the blobs of
    /// hash trees are not included. A blob that several layers share is there once.
    #[must_use]
    pub fn data(&self) -> &[Arc<CachedBlob>] {
        &self.blobs[..self.data]
    }

    /// Returns two numbers of bytes of the layers' blobs: those that are local (in the cache), and all.
    #[must_use]
    pub fn local_bytes(&self) -> (u64, u64) {
        self.data().iter().fold((0, 0), |(local, all), blob| (local + blob.local_bytes(), all + blob.len()))
    }

    /// Returns `true` if all bytes of the layers' blobs are local.
    #[must_use]
    pub fn are_whole(&self) -> bool {
        self.data().iter().all(|blob| blob.is_local(ByteRange::between(0, blob.len())))
    }
}

/// There are at most 255 sources.
#[expect(clippy::cast_possible_truncation, reason = "a number of sources")]
fn id(n: usize) -> DiskBlobId {
    DiskBlobId(n as u32)
}

impl BlobView for Blobs {
    fn disk_size(&self) -> u64 {
        self.stack.size()
    }

    fn ranges(&self, part: ByteRange, each: &mut dyn FnMut(BlobRange)) {
        self.stack.stored_ranges(part, &mut |source, range| {
            each(BlobRange { blob: self.of_source[source], range });
        });
    }

    fn missing(&self, range: BlobRange, each: &mut dyn FnMut(BlobRange)) {
        let Some(blob) = self.get(range.blob) else { return };
        let tree = self.trees.get(range.blob.0 as usize).copied().flatten();
        blob.missing(range.range, &mut |run| {
            each(BlobRange { blob: range.blob, range: run });
            if let Some(tree) = tree {
                blob.tree_missing(run, &mut |pages| each(BlobRange { blob: tree, range: pages }));
            }
        });
    }
}
