//! containerd's own suite of tests for snapshotters, without disks.

use crate::served::SERVER;
use headstart_testkit::snapshot_suite;
use tempfile::TempDir;

#[test]
#[ignore = "compiles a part of containerd, which takes minutes"]
fn containerds_suite_passes() {
    let dir = TempDir::new().unwrap();
    let program = std::env::current_exe().unwrap();
    let server = [program.to_str().unwrap(), "--exact", SERVER, "--include-ignored", "--nocapture"];
    snapshot_suite::run(&server, "directories", dir.path());
}
