//! The check of bytes of a blob against its hash tree: before they become visible, and again later (`recheck`).

use crate::blob::CachedBlob;
use headstart_block::{ByteRange, ErrorKind, ReadAt, Result};
use headstart_hash_tree::{HashTree, pages};
use std::sync::atomic::Ordering;

fn is_corrupt(result: Result<()>) -> bool {
    result.is_err_and(|e| e.kind() == ErrorKind::Corrupt)
}

impl CachedBlob {
    /// Checks fetched bytes against the hash tree, if there is one; pages of it that are wrong are forgotten.
    pub(crate) fn check_arrived(&self, range: ByteRange, bytes: &[u8]) -> Result<()> {
        let Err(error) = self.check_bytes(range.offset(), bytes) else { return Ok(()) };
        if error.kind() != ErrorKind::Corrupt {
            return Err(error);
        }
        self.storage.counts.corrupt_inserts.fetch_add(1, Ordering::Relaxed);
        self.forget_tree(&self.wrong_tree(range))?;
        Err(error.remedy("fetch it again, from another source if there is one"))
    }

    /// Checks whole units against the hash tree, if there is one.
    pub(crate) fn check_bytes(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (Some(spec), Some(outboard)) = (&self.spec().tree, self.tree()) else { return Ok(()) };
        HashTree::open(spec.root, &**outboard, self.len())?.verify_part(bytes, offset)
    }

    /// The pages of the hash tree that checking `range` reads, if the tree's nodes for it are wrong.
    pub(crate) fn wrong_tree(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut wrong = Vec::new();
        let (Some(spec), Some(outboard)) = (&self.spec().tree, self.tree()) else { return wrong };
        match HashTree::open(spec.root, &**outboard, self.len()) {
            Err(e) if e.kind() == ErrorKind::Corrupt => wrong.push(ByteRange::between(0, 8)),
            Ok(tree) if is_corrupt(tree.verify_nodes(range)) => {
                pages(self.len(), range, &mut |run| wrong.push(run));
            }
            _ => {}
        }
        wrong
    }

    pub(crate) fn forget_tree(&self, runs: &[ByteRange]) -> Result<()> {
        runs.iter().try_for_each(|run| self.tree().map_or(Ok(()), |tree| tree.discard(*run)))
    }
}
