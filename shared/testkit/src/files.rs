//! The contents of directories, the ages of files, and their pages in the page cache.

use crate::process::skipped;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The names of the entries in a directory, hidden ones included, sorted.
#[track_caller]
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Makes a file as old as if it had been written last `age` ago.
#[track_caller]
pub fn set_age(path: &Path, age: Duration) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

/// The number of bytes of a file that are in the kernel's page cache, in whole pages, by the program `fincore`, which
/// reads none of them. `None`, with a message that a test is skipped, if there is no such program.
#[must_use]
#[track_caller]
pub fn cached_bytes(path: &Path) -> Option<u64> {
    let Ok(output) =
        Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(path).output()
    else {
        skipped("there is no fincore (of util-linux)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().trim().parse().unwrap())
}
