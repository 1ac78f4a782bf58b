//! The warning that writes which were answered and not flushed will not survive the death of the disk's process.

use headstart_lsmt::writable::WritableDisk;
use std::path::Path;

/// Takes the space that a disk's first writes need, and warns where writes that are not flushed will not survive this
/// process: guests and mounts that are kept go on after its death, and do not know.
pub(crate) fn make_ready(disk: &WritableDisk, dir: &Path) {
    let dir = dir.display();
    match disk.make_ready() {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            %dir,
            "writes that are not flushed are lost if this process dies, because the host does not tell when it was \
             started: mount /proc"
        ),
        Err(error) => tracing::warn!(
            %dir, %error,
            "writes that are not flushed are lost if this process dies, because a file for them cannot be made"
        ),
    }
}
