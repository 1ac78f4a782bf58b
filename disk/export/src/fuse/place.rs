//! [`Place`]: the place of a mount, held open by its directory.
//!
//! A mount covers the entry that was there, and root mounts over anything. The path of a mount point may lead through
//! directories that other users can write to. Therefore:
//!
//! * The path is walked once, and no symbolic link of another user on it is followed: see [`GuardedEntry`].
//! * From then on the place is an entry of the directory that was found. In this mount namespace the kernel keeps an
//!   entry from being renamed or removed while something is mounted on it, so that the entry also names the mount until
//!   that goes. In another namespace, where the mount is not seen, the entry can be renamed, which takes the mount
//!   along, and removed, which ends the mount.
//! * In a directory that all users may write to, the entry must not belong to a user that only got there first: its
//!   owner can remove it, the mount with it, and put another file in the disk's place.

use super::mount_table::{MountEntry, entry_of};
use headstart_block::guarded::{GuardedEntry, is_trusted};
use headstart_block::{Error, ErrorKind, Result};
use rustix::io::Errno;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The permission of all users to write to a directory.
const WRITABLE_BY_ALL: u32 = 0o002;

/// The place of a mount. See the [module](self).
#[derive(Debug)]
pub(super) struct Place(GuardedEntry);

impl Place {
    /// Walks to a place. The file system mounted there is not asked: its server may be gone, or hang.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] for a symbolic link of another user, [`ErrorKind::NotFound`] if nothing is there,
    /// otherwise the error of the operating system.
    pub(super) fn find(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| Error::io("cannot look at the mount point", e).about(path.display());
        let entry = GuardedEntry::find(&std::path::absolute(path).map_err(failed)?)?;
        if entry.is_there() { Ok(Self(entry)) } else { Err(failed(Errno::NOENT.into())) }
    }

    /// The path, for messages and for `fusermount3`.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path that leads to the entry whatever becomes of the directories above it.
    pub(super) fn anchored(&self) -> PathBuf {
        self.0.anchored()
    }

    /// Opens the entry, for mounting on it.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it belongs to a user that only got there first, [`ErrorKind::Invalid`] if it is neither
    /// a directory nor a regular file, otherwise the error of the operating system.
    pub(super) fn open_point(&self) -> Result<(File, Metadata)> {
        let failed = |e: io::Error| Error::io("cannot look at the mount point", e);
        let point = self.0.look().map_err(failed)?;
        let (found, directory) =
            (point.metadata().map_err(failed)?, self.0.directory().metadata().map_err(failed)?);
        if !found.is_dir() && !found.is_file() {
            let cause = "a disk is mounted on a directory or a regular file, and this is neither";
            return Err(Error::invalid(cause));
        }
        let is_for_all = directory.mode() & WRITABLE_BY_ALL != 0;
        if is_for_all && !is_trusted(&found) && found.uid() != directory.uid() {
            let cause = format!(
                "belongs to another user (id {}), in a directory that all users may write to: that user could put \
                 another file in the disk's place",
                found.uid()
            );
            return Err(Error::new(ErrorKind::Denied, cause)
                .remedy("remove it, or choose another place, such as one below /run"));
        }
        Ok((point, found))
    }

    /// The file system whose root is there, if there is one.
    pub(super) fn mounted(&self) -> Option<MountEntry> {
        let (here, beneath) = (mount_id(&self.0.look().ok()?)?, mount_id(self.0.directory())?);
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        (here != beneath).then(|| entry_of(&table, here)).flatten()
    }
}

/// The number in the mount table of the mount through which `file` was opened.
fn mount_id(file: &File) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_testkit::process::is_root;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    /// A user that is neither root nor the user of the tests.
    const OTHER: u32 = 65_534;

    fn scene() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir(path.join("d")).unwrap();
        fs::write(path.join("d/f"), "here").unwrap();
        (dir, path)
    }

    fn refused(path: &Path) -> String {
        let error = Place::find(path).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        error.to_string()
    }

    #[test]
    fn own_links_lead_to_the_place_and_those_of_others_are_named() {
        let (_dir, at) = scene();
        for (link, target) in [("own", "d/f"), ("up", "d/../own"), ("dir", "d"), ("loop", "loop")] {
            symlink(target, at.join(link)).unwrap();
        }
        symlink(at.join("d"), at.join("d/round")).unwrap();
        for path in ["d/f", "own", "up", "dir/f", "d/./round/../d/f", "d/round/round/f"] {
            assert_eq!(Place::find(&at.join(path)).unwrap().path(), at.join("d/f"), "{path}");
        }
        for path in ["none", "d/f/x", "loop"] {
            let error = Place::find(&at.join(path)).map(|_| ()).unwrap_err();
            assert_eq!(error.kind() == ErrorKind::NotFound, path == "none", "{path}: {error}");
        }
        assert!(Place::find(Path::new("/")).is_err() && Place::find(Path::new("/..")).is_err());
        if !is_root() {
            return;
        }
        for link in ["own", "dir"] {
            lchown(at.join(link), Some(OTHER), None).unwrap();
        }
        for path in ["own", "up", "dir/f"] {
            let said = refused(&at.join(path));
            assert!(said.contains("symbolic link of another user") && said.contains("d"), "{said}");
        }
        // A directory of another user's is no link: the walk through it leads to where its path says.
        chown(at.join("d"), Some(OTHER), None).unwrap();
        chown(at.join("d/f"), Some(OTHER), None).unwrap();
        assert!(Place::find(&at.join("d/f")).unwrap().open_point().is_ok());
    }

    #[test]
    fn the_entry_that_was_found_is_what_is_opened() {
        let (_dir, at) = scene();
        let place = Place::find(&at.join("d/f")).unwrap();
        fs::create_dir(at.join("etc")).unwrap();
        fs::write(at.join("etc/f"), "precious").unwrap();
        fs::rename(at.join("d"), at.join("moved")).unwrap();
        symlink("etc", at.join("d")).unwrap();
        assert_eq!(fs::read(place.anchored()).unwrap(), b"here");
        let (point, _) = place.open_point().unwrap();
        let opened = fs::read(format!("/proc/self/fd/{}", point.as_raw_fd())).unwrap();
        assert_eq!((opened, place.mounted()), (b"here".to_vec(), None));
        // A link in the place of the entry itself is nothing to mount on.
        fs::remove_file(at.join("moved/f")).unwrap();
        symlink("../etc/f", at.join("moved/f")).unwrap();
        assert!(place.open_point().unwrap_err().to_string().contains("neither"));
    }

    #[test]
    fn a_mount_point_of_another_user_in_a_shared_directory_is_refused() {
        let (_dir, at) = scene();
        if !is_root() {
            return;
        }
        let open = || Place::find(&at.join("d/f")).unwrap().open_point().map(|_| ());
        fs::set_permissions(at.join("d"), fs::Permissions::from_mode(0o1777)).unwrap();
        open().unwrap();
        chown(at.join("d/f"), Some(OTHER), None).unwrap();
        let error = open().unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("another user"), "{error}");
        chown(at.join("d"), Some(OTHER), None).unwrap();
        open().unwrap();
    }

    #[test]
    fn a_mount_is_known_by_its_number() {
        let proc = Place::find(Path::new("/proc")).unwrap().mounted().expect("it is mounted");
        assert_eq!(proc.kind, "proc");
        assert_eq!(Place::find(Path::new("/proc/self/../version")).unwrap().mounted(), None);
    }
}
