//! The documents, metrics and reports of the program, recorded for a test.

use headstart_testkit::process::{installed, skipped};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The program beside the tests, which a build of the workspace makes.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let program = test.parent()?.parent()?.join("headstart");
    program.exists().then_some(program)
}

/// Records documents, metrics and JSON of the program in `directory`; `false` where that cannot be done here.
pub(crate) fn record(directory: &Path) -> bool {
    let Some(program) = program() else {
        skipped("the program headstart is not built (cargo build -p headstart)");
        return false;
    };
    if !installed(&["python3", "tar"]) {
        return false;
    }
    let script = Path::new(ROOT).join("scripts/make-fixtures");
    let output = Command::new(script).arg(program).arg(directory).output().unwrap();
    assert!(output.status.success(), "make-fixtures: {}", String::from_utf8_lossy(&output.stderr));
    true
}
