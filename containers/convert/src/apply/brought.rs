//! The names that the current layer brought: what its whiteouts and opaque markers leave alone, in any order of the
//! entries.
//!
//! Only names in directories that lower layers made are remembered. All in a directory that the current layer made is
//! the layer's own, so that such a directory is one record for everything below it, and the lowest layer of an image,
//! which has most of the files, needs no names but those in the root.
//!
//! Invariant: a directory with a record has its own name marked in its parent's record, unless the parent is the
//! layer's own or it is the root. So a name without a mark has nothing of this layer below it.
//!
//! # Memory
//! A record of a directory is a bit, and a name is 16 bytes of a digest, most of which are in a temporary file
//! (`name_set`): so a layer needs a few megabytes whatever it brings.

use super::name_set::NameSet;
use super::number_set::NumberSet;
use headstart_block::Result;

/// The names that the current layer brought. Directories are known by their numbers.
#[derive(Debug)]
pub(super) struct Brought {
    /// The directories that the current layer made.
    new: NumberSet,
    /// Directories of lower layers in which the current layer brought a name, or a name leads to such.
    lower: NumberSet,
    /// The names in `lower`. Those of a directory that was removed stay, and mean nothing: if its number is given to
    /// another directory, then that one is new.
    names: NameSet,
}

impl Brought {
    /// A layer that brought nothing so far.
    pub(super) fn new() -> Self {
        Self { new: NumberSet::default(), lower: NumberSet::default(), names: NameSet::new() }
    }

    /// The same, with at most `most` names in memory.
    #[cfg(test)]
    pub(super) fn with_names_in_memory(most: usize) -> Self {
        Self { names: NameSet::with_capacity(most), ..Self::new() }
    }

    /// `true` if the current layer made the directory.
    pub(super) fn is_new(&self, dir: u64) -> bool {
        self.new.contains(dir)
    }

    /// `true` if the current layer made or changed the node called `name` in `dir`, or anything below it.
    ///
    /// # Errors
    /// Errors of the temporary file.
    pub(super) fn has(&self, dir: u64, name: &[u8]) -> Result<bool> {
        Ok(self.is_new(dir) || self.lower.contains(dir) && self.names.contains(dir, name)?)
    }

    /// `true` if the directory has a record.
    pub(super) fn knows(&self, dir: u64) -> bool {
        self.new.contains(dir) || self.lower.contains(dir)
    }

    /// Remembers that the current layer made the directory. Its name has to be marked, too.
    pub(super) fn add(&mut self, dir: u64) {
        self.new.insert(dir);
    }

    /// Remembers that the current layer brought `name` in `dir`. Returns `true` if this is the first of the layer's
    /// names there: then the directory's own name has to be marked.
    ///
    /// # Errors
    /// Errors of the temporary file.
    pub(super) fn mark(&mut self, dir: u64, name: &[u8]) -> Result<bool> {
        if self.is_new(dir) {
            return Ok(false);
        }
        self.names.insert(dir, name)?;
        Ok(self.lower.insert(dir))
    }

    /// Forgets a directory that is about to be removed, because its number can be given to another. Directories below
    /// have to be forgotten, too.
    pub(super) fn forget(&mut self, dir: u64) {
        self.new.remove(dir);
        self.lower.remove(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_new_directory_is_one_record_for_all_its_names() {
        let mut brought = Brought::new();
        assert!(!brought.has(1, b"a").unwrap());
        assert!(brought.mark(1, b"a").unwrap());
        assert!(!brought.mark(1, b"b").unwrap());
        brought.add(2);
        for n in 0..1000_u32 {
            assert!(!brought.mark(2, &n.to_le_bytes()).unwrap());
        }
        assert!(brought.has(2, b"anything").unwrap() && brought.is_new(2) && !brought.is_new(1));
        assert!(brought.has(1, b"a").unwrap() && !brought.has(1, b"c").unwrap());
    }

    proptest! {
        #[test]
        fn names_are_those_of_sets_of_names(
            capacity in 1_usize..5,
            steps in prop::collection::vec((0..5_u8, 0..4_u64, 0..6_u8), 0..120),
        ) {
            let mut brought = Brought::with_names_in_memory(capacity);
            // `None` for a directory that the layer made. The numbers of lower ones end with their removal.
            let mut model: BTreeMap<u64, Option<BTreeSet<u8>>> = BTreeMap::new();
            let mut removed = BTreeSet::new();
            for (step, dir, name) in steps {
                match step {
                    0 if removed.contains(&dir) || !model.contains_key(&dir) => {
                        brought.add(dir);
                        model.insert(dir, None);
                    }
                    1 => {
                        brought.forget(dir);
                        model.remove(&dir);
                        removed.insert(dir);
                    }
                    2 | 3 if model.contains_key(&dir) || !removed.contains(&dir) => {
                        let is_first = !model.contains_key(&dir);
                        prop_assert_eq!(brought.mark(dir, &[name]).unwrap(), is_first);
                        if let Some(names) = model.entry(dir).or_insert_with(|| Some(BTreeSet::new())) {
                            names.insert(name);
                        }
                    }
                    _ => {}
                }
                let has = model.get(&dir).is_some_and(|names| names.as_ref().is_none_or(|set| set.contains(&name)));
                prop_assert_eq!(brought.has(dir, &[name]).unwrap(), has);
                prop_assert_eq!(brought.knows(dir), model.contains_key(&dir));
                prop_assert_eq!(brought.is_new(dir), model.get(&dir) == Some(&None));
            }
        }
    }
}
