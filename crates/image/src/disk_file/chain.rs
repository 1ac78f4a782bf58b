//! Which files a disk image may name.

use headstart_block::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Directories in which the files that a disk image names (backing files, extents) may lie.
#[derive(Clone, Debug)]
pub struct AllowedDirs(Vec<PathBuf>);

impl AllowedDirs {
    /// The directory of the image itself, and `more`.
    ///
    /// # Errors
    /// Where one of them does not exist.
    pub fn new(image: &Path, more: &[PathBuf]) -> Result<Self> {
        let own = image.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let resolve =
            |dir: &Path| dir.canonicalize().map_err(|e| Error::io("cannot find", e).about(dir.display()));
        let dirs = std::iter::once(own).chain(more.iter().map(PathBuf::as_path)).map(resolve);
        Ok(Self(dirs.collect::<Result<_>>()?))
    }

    /// Checks that `named`, a file that an image wants opened, lies in one of the directories once every
    /// link is followed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where it does not, with the option that would allow it.
    pub fn check(&self, named: &Path) -> Result<()> {
        let path = named.canonicalize().map_err(|e| {
            Error::io("the image names this file, which cannot be opened", e).about(named.display())
        })?;
        if self.0.iter().any(|dir| path.starts_with(dir)) {
            return super::check_kind(&path);
        }
        let dir = path.parent().unwrap_or(&path).display().to_string();
        Err(Error::new(ErrorKind::Invalid, "the image names this file outside its own directory")
            .about(path.display())
            .remedy(format!("if you trust the image, allow it with --allow-dir {dir}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_does_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("secret"), "x").unwrap();
        std::fs::write(inside.join("base"), "x").unwrap();
        std::os::unix::fs::symlink(outside.join("secret"), inside.join("link")).unwrap();
        let allowed = AllowedDirs::new(&inside.join("top.qcow2"), &[]).unwrap();
        allowed.check(&inside.join("base")).unwrap();
        for bad in [inside.join("link"), inside.join("../out/secret"), outside.join("secret")] {
            let error = allowed.check(&bad).unwrap_err();
            assert!(error.to_string().contains("--allow-dir"), "{error}");
        }
        AllowedDirs::new(&inside.join("top.qcow2"), std::slice::from_ref(&outside))
            .unwrap()
            .check(&outside.join("secret"))
            .unwrap();
    }
}
