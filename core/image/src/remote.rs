//! [`RemoteImage`]: an image in any store, of which only parts are read: its documents, and the heads, ends and indexes
//! of its layers.
//!
//! This type serves to describe and to check an image, not to read its disk. Fetched data stays in memory, in chunks of
//! 64 KiB, and nothing is stored; only the data of reads of 1 MiB and more is not kept. [`RemoteImage::warm`] guesses
//! the parts that opening the layers will read, and fetches the parts of many layers at once. So after the manifest,
//! opening takes two steps: first the lengths of the blobs are asked for, then these parts. A wrong guess costs one
//! more request.
//!
//! If a layer has a hash tree, its data is checked against the tree.

use crate::disk_form::disk_manifest;
use crate::manifest::{Config, ImageLayer, Manifest, Tree};
use crate::opening::opening_ranges_of;
use crate::progress::{Progress, step};
use crate::reference::{Reference, Selector};
use crate::store::Image;
use crate::verified_blob::VerifiedBlob;
use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use futures::stream::{self, StreamExt, TryStreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_hash_tree::pages;
use headstart_store::blob_source::BlobSource;
use headstart_store::{RetrySettings, Store, Urgency};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The number of bytes that are fetched and kept together.
const CHUNK: u64 = 64 << 10;

/// Reads of at least this number of bytes bypass the chunks: a reader of that much goes through all of a blob once.
const LARGE: usize = 1 << 20;

/// The number of chunks in one request.
const CHUNKS_AT_ONCE: usize = 16;

/// The number of requests that are under way at once.
const AT_ONCE: usize = 16;

/// An image in a remote store, whose blobs are fetched when they are read. Data that was fetched in small
/// reads stays in memory.
pub struct RemoteImage {
    /// The reference by which the image was found.
    pub reference: Reference,
    /// The image's manifest and the manifest's digest.
    pub image: Image,
    blobs: RemoteBlobs,
}

/// Blobs of a store, with the lengths that they have there.
pub(crate) struct RemoteBlobs {
    link: Arc<Link>,
    found: HashMap<Digest, Arc<RemoteBlob>>,
}

/// The way to the store.
struct Link {
    store: Arc<dyn Store>,
    retry: RetrySettings,
    runtime: Handle,
}

impl RemoteImage {
    /// Finds the image that `reference` names in `store`, and asks for the lengths of its blobs. Failed
    /// requests are retried according to `retry`. Requests run on `runtime`; the caller must not be on one of
    /// its threads, because this function and all reads block.
    ///
    /// # Errors
    /// Errors of the store; [`ErrorKind::Corrupt`] if the manifest is damaged. A missing blob is not an error before it
    /// is needed.
    pub fn open(
        store: Arc<dyn Store>,
        reference: &Reference,
        retry: RetrySettings,
        runtime: Handle,
    ) -> Result<Self> {
        let link = Arc::new(Link { store, retry, runtime });
        let named = disk_manifest(&*link.store, &reference.selector);
        let (digest, bytes) = link.runtime.block_on(named)?;
        let manifest = Manifest::parse(&bytes).map_err(|e| e.about(format!("image {reference}")))?;
        let blobs = manifest.blobs().map(|(digest, _)| digest).chain(manifest.turbo_targets());
        let blobs = RemoteBlobs::find(link, blobs)?;
        Ok(Self { reference: reference.clone(), image: Image { digest, manifest }, blobs })
    }

    /// Fetches ahead of time the data that opening the disk's layers will most likely read. Data that is
    /// missing or wrong is not an error here: the later read reports it, together with the part of the image
    /// that it belongs to.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the store does not answer; [`ErrorKind::Denied`] if it refuses access.
    pub fn warm(&self) -> Result<()> {
        self.blobs.link.runtime.block_on(self.blobs.warm(self.image.manifest.disk_layers()))
    }

    /// Fetches ranges of blobs, many in parallel, for a later read without a wait. They stay in memory.
    pub(crate) fn bring_all(&self, ranges: &[(Digest, ByteRange)], progress: &dyn Progress) -> Result<()> {
        let mut chunks = Chunks::default();
        for (blob, range) in ranges {
            chunks.add(*blob, *range);
        }
        progress.begin("fetch", chunks.0.len() as u64 * CHUNK);
        let bring = |run: Run| async move {
            if let Some((blob, range)) = self.blobs.part(&run) {
                blob.bring(range).await?;
            }
            step(progress, run.count * CHUNK)
        };
        let bringing = stream::iter(chunks.runs()).map(bring).buffer_unordered(AT_ONCE).try_collect::<()>();
        self.blobs.link.runtime.block_on(bringing)
    }

    /// The blobs of the image.
    pub(crate) fn blobs(&self) -> &RemoteBlobs {
        &self.blobs
    }

    /// The image's config, checked against its digest.
    pub(crate) fn read_config(&self) -> Result<Config> {
        let config = &self.image.manifest.config;
        let blob = self.blobs.sized("config", &config.digest, config.size)?;
        let about = |e: Error| e.about(blob.name());
        if blob.len > crate::manifest::MAX_MANIFEST_SIZE {
            return Err(about(Error::unsupported(format!("a config of {} bytes", blob.len))));
        }
        let mut bytes = vec![0; to_usize(blob.len)];
        blob.read_at(&mut bytes, 0)?;
        let digest = Digest::of(&bytes);
        if digest != config.digest {
            return Err(about(Error::corrupt(format!("its content has the digest {digest}"))));
        }
        Config::parse(&bytes).map_err(about)
    }
}

/// Chunks of blobs, by the digest of the blob and the number of the chunk.
#[derive(Default)]
struct Chunks(BTreeSet<(Digest, u64)>);

/// Neighbouring chunks of a blob.
struct Run {
    blob: Digest,
    first: u64,
    count: u64,
}

impl Chunks {
    /// Adds the chunks that a range of a blob touches.
    fn add(&mut self, blob: Digest, range: ByteRange) {
        let touched = range.offset() / CHUNK..range.end().div_ceil(CHUNK);
        self.0.extend(touched.map(|number| (blob, number)));
    }

    /// The chunks, in runs for one request each.
    fn runs(&self) -> Vec<Run> {
        let chunks: Vec<_> = self.0.iter().copied().collect();
        let runs = chunks.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1);
        let run = |run: &[(Digest, u64)]| Run { blob: run[0].0, first: run[0].1, count: run.len() as u64 };
        runs.flat_map(|run| run.chunks(CHUNKS_AT_ONCE)).map(run).collect()
    }
}

/// Layers that are in a store with the lengths that their descriptors say, opened without asking for these.
pub struct RemoteLayers {
    blobs: RemoteBlobs,
    layers: Vec<ImageLayer>,
}

impl RemoteLayers {
    /// The layers `layers` of `store`. Failed requests are retried according to `retry`. Reads of opened layers run on
    /// `runtime`, and block: their caller must not be on one of its threads. Sends no request.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        layers: Vec<ImageLayer>,
        retry: RetrySettings,
        runtime: Handle,
    ) -> Self {
        let blobs = |layer: &ImageLayer| {
            let tree = layer.tree.map(|tree| (tree.digest, tree.size));
            [Some((layer.blob.digest, layer.blob.size)), tree].into_iter().flatten()
        };
        let lengths = layers.iter().flat_map(blobs).map(|(digest, size)| (digest, Some(size)));
        let blobs = RemoteBlobs::of(Arc::new(Link { store, retry, runtime }), lengths);
        Self { blobs, layers }
    }

    /// Fetches ahead of time the data that opening the layers will most likely read, as [`RemoteImage::warm`] does.
    ///
    /// # Errors
    /// As [`RemoteImage::warm`].
    pub async fn warm(&self) -> Result<()> {
        self.blobs.warm(self.layers.iter()).await
    }

    /// Opens the blob of a layer, as [`open_layer`] does. `None` if it is none of these layers.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the layer's hash tree does not fit its length.
    pub fn open(&self, layer: &ImageLayer) -> Option<Result<Arc<dyn ReadAt>>> {
        let same = self.layers.iter().find(|same| same.blob == layer.blob && same.tree == layer.tree)?;
        Some(self.blobs.guarded(same))
    }
}

impl RemoteBlobs {
    /// Asks for the lengths of blobs. One that the store does not have is left out.
    fn find(link: Arc<Link>, digests: impl Iterator<Item = Digest>) -> Result<Self> {
        let find = |digest: Digest| {
            let link = &link;
            async move { Ok::<_, Error>((digest, link.store.blob_len(&digest).await?)) }
        };
        let digests: BTreeSet<Digest> = digests.collect();
        let finding = stream::iter(digests).map(find).buffer_unordered(AT_ONCE);
        let found: Vec<_> = link.runtime.block_on(finding.try_collect())?;
        Ok(Self::of(link, found.into_iter()))
    }

    /// Blobs of these lengths; those without one are not there.
    fn of(link: Arc<Link>, lengths: impl Iterator<Item = (Digest, Option<u64>)>) -> Self {
        let blob = |(digest, len): (Digest, Option<u64>)| {
            let (link, chunks) = (Arc::clone(&link), Mutex::default());
            Some((digest, Arc::new(RemoteBlob { link, digest, len: len?, chunks })))
        };
        let found = lengths.filter_map(blob).collect();
        Self { link, found }
    }

    /// Fetches the data that opening layers will most likely read.
    ///
    /// # Errors
    /// As [`RemoteImage::warm`].
    async fn warm<'a>(&self, layers: impl Iterator<Item = &'a ImageLayer>) -> Result<()> {
        let mut wanted = Chunks::default();
        for layer in layers {
            let Ok(blob) = self.blob_of(layer) else { continue };
            let tree = layer.tree.and_then(|tree| self.tree_of(&tree).ok());
            for range in opening_ranges_of(layer) {
                if let Some(tree) = &tree {
                    pages(blob.len, range, &mut |pages| wanted.add(tree.digest, pages));
                }
                wanted.add(blob.digest, range);
            }
        }
        let bring = |(blob, range): (Arc<RemoteBlob>, ByteRange)| async move {
            match blob.bring(range).await {
                Err(e) if !matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Denied) => Ok(()),
                brought => brought,
            }
        };
        let parts: Vec<_> = wanted.runs().iter().filter_map(|run| self.part(run)).collect();
        stream::iter(parts).map(bring).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// A blob, and the range of it that a run of chunks is; `None` if it is not there.
    fn part(&self, run: &Run) -> Option<(Arc<RemoteBlob>, ByteRange)> {
        let blob = self.found.get(&run.blob)?;
        let end = ((run.first + run.count) * CHUNK).min(blob.len);
        Some((Arc::clone(blob), ByteRange::between((run.first * CHUNK).min(end), end)))
    }

    /// A layer's blob, which has the length in the manifest.
    pub(crate) fn blob_of(&self, layer: &ImageLayer) -> Result<Arc<RemoteBlob>> {
        self.sized("layer", &layer.blob.digest, layer.blob.size)
    }

    /// The outboard of a hash tree, in the same way.
    pub(crate) fn tree_of(&self, tree: &Tree) -> Result<Arc<RemoteBlob>> {
        self.sized("hash tree", &tree.digest, tree.size)
    }

    /// The blob that a TurboOCI layer has its data in. The manifest does not say its length.
    pub(crate) fn target_of(&self, digest: &Digest) -> Result<Arc<RemoteBlob>> {
        let missing = || {
            let name = self.link.name(digest);
            Error::new(ErrorKind::NotFound, "is not there").about(format!("target {name}"))
        };
        self.found.get(digest).cloned().ok_or_else(missing)
    }

    /// A layer's blob, guarded by its hash tree if it has one that is not lost.
    pub(crate) fn guarded(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        let blob = self.blob_of(layer)?;
        let Some(tree) = &layer.tree else { return Ok(blob) };
        match self.tree_of(tree) {
            Ok(outboard) => {
                let (name, nodes) = (blob.name(), Box::new(Arc::clone(&outboard)));
                let verified = VerifiedBlob::over(Arc::clone(&blob), name, tree.root, nodes)?;
                Ok(Arc::new(GuardedBlob { verified, blob, outboard }))
            }
            // Making it again would take all of the blob.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                tracing::warn!(error = %e, "its hash tree is lost: reads of the layer are not checked");
                Ok(blob)
            }
            Err(e) => Err(e),
        }
    }

    fn sized(&self, what: &str, digest: &Digest, size: u64) -> Result<Arc<RemoteBlob>> {
        let about = |e: Error| {
            e.about(format!("{what} {}", self.link.name(digest))).remedy("copy the image there again")
        };
        let blob = self.found.get(digest);
        let blob = blob.ok_or_else(|| about(Error::new(ErrorKind::NotFound, "is not there")))?;
        if blob.len == size {
            return Ok(Arc::clone(blob));
        }
        Err(about(Error::corrupt(format!("has {} bytes, its manifest says {size}", blob.len))))
    }
}

/// Opens the blob of a layer in `store`, whose ranges are fetched when they are read and checked against the layer's
/// hash tree, if it has one. Requests run on `runtime`; the caller must not be on one of its threads, because this
/// function and all reads block.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the blob is not there, [`ErrorKind::Corrupt`] if it has another length; errors of the
/// store.
pub fn open_layer(
    store: Arc<dyn Store>,
    layer: &ImageLayer,
    retry: RetrySettings,
    runtime: Handle,
) -> Result<Arc<dyn ReadAt>> {
    let link = Arc::new(Link { store, retry, runtime });
    let digests = [Some(layer.blob.digest), layer.tree.map(|tree| tree.digest)];
    RemoteBlobs::find(link, digests.into_iter().flatten())?.guarded(layer)
}

/// A blob with its hash tree. Both are in the store: what a read needs of them is fetched at once.
struct GuardedBlob {
    verified: VerifiedBlob<Arc<RemoteBlob>>,
    blob: Arc<RemoteBlob>,
    outboard: Arc<RemoteBlob>,
}

impl ReadAt for GuardedBlob {
    fn len(&self) -> u64 {
        self.verified.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).filter(|range| range.end() <= self.blob.len);
        if let Some(range) = range.filter(|range| buf.len() < LARGE && !self.blob.missing(*range).is_empty())
        {
            let mut nodes = Vec::new();
            pages(self.blob.len, range, &mut |pages| nodes.push(pages));
            let nodes = try_join_all(nodes.into_iter().map(|nodes| self.outboard.bring(nodes)));
            let both = try_join(self.blob.bring(range), nodes);
            self.blob.link.runtime.block_on(both).map_err(|e| e.about(self.blob.name()))?;
        }
        self.verified.read_at(buf, offset)
    }
}

impl Link {
    /// The name of a blob in messages.
    fn name(&self, digest: &Digest) -> String {
        format!("{}{}", self.store.name(), Selector::Digest(*digest))
    }
}

/// A blob in a store. Its reads block.
pub(crate) struct RemoteBlob {
    link: Arc<Link>,
    digest: Digest,
    len: u64,
    /// The fetched data, by the chunk's number.
    chunks: Mutex<BTreeMap<u64, Bytes>>,
}

impl RemoteBlob {
    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        self.link.name(&self.digest)
    }

    fn chunks(&self) -> MutexGuard<'_, BTreeMap<u64, Bytes>> {
        // The state that a panicking holder left is whole: chunks are entered one by one.
        self.chunks.lock()
    }

    /// The runs of chunks that `range` touches and that are not here, as ranges of the blob.
    fn missing(&self, range: ByteRange) -> Vec<ByteRange> {
        let chunks = self.chunks();
        let mut runs: Vec<ByteRange> = Vec::new();
        let wanted = range.offset() / CHUNK..range.end().min(self.len).div_ceil(CHUNK);
        for number in wanted.filter(|number| !chunks.contains_key(number)) {
            let (start, end) = (number * CHUNK, ((number + 1) * CHUNK).min(self.len));
            match runs.last_mut().filter(|run| run.end() == start && run.len() < LARGE as u64) {
                Some(run) => *run = ByteRange::between(run.offset(), end),
                None => runs.push(ByteRange::between(start, end)),
            }
        }
        runs
    }

    /// Fetches the missing parts of `range`.
    async fn bring(&self, range: ByteRange) -> Result<()> {
        for run in self.missing(range) {
            let once = || self.link.store.read(&self.digest, run, Urgency::Demand);
            let bytes = self.link.retry.run(once, |_| ()).await?;
            if bytes.len() as u64 != run.len() {
                return Err(Error::new(ErrorKind::Unavailable, "the store gave other bytes than asked for")
                    .about(self.name()));
            }
            let mut chunks = self.chunks();
            for part in run.parts(CHUNK) {
                let (from, to) = (part.offset() - run.offset(), part.end() - run.offset());
                let (Ok(from), Ok(to)) = (usize::try_from(from), usize::try_from(to)) else { break };
                chunks.insert(part.offset() / CHUNK, bytes.slice(from..to));
            }
        }
        Ok(())
    }
}

impl ReadAt for RemoteBlob {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if buf.len() >= LARGE {
            let (store, runtime) = (Arc::clone(&self.link.store), self.link.runtime.clone());
            return BlobSource::new(store, self.digest, self.len, self.link.retry, runtime)
                .read_at(buf, offset);
        }
        let range = ByteRange::new(offset, buf.len() as u64).filter(|range| range.end() <= self.len);
        let Some(range) = range else {
            return Err(
                Error::corrupt(format!("has only {} bytes, none at {offset}", self.len)).about(self.name())
            );
        };
        self.link.runtime.block_on(self.bring(range))?;
        let chunks = self.chunks();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let chunk = chunks.get(&(at / CHUNK)).map(|chunk| &chunk[(at % CHUNK) as usize..]);
            let Some(chunk) = chunk.filter(|chunk| !chunk.is_empty()) else {
                return Err(Error::new(ErrorKind::Unavailable, "the store gave other bytes than asked for")
                    .about(self.name()));
            };
            let len = chunk.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&chunk[..len]);
            done += len;
        }
        Ok(())
    }
}
