//! The store under ordinary use, with other tools' contents, with hostile contents, with dead and living
//! neighbours, with many threads, and on a full disk.

use super::*;
use crate::manifest::{Config, NewImage};
use headstart_block::ByteRange;
use headstart_hash_tree::HashTree;
use headstart_store::layout::LAYOUT_FILE;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// The bounds of a prune that deletes images as soon as they lose their last name.
const AT_ONCE: PruneOptions =
    PruneOptions { now: SystemTime::UNIX_EPOCH, older_than: Duration::ZERO, force: false, dry_run: false };

fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

fn by_tag(text: &str) -> Selector {
    Selector::Tag(tag(text))
}

fn new_store() -> (TempDir, ImageStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::create_or_open(dir.path().join("store")).unwrap();
    (dir, store)
}

fn image_of(layers: Vec<ImageLayer>) -> NewImage {
    NewImage {
        layers,
        virtual_size: 1 << 30,
        options: "test".to_owned(),
        config: Config::default(),
        optimized_from: None,
        converted_from: None,
        belongs_to: None,
    }
}

fn stage_layer(staging: &Staging, bytes: &[u8]) -> Result<ImageLayer> {
    let mut writer = staging.blob_writer()?;
    writer.write_all(bytes)?;
    Ok(writer.finish()?.layer())
}

fn publish(store: &ImageStore, name: &str, contents: &[&[u8]]) -> Result<Image> {
    let staging = store.stage()?;
    let layers = contents.iter().map(|bytes| stage_layer(&staging, bytes)).collect::<Result<_>>()?;
    staging.publish(&image_of(layers), &tag(name))
}

/// Fails unless all blobs that the image refers to are there and right.
fn check(store: &ImageStore, image: &Image) {
    for layer in &image.manifest.layers {
        let blob = store.open_layer(layer).unwrap();
        let tree = layer.tree.unwrap();
        HashTree::open(tree.root, store.open_tree(&tree).unwrap(), blob.len())
            .unwrap()
            .verify(&blob, ByteRange::between(0, blob.len()))
            .unwrap();
    }
    store.config(&image.manifest).unwrap();
}

/// Every file of the store and its content, except for the lock.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false if entry.file_name() == "lock" => {}
                false => drop(files.insert(entry.path(), fs::read(entry.path()).unwrap())),
            }
        }
    }
    files
}

fn edit_index(store: &ImageStore, edit: impl FnOnce(&mut Value)) {
    let mut index = serde_json::from_slice(&fs::read(store.layout.index_path()).unwrap()).unwrap();
    edit(&mut index);
    fs::write(store.layout.index_path(), serde_json::to_vec(&index).unwrap()).unwrap();
}

fn put_blob(store: &ImageStore, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    fs::write(store.layout.blob_path(&digest), bytes).unwrap();
    digest
}

#[test]
fn a_published_image_is_found_listed_retagged_and_removed() {
    let (_dir, store) = new_store();
    let image = publish(&store, "a", &[&[1; 100_000], b"small"]).unwrap();
    check(&store, &store.resolve(&by_tag("a")).unwrap());
    check(&store, &store.resolve(&Selector::Digest(image.digest)).unwrap());
    store.tag(&image.digest, &tag("b")).unwrap();
    let other = publish(&store, "a", &[b"other"]).unwrap();
    assert_eq!(store.resolve(&by_tag("b")).unwrap().digest, image.digest);
    assert_eq!(store.resolve(&by_tag("a")).unwrap().digest, other.digest);
    let listed = store.list().unwrap();
    let tags: Vec<_> = listed.iter().map(|entry| (entry.tag.as_deref(), entry.digest)).collect();
    assert_eq!(tags, [(Some("a"), Some(other.digest)), (Some("b"), Some(image.digest))]);
    store.remove(&by_tag("b")).unwrap();
    let error = store.resolve(&by_tag("b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("store:b"), "{error}");
    assert_eq!(store.remove(&by_tag("b")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.tag(&Digest::of(b"none"), &tag("c")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn the_same_image_twice_is_the_same_image() {
    let (_dir, store) = new_store();
    let first = publish(&store, "a", &[b"one", b"two"]).unwrap();
    let before = snapshot(store.root());
    assert_eq!(publish(&store, "a", &[b"one", b"two"]).unwrap().digest, first.digest);
    assert_eq!(snapshot(store.root()), before);
    // Importing again repairs the damage.
    fs::write(store.layout.blob_path(&first.manifest.layers[0].blob.digest), b"eno").unwrap();
    publish(&store, "a", &[b"one", b"two"]).unwrap();
    assert_eq!(snapshot(store.root()), before);
}

#[test]
fn a_store_is_made_only_where_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(ImageStore::open(dir.path()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(ImageStore::open(dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(dir.path().join("precious"), b"x").unwrap();
    let error = ImageStore::create_or_open(dir.path()).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("precious"), "{error}");
    fs::remove_file(dir.path().join("precious")).unwrap();
    ImageStore::create_or_open(dir.path()).unwrap();
    // The state that a crash just before the end leaves.
    fs::remove_file(dir.path().join(LAYOUT_FILE)).unwrap();
    ImageStore::create_or_open(dir.path()).unwrap();
    assert!(ImageStore::open(dir.path()).unwrap().list().unwrap().is_empty());
    fs::write(dir.path().join(LAYOUT_FILE), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    assert_eq!(ImageStore::open(dir.path()).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_damaged_index_is_named() {
    let (_dir, store) = new_store();
    for bytes in
        [&b""[..], b"{", b"[]", b"null", b"{\"manifests\":{}}", b"\xff\xfe", "[".repeat(99_999).as_bytes()]
    {
        fs::write(store.layout.index_path(), bytes).unwrap();
        for error in [
            store.resolve(&by_tag("a")).unwrap_err(),
            store.list().unwrap_err(),
            publish(&store, "a", &[b"x"]).unwrap_err(),
            store.prune(&AT_ONCE).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("index.json"), "{error}");
        }
        assert_eq!(fs::read(store.layout.index_path()).unwrap(), bytes);
    }
    for bytes in [r#"{"manifests":[1,null,{},{"digest":5},{"digest":"sha256:xx"},{"annotations":[]}]}"#, "{}"]
    {
        fs::write(store.layout.index_path(), bytes).unwrap();
        assert_eq!(store.list().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(store.resolve(&by_tag("a")).unwrap_err().kind(), ErrorKind::NotFound);
        publish(&store, "a", &[b"x"]).unwrap();
        check(&store, &store.resolve(&by_tag("a")).unwrap());
    }
}

#[test]
fn a_damaged_entry_is_refused_before_its_image_can_be_deleted() {
    let (_dir, store) = new_store();
    publish(&store, "a", &[b"one"]).unwrap();
    publish(&store, "b", &[b"two"]).unwrap();
    let whole = fs::read(store.layout.index_path()).unwrap();
    let hex = "0".repeat(64);
    let damages = [
        json!(null),
        json!(1),
        json!({}),
        json!({"digest": 5}),
        json!({"digest": format!("sha257:{hex}")}),
        json!({"digest": format!("sha256:{hex}0")}),
        json!({"digest": format!("SHA256:{hex}")}),
        json!({"digest": format!("sha512:{hex}")}),
        json!({"digest": hex}),
        json!({"dige\u{202e}st": format!("sha256:{hex}")}),
    ];
    let refused = |name: &str| {
        let before = snapshot(store.root());
        for error in [
            store.list().unwrap_err(),
            store.remove(&by_tag("b")).unwrap_err(),
            store.prune(&AT_ONCE).unwrap_err(),
            store.prune(&PruneOptions { dry_run: true, ..AT_ONCE }).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let error = error.to_string();
            assert!(
                error.contains("index.json: ") && error.contains(name) && error.contains("copy"),
                "{error}"
            );
        }
        assert_eq!(snapshot(store.root()), before);
        fs::write(store.layout.index_path(), &whole).unwrap();
    };
    for damage in damages {
        edit_index(&store, |index| index["manifests"][0] = damage);
        refused("entry 1 ");
    }
    edit_index(&store, |index| index["manifests"][1]["digest"] = json!("sha256:\u{1b}[2J"));
    refused("entry 2 (`b`) has the digest `sha256:\\u{1b}[2J`, which is none");
    edit_index(&store, |index| {
        let entries = index["manifests"].take();
        index["manifestt"] = entries;
        index.as_object_mut().unwrap().remove("manifests");
    });
    refused("has no list `manifests`");
    // Some tools write that for an index without entries.
    edit_index(&store, |index| index["manifests"] = json!(null));
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn an_image_whose_media_type_is_damaged_keeps_its_blobs() {
    let (_dir, store) = new_store();
    publish(&store, "a", &[b"one"]).unwrap();
    edit_index(&store, |index| {
        index["manifests"][0]["mediaType"] = json!("application/vnd.oci.imagf.manifest");
    });
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 0);
}

#[test]
fn damaged_blobs_are_named() {
    let (_dir, store) = new_store();
    let image = publish(&store, "a", &[b"bytes"]).unwrap();
    let layer = &image.manifest.layers[0];
    let manifest = fs::read(store.layout.blob_path(&image.digest)).unwrap();
    fs::write(store.layout.blob_path(&layer.blob.digest), b"byte").unwrap();
    let error = store.open_layer(layer).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Corrupt && error.to_string().contains(&layer.blob.digest.hex()),
        "{error}"
    );
    fs::remove_file(store.layout.blob_path(&layer.blob.digest)).unwrap();
    let error = store.open_layer(layer).unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains(&layer.blob.digest.hex()),
        "{error}"
    );
    for damaged in [[&manifest[..], b" "].concat(), vec![b' '; 5 << 20]] {
        fs::write(store.layout.blob_path(&image.digest), damaged).unwrap();
        let error = store.resolve(&by_tag("a")).unwrap_err();
        assert!(error.to_string().contains(&image.digest.hex()), "{error}");
        assert!(store.list().unwrap()[0].image.is_err());
    }
}

#[test]
fn a_lease_whose_name_is_not_utf8_keeps_images_until_it_is_released() {
    let (_dir, store) = new_store();
    publish(&store, "a", &[b"one"]).unwrap();
    let leases = store.layout.leases_dir();
    fs::create_dir_all(&leases).unwrap();
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"writable-\xff\\x");
    fs::write(leases.join::<&std::ffi::OsStr>(name), "{}").unwrap();
    // Another file has the same text as its name.
    fs::write(leases.join(r"writable-\xff\\x"), "{}").unwrap();
    let id = r"not-utf-8/writable-\xff\\x";
    let before = snapshot(store.root());
    for error in [
        store.remove(&by_tag("a")).unwrap_err(),
        store.prune(&AT_ONCE).unwrap_err(),
        store.prune(&PruneOptions { dry_run: true, ..AT_ONCE }).unwrap_err(),
    ] {
        assert!(error.to_string().contains(&format!("lease {id}: its name is not UTF-8")), "{error}");
        assert!(error.to_string().contains(&format!("--id '{id}'")), "{error}");
    }
    assert_eq!(snapshot(store.root()), before);
    let found = store.leases().unwrap();
    assert_eq!(found.len(), 2);
    let found = found.iter().find(|lease| lease.found.id == id).unwrap();
    store.release(found).unwrap();
    store.release(found).unwrap();
    assert_eq!(fs::read_dir(&leases).unwrap().count(), 1);
    store.layout.remove_lease(r"writable-\xff\\x").unwrap();
    store.remove(&by_tag("a")).unwrap();
}

#[test]
fn entries_and_blobs_of_other_tools_survive() {
    let (_dir, store) = new_store();
    let artifact = json!({
        "mediaType": "application/x-unknown", "digest": format!("sha512:{}", "0".repeat(128)), "size": 1,
        "x-field": [1, 2], "annotations": {"org.example": "y"},
    });
    edit_index(&store, |index| {
        index["x-top"] = json!({"kept": true});
        index["manifests"] = json!([artifact]);
    });
    fs::create_dir_all(store.root().join("blobs/sha512")).unwrap();
    fs::write(store.root().join("blobs/sha512/x"), b"x").unwrap();
    fs::write(store.layout.blobs_dir().join("not-a-digest"), b"x").unwrap();
    publish(&store, "a", &[b"x"]).unwrap();
    store.remove(&by_tag("a")).unwrap();
    // Manifest, config, layer; the tree of a blob of one group is 8 zero bytes or so, one more.
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 4);
    let index: Value = serde_json::from_slice(&fs::read(store.layout.index_path()).unwrap()).unwrap();
    assert_eq!((&index["x-top"]["kept"], &index["manifests"]), (&json!(true), &json!([artifact])));
    assert!(
        store.root().join("blobs/sha512/x").exists()
            && store.layout.blobs_dir().join("not-a-digest").exists()
    );
}

#[test]
fn an_index_of_platforms_gives_ours() {
    let (_dir, store) = new_store();
    let image = publish(&store, "a", &[b"x"]).unwrap();
    let entry = |digest: &Digest, arch: &str| {
        json!({"mediaType": MANIFEST_OCI, "digest": digest.to_string(), "size": 1,
               "platform": {"os": "linux", "architecture": arch}})
    };
    let missing = entry(&Digest::of(b"not copied"), "arm64");
    let manifests = [&missing, &entry(&image.digest, "amd64")];
    let platforms = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": manifests});
    let nested = put_blob(&store, &serde_json::to_vec(&platforms).unwrap());
    store.tag(&nested, &tag("multi")).unwrap();
    store.remove(&by_tag("a")).unwrap();
    assert_eq!(store.resolve(&by_tag("multi")).unwrap().digest, image.digest);
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 0);
    check(&store, &store.list().unwrap()[0].image.as_ref().unwrap().clone());
    let none = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [missing, missing]});
    let none = put_blob(&store, &serde_json::to_vec(&none).unwrap());
    assert_eq!(store.resolve(&Selector::Digest(none)).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn prune_keeps_what_is_reachable_and_nothing_else() {
    let (_dir, store) = new_store();
    publish(&store, "gone", &[b"gone", b"shared"]).unwrap();
    let kept = publish(&store, "kept", &[b"kept", b"shared"]).unwrap();
    // An artifact of another tool: its blobs are known by their digests alone.
    let content = put_blob(&store, b"content");
    let artifact =
        json!({"schemaVersion": 2, "mediaType": MANIFEST_OCI, "x-new-kind-of-list": [content.to_string()]});
    let artifact = put_blob(&store, &serde_json::to_vec(&artifact).unwrap());
    store.tag(&artifact, &tag("artifact")).unwrap();
    store.remove(&by_tag("gone")).unwrap();
    let preview = store.prune(&PruneOptions { dry_run: true, ..AT_ONCE }).unwrap();
    // Of the removed image: its manifest, its config, its own layer, whose tree (its length) is also another's.
    assert_eq!((preview.blobs, preview.kept_blobs), (3, 8));
    assert_eq!(store.prune(&AT_ONCE).unwrap(), preview);
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 0);
    check(&store, &kept);
    store.open_blob(&content).unwrap();
}

#[test]
fn notes_of_conversions_go_with_their_layers() {
    let (_dir, store) = new_store();
    let [gone, kept] = ["gone", "kept"].map(|name| publish(&store, name, &[name.as_bytes()]).unwrap());
    let keys = [b"1", b"2", b"3"].map(|text| Digest::of(text));
    store.note_conversion(&keys[0], &gone.manifest.layers[0]).unwrap();
    store.note_conversion(&keys[1], &kept.manifest.layers[0]).unwrap();
    // One that makes no sense.
    store.layout.note_conversion(&store.layout.lock().unwrap(), &keys[2], b"{").unwrap();
    store.remove(&by_tag("gone")).unwrap();
    let preview = store.prune(&PruneOptions { dry_run: true, ..AT_ONCE }).unwrap();
    assert_eq!((preview.conversions, store.layout.noted_conversions().unwrap().len()), (2, 3));
    assert_eq!(store.prune(&AT_ONCE).unwrap(), preview);
    assert_eq!(store.layout.noted_conversions().unwrap(), keys[1..2]);
    assert_eq!(store.prune(&AT_ONCE).unwrap().conversions, 0);
}

#[test]
fn prune_refuses_when_a_manifest_cannot_be_read() {
    let (_dir, store) = new_store();
    let image = publish(&store, "a", &[b"x"]).unwrap();
    put_blob(&store, b"garbage");
    fs::write(store.layout.blob_path(&image.digest), b"damaged").unwrap();
    let before = snapshot(store.root());
    let error = store.prune(&AT_ONCE).unwrap_err();
    assert!(error.to_string().contains(&image.digest.hex()), "{error}");
    fs::remove_file(store.layout.blob_path(&image.digest)).unwrap();
    assert_eq!(store.prune(&AT_ONCE).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(store.layout.blob_path(&image.digest), b"damaged").unwrap();
    assert_eq!(snapshot(store.root()), before);
    store.remove(&by_tag("a")).unwrap();
    store.prune(&AT_ONCE).unwrap();
    assert_eq!(fs::read_dir(store.layout.blobs_dir()).unwrap().count(), 0);
}

#[test]
fn prune_ends_on_manifests_that_refer_to_each_other() {
    let (_dir, store) = new_store();
    // A digest cannot be in its own content, but chains can be of any depth.
    let mut digest = Digest::of(b"none");
    for _ in 0..20 {
        let itself = json!({"mediaType": INDEX_OCI, "digest": digest.to_string()});
        let index = json!({"mediaType": INDEX_OCI, "manifests": [itself]});
        digest = put_blob(&store, &serde_json::to_vec(&index).unwrap());
    }
    store.tag(&digest, &tag("deep")).unwrap();
    assert_eq!(store.prune(&AT_ONCE).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.resolve(&by_tag("deep")).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let (_dir, store) = new_store();
    publish(&store, "a", &[b"x"]).unwrap();
    let before = snapshot(store.root());
    let staging = store.stage().unwrap();
    stage_layer(&staging, b"never published").unwrap();
    staging.put(b"nor this").unwrap();
    let mut unfinished = staging.blob_writer().unwrap();
    unfinished.write_all(b"half").unwrap();
    drop(unfinished);
    drop(staging);
    assert_eq!(snapshot(store.root()), before);
    assert_eq!(fs::read_dir(store.layout.staging_dir()).unwrap().count(), 0);
}

#[test]
fn prune_takes_what_the_dead_left_and_not_what_the_living_hold() {
    let (_dir, store) = new_store();
    let living = store.stage().unwrap();
    let layer = stage_layer(&living, b"being written").unwrap();
    stage_layer(&living, b"given up").unwrap();
    // Of a writer that was killed: a lease that no process holds, or none yet.
    for name in ["dead", "stillborn"] {
        fs::create_dir(store.layout.staging_dir().join(name)).unwrap();
        fs::write(store.layout.staging_dir().join(name).join("unfinished-0"), [0; 1000]).unwrap();
    }
    fs::write(store.layout.staging_dir().join("dead").join("lease"), b"").unwrap();
    let report = store.prune(&AT_ONCE).unwrap();
    assert_eq!((report.stale_writers, report.stale_bytes, report.blobs), (2, 2000, 0));
    assert_eq!(fs::read_dir(store.layout.staging_dir()).unwrap().count(), 1);
    check(&store, &living.publish(&image_of(vec![layer]), &tag("a")).unwrap());
    assert_eq!(store.prune(&AT_ONCE).unwrap().blobs, 0);
    // The next writer cleans up as well: it may need the space of the dead one.
    fs::create_dir(store.layout.staging_dir().join("dead")).unwrap();
    drop(store.stage().unwrap());
    assert_eq!(fs::read_dir(store.layout.staging_dir()).unwrap().count(), 0);
}

#[test]
fn a_base_that_vanishes_is_a_conflict_that_changes_nothing() {
    let (_dir, store) = new_store();
    let base = publish(&store, "base", &[b"base"]).unwrap();
    let staging = store.stage().unwrap();
    let top = stage_layer(&staging, b"top").unwrap();
    store.remove(&by_tag("base")).unwrap();
    store.prune(&AT_ONCE).unwrap();
    let before = snapshot(store.root());
    let mut layers = base.manifest.layers.clone();
    layers.push(top);
    let error = staging.publish(&image_of(layers), &tag("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("base"), "{error}");
    let after: BTreeMap<_, _> = snapshot(store.root()).into_iter().collect();
    // The staging directory was there before and is gone now; nothing else changed.
    let without_staging =
        before.into_iter().filter(|(path, _)| !path.starts_with(store.layout.staging_dir()));
    assert_eq!(after, without_staging.collect());
}

/// Goal: no blob that an image refers to is ever lost, even with removals and prunes at the same time. Method: threads
/// publish images that share layers (staged again, or referred to in a base), check each, remove them; others prune
/// during all of that. A conflict is right only for a base.
#[test]
fn publish_remove_and_prune_at_once() {
    const ROUNDS: usize = 21;
    let (_dir, store) = new_store();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                let store = store.clone();
                scope.spawn(move || {
                    let name = format!("writer-{thread}");
                    for round in 0..ROUNDS {
                        let own = format!("{thread} {}", round % 7).into_bytes();
                        let image = publish(&store, &name, &[b"shared", &own]).unwrap();
                        check(&store, &store.resolve(&by_tag(&name)).unwrap());
                        let staging = store.stage().unwrap();
                        let mut layers = image.manifest.layers.clone();
                        layers.push(stage_layer(&staging, b"on top").unwrap());
                        if round % 3 == 0 {
                            store.remove(&by_tag(&name)).unwrap();
                        }
                        let top = staging.publish(&image_of(layers), &tag(&format!("{name}-top")));
                        // Its base may be gone only if this thread removed it.
                        match top {
                            Err(e) if round % 3 == 0 => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
                            top => check(&store, &top.unwrap()),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    store.prune(&AT_ONCE).unwrap();
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        for result in results {
            result.unwrap();
        }
    });
    for entry in store.list().unwrap() {
        check(&store, &entry.image.unwrap());
    }
    assert_eq!(fs::read_dir(store.layout.staging_dir()).unwrap().count(), 0);
}

/// A small file system in memory, unmounted when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size},mode=700");
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .output();
        mount.is_ok_and(|output| output.status.success()).then(|| Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Goal: on a full disk the store stays as it was, and the error says so. Method: everything from "not a byte
/// is free" to "just enough", in small steps, so that each write and each name has its turn to fail.
#[test]
fn a_full_disk_leaves_the_store_as_it_was() {
    let Some(disk) = SmallDisk::mount("2m") else {
        let _ = writeln!(
            io::stderr(),
            "SKIPPED: a_full_disk_leaves_the_store_as_it_was (cannot mount a tmpfs: needs root)"
        );
        return;
    };
    let store = ImageStore::create_or_open(disk.0.path().join("store")).unwrap();
    publish(&store, "before", &[&[7; 50_000]]).unwrap();
    let before = snapshot(store.root());
    let filler = disk.0.path().join("filler");
    let (mut full, mut published) = (0, 0);
    for free in (0..400_000).step_by(4096) {
        let mut file = File::create(&filler).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        file.set_len(file.metadata().unwrap().len().saturating_sub(free)).unwrap();
        match publish(&store, "new", &[&[8; 200_000], &[9; 70_000]]) {
            Ok(image) => {
                check(&store, &image);
                published += 1;
                store.remove(&by_tag("new")).unwrap();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                assert!(error.to_string().contains("free space"), "{error}");
                full += 1;
            }
        }
        fs::remove_file(&filler).unwrap();
        if full > 0 && published == 0 {
            assert_eq!(snapshot(store.root()), before, "{free} bytes were free");
        }
        store.prune(&AT_ONCE).unwrap();
        assert_eq!(snapshot(store.root()), before, "{free} bytes were free");
    }
    assert!(full > 60 && published > 0, "{full} {published}");
}

/// An image that is held by way of an index of platforms, and that artifacts lead to.
#[test]
fn a_held_image_keeps_its_last_name_and_its_blobs() {
    let (_dir, store) = new_store();
    let image = publish(&store, "a", &[b"x"]).unwrap();
    let entry = json!({"mediaType": MANIFEST_OCI, "digest": image.digest.to_string(), "size": 1,
                       "platform": {"os": "linux", "architecture": "amd64"}});
    let platforms = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [entry]});
    let platforms = put_blob(&store, &serde_json::to_vec(&platforms).unwrap());
    store.tag(&platforms, &tag("multi")).unwrap();
    let subject = json!({"mediaType": MANIFEST_OCI, "digest": image.digest.to_string(), "size": 1});
    let artifact = json!({"schemaVersion": 2, "mediaType": MANIFEST_OCI, "subject": subject});
    let artifact = put_blob(&store, &serde_json::to_vec(&artifact).unwrap());
    let listed =
        json!({"mediaType": MANIFEST_OCI, "digest": artifact.to_string(), "size": 1, "artifactType": "t"});
    let list = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [listed]});
    let list = put_blob(&store, &serde_json::to_vec(&list).unwrap());
    store.tag(&list, &tag(&headstart_store::layout::referrers_tag(&image.digest))).unwrap();

    let reference = store.name(&by_tag("multi"));
    let held = store.hold((&reference, FormWish::Newest), None, None, uuid::Uuid::from_u128(1)).unwrap();
    assert_eq!(held.image.digest, image.digest);
    let lease = held.lease.unwrap();
    store.remove(&by_tag("a")).unwrap();
    let refused = store.remove(&by_tag("multi")).unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.to_string().contains("in use by"), "{refused}");
    let removal = store.remove_with(&by_tag("multi"), true, false).unwrap();
    assert_eq!((removal.nameless, removal.holders.len()), (vec![platforms], 1));
    // The index of platforms belongs to no image any more; held blobs keep their artifacts.
    let report = store.prune(&AT_ONCE).unwrap();
    assert_eq!((report.blobs, report.untagged.len(), report.images.len()), (1, 1, 1), "{report:?}");
    check(&store, &image);
    store.open_blob(&artifact).unwrap();
    drop(lease);
    store.prune(&AT_ONCE).unwrap();
    assert_eq!(fs::read_dir(store.layout.blobs_dir()).unwrap().count(), 0);
    assert!(store.layout.marks().unwrap().is_empty());
}
