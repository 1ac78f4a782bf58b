//! The cached parts of images on this host: shown, removed, given back.

use crate::scene::{CommandRun, Scene};
use headstart_block::{ByteRange, Digest};
use headstart_cache::{BlobSpec, Cache, CacheSettings};
use serde_json::json;

#[test]
fn blobs_are_listed_removed_and_pruned_but_not_under_a_disk() {
    let scene = Scene::new();
    scene.fails("cache list --dir ~/cache", &["cache", "there is no cache here", "--dir"]);
    // Reading makes no cache of another directory.
    std::fs::create_dir(scene.path("other")).unwrap();
    std::fs::write(scene.path("file"), "x").unwrap();
    let digest = Digest::of(b"x");
    for words in ["list", "usage", "prune", &format!("remove {digest}")] {
        scene.fails(&format!("cache {words} --dir ~/other"), &["other", "is not a cache", "--dir"]);
        scene.fails(&format!("cache {words} --dir ~/file"), &["file", "is not a directory", "--dir"]);
    }
    assert!(scene.names("other").is_empty());
    // A disk of an image in a directory records its boot there, and leaves nothing else.
    std::fs::create_dir_all(scene.path("begun/traces")).unwrap();
    let usage = scene.json("cache usage --dir ~/begun");
    assert!(usage["blobs"] == 0 && usage["free_bytes"].as_u64() > Some(0), "{usage}");
    assert_eq!(scene.json("cache list --dir ~/begun"), json!({"blobs": []}));
    let listed = scene.ok("cache list --dir ~/begun").stdout;
    assert!(listed.ends_with("begun: there is no cache yet\n"), "{listed}");
    assert_eq!(scene.names("begun"), ["traces"]);
    let mut command = scene.command("cache usage --json");
    command.env("XDG_CACHE_HOME", scene.path("none")).env("HOME", scene.path("none"));
    let usage = CommandRun::of("cache usage", &mut command).succeeds().json();
    assert!(usage["free_bytes"].as_u64() > Some(0), "{usage}");
    let cache = Cache::open(&scene.path("cache"), CacheSettings::default()).unwrap();
    assert_eq!(scene.json("cache list --dir ~/cache"), json!({"blobs": []}));

    let contents = [vec![1; 300_000], vec![2; 40_000]];
    let digests = contents.each_ref().map(|bytes| Digest::of(bytes));
    let blobs = contents.each_ref().map(|bytes| {
        let spec = BlobSpec { digest: Digest::of(bytes), len: bytes.len() as u64, tree: None, origin: None };
        let blob = cache.blob(&spec).unwrap();
        blob.insert(0, &bytes[..32768]).unwrap();
        blob
    });
    let pin = blobs[0].pin(ByteRange::between(0, 10)).unwrap();
    let listed = scene.json("cache list --dir ~/cache");
    let [first, second] = digests.map(|digest| {
        let blobs = listed["blobs"].as_array().unwrap();
        blobs.iter().find(|blob| blob["digest"] == digest.to_string()).unwrap().clone()
    });
    assert_eq!((&first["local_bytes"], &first["len"]), (&json!(32768), &json!(300_000)));
    assert_eq!(
        (&first["pinned_bytes"], &first["in_use"], &first["kind"]),
        (&json!(65536), &json!(true), &json!("unverified"))
    );
    assert_eq!((&second["pinned_bytes"], &second["in_use"]), (&json!(0), &json!(true)));
    let table = scene.ok("cache list --dir ~/cache").stdout;
    assert!(table.contains("pinned") && table.contains("in use") && table.contains("10%"), "{table}");
    let usage = scene.json("cache usage --dir ~/cache");
    assert_eq!((&usage["blobs"], &usage["local_bytes"]), (&json!(2), &json!(65536)));
    assert!(scene.ok("cache usage --dir ~/cache").stdout.contains("2, 2 in use"));
    // The option has the name that it has in `attach`, too.
    assert_eq!(scene.json("cache usage --cache ~/cache")["local_bytes"], usage["local_bytes"]);

    scene.fails(&format!("cache remove --dir ~/cache {}", digests[1]), &["in use", "detach"]);
    let pruned = scene.json("cache prune --dir ~/cache");
    assert_eq!(pruned, json!({"bytes": 32768, "left_bytes": 32768, "left_blobs": 2}));
    drop((pin, blobs));
    scene.wait_until_unlocked("cache");
    assert_eq!(scene.json(&format!("cache remove --dir ~/cache {}", digests[0]))["bytes"], 32768);
    scene.fails(&format!("cache remove --dir ~/cache {}", digests[0]), &["is not in the cache"]);
    // The metadata of a blob takes room as well: some KiB.
    let pruned = scene.ok("cache prune --dir ~/cache --keep 1M").stdout;
    assert!(pruned.contains("0 B left in 1 blob"), "{pruned}");
    assert_eq!(scene.json("cache prune --dir ~/cache")["left_blobs"], 0);
}
