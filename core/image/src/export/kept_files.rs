//! Files that no output takes the place of: those that the command reads, and those that the program keeps for itself.
//!
//! An output is made under another name and renamed at the end, so a command whose output is its input does work, but
//! the input is gone after it. An output in the place of a blob, of an index or of a disk's data takes an image or a
//! disk with it.

use headstart_block::guarded::directory_of;
use headstart_block::{Error, Result};
use headstart_store::layout::{INDEX_FILE, LAYOUT_FILE, PRIVATE_DIR};
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The entries of an image store that are the program's own.
const OF_STORES: [&str; 4] = [LAYOUT_FILE, INDEX_FILE, PRIVATE_DIR, "blobs"];

/// The file in every other directory of the program's own: writable directories, caches, the directories of agents,
/// clusters and harvests.
const LOCK: &str = "lock";

/// Refuses an output that would take the place of one of `inputs`, which need not exist, also by a link or a device of
/// another name. `found` is what is at the place of the output.
///
/// # Errors
/// [`Invalid`](headstart_block::ErrorKind::Invalid) if it is one of them.
pub(super) fn refuse_input(found: Option<&Metadata>, inputs: &[&Path]) -> Result<()> {
    let Some(found) = found else { return Ok(()) };
    for input in inputs {
        if fs::metadata(input).is_ok_and(|input| is_same(&input, found)) {
            let cause = format!("is an input, too ({}), which the output would replace", input.display());
            return Err(Error::invalid(cause).remedy("name another file for the output"));
        }
    }
    Ok(())
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let are_devices = a.file_type().is_block_device() && b.file_type().is_block_device();
    (a.dev(), a.ino()) == (b.dev(), b.ino()) || are_devices && a.rdev() == b.rdev()
}

/// Refuses an output that would be a file of an image store, or would replace a file in another directory of the
/// program's own. `path` has no symbolic links; `is_there` says that there is a file.
///
/// # Errors
/// [`Invalid`](headstart_block::ErrorKind::Invalid) if it is one of them; errors of looking at the directory.
pub(super) fn refuse_own(path: &Path, is_there: bool) -> Result<()> {
    let dir =
        fs::canonicalize(directory_of(path)).map_err(|e| Error::io("cannot look at its directory", e))?;
    if is_there && dir.join(LOCK).symlink_metadata().is_ok_and(|lock| lock.is_file()) {
        let cause = format!("is a file of a directory that headstart uses ({} has a lock)", dir.display());
        return Err(Error::invalid(cause).remedy("name a file in another directory"));
    }
    let whole = path.file_name().map(|name| dir.join(name)).unwrap_or_default();
    for above in dir.ancestors() {
        let entry = whole.strip_prefix(above).ok().and_then(|rest| rest.components().next());
        let is_own = entry.is_some_and(|entry| OF_STORES.iter().any(|own| entry.as_os_str() == *own));
        if is_own && above.join(LAYOUT_FILE).is_file() {
            let cause = format!("is a file of the image store {}", above.display());
            return Err(Error::invalid(cause).remedy("name a file elsewhere"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::export::OutputFile;
    use headstart_block::ErrorKind;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    #[test]
    fn no_output_takes_the_place_of_an_input_or_of_a_file_of_the_programs_own() {
        let scene = tempfile::tempdir().unwrap();
        let at = |path: &str| scene.path().join(path);
        for dir in ["store/blobs/sha256", "store/.headstart/leases", "vm", "free"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for file in [
            "store/oci-layout",
            "store/index.json",
            "store/blobs/sha256/0",
            "vm/lock",
            "vm/data",
            "free/in",
            "free/index.json",
        ] {
            fs::write(at(file), "old").unwrap();
        }
        for (link, to) in
            [("link", "free/in"), ("blob", "store/blobs/sha256/0"), ("blobs", "store/blobs"), ("w", "vm")]
        {
            symlink(at(to), at(link)).unwrap();
        }
        fs::hard_link(at("free/in"), at("free/again")).unwrap();
        let (input, none) = (at("link"), at("none"));
        let inputs: [&Path; 2] = [&none, &input];
        for refused in [
            "free/in",
            "free/again",
            "link",
            "store/index.json",
            "store/oci-layout",
            "store/blobs/sha256/0",
            "store/blobs/sha256/1",
            "store/.headstart/leases/x",
            "blob",
            "blobs/x",
            "vm/data",
            "w/data",
            "vm/lock",
        ] {
            let error = OutputFile::create(&at(refused), &inputs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{refused}: {error}");
            assert!(error.to_string().starts_with(&format!("{}: ", at(refused).display())), "{error}");
        }
        // A file beside these, or of such a name elsewhere, is as good as any.
        for allowed in ["store/out.raw", "vm/out.raw", "free/index.json", "free/out", "none"] {
            OutputFile::create(&at(allowed), &inputs).unwrap();
        }
    }
}
