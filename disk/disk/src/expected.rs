//! [`Expected`]: the disk that a writable directory has to hold.
//!
//! A directory whose file system is not mounted is empty or missing. When a disk is attached for the first time, such a
//! directory is the place for a new disk. When it is attached again without an operator, a new disk would lack all
//! writes, and its guest would go on with it.

use headstart_block::{Error, ErrorKind, Result};
use headstart_lsmt::writable::WritableDisk;
use std::path::Path;
use uuid::Uuid;

/// The disk that a writable directory must hold, so that an unmounted directory is not taken for a new disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Any disk. If the directory has none, a new one is created.
    #[default]
    AnyOrNone,
    /// A disk that was created before and whose ID is not known. None is created.
    Made,
    /// The disk with this ID. None is created.
    Id(Uuid),
}

impl Expected {
    /// Checks that `dir` holds the expected disk.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if a disk is expected and none is there, [`ErrorKind::Conflict`] if the disk
    /// there has another id; errors of reading its state.
    pub fn check(self, dir: &Path) -> Result<()> {
        if self == Self::AnyOrNone {
            return Ok(());
        }
        match WritableDisk::inspect(dir) {
            Ok(info) => self.check_id(dir, Some(info.uuid)),
            Err(error) if error.kind() == ErrorKind::NotFound => self.check_id(dir, None),
            Err(error) => Err(error),
        }
    }

    /// Checks the id of the disk that was found in `dir`; `found` is `None` if there is no disk.
    pub(crate) fn check_id(self, dir: &Path, found: Option<Uuid>) -> Result<()> {
        const REMEDY: &str =
            "mount its file system, or move the directory back: the disk goes on by itself then";
        let failed = |kind, cause| Err(Error::new(kind, cause).about(dir.display()).remedy(REMEDY));
        match (self, found) {
            (Self::AnyOrNone, _) | (Self::Made, Some(_)) => Ok(()),
            (Self::Id(id), Some(found)) if id == found => Ok(()),
            (_, None) => failed(ErrorKind::NotFound, "the writable directory of the disk is not there"),
            (Self::Id(_), Some(_)) => {
                failed(ErrorKind::Conflict, "the writable directory there is that of another disk")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_lsmt::writable::NewDisk;

    #[test]
    fn a_directory_has_to_hold_the_disk_that_it_held() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id, other) = (dir.path().join("vm"), Uuid::from_u128(1), Uuid::from_u128(2));
        let found = |expected: Expected| expected.check(&path).map_err(|error| error.kind());
        for make in [false, true] {
            if make {
                // An empty mount point.
                std::fs::create_dir(&path).unwrap();
            }
            assert_eq!(found(Expected::AnyOrNone), Ok(()));
            assert_eq!(found(Expected::Made), Err(ErrorKind::NotFound));
            assert_eq!(found(Expected::Id(id)), Err(ErrorKind::NotFound));
        }
        let new = NewDisk { size: 1 << 20, parent: String::new(), uuid: id };
        drop(WritableDisk::create(&path, None, &new).unwrap());
        assert_eq!(found(Expected::AnyOrNone), Ok(()));
        assert_eq!(found(Expected::Made), Ok(()));
        assert_eq!(found(Expected::Id(id)), Ok(()));
        assert_eq!(found(Expected::Id(other)), Err(ErrorKind::Conflict));
    }
}
