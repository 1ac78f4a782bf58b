//! A disk is cloned while it is served: by its process, which its clients do not notice.

use crate::attached::{Attached, TIMEOUT};
use crate::disk::noise;
use crate::images::{can_check_bytes, check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use rustix::process::Signal;
use std::fs;

/// Writes noise to the disk at an offset, with a flush, and to `expected`.
#[track_caller]
pub(crate) fn write(scene: &Scene, uri: &str, seed: u64, offset: usize, expected: &mut [u8]) {
    let bytes = noise(seed, 300_000);
    expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
    fs::write(scene.path("bytes"), bytes).unwrap();
    tool(
        scene,
        "nbdsh",
        &["-u", uri, "-c", &format!("h.pwrite(open('bytes','rb').read(), {offset}); h.flush()")],
    );
}

#[track_caller]
pub(crate) fn check(scene: &Scene, attached: &Attached, expected: &[u8]) {
    fs::write(scene.path("expected.raw"), expected).unwrap();
    check_bytes(scene, "expected.raw", &attached.uri());
}

#[test]
fn an_attached_disk_is_cloned_and_both_go_on() {
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let attach = |dir: &str, socket: &str| {
        format!("file://~/store:v1 --writable ~/{dir} --nbd unix:~/{socket} --metrics 127.0.0.1:0")
    };
    let mut ours = scene.bytes("disk.raw");
    let mut source = Attached::start(&scene, &attach("vm", "a.sock"));
    write(&scene, &source.uri(), 1, 1 << 20, &mut ours);
    let cloned = scene.json("disk clone vm twin");
    assert_eq!((&cloned["shared_pairs"], &cloned["virtual_size"]), (&1.into(), &ours.len().into()));
    let mut theirs = ours.clone();
    write(&scene, &source.uri(), 2, 2 << 20, &mut ours);
    let twin = Attached::start(&scene, &attach("twin", "b.sock"));
    write(&scene, &twin.uri(), 3, 3 << 20, &mut theirs);
    check(&scene, &source, &ours);
    check(&scene, &twin, &theirs);
    assert!(source.metrics().sum("headstart_writable_shared_bytes", &[]) >= 300_000.0);
    // What cannot be done is an error here, and nothing to the disk.
    scene.fails("disk clone vm twin", &["twin", "holds a disk already"]);
    scene.fails("disk clone vm none/twin", &["none"]);
    let third = scene.json("disk clone twin third");
    assert_eq!(third["shared_pairs"], 2);
    twin.detach();
    // A process that dies leaves its socket; the next one makes another, and without one the directory is cloned here.
    source.process().signal(Signal::KILL);
    source.process().end(TIMEOUT);
    drop(source);
    assert!(scene.path("vm/control").exists());
    scene.ok("disk clone vm fourth");
    let source = Attached::start(&scene, &attach("vm", "a.sock"));
    check(&scene, &source, &ours);
    scene.ok("disk clone vm fifth");
    source.detach();
    assert!(!scene.path("vm/control").exists());
    for dir in ["vm", "twin"] {
        fs::remove_dir_all(scene.path(dir)).unwrap();
    }
    for (dir, expected) in [("third", &theirs), ("fourth", &ours), ("fifth", &ours)] {
        let attached = Attached::start(&scene, &attach(dir, "c.sock"));
        check(&scene, &attached, expected);
        attached.detach();
    }
}
