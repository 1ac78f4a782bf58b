//! Images that attached disks and writable directories need stay in the store, whatever happens to its tags.

use crate::attached::{Attached, TIMEOUT};
use crate::disk::{assert_same, copy_of, noise};
use crate::images::{Web, can_check_bytes, check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::files::set_age;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

const PRUNE_NOW: &str = "image prune file://~/store --older-than 0s";

/// Writes random bytes to the disk, and to the file with its expected content.
#[track_caller]
fn write(scene: &Scene, uri: &str, seed: u64, expected: &mut [u8]) {
    let bytes = noise(seed, 300_000);
    fs::write(scene.path("bytes"), &bytes).unwrap();
    tool(scene, "nbdsh", &["-u", uri, "-c", "h.pwrite(open('bytes','rb').read(), 1000448); h.flush()"]);
    expected[1_000_448..1_300_448].copy_from_slice(&bytes);
}

/// Imports another disk over `v1`; returns the digest that the tag named before.
#[track_caller]
fn move_tag(scene: &Scene) -> String {
    copy_of(scene, "disk.raw", "next.raw").write(2 << 20, &noise(77, 70_000));
    let was = digest_of(scene, "v1");
    let made = scene.json("image import next.raw file://~/store:v1");
    assert_eq!(made["was"], was.as_str(), "{made}");
    was
}

fn digest_of(scene: &Scene, tag: &str) -> String {
    scene.json(&format!("image inspect file://~/store:{tag}"))["digest"].as_str().unwrap().to_owned()
}

/// The lease files, and their content.
fn leases(scene: &Scene) -> Vec<(std::path::PathBuf, Value)> {
    let names = scene.names("store/.headstart/leases").into_iter();
    let paths = names.map(|name| scene.path("store/.headstart/leases").join(name));
    paths.map(|path| (path.clone(), serde_json::from_slice(&fs::read(path).unwrap()).unwrap())).collect()
}

#[test]
fn an_update_and_a_prune_take_nothing_from_a_writable_directory() {
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let mut expected = scene.bytes("disk.raw");
    let attached = Attached::start(&scene, "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock");
    write(&scene, &attached.uri(), 1, &mut expected);
    let was = move_tag(&scene);
    // The image is kept while the disk runs, and while it does not.
    let pruned = scene.json(PRUNE_NOW);
    let kept = &pruned["untagged"][0];
    assert_eq!((&kept["digest"], &kept["tags"][0]), (&was.as_str().into(), &"v1".into()), "{pruned}");
    assert_eq!(kept["holders"].as_array().unwrap().len(), 2, "{pruned}");
    write(&scene, &attached.uri(), 2, &mut expected);
    attached.detach();
    let said = scene.ok(PRUNE_NOW).stdout;
    let dir = fs::canonicalize(scene.path("vm")).unwrap();
    assert!(said.contains(&format!("needed by the writable directory {}", dir.display())), "{said}");
    let own = format!("`headstart attach file://{}@{was}`", scene.path("store").display());
    let run = scene.fails("attach file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock", &["vm", &own]);
    assert!(run.stderr.contains(&was), "{run}");
    fs::write(scene.path("expected.raw"), &expected).unwrap();
    let again = Attached::start(&scene, &format!("file://~/store@{was} --writable ~/vm --nbd unix:~/d.sock"));
    check_bytes(&scene, "expected.raw", &again.uri());
    again.detach();
    // The directory knows its base.
    scene.ok("image commit --writable ~/vm file://~/store:vm");
    scene.ok("image export file://~/store:vm -o vm.raw");
    assert_same(&scene, "expected.raw", "vm.raw");
    // A deleted directory needs nothing; its image is kept for a week after the deletion is noticed.
    scene.ok("image remove file://~/store:vm");
    fs::remove_dir_all(scene.path("vm")).unwrap();
    set_age(&scene.path("store/.headstart/untagged").join(&was[7..]), Duration::from_secs(30 * 86400));
    let pruned = scene.json("image prune file://~/store");
    assert_eq!((&pruned["blobs"], &pruned["ended_leases"]), (&0.into(), &1.into()), "{pruned}");
    let pruned = scene.json(PRUNE_NOW);
    assert_eq!(pruned["images"].as_array().unwrap().len(), 2, "{pruned}");
    scene.ok("image verify --deep file://~/store:v1");
}

#[test]
fn an_attached_image_keeps_its_name_and_a_killed_disk_holds_nothing() {
    let scene = layered();
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
    let holder = format!("process {}", attached.process().id());
    scene.fails("image remove file://~/store:v1", &["store:v1", "in use by", &holder, "--force"]);
    scene.fails("image remove file://~/store:v1 --dry-run", &["in use by", &holder]);
    // The loss of another name of the same image needs no warning.
    let digest = digest_of(&scene, "v1");
    scene.ok("image pull file://~/store:v1 file://~/store:other");
    scene.ok("image remove file://~/store:other");
    let dry = scene.json("image remove file://~/store:v1 --force --dry-run");
    assert_eq!((&dry["untagged"][0], &dry["dry_run"]), (&digest.as_str().into(), &true.into()), "{dry}");
    digest_of(&scene, "v1");
    scene.ok("image remove file://~/store:v1 --force");
    assert_eq!(scene.json(PRUNE_NOW)["blobs"], 0);
    let listed = scene.json("lease list file://~/store");
    assert_eq!(
        (&listed["leases"][0]["state"], &listed["leases"][0]["kind"]),
        (&"held".into(), &"attach".into())
    );
    scene.fails("lease release file://~/store --all", &["in use by", &holder]);
    attached.process().signal(Signal::KILL);
    attached.process().end(TIMEOUT);
    let pruned = scene.json(PRUNE_NOW);
    assert_eq!(
        (&pruned["images"][0]["digest"], &pruned["ended_leases"]),
        (&digest.as_str().into(), &1.into())
    );
    assert!(leases(&scene).is_empty());
    scene.ok("image verify --deep file://~/store:base");
}

/// Without its tag as with a tag that was moved, the image that a directory is based on is named; even for another
/// store.
#[test]
fn a_directory_whose_tag_was_removed_is_told_its_image() {
    let scene = layered();
    let digest = digest_of(&scene, "v1");
    let attach = |image: &str| format!("{image} --cache ~/cache --writable ~/vm --nbd unix:~/d.sock");
    let said = |image: &str, store: &str| {
        let own = format!("`headstart attach {store}@{digest}`");
        scene.fails(&format!("attach {}", attach(image)), &["/vm: ", &digest, "no image of this tag", &own]);
    };
    Attached::start(&scene, &attach("file://~/store:v1")).detach();
    scene.ok("image remove file://~/store:v1 --force");
    let store = format!("file://{}", scene.path("store").display());
    said("file://~/store:v1", &store);
    Attached::start(&scene, &attach(&format!("file://~/store@{digest}"))).detach();
    // A new directory is based on no image.
    let new = scene.fails("attach file://~/store:v1 --writable ~/new --nbd unix:~/d.sock", &["of this tag"]);
    assert!(!new.stderr.contains("headstart attach"), "{new}");
    let Some(web) = Web::before(&scene) else { return };
    fs::remove_dir_all(scene.path("vm")).unwrap();
    let at = web.proxy.url();
    scene.ok(&format!("image pull file://~/store@{digest} file://~/store:v1"));
    Attached::start(&scene, &attach(&format!("{at}/:v1"))).detach();
    scene.ok("image remove file://~/store:v1 --force");
    said(&format!("{at}/:v1"), &format!("{at}/"));
    Attached::start(&scene, &attach(&format!("{at}/@{digest}"))).detach();
}

#[test]
fn a_prune_by_force_deletes_what_is_in_use_and_says_so() {
    let scene = layered();
    let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
    let digest = move_tag(&scene);
    let dry = scene.ok(&format!("{PRUNE_NOW} --force --dry-run")).stdout;
    let holder = format!("process {}", attached.process().id());
    assert!(dry.contains(&digest) && dry.contains("needed by") && dry.contains(&holder), "{dry}");
    scene.ok(&format!("image inspect file://~/store@{digest}"));
    assert_eq!(scene.json(&format!("{PRUNE_NOW} --force"))["images"][0]["digest"], digest.as_str());
    scene.fails(&format!("image inspect file://~/store@{digest}"), &["is not in the store"]);
    attached.detach();
}

#[test]
fn leases_of_other_hosts_count_until_an_operator_releases_them() {
    let scene = layered();
    if !installed(&["nbdsh"]) {
        return;
    }
    Attached::start(&scene, "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock").detach();
    let (path, lease) = leases(&scene).remove(0);
    let rewrite = |change: &dyn Fn(&mut Value)| {
        let mut changed = lease.clone();
        change(&mut changed);
        fs::write(&path, changed.to_string()).unwrap();
    };
    fs::remove_dir_all(scene.path("vm")).unwrap();
    let was = move_tag(&scene);
    let held_by = |who: &str| {
        let pruned = scene.json(PRUNE_NOW);
        assert!(pruned["untagged"][0]["holders"].to_string().contains(who), "{pruned}");
    };
    rewrite(&|lease| {
        lease["host"] = serde_json::json!({"name": "node7", "machine": "x", "boot": "y"});
    });
    held_by("node7");
    // The file system of the directory is not mounted.
    rewrite(&|lease| lease["holder"]["filesystem"] = "elsewhere".into());
    held_by("vm");
    // A lease of an unknown version stops everything.
    rewrite(&|lease| lease["version"] = 2.into());
    scene.fails(PRUNE_NOW, &["version 2", "nothing was deleted", "lease release"]);
    assert_eq!(scene.json("lease list file://~/store")["leases"][0]["state"], "unknown");
    rewrite(&|lease| {
        lease["host"] = serde_json::json!({"name": "node7", "machine": "x", "boot": "y"});
    });
    scene.is_wrong("lease release file://~/store", &["--host", "--all"]);
    scene.fails("lease release file://~/store --host node8", &["no such lease"]);
    let released = scene.json(&format!("lease release file://~/store@{was} --host node7"));
    assert_eq!(released["released"][0]["image"], was.as_str(), "{released}");
    assert_eq!(scene.json(PRUNE_NOW)["images"][0]["digest"], was.as_str());
    // The same host after a restart knows its own directories.
    Attached::start(&scene, "file://~/store:base --writable ~/vm --nbd unix:~/d.sock").detach();
    let (path, mut lease) = leases(&scene).remove(0);
    if lease["host"]["machine"].is_string() {
        lease["host"]["boot"] = "earlier".into();
        fs::write(&path, lease.to_string()).unwrap();
        assert_eq!(scene.json("lease list file://~/store")["leases"][0]["state"], "held");
        fs::remove_dir_all(scene.path("vm")).unwrap();
        assert_eq!(scene.json("lease list file://~/store")["leases"][0]["state"], "over");
    }
}

#[test]
fn an_image_is_kept_for_a_week_after_its_last_name() {
    let scene = layered();
    let was = move_tag(&scene);
    let kept = scene.json("image prune file://~/store");
    let until = kept["untagged"][0]["kept_until"].as_str().unwrap();
    let until = humantime::parse_rfc3339(until).unwrap().duration_since(SystemTime::now()).unwrap();
    assert!(
        until > Duration::from_secs(7 * 86400 - 600) && until <= Duration::from_secs(7 * 86400),
        "{kept}"
    );
    assert_eq!(kept["blobs"], 0);
    scene.ok(&format!("image verify --deep file://~/store@{was}"));
    let mark = scene.path("store/.headstart/untagged").join(&was[7..]);
    set_age(&mark, Duration::from_secs(8 * 86400));
    let before = scene.fingerprint("store");
    let dry = scene.json("image prune file://~/store --dry-run");
    assert_eq!((&dry["images"][0]["digest"], &dry["blobs"]), (&was.as_str().into(), &4.into()), "{dry}");
    assert_eq!(scene.fingerprint("store"), before);
    assert_eq!(scene.json("image prune file://~/store --older-than 30d")["blobs"], 0);
    let said = scene.ok("image prune file://~/store").stdout;
    assert!(
        said.contains(&format!("deleted: {was} (was v1; without a tag since "))
            && said.contains("4 blobs deleted"),
        "{said}"
    );
    assert!(!mark.exists());
    // An image whose name another tool removed is kept from the time when that is noticed.
    let index = scene.path("store/index.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    text["manifests"].as_array_mut().unwrap().retain(|entry| !entry.to_string().contains("\"v1\""));
    fs::write(&index, text.to_string()).unwrap();
    let kept = scene.json("image prune file://~/store");
    assert_eq!((&kept["blobs"], kept["untagged"].as_array().unwrap().len()), (&0.into(), 1), "{kept}");
    assert_eq!(scene.names("store/.headstart/untagged").len(), 1);
}

#[test]
fn a_store_that_cannot_be_written_gives_its_images_with_a_warning() {
    let scene = layered();
    fs::remove_dir_all(scene.path("store/.headstart")).unwrap();
    fs::write(scene.path("store/.headstart"), "").unwrap();
    let mut attached = Attached::start(&scene, "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock");
    let warning = attached.warning();
    assert!(warning.contains("no lease can be left in file://") && warning.contains("deleting"), "{warning}");
    assert_eq!(attached.output().matches("warning").count(), 1);
    attached.detach();
}

/// Tags move and every image without a name is deleted while disks come and go: none loses its image.
#[test]
fn attaches_beside_prunes_lose_nothing() {
    let scene = layered();
    if !can_check_bytes() {
        return;
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut rounds = 0u32;
            while !done.load(Ordering::Relaxed) || rounds < 5 {
                let level = rounds % 6 + 1;
                let import = format!("image import disk.raw file://~/store:v1 --level {level}");
                for words in [import.as_str(), PRUNE_NOW] {
                    // On a busy machine there may be a message that the lock is waited for.
                    let run = scene.run(words);
                    assert_eq!(run.status, Some(0), "{run}");
                }
                rounds += 1;
            }
        });
        let attachers: Vec<_> = (0..3)
            .map(|n| {
                let scene = &scene;
                scope.spawn(move || {
                    for round in 0..4 {
                        let dir = if round % 2 == 0 {
                            format!("--writable ~/vm{n}.{round}")
                        } else {
                            String::new()
                        };
                        let words = format!("file://~/store:v1 {dir} --nbd unix:~/{n}.sock");
                        let attached = Attached::start(scene, &words);
                        let out = format!("out{n}.raw");
                        tool(scene, "nbdcopy", &[&attached.uri(), &out]);
                        assert_same(scene, "disk.raw", &out);
                        attached.detach();
                    }
                })
            })
            .collect();
        let ended: Vec<_> = attachers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        mover.join().unwrap();
        assert!(ended.into_iter().all(|ended| ended.is_ok()));
    });
    // Each directory still has its image.
    for (n, round) in (0..3).flat_map(|n| [0, 2].map(|round| (n, round))) {
        let dir = format!("vm{n}.{round}");
        let state: Value = serde_json::from_slice(&scene.bytes(&format!("{dir}/state.json"))).unwrap();
        let parent = state["parent"].as_str().unwrap();
        let words = format!("file://~/store@{parent} --writable ~/{dir} --nbd unix:~/d.sock");
        let attached = Attached::start(&scene, &words);
        check_bytes(&scene, "disk.raw", &attached.uri());
        attached.detach();
    }
}

/// Copies a directory with all that is in it.
fn copy(scene: &Scene, from: &str, to: &str) {
    let paths = [scene.path(from), scene.path(to)].map(|path| path.into_os_string().into_string().unwrap());
    tool(scene, "cp", &["-a", &paths[0], &paths[1]]);
}

#[test]
fn a_copy_of_a_directory_takes_nothing_from_the_directory() {
    let scene = layered();
    let attach = |words: &str| {
        Attached::start(&scene, &format!("file://~/store:v1 --nbd unix:~/d.sock {words}")).detach();
    };
    attach("--writable ~/vm1");
    copy(&scene, "vm1", "vm2");
    attach("--writable ~/vm2");
    assert_eq!(leases(&scene).len(), 2);
    fs::remove_dir_all(scene.path("vm2")).unwrap();
    assert_eq!(scene.json(PRUNE_NOW)["ended_leases"], 1);
    // A copy with a base of its own releases only its own lease.
    copy(&scene, "vm1", "vm3");
    attach("--writable ~/vm3");
    attach("--writable ~/vm3 --keep-base");
    let was = move_tag(&scene);
    let pruned = scene.json(PRUNE_NOW);
    let dir = fs::canonicalize(scene.path("vm1")).unwrap();
    let holders = pruned["untagged"][0]["holders"].as_array().unwrap();
    assert!(holders.len() == 1 && holders[0].as_str().unwrap().contains(dir.to_str().unwrap()), "{pruned}");
    Attached::start(&scene, &format!("file://~/store@{was} --writable ~/vm1 --nbd unix:~/d.sock")).detach();
    // A directory that was moved leaves its old lease to end.
    fs::rename(scene.path("vm1"), scene.path("vm4")).unwrap();
    Attached::start(&scene, &format!("file://~/store@{was} --writable ~/vm4 --nbd unix:~/d.sock")).detach();
    assert_eq!(scene.json(PRUNE_NOW)["ended_leases"], 1);
    scene.ok(&format!("image verify file://~/store@{was}"));
}

/// If the lease of a directory cannot be written, that of the process is written anyway.
#[test]
fn a_disk_holds_its_image_although_its_directory_cannot() {
    let scene = layered();
    let words = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";
    Attached::start(&scene, words).detach();
    let (of_directory, _) = leases(&scene).remove(0);
    // A directory that is not empty cannot be replaced.
    fs::remove_file(&of_directory).unwrap();
    fs::create_dir_all(of_directory.join("x")).unwrap();
    let mut attached = Attached::start(&scene, words);
    let warning = attached.warning();
    assert!(warning.contains("held only while it is attached") && warning.contains("vm"), "{warning}");
    let names = scene.names("store/.headstart/leases");
    assert!(names.len() == 2 && names.iter().any(|name| name.starts_with("attach-")), "{names:?}");
    fs::remove_dir_all(&of_directory).unwrap();
    scene.fails("image remove file://~/store:v1", &["in use by", "process"]);
    attached.detach();
}

/// Paths mean something else in a container: a missing directory may be there for the writer of the lease.
#[test]
fn a_directory_of_a_container_is_not_gone_because_the_host_does_not_see_it() {
    let scene = layered();
    Attached::start(&scene, "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock").detach();
    fs::rename(scene.path("vm"), scene.path("elsewhere")).unwrap();
    let (path, lease) = leases(&scene).remove(0);
    let mut other = lease.clone();
    let inode = lease["host"]["root"]["inode"].as_u64().unwrap();
    other["host"]["root"]["inode"] = (inode + 1).into();
    fs::write(&path, other.to_string()).unwrap();
    move_tag(&scene);
    let pruned = scene.json(PRUNE_NOW);
    assert_eq!((&pruned["ended_leases"], &pruned["blobs"]), (&0.into(), &0.into()), "{pruned}");
    assert_eq!(scene.json("lease list file://~/store")["leases"][0]["state"], "unknown");
    fs::write(&path, lease.to_string()).unwrap();
    assert_eq!(scene.json("lease list file://~/store")["leases"][0]["state"], "over");
}

/// A name that comes back ends the week: a later loss begins another.
#[test]
fn an_image_that_is_tagged_again_has_no_mark() {
    let scene = layered();
    let was = move_tag(&scene);
    let mark = scene.path("store/.headstart/untagged").join(&was[7..]);
    assert!(mark.exists());
    scene.ok(&format!("image pull file://~/store@{was} file://~/store:again"));
    assert!(!mark.exists());
    scene.ok("image remove file://~/store:again");
    assert!(mark.exists());
    // An import that makes the same image again gives it a name, too.
    scene.ok("image import disk.raw file://~/store:v1 --base file://~/store:base");
    assert_eq!(digest_of(&scene, "v1"), was);
    assert!(!mark.exists());
}
