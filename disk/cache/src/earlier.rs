//! Hash trees that version 0.1.0 cached.
//!
//! That version named the files of an outboard without the root of the tree, so that blobs of other roots reached them
//! too. Such files are read once: if an outboard has no files of its own yet, the pages that prove under its root are
//! taken over. Without them, a host whose store is away could give nothing to others, although every byte is there. The
//! files themselves stay until they are evicted.

use crate::blob::CachedBlob;
use headstart_block::{ByteRange, ReadAt, Result, to_usize};
use headstart_hash_tree::{HashTree, OutboardCheck, TREE_PAGE, Tree};
use std::sync::Arc;

/// The number of bytes of an outboard that are proven at once.
const PART: u64 = 64 << 10;

/// Takes over the pages of a blob's hash tree that version 0.1.0 cached; `open` gives the outboard that it cached of a
/// tree. Pages that cannot be taken over are fetched again.
pub(crate) fn take_over_tree(blob: &CachedBlob, open: impl FnOnce(&Tree) -> Result<Arc<CachedBlob>>) {
    if let Err(error) = try_take_over(blob, open) {
        tracing::debug!(blob = %blob.spec().digest, %error, "a hash tree of an earlier version is not taken over");
    }
}

fn try_take_over(blob: &CachedBlob, open: impl FnOnce(&Tree) -> Result<Arc<CachedBlob>>) -> Result<()> {
    let (Some(spec), Some(outboard)) = (&blob.spec().tree, blob.tree()) else { return Ok(()) };
    if outboard.present_files().is_some() {
        return Ok(());
    }
    let earlier = open(spec)?;
    let Some(files) = earlier.present_files() else { return Ok(()) };
    let tree = HashTree::open(spec.root, &*earlier, blob.len())?;
    let take = |part: ByteRange| -> Result<bool> {
        let OutboardCheck { wrong, is_complete } = tree.check_outboard(part)?;
        if wrong.is_some() || !is_complete {
            return Ok(false);
        }
        let mut bytes = vec![0; to_usize(part.len())];
        earlier.read_at(&mut bytes, part.offset())?;
        outboard.insert(part.offset(), &bytes)?;
        Ok(true)
    };
    for run in earlier.local_runs(files, ByteRange::between(0, earlier.len())) {
        for part in run.parts(PART) {
            if !take(part)? {
                part.parts(TREE_PAGE).try_for_each(|page| take(page).map(drop))?;
            }
        }
    }
    Ok(())
}
