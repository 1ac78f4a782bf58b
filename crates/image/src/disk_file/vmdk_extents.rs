//! The files that a vmdk names, found before anything opens them.
//!
//! A vmdk descriptor is text. Its extents are lines such as `RW 2048 SPARSE "disk-s001.vmdk"`, and QEMU opens
//! whatever they name, servers included, as soon as it looks at the image. So they are looked for here
//! first, generously: in what QEMU's `sscanf` takes for an extent, blanks may be line ends, too.
//!
//! A sparse file may hold such text as well. QEMU follows it where the file's own capacity is 0; real disks have
//! one, so others are refused.

use super::AllowedDirs;
use headstart_block::{Error, FileSource, ReadAt, Result};
use std::path::Path;

/// Largest descriptor that QEMU reads.
const MAX_DESCRIPTOR: u64 = 1 << 20;
/// What a sparse file starts with; its capacity in sectors is at byte 12, u64 little-endian.
const SPARSE_MAGIC: &[u8] = b"KDMV";
const CAPACITY: usize = 12;

/// Checks the files that the vmdk at `path` names, whatever is in it.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] where one may not be opened; what reading the file reports.
pub(super) fn check(path: &Path, allowed: &AllowedDirs) -> Result<()> {
    let file = FileSource::open(path)?;
    let mut start = vec![0; usize::try_from(file.len().min(MAX_DESCRIPTOR)).unwrap_or(0)];
    file.read_at(&mut start, 0)?;
    if start.starts_with(SPARSE_MAGIC) {
        return check_capacity(&start, path);
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    for name in extents(&String::from_utf8_lossy(&start)) {
        let extent = dir.join(name);
        allowed.check(&extent)?;
        let file = FileSource::open(&extent)?;
        let mut start = [0; CAPACITY + 8];
        let len = start.len().min(usize::try_from(file.len()).unwrap_or(usize::MAX));
        file.read_at(&mut start[..len], 0)?;
        if start.starts_with(SPARSE_MAGIC) {
            check_capacity(&start, &extent)?;
        }
    }
    Ok(())
}

fn check_capacity(start: &[u8], path: &Path) -> Result<()> {
    if start.get(CAPACITY..CAPACITY + 8).is_none_or(|capacity| capacity == [0; 8]) {
        return Err(Error::invalid("is a sparse vmdk without a capacity").about(path.display()));
    }
    Ok(())
}

/// What is in quotes after a word `RW`.
fn extents(descriptor: &str) -> impl Iterator<Item = &str> {
    let starts = descriptor.match_indices("RW").filter(|(at, word)| {
        let before = descriptor[..*at].chars().next_back();
        let after = descriptor[at + word.len()..].chars().next();
        before.is_none_or(char::is_whitespace) && after.is_none_or(char::is_whitespace)
    });
    starts.filter_map(|(at, _)| {
        let (_, name) = descriptor[at..].split_once('"')?;
        Some(name.split(['"', '\r', '\n']).next().unwrap_or(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_extents_however_they_are_written() {
        let text =
            "createType=\"x\"\nRW 1 FLAT \"a b\" 0\n  RW\t2\n SPARSE \"c\"\r\nRW 3SPARSE \"d\nRDONLY 4 \"e\"";
        assert_eq!(extents(text).collect::<Vec<_>>(), ["a b", "c", "d"]);
        assert_eq!(extents("DRW 1 \"a\" RWX \"b\"").count(), 0);
    }
}
