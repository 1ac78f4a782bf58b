//! The contents of directories, and the ages of files.

use std::fs::File;
use std::path::Path;
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
