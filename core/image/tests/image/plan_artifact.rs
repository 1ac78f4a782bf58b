//! Plans that travel with images: published, found, replaced, copied, pruned; and traces in acceleration layers.

use async_trait::async_trait;
use bytes::Bytes;
use headstart_block::{BlockDevice, ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use headstart_image::acceleration::{trace_of, with_trace};
use headstart_image::disk_file::DiskFile;
use headstart_image::import::import_disk;
use headstart_image::manifest::{BLOB_DIGEST, MANIFEST_OCI, Manifest};
use headstart_image::new_layer::Packing;
use headstart_image::open_image::OpenImage;
use headstart_image::plan_artifact::{About, FoundPlan, GENERATION, PLAN, Published, TRACES, find, publish};
use headstart_image::progress::Silent;
use headstart_image::reference::{Location, Reference, Selector, Tag};
use headstart_image::store::{ImageStore, PruneOptions};
use headstart_image::transfer::{PlanFate, TransferReport, transfer};
use headstart_image::verify::{Depth, verify};
use headstart_store::{Copied, Referrer, RetrySettings, Store, StoreCounters, StoreSettings, Urgency, open};
use headstart_testkit::memory_registry::{Manners, MemoryRegistry};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The bounds of a prune that deletes images as soon as they lose their last name.
const AT_ONCE: PruneOptions =
    PruneOptions { now: SystemTime::UNIX_EPOCH, older_than: Duration::ZERO, force: false, dry_run: false };

const MIB: usize = 1 << 20;

/// A small image, `source:v1`.
fn import(dir: &Path) -> Reference {
    let image: Reference = format!("file://{}/source:v1", dir.display()).parse().unwrap();
    let disk = dir.join("disk.raw");
    let noise = (0..2 * MIB as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
    fs::write(&disk, noise.collect::<Vec<u8>>()).unwrap();
    import_disk(&DiskFile::at(disk), None, &image, &Packing::default(), &Silent).unwrap();
    image
}

fn at(path: &Path) -> Arc<dyn Store> {
    open(&Location::Directory(path.to_owned()), &StoreSettings::default()).unwrap()
}

fn in_registry(registry: &MemoryRegistry) -> Arc<dyn Store> {
    let settings = StoreSettings {
        plain_http: vec![registry.host()],
        docker_config: Some(Path::new("/nonexistent").to_owned()),
        ..StoreSettings::default()
    };
    let location = Location::Registry { host: registry.host(), repository: "vm/disk".to_owned() };
    open(&location, &settings).unwrap()
}

async fn digest(store: &Arc<dyn Store>) -> Digest {
    store.manifest(&Selector::Tag("v1".parse().unwrap())).await.unwrap().0
}

fn about(traces: u64) -> About {
    About { traces, policy: "search".to_owned(), ..About::default() }
}

/// A store that counts its writers, and may refuse their writes.
struct Announced {
    store: Arc<dyn Store>,
    writers: AtomicU64,
    begun: AtomicU64,
    refuses: bool,
}

#[async_trait]
impl Store for Announced {
    fn location(&self) -> String {
        self.store.location()
    }

    async fn check(&self) -> Result<()> {
        self.store.check().await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.store.manifest(selector).await
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        self.store.read(blob, range, urgency).await
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        self.store.blob_len(blob).await
    }

    async fn prepare_to_write(&self) -> Result<()> {
        self.writers.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.store.prepare_to_write().await
    }

    async fn done_writing(&self) {
        self.writers.fetch_sub(1, Ordering::SeqCst);
        self.store.done_writing().await;
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        if self.refuses {
            return Err(Error::new(ErrorKind::Denied, "no"));
        }
        self.store.put_blob(digest, source, copied).await
    }

    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        self.store.put_manifest(media_type, bytes, tag).await
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        self.store.tags().await
    }

    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        self.store.referrers(subject, artifact_type).await
    }

    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        self.store.put_referrer(subject, media_type, bytes, replaced).await
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }
}

/// Goal: a writer of a plan reports its end, because a prune of an object store gives way to writers.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_a_plan_reports_its_end() {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path());
    for refuses in [true, false] {
        let store = at(&dir.path().join("source"));
        let image = digest(&store).await;
        let (writers, begun) = (AtomicU64::new(0), AtomicU64::new(0));
        let announced = Arc::new(Announced { store, writers, begun, refuses });
        let store = Arc::clone(&announced) as Arc<dyn Store>;
        let published = publish(&store, &image, "a plan".into(), &about(1)).await;
        let traced = with_trace(&store, &image, b"a trace", &"fast".parse().unwrap()).await;
        assert_eq!([published.is_err(), traced.is_err()], [refuses; 2]);
        assert_eq!(announced.begun.load(Ordering::SeqCst), 2);
        assert_eq!(announced.writers.load(Ordering::SeqCst), 0);
    }
}

async fn put(store: &Arc<dyn Store>, plan: &'static str, traces: u64) -> Published {
    let image = digest(store).await;
    publish(store, &image, plan.into(), &about(traces)).await.unwrap()
}

async fn found(store: &Arc<dyn Store>) -> Option<FoundPlan> {
    find(&**store, &digest(store).await).await.unwrap()
}

async fn copy(source: &Arc<dyn Store>, target: &Arc<dyn Store>) -> TransferReport {
    let tag: Tag = "v1".parse().unwrap();
    transfer(source, &Selector::Tag(tag.clone()), target, &tag, RetrySettings::default(), &Silent)
        .await
        .unwrap()
}

fn blobs(root: &Path) -> usize {
    fs::read_dir(root.join("blobs/sha256")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_published_once_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path());
    let root = dir.path().join("source");
    let store = at(&root);
    let image = digest(&store).await;
    let before = blobs(&root);
    assert_eq!(found(&store).await, None);
    let first = put(&store, "a plan", 5).await;
    assert_eq!((first.generation, first.is_new), (1, true));
    let again = put(&store, "a plan", 5).await;
    assert_eq!(again, Published { is_new: false, ..first.clone() });
    let plan = found(&store).await.unwrap();
    assert_eq!((&plan.bytes[..], plan.digest, plan.generation), (&b"a plan"[..], first.digest, 1));
    assert_eq!(plan.about, about(5));
    assert_eq!(digest(&store).await, image, "the image stays what it is");
    let images = ImageStore::open(&root).unwrap();
    assert_eq!(images.list().unwrap().len(), 1, "a list of plans is not an image");

    // The replaced artifact is listed no longer, and pruned.
    drop(store);
    assert_eq!(images.prune(&AT_ONCE).unwrap().blobs, 0);
    let store = at(&root);
    let second = put(&store, "a better plan", 6).await;
    assert_eq!((second.generation, second.is_new), (2, true));
    assert_eq!(found(&store).await.unwrap().digest, second.digest);
    drop(store);
    // The old list, manifest and file.
    assert_eq!(images.prune(&AT_ONCE).unwrap().blobs, 3);
    let store = at(&root);
    assert_eq!(&found(&store).await.unwrap().bytes[..], b"a better plan");
    // The new ones, and the empty config.
    assert_eq!(blobs(&root), before + 4);
    assert!(verify(&source, Depth::Deep, &Silent).unwrap().problems().next().is_none());
    let none = publish(&store, &Digest::of(b"?"), "x".into(), &about(1)).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    assert!(publish(&store, &image, Bytes::new(), &about(1)).await.is_err());

    // Without the image there is no plan.
    drop(store);
    images.tag(&image, &"other".parse().unwrap()).unwrap();
    images.remove(&source.selector).unwrap();
    assert_eq!(images.prune(&AT_ONCE).unwrap().blobs, 0);
    images.remove(&Selector::Tag("other".parse().unwrap())).unwrap();
    assert_eq!(images.prune(&AT_ONCE).unwrap().kept_blobs, 0);
    assert_eq!(blobs(&root), 0);
    let index: Value = serde_json::from_slice(&fs::read(root.join("index.json")).unwrap()).unwrap();
    assert_eq!(index["manifests"], json!([]));
    assert_eq!(images.prune(&AT_ONCE).unwrap().blobs, 0);
}

/// Goal: the same plan is the same artifact in all stores, also if it is published first in any of them.
#[tokio::test(flavor = "multi_thread")]
async fn directories_and_registries_find_the_same_plan() {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path());
    let here = at(&dir.path().join("source"));
    let lists = MemoryRegistry::start(Manners { lists: Some(10), ..Manners::default() }).await;
    let tags = MemoryRegistry::start(Manners::default()).await;
    for store in [at(&dir.path().join("copy")), in_registry(&lists), in_registry(&tags)] {
        copy(&here, &store).await;
        let there = put(&store, "a plan", 5).await;
        assert!(there.is_new && found(&store).await.unwrap().digest == there.digest);
        assert!(!put(&store, "a plan", 5).await.is_new);
        let image = digest(&store).await;
        let (_, manifest) = store.manifest(&Selector::Digest(there.digest)).await.unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let (_, subject) = store.manifest(&Selector::Digest(image)).await.unwrap();
        let expected =
            json!({ "mediaType": MANIFEST_OCI, "digest": image.to_string(), "size": subject.len() });
        assert_eq!((&manifest["subject"], &manifest["artifactType"]), (&expected, &PLAN.into()));
    }
    let first = put(&here, "a plan", 5).await;
    assert_eq!(found(&in_registry(&lists)).await.unwrap().digest, first.digest);
}

/// An artifact with plans, with any fault.
async fn put_raw(store: &Arc<dyn Store>, image: &Digest, edit: impl FnOnce(&mut Value)) -> Digest {
    for blob in [&b"plan"[..], b"{}"] {
        store.put_blob(&Digest::of(blob), Arc::new(blob.to_vec()), &|_| Ok(())).await.unwrap();
    }
    let mut manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST_OCI, "artifactType": PLAN,
        "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2 },
        "layers": [{ "mediaType": PLAN, "digest": Digest::of(b"plan"), "size": 4 }],
        "subject": { "mediaType": MANIFEST_OCI, "digest": image, "size": 7 },
        "annotations": { GENERATION: "7", TRACES: "1" },
    });
    edit(&mut manifest);
    store.put_referrer(image, MANIFEST_OCI, manifest.to_string().into(), &[]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_the_newest_sound_one_counts() {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path());
    let store = at(&dir.path().join("source"));
    let image = digest(&store).await;
    let low = put_raw(&store, &image, |m| m["annotations"][GENERATION] = "6".into()).await;
    assert_eq!(found(&store).await.unwrap().digest, low);
    let a = put_raw(&store, &image, |_| ()).await;
    assert_eq!(found(&store).await.unwrap().digest, a);
    let b = put_raw(&store, &image, |m| m["annotations"]["x"] = "y".into()).await;
    assert_eq!(found(&store).await.unwrap().digest, a.max(b), "whoever listed it first");
    let more = put_raw(&store, &image, |m| m["annotations"][TRACES] = "2".into()).await;
    assert_eq!(found(&store).await.unwrap().digest, more);
    // Wrong artifacts are skipped, even with the newest generation.
    type Edit = fn(&mut Value);
    let wrong: [Edit; 3] = [
        |m| m["subject"]["digest"] = Digest::of(b"another image").to_string().into(),
        |m| m["layers"] = json!([]),
        |m| m["layers"][0]["size"] = (1_u64 << 40).into(),
    ];
    for (n, edit) in wrong.into_iter().enumerate() {
        put_raw(&store, &image, |m| {
            m["annotations"][GENERATION] = "99".into();
            m["annotations"]["n"] = n.to_string().into();
            edit(m);
        })
        .await;
        assert_eq!(found(&store).await.unwrap().digest, more, "wrong {n}");
    }
    // The next publication comes after the newest sound one, and takes the place of all.
    let next = put(&store, "next", 3).await;
    assert_eq!(next.generation, 8);
    assert_eq!(store.referrers(&image, PLAN).await.unwrap().len(), 1);
    assert_eq!(found(&store).await.unwrap().digest, next.digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_and_lists_that_were_changed_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    import(dir.path());
    let registry = MemoryRegistry::start(Manners { lists: Some(10), ..Manners::default() }).await;
    let store = in_registry(&registry);
    copy(&at(&dir.path().join("source")), &store).await;
    let image = digest(&store).await;
    put(&store, "plan", 1).await;
    registry.replace_blob(&Digest::of(b"plan"), "nalp".into());
    assert_eq!(find(&*store, &image).await.unwrap_err().kind(), ErrorKind::Corrupt);
    registry.set(Manners { nonsense: Some((200, "nonsense")), ..Manners::default() });
    assert_eq!(find(&*store, &image).await.unwrap_err().kind(), ErrorKind::Corrupt);
    // The image can be copied nevertheless.
    let copied = copy(&store, &at(&dir.path().join("copy"))).await;
    assert_eq!(copied.plan, PlanFate::Lost);
    assert_eq!(copied.digest, Some(image));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_take_the_newest_plan_along() {
    for lists in [None, Some(1)] {
        let dir = tempfile::tempdir().unwrap();
        let source = import(dir.path());
        let here = at(&dir.path().join("source"));
        let registry = MemoryRegistry::start(Manners { lists, ..Manners::default() }).await;
        let there = in_registry(&registry);
        assert_eq!(copy(&here, &there).await.plan, PlanFate::Unchanged);
        let first = put(&here, "first", 1).await;
        assert_eq!(copy(&here, &there).await.plan, PlanFate::Copied(first.digest));
        assert_eq!(copy(&here, &there).await.plan, PlanFate::Unchanged);
        assert_eq!(found(&there).await.unwrap().digest, first.digest);
        // A plan that is made there, and copied back.
        let second = put(&there, "second", 2).await;
        assert_eq!((second.generation, second.is_new), (2, true));
        assert_eq!(copy(&here, &there).await.plan, PlanFate::Unchanged, "an older one changes nothing");
        assert_eq!(copy(&there, &here).await.plan, PlanFate::Copied(second.digest));
        assert_eq!(&found(&here).await.unwrap().bytes[..], b"second");
        let image = digest(&here).await;
        assert_eq!(here.referrers(&image, PLAN).await.unwrap().len(), 1);
        // To a place that has nothing.
        let fresh = at(&dir.path().join("fresh"));
        let copied = copy(&there, &fresh).await;
        assert_eq!((copied.plan, copied.digest), (PlanFate::Copied(second.digest), Some(image)));
        drop((here, fresh));
        let fresh = ImageStore::open(dir.path().join("fresh")).unwrap();
        assert_eq!(fresh.prune(&AT_ONCE).unwrap().blobs, 0);
        assert!(verify(&source, Depth::Deep, &Silent).unwrap().problems().next().is_none());
    }
}

async fn manifest(store: &Arc<dyn Store>, tag: &str) -> (Digest, Manifest) {
    let (digest, bytes) = store.manifest(&Selector::Tag(tag.parse().unwrap())).await.unwrap();
    (digest, Manifest::parse(&bytes).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_travels_as_a_layer() {
    let dir = tempfile::tempdir().unwrap();
    let source = import(dir.path());
    let here = at(&dir.path().join("source"));
    let (image, plain) = manifest(&here, "v1").await;
    assert_eq!(trace_of(&*here, &plain).await.unwrap(), None);
    let tag: Tag = "fast".parse().unwrap();
    let made = with_trace(&here, &image, b"a trace", &tag).await.unwrap();
    assert_eq!(with_trace(&here, &image, b"a trace", &tag).await.unwrap(), made, "the same again");
    let (digest, fast) = manifest(&here, "fast").await;
    assert_eq!((digest, fast.layers.len()), (made, plain.layers.len() + 1));
    assert_eq!(fast.disk_layers().collect::<Vec<_>>(), plain.disk_layers().collect::<Vec<_>>());
    let trace = fast.layers.last().unwrap();
    assert!(trace.is_acceleration() && trace.annotations.contains_key(BLOB_DIGEST));
    assert_eq!((fast.optimized_from(), fast.virtual_size), (Some(image), plain.virtual_size));
    assert_eq!(trace_of(&*here, &fast).await.unwrap().unwrap(), &b"a trace"[..]);
    // Another trace takes its place; the image from which it was made is still the first one.
    let other = with_trace(&here, &made, b"another trace", &tag).await.unwrap();
    let (digest, faster) = manifest(&here, "fast").await;
    assert_eq!((digest, faster.layers.len()), (other, plain.layers.len() + 1));
    assert_eq!(
        (faster.optimized_from(), trace_of(&*here, &faster).await.unwrap().unwrap().len()),
        (Some(image), 13)
    );

    // The new image is one like others: the same disk, right in all parts, and it can be copied.
    let fast: Reference = format!("file://{}/source:fast", dir.path().display()).parse().unwrap();
    let [before, after] = [&source, &fast].map(|image| OpenImage::open(image).unwrap().into_disk());
    assert_eq!(before.size(), after.size());
    let read = |disk: &dyn BlockDevice| {
        let mut bytes = vec![0; 2 * MIB];
        disk.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert!(read(&before) == read(&after));
    assert!(verify(&fast, Depth::Deep, &Silent).unwrap().problems().next().is_none());
    let store = ImageStore::open(dir.path().join("source")).unwrap();
    let config = store.config(&faster).unwrap();
    assert_eq!(config.diff_ids(), faster.layers.iter().map(|l| l.blob.digest).collect::<Vec<_>>());
    let registry = MemoryRegistry::start(Manners::default()).await;
    let there = in_registry(&registry);
    let copied =
        transfer(&here, &fast.selector, &there, &tag, RetrySettings::default(), &Silent).await.unwrap();
    assert_eq!(copied.digest, Some(other));
    let (_, there_too) = manifest(&there, "fast").await;
    assert_eq!(trace_of(&*there, &there_too).await.unwrap().unwrap(), &b"another trace"[..]);
    // In a registry it keeps its hash trees by an artifact of its own.
    let third = with_trace(&there, &other, b"third", &tag).await.unwrap();
    let trees = there.referrers(&third, headstart_image::transfer::HASH_TREES).await.unwrap();
    assert_eq!(trees.len(), 1);
    drop(here);
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 3, "the first trace's layer, config and manifest");
}
