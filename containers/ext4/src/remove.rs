//! Removal of files, and of directories with everything in them.

use crate::directory;
use crate::open_directory::OpenDirectory;
use crate::state::State;
use headstart_block::{Error, Result};
use headstart_file_blocks::FileKind;

/// The most directories in each other that are removed: more are a circle, in a damaged file system.
const MAX_DEPTH: usize = 4096;

/// Counts one name less of the file with inode `number`. A file without names is removed, a directory with everything
/// in it. Returns the file's kind.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if a directory or inode is damaged; errors of reading the parent.
pub(crate) fn drop_name(state: &mut State, number: u32) -> Result<FileKind> {
    let mut inode = state.inode(number)?;
    let kind = inode.kind()?;
    if kind == FileKind::Directory {
        remove_directory(state, number)?;
        return Ok(kind);
    }
    if inode.links > 1 {
        inode.links -= 1;
        state.put_inode(number, &inode)?;
        return Ok(kind);
    }
    state.free_content(&mut inode)?;
    state.clear_inode(number, false)?;
    Ok(kind)
}

/// Removes a directory with everything in it: its files, then the directories below, each before the one that has it.
fn remove_directory(state: &mut State, number: u32) -> Result<()> {
    let mut open = vec![Level { number, below: drop_files(state, number)? }];
    while let Some(level) = open.last_mut() {
        if let Some(next) = level.below.pop() {
            if open.len() >= MAX_DEPTH {
                return Err(Error::corrupt(format!(
                    "directories lie in each other {MAX_DEPTH} deep, or in a circle"
                )));
            }
            open.push(Level { number: next, below: drop_files(state, next)? });
            continue;
        }
        let number = level.number;
        let mut inode = state.inode(number)?;
        state.free_content(&mut inode)?;
        state.clear_inode(number, true)?;
        open.pop();
    }
    Ok(())
}

/// A directory that is being removed.
struct Level {
    number: u32,
    /// The directories in it that are still there.
    below: Vec<u32>,
}

/// Drops the names of a directory's files; returns the directories in it. The names themselves stay in its blocks,
/// which are freed with it.
fn drop_files(state: &mut State, number: u32) -> Result<Vec<u32>> {
    if state.inode(number)?.kind()? != FileKind::Directory {
        return Err(Error::corrupt(format!("the entry of inode {number} says that it is a directory")));
    }
    let (mut files, mut below, mut part) = (Vec::new(), Vec::new(), 0);
    loop {
        let mut open = OpenDirectory::open(state, number)?;
        let Some(blocks) = directory::part(&open, part) else { break };
        directory::each_entry(&mut open, blocks, &mut |_, inode, kind| {
            let list = if kind == FileKind::Directory.entry_type() { &mut below } else { &mut files };
            list.push(inode);
            Ok(())
        })?;
        for file in files.drain(..) {
            if state.inode(file)?.kind()? == FileKind::Directory {
                return Err(Error::corrupt(format!(
                    "the entry of inode {file} says that it is no directory"
                )));
            }
            drop_name(state, file)?;
        }
        part += 1;
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryEntry;
    use crate::file_system::{FileSystem, InodeNumber};
    use crate::support::{Discard, blank, plain_attributes};
    use headstart_file_blocks::NewInode;

    fn make(fs: &mut FileSystem<Discard>, dir: InodeNumber, name: &[u8], new: &NewInode<'_>) -> InodeNumber {
        fs.create(dir, name, new, &plain_attributes(0o755)).unwrap()
    }

    /// Adds a name in a directory without a look at what it stands for.
    fn insert(
        fs: &mut FileSystem<Discard>,
        dir: InodeNumber,
        name: &[u8],
        file: InodeNumber,
        kind: FileKind,
    ) {
        let mut open = OpenDirectory::open(&mut fs.state, dir.0).unwrap();
        let entry = DirectoryEntry { name, inode: file.0, kind: kind.entry_type() };
        directory::insert_linear(&mut open, &entry).unwrap();
        open.close().unwrap();
    }

    #[test]
    fn a_directory_goes_with_everything_in_it() {
        let empty = blank(64 << 20).finish().unwrap().1;
        let mut fs = blank(64 << 20);
        let root = fs.root();
        let top = make(&mut fs, root, b"top", &NewInode::Directory);
        let file = make(&mut fs, root, b"file", &NewInode::Regular);
        let mut dir = top;
        for number in 0..500_u32 {
            fs.link(dir, b"link", file).unwrap();
            make(&mut fs, dir, b"other", &NewInode::Symlink(&[b'x'; 200]));
            make(&mut fs, dir, b"beside", &NewInode::Directory);
            dir = make(&mut fs, dir, number.to_string().as_bytes(), &NewInode::Directory);
        }
        assert_eq!(fs.status(file).unwrap().links, 501);
        assert!(fs.remove(root, b"top").unwrap());
        assert_eq!((fs.status(file).unwrap().links, fs.status(root).unwrap().links), (1, 2));
        assert!(fs.remove(root, b"file").unwrap());
        let summary = fs.finish().unwrap().1;
        assert_eq!((summary.free_blocks, summary.free_inodes), (empty.free_blocks, empty.free_inodes));
    }

    #[test]
    fn circles_and_entries_of_a_wrong_kind_are_errors() {
        for case in 0..4 {
            let mut fs = blank(8 << 20);
            let root = fs.root();
            let top = make(&mut fs, root, b"top", &NewInode::Directory);
            let below = make(&mut fs, top, b"below", &NewInode::Directory);
            let file = make(&mut fs, root, b"file", &NewInode::Regular);
            let (target, kind) = [
                (top, FileKind::Directory),
                (root, FileKind::Directory),
                (file, FileKind::Directory),
                (top, FileKind::Regular),
            ][case];
            insert(&mut fs, below, b"wrong", target, kind);
            assert!(fs.remove(root, b"top").is_err(), "case {case}");
        }
    }
}
