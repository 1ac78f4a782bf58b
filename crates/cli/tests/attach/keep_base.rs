//! A writable directory with a copy of its base needs no store.

use crate::attached::{Attached, PATIENCE};
use crate::disk::{assert_same, noise};
use crate::images::{Web, can_check_bytes, check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::process::Process;
use rustix::process::Signal;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

#[track_caller]
fn write(scene: &Scene, uri: &str, seed: u64, expected: &mut [u8]) {
    let bytes = noise(seed, 200_000);
    fs::write(scene.path("bytes"), &bytes).unwrap();
    tool(scene, "nbdsh", &["-u", uri, "-c", "h.pwrite(open('bytes','rb').read(), 3000320); h.flush()"]);
    expected[3_000_320..3_200_320].copy_from_slice(&bytes);
}

#[test]
fn a_kept_base_outlives_its_store() {
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let scene = layered();
    let Some(mut web) = Web::before(&scene) else { return };
    let mut expected = scene.bytes("disk.raw");
    let image = web.image();
    let words = format!("{image} --cache ~/cache --writable ~/vm --nbd unix:~/d.sock");
    assert_eq!(scene.run("attach file://~/store:v1 --keep-base").status, Some(2), "without --writable");
    // A disk that was there before gets its copy, too.
    let attached = Attached::start(&scene, &words);
    write(&scene, &attached.uri(), 1, &mut expected);
    attached.detach();
    let attached = Attached::start(&scene, &format!("{words} --keep-base"));
    write(&scene, &attached.uri(), 2, &mut expected);
    attached.detach();
    // The tag, the manifest, the store, the server and the cache go.
    scene.ok("image remove file://~/store:v1");
    fs::remove_dir_all(scene.path("store")).unwrap();
    web.server.process().kill();
    fs::remove_dir_all(scene.path("cache")).unwrap();
    fs::write(scene.path("expected.raw"), &expected).unwrap();
    let attached = Attached::start(&scene, &words);
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
    // It is found also where the directory was moved, and is the base of a commit.
    fs::rename(scene.path("vm"), scene.path("vm2")).unwrap();
    let attached = Attached::start(&scene, &words.replace("~/vm", "~/vm2"));
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
    scene.ok("image commit --writable ~/vm2 file://~/new:vm");
    scene.ok("image export file://~/new:vm -o vm.raw");
    assert_same(&scene, "expected.raw", "vm.raw");
}

#[test]
fn a_directory_that_keeps_its_base_holds_nothing_in_the_store() {
    if !can_check_bytes() {
        return;
    }
    let scene = layered();
    let words = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";
    Attached::start(&scene, words).detach();
    assert_eq!(scene.json("lease list file://~/store")["leases"].as_array().unwrap().len(), 1);
    Attached::start(&scene, &format!("{words} --keep-base")).detach();
    assert_eq!(scene.json("lease list file://~/store")["leases"].as_array().unwrap().len(), 0);
    scene.ok("image remove file://~/store:v1");
    assert_eq!(
        scene.json("image prune file://~/store --older-than 0s")["images"].as_array().unwrap().len(),
        1
    );
    let attached = Attached::start(&scene, words);
    check_bytes(&scene, "disk.raw", &attached.uri());
    attached.detach();
    // A new directory with a copy from the start; a copy that breaks off is gone on with.
    scene.fails("attach file://~/store:none --writable ~/new --keep-base --nbd unix:~/d.sock", &["none"]);
    let new = "file://~/store:base --writable ~/new --keep-base --nbd unix:~/d.sock";
    let attached = Attached::start(&scene, new);
    check_bytes(&scene, "base.raw", &attached.uri());
    attached.detach();
    assert!(scene.path("new/base/index.json").exists());
}

/// The copy's timers are there as long as its threads are.
#[test]
fn a_stopped_copy_of_a_base_ends_at_once_and_goes_on_with_the_next_attach() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let words = format!(
        "attach {} --cache ~/cache --writable ~/vm --keep-base --nbd unix:~/d.sock --no-record",
        web.image()
    );
    for signal in [Signal::INT, Signal::TERM, Signal::INT] {
        let mut process = Process::start(&mut scene.command(&format!("{words} --limit-rate 300kB/s")));
        sleep(Duration::from_millis(700));
        process.signal(signal);
        assert_eq!(process.end(PATIENCE).code(), Some(1), "{process}");
        let said = process.said();
        assert!(said.contains("stopped") && !said.contains("panicked"), "{said}");
    }
    Attached::start(&scene, words.trim_start_matches("attach ")).detach();
    assert!(scene.path("vm/base/index.json").exists());
}
