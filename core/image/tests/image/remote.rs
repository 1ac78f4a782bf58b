//! Images read in place, in any store: the same results as in a directory, and little is read.

use async_trait::async_trait;
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use headstart_image::disk_file::DiskFile;
use headstart_image::import::import_disk;
use headstart_image::manifest::Manifest;
use headstart_image::new_layer::Packing;
use headstart_image::open_image::{Coverage, OpenImage};
use headstart_image::progress::Silent;
use headstart_image::reference::{Reference, Selector, Tag};
use headstart_image::remote::RemoteImage;
use headstart_image::verify::{Depth, Verdict, verify, verify_remote};
use headstart_store::{Copied, RetrySettings, Store, StoreCounters, StoreSettings, Urgency, open};
use headstart_testkit::disk::noise;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const MIB: usize = 1 << 20;

/// A store in front of a directory that counts, and that loses and damages blobs.
struct Front {
    store: Arc<dyn Store>,
    /// The answer for a blob: `None` if it is lost.
    changed: Mutex<BTreeMap<Digest, Option<Vec<u8>>>>,
    reads: AtomicU64,
    bytes: AtomicU64,
    /// The most reads that were under way at once.
    at_once: AtomicU64,
    now: AtomicU64,
}

impl Front {
    fn lose(&self, blob: &Digest) {
        self.changed.lock().unwrap().insert(*blob, None);
    }

    fn change(&self, blob: &Digest, bytes: Vec<u8>) {
        self.changed.lock().unwrap().insert(*blob, Some(bytes));
    }
}

#[async_trait]
impl Store for Front {
    fn location(&self) -> String {
        "oci://registry/repo".to_owned()
    }

    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.store.manifest(selector).await
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(range.len(), Ordering::Relaxed);
        self.at_once.fetch_max(self.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.now.fetch_sub(1, Ordering::Relaxed);
        let changed = self.changed.lock().unwrap().get(blob).cloned();
        match changed {
            Some(None) => Err(Error::new(ErrorKind::NotFound, "no such blob")),
            Some(Some(bytes)) => {
                let wanted = usize::try_from(range.offset()).unwrap()..usize::try_from(range.end()).unwrap();
                let bytes = bytes.get(wanted).ok_or_else(|| Error::corrupt("past the end"))?;
                Ok(Bytes::copy_from_slice(bytes))
            }
            None => self.store.read(blob, range, urgency).await,
        }
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        let changed = self.changed.lock().unwrap().get(blob).cloned();
        match changed {
            Some(changed) => Ok(changed.map(|bytes| bytes.len() as u64)),
            None => self.store.blob_len(blob).await,
        }
    }

    async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::ReadOnly, "only read here"))
    }

    async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
        Err(Error::new(ErrorKind::ReadOnly, "only read here"))
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        Ok(Vec::new())
    }

    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}

/// An image of two layers in a directory, and a store in front of that.
struct Scene {
    dir: TempDir,
    image: Reference,
    front: Arc<Front>,
    runtime: Runtime,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = |tag: &str| -> Reference {
            format!("file://{}/store:{tag}", dir.path().display()).parse().unwrap()
        };
        let disk = dir.path().join("disk.raw");
        let mut bytes = noise(0, 16 * MIB);
        fs::write(&disk, &bytes).unwrap();
        import_disk(&DiskFile::at(disk.clone()), None, &image("base"), &Packing::default(), &Silent).unwrap();
        bytes[MIB..6 * MIB].copy_from_slice(&noise(1 << 40, 5 * MIB));
        fs::write(&disk, &bytes).unwrap();
        let base = image("base");
        import_disk(&DiskFile::at(disk), Some(&base), &image("top"), &Packing::default(), &Silent).unwrap();
        let image = image("top");
        let front = Arc::new(Front {
            store: open(&image.location, &StoreSettings::default()).unwrap(),
            changed: Mutex::default(),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            at_once: AtomicU64::new(0),
            now: AtomicU64::new(0),
        });
        Self { dir, image, front, runtime: Runtime::new().unwrap() }
    }

    fn remote(&self) -> Result<RemoteImage> {
        let (store, handle) = (Arc::clone(&self.front) as Arc<dyn Store>, self.runtime.handle().clone());
        let retry = RetrySettings { deadline: Duration::ZERO, ..RetrySettings::default() };
        RemoteImage::open(store, &self.image, retry, handle)
    }

    fn manifest(&self) -> Manifest {
        OpenImage::open(&self.image).unwrap().manifest
    }

    fn blob(&self, digest: &Digest) -> Vec<u8> {
        fs::read(self.dir.path().join("store/blobs/sha256").join(digest.hex())).unwrap()
    }

    /// The error of opening it.
    fn refusal(&self) -> Error {
        self.remote().and_then(|remote| OpenImage::open_remote(&remote)).map(drop).unwrap_err()
    }

    fn verdict(&self) -> Verdict {
        verify_remote(&self.remote().unwrap(), &Silent).unwrap()
    }
}

#[test]
fn verify_and_inspect_report_the_same_as_for_a_directory() {
    let scene = Scene::new();
    let here = OpenImage::open(&scene.image).unwrap();
    let there = OpenImage::open_remote(&scene.remote().unwrap()).unwrap();
    assert_eq!((there.digest, &there.manifest), (here.digest, &here.manifest));
    assert_eq!(there.data_bytes(), here.data_bytes());
    assert_eq!(there.disk().index().len(), here.disk().index().len());
    assert_eq!(there.layers.len(), 2);
    for (there, here) in there.layers.iter().zip(&here.layers) {
        assert_eq!((there.segments, there.data_bytes), (here.segments, here.data_bytes));
        assert_eq!(there.source.wrappers(), here.source.wrappers());
        assert_eq!((there.coverage(), there.info.uuid), (Coverage::Tree, here.info.uuid));
    }
    // Heads, ends and pages of trees alone, and all at once.
    let (reads, bytes) =
        (scene.front.reads.load(Ordering::Relaxed), scene.front.bytes.load(Ordering::Relaxed));
    assert!(reads <= 16 && bytes < 2 << 20, "{reads} reads of {bytes} bytes");
    assert!(bytes < here.manifest.stored_size() / 4, "{bytes} bytes");
    assert!(scene.front.at_once.load(Ordering::Relaxed) >= 4);
    let verdict = scene.verdict();
    assert_eq!(verdict.problems().count(), 0, "{verdict:?}");
    let there: Vec<_> = verdict.layers.iter().map(|layer| layer.blob).collect();
    let here: Vec<_> = verify(&scene.image, Depth::Quick, &Silent).unwrap().layers;
    assert_eq!(there, here.iter().map(|layer| layer.blob).collect::<Vec<_>>());
}

#[test]
fn a_missing_blob_is_named() {
    let scene = Scene::new();
    let manifest = scene.manifest();
    let layer = &manifest.layers[1];
    scene.front.lose(&layer.blob.digest);
    let error = scene.refusal();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    for part in [layer.blob.digest.to_string().as_str(), "oci://registry/repo", "is not there"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    scene.front.lose(&manifest.config.digest);
    let verdict = scene.verdict();
    assert!(verdict.config.is_err() && verdict.layers[0].verdict.is_ok(), "{verdict:?}");
    assert_eq!(verdict.layers[1].verdict.as_ref().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_lost_hash_tree_hides_no_image() {
    let scene = Scene::new();
    let manifest = scene.manifest();
    scene.front.lose(&manifest.layers[0].tree.unwrap().digest);
    assert_eq!(OpenImage::open_remote(&scene.remote().unwrap()).unwrap().layers.len(), 2);
    // But its absence must be reported.
    let verdict = scene.verdict();
    let problem = verdict.layers[0].verdict.as_ref().unwrap_err();
    assert!(problem.kind() == ErrorKind::NotFound && problem.to_string().contains("hash tree"), "{problem}");
    assert!(verdict.layers[1].verdict.is_ok());
}

#[test]
fn damage_is_found_by_the_hash_tree() {
    let scene = Scene::new();
    let manifest = scene.manifest();
    let (blob, tree) = (manifest.layers[0].blob.digest, manifest.layers[0].tree.unwrap().digest);
    let bytes = scene.blob(&blob);
    // In the index; in the header; and one byte more or less than there should be.
    for place in [bytes.len() - 3000, 100] {
        let mut wrong = bytes.clone();
        wrong[place] ^= 1;
        scene.front.change(&blob, wrong);
        let error = scene.refusal();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{place}: {error}");
        assert!(error.to_string().contains(&blob.to_string()), "{error}");
    }
    for len in [bytes.len() - 1, bytes.len() + 1] {
        let mut wrong = bytes.clone();
        wrong.resize(len, 0);
        scene.front.change(&blob, wrong);
        let error = scene.refusal();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("manifest says"), "{error}");
    }
    scene.front.change(&blob, bytes);
    let mut wrong = scene.blob(&tree);
    *wrong.last_mut().unwrap() ^= 1;
    scene.front.change(&tree, wrong);
    let verdict = scene.verdict();
    let problem = verdict.layers[0].verdict.as_ref().unwrap_err();
    assert!(problem.kind() == ErrorKind::Corrupt && problem.to_string().contains("hash tree"), "{problem}");
}

#[test]
fn an_image_in_a_directory_that_is_no_store_is_not_there() {
    let scene = Scene::new();
    let nowhere = Path::new("/nonexistent");
    let reference: Reference = format!("file://{}/x:y", nowhere.display()).parse().unwrap();
    let store = open(&reference.location, &StoreSettings::default()).unwrap();
    let handle = scene.runtime.handle().clone();
    let error = RemoteImage::open(store, &reference, RetrySettings::default(), handle).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
