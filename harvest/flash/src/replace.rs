//! Files that are replaced whole: every open finds all of the old or all of the new.

use headstart_block::sync_dir_of;
use std::io;
use std::path::Path;

/// Renames the file `new` to `path` in the same directory, and syncs the directory, so that the replacement is
/// durable. The caller must have synced `new` before.
///
/// # Errors
/// The file cannot be renamed (the second value is `false`), or the directory cannot be synced (`true`: the new file
/// is in place, but after a crash the old one may be there again).
pub fn put_in_place(new: &Path, path: &Path) -> Result<(), (io::Error, bool)> {
    std::fs::rename(new, path).map_err(|error| (error, false))?;
    sync_dir_of(path).map_err(|error| (error, true))
}
