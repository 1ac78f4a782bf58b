//! The orders by which hosts fetch an image ahead of need: all of it, or the parts that boots read.

use headstart_block::{BlockDevice, ByteRange, Error, PlanItem};
use headstart_image::manifest::{ImageLayer, Manifest};
use headstart_image::open_image::{OpenImage, opening_ranges_of};
use headstart_peer_net::order::Order;
use headstart_store::Reference;
use std::collections::{HashMap, HashSet};

/// The unit that ranges are rounded to, in bytes: the chunk that hosts exchange.
const CHUNK: u64 = headstart_swarm::CHUNK_SIZE;

/// Returns orders for the layer blobs of an image: one order for each blob that has a hash tree. The parts of an order
/// are the ranges of the blob that opening the image reads, then those that `items` read, in the order of `items`.
/// Empty if no layer has a hash tree.
#[must_use]
pub fn of_items(image: &OpenImage, items: &[PlanItem]) -> Vec<Order> {
    let layers: Vec<&ImageLayer> = image.manifest.disk_layers().collect();
    let mut ranges: Vec<BlobRanges> = layers.iter().map(|layer| BlobRanges::opening(layer)).collect();
    let disk = image.disk();
    for part in items.iter().flat_map(|item| item.parts(disk.size())) {
        disk.stored_ranges(part, &mut |source, range| {
            let source = disk.sources()[source];
            // Targets of TurboOCI layers have no hash trees, without which hosts exchange nothing.
            if let Some(ranges) = ranges.get_mut(source.layer).filter(|_| !source.is_target) {
                ranges.add(range);
            }
        });
    }
    let store = image.reference.location.to_string();
    let orders = layers
        .into_iter()
        .zip(ranges)
        .filter_map(|(layer, ranges)| Some(Order { parts: ranges.list, ..order(layer, &store)? }));
    together(orders.collect())
}

/// Returns orders for the layer blobs of an image: one order, for the whole blob, for each different blob that has a
/// hash tree. Empty if no layer has a hash tree.
#[must_use]
pub fn of_whole(image: &Reference, manifest: &Manifest) -> Vec<Order> {
    let store = image.location.to_string();
    together(manifest.disk_layers().filter_map(|layer| order(layer, &store)).collect())
}

/// Returns the error for an image for which [`of_items`] or [`of_whole`] gives no orders, because it has no hash trees.
#[must_use]
pub fn without_trees(image: &Reference) -> Error {
    Error::unsupported("has no hash trees, without which hosts do not exchange it")
        .about(image)
        .remedy("make them with `headstart image flatten`")
}

fn order(layer: &ImageLayer, store: &str) -> Option<Order> {
    Some(Order::of(layer.blob.digest, layer.blob.size, layer.tree.as_ref()?, store.to_owned()))
}

/// Joins orders for the same blob: an image may have a blob several times.
fn together(orders: Vec<Order>) -> Vec<Order> {
    let mut places = HashMap::new();
    let mut all: Vec<Order> = Vec::new();
    for order in orders {
        match places.get(&order.digest).and_then(|place: &usize| all.get_mut(*place)) {
            Some(known) => known.parts.extend(order.parts),
            None => {
                places.insert(order.digest.clone(), all.len());
                all.push(order);
            }
        }
    }
    all
}

/// Ranges of a blob in the order in which they were named, each chunk once.
struct BlobRanges {
    len: u64,
    known: HashSet<u64>,
    list: Vec<(u64, u64)>,
}

impl BlobRanges {
    /// The ranges that opening a layer reads.
    fn opening(layer: &ImageLayer) -> Self {
        let len = layer.blob.size;
        let mut ranges = Self { len, known: HashSet::new(), list: Vec::new() };
        opening_ranges_of(layer).into_iter().for_each(|range| ranges.add(range));
        ranges
    }

    fn add(&mut self, range: ByteRange) {
        for chunk in range.offset() / CHUNK..range.end().min(self.len).div_ceil(CHUNK) {
            if !self.known.insert(chunk) {
                continue;
            }
            let start = chunk * CHUNK;
            let len = CHUNK.min(self.len - start);
            match self.list.last_mut() {
                Some((first, before)) if *first + *before == start => *before += len,
                _ => self.list.push((start, len)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_named_once_in_order() {
        let mut ranges = BlobRanges { len: CHUNK * 10 + 5, known: HashSet::new(), list: Vec::new() };
        for (offset, len) in [(CHUNK * 3 + 7, 10), (CHUNK * 4, CHUNK + 1), (CHUNK * 3, 1), (CHUNK * 10, 5)] {
            ranges.add(ByteRange::new(offset, len).unwrap());
        }
        assert_eq!(ranges.list, [(CHUNK * 3, CHUNK * 3), (CHUNK * 10, 5)]);
    }
}
