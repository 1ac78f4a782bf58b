//! A set of names in directories, of any size in little memory.
//!
//! A name stands in the set as the first 16 bytes of a SHA-256 of its directory's number and itself, so that two names
//! which are one here cannot be made. The latest names are in memory. When there are [`IN_MEMORY`] of them, they are
//! sorted and become a *run* in a temporary file without a name, of whose pages only the first digests are kept. A
//! look-up reads a page of each run, so a layer of 4 million names has 16 runs and 64 MB on disk.

use headstart_block::{Error, Result};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Names that stay in memory: some 6 MB.
const IN_MEMORY: usize = 1 << 18;
/// Digests of a page.
const PAGE: usize = 256;
/// Bytes of a digest.
const BYTES: usize = size_of::<u128>();

/// A set of names in directories.
#[derive(Debug)]
pub(super) struct NameSet {
    latest: BTreeSet<u128>,
    capacity: usize,
    runs: Vec<Run>,
    /// The file of the runs.
    file: Option<File>,
    /// The length of the file in bytes.
    end: u64,
}

/// Digests in the file, in ascending order.
#[derive(Debug)]
struct Run {
    /// The offset of the first one in the file.
    offset: u64,
    /// The number of digests.
    len: usize,
    /// The first digest of each page.
    firsts: Box<[u128]>,
}

impl NameSet {
    /// An empty set.
    pub(super) fn new() -> Self {
        Self::with_capacity(IN_MEMORY)
    }

    /// An empty set that keeps at most `capacity` names in memory.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { latest: BTreeSet::new(), capacity, runs: Vec::new(), file: None, end: 0 }
    }

    /// `true` if the set has the name in that directory.
    ///
    /// # Errors
    /// Errors of the temporary file.
    pub(super) fn contains(&self, dir: u64, name: &[u8]) -> Result<bool> {
        let digest = digest(dir, name);
        if self.latest.contains(&digest) {
            return Ok(true);
        }
        let Some(file) = &self.file else { return Ok(false) };
        for run in self.runs.iter().rev() {
            if run.contains(digest, file)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds a name in a directory.
    ///
    /// # Errors
    /// Errors of the temporary file.
    pub(super) fn insert(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        if self.latest.len() >= self.capacity {
            self.store()?;
        }
        self.latest.insert(digest(dir, name));
        Ok(())
    }

    /// Makes a run of the names in memory.
    fn store(&mut self) -> Result<()> {
        let failed = |error| {
            Error::io("cannot move the names of a layer to a temporary file", error)
                .remedy("free space in TMPDIR, or name another directory by it")
        };
        let digests: Vec<u128> = std::mem::take(&mut self.latest).into_iter().collect();
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile().map_err(failed)?),
        };
        let offset = self.end;
        for page in digests.chunks(PAGE) {
            let bytes: Vec<u8> = page.iter().flat_map(|digest| digest.to_le_bytes()).collect();
            file.write_all_at(&bytes, self.end).map_err(failed)?;
            self.end += bytes.len() as u64;
        }
        let firsts = digests.chunks(PAGE).map(|page| page[0]).collect();
        self.runs.push(Run { offset, len: digests.len(), firsts });
        Ok(())
    }
}

impl Run {
    fn contains(&self, digest: u128, file: &File) -> Result<bool> {
        let Some(page) = self.firsts.partition_point(|first| *first <= digest).checked_sub(1) else {
            return Ok(false);
        };
        let first = page * PAGE;
        let mut bytes = [0; PAGE * BYTES];
        let bytes = &mut bytes[..(self.len - first).min(PAGE) * BYTES];
        file.read_exact_at(bytes, self.offset + (first * BYTES) as u64)
            .map_err(|error| Error::io("cannot read back the names of a layer", error))?;
        let (digests, _) = bytes.as_chunks::<BYTES>();
        Ok(digests.binary_search_by_key(&digest, |bytes| u128::from_le_bytes(*bytes)).is_ok())
    }
}

/// The digest of a name in a directory.
fn digest(dir: u64, name: &[u8]) -> u128 {
    let whole: [u8; 32] = Sha256::new().chain_update(dir.to_le_bytes()).chain_update(name).finalize().into();
    u128::from_le_bytes(std::array::from_fn(|at| whole[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_memory_and_in_every_page_of_every_run() {
        let mut set = NameSet::with_capacity(1000);
        let name = |number: u32| format!("name {number}").into_bytes();
        for number in 0..3500 {
            set.insert(u64::from(number % 7), &name(number)).unwrap();
        }
        assert_eq!((set.runs.len(), set.latest.len(), set.end), (3, 500, 3000 * 16));
        for number in 0..3500 {
            assert!(set.contains(u64::from(number % 7), &name(number)).unwrap(), "{number}");
            assert!(!set.contains(7, &name(number)).unwrap(), "{number}");
        }
        assert!(!NameSet::new().contains(0, b"name").unwrap());
    }
}
