//! containerd's own suite of tests for snapshotters, where the layers are those of disks.

use crate::agent::Agent;
use crate::scene::Scene;
use headstart_testkit::process::{has_fuse, is_root};
use headstart_testkit::snapshot_suite;
use std::fs;

/// Runs the suite with layers on empty disks, and then looks for what was left.
fn passes(mode: &str, writable: &str) {
    if !is_root() || !has_fuse() {
        return;
    }
    let scene = Scene::new();
    let agent = Agent::start(&scene, "a", "");
    let words = format!("snapshotter --agent ~/a/agent.sock --empty-disk 256M --writable {writable}");
    let command = scene.command(&words);
    let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
    let program = command.get_program().to_str().unwrap();
    let script = "exec \"$@\" --root \"$SNAPSHOTTER_ROOT\" --socket \"$SNAPSHOTTER_SOCKET\"";
    let server = ["sh", "-c", script, "sh", program];
    let server: Vec<_> = server.into_iter().chain(words.iter().map(String::as_str)).collect();
    fs::create_dir(scene.path("trees")).unwrap();
    snapshot_suite::run(&server, mode, &scene.path("trees"));
    assert_eq!(agent.disks(), Vec::<serde_json::Value>::new());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let here = scene.path("trees").display().to_string();
    assert!(!mounts.contains(&here), "{mounts}");
}

#[test]
#[ignore = "compiles a part of containerd, which takes minutes"]
fn containerds_suite_passes_where_each_snapshot_is_a_disk() {
    passes("dir", "dir");
}

#[test]
#[ignore = "compiles a part of containerd, which takes minutes"]
fn containerds_suite_passes_where_each_snapshot_is_a_device() {
    passes("dir", "dev");
}

#[test]
#[ignore = "compiles a part of containerd, which takes minutes"]
fn containerds_suite_passes_with_overlayfs_over_disks() {
    passes("overlayfs", "overlayfs");
}
