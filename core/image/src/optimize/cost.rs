//! What it takes to bring what a plan names: bytes and requests.

use super::view::View;
use crate::digest::Digest;
use crate::hash_tree::GROUP_SIZE;
use headstart_block::{BLOCK_SIZE, ByteRange};
use std::collections::{BTreeMap, BTreeSet};

/// What preloading takes from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of blobs, in the units in which they are verified.
    pub bytes: u64,
    /// Runs of bytes that lie in one blob one after another: a request each, if none is cut for its length.
    pub requests: u64,
}

/// What it takes to bring `parts` of a disk one after another, where nothing is there yet.
pub(super) fn cost(view: &View<'_>, parts: &[ByteRange]) -> Cost {
    let mut cost = Cost::default();
    let lengths: BTreeMap<Digest, u64> =
        view.layers.iter().map(|layer| (layer.blob.digest, layer.blob.size)).collect();
    let mut fetched: BTreeSet<(Digest, u64)> = BTreeSet::new();
    let mut last = None;
    // What a plan names of a block is asked for together.
    for of_block in parts.chunk_by(|a, b| a.offset() / BLOCK_SIZE == b.offset() / BLOCK_SIZE) {
        let mut groups: BTreeSet<(Digest, u64)> = BTreeSet::new();
        for part in of_block {
            view.disk.stored_ranges(*part, &mut |layer, range| {
                let Some(layer) = view.layers.get(layer) else { return };
                let touched = range.offset() / GROUP_SIZE..range.end().div_ceil(GROUP_SIZE);
                groups.extend(touched.map(|group| (layer.blob.digest, group)));
            });
        }
        for (blob, group) in groups {
            if !fetched.insert((blob, group)) {
                continue;
            }
            let len = lengths.get(&blob).copied().unwrap_or_default();
            cost.bytes += len.saturating_sub(group * GROUP_SIZE).min(GROUP_SIZE);
            cost.requests += u64::from(last != Some((blob, group)));
            last = Some((blob, group + 1));
        }
    }
    cost
}
