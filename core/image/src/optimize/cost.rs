//! The cost of fetching the data that a plan names: bytes and requests.

use super::view::View;
use headstart_block::{BLOCK_SIZE, ByteRange, Digest};
use headstart_hash_tree::GROUP_SIZE;
use std::collections::{BTreeMap, BTreeSet};

/// The estimated cost of fetching all data of a preload plan from a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of bytes to fetch. Whole 16 KiB groups of the blobs count, because a hash tree verifies no
    /// smaller unit.
    pub bytes: u64,
    /// The number of requests: one for each contiguous range of a blob, if no range is split because of its
    /// length.
    pub requests: u64,
}

/// The cost of fetching `parts` of a disk one after another, if nothing is there yet.
pub(super) fn cost(view: &View<'_>, parts: &[ByteRange]) -> Cost {
    let mut cost = Cost::default();
    let lengths: BTreeMap<Digest, u64> =
        view.layers.iter().map(|layer| (layer.blob.digest, layer.blob.size)).collect();
    let mut fetched: BTreeSet<(Digest, u64)> = BTreeSet::new();
    let mut last = None;
    // The slices of a block that a plan names are requested together.
    for of_block in parts.chunk_by(|a, b| a.offset() / BLOCK_SIZE == b.offset() / BLOCK_SIZE) {
        let mut groups: BTreeSet<(Digest, u64)> = BTreeSet::new();
        for part in of_block {
            view.disk.stored_ranges(*part, &mut |source, range| {
                let Some(blob) = view.blob(source) else { return };
                let touched = range.offset() / GROUP_SIZE..range.end().div_ceil(GROUP_SIZE);
                groups.extend(touched.map(|group| (blob, group)));
            });
        }
        for (blob, group) in groups {
            if !fetched.insert((blob, group)) {
                continue;
            }
            // The length of a target is not in the manifest.
            let rest = lengths.get(&blob).map(|len| len.saturating_sub(group * GROUP_SIZE));
            cost.bytes += rest.map_or(GROUP_SIZE, |rest| rest.min(GROUP_SIZE));
            cost.requests += u64::from(last != Some((blob, group)));
            last = Some((blob, group + 1));
        }
    }
    cost
}
