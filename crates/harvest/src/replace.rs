//! Files that are replaced whole: whoever opens one finds all of the old or all of the new.

use std::fs::File;
use std::io;
use std::path::Path;

/// Puts a file, which is durable, in the place of another of its directory: durable as well when this returns.
pub(crate) fn put_in_place(new: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(new, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
