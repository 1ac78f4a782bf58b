//! Remove, prune, list: the blobs of an image stay, whatever runs at the same time.

use crate::disk::{assert_same, copy_of, mixed_disk, noise};
use crate::scene::{CommandRun, Scene};
use crate::tools::installed;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Images are deleted with their last name: the grace period is tested with the disks that hold images.
const PRUNE: &str = "image prune file://~/store --older-than 0s";

#[test]
fn the_blobs_of_other_images_stay() {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 8);
    copy_of(&scene, "a.raw", "b.raw").write(1 << 20, &noise(1, 5000));
    mixed_disk(&scene, "c.raw", 9);
    scene.ok("image import a.raw file://~/store:a");
    scene.ok("image import b.raw file://~/store:b --base file://~/store:a");
    scene.ok("image import c.raw file://~/store:c");
    let pruned = scene.json(PRUNE);
    assert_eq!((&pruned["blobs"], &pruned["bytes"], &pruned["images"]), (&0.into(), &0.into(), &json!([])));
    let blobs = scene.names("store/blobs/sha256").len();

    // Only the manifest and the config of a are deleted: b is based on its layer.
    scene.ok("image remove file://~/store:a");
    scene.fails("image inspect file://~/store:a", &["store:a"]);
    scene.fails("image remove file://~/store:a", &["store:a", "no such image"]);
    assert_eq!(scene.json(PRUNE)["blobs"], 2);
    assert_eq!(scene.names("store/blobs/sha256").len(), blobs - 2);
    scene.ok("image verify --deep file://~/store:b");
    scene.ok("image export file://~/store:b -o out.raw");
    assert_same(&scene, "b.raw", "out.raw");

    scene.ok("image remove file://~/store:b");
    let pruned = scene.json(PRUNE);
    assert_eq!(pruned["blobs"], 6, "manifest, config, two layers and their trees");
    scene.ok("image verify --deep file://~/store:c");
    scene.ok("image remove file://~/store:c");
    scene.ok(PRUNE);
    assert_eq!(scene.names("store/blobs/sha256"), [""; 0]);
    assert_eq!(scene.json("image list file://~/store"), json!({"images": []}));
}

#[test]
fn list_shows_what_there_is() {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 8);
    let made = scene.json("image import a.raw file://~/store:one");
    scene.ok("image import a.raw file://~/store:two --codec lz4");
    scene.ok("image import a.raw file://~/store:three --base file://~/store:two");
    let listed = scene.json("image list file://~/store");
    let images = listed["images"].as_array().unwrap();
    let tags: Vec<_> = images.iter().map(|image| image["tag"].as_str().unwrap()).collect();
    assert_eq!(tags, ["one", "two", "three"]);
    assert_eq!(images[0]["digest"], made["digest"]);
    assert!(images.iter().all(|image| image["virtual_size"] == 8 << 20));
    assert_eq!(images[2]["layers"], 2);
    let text = scene.ok("image list file://~/store").stdout;
    assert_eq!(text.lines().count(), 4, "{text}");
    // An image by digest is removed with all of its tags.
    scene.ok("image import a.raw file://~/store:uno");
    scene.ok(&format!("image remove file://~/store@{}", made["digest"].as_str().unwrap()));
    let listed = scene.json("image list file://~/store");
    assert_eq!(listed["images"].as_array().unwrap().len(), 2, "{listed}");
}

/// Runs a command as a user that permissions bind, unlike root.
fn run_as_other(scene: &Scene, words: &str) -> CommandRun {
    let it = scene.command(words);
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search"]);
    command.arg(it.get_program()).args(it.get_args()).current_dir(scene.path(""));
    CommandRun::of(words, &mut command)
}

/// The image of a lease that a user may not read is not known to that user: it counts, and the message does not propose
/// to release it.
#[test]
fn a_lease_that_a_user_may_not_read_counts() {
    if !installed(&["setpriv"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 4);
    for (tag, codec) in [("a", "lz4"), ("b", "zstd")] {
        scene.ok(&format!("image import a.raw file://~/store:{tag} --codec {codec}"));
    }
    scene.ok("image remove file://~/store:a");
    let leases = scene.path("store/.headstart/leases");
    fs::create_dir_all(&leases).unwrap();
    fs::write(leases.join("writable-1"), "of a disk").unwrap();
    fs::set_permissions(leases.join("writable-1"), fs::Permissions::from_mode(0o000)).unwrap();
    let before = scene.fingerprint("store/blobs");
    for words in ["image prune file://~/store --older-than 0s", "image remove file://~/store:b"] {
        for words in [format!("{words} --dry-run"), words.to_owned()] {
            let said = ["lease writable-1", "cannot be read by this user", "it counts"];
            let run = run_as_other(&scene, &words).fails(&said);
            assert!(!run.stderr.contains("lease release"), "{run}");
        }
    }
    assert_eq!(scene.fingerprint("store/blobs"), before);
    let listed = run_as_other(&scene, "lease list file://~/store --json").succeeds().json();
    assert_eq!(listed["leases"][0]["state"], "unknown", "{listed}");
}

/// A dry run reads a store that its user may not write; a real run reports the error.
#[test]
fn a_dry_run_needs_no_right_to_write() {
    if !installed(&["setpriv"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 4);
    let made = scene.json("image import a.raw file://~/store:a");
    scene.ok("image import a.raw file://~/store:b --codec lz4");
    scene.ok("image remove file://~/store:a");
    let set_modes = |dirs, lock| {
        for (name, mode) in [("store/.headstart/lock", lock), ("store/.headstart", dirs), ("store", dirs)] {
            fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    let run = |words: &str| run_as_other(&scene, words);
    set_modes(0o500, 0);
    let seen = run("image prune file://~/store --older-than 0s --dry-run --json").succeeds().json();
    assert_eq!(seen["images"][0]["digest"], made["digest"], "{seen}");
    run("image remove file://~/store:b --dry-run").succeeds();
    for words in ["image prune file://~/store", "image remove file://~/store:b"] {
        run(words).fails(&["store", "cannot lock it: Permission denied", "a user who may write there"]);
    }
    set_modes(0o700, 0o600);
    scene.ok("image inspect file://~/store:b");
}

/// Clocks were wrong and files were copied: with any times, these are reported, and the command is done.
#[test]
fn times_outside_of_the_calendar_are_reported_as_its_first_and_last() {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 4);
    let digest = scene.json("image import a.raw file://~/store:a")["digest"].as_str().unwrap().to_owned();
    scene.ok("image remove file://~/store:a");
    let set_times = |time: SystemTime| {
        for dir in ["leases", "untagged"] {
            let dir = format!("store/.headstart/{dir}");
            for name in scene.names(&dir) {
                let file = fs::File::options().write(true).open(scene.path(&dir).join(name)).unwrap();
                file.set_modified(time).unwrap();
            }
        }
    };
    // A time beyond the year 9999 is not the same as no end.
    let kept = scene.json("image prune file://~/store --older-than 9000y");
    assert_eq!(kept["untagged"][0]["kept_until"], "9999-12-31T23:59:59Z", "{kept}");
    assert!(scene.ok("image prune file://~/store --older-than 9000y").stdout.contains("until 9999-12-31"));
    let epoch = "1970-01-01T00:00:00Z";
    for seconds in [1, 10 * 365 * 86_400] {
        fs::create_dir_all(scene.path("store/.headstart/leases")).unwrap();
        fs::write(scene.path("store/.headstart/leases/copied"), "{").unwrap();
        set_times(SystemTime::UNIX_EPOCH - Duration::from_secs(seconds));
        assert_eq!(scene.json("lease list file://~/store")["leases"][0]["written"], epoch);
        assert!(scene.ok("lease list file://~/store").stdout.contains(epoch));
        scene.ok("lease release file://~/store --id copied");
        let dry = scene.json("image prune file://~/store --dry-run --older-than 1000y");
        assert_eq!(
            (&dry["untagged"][0]["untagged_since"], &dry["blobs"]),
            (&epoch.into(), &0.into()),
            "{dry}"
        );
    }
    let dry = scene.json("image prune file://~/store --dry-run");
    let pruned = scene.json("image prune file://~/store");
    assert_eq!((&pruned["images"][0]["digest"], &pruned["images"]), (&digest.into(), &dry["images"]));
    assert_eq!(pruned["images"][0]["untagged_since"], epoch);
}

/// Tags move while other images are imported and pruned: every import that succeeds is whole.
#[test]
fn prune_beside_imports_harms_none() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    copy_of(&scene, "disk.raw", "next.raw").write(3 << 20, &noise(9, 200_000));
    scene.ok("image import disk.raw file://~/store:base");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pruner = scope.spawn(|| {
            let mut prunes = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                scene.ok(PRUNE);
                prunes += 1;
            }
            prunes
        });
        let importers: Vec<_> = (0..2)
            .map(|n| {
                let scene = &scene;
                scope.spawn(move || {
                    for round in 0..8 {
                        // Each import gives a new digest, which replaces one that then is garbage.
                        let options = format!("--level {} --threads 2", round % 4 + 1);
                        let target = format!("file://~/store:{n}");
                        scene.ok(&format!(
                            "image import next.raw {target} --base file://~/store:base {options}"
                        ));
                        scene.ok(&format!("image verify --deep {target}"));
                        scene.ok(&format!("image export {target} -o out{n}.raw"));
                        assert_same(scene, "next.raw", &format!("out{n}.raw"));
                        if round % 3 == 2 {
                            scene.ok(&format!("image remove {target}"));
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = importers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(pruner.join().unwrap() > 10);
        assert!(results.into_iter().all(|result| result.is_ok()));
    });
    scene.ok("image verify --deep file://~/store:base");
    scene.ok("image prune file://~/store");
    // The base and the two tagged images, if there are two: manifest, config, layers and trees.
    let tags = scene.json("image list file://~/store")["images"].as_array().unwrap().len();
    assert_eq!(tags, 3);
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
}

#[test]
fn prune_refuses_what_it_cannot_understand() {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 4);
    let made = scene.json("image import a.raw file://~/store:a");
    let before = scene.fingerprint("store");
    let manifest = scene.blob("store", &made["digest"]);
    let bytes = fs::read(&manifest).unwrap();
    fs::remove_file(&manifest).unwrap();
    scene.fails("image prune file://~/store", &["is not in the store"]);
    fs::write(&manifest, &bytes[1..]).unwrap();
    scene.fails("image prune file://~/store", &["does not match its digest"]);
    fs::write(&manifest, bytes).unwrap();
    fs::write(scene.path("store/blobs/sha256/notes.txt"), "mine").unwrap();
    scene.ok("image prune file://~/store");
    assert_eq!(scene.bytes("store/blobs/sha256/notes.txt"), b"mine");
    fs::remove_file(scene.path("store/blobs/sha256/notes.txt")).unwrap();
    assert_eq!(scene.fingerprint("store"), before);
    scene.fails("image prune file://~/store:a", &["names an image"]);
    let run = scene.run("image list file://~/store:a");
    assert!(run.status == Some(2) && run.stderr.contains("names an image"), "{run}");
}

/// Messages name commands that work.
#[test]
fn a_store_is_named_as_messages_say_and_an_image_without_a_name_is_said_to_be_there() {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 8);
    let digest = scene.json("image import a.raw file://~/store:a")["digest"].as_str().unwrap().to_owned();
    let run = scene.fails("image prune ~/store", &["write file://", "/store"]);
    let named = run.stderr.split("write ").nth(1).and_then(|rest| rest.split([',', ' ']).next()).unwrap();
    scene.ok(&format!("image prune {named}"));
    scene.ok("image remove file://~/store:a");
    let parts = [&*digest, "has no name", "image prune file://", "--older-than"];
    let run = scene.fails(&format!("image remove file://~/store@{digest}"), &parts);
    assert!(!run.stderr.contains("no such image"), "{run}");
    let other = format!("sha256:{}", "0".repeat(64));
    scene.fails(&format!("image remove file://~/store@{other}"), &["no such image"]);
}
