//! Entries by which eStargz makes a layer readable file by file, and which are no files of the image.
//!
//! The tar of an eStargz layer ends with a table of contents, and an empty mark stands behind the files that are to be
//! fetched first:
//!
//! | name, in the root directory | content |
//! |---|---|
//! | `stargz.index.json` | JSON, which begins with `{"version":` |
//! | `.prefetch.landmark`, `.no.prefetch.landmark` | one byte, 0x0f |
//!
//! They are left out of the tree, as a snapshotter for eStargz leaves them out. containerd, which takes such layers for
//! plain gzip, unpacks them.
//!
//! # Decision
//! An entry is one of them by its name *and* its content, and nothing else counts. eStargz layers are also marked
//! outside of the tar, by the annotation `containerd.io/snapshot/stargz/toc.digest` and at the end of the gzip stream;
//! both are lost when an image is saved into an archive or compressed anew, while the tar and its diff id stay. A
//! converted layer depends on the tar alone, so that it is found by its diff id and is the same from every source.
//! Files of these names with other content are files of the image, in an eStargz layer, too.

use headstart_block::{Result, to_usize};
use headstart_tar::{TarEntry, TarKind, TarReader};
use std::io::Read;

/// The table of contents.
const TABLE: &[u8] = b"stargz.index.json";

/// The marks.
const LANDMARKS: [&[u8]; 2] = [b".prefetch.landmark", b".no.prefetch.landmark"];

/// The content of a mark.
const LANDMARK: &[u8] = &[0x0f];

/// The first bytes of a table, without its white space.
const TABLE_START: &[u8] = b"{\"version\":";

/// The most bytes that are looked at.
const START: u64 = 32;

/// Reads the first bytes of the content of `entry`, the last one of `reader`, if its name is one of eStargz. There are
/// none for all other entries.
///
/// # Errors
/// Errors of the reader.
pub(crate) fn start_of<R: Read>(entry: &TarEntry, reader: &mut TarReader<R>) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    if !is_candidate(entry) {
        return Ok(start);
    }
    start.resize(to_usize(entry.size.min(START)), 0);
    let mut done = 0;
    while let Some(rest) = start.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match reader.read_content(rest)? {
            0 => break,
            len => done += len,
        }
    }
    start.truncate(done);
    Ok(start)
}

/// `true` if an entry whose content begins with `start` (see [`start_of`]) serves eStargz.
pub(crate) fn is_of_estargz(entry: &TarEntry, start: &[u8]) -> bool {
    match name_in_root(&entry.path) {
        _ if start.is_empty() => false,
        Some(TABLE) => {
            let dense = start.iter().filter(|byte| !byte.is_ascii_whitespace());
            dense.take(TABLE_START.len()).eq(TABLE_START)
        }
        _ => entry.size == 1 && start == LANDMARK,
    }
}

/// `true` if an entry has one of the names, and is a file without holes.
fn is_candidate(entry: &TarEntry) -> bool {
    let is_plain = entry.kind == TarKind::Regular && entry.sparse.is_none();
    is_plain && name_in_root(&entry.path).is_some_and(|name| name == TABLE || LANDMARKS.contains(&name))
}

/// The name of an entry of the root directory; `None` for other entries.
fn name_in_root(path: &[u8]) -> Option<&[u8]> {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let name = names.next()?;
    names.next().is_none().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_layers::TarMaker;
    use headstart_tar::TarLimits;

    /// The names of the entries of a tar that are the image's.
    fn kept(tar: &[u8]) -> Vec<String> {
        let mut reader = TarReader::new(tar, TarLimits::default());
        let mut names = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            let start = start_of(&entry, &mut reader).unwrap();
            if !is_of_estargz(&entry, &start) {
                names.push(String::from_utf8(entry.path).unwrap());
            }
        }
        names
    }

    #[test]
    fn tables_and_landmarks_are_told_by_name_and_content() {
        let table = b"{\n\t\"version\": 1,\n\t\"entries\": []\n}";
        let tar = TarMaker::new()
            .file(".no.prefetch.landmark", LANDMARK)
            .file("kept", LANDMARK)
            .file("./.prefetch.landmark", LANDMARK)
            .file("stargz.index.json", table)
            .file("stargz.index.json", b"{\"version\":1}")
            .done();
        assert_eq!(kept(&tar), ["kept"]);
    }

    #[test]
    fn files_that_only_have_such_names_are_the_images() {
        let tar = TarMaker::new()
            .file(".prefetch.landmark", b"\x0f\x0f")
            .file(".no.prefetch.landmark", b"")
            .file("stargz.index.json", b"{\"versions\": 1}")
            .file("stargz.index.json", b"")
            .file("d/stargz.index.json", b"{\"version\": 1}")
            .dir(".prefetch.landmark")
            .symlink("x", "stargz.index.json")
            .done();
        assert_eq!(kept(&tar).len(), 7);
    }
}
