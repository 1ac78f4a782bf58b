//! The requests that work with a registry takes, and those of them that wait for each other: `docker-registry` behind a
//! proxy that answers late.

use bytes::Bytes;
use futures::future::join_all;
use headstart_block::{ByteRange, Digest};
use headstart_store::media_type::INDEX_OCI;
use headstart_store::{Location, Selector, Store, StoreSettings, Urgency, open};
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, Log};
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The time that an answer takes: much longer than to send requests that do not wait for it.
const LATE: Duration = Duration::from_millis(300);

/// A repository of a registry, and the proxy before it.
struct Scene {
    store: Arc<dyn Store>,
    proxy: FaultProxy,
    _registry: Registry,
}

impl Scene {
    async fn new() -> Option<Self> {
        let registry = Registry::start(RegistryAccess::Open)?;
        let proxy = FaultProxy::start(registry.address());
        let host = proxy.addr().to_string();
        let store = open_through(&host);
        store.check().await.unwrap();
        proxy.add(FaultRule::new(Fault::Late(LATE)));
        Some(Self { store, proxy, _registry: registry })
    }

    /// The same repository as another program opens it, which knows nothing of the registry yet.
    fn reopened(&self) -> Arc<dyn Store> {
        open_through(&self.proxy.addr().to_string())
    }

    async fn put(&self, bytes: &Bytes) {
        self.store.put_blob(&Digest::of(bytes), Arc::new(bytes.to_vec()), &|_| Ok(())).await.unwrap();
    }

    /// The requests since the last call: their log, and their methods in alphabetical order.
    fn asked(&self) -> (Log, String) {
        let log = self.proxy.log();
        self.proxy.clear_log();
        let mut methods: Vec<_> = log.iter().map(|request| request.asked.method.clone()).collect();
        methods.sort();
        (log, methods.join(" "))
    }
}

fn open_through(host: &str) -> Arc<dyn Store> {
    let location = Location::Registry { host: host.to_owned(), repository: "team/disk".to_owned() };
    let settings =
        StoreSettings { plain_http: vec![host.to_owned()], hedge: None, ..StoreSettings::default() };
    open(&location, &settings).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upload_of_a_small_blob_begins_while_the_registry_is_asked_for_it() {
    let Some(scene) = Scene::new().await else { return };
    let small = Bytes::from_static(b"small");
    scene.asked();
    scene.put(&small).await;
    let (log, methods) = scene.asked();
    assert_eq!((methods.as_str(), log.in_sequence()), ("HEAD POST PUT", 2), "{log}");
    // The upload that is not needed leaves nothing.
    scene.put(&small).await;
    let (log, methods) = scene.asked();
    assert_eq!((methods.as_str(), log.in_sequence()), ("DELETE HEAD POST", 2), "{log}");
    assert!(log.iter().all(|request| (200..300).contains(&request.status)), "{log}");
    assert_eq!(scene.store.blob_len(&Digest::of(&small)).await.unwrap(), Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_is_not_asked_twice_for_a_blob_that_it_does_not_have() {
    let Some(scene) = Scene::new().await else { return };
    let large = Bytes::from(vec![7; 100_000]);
    let digest = Digest::of(&large);
    scene.asked();
    assert_eq!(scene.store.blob_len(&digest).await.unwrap(), None);
    scene.put(&large).await;
    assert_eq!(scene.asked().1, "HEAD POST PUT");
    scene.put(&large).await;
    assert_eq!(scene.asked().1, "HEAD", "the blob may have been written since");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_lists_of_artifacts_are_asked_for_at_once() {
    let Some(scene) = Scene::new().await else { return };
    scene.asked();
    assert_eq!(scene.store.referrers(&Digest::of(b"image"), "plan").await.unwrap(), []);
    let (log, methods) = scene.asked();
    assert_eq!((methods.as_str(), log.in_sequence()), ("GET GET", 1), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_under_the_tag_is_asked_for_once_for_all_kinds_of_artifacts() {
    let Some(scene) = Scene::new().await else { return };
    scene.asked();
    let lists = scene.store.referrers_of_types(&Digest::of(b"image"), &["plan", "trees", "form"]).await;
    assert_eq!(lists.unwrap(), [[], [], []]);
    let (log, methods) = scene.asked();
    assert_eq!((methods.as_str(), log.in_sequence()), ("GET GET GET GET", 1), "{log}");
    assert_eq!(log.to("/manifests/").len(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_hides_nothing_is_asked_for_no_challenge() {
    let Some(scene) = Scene::new().await else { return };
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [] }).to_string();
    let digest = scene.store.put_manifest(INDEX_OCI, index.into(), None).await.unwrap();
    let other = scene.reopened();
    other.document(&Selector::Digest(digest)).await.unwrap();
    scene.asked();
    assert_eq!(other.referrers(&digest, "plan").await.unwrap(), []);
    let (log, methods) = scene.asked();
    assert_eq!((methods.as_str(), log.in_sequence(), log.len()), ("GET GET", 1, 2), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_reads_of_a_blob_wait_for_none_of_them() {
    let Some(scene) = Scene::new().await else { return };
    let blob = Bytes::from_static(b"one blob");
    scene.put(&blob).await;
    let (other, digest) = (scene.reopened(), Digest::of(&blob));
    scene.asked();
    let read = |offset| other.read(&digest, ByteRange::between(offset, offset + 2), Urgency::Demand);
    let parts = join_all([0, 2, 4, 6].map(read)).await;
    assert_eq!(parts.into_iter().map(Result::unwrap).collect::<Vec<_>>(), ["on", "e ", "bl", "ob"]);
    let (log, methods) = scene.asked();
    assert_eq!((methods.as_str(), log.in_sequence()), ("GET GET GET GET", 1), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_wait_for_no_redirect_of_a_registry_that_never_sent_one() {
    let Some(scene) = Scene::new().await else { return };
    let [one, two] = [b"one blob", b"two blob"].map(|text| Bytes::from_static(text));
    scene.put(&one).await;
    scene.put(&two).await;
    let read = async |blob: &Bytes, offset| {
        let range = ByteRange::new(offset, 2).unwrap();
        scene.store.read(&Digest::of(blob), range, Urgency::Demand).await.unwrap()
    };
    assert_eq!(read(&one, 0).await, "on");
    scene.asked();
    assert_eq!(join_all([0, 2, 4, 6].map(|offset| read(&two, offset))).await, ["tw", "o ", "bl", "ob"]);
    let (log, methods) = scene.asked();
    assert_eq!((methods.as_str(), log.in_sequence()), ("GET GET GET GET", 1), "{log}");
}
