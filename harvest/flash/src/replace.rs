//! Files that are replaced whole: every open finds all of the old or all of the new.

use std::fs::File;
use std::io;
use std::path::Path;

/// Puts a file, which is durable, in the place of another of its directory: durable as well when this returns. The
/// error comes with `true` if the file is in place anyway, for now.
///
/// # Errors
/// The file cannot be renamed, or its directory not be synced.
pub fn put_in_place(new: &Path, path: &Path) -> Result<(), (io::Error, bool)> {
    std::fs::rename(new, path).map_err(|error| (error, false))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let synced = File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all());
    synced.map_err(|error| (error, true))
}
