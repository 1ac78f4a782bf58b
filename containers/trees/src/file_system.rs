//! The kind of the file system of a tree, noted when it was mounted: disks of containers over one that can only be read
//! are refused before anything is attached, also after the host was started again.

use headstart_block::{Error, Result};
use rustix::fs::statfs;
use std::fs;
use std::path::Path;

/// The file with the kind.
pub(crate) const FILE_SYSTEM: &str = "file-system";
/// The kinds: the second can only be read.
const EXT4: &str = "ext4";
const EROFS: &str = "erofs";
/// The number by which the kernel knows EROFS.
const EROFS_NUMBER: u64 = 0xe0f5_e1e2;

/// Notes the kind of the file system that is mounted on `files` in the tree's directory. `true` if it can be written
/// to.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn note_file_system(directory: &Path, files: &Path) -> Result<bool> {
    let found = statfs(files)
        .map_err(|error| Error::io("cannot be looked at", error.into()).about(files.display()))?;
    // The kernel gives the number in a word whose width and sign depend on the processor.
    let kind = if found.f_type as u64 & 0xffff_ffff == EROFS_NUMBER { EROFS } else { EXT4 };
    let note = directory.join(FILE_SYSTEM);
    fs::write(&note, kind).map_err(|error| Error::io("cannot be written", error).about(note.display()))?;
    Ok(kind != EROFS)
}

/// `true` if the file system of the tree in a directory can be written to. `None` if that is not noted.
pub(crate) fn is_noted_writable(directory: &Path) -> Option<bool> {
    match fs::read_to_string(directory.join(FILE_SYSTEM)).ok()?.as_str() {
        EXT4 => Some(true),
        EROFS => Some(false),
        // A power cut may leave an empty file.
        _ => None,
    }
}
