//! The space that the writable layers of a disk take, as reported by its process every second: a file `NAME.space`
//! beside the process's own file. It is only for the status of a disk, and nothing depends on it.

use super::file;
use headstart_block::{Error, Result, private};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::Path;
use utoipa::ToSchema;

/// The end of the file's name.
const ENDING: &str = "space";

/// Larger files are not read.
const LEN_MAX: u64 = 1 << 20;

/// The space that one writable layer takes on the file system. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskSpace {
    /// The name of the export that the layer belongs to; empty if the disk has only one.
    pub name: String,
    /// Bytes of data that is current: neither overwritten nor discarded.
    pub live_bytes: u64,
    /// Bytes of data that was overwritten or discarded and still takes space, and of the log.
    pub garbage_bytes: u64,
    /// The part of `live_bytes` that no client has written: data of the image, copied into the layer when
    /// small pieces beside it were merged.
    #[serde(default)]
    pub copied_up_bytes: u64,
    /// Bytes of files that the directories of clones have as well. These directories together take them once.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Bytes of garbage that were returned to the file system since the process started.
    pub collected_bytes: u64,
    /// The number of writes and discards that had to wait until garbage was collected, since the process
    /// started.
    pub throttled_writes: u64,
    /// The number of writes and discards that wait at present until garbage is collected.
    pub waiting_writes: u64,
    /// The largest size that the layer's directory may have, in bytes; absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// Writes the space of a disk's writable layers to a file, for the status of the disk whose PID file is `pid_file`.
///
/// # Errors
/// An error if the file cannot be written.
pub fn report_space(pid_file: &Path, spaces: &[DiskSpace]) -> Result<()> {
    let path = pid_file.with_extension(ENDING);
    let failed = |e| Error::io("cannot write", e).about(path.display());
    let text = serde_json::to_vec(spaces).map_err(|e| Error::invalid("is not a space").caused_by(e))?;
    // The file is not synced: after a power loss there is no such process.
    let new = pid_file.with_extension("space.new");
    let mut file = private::options().create(true).truncate(true).write(true).open(&new).map_err(failed)?;
    file.write_all(&text).map_err(failed)?;
    fs::rename(&new, &path).map_err(failed)
}

/// The report of the process; empty if there is none.
pub(super) fn space_of(dir: &Path, name: &str) -> Vec<DiskSpace> {
    let said = headstart_daemon::file::read(&file(dir, name, ENDING), LEN_MAX);
    let said = said.ok().flatten().and_then(|text| serde_json::from_slice(&text).ok());
    said.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_report_of_space_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = file(dir.path(), "vm.1", "pid");
        assert!(space_of(dir.path(), "vm.1").is_empty());
        for live_bytes in [1, 2] {
            let space = DiskSpace { live_bytes, ..DiskSpace::default() };
            report_space(&pid_file, std::slice::from_ref(&space)).unwrap();
            assert_eq!(space_of(dir.path(), "vm.1"), [space]);
        }
        fs::write(file(dir.path(), "vm.1", ENDING), "no JSON").unwrap();
        assert!(space_of(dir.path(), "vm.1").is_empty());
    }
}
