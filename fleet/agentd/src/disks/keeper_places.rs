//! The files of the keeper of mounts, and the disks that it is for.

use super::{DiskSpec, file};
use std::path::{Path, PathBuf};

/// The name of the keeper's files.
pub(super) const NAME: &str = "keeper";

/// The path of the keeper's PID file in its directory.
#[must_use]
pub fn keeper_pid_file(dir: &Path) -> PathBuf {
    file(dir, NAME, "pid")
}

/// The path of the keeper's socket in its directory.
#[must_use]
pub fn keeper_socket(dir: &Path) -> PathBuf {
    file(dir, NAME, "sock")
}

/// `true` for a disk that is mounted by FUSE, and whose mount is kept.
pub(super) fn is_mounted(spec: &DiskSpec) -> bool {
    spec.arguments.iter().any(|word| word == "--fuse" || word.starts_with("--fuse="))
}
