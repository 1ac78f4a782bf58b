//! A command that must not go on: it ends by itself, soon, with the cause.

use crate::scene::Scene;
use headstart_testkit::process::Process;
use std::os::unix::fs::lchown;
use std::path::Path;
use std::time::Duration;

/// A user that is not the one of the tests, and that no other program has files of.
pub(crate) const OTHER: u32 = 54_321;

/// The longest time until a command has ended that finds an error at once, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Runs a command that would go on if it were not refused. It has to fail, with all of `parts` in its output.
#[track_caller]
pub(crate) fn refused(scene: &Scene, words: &str, parts: &[&str]) {
    let mut process = Process::start(&mut scene.command(words));
    let status = process.end(SOON);
    let said = process.output();
    assert_eq!(status.code(), Some(1), "{words}: {said}");
    for part in parts {
        assert!(said.contains(part), "no `{part}` in it: {words}: {said}");
    }
}

/// Gives a file, a directory or a symbolic link to another user, as root can.
#[track_caller]
pub(crate) fn give(path: &Path, to: u32) {
    lchown(path, Some(to), Some(to)).unwrap();
}
