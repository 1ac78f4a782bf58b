//! The names of a directory in their order: the parent's and the changes.

use crate::dirents::{self, Dirent};
use crate::state::{NAME, State, changed, key, name_key};
use headstart_block::{Error, Result};
use std::collections::VecDeque;
use std::ops::Range;

/// A walk through a directory. Names behind the walk may change meanwhile.
pub(crate) struct DirectoryWalk {
    dir: u64,
    /// Blocks of the parent that come next.
    blocks: Range<u64>,
    /// Entries of the last of them.
    old: VecDeque<Dirent>,
    /// The next change: a name, and its entry if it was not removed.
    change: Option<(Vec<u8>, Option<Dirent>)>,
    /// `true` if there are no more changes.
    has_all_changes: bool,
    /// The last name that was returned or passed by.
    last: Vec<u8>,
}

impl DirectoryWalk {
    /// A walk through the names behind `after`, which may be empty.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `dir` is not a directory; errors of reading the parent.
    pub(crate) fn new(state: &mut State, dir: u64, after: Vec<u8>) -> Result<Self> {
        let mut blocks = state.old_blocks(dir)?;
        if !blocks.is_empty() {
            blocks.start = state.block_with(&blocks, &after)?;
        }
        Ok(Self { dir, blocks, old: VecDeque::new(), change: None, has_all_changes: false, last: after })
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the directory is damaged; errors of reading the parent.
    pub(crate) fn next(&mut self, state: &mut State) -> Result<Option<Dirent>> {
        loop {
            self.fill(state)?;
            let is_changed = match (self.old.front(), &self.change) {
                (None, None) => return Ok(None),
                (Some(old), Some((name, _))) => *name <= old.name,
                (old, _) => old.is_none(),
            };
            let found = if is_changed {
                let Some((name, entry)) = self.change.take() else { return Ok(None) };
                if self.old.front().is_some_and(|old| old.name == name) {
                    self.old.pop_front();
                }
                self.last = name;
                entry
            } else {
                let old = self.old.pop_front();
                if let Some(old) = &old {
                    self.last.clone_from(&old.name);
                }
                old
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Looks up the next entry of the parent and the next change.
    fn fill(&mut self, state: &mut State) -> Result<()> {
        while self.old.is_empty() && !self.blocks.is_empty() {
            let block = self.blocks.start;
            self.blocks.start += 1;
            let entries = dirents::decode(state.blocks.get(block)?)?;
            // Where the walk begins, the block has names before it.
            self.old = entries.into_iter().filter(|entry| entry.name > self.last).collect();
            if let (Some(last), true) = (self.old.back(), !self.blocks.is_empty())
                && *last.name >= *dirents::first_name(state.blocks.get(self.blocks.start)?)?
            {
                return Err(Error::corrupt("the blocks of a directory are not in order"));
            }
        }
        if self.change.is_none() && !self.has_all_changes {
            let from = name_key(self.dir, &self.last);
            let found = state.changes.next(&key(NAME, self.dir), &from)?;
            self.has_all_changes = found.is_none();
            self.change = found.map(|(found, value)| {
                let name = found.get(9..).unwrap_or_default().to_vec();
                let entry = changed(&name, &value);
                (name, entry)
            });
        }
        Ok(())
    }
}
