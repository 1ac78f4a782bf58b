//! A process of its own for a test whose subject is the whole process, its memory and its threads.

use std::process::{Command, Stdio};

/// Set in a process that runs one test alone.
const ALONE: &str = "HEADSTART_TEST_ALONE";

/// `true` in a process that runs one test alone. In another one, has such a process run the test `name`, which includes
/// its module, and fails if that fails.
#[track_caller]
pub(crate) fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").stderr(Stdio::inherit());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    false
}
