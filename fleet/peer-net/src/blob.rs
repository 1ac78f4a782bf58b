//! One blob that this host takes part in: its identity to other hosts, and the verification and storage of received
//! bytes.

use crate::proof::{Binding, Side, proof};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_cache::CachedBlob;
use headstart_disk::RangeFetcher;
use headstart_hash_tree::{HashTree, OutboardCheck, proof_pages};
use headstart_image::manifest::Tree;
use headstart_swarm::{BlobId, BlobKey, CHUNK_SIZE, Chunks, PeerId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The identity of a blob on this host: another root for the same digest means another blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) digest: Digest,
    pub(super) len: u64,
    pub(super) root: [u8; 32],
}

/// One blob.
pub(super) struct Blob {
    pub(super) id: BlobId,
    pub(super) identity: Identity,
    pub(super) cached: Arc<CachedBlob>,
    /// For an outboard: the length of the blob whose tree it is, and that tree.
    outboard_of: Option<(u64, Tree)>,
    /// The outboard of its tree; an outboard has none.
    pub(super) tree: Option<Arc<Blob>>,
    range_fetcher: Mutex<Option<Arc<RangeFetcher>>>,
    /// For an outboard: chunks that could not be checked completely when they came, and their senders. They are here,
    /// but not for others: a host that passes on wrong bytes would be taken for a liar itself.
    unchecked: Mutex<HashMap<u32, PeerId>>,
    /// For an outboard: the edges of chunks that other hosts sent.
    edges: Mutex<HashMap<u32, Edges>>,
}

/// Bytes of a node that are at the end of one chunk of an outboard, and at the beginning of the next.
const NODE_BEFORE: u64 = 56;
const NODE_BEHIND: u64 = 8;

/// The bytes of a chunk of an outboard that belong to nodes that are partly in the neighbouring chunks, so that nothing
/// proves them unless those are here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edges {
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Edges {
    fn of(bytes: &[u8]) -> Self {
        let len = |edge: u64| to_usize(edge).min(bytes.len());
        let first = bytes.get(..len(NODE_BEHIND)).unwrap_or_default().to_vec();
        let last = bytes.get(bytes.len() - len(NODE_BEFORE)..).unwrap_or_default().to_vec();
        Self { first, last }
    }
}

/// The fate of received bytes.
pub(super) enum Kept {
    /// The bytes are here, and verified as far as possible. The value is the verdict on earlier chunks of an outboard.
    Whole(Late),
    /// The bytes cannot be checked yet: pages of the hash tree are missing.
    TreeMissing,
}

/// The verdict on chunks of an outboard that could not be checked when they came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Late {
    /// The senders of wrong chunks.
    pub(super) liars: Vec<PeerId>,
    /// The chunks that are right.
    pub(super) right: Vec<u32>,
}

impl Blob {
    pub(super) fn data(id: BlobId, cached: Arc<CachedBlob>, root: [u8; 32], tree: Option<Arc<Self>>) -> Self {
        let spec = cached.spec();
        let identity = Identity { digest: spec.digest, len: spec.len, root };
        Self {
            id,
            identity,
            cached,
            outboard_of: None,
            tree,
            range_fetcher: Mutex::default(),
            unchecked: Mutex::default(),
            edges: Mutex::default(),
        }
    }

    pub(super) fn outboard(id: BlobId, cached: Arc<CachedBlob>, data_len: u64, tree: Tree) -> Self {
        let spec = cached.spec();
        let identity = Identity { digest: spec.digest, len: spec.len, root: *tree.root.as_bytes() };
        Self {
            id,
            identity,
            cached,
            outboard_of: Some((data_len, tree)),
            tree: None,
            range_fetcher: Mutex::default(),
            unchecked: Mutex::default(),
            edges: Mutex::default(),
        }
    }

    /// Its name on all hosts.
    pub(super) fn key(&self) -> BlobKey {
        let mut hasher = blake3::Hasher::new_derive_key("headstart swarm 1 name of a blob");
        hasher.update(self.identity.digest.as_bytes()).update(&self.identity.root);
        let mut key = [0; 8];
        hasher.finalize_xof().fill(&mut key);
        BlobKey(u64::from_le_bytes(key))
    }

    pub(super) fn len(&self) -> u64 {
        self.identity.len
    }

    pub(super) fn proof(&self, binding: &Binding, side: Side) -> [u8; 32] {
        *proof(&self.identity.root, binding, side, &self.identity.digest).as_bytes()
    }

    pub(super) fn bytes_of(&self, chunk: u32) -> ByteRange {
        Chunks::one(chunk).bytes(self.len())
    }

    /// The runs of whole chunks of `range` that are here.
    pub(super) fn local_chunks(&self, range: ByteRange) -> Vec<Chunks> {
        // Disks are other processes, and the first of them that stored bytes made the files.
        self.cached.look_again();
        let range = range.intersect(ByteRange::between(0, self.len()));
        let all = Chunks::touched(range).numbers();
        let (mut runs, mut at) = (Vec::new(), all.start);
        let mut push = |from: u32, to: u32| {
            if from < to {
                runs.push(Chunks { first: from, count: to - from });
            }
        };
        self.cached.missing(
            Chunks { first: all.start, count: all.end - all.start }.bytes(self.len()),
            &mut |run| {
                let missing = Chunks::touched(run).numbers();
                push(at, missing.start.min(all.end));
                at = at.max(missing.end);
            },
        );
        push(at, all.end);
        runs
    }

    pub(super) fn range_fetcher(&self) -> Option<Arc<RangeFetcher>> {
        self.range_fetcher.lock().clone()
    }

    pub(super) fn set_range_fetcher(&self, range_fetcher: &Arc<RangeFetcher>) {
        *self.range_fetcher.lock() = Some(Arc::clone(range_fetcher));
        if let Some(tree) = &self.tree {
            tree.set_range_fetcher(range_fetcher);
        }
    }

    pub(super) fn is_outboard(&self) -> bool {
        self.outboard_of.is_some()
    }

    /// Checks the bytes of a chunk that came from a host, and stores them.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are wrong; all other errors are this host's own.
    pub(super) fn keep(&self, chunk: u32, bytes: &[u8], from: PeerId) -> Result<Kept> {
        let range = self.bytes_of(chunk);
        if self.cached.is_local(range) {
            return Ok(Kept::Whole(Late::default()));
        }
        if let Some((data_len, tree)) = &self.outboard_of {
            return self.keep_of_outboard(tree, *data_len, chunk, bytes, from).map(Kept::Whole);
        }
        let insert = || self.cached.insert(range.offset(), bytes);
        // Wrong pages of the tree may have come again since.
        let again = |error: Error| match error.kind() {
            ErrorKind::Corrupt if !self.lacks_tree(range) => insert(),
            _ => Err(error),
        };
        match insert().or_else(again) {
            Ok(()) => Ok(Kept::Whole(Late::default())),
            Err(error) if error.kind() == ErrorKind::Absent => Ok(Kept::TreeMissing),
            // The cache drops pages of the tree if these are wrong.
            Err(error) if error.kind() == ErrorKind::Corrupt && self.lacks_tree(range) => {
                Ok(Kept::TreeMissing)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks and stores a chunk of an outboard. A chunk that cannot be checked yet, because nodes above it are
    /// missing, is checked as soon as they come; the cache checks it at each use anyway.
    fn keep_of_outboard(
        &self,
        tree: &Tree,
        data_len: u64,
        chunk: u32,
        bytes: &[u8],
        from: PeerId,
    ) -> Result<Late> {
        let range = self.bytes_of(chunk);
        let check = check_outboard(tree, data_len, &Overlaid { below: &self.cached, range, bytes }, range)?;
        if let Some(wrong) = check.wrong {
            if is_in(wrong, range) {
                return Err(Error::corrupt("a chunk of a hash tree does not match its root"));
            }
            // Present bytes are wrong: they came from a store, or are a node of which two hosts sent a part each.
            self.cached.discard(wrong)?;
        }
        let mut unchecked = self.unchecked.lock();
        // This comes before the chunk is here for others.
        if !check.is_complete || check.wrong.is_some() {
            unchecked.insert(chunk, from);
        }
        // The present bytes of it may come from another host, and would not be overwritten.
        self.cached.discard(range)?;
        self.edges.lock().insert(chunk, Edges::of(bytes));
        self.cached.insert(range.offset(), bytes)?;
        let mut late = Late::default();
        let mut failed = Ok(());
        unchecked.retain(|&chunk, &mut sender| {
            let range = self.bytes_of(chunk);
            match check_outboard(tree, data_len, &self.cached, range) {
                Ok(OutboardCheck { wrong: None, is_complete }) => {
                    if is_complete {
                        late.right.push(chunk);
                    }
                    !is_complete
                }
                Ok(OutboardCheck { wrong: Some(wrong), .. }) => {
                    // All of a liar's chunk is discarded. If another chunk is wrong, this one keeps waiting.
                    let lied = is_in(wrong, range);
                    if lied {
                        late.liars.push(sender);
                    }
                    let gone = self.cached.discard(if lied { range } else { wrong });
                    failed = std::mem::replace(&mut failed, Ok(())).and(gone);
                    !lied
                }
                Err(error) => {
                    failed = Err(error);
                    true
                }
            }
        });
        failed.map(|()| late)
    }

    /// `true` if `bytes`, which are about to be sent as a chunk of this blob, may be sent: a change in the cache since
    /// they came is detected here, and not by the other host, which would take this one for a liar.
    ///
    /// Pages of an outboard come from stores unverified, and a host that makes up an outboard knows its root: without
    /// this check it could name any blob that this host's credentials can fetch as the outboard of a tree of its own,
    /// and be served that blob. So the bytes are connected to the root, each time, whatever their source. At a chunk's
    /// edges are parts of nodes that only the neighbouring chunks complete; if these are not here, the edges must be
    /// those that another host sent.
    pub(super) fn may_send(&self, chunk: u32, bytes: &[u8]) -> bool {
        let range = self.bytes_of(chunk);
        let Some((data_len, tree)) = &self.outboard_of else {
            return self.cached.is_right(range.offset(), bytes);
        };
        let proves = |part: ByteRange| {
            let overlaid = Overlaid { below: &self.cached, range, bytes };
            let check = check_outboard(tree, *data_len, &overlaid, part);
            matches!(check, Ok(OutboardCheck { wrong: None, is_complete: true }))
        };
        let are_known_edges = || {
            let edges = self.edges.lock();
            edges.get(&chunk).is_some_and(|known| *known == Edges::of(bytes))
        };
        proves(self.with_edges(range)) || (are_known_edges() && proves(range))
    }

    /// A part of an outboard with all of the nodes that are partly in it.
    fn with_edges(&self, range: ByteRange) -> ByteRange {
        let (start, end) = (range.offset().saturating_sub(NODE_BEFORE), range.end() + NODE_BEHIND);
        ByteRange::between(start, end.min(self.len()))
    }

    /// The ranges to be fetched from a store so that all of `range` is here and, for an outboard, connected to its
    /// root: other hosts get nothing else of it.
    pub(super) fn with_proof(&self, range: ByteRange) -> Vec<ByteRange> {
        let Some((data_len, _)) = &self.outboard_of else { return vec![range] };
        let mut runs = Vec::new();
        // The range itself is surrounded by pages, or ends at the outboard's end.
        proof_pages(*data_len, self.with_edges(range), &mut |run| runs.push(run));
        runs
    }

    /// The missing pages of those that connect `range` to the root.
    pub(super) fn lacking_proof(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut lacking = Vec::new();
        for run in self.with_proof(range) {
            self.cached.missing(run, &mut |run| lacking.push(run));
        }
        lacking
    }

    /// `true` if a chunk is here, but could not be checked when it came.
    #[cfg(test)]
    pub(super) fn is_unchecked(&self, chunk: u32) -> bool {
        self.is_outboard() && self.unchecked.lock().contains_key(&chunk)
    }

    /// `true` if pages of the tree are missing that checking `range` needs.
    pub(super) fn lacks_tree(&self, range: ByteRange) -> bool {
        let mut lacks = false;
        self.cached.tree_missing(range, &mut |_| lacks = true);
        lacks
    }

    /// The chunks of the outboard of which pages are missing that checking `range` needs.
    pub(super) fn missing_tree_chunks(&self, range: ByteRange) -> Vec<Chunks> {
        let mut runs = Vec::new();
        self.cached.tree_missing(range, &mut |run| push_touched(&mut runs, run));
        runs
    }

    /// The chunks of which bytes are missing in `range`.
    pub(super) fn missing_chunks(&self, range: ByteRange) -> Vec<Chunks> {
        let mut runs = Vec::new();
        self.cached.missing(range, &mut |run| push_touched(&mut runs, run));
        runs
    }
}

/// Adds the chunks that a range touches to runs of chunks; the range begins behind the runs.
fn push_touched(runs: &mut Vec<Chunks>, range: ByteRange) {
    let chunks = Chunks::touched(range);
    match runs.last_mut() {
        Some(last) if last.numbers().end >= chunks.first => {
            last.count = chunks.numbers().end.max(last.numbers().end) - last.first;
        }
        _ => runs.push(chunks),
    }
}

fn is_in(part: ByteRange, whole: ByteRange) -> bool {
    whole.offset() <= part.offset() && part.end() <= whole.end()
}

/// Checks the present part of an outboard.
fn check_outboard(
    tree: &Tree,
    data_len: u64,
    outboard: &dyn ReadAt,
    part: ByteRange,
) -> Result<OutboardCheck> {
    match HashTree::open(tree.root, outboard, data_len) {
        Ok(tree) => tree.check_outboard(part),
        Err(error) if error.kind() == ErrorKind::Absent => {
            Ok(OutboardCheck { wrong: None, is_complete: false })
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            Ok(OutboardCheck { wrong: Some(ByteRange::between(0, 8)), is_complete: false })
        }
        Err(error) => Err(error),
    }
}

/// A chunk of a blob that is not in the cache yet, over the cached bytes.
struct Overlaid<'a> {
    below: &'a CachedBlob,
    range: ByteRange,
    bytes: &'a [u8],
}

impl ReadAt for Overlaid<'_> {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // Pages and chunks end at the same places; a node across two chunks is read in parts.
        let end = offset.saturating_add(buf.len() as u64);
        let inside = ByteRange::between(offset, end).intersect(self.range);
        if inside.is_empty() {
            return self.below.read_at(buf, offset);
        }
        let place = |at: u64, from: u64| to_usize(at - from);
        let (head, rest) = buf.split_at_mut(place(inside.offset(), offset).min(buf.len()));
        let (middle, tail) = rest.split_at_mut(place(inside.end(), inside.offset()).min(rest.len()));
        let from = place(inside.offset(), self.range.offset());
        let found = self.bytes.get(from..from.saturating_add(middle.len()));
        middle.copy_from_slice(found.ok_or_else(|| Error::corrupt("ends before its length"))?);
        if !head.is_empty() {
            self.below.read_at(head, offset)?;
        }
        if !tail.is_empty() {
            self.below.read_at(tail, inside.end())?;
        }
        Ok(())
    }
}

const _: () = assert!(CHUNK_SIZE.is_multiple_of(headstart_hash_tree::TREE_PAGE));
