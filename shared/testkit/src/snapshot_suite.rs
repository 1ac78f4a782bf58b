//! containerd's own suite of tests for snapshotters (`core/snapshots/testsuite`), by a program in Go.

use crate::process::{installed, is_root, skipped};
use std::path::Path;
use std::process::Command;

/// The tests of the suite that have to pass at least; the others depend on the kernel.
const PASSED_LEAST: usize = 20;

/// Runs the suite on a snapshotter, with trees in `dir`. `server` is the program that serves it, with its arguments: it
/// gets a directory and a socket as `SNAPSHOTTER_ROOT` and `SNAPSHOTTER_SOCKET`. `mode` is the place of the files, as
/// the program in Go has it. Panics if a test fails; if the suite cannot run here, the reason is printed.
#[track_caller]
pub fn run(server: &[&str], mode: &str, dir: &Path) {
    if !is_root() || !installed(&["go"]) {
        return;
    }
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../containers/snapshotter/tests/suite");
    let mut command = Command::new("go");
    command.args(["test", "-v", "-count=1", "-timeout=20m", "./..."]).current_dir(suite);
    // Trees of overlayfs are mounted there.
    command.env("TMPDIR", dir).env("HEADSTART_SNAPSHOTTER", server.join("\n")).env("HEADSTART_MODE", mode);
    let output = command.env("GOFLAGS", "-mod=readonly").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = said.lines().filter(|line| line.trim().starts_with("--- PASS: TestSnapshotter/")).count();
    let refused = String::from_utf8_lossy(&output.stderr);
    if passed == 0 && refused.contains("dial tcp") {
        skipped("the Go modules of containerd cannot be fetched here");
        return;
    }
    assert!(output.status.success() && passed >= PASSED_LEAST, "{passed} passed\n{said}\n{refused}");
}
