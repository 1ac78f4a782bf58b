//! Leases, copies and prunes of an object store in memory, where nothing is ever old: prunes run at a later time.

use super::leases::{LEASES, PUSHES};
use super::prune::BucketPruneOptions;
use super::prune_mark::PRUNING;
use super::*;
use crate::layout::{DirectorySeen, HostId, LeaseFacts, LeaseHolder, RecordSeen, Standing};
use headstart_block::random::Random;
use object_store::memory::InMemory;
use std::collections::BTreeSet;
use std::time::SystemTime;

const WEEK: Duration = Duration::from_secs(7 * 86400);

fn store(objects: &Arc<InMemory>) -> BucketStore {
    on(Arc::clone(objects) as Arc<dyn ObjectStore>)
}

fn on(objects: Arc<dyn ObjectStore>) -> BucketStore {
    BucketStore::with(objects, "s3://bucket/a".to_owned(), "a", &StoreSettings::default()).unwrap()
}

fn nothing(_: &Lease) -> LeaseFacts {
    LeaseFacts {
        is_locked: false,
        is_on_local_filesystem: false,
        record: RecordSeen::IsGone,
        process_is_gone: false,
        directory: DirectorySeen::Unknown,
    }
}

/// A month from now: everything is old.
async fn later(store: &BucketStore) -> SystemTime {
    store.store_time().await.unwrap() + 4 * WEEK
}

fn options(dry_run: bool, now: SystemTime) -> BucketPruneOptions {
    BucketPruneOptions { older_than: WEEK, force: false, dry_run, now }
}

fn lease(image: Digest, blobs: Vec<Digest>) -> Lease {
    let host =
        HostId { name: "far".to_owned(), machine: None, boot: "far".to_owned(), root: None, pids: None };
    let holder = LeaseHolder::Writable { dir: "/vm".into(), uuid: image.hex(), filesystem: "1".to_owned() };
    Lease::new(holder, image, blobs, "s3://bucket/a:t".to_owned(), host)
}

/// An image of a layer of its own and one that all have.
struct TestImage {
    manifest: Bytes,
    digest: Digest,
    blobs: [Digest; 2],
}

async fn image(store: &BucketStore, number: u64) -> TestImage {
    let own = format!("layer {number}").into_bytes();
    let blobs = [Digest::of(b"shared"), Digest::of(&own)];
    for bytes in [b"shared".to_vec(), own] {
        store.put_blob(&Digest::of(&bytes), Arc::new(bytes), &|_| Ok(())).await.unwrap();
    }
    let layers: Vec<_> = blobs.iter().map(|blob| serde_json::json!({"digest": blob.to_string()})).collect();
    let config = serde_json::json!({"digest": blobs[0].to_string()});
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers});
    let manifest = Bytes::from(manifest.to_string());
    TestImage { digest: Digest::of(&manifest), manifest, blobs }
}

/// The same image, with a name.
async fn tagged(store: &BucketStore, number: u64, tag: &str) -> TestImage {
    let image = image(store, number).await;
    let tag: Tag = tag.parse().unwrap();
    let put = store.put_manifest(crate::media_type::MANIFEST_OCI, image.manifest.clone(), Some(&tag));
    put.await.unwrap();
    image
}

/// Images of all kinds are tagged, held and pruned: those with a name or a holder are whole, and no others are there.
#[tokio::test]
async fn exactly_what_is_named_or_held_stays() {
    let (mut random, objects) = (Random::new(19), Arc::new(InMemory::new()));
    let store = store(&objects);
    let (mut named, mut held) = ([None::<u64>; 3], BTreeSet::new());
    for round in 0..60 {
        let (number, place) = (random.below(5) as u64, random.below(3));
        let tag = format!("t{place}");
        match random.below(4) {
            0 | 1 => {
                tagged(&store, number, &tag).await;
                named[place] = Some(number);
            }
            2 => {
                // A holder attaches an image by a name.
                let Some(number) = named[place] else { continue };
                let image = image(&store, number).await;
                if held.insert(number) {
                    let lease = lease(image.digest, image.blobs.to_vec());
                    assert!(!store.write_lease(&format!("{number}"), &lease).await.unwrap());
                } else {
                    held.remove(&number);
                    store.delete(&format!("{LEASES}/{number}")).await.unwrap();
                }
            }
            _ => {
                let Some(number) = named[place] else { continue };
                let is_last = named.iter().filter(|named| **named == Some(number)).count() == 1;
                let selector = Selector::Tag(tag.parse().unwrap());
                let removed =
                    store.remove_image(&selector, false, false, later(&store).await, &nothing).await;
                assert_eq!(removed.is_err(), is_last && held.contains(&number), "{removed:?}");
                if removed.is_ok() {
                    named[place] = None;
                }
            }
        }
        if round % 5 == 4 {
            prune_and_check(&store, &named, &held).await;
        }
    }
}

async fn prune_and_check(store: &BucketStore, named: &[Option<u64>], held: &BTreeSet<u64>) {
    store.mark_as_layout().await.unwrap();
    let later = later(store).await;
    let dry = store.prune(&options(true, later), &nothing, None).await.unwrap();
    let mark = store.begin_prune(store.store_time().await.unwrap()).await.unwrap();
    let done = store.prune_at(later, &options(false, later), &nothing, Some(&mark)).await.unwrap();
    store.delete(PRUNING).await.unwrap();
    assert_eq!((dry.blobs, dry.images.len()), (done.blobs, done.images.len()));
    let wanted: BTreeSet<u64> = named.iter().flatten().chain(held).copied().collect();
    for number in 0..5 {
        let own = Digest::of(format!("layer {number}").as_bytes());
        let is_there = store.blob_len(&own).await.unwrap().is_some();
        assert_eq!(is_there, wanted.contains(&number), "image {number} of {wanted:?}");
    }
    let shared = store.blob_len(&Digest::of(b"shared")).await.unwrap();
    assert_eq!(shared.is_some(), !wanted.is_empty());
}

#[tokio::test]
async fn a_prune_deletes_no_young_object() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    let image = image(&store, 1).await;
    store.mark_as_layout().await.unwrap();
    let now = store.store_time().await.unwrap();
    let report = store.prune(&options(false, now), &nothing, None).await.unwrap();
    assert_eq!((report.blobs, report.young_blobs), (0, 2));
    assert!(store.blob_len(&image.blobs[1]).await.unwrap().is_some());
    let too_young = BucketPruneOptions { older_than: WEEK / 2, ..options(true, now) };
    assert_eq!(store.prune(&too_young, &nothing, None).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_damaged_entry_is_refused_before_its_image_can_be_deleted() {
    let store = store(&Arc::new(InMemory::new()));
    for number in 0..2 {
        let made = image(&store, number).await;
        let tag = format!("t{number}").parse().unwrap();
        store.put_manifest(crate::media_type::MANIFEST_OCI, made.manifest, Some(&tag)).await.unwrap();
    }
    let index = store.index().await.unwrap().index.to_bytes().unwrap();
    let damaged = String::from_utf8(index).unwrap().replacen("sha256:", "sha257:", 1);
    store.put(INDEX_FILE, damaged.into(), PutMode::Overwrite).await.unwrap();
    let (now, blobs) = (later(&store).await, store.objects_below("blobs").await.unwrap().len());
    let other = Selector::Tag("t1".parse().unwrap());
    for error in [
        store.tags().await.map(|tags| tags.len()).unwrap_err(),
        store.remove_image(&other, false, false, now, &nothing).await.map(drop).unwrap_err(),
        store.prune_at(now, &options(true, now), &nothing, None).await.map(drop).unwrap_err(),
        store.prune(&options(false, now), &nothing, None).await.map(drop).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("index.json: entry 1 (`t0`) has the digest `sha257:"), "{error}");
    }
    assert_eq!(store.objects_below("blobs").await.unwrap().len(), blobs);
}

#[tokio::test]
async fn copies_and_prunes_do_not_meet() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    // In memory, the version that no object has is that of the first.
    image(&store, 1).await;
    store.mark_as_layout().await.unwrap();
    let options = options(false, store.store_time().await.unwrap());
    store.prepare_to_write().await.unwrap();
    store.prepare_to_write().await.unwrap();
    assert_eq!(store.objects_below(PUSHES).await.unwrap().len(), 1);
    let refused = store.prune(&options, &nothing, None).await.unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Conflict && refused.to_string().contains("being copied"),
        "{refused}"
    );
    // It leaves nothing behind that would keep others out.
    assert_eq!(store.written(PRUNING).await.unwrap(), None);
    store.done_writing().await;
    store.done_writing().await;
    let mark = store.begin_prune(store.store_time().await.unwrap()).await.unwrap();
    drop(mark);
    let other = self::store(&objects);
    for refused in [
        store.prepare_to_write().await.unwrap_err(),
        other.prune(&options, &nothing, None).await.unwrap_err(),
    ] {
        assert!(
            refused.kind() == ErrorKind::Conflict && refused.to_string().contains("prunes it"),
            "{refused}"
        );
    }
    assert!(store.objects_below(PUSHES).await.unwrap().is_empty());
    store.delete(PRUNING).await.unwrap();
    other.prune(&options, &nothing, None).await.unwrap();
}

#[tokio::test]
async fn a_lease_says_whether_a_prune_may_not_have_seen_it() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    let lease = lease(Digest::of(b"i"), Vec::new());
    assert!(!store.write_lease("x", &lease).await.unwrap());
    let mark = store.begin_prune(store.store_time().await.unwrap()).await.unwrap();
    // Nothing waits: all leases are written, again and again.
    for id in ["x", "y", "x"] {
        assert!(store.write_lease(id, &lease).await.unwrap());
    }
    assert_eq!(store.objects_below(LEASES).await.unwrap().len(), 2);
    mark.end(&store).await.unwrap();
    assert!(!store.write_lease("x", &lease).await.unwrap());
}

#[tokio::test]
async fn a_prune_neither_renews_nor_ends_what_another_says() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    let now = store.store_time().await.unwrap();
    let died = store.begin_prune(now).await.unwrap();
    assert!(store.begin_prune(now).await.is_err());
    let later = now + Duration::from_secs(3600);
    let other = store.begin_prune(later).await.unwrap();
    died.end(&store).await.unwrap();
    assert!(store.written(PRUNING).await.unwrap().is_some(), "it is another's");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(200)).await;
    let refused = died.renew(&store).await.unwrap_err();
    assert!(refused.to_string().contains("another process prunes it"), "{refused}");
    other.renew(&store).await.unwrap();
    other.end(&store).await.unwrap();
    assert_eq!(store.written(PRUNING).await.unwrap(), None);
}

/// If two prunes find another one dead, one of them takes its place.
#[tokio::test]
async fn one_of_two_takes_the_place_of_a_prune_that_died() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    let now = store.store_time().await.unwrap();
    store.begin_prune(now).await.unwrap();
    let slow = throttled(&objects, Duration::from_millis(2));
    let later = now + Duration::from_secs(3600);
    let (a, b) = tokio::join!(slow.begin_prune(later), slow.begin_prune(later));
    assert_eq!(usize::from(a.is_ok()) + usize::from(b.is_ok()), 1);
}

/// The same store with slow answers.
fn throttled(objects: &Arc<InMemory>, takes: Duration) -> BucketStore {
    let config = object_store::throttle::ThrottleConfig {
        wait_get_per_call: takes,
        wait_put_per_call: takes,
        ..object_store::throttle::ThrottleConfig::default()
    };
    let objects = object_store::prefix::PrefixStore::new(Arc::clone(objects) as Arc<dyn ObjectStore>, "");
    on(Arc::new(object_store::throttle::ThrottledStore::new(objects, config)))
}

/// A search of minutes does not look like the end of the prune.
#[tokio::test(start_paused = true)]
async fn a_prune_is_renewed_while_it_searches() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    for number in 0..130 {
        tagged(&store, number, &format!("t{number}")).await;
    }
    let unneeded = Digest::of(b"unneeded");
    store.put_blob(&unneeded, Arc::new(b"unneeded".to_vec()), &|_| Ok(())).await.unwrap();
    let later = later(&store).await;
    let slow = throttled(&objects, Duration::from_secs(4));
    let mark = slow.begin_prune(slow.store_time().await.unwrap()).await.unwrap();
    let report = slow.prune_at(later, &options(false, later), &nothing, Some(&mark)).await.unwrap();
    assert_eq!(report.blobs, 1);
    assert_eq!(store.blob_len(&unneeded).await.unwrap(), None);
}

/// A name that comes back ends the time without one: a later loss begins again.
#[tokio::test]
async fn an_image_that_is_named_again_is_unmarked() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    let (a, b) = (image(&store, 1).await, image(&store, 2).await);
    for (number, marked) in [(1, None), (2, Some(&a)), (1, Some(&b))] {
        tagged(&store, number, "t").await;
        let marks = store.objects_below(".headstart/untagged").await.unwrap();
        let marks: Vec<_> = marks.into_iter().map(|(hex, _)| hex).collect();
        assert_eq!(marks, marked.map(|image| image.digest.hex()).into_iter().collect::<Vec<_>>());
    }
}

/// A prune that is stopped keeps no other writer out.
#[tokio::test(start_paused = true)]
async fn a_prune_that_is_stopped_leaves_no_mark() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    for number in 0..130 {
        tagged(&store, number, &format!("t{number}")).await;
    }
    store.mark_as_layout().await.unwrap();
    // Before it begins, while it begins, and while it searches, also while the mark is just being renewed.
    for after in [0, 10, 20, 30, 100, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146] {
        let slow = throttled(&objects, Duration::from_secs(4));
        let (sender, stop) = crate::Stop::new();
        let options = options(false, SystemTime::UNIX_EPOCH);
        let pruning = slow.prune(&options, &nothing, Some(&stop));
        let stopping = async {
            tokio::time::sleep(Duration::from_secs(after)).await;
            sender.ask();
            // The sender has to be there until then.
            std::future::pending::<()>().await;
        };
        let pruned = tokio::select! {
            pruned = pruning => pruned,
            () = stopping => unreachable!(),
        };
        assert_eq!(pruned.unwrap_err().kind(), ErrorKind::Cancelled, "after {after} s");
        assert_eq!(store.written(PRUNING).await.unwrap(), None, "after {after} s");
    }
}

/// A thousand disks are attached, and the store is slow.
#[tokio::test(start_paused = true)]
async fn many_leases_and_marks_keep_no_prune_from_its_end() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    let held = tagged(&store, 1, "t").await;
    for number in 0..600 {
        let lease = lease(held.digest, held.blobs.to_vec());
        store.write_lease(&format!("held-{number}"), &lease).await.unwrap();
    }
    for number in 0..300 {
        let mut over = lease(Digest::of(format!("gone {number}").as_bytes()), Vec::new());
        over.holder = LeaseHolder::Attach { record: None };
        store.write_lease(&format!("over-{number}"), &over).await.unwrap();
    }
    let later = later(&store).await;
    let slow = throttled(&objects, Duration::from_secs(4));
    let mark = slow.begin_prune(slow.store_time().await.unwrap()).await.unwrap();
    let report = slow.prune_at(later, &options(false, later), &nothing, Some(&mark)).await.unwrap();
    assert_eq!((report.ended_leases, report.blobs), (300, 0));
    assert_eq!(store.objects_below(LEASES).await.unwrap().len(), 600);
    // Marks of images of which there is no blob mean nothing.
    assert!(store.objects_below(".headstart/untagged").await.unwrap().is_empty());
}

/// A host whose clock is a month ahead ends no lease by it.
#[tokio::test]
async fn leases_are_judged_by_the_time_of_the_store() {
    let objects = Arc::new(InMemory::new());
    let bucket = Bucket { store: store(&objects) };
    let image = tagged(&bucket.store, 1, "t").await;
    bucket.store.mark_as_layout().await.unwrap();
    let mut lease = lease(image.digest, image.blobs.to_vec());
    lease.holder = LeaseHolder::Attach { record: None };
    bucket.store.write_lease("x", &lease).await.unwrap();
    let ahead = later(&bucket.store).await;
    let leases = bucket.leases(ahead, &nothing).await.unwrap();
    assert_eq!(leases[0].standing, Standing::Held);
    let removed = bucket.remove(&Selector::Tag("t".parse().unwrap()), false, false, ahead, &nothing).await;
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Conflict);
}
