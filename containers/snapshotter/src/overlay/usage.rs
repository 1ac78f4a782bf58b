//! The space that a tree of files takes.

use crate::record::SnapshotUsage;
use headstart_block::{Error, Result};
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a block, as the operating system counts them.
const BLOCK: u64 = 512;

/// The space that the files below `root`, and `root` itself, take. A file with several names counts once. Files that
/// are removed meanwhile do not count: containers run on while they are measured.
///
/// # Errors
/// Errors of the operating system, also if there is no `root`.
pub fn usage_of(root: &Path) -> Result<SnapshotUsage> {
    let failed = |path: &Path, error| Error::io("cannot be measured", error).about(path.display());
    let mut sum = UsageSum::default();
    sum.add(&fs::symlink_metadata(root).map_err(|error| failed(root, error))?);
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        sum.add_entries(&directory, &mut directories).map_err(|error| failed(&directory, error))?;
    }
    Ok(sum.usage)
}

#[derive(Default)]
struct UsageSum {
    usage: SnapshotUsage,
    /// Files with several names that were counted: their devices and inodes.
    counted: BTreeSet<(u64, u64)>,
}

impl UsageSum {
    fn add(&mut self, found: &Metadata) {
        let is_counted =
            found.nlink() > 1 && !found.is_dir() && !self.counted.insert((found.dev(), found.ino()));
        if !is_counted {
            self.usage.inodes = self.usage.inodes.saturating_add(1);
            self.usage.size = self.usage.size.saturating_add(found.blocks().saturating_mul(BLOCK));
        }
    }

    /// Adds the entries of a directory; those that are directories themselves are put on a list.
    fn add_entries(&mut self, directory: &Path, directories: &mut Vec<PathBuf>) -> io::Result<()> {
        let Some(entries) = unless_gone(fs::read_dir(directory))? else { return Ok(()) };
        for entry in entries {
            let entry = entry?;
            // Does not follow links.
            let Some(found) = unless_gone(entry.metadata())? else { continue };
            self.add(&found);
            if found.is_dir() {
                directories.push(entry.path());
            }
        }
        Ok(())
    }
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
