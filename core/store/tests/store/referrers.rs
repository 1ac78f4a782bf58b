//! Artifacts of a manifest, in every kind of store: written, listed, replaced.

use bytes::Bytes;
use headstart_block::{Digest, ErrorKind};
use headstart_store::layout::{LayoutDir, referrers_tag};
use headstart_store::media_type::MANIFEST_OCI;
use headstart_store::{Location, RetrySettings, Store, StoreSettings, Tag, open};
use headstart_testkit::memory_registry::{Manners, MemoryRegistry};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const PLAN: &str = "application/vnd.test.plan+x";

fn settings(host: &str) -> StoreSettings {
    StoreSettings {
        plain_http: vec![host.to_owned()],
        docker_config: Some(Path::new("/nonexistent").to_owned()),
        retry: RetrySettings { deadline: Duration::from_secs(1), ..RetrySettings::default() },
        hedge: None,
        ..StoreSettings::default()
    }
}

fn at(host: &str) -> Arc<dyn Store> {
    let location = Location::Registry { host: host.to_owned(), repository: "team/disk".to_owned() };
    open(&location, &settings(host)).unwrap()
}

fn in_directory(path: &Path) -> Arc<dyn Store> {
    open(&Location::Directory(path.to_owned()), &StoreSettings::default()).unwrap()
}

/// An image without layers, under a tag.
async fn image(store: &dyn Store, name: &str) -> Digest {
    store.put_blob(&Digest::of(b"{}"), Arc::new(b"{}".to_vec()), &|_| Ok(())).await.unwrap();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST_OCI, "name": name, "layers": [],
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(b"{}"), "size": 2 },
    });
    let tag: Tag = name.parse().unwrap();
    store.put_manifest(MANIFEST_OCI, manifest.to_string().into(), Some(&tag)).await.unwrap()
}

fn artifact(subject: &Digest, kind: &str, name: &str) -> Bytes {
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST_OCI, "artifactType": kind, "layers": [],
        "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2 },
        "subject": { "mediaType": MANIFEST_OCI, "digest": subject, "size": 7 },
        "annotations": { "name": name },
    });
    manifest.to_string().into()
}

async fn put(store: &dyn Store, subject: &Digest, kind: &str, name: &str, replaced: &[Digest]) -> Digest {
    store.put_referrer(subject, MANIFEST_OCI, artifact(subject, kind, name), replaced).await.unwrap()
}

/// The names of the artifacts that are listed, sorted.
async fn names(store: &dyn Store, subject: &Digest, kind: &str) -> Vec<String> {
    let mut names: Vec<_> = store
        .referrers(subject, kind)
        .await
        .unwrap()
        .into_iter()
        .map(|entry| {
            assert_eq!((entry.media_type.as_str(), entry.artifact_type.as_str()), (MANIFEST_OCI, kind));
            entry.annotations["name"].clone()
        })
        .collect();
    names.sort();
    names
}

/// Checks the behaviour of all stores. `forgets` is `true` if replaced artifacts are no longer listed.
async fn check(store: &dyn Store, forgets: bool) -> Digest {
    let subject = image(store, "v1").await;
    let other = image(store, "v2").await;
    assert_eq!(names(store, &subject, PLAN).await, [""; 0]);
    let first = put(store, &subject, PLAN, "first", &[]).await;
    put(store, &subject, "trees", "trees", &[]).await;
    put(store, &other, PLAN, "other", &[]).await;
    assert_eq!(names(store, &subject, PLAN).await, ["first"]);
    assert_eq!(names(store, &subject, "trees").await, ["trees"]);
    // The same once more changes nothing.
    assert_eq!(put(store, &subject, PLAN, "first", &[first]).await, first);
    assert_eq!(names(store, &subject, PLAN).await, ["first"]);
    put(store, &subject, PLAN, "second", &[first]).await;
    let expected = if forgets { vec!["second"] } else { vec!["first", "second"] };
    assert_eq!(names(store, &subject, PLAN).await, expected);
    assert_eq!(
        (names(store, &other, PLAN).await, names(store, &subject, "trees").await.len()),
        (vec!["other".to_owned()], 1)
    );
    // Lists are no images.
    let tags: Vec<_> = store.tags().await.unwrap().iter().map(ToString::to_string).collect();
    assert!(["v1", "v2"].iter().all(|tag| tags.contains(&(*tag).to_owned())) && tags.len() == 2, "{tags:?}");
    subject
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_kept_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let subject = check(&*in_directory(&root), true).await;
    // Read again, and by way of a web server.
    assert_eq!(names(&*in_directory(&root), &subject, PLAN).await, ["second"]);
    if !Nginx::is_installed() {
        return;
    }
    let nginx = Nginx::serve(&root);
    let location = Location::Http(nginx.url().parse().unwrap());
    let web = open(&location, &StoreSettings::default()).unwrap();
    assert_eq!(names(&*web, &subject, PLAN).await, ["second"]);
    assert_eq!(names(&*web, &Digest::of(b"?"), PLAN).await, [""; 0]);
    let bytes = artifact(&subject, PLAN, "x");
    let error = web.put_referrer(&subject, MANIFEST_OCI, bytes, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

/// Many at once: no writer's artifact is lost.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_a_directory_do_not_undo_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let subject = image(&*in_directory(&root), "v1").await;
    let write = |n: u32| {
        let store = in_directory(&root);
        async move { put(&*store, &subject, PLAN, &format!("{n:02}"), &[]).await }
    };
    futures::future::join_all((0..20).map(write)).await;
    assert_eq!(names(&*in_directory(&root), &subject, PLAN).await.len(), 20);
}

#[tokio::test]
async fn damaged_lists_in_a_directory_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = in_directory(&root);
    let subject = image(&*store, "v1").await;
    put(&*store, &subject, PLAN, "first", &[]).await;
    let layout = LayoutDir::open(&root).unwrap();
    let tag: Tag = referrers_tag(&subject).parse().unwrap();
    let list = layout.index().unwrap().find(&tag).unwrap().digest.unwrap();
    let good = std::fs::read(layout.blob_path(&list)).unwrap();
    std::fs::write(layout.blob_path(&list), b"{}").unwrap();
    assert_eq!(store.referrers(&subject, PLAN).await.unwrap_err().kind(), ErrorKind::Corrupt);
    std::fs::remove_file(layout.blob_path(&list)).unwrap();
    assert_eq!(store.referrers(&subject, PLAN).await.unwrap_err().kind(), ErrorKind::NotFound);
    // A writer begins again.
    put(&*store, &subject, PLAN, "second", &[]).await;
    assert_eq!(names(&*store, &subject, PLAN).await, ["second"]);
    std::fs::write(layout.blob_path(&list), good).unwrap();
    // Blobs that it has must be there.
    let lacking = json!({ "artifactType": PLAN, "config": { "digest": Digest::of(b"gone") }, "layers": [] });
    let error =
        store.put_referrer(&subject, MANIFEST_OCI, lacking.to_string().into(), &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_kept_in_a_registry_that_lists_them_itself() {
    for (page, filters, removes) in [(1, false, false), (2, true, true), (100, false, true)] {
        let manners = Manners { lists: Some(page), filters, removes, ..Manners::default() };
        let registry = MemoryRegistry::start(manners).await;
        let subject = check(&*at(&registry.host()), removes).await;
        assert_eq!(registry.tag(&referrers_tag(&subject)), None, "no list is written beside");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_kept_in_a_registry_that_knows_none() {
    for removes in [false, true] {
        let registry = MemoryRegistry::start(Manners { removes, ..Manners::default() }).await;
        let subject = check(&*at(&registry.host()), true).await;
        assert!(registry.tag(&referrers_tag(&subject)).is_some());
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    check(&*at(&registry.host()), true).await;
}

/// A registry that lists artifacts only after some were written: those under the tag are still found.
#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_found_in_a_registry_that_learned_to_list_them() {
    let registry = MemoryRegistry::start(Manners::default()).await;
    let store = at(&registry.host());
    let subject = image(&*store, "v1").await;
    put(&*store, &subject, PLAN, "first", &[]).await;
    registry.set(Manners { nonsense: Some((200, r#"{"manifests":[]}"#)), ..Manners::default() });
    assert_eq!(names(&*store, &subject, PLAN).await, ["first"]);
    registry.set(Manners { lists: Some(7), ..Manners::default() });
    assert_eq!(names(&*store, &subject, PLAN).await, ["first"]);
}

/// Only an artifact of the same kind and subject is ever removed, whatever a list says.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_keeps_the_other_referrers() {
    let registry = MemoryRegistry::start(Manners { removes: true, ..Manners::default() }).await;
    let store = at(&registry.host());
    let (subject, other) = (image(&*store, "v1").await, image(&*store, "v2").await);
    let trees = put(&*store, &subject, "trees", "trees", &[]).await;
    let theirs = put(&*store, &other, PLAN, "theirs", &[]).await;
    let old = put(&*store, &subject, PLAN, "old", &[]).await;
    let replaced = [subject, other, trees, theirs, old, Digest::of(b"nothing")];
    let new = put(&*store, &subject, PLAN, "new", &replaced).await;
    for kept in [subject, other, trees, theirs, new] {
        assert!(registry.manifest(&kept).is_some());
    }
    assert!(registry.manifest(&old).is_none());
    assert_eq!(names(&*store, &other, PLAN).await, ["theirs"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_lost_is_made_again() {
    for (forgets, works) in [(1, true), (3, true), (100, false)] {
        let registry = MemoryRegistry::start(Manners::default()).await;
        let store = at(&registry.host());
        let subject = image(&*store, "v1").await;
        registry.set(Manners { forgets, ..Manners::default() });
        let bytes = artifact(&subject, PLAN, "plan");
        let done = store.put_referrer(&subject, MANIFEST_OCI, bytes, &[]).await;
        assert_eq!(done.map_err(|e| e.kind()).err(), (!works).then_some(ErrorKind::Conflict));
        let expected: &[&str] = if works { &["plan"] } else { &[] };
        assert_eq!(names(&*store, &subject, PLAN).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_from_a_registry_is_an_error() {
    let registry = MemoryRegistry::start(Manners::default()).await;
    let store = at(&registry.host());
    let subject = image(&*store, "v1").await;
    let endless: &str = Box::leak(format!("{{\"manifests\":[{}]}}", " ".repeat(5 << 20)).into_boxed_str());
    for (status, text, kind) in [
        (200, "<html>welcome</html>", ErrorKind::Corrupt),
        (200, r#"{"manifests":{}}"#, ErrorKind::Corrupt),
        (200, "", ErrorKind::Corrupt),
        (200, endless, ErrorKind::Unsupported),
        (500, "", ErrorKind::Unavailable),
        (403, "", ErrorKind::Denied),
    ] {
        registry.set(Manners { nonsense: Some((status, text)), ..Manners::default() });
        let error = store.referrers(&subject, PLAN).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status} {}: {error}", &text[..text.len().min(20)]);
        assert!(error.to_string().contains("team/disk"), "{error}");
    }
    // The answers of a registry that does not know the question.
    for status in [400, 404, 405, 501] {
        registry.set(Manners { nonsense: Some((status, "what?")), ..Manners::default() });
        assert_eq!(names(&*store, &subject, PLAN).await, [""; 0]);
    }
}

/// A list that leads back to itself ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_leads_back_to_itself_ends() {
    let registry = MemoryRegistry::start(Manners { lists: Some(0), ..Manners::default() }).await;
    let store = at(&registry.host());
    let subject = image(&*store, "v1").await;
    put(&*store, &subject, PLAN, "plan", &[]).await;
    let listing = store.referrers(&subject, PLAN);
    let listed = tokio::time::timeout(Duration::from_secs(60), listing).await.unwrap().unwrap();
    assert_eq!(listed, []);
}
