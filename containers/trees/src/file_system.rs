//! The kind of the file system of a tree, noted when it was mounted: disks of containers over one that can only be read
//! are refused before anything is attached, also after the host was started again.

use headstart_block::file_system::EROFS_NUMBER;
use headstart_block::{Error, FileSystemKind, Result};
use rustix::fs::statfs;
use std::fs;
use std::path::Path;

/// The file with the kind.
pub(crate) const FILE_SYSTEM: &str = "file-system";

/// Notes the kind of the file system that is mounted on `files` in the tree's directory. `true` if it can be written
/// to.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn note_file_system(directory: &Path, files: &Path) -> Result<bool> {
    let found = statfs(files)
        .map_err(|error| Error::io("cannot be looked at", error.into()).about(files.display()))?;
    // The kernel gives the number in a word whose width and sign depend on the processor.
    let is_erofs = found.f_type as u64 & 0xffff_ffff == u64::from(EROFS_NUMBER);
    let kind = if is_erofs { FileSystemKind::Erofs } else { FileSystemKind::Ext4 };
    let note = directory.join(FILE_SYSTEM);
    fs::write(&note, kind.name())
        .map_err(|error| Error::io("cannot be written", error).about(note.display()))?;
    Ok(!is_erofs)
}

/// `true` if the file system of the tree in a directory can be written to. `None` if that is not noted.
pub(crate) fn is_noted_writable(directory: &Path) -> Option<bool> {
    let noted = fs::read_to_string(directory.join(FILE_SYSTEM)).ok()?;
    // A power cut may leave an empty file.
    Some(FileSystemKind::named(&noted)? == FileSystemKind::Ext4)
}
