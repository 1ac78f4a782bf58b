//! containerd's own suite of tests for snapshotters (`core/snapshots/testsuite`), by a program in Go.

use crate::served::SERVER;
use headstart_testkit::process::{installed, is_root};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

#[test]
#[ignore = "compiles a part of containerd, which takes minutes"]
fn containerds_suite_passes() {
    if !is_root() || !installed(&["go"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let program = std::env::current_exe().unwrap();
    let server = [program.to_str().unwrap(), "--exact", SERVER, "--include-ignored", "--nocapture"];
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite");
    let mut command = Command::new("go");
    command.args(["test", "-v", "-count=1", "-timeout=20m", "./..."]).current_dir(suite);
    // Trees of overlayfs are mounted there.
    command.env("TMPDIR", dir.path()).env("HEADSTART_SNAPSHOTTER", server.join("\n"));
    let output = command.env("GOFLAGS", "-mod=readonly").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = said.lines().filter(|line| line.trim().starts_with("--- PASS: TestSnapshotter/")).count();
    let refused = String::from_utf8_lossy(&output.stderr);
    if passed == 0 && refused.contains("dial tcp") {
        headstart_testkit::process::skipped("the Go modules of containerd cannot be fetched here");
        return;
    }
    assert!(output.status.success() && passed >= 20, "{passed} passed\n{said}\n{refused}");
}
