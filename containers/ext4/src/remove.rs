//! Removal of files, and of directories with everything in them.

use crate::directory;
use crate::inode::FileKind;
use crate::open_directory::OpenDirectory;
use crate::state::State;
use headstart_block::{Error, Result};

/// The most directories in each other that are removed: more are a circle, in a damaged file system.
const MAX_DEPTH: usize = 4096;

/// Counts one name less of the file with inode `number`. A file without names is removed, a directory with everything in
/// it. Returns the file's kind.
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

/// Drops the names of a directory's files; returns the directories in it. The names themselves stay in its blocks, which
/// are freed with it.
fn drop_files(state: &mut State, number: u32) -> Result<Vec<u32>> {
    if state.inode(number)?.kind()? != FileKind::Directory {
        return Err(Error::corrupt(format!("the entry of inode {number} says that it is a directory")));
    }
    let (mut files, mut below) = (Vec::new(), Vec::new());
    directory::each_entry(&mut OpenDirectory::open(state, number)?, &mut |_, inode, kind| {
        let list = if kind == FileKind::Directory.entry_type() { &mut below } else { &mut files };
        list.push(inode);
        Ok(())
    })?;
    for file in files {
        if state.inode(file)?.kind()? == FileKind::Directory {
            return Err(Error::corrupt(format!("the entry of inode {file} says that it is no directory")));
        }
        drop_name(state, file)?;
    }
    Ok(below)
}
