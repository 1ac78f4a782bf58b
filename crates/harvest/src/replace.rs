//! Files that are replaced whole: whoever opens one finds all of the old or all of the new.

use std::fs::File;
use std::io;
use std::path::Path;

/// Makes durable which files are in the directory of this one: that it was renamed to.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
