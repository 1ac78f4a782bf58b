//! The contents of directories.

use std::path::Path;

/// The names of the entries in a directory, hidden ones included, sorted.
#[track_caller]
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
