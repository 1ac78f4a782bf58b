//! Impossible requests, and their errors.

use crate::daemon::Daemon;
use crate::refused::{OTHER, give, refused};
use crate::scene::Scene;
use crate::tools::is_root;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::{Duration, Instant};

const SERVE: &str = "harvest serve ~/h --size 64M";

#[test]
fn without_a_daemon_it_is_said_how_to_start_one() {
    let scene = Scene::new();
    for words in ["vssd list", "status", "request a --capacity 1G", "release a", "vssd create a"] {
        scene.fails(
            &format!("harvest {words} --dir ~/h"),
            &["h/harvest.sock", "no daemon answers", "o such file", "headstart harvest serve", "--dir"],
        );
    }
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let scene = Scene::new();
    // The paths in its output are absolute, whatever directory it is started in, because programs in other directories
    // use them.
    let absolute = scene.path("h").display().to_string();
    scene.fails("harvest serve h", &[&absolute, "--size"]);
    fs::create_dir(scene.path("dir")).unwrap();
    scene.fails("harvest serve ~/h --size 1G --flash ~/dir", &["dir", "neither a file nor a block device"]);
    scene.fails("harvest serve ~/h --size 1G --nbd unix:~/none/d.sock", &["none/d.sock"]);
    fs::create_dir(scene.path("store")).unwrap();
    fs::write(scene.path("store/index.json"), "{}").unwrap();
    scene.fails(
        "harvest serve ~/store --size 1G",
        &["/store", "holds something already: index.json", "empty"],
    );
    assert_eq!(fs::read_dir(scene.path("store")).unwrap().count(), 1);
    scene.fails("harvest serve ~/tiny --size 1M", &["1 MiB", "too little", "give 2 MiB to"]);
    fs::write(scene.path("file"), "precious").unwrap();
    scene.fails("harvest serve ~/file --size 1G", &["file"]);
    let taken = ["file", "there is a file already", "--erase"];
    scene.fails("harvest serve ~/new --size 1G --flash ~/file", &taken);
    for erased in ["--erase", "--erase --emulated"] {
        scene.is_wrong(&format!("harvest serve ~/h --size 1G {erased}"), &["--erase"]);
    }
    assert_eq!(scene.bytes("file"), b"precious");
    let mut daemon = Daemon::start(&scene, "--size 1G");
    // The command with the path can be copied.
    let fuser = format!("`fuser {absolute}/lock`");
    scene.fails("harvest serve ~/h --nbd unix:~/other.sock", &["another process has this host open", &fuser]);
    assert!(daemon.ask("vssd list")["vssds"].as_array().unwrap().is_empty(), "the first is as it was");
    daemon.stop();
    assert!(!scene.path("h/harvest.sock").exists() && !scene.path("h/nbd.sock").exists());
}

/// A start works after a first one that was killed at any moment, even if the flash is elsewhere.
#[test]
fn a_first_start_that_was_killed_hinders_no_later_one() {
    let kill_when = |words: &str, is_time: &dyn Fn(&Scene, Duration) -> bool| {
        let scene = Scene::new();
        let mut first = scene.command(&format!("harvest serve ~/h {words}"));
        let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let since = Instant::now();
        // A file that is there for a moment may be missed.
        let is_ready = || scene.path("h/harvest.sock").exists();
        while !is_time(&scene, since.elapsed()) && !is_ready() && first.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        first.kill().unwrap();
        first.wait().unwrap();
        let mut daemon = Daemon::start(&scene, words);
        daemon.create("db");
        daemon.restart();
        assert_eq!(daemon.ready["vssds"], 1);
        assert!(!scene.names("h").iter().any(|name| name.contains("making")), "{:?}", scene.names("h"));
    };
    for words in ["--size 1G", "--size 1G --flash ~/h/flash-1"] {
        let flash = words.split_once("~/").map_or("h/flash", |(_, flash)| flash);
        for ending in ["", ".flash.making", ".flash.new", ".flash"] {
            kill_when(words, &|scene, _| scene.path(&format!("{flash}{ending}")).exists());
        }
        kill_when(words, &|scene, _| scene.path("h/journal").exists());
    }
    for millis in 0..12 {
        kill_when("--size 1G", &|_, since| since > Duration::from_millis(millis * 3));
    }
}

/// Flash that no first start has left is not taken, as before.
#[test]
fn flash_whose_journal_is_lost_is_not_made_again() {
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 1G");
    daemon.stop();
    fs::remove_file(scene.path("h/journal")).unwrap();
    scene.fails("harvest serve ~/h --size 1G", &["whose journal is lost", "rescue"]);
}

#[test]
fn a_directory_whose_flash_is_elsewhere_is_told_where() {
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 1G --flash ~/elsewhere");
    daemon.create("db");
    daemon.stop();
    for words in ["", "--size 1G"] {
        scene.fails(&format!("harvest serve ~/h {words}"), &["h: ", "elsewhere", "--flash"]);
    }
    daemon.restart();
    assert_eq!(daemon.ready["vssds"], 1);
}

/// Names, sizes and numbers of leases.
fn vssds(daemon: &Daemon<'_>) -> Vec<(Value, Value, usize)> {
    let listed = daemon.ask("vssd list");
    let of = |vssd: &Value| {
        (vssd["name"].clone(), vssd["size"].clone(), vssd["leases"].as_array().map_or(0, Vec::len))
    };
    listed["vssds"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 1G");
    daemon.create("db --channels 2");
    daemon.create("batch --kind harvest");
    let before = vssds(&daemon);
    for (words, parts) in [
        ("vssd create db", &["db"][..]),
        ("vssd create ../db", &["../db", "letters"]),
        ("vssd create more --channels 999", &["more", "999 channels, ", " are free"]),
        ("vssd create more --size 1T", &["more"]),
        ("vssd create more --fuse ~/nothing", &["nothing"]),
        ("vssd resize none 1G", &["none", "vssd list"]),
        ("vssd resize db 1T", &["db"]),
        ("vssd resize db 1000", &["db", "1000 bytes", "give 16384 bytes", "the least is 16384"]),
        ("vssd delete none", &["none", "vssd list"]),
        ("request none --capacity 1G", &["none", "vssd list"]),
        ("request db --capacity 16M", &["db", "not a harvest VM's", "--kind harvest", "vssd list"]),
        ("request batch --capacity 1T", &["batch", "--partial"]),
        ("offer none --capacity 1G", &["none", "vssd list"]),
        ("offer batch --capacity 1G", &["batch", "lends nothing"]),
        ("release none", &["none", "vssd list"]),
        ("release batch --lease 7", &["batch"]),
    ] {
        daemon.refuses(words, parts);
    }
    assert_eq!(vssds(&daemon), before);
    let free = daemon.ask("status")["flash"]["free_channels"].as_u64().unwrap();
    daemon.create(&format!("rest --channels {free}"));
    daemon.refuses("vssd create more --channels 1", &["more", "it takes 1 channel, 0 are free"]);
    for words in [
        "vssd create x --kind spare",
        "vssd create x --channels 0",
        "request batch --capacity much",
        "vssd resize db",
        "burn",
    ] {
        assert_eq!(scene.run(&format!("harvest {words}")).status, Some(2), "{words}");
    }
}

#[test]
fn a_request_without_spare_flash_is_refused_with_the_cause() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 1G");
    // There is no lender.
    daemon.create("batch --kind harvest");
    daemon.refuses("request batch --capacity 16M", &["batch"]);
    let status = daemon.ask("status");
    assert_eq!((status["leases"].as_array().unwrap().len(), &status["pool"]), (0, &serde_json::json!([])));
}

/// A daemon trusts only files of its user (its journal, its flash), and it neither waits for nor follows a file in the
/// place of its lock.
#[test]
fn directories_of_another_user_are_not_served() {
    let scene = Scene::new();
    fs::create_dir(scene.path("h")).unwrap();
    mknodat(CWD, scene.path("h/lock"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    refused(&scene, SERVE, &["h/lock", "is a pipe", "remove it"]);
    fs::remove_file(scene.path("h/lock")).unwrap();
    symlink(scene.path("made"), scene.path("h/lock")).unwrap();
    refused(&scene, SERVE, &["h/lock", "is a symbolic link", "remove it"]);
    assert!(!scene.path("made").exists());
    fs::remove_dir_all(scene.path("h")).unwrap();
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(&scene, "--size 64M");
    daemon.stop();
    for (theirs, remedy) in [("h", "chown -R 0 "), ("h/flash", "chown 0 "), ("h/journal", "chown 0 ")] {
        give(&scene.path(theirs), OTHER);
        let path = scene.path(theirs).display().to_string();
        for words in [SERVE, "harvest check ~/h", "harvest rescue ~/h"] {
            refused(&scene, words, &[&path, "belongs to another user (id 54321)", remedy]);
        }
        give(&scene.path(theirs), 0);
    }
    daemon.start_again();
    daemon.stop();
    // Flash elsewhere, by itself and by a link.
    let elsewhere = "harvest serve ~/g --size 64M --flash ~/flash";
    fs::write(scene.path("flash"), "").unwrap();
    give(&scene.path("flash"), OTHER);
    refused(&scene, elsewhere, &["/flash", "belongs to another user", "chown 0 "]);
    fs::rename(scene.path("flash"), scene.path("precious")).unwrap();
    give(&scene.path("precious"), 0);
    symlink(scene.path("precious"), scene.path("flash")).unwrap();
    give(&scene.path("flash"), OTHER);
    refused(&scene, elsewhere, &["/flash", "symbolic link of another user", "chown -h 0 "]);
    assert_eq!(fs::metadata(scene.path("precious")).unwrap().len(), 0);
}
