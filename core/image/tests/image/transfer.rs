//! Copying images between stores: whole or not at all, nothing twice, nothing wrong.

use async_trait::async_trait;
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, FileSource, ReadAt, Result};
use headstart_image::blob::open_layer_source;
use headstart_image::disk_file::DiskFile;
use headstart_image::import::import_disk;
use headstart_image::manifest::INDEX_OCI;
use headstart_image::new_layer::Packing;
use headstart_image::open_image::OpenImage;
use headstart_image::progress::{Progress, Silent};
use headstart_image::reference::{Location, Reference, Selector, Tag};
use headstart_image::store::{ImageStore, PruneOptions};
use headstart_image::transfer::{HASH_TREES, TransferReport, list_remote, transfer};
use headstart_image::verify::{Depth, verify};
use headstart_lsmt::Layer;
use headstart_store::{Copied, RetrySettings, Store, StoreCounters, StoreSettings, Urgency, open};
use headstart_testkit::disk::noise;
use headstart_zfile::{Codec, ZFileOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// The bounds of a prune that deletes images as soon as they lose their last name.
const AT_ONCE: PruneOptions =
    PruneOptions { now: SystemTime::UNIX_EPOCH, older_than: Duration::ZERO, force: false, dry_run: false };

const MIB: usize = 1 << 20;

/// An image of two layers in a store of its own.
fn import(dir: &Path, packing: &Packing) -> Reference {
    let image =
        |tag: &str| -> Reference { format!("file://{}/source:{tag}", dir.display()).parse().unwrap() };
    let disk = dir.join("disk.raw");
    let mut bytes = noise(0, 3 * MIB);
    fs::write(&disk, &bytes).unwrap();
    import_disk(&DiskFile::at(disk.clone()), None, &image("base"), packing, &Silent).unwrap();
    bytes[MIB..2 * MIB].copy_from_slice(&noise(1 << 40, MIB));
    fs::write(&disk, &bytes).unwrap();
    let base = image("base");
    import_disk(&DiskFile::at(disk), Some(&base), &image("top"), packing, &Silent).unwrap();
    image("top")
}

fn at(path: &Path) -> Arc<dyn Store> {
    open(&Location::Directory(path.to_owned()), &StoreSettings::default()).unwrap()
}

fn tag() -> Tag {
    "copy".parse().unwrap()
}

async fn copy(source: &Reference, target: &Arc<dyn Store>) -> Result<TransferReport> {
    let from = open(&source.location, &StoreSettings::default()).unwrap();
    transfer(&from, &source.selector, target, &tag(), RetrySettings::default(), &Silent).await
}

/// A registry as far as a copy sees one: keeps all that is written to it, in memory, with its order.
#[derive(Default)]
struct Registry {
    blobs: Mutex<BTreeMap<Digest, Bytes>>,
    /// The writes: blobs by their digests, manifests with `tag`, `untagged` or `referrer`.
    log: Mutex<Vec<(String, Bytes)>>,
}

#[async_trait]
impl Store for Registry {
    fn location(&self) -> String {
        "oci://registry/repo".to_owned()
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let log = self.log.lock().unwrap();
        let name = selector.to_string();
        let found = log.iter().rev().find(|(what, _)| *what == name).map(|(_, bytes)| bytes.clone());
        let bytes = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such tag"))?;
        Ok((Digest::of(&bytes), bytes))
    }

    async fn read(&self, blob: &Digest, range: ByteRange, _: Urgency) -> Result<Bytes> {
        let bytes = self.blobs.lock().unwrap().get(blob).cloned();
        let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such blob"))?;
        Ok(bytes.slice(range.offset() as usize..range.end() as usize))
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        Ok(self.blobs.lock().unwrap().get(blob).map(|bytes| bytes.len() as u64))
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        let reading = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; source.len() as usize];
            source.read_at(&mut bytes, 0).map(|()| bytes)
        });
        let bytes = reading.await.unwrap()?;
        assert_eq!(Digest::of(&bytes), *digest);
        copied(bytes.len() as u64)?;
        self.blobs.lock().unwrap().insert(*digest, bytes.into());
        Ok(())
    }

    async fn put_manifest(&self, _: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        let what = tag.map_or("untagged".to_owned(), |tag| format!(":{tag}"));
        self.log.lock().unwrap().push((what, bytes.clone()));
        Ok(Digest::of(&bytes))
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        Ok(vec![tag()])
    }

    fn drops_unnamed_blobs(&self) -> bool {
        true
    }

    async fn put_referrer(&self, _: &Digest, _: &str, bytes: Bytes, _: &[Digest]) -> Result<Digest> {
        self.log.lock().unwrap().push(("referrer".to_owned(), bytes.clone()));
        Ok(Digest::of(&bytes))
    }

    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_goes_to_a_registry_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path(), &Packing::default());
    let registry = Arc::new(Registry::default());
    let target = Arc::clone(&registry) as Arc<dyn Store>;
    let pushed = copy(&source, &target).await.unwrap();
    // Config, two layers, two trees.
    assert_eq!((pushed.copied, pushed.present, pushed.lost_trees), (5, 0, 0));
    let log: Vec<String> = registry.log.lock().unwrap().iter().map(|(what, _)| what.clone()).collect();
    assert_eq!(log, ["untagged", "referrer", ":copy"]);

    // Every blob that the registry has is named by one of the two manifests.
    let value = |n: usize| -> Value { serde_json::from_slice(&registry.log.lock().unwrap()[n].1).unwrap() };
    let (image, trees) = (value(0), value(1));
    assert_eq!(trees["artifactType"], HASH_TREES);
    assert_eq!(trees["subject"]["digest"], pushed.digest.unwrap().to_string());
    let named: Vec<String> = [&image, &trees]
        .iter()
        .flat_map(|manifest| {
            std::iter::once(&manifest["config"]).chain(manifest["layers"].as_array().unwrap())
        })
        .map(|descriptor| descriptor["digest"].as_str().unwrap().to_owned())
        .collect();
    for digest in registry.blobs.lock().unwrap().keys() {
        assert!(named.contains(&digest.to_string()), "{digest}");
    }

    let listed = list_remote(&*target).await.unwrap();
    assert_eq!(listed[0].image.as_ref().unwrap().digest, pushed.digest.unwrap());

    let back = dir.path().join("back");
    let (selector, local) = (Selector::Tag(tag()), at(&back));
    let pulled =
        transfer(&target, &selector, &local, &tag(), RetrySettings::default(), &Silent).await.unwrap();
    assert_eq!((pulled.digest, pulled.copied_bytes), (pushed.digest, pushed.copied_bytes));
    let reference: Reference = format!("file://{}:copy", back.display()).parse().unwrap();
    assert!(verify(&reference, Depth::Deep, &Silent).unwrap().problems().next().is_none());
    // Without the writer, prune deletes nothing of the image either.
    drop(local);
    assert_eq!(ImageStore::open(&back).unwrap().prune(&AT_ONCE).unwrap().blobs, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_that_the_target_has_are_not_copied_again() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path(), &Packing::default());
    let root = dir.path().join("target");
    let target = at(&root);
    let first = copy(&source, &target).await.unwrap();
    // One blob is lost, one is cut short.
    let layers = OpenImage::open(&source).unwrap().manifest.layers;
    let path = |digest: &Digest| root.join("blobs/sha256").join(digest.hex());
    fs::remove_file(path(&layers[0].blob.digest)).unwrap();
    fs::File::options().write(true).open(path(&layers[1].blob.digest)).unwrap().set_len(100).unwrap();
    let again = copy(&source, &target).await.unwrap();
    assert_eq!((again.copied, again.present, again.digest), (2, first.copied - 2, first.digest));
    let third = copy(&source, &target).await.unwrap();
    assert_eq!((third.copied, third.copied_bytes, third.present_bytes), (0, 0, first.copied_bytes));

    // While a copy may be under way, prune keeps blobs without an image.
    let stray = Digest::of(b"stray");
    target.put_blob(&stray, Arc::new(b"stray".to_vec()), &|_| Ok(())).await.unwrap();
    assert_eq!(ImageStore::open(&root).unwrap().prune(&AT_ONCE).unwrap().blobs, 0);
    drop(target);
    assert_eq!(ImageStore::open(&root).unwrap().prune(&AT_ONCE).unwrap().blobs, 1);
}

/// A blob of many MiB whose source records the ranges that were read, and breaks off once at `fails_at`.
struct Interrupted {
    bytes: Vec<u8>,
    reads: Mutex<Vec<u64>>,
    fails_at: AtomicU64,
}

impl ReadAt for Interrupted {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset >= self.fails_at.load(Ordering::Relaxed) {
            self.fails_at.store(u64::MAX, Ordering::Relaxed);
            // Not of a kind that is tried again.
            return Err(Error::new(ErrorKind::Denied, "broke off"));
        }
        self.reads.lock().unwrap().push(offset);
        self.bytes.as_slice().read_at(buf, offset)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_broke_off_goes_on_within_the_blob() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(5, 40 * MIB);
    let digest = Digest::of(&bytes);
    let partial = dir.path().join("target/.headstart/partial").join(digest.hex());
    let blob = dir.path().join("target/blobs/sha256").join(digest.hex());
    let put = async |source: &Arc<Interrupted>| {
        let source = Arc::clone(source) as Arc<dyn ReadAt>;
        at(&dir.path().join("target")).put_blob(&digest, source, &|_| Ok(())).await
    };
    for damaged in [false, true] {
        let fails_at = AtomicU64::new(20 * MIB as u64);
        let source = Arc::new(Interrupted { bytes: bytes.clone(), reads: Mutex::default(), fails_at });
        assert_eq!(put(&source).await.unwrap_err().kind(), ErrorKind::Denied);
        let there = fs::metadata(&partial).unwrap().len();
        assert!(there >= 8 * MIB as u64, "{there} bytes were kept");
        if damaged {
            // As a power cut may leave it.
            std::os::unix::fs::FileExt::write_all_at(
                &fs::File::options().write(true).open(&partial).unwrap(),
                &[0; 4096],
                MIB as u64,
            )
            .unwrap();
        }
        source.reads.lock().unwrap().clear();
        put(&source).await.unwrap();
        assert!(fs::read(&blob).unwrap() == bytes && !partial.exists());
        let again: Vec<u64> = source.reads.lock().unwrap().clone();
        assert_eq!(again.iter().any(|offset| *offset < there), damaged, "{again:?}");
        fs::remove_file(&blob).unwrap();
    }
    // Prune removes partial blobs that no copy continues.
    fs::write(&partial, &bytes[..9 * MIB]).unwrap();
    let report = ImageStore::open(dir.path().join("target")).unwrap().prune(&AT_ONCE).unwrap();
    assert_eq!((report.stale_bytes, partial.exists()), (9 * MIB as u64, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_at_the_source_is_not_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path(), &Packing::default());
    let layer = OpenImage::open(&source).unwrap().manifest.layers[0].clone();
    let path = dir.path().join("source/blobs/sha256").join(layer.blob.digest.hex());
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    for target in [at(&dir.path().join("target")), at(&dir.path().join("other"))] {
        let error = copy(&source, &target).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&layer.blob.digest.to_string()), "{error}");
        assert!(target.tags().await.unwrap().is_empty());
        assert_eq!(target.blob_len(&layer.blob.digest).await.unwrap(), None);
    }
    // A lost tree is reported, but stops nothing; a lost layer does.
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let tree = dir.path().join("source/blobs/sha256").join(layer.tree.unwrap().digest.hex());
    fs::remove_file(tree).unwrap();
    // Not if the tree may have been copied before the copy failed.
    let target = at(&dir.path().join("fresh"));
    assert_eq!(copy(&source, &target).await.unwrap().lost_trees, 1);
    fs::remove_file(path).unwrap();
    let error = copy(&source, &at(&dir.path().join("third"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// A progress that stops the copy after some bytes.
#[derive(Default)]
struct Impatient {
    copied: AtomicU64,
    stop: AtomicBool,
}

impl Progress for Impatient {
    fn begin(&self, _: &'static str, total: u64) {
        assert!(total > 3 * MIB as u64);
    }

    fn advance(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
        self.stop.store(self.copied.load(Ordering::Relaxed) > MIB as u64, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_can_be_stopped_even_while_a_store_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path(), &Packing::Plain);
    let target = at(&dir.path().join("target"));
    let from = open(&source.location, &StoreSettings::default()).unwrap();
    let progress = Impatient::default();
    let stopped =
        transfer(&from, &source.selector, &target, &tag(), RetrySettings::default(), &progress).await;
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(target.tags().await.unwrap().is_empty());

    // Also while a store does not answer.
    let deaf = Arc::new(Deaf) as Arc<dyn Store>;
    let progress = Impatient { stop: AtomicBool::new(true), ..Impatient::default() };
    let tag = tag();
    let work = transfer(&deaf, &source.selector, &target, &tag, RetrySettings::default(), &progress);
    let stopped = tokio::time::timeout(Duration::from_secs(60), work).await.unwrap();
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_also_what_is_no_image_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path(), &Packing::default());
    let store = open(&source.location, &StoreSettings::default()).unwrap();
    let other = serde_json::json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": []});
    let other_tag: Tag = "arm".parse().unwrap();
    store.put_manifest(INDEX_OCI, other.to_string().into(), Some(&other_tag)).await.unwrap();
    let listed = list_remote(&*store).await.unwrap();
    let (good, bad): (Vec<_>, Vec<_>) = listed.iter().partition(|entry| entry.image.is_ok());
    assert_eq!((good.len(), bad.len()), (2, 1));
    assert_eq!((bad[0].tag.as_deref(), bad[0].digest), (Some("arm"), None));
    assert_eq!(bad[0].image.as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// A progress that prunes a store at each report of a blob.
struct Pruner(std::path::PathBuf);

impl Progress for Pruner {
    fn begin(&self, _: &'static str, _: u64) {}

    fn advance(&self, bytes: u64) {
        if bytes > 0 {
            ImageStore::open(&self.0).unwrap().prune(&AT_ONCE).unwrap();
        }
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_beside_a_copy_keeps_the_blobs_that_it_found() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path(), &Packing::default());
    let root = dir.path().join("target");
    copy(&source, &at(&root)).await.unwrap();
    ImageStore::open(&root).unwrap().remove(&Selector::Tag(tag())).unwrap();
    let from = open(&source.location, &StoreSettings::default()).unwrap();
    let (target, pruner) = (at(&root), Pruner(root.clone()));
    let again =
        transfer(&from, &source.selector, &target, &tag(), RetrySettings::default(), &pruner).await.unwrap();
    assert_eq!(again.copied, 0);
    let reference: Reference = format!("file://{}:copy", root.display()).parse().unwrap();
    assert!(verify(&reference, Depth::Deep, &Silent).unwrap().problems().next().is_none());
}

/// A store that never answers.
struct Deaf;

#[async_trait]
impl Store for Deaf {
    fn location(&self) -> String {
        "http://deaf".to_owned()
    }

    async fn check(&self) -> Result<()> {
        std::future::pending().await
    }

    async fn manifest(&self, _: &Selector) -> Result<(Digest, Bytes)> {
        std::future::pending().await
    }

    async fn read(&self, _: &Digest, _: ByteRange, _: Urgency) -> Result<Bytes> {
        std::future::pending().await
    }

    async fn blob_len(&self, _: &Digest) -> Result<Option<u64>> {
        std::future::pending().await
    }

    async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
        std::future::pending().await
    }

    async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
        std::future::pending().await
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        std::future::pending().await
    }

    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}

/// A source that records the ranges of its reads.
struct Watched {
    file: FileSource,
    reads: Arc<Mutex<Vec<ByteRange>>>,
}

impl ReadAt for Watched {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.reads.lock().unwrap().push(ByteRange::new(offset, buf.len() as u64).unwrap());
        self.file.read_at(buf, offset)
    }
}

/// Goal: the offset of the index in a layer is that at which opening it begins to read at its end: not later, and not
/// earlier either.
#[test]
fn layers_say_where_their_index_begins() {
    let zfile = |codec, frame_size| {
        (Packing::ZFile(ZFileOptions { codec, frame_size, ..ZFileOptions::default() }), frame_size)
    };
    for (packing, frame_size) in
        [zfile(Codec::Zstd, 32 << 10), zfile(Codec::Lz4, 4 << 10), (Packing::Plain, 4 << 10)]
    {
        let dir = tempfile::tempdir().unwrap();
        let source = import(dir.path(), &packing);
        let store = ImageStore::open(source.directory().unwrap()).unwrap();
        for layer in OpenImage::open(&source).unwrap().manifest.layers {
            let offset = layer.index_offset().unwrap();
            let reads = Arc::new(Mutex::new(Vec::new()));
            let file = store.open_layer(&layer).unwrap();
            let watched = Watched { file, reads: Arc::clone(&reads) };
            let content = open_layer_source(Arc::new(watched)).unwrap();
            Layer::open(content.source).unwrap();
            let reads = reads.lock().unwrap();
            let (head, tail): (Vec<ByteRange>, Vec<_>) =
                reads.iter().partition(|read| read.offset() < offset);
            assert_eq!(tail.iter().map(|read| read.offset()).min(), Some(offset), "{packing:?}");
            // The rest is the header and the frame with the layer's own.
            assert!(head.iter().all(|read| read.end() <= 512 + frame_size as u64), "{head:?}");
        }
    }
}
