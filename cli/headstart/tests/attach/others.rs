//! Attacks by users that may write to a store, or to the place of a writable directory: none of their links is
//! followed, and no file that they leave there stops others for ever.

use crate::attached::Attached;
use crate::images::{Web, layered};
use crate::refused::{OTHER, give, refused};
use crate::scene::{CommandRun, Scene};
use crate::tools::is_root;
use headstart_testkit::process::Process;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

const ATTACH: &str = "file://~/store:v1 --nbd unix:~/d.sock";
const WRITABLE: &str = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";
const PRUNE_NOW: &str = "image prune file://~/store --older-than 0s";

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A store, and another user's directory with a file in it.
fn scene() -> Scene {
    let scene = layered();
    fs::create_dir_all(scene.path("theirs/precious")).unwrap();
    fs::write(scene.path("theirs/precious/file"), "precious").unwrap();
    fs::write(scene.path("victim"), "precious").unwrap();
    scene
}

#[track_caller]
fn check_untouched(scene: &Scene) {
    assert_eq!(scene.names("theirs"), ["precious"]);
    assert_eq!(scene.names("theirs/precious"), ["file"]);
    assert_eq!(
        (scene.bytes("victim"), scene.bytes("theirs/precious/file")),
        (b"precious".into(), b"precious".into())
    );
}

/// Attaches an image, with a warning about its store.
#[track_caller]
fn attach_with_warning(scene: &Scene, parts: &[&str]) {
    let mut attached = Attached::start(scene, ATTACH);
    let warning = attached.warning();
    assert!(parts.iter().all(|part| warning.contains(part)), "{warning}");
    attached.detach();
}

#[test]
fn directories_of_a_store_that_lead_elsewhere_are_refused_by_name() {
    let scene = scene();
    let private = scene.path("store/.headstart");
    for name in ["leases", "untagged", "staging", "partial"] {
        let _ = fs::remove_dir_all(private.join(name));
        symlink(scene.path("theirs"), private.join(name)).unwrap();
    }
    attach_with_warning(&scene, &["no lease can be left", "`leases`", "a symbolic link"]);
    scene.fails("image remove file://~/store:v1", &["leases", "a symbolic link"]);
    fs::remove_file(private.join("leases")).unwrap();
    scene.fails("image remove file://~/store:v1", &["untagged", "a symbolic link"]);
    scene.fails("image import disk.raw file://~/store:next", &["staging", "a symbolic link"]);
    scene.fails(PRUNE_NOW, &["a symbolic link"]);
    check_untouched(&scene);
    fs::remove_dir_all(&private).unwrap();
    symlink(scene.path("theirs"), &private).unwrap();
    attach_with_warning(&scene, &["no lease can be left", "`.headstart`", "a symbolic link"]);
    for words in [PRUNE_NOW, "image remove file://~/store:v1", "image import disk.raw file://~/store:next"] {
        scene.fails(words, &["`.headstart`", "a symbolic link"]);
    }
    check_untouched(&scene);
}

#[test]
fn files_of_a_store_are_neither_followed_nor_waited_for() {
    let scene = scene();
    let private = scene.path("store/.headstart");
    // The links have the names that earlier versions wrote to before they renamed.
    for dir in [private.join("leases"), private.join("untagged")] {
        fs::create_dir_all(&dir).unwrap();
        symlink(scene.path("victim"), dir.join(".new")).unwrap();
    }
    symlink(scene.path("victim"), private.join("prepared")).unwrap();
    Attached::start(&scene, ATTACH).detach();
    scene.ok("image pull file://~/store:v1 file://~/store:again");
    scene.ok("image remove file://~/store:again");
    scene.ok("image remove file://~/store:v1");
    check_untouched(&scene);
    for path in [private.join("leases/.new"), private.join("untagged/.new"), private.join("prepared")] {
        let _ = fs::remove_file(&path);
        pipe(&path);
    }
    assert!(scene.run("image import disk.raw file://~/store:v1").status == Some(0));
    Attached::start(&scene, ATTACH).detach();
    // A prune removes them.
    scene.ok(PRUNE_NOW);
    assert!(scene.names("store/.headstart").iter().all(|name| name != "prepared"));
    assert!(scene.names("store/.headstart/leases").is_empty());
    // The lock leads elsewhere, or nowhere.
    fs::remove_file(private.join("lock")).unwrap();
    for make in [
        &(|path: &Path| symlink(scene.path("victim"), path).unwrap()) as &dyn Fn(&Path),
        &(|path: &Path| symlink(scene.path("new"), path).unwrap()),
        &pipe,
    ] {
        make(&private.join("lock"));
        attach_with_warning(&scene, &["no lease can be left", "`lock`"]);
        scene.fails(PRUNE_NOW, &["`lock`"]);
        fs::remove_file(private.join("lock")).unwrap();
    }
    assert!(!scene.path("new").exists());
    check_untouched(&scene);
    // Files that other tools write are not waited for either.
    fs::remove_file(scene.path("store/index.json")).unwrap();
    pipe(&scene.path("store/index.json"));
    scene.run("image list file://~/store").fails(&["index.json", "a pipe"]);
}

#[test]
fn links_and_pipes_in_a_writable_directory_are_refused_at_once() {
    let scene = scene();
    Attached::start(&scene, WRITABLE).detach();
    let vm = scene.path("vm");
    // A new state replaces any file there, and the target of a link does not change.
    symlink(scene.path("victim"), vm.join("state.json.new")).unwrap();
    Attached::start(&scene, "file://~/store:v1 --writable ~/vm --size 64M --nbd unix:~/d.sock").detach();
    check_untouched(&scene);
    for name in ["data", "index", "lock", "state.json"] {
        let (path, kept) = (vm.join(name), scene.path("kept"));
        fs::rename(&path, &kept).unwrap();
        symlink(&kept, &path).unwrap();
        scene.fails(&format!("attach {WRITABLE}"), &["vm", "a symbolic link"]);
        fs::remove_file(&path).unwrap();
        pipe(&path);
        scene.run(&format!("attach {WRITABLE}")).fails(&["vm", "a pipe"]);
        fs::remove_file(&path).unwrap();
        fs::rename(&kept, &path).unwrap();
    }
    // The copy of its base is inside it, and not elsewhere.
    symlink(scene.path("theirs"), vm.join("base")).unwrap();
    scene.fails(&format!("attach {WRITABLE} --keep-base"), &["vm/base", "a symbolic link"]);
    scene.fails(&format!("attach {WRITABLE}"), &["vm/base", "a symbolic link"]);
    check_untouched(&scene);
    fs::remove_file(vm.join("base")).unwrap();
    Attached::start(&scene, &format!("{WRITABLE} --keep-base")).detach();
    let mut open = vec![vm.join("base")];
    while let Some(path) = open.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o077, 0, "{}", path.display());
        if found.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

#[test]
fn a_writable_directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let scene = scene();
    Attached::start(&scene, WRITABLE).detach();
    chown(scene.path("vm"), Some(OTHER), None).unwrap();
    let before = scene.fingerprint("vm");
    for words in [format!("attach {WRITABLE}"), "disk compact ~/vm".to_owned()] {
        scene.fails(&words, &["vm", "belongs to another user", "chown"]);
    }
    // The same holds if there is no disk yet.
    fs::create_dir(scene.path("new")).unwrap();
    chown(scene.path("new"), Some(OTHER), None).unwrap();
    scene.fails("attach file://~/store:v1 --writable ~/new --nbd unix:~/d.sock", &["new", "chown"]);
    assert!(scene.names("new").is_empty());
    assert_eq!(scene.fingerprint("vm"), before);
    chown(scene.path("vm"), Some(0), None).unwrap();
    Attached::start(&scene, WRITABLE).detach();
}

/// A cache records verified bytes, and traces are written there, so that one of another user's is refused.
#[test]
fn a_cache_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let scene = scene();
    let Some(web) = Web::before(&scene) else { return };
    let attach = |cache: &str, parts: &[&str]| {
        for image in ["file://~/store:v1".to_owned(), web.image()] {
            refused(&scene, &format!("attach {image} --nbd unix:~/d.sock --cache ~/{cache}"), parts);
        }
    };
    let words = format!("{} --nbd unix:~/d.sock --cache ~/cache", web.image());
    Attached::start(&scene, &words).detach();
    let before = scene.fingerprint("cache");
    give(&scene.path("cache"), OTHER);
    attach("cache", &["cache", "belongs to another user (id 54321)", "chown -R 0 "]);
    scene.fails("cache usage --dir ~/cache", &["cache", "another user", "chown -R 0 "]);
    assert_eq!(scene.fingerprint("cache"), before);
    give(&scene.path("cache"), 0);
    // The same holds if there is no cache yet.
    fs::create_dir(scene.path("new")).unwrap();
    give(&scene.path("new"), OTHER);
    attach("new", &["new", "belongs to another user", "chown -R 0 "]);
    assert!(scene.names("new").is_empty());
    // A link to the user's own directory depends on the link's owner.
    symlink(scene.path("cache"), scene.path("led")).unwrap();
    Attached::start(&scene, &words.replace("~/cache", "~/led")).detach();
    give(&scene.path("led"), OTHER);
    attach("led", &["led", "symbolic link of another user (id 54321)", "chown -h 0 "]);
    // Files that another user left in it while that was possible.
    let blob = scene.names("cache").into_iter().find(|name| name.ends_with(".map")).unwrap();
    let (blob, lock) = (scene.path("cache").join(blob), scene.path("cache/lock"));
    give(&lock, OTHER);
    refused(&scene, &format!("attach {words}"), &["lock", "belongs to another user", "chown 0 "]);
    give(&lock, 0);
    // Disks do without a blob.
    give(&blob, OTHER);
    let mut attached = Attached::start(&scene, &words);
    let warning = attached.warning();
    let parts = [blob.to_str().unwrap(), "belongs to another user", "chown 0 "];
    assert!(parts.iter().all(|part| warning.contains(part)), "{warning}");
    attached.detach();
    give(&blob, 0);
    fs::remove_file(&lock).unwrap();
    symlink(scene.path("made"), &lock).unwrap();
    assert!(scene.run(&format!("attach {words}")).status == Some(1) && !scene.path("made").exists());
    fs::remove_file(&lock).unwrap();
    Attached::start(&scene, &words).detach();
}

/// A user that may not write to a store cannot lock it either, and one that may can, whatever the umask of others is.
#[test]
fn locks_and_leases_are_for_those_who_may_write_to_the_store() {
    let scene = scene();
    let (store, private) = (scene.path("store"), scene.path("store/.headstart"));
    let leases = || fs::read_dir(private.join("leases")).unwrap().map(|entry| entry.unwrap().path());
    for (of_store, of_files) in [(0o755, 0o600), (0o775, 0o660), (0o700, 0o600)] {
        fs::remove_dir_all(&private).unwrap();
        set_mode(&store, of_store);
        let mut command = std::process::Command::new("sh");
        let program = env!("CARGO_BIN_EXE_headstart");
        let words = format!("attach --json {WRITABLE}")
            .replace('~', scene.path("").to_str().unwrap().trim_end_matches('/'));
        command.arg("-c").arg(format!("umask 077; exec {program} {words}")).current_dir(scene.path(""));
        let attached = Attached::of(&mut command);
        assert_eq!(mode(&private.join("lock")), of_files, "{of_store:o}");
        assert_eq!(leases().count(), 2);
        assert!(leases().all(|path| mode(&path) == of_files), "{of_store:o}");
        assert_eq!([mode(&private), mode(&private.join("leases"))], [of_store; 2]);
        attached.detach();
    }
    // The files are as earlier versions left them.
    set_mode(&store, 0o755);
    set_mode(&private.join("lock"), 0o644);
    let lease = leases().next().unwrap();
    set_mode(&lease, 0o644);
    scene.ok("image prune file://~/store");
    assert_eq!([mode(&private.join("lock")), mode(&lease)], [0o600; 2]);
    // Files that root makes in the store of another user belong to that user.
    if rustix::process::geteuid().is_root() {
        fs::remove_dir_all(&private).unwrap();
        chown(&store, Some(OTHER), Some(OTHER)).unwrap();
        let attached = Attached::start(&scene, ATTACH);
        for path in
            [private.clone(), private.join("lock"), private.join("leases")].into_iter().chain(leases())
        {
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid()), (OTHER, OTHER), "{}", path.display());
        }
        attached.detach();
    }
}

#[test]
fn a_lock_that_stays_held_is_told_of_and_given_up() {
    let scene = scene();
    let lock = File::options().write(true).open(scene.path("store/.headstart/lock")).unwrap();
    lock.lock().unwrap();
    let mut command = scene.command(&format!("attach {ATTACH}"));
    let begun = Instant::now();
    let mut attaching = Process::start(&mut command);
    let warning =
        attaching.line("a warning", Duration::from_secs(60), |line| line.contains("holds the lock"));
    assert!(warning.contains("warning") && warning.contains(".headstart/lock"), "{warning}");
    assert!(begun.elapsed() >= Duration::from_secs(2));
    let error = attaching.line("the end", Duration::from_secs(60), |line| line.contains("fuser"));
    for part in [".headstart/lock", "30 s", "fuser -v"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(begun.elapsed() >= Duration::from_secs(28));
    // A lock that is released in time only causes a wait.
    let mut waiting = Process::start(&mut scene.command("image remove file://~/store:v1"));
    waiting.line("a warning", Duration::from_secs(60), |line| line.contains("holds the lock"));
    drop(lock);
    assert_eq!(waiting.end(Duration::from_secs(60)).code(), Some(0), "{waiting}");
}

fn listed(scene: &Scene) -> Vec<Value> {
    scene.json("lease list file://~/store")["leases"].as_array().unwrap().clone()
}

/// A lease that cannot be read counts as one of every image, until it is removed by its name.
#[test]
fn a_damaged_lease_counts_until_it_is_released() {
    let scene = scene();
    Attached::start(&scene, WRITABLE).detach();
    let leases = scene.path("store/.headstart/leases");
    fs::create_dir(leases.join("directory")).unwrap();
    fs::create_dir(leases.join("attach-directory")).unwrap();
    symlink("loop", leases.join("loop")).unwrap();
    symlink(scene.path("victim"), leases.join("link")).unwrap();
    pipe(&leases.join("pipe"));
    pipe(&leases.join("it's a\npipe"));
    fs::write(leases.join("text"), "no lease").unwrap();
    fs::write(leases.join("long"), vec![b' '; (1 << 20) + 1]).unwrap();
    let ids = ["attach-directory", "directory", "it's a\npipe", "link", "long", "loop", "pipe", "text"];
    let list = scene.run("lease list file://~/store --json").succeeds().json();
    let damaged: Vec<_> =
        list["leases"].as_array().unwrap().iter().filter(|lease| lease["state"] == "damaged").collect();
    assert_eq!(damaged.iter().map(|lease| lease["id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
    let said = scene.ok("lease list file://~/store").stdout;
    assert!(said.contains(r"$'it\'s a\u000apipe'") && said.contains("a symbolic link"), "{said}");
    let dry = format!("{PRUNE_NOW} --dry-run");
    for words in
        [PRUNE_NOW, &dry, "image remove file://~/store:v1", "image remove file://~/store:v1 --dry-run"]
    {
        scene.run(words).fails(&["attach-directory", "nothing was deleted", "lease release"]);
    }
    scene.fails("lease release file://~/store --id none", &["no such lease"]);
    for id in ids {
        let store = format!("file://{}", scene.path("store").display());
        let mut command = scene.command("lease release");
        command.args([store.as_str(), "--id", id]);
        CommandRun::of(id, &mut command).succeeds();
    }
    assert_eq!(listed(&scene).len(), 1, "that of the writable directory stays");
    check_untouched(&scene);
    // A directory that is not empty is not deleted.
    fs::create_dir_all(leases.join("full/of")).unwrap();
    scene.fails("lease release file://~/store --id full", &["full", "delete it"]);
    fs::remove_dir_all(leases.join("full")).unwrap();
    scene.ok(PRUNE_NOW);
}

/// A lease may name any path as the record of its disk: a file that says nothing about the disk neither ends the lease
/// nor keeps an operator from ending it.
#[test]
fn a_record_that_is_none_neither_ends_nor_holds_a_lease() {
    let scene = scene();
    let attached = Attached::start(&scene, ATTACH);
    let leases = scene.path("store/.headstart/leases");
    let file = leases.join(&scene.names("store/.headstart/leases")[0]);
    let mut lease: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    attached.detach();
    let digest = lease["image"].as_str().unwrap().to_owned();
    let mut forge = |record: &Path| {
        lease["holder"]["record"] = record.to_str().unwrap().into();
        fs::write(leases.join("disk-forged"), lease.to_string()).unwrap();
        let state =
            scene.run("lease list file://~/store --json").succeeds().json()["leases"][0]["state"].clone();
        state.as_str().unwrap().to_owned()
    };
    let record = scene.path("vm.images");
    pipe(&scene.path("pipe.images"));
    symlink("/etc/passwd", scene.path("link.images")).unwrap();
    fs::write(&record, "{}").unwrap();
    for path in [
        Path::new("/etc/passwd"),
        Path::new("vm.images"),
        &scene.path("pipe.images"),
        &scene.path("link.images"),
        &record,
    ] {
        assert_eq!(forge(path), "unknown", "{}", path.display());
        scene.fails("image remove file://~/store:v1", &["in use by"]);
    }
    scene.ok("lease release file://~/store --all");
    fs::write(&record, format!("{{\"images\": [{{\"digest\": \"{digest}\"}}]}}")).unwrap();
    assert_eq!(forge(&record), "held");
    fs::remove_file(&record).unwrap();
    assert_eq!(forge(&record), "over");
}
