//! What cannot work, and what is said then.

use crate::daemon::Daemon;
use crate::scene::Scene;
use serde_json::Value;
use std::fs;

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
    // In whatever directory it is started, it names places for programs in any.
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
    assert_eq!(scene.run("harvest serve ~/h --size 1G --erase").status, Some(2));
    assert_eq!(scene.bytes("file"), b"precious");
    let mut daemon = Daemon::start(&scene, "--size 1G");
    scene.fails("harvest serve ~/h --nbd unix:~/other.sock", &["h"]);
    assert!(daemon.ask("vssd list")["vssds"].as_array().unwrap().is_empty(), "the first is as it was");
    daemon.stop();
    assert!(!scene.path("h/harvest.sock").exists() && !scene.path("h/nbd.sock").exists());
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
fn what_cannot_be_is_refused_and_changes_nothing() {
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
        ("vssd delete none", &["none", "vssd list"]),
        ("request none --capacity 1G", &["none", "vssd list"]),
        ("request db --capacity 16M", &["db", "no harvest VM's", "--kind harvest", "vssd list"]),
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
fn where_nothing_is_to_spare_it_is_said_so() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 1G");
    // Nobody is there to lend.
    daemon.create("batch --kind harvest");
    daemon.refuses("request batch --capacity 16M", &["batch"]);
    let status = daemon.ask("status");
    assert_eq!((status["leases"].as_array().unwrap().len(), &status["pool"]), (0, &serde_json::json!([])));
}
