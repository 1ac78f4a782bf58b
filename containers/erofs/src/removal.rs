//! Removal of files, and of directories with everything in them.

use crate::directory_walk::DirectoryWalk;
use crate::state::State;
use crate::superblock::ROOT_NID;
use headstart_block::{Error, Result};
use headstart_file_blocks::FileKind;

/// Removes a name, and its file if that has no other name; a directory with everything in it. `false` if there is no
/// such name.
pub(crate) fn remove(state: &mut State, dir: u64, name: &[u8]) -> Result<bool> {
    let Some(entry) = state.entry(dir, name)? else { return Ok(false) };
    state.remove_name(dir, name)?;
    let Some(top) = drop_name(state, entry.node)? else { return Ok(true) };
    let mut parent = state.directory(dir)?;
    parent.links = parent.links.saturating_sub(1).max(2);
    state.put_inode(dir, &parent)?;
    let mut pending = vec![top];
    while let Some(dir) = pending.pop() {
        let mut walk = DirectoryWalk::new(state, dir, Vec::new())?;
        while let Some(entry) = walk.next(state)? {
            if !entry.is_dots() {
                pending.extend(drop_name(state, entry.node)?);
            }
        }
        // A directory that is in itself, or in two places, is not found again.
        state.remove_inode(dir)?;
    }
    Ok(true)
}

/// Counts one name less of a file, and removes it with the last one. Returns a directory, which is left as it is.
fn drop_name(state: &mut State, node: u64) -> Result<Option<u64>> {
    let mut inode = state.inode(node)?;
    if inode.kind == FileKind::Directory {
        if node == ROOT_NID {
            return Err(Error::corrupt("the root directory is in another one"));
        }
        return Ok(Some(node));
    }
    inode.links = inode.links.saturating_sub(1);
    if inode.links == 0 {
        state.remove_inode(node)?;
    } else {
        state.put_inode(node, &inode)?;
    }
    Ok(None)
}
