//! The names that the current layer brought: what its whiteouts and opaque markers leave alone, in any order of the
//! entries.
//!
//! Only names in directories that lower layers made are remembered. All in a directory that the current layer made is
//! the layer's own, so that such a directory is one record for everything below it, and the lowest layer of an image,
//! which has most of the files, needs no names but those in the root.
//!
//! Invariant: a directory with a record has its own name marked in its parent's record, unless the parent is the
//! layer's own or it is the root. So a name without a mark has nothing of this layer below it.

use headstart_block::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Memory of a directory's record in bytes, as counted against the limit: its place in the map, with the slack of
/// the map's nodes.
const DIRECTORY_BYTES: u64 = 96;

/// Memory of a name's record without the name in bytes: its place in the set, with the slack of the set's nodes and of
/// the allocator.
const NAME_BYTES: u64 = 64;

/// The names that the current layer brought.
#[derive(Debug)]
pub(super) struct Brought<N> {
    directories: BTreeMap<N, Origin>,
    bytes: u64,
    limit: u64,
}

/// The layer that a directory is from.
#[derive(Debug)]
enum Origin {
    /// The current one.
    New,
    /// A lower one; the names in it that the current layer brought, or that lead to such.
    Lower(BTreeSet<Box<[u8]>>),
}

impl<N: Copy + Ord> Brought<N> {
    /// A layer that brought nothing so far, and may take `limit` bytes of memory for its names.
    pub(super) fn new(limit: u64) -> Self {
        Self { directories: BTreeMap::new(), bytes: 0, limit }
    }

    /// `true` if the current layer made the directory.
    pub(super) fn is_new(&self, dir: N) -> bool {
        matches!(self.directories.get(&dir), Some(Origin::New))
    }

    /// `true` if the current layer made or changed the node called `name` in `dir`, or anything below it.
    pub(super) fn has(&self, dir: N, name: &[u8]) -> bool {
        match self.directories.get(&dir) {
            Some(Origin::New) => true,
            Some(Origin::Lower(names)) => names.contains(name),
            None => false,
        }
    }

    /// `true` if the directory has a record.
    pub(super) fn knows(&self, dir: N) -> bool {
        self.directories.contains_key(&dir)
    }

    /// Remembers that the current layer made the directory. Its name has to be marked, too.
    ///
    /// # Errors
    /// The limit of memory.
    pub(super) fn add(&mut self, dir: N) -> Result<()> {
        self.charge(DIRECTORY_BYTES)?;
        self.directories.insert(dir, Origin::New);
        Ok(())
    }

    /// Remembers that the current layer brought `name` in `dir`. Returns `true` if this is the first of the layer's
    /// names there: then the directory's own name has to be marked.
    ///
    /// # Errors
    /// The limit of memory.
    pub(super) fn mark(&mut self, dir: N, name: &[u8]) -> Result<bool> {
        match self.directories.get_mut(&dir) {
            Some(Origin::New) => return Ok(false),
            Some(Origin::Lower(names)) => {
                if names.insert(name.into()) {
                    self.charge(NAME_BYTES + name.len() as u64)?;
                }
                return Ok(false);
            }
            None => {}
        }
        self.directories.insert(dir, Origin::Lower(BTreeSet::from([name.into()])));
        self.charge(DIRECTORY_BYTES + NAME_BYTES + name.len() as u64)?;
        Ok(true)
    }

    /// Forgets a directory that is about to be removed, because its number can be given to another. Directories below
    /// have to be forgotten, too.
    pub(super) fn forget(&mut self, dir: N) {
        match self.directories.remove(&dir) {
            Some(Origin::New) => self.bytes -= DIRECTORY_BYTES,
            Some(Origin::Lower(names)) => {
                self.bytes -= DIRECTORY_BYTES;
                self.bytes -= names.iter().map(|name| NAME_BYTES + name.len() as u64).sum::<u64>();
            }
            None => {}
        }
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        if self.bytes > self.limit {
            let cause =
                format!("needs memory for the names of its layer, over the limit of {} bytes", self.limit);
            return Err(Error::unsupported(cause).remedy("if the layer is trusted, raise the limit `memory`"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_directory_is_one_record_for_all_its_names() {
        let mut brought = Brought::new(1000);
        assert!(!brought.has(1, b"a"));
        assert!(brought.mark(1, b"a").unwrap());
        assert!(!brought.mark(1, b"b").unwrap());
        brought.add(2).unwrap();
        for n in 0..1000_u32 {
            assert!(!brought.mark(2, &n.to_le_bytes()).unwrap());
        }
        assert!(brought.has(2, b"anything") && brought.is_new(2) && !brought.is_new(1));
        assert!(brought.has(1, b"a") && !brought.has(1, b"c"));
    }

    #[test]
    fn memory_is_given_back_and_limited() {
        let mut brought = Brought::new(300);
        for _ in 0..1000 {
            brought.mark(1, b"name").unwrap();
            brought.add(2).unwrap();
            brought.forget(1);
            brought.forget(2);
            brought.forget(3);
        }
        assert_eq!(brought.bytes, 0);
        brought.mark(1, b"0").unwrap();
        let error = (1..100_u8).find_map(|n| brought.mark(1, &[n]).err());
        assert!(error.unwrap().to_string().contains("limit of 300 bytes"));
    }
}
