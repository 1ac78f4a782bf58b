//! Files that another user left in the places of a disk's records and writes: they are named, and neither trusted nor
//! used.

use crate::attached::{Attached, Metrics};
use crate::images::{Web, layered, noisy};
use crate::refused::{OTHER, give, refused};
use crate::scene::Scene;
use crate::tools::{installed, is_root};
use headstart_testkit::faults::Outage;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

/// The directories of a cache that have its images and links, recordings and plans.
const BELIEVED: [&str; 5] = ["images", "links", "pinned", "traces", "plans"];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A cache that has the whole image.
fn filled(scene: &Scene, web: &Web) -> String {
    let words = format!("{} --nbd unix:~/d.sock --cache ~/cache", web.image());
    let attached = Attached::start(scene, &format!("{words} --fill 1GB/s --metrics 127.0.0.1:0"));
    attached.wait_for("full disk", Metrics::all_is_local);
    attached.detach();
    words
}

/// The same holds if the directory is used as a cache for the first time: that user was there before.
#[test]
fn a_cache_with_directories_of_another_user_is_refused() {
    let scene = layered();
    if !is_root() {
        return;
    }
    let Some(web) = Web::before(&scene) else { return };
    let image = web.image();
    fs::create_dir(scene.path("elsewhere")).unwrap();
    for of_cache in [0o777, 0o1777, 0o755] {
        fs::create_dir(scene.path("new")).unwrap();
        let words = format!("{image} --nbd unix:~/d.sock --cache ~/new");
        for name in BELIEVED {
            set_mode(&scene.path("new"), of_cache);
            let theirs = scene.path("new").join(name);
            fs::create_dir(&theirs).unwrap();
            give(&theirs, OTHER);
            let parts = [theirs.to_str().unwrap(), "belongs to another user (id 54321)", "chown -R 0 "];
            refused(&scene, &format!("attach {words}"), &parts);
            fs::remove_dir(&theirs).unwrap();
            symlink(scene.path("elsewhere"), &theirs).unwrap();
            give(&theirs, OTHER);
            let parts = [theirs.to_str().unwrap(), "symbolic link of another user (id 54321)", "chown -h 0 "];
            refused(&scene, &format!("attach {words}"), &parts);
            fs::remove_file(&theirs).unwrap();
        }
        assert!(scene.names("elsewhere").is_empty());
        assert!(web.proxy.log().is_empty(), "{of_cache:o}: the image was asked for");
        // A link of the user's own is followed, and the directory is closed if not each user owns the files that it
        // made.
        symlink(scene.path("elsewhere"), scene.path("new/traces")).unwrap();
        set_mode(&scene.path("new"), of_cache);
        Attached::start(&scene, &words).detach();
        web.proxy.clear_log();
        let closed = if of_cache == 0o1777 { 0o1777 } else { 0o700 };
        assert_eq!(mode(&scene.path("new")), closed, "{of_cache:o}");
        fs::remove_dir_all(scene.path("new")).unwrap();
    }
}

#[test]
fn a_directory_that_holds_other_things_becomes_no_cache() {
    let scene = noisy(1);
    let Some(web) = Web::before(&scene) else { return };
    const MINE: [&str; 3] = ["app.js.data", "app.js.map", "letters"];
    let put = |dir: &str| MINE.iter().for_each(|name| fs::write(scene.path(dir).join(name), "dear").unwrap());
    let words = |dir: &str| format!("{} --nbd unix:~/d.sock --cache ~/{dir}", web.image());
    fs::create_dir(scene.path("new")).unwrap();
    put("new");
    // A name that a cache has, too, does not make a cache of a user's directory.
    fs::create_dir_all(scene.path("photos/images")).unwrap();
    fs::create_dir_all(scene.path("album/images")).unwrap();
    fs::write(scene.path("album/images/holiday.jpg"), "sea").unwrap();
    // Nor do names of a cache's files, with other content.
    for (dir, name) in [("locked", "lock"), ("counted", "state.1"), ("half", "new.tmp"), ("planned", "plans")]
    {
        fs::create_dir(scene.path(dir)).unwrap();
        fs::write(scene.path(dir).join(name), "dear").unwrap();
    }
    for (dir, first) in [
        ("new", MINE[0]),
        ("photos", "images"),
        ("album", "images"),
        ("locked", "lock"),
        ("counted", "state.1"),
        ("half", "new.tmp"),
        ("planned", "plans"),
    ] {
        let names = scene.names(dir);
        for kept in [0o777, 0o1777, 0o755, 0o700] {
            set_mode(&scene.path(dir), kept);
            let cause = format!("{dir}: is not a cache and holds something already: {first}");
            refused(&scene, &format!("attach {}", words(dir)), &[&cause, "give an empty directory"]);
            assert_eq!((scene.names(dir), mode(&scene.path(dir))), (names.clone(), kept));
        }
    }
    assert!(web.proxy.log().is_empty(), "the image was asked for");
    // Images in directories are not cached, but their boots are recorded there.
    let local = "attach file://~/store:v1 --nbd unix:~/d.sock --cache ~/new";
    refused(&scene, local, &["new: is not a cache and holds something already", "give an empty directory"]);
    // The files of an earlier start are accepted, and a cache stays one whatever is put beside it.
    for left in ["", "lock", "state.1", "traces"] {
        let cache = scene.path("begun");
        fs::create_dir(&cache).unwrap();
        match left {
            "" => {}
            "traces" => fs::create_dir(cache.join(left)).unwrap(),
            _ => fs::write(cache.join(left), "").unwrap(),
        }
        set_mode(&cache, 0o755);
        Attached::start(&scene, &words("begun")).detach();
        assert_eq!(mode(&cache), 0o700, "{left}");
        put("begun");
        Attached::start(&scene, &words("begun")).detach();
        // Files with the endings of blobs' files are not the cache's to remove.
        assert!(MINE.iter().all(|name| scene.bytes(&format!("begun/{name}")) == b"dear"));
        fs::remove_dir_all(&cache).unwrap();
    }
}

/// A file there has the image that a tag stands for while the store is away.
#[test]
fn tags_that_another_user_noted_are_not_believed() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let words = filled(&scene, &web);
    web.proxy.set_outage(Outage::Refuse);
    let mut attached = Attached::start(&scene, &words);
    let warning = attached.warning();
    assert!(warning.contains("in the cache"), "{warning}");
    attached.detach();
    if !is_root() {
        return;
    }
    let names = scene.names("cache/images");
    let [file] = names.as_slice() else { panic!("{names:?}") };
    let file = scene.path("cache/images").join(file);
    give(&file, OTHER);
    let parts = [file.to_str().unwrap(), "belongs to another user (id 54321)", "chown 0 "];
    refused(&scene, &format!("attach {words}"), &parts);
    give(&file, 0);
    Attached::start(&scene, &words).detach();
}

/// A cache that root made for others stays as root made it, whatever other users do with it.
#[test]
fn a_directory_of_roots_is_a_cache_of_another_user() {
    let scene = noisy(1);
    if !is_root() || !installed(&["setpriv"]) {
        return;
    }
    let Some(web) = Web::before(&scene) else { return };
    let shared = tempfile::tempdir().unwrap();
    let at = |name: &str| shared.path().join(name);
    set_mode(shared.path(), 0o755);
    fs::create_dir(at("own")).unwrap();
    give(&at("own"), OTHER);
    let id = OTHER.to_string();
    for of_cache in [0o770, 0o1777, 0o777] {
        fs::create_dir(at("cache")).unwrap();
        chown(at("cache"), Some(0), Some(OTHER)).unwrap();
        set_mode(&at("cache"), of_cache);
        for _ in 0..2 {
            let plain = scene.command(&format!("attach --json {} --nbd", web.image()));
            let mut command = Command::new("setpriv");
            command.args(["--clear-groups", "--reuid", &id, "--regid", &id]);
            command.arg(plain.get_program()).args(plain.get_args()).current_dir(at("own"));
            command.arg(format!("unix:{}", at("own/d.sock").display())).arg("--cache").arg(at("cache"));
            let attached = Attached::of(&mut command);
            let said = attached.output();
            assert!(!said.contains("another user") && !said.contains("cannot remember"), "{said}");
            attached.detach();
            assert_eq!(mode(&at("cache")), of_cache);
        }
        assert!(at("cache/images").is_dir());
        fs::remove_dir_all(at("cache")).unwrap();
    }
}

#[test]
fn a_directory_of_another_user_gets_no_traces() {
    let scene = noisy(1);
    if !is_root() {
        return;
    }
    fs::create_dir(scene.path("theirs")).unwrap();
    fs::create_dir(scene.path("own")).unwrap();
    symlink("own", scene.path("link")).unwrap();
    for (theirs, what) in [("theirs", "belongs to another user"), ("link", "symbolic link of another user")] {
        give(&scene.path(theirs), OTHER);
        let words = format!("file://~/store:v1 --nbd unix:~/d.sock --record ~/{theirs}");
        let mut attached = Attached::start(&scene, &words);
        let warning = attached.warning_with("nothing is recorded");
        for part in [theirs, what, "54321", "chown -"] {
            assert!(warning.contains(part), "no `{part}`: {warning}");
        }
        attached.detach();
    }
}

#[test]
fn a_file_of_process_numbers_is_this_users() {
    let scene = noisy(1);
    let words = "file://~/store:v1 --nbd unix:~/d.sock --no-record --pid-file ~/vm.pid";
    let file = scene.path("vm.pid");
    fs::write(scene.path("victim"), "precious").unwrap();
    symlink("victim", &file).unwrap();
    refused(&scene, &format!("attach {words}"), &["vm.pid", "is a symbolic link", "remove it"]);
    assert_eq!(scene.bytes("victim"), b"precious");
    fs::remove_file(&file).unwrap();
    // A refused process leaves no file that it made.
    fs::write(scene.path("vm.json"), "{").unwrap();
    refused(&scene, &format!("attach {words}"), &["vm.json", "is not a record of a disk"]);
    assert!(!file.exists());
    fs::remove_file(scene.path("vm.json")).unwrap();
    if is_root() {
        fs::write(&file, "").unwrap();
        give(&file, OTHER);
        refused(
            &scene,
            &format!("attach {words}"),
            &["vm.pid", "belongs to another user (id 54321)", "chown 0 "],
        );
        assert_eq!(scene.bytes("vm.pid"), b"");
        // Another user's record of the disk is not trusted either, if an earlier process of it seems to have been
        // there.
        give(&file, 0);
        fs::write(&file, "1\n").unwrap();
        for name in ["vm.json", "vm.images"] {
            let path = scene.path(name);
            fs::write(&path, r#"{"version":1,"served":true,"images":[]}"#).unwrap();
            give(&path, OTHER);
            let parts = [name, "belongs to another user (id 54321)", "chown 0 "];
            refused(&scene, &format!("attach {words}"), &parts);
            fs::rename(&path, scene.path("kept")).unwrap();
            give(&scene.path("kept"), 0);
            symlink("kept", &path).unwrap();
            give(&path, OTHER);
            let parts = [name, "is a symbolic link of another user (id 54321)", "chown -h 0 "];
            refused(&scene, &format!("attach {words}"), &parts);
            fs::remove_file(&path).unwrap();
        }
        fs::remove_file(&file).unwrap();
    }
    let mut attached = Attached::start(&scene, words);
    let id = attached.process().id();
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), id.to_string());
    attached.detach();
}
