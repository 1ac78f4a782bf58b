//! The claim of a host's directory to flash that is being made. It lasts until the flash has a journal.
//!
//! Flash is made before its journal, and a host may be killed between the two. Flash without a journal is refused,
//! because it may belong to another directory, or its journal may be lost. The claim, a file beside the table, marks
//! the flash that this directory began to make and never used: the next start makes such flash again.
//!
//! The claim is durable before any change of the flash, and is removed as soon as there is a journal. It names the
//! directory and, for a file, the file's inode, so that it does not apply to another file of the same name. A claim
//! alone is no reason to erase data: the caller that takes over flash by a claim must check that the flash holds none.

use super::table::replace;
use headstart_block::{Error, Result};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// First line of a claim.
const HEAD: &[u8] = b"headstart: flash that is being made, 1\n";

/// Most bytes of a claim: a path and a line.
const MOST: u64 = 8192;

/// A claim: a file which records that a directory's host has begun to make flash. The file is kept until the host has a
/// journal. Without the claim, a start after a crash could not tell such flash from that of another directory.
#[derive(Clone, Debug)]
pub struct Claim {
    path: PathBuf,
    /// The directory without links in its path; as given if that cannot be found out.
    dir: PathBuf,
}

impl Claim {
    /// Returns the claim of the host in `dir` to flash whose table (of wear and bad blocks) will be at
    /// `table`. Writes nothing yet.
    #[must_use]
    pub fn new(dir: &Path, table: &Path) -> Self {
        let mut name = table.as_os_str().to_owned();
        name.push(".making");
        Self { path: name.into(), dir: dir.canonicalize().unwrap_or_else(|_| dir.to_owned()) }
    }

    /// Returns the file or device at `flash`, open for reading, if this directory's claim to it is on disk.
    /// `None` if there is no claim, if the claim is another directory's or for another file, or if the claim or
    /// the flash cannot be read.
    pub fn begun(&self, flash: &Path) -> Option<File> {
        std::fs::metadata(&self.path).ok().filter(|there| there.len() <= MOST)?;
        let there = std::fs::read(&self.path).ok()?;
        let flash = File::open(flash).ok()?;
        (self.content(&flash).ok()? == there).then_some(flash)
    }

    /// Writes the claim to disk, durably; a claim of another directory is replaced. The caller must hold the lock
    /// of the flash, so that no other directory writes a claim to it at the same time.
    ///
    /// # Errors
    /// The claim's file cannot be written, or the flash's metadata cannot be read.
    pub fn hold(&self, flash: &File) -> Result<()> {
        let failed = |error| Error::io("cannot be saved", error).about(self.path.display());
        let content = self.content(flash).map_err(failed)?;
        replace(&self.path, &content).map_err(failed)
    }

    /// Removes the claim from disk: the journal exists by now, or no flash was made. A failure is only
    /// logged.
    pub fn give_up(&self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %self.path.display(), "a file that nothing needs cannot be removed");
            }
            _ => {}
        }
    }

    fn content(&self, flash: &File) -> io::Result<Vec<u8>> {
        let metadata = flash.metadata()?;
        // The node of a device may be another one after the next start of its host.
        let inode = if metadata.file_type().is_block_device() { 0 } else { metadata.ino() };
        let inode = format!("{inode}\n");
        Ok([HEAD, inode.as_bytes(), self.dir.as_os_str().as_bytes()].concat())
    }
}

/// Returns `true` if a file has no data: it is sparse as a whole, whatever its length. On file systems that do
/// not report holes, `true` only if the file is empty. `false` also if the file system cannot be asked.
pub fn is_hole(file: &File) -> bool {
    // A file system without holes reports everything as data.
    rustix::fs::seek(file, rustix::fs::SeekFrom::Data(0)) == Err(rustix::io::Errno::NXIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_claim_is_of_one_directory_and_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = dir.path().join(name);
            File::options().read(true).write(true).create_new(true).open(path).unwrap()
        };
        for name in ["h", "other"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink("h", dir.path().join("link")).unwrap();
        let (flash, _another) = (make("flash"), make("another"));
        let of = |name: &str| Claim::new(&dir.path().join(name), &dir.path().join("table"));
        let is_held = |name: &str, flash: &str| of(name).begun(&dir.path().join(flash)).is_some();
        assert!(!is_held("h", "flash"));
        of("h").hold(&flash).unwrap();
        assert!(is_held("h", "flash") && is_held("link", "flash"));
        assert!(!is_held("other", "flash") && !is_held("h", "another"));
        of("other").hold(&flash).unwrap();
        assert!(!is_held("h", "flash") && is_held("other", "flash"));
        of("other").give_up();
        of("other").give_up();
        assert!(!is_held("other", "flash"));
        assert!(!dir.path().join("table.making").exists() && !dir.path().join("table.making.new").exists());
        std::fs::write(dir.path().join("table.making"), "anything").unwrap();
        assert!(!is_held("h", "flash"));
    }

    #[test]
    fn a_hole_is_told_from_zeros_that_were_written() {
        let file = tempfile::tempfile().unwrap();
        assert!(is_hole(&file));
        file.set_len(64 << 20).unwrap();
        assert!(is_hole(&file));
        file.write_all_at(&[0; 4096], 32 << 20).unwrap();
        assert!(!is_hole(&file));
    }
}
