//! Plans for an image from the plans of other images that share layers with it (`docs/design-learning.md`).
//!
//! A layer uses the disk's own addresses: at each place, a disk has the content of the topmost layer that has something
//! there. So a range that two disks take from the same layer has the same bytes at the same place on both. The reads of
//! one image's boots in that range are therefore evidence for the other image, and better evidence than equal metadata,
//! by which one can only guess that two images are alike.
//!
//! [`LayerMap`] has the layer that each slice of a disk comes from. The plans of an image with a map are divided among
//! its layers ([`LayerPlans`]). Each item keeps its *position*: the number of slices that the plan pulls before the
//! item, which stands for a time at a given bandwidth. The plan of a new image then has the slices that the image takes
//! from layers with plans, and that these plans contain, in the order of their positions. If all come from the plan of
//! one image, this is the order of that plan.

use crate::encoding::{Reader, Writer};
use crate::plans::{Centroid, FirstRead, GroupPlans, RatedPlan, named};
use headstart_block::{BLOCK_SIZE, ByteRange, Digest, Error, PlanItem, Result, SLICE_SIZE, exact};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Slices of a block.
const SLICES: u64 = BLOCK_SIZE / SLICE_SIZE;

/// Slices one after another that come from one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    layer: u32,
}

/// A slice, and the number of its bytes in each layer.
type Shared = (u64, BTreeMap<u32, u64>);

/// A map from the slices (64 KiB) of a disk to the image layers that they come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerMap {
    layers: Vec<Digest>,
    /// The runs, ascending and apart from each other.
    runs: Vec<Run>,
}

impl LayerMap {
    /// Makes a map from `parts`: ranges of a disk, each with the index in `layers` of the layer that it comes from. The
    /// ranges must be ascending and must not overlap; bytes between them come from no layer. A slice belongs to the
    /// layer that has most of its bytes, and of equals to the one with the highest index.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](headstart_block::ErrorKind) if the ranges are not in this order or an index is not
    /// in `layers`.
    pub fn new(layers: Vec<Digest>, parts: impl IntoIterator<Item = (ByteRange, usize)>) -> Result<Self> {
        let mut map = Self { layers, runs: Vec::new() };
        // The slice in which the last part ended, and the bytes of it in each layer.
        let (mut end, mut shared): (u64, Option<Shared>) = (0, None);
        for (part, layer) in parts {
            let index = u32::try_from(layer).ok().filter(|_| layer < map.layers.len());
            let layer = index.ok_or_else(|| Error::invalid("a part of the disk comes from no layer"))?;
            if part.offset() < end {
                return Err(Error::invalid("the parts of the disk are not in order"));
            }
            end = part.end();
            let mut left = part;
            while !left.is_empty() {
                let slice = left.offset() / SLICE_SIZE;
                if shared.as_ref().is_some_and(|(at, _)| *at != slice) {
                    map.assign(shared.take());
                }
                let inner_end = left.end() / SLICE_SIZE;
                if left.offset() % SLICE_SIZE == 0 && inner_end > slice {
                    map.push(Run { start: slice, end: inner_end, layer });
                    left = ByteRange::between(inner_end * SLICE_SIZE, left.end());
                    continue;
                }
                let cut = left.end().min((slice + 1).saturating_mul(SLICE_SIZE));
                let (_, owners) = shared.get_or_insert_with(|| (slice, BTreeMap::new()));
                *owners.entry(layer).or_default() += cut - left.offset();
                left = ByteRange::between(cut, left.end());
            }
        }
        map.assign(shared);
        Ok(map)
    }

    /// Assigns a slice to the layer that has most of it.
    fn assign(&mut self, shared: Option<Shared>) {
        let Some((slice, owners)) = shared else { return };
        if let Some((layer, _)) = owners.into_iter().max_by_key(|(layer, bytes)| (*bytes, *layer)) {
            self.push(Run { start: slice, end: slice + 1, layer });
        }
    }

    fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.end == run.start && last.layer == run.layer => last.end = run.end,
            _ => self.runs.push(run),
        }
    }

    /// The digests of the layers, in the order of their indices.
    #[must_use]
    pub fn layers(&self) -> &[Digest] {
        &self.layers
    }

    /// Returns the layers that slices of a block come from, in pairs: the index of a layer, and a mask of the
    /// slices with bit `i` set for slice `i`. A layer may occur more than once. `block` is the block's number on the
    /// disk (offset divided by 2 MiB); slices that come from no layer are in no pair.
    pub fn owners(&self, block: u64) -> impl Iterator<Item = (usize, u32)> {
        let start = block.saturating_mul(SLICES);
        let end = start.saturating_add(SLICES);
        let first = self.runs.partition_point(|run| run.end <= start);
        let runs = self.runs.get(first..).unwrap_or_default().iter();
        runs.take_while(move |run| run.start < end).map(move |run| {
            let (from, to) = (run.start.max(start) - start, run.end.min(end) - start);
            let mask = (u64::from(u32::MAX) >> (SLICES - (to - from)) << from) & u64::from(u32::MAX);
            (run.layer as usize, exact(mask, "it was cut to 32 bits"))
        })
    }

    /// Returns the share, 0 to 1, of the slices of known layers among all slices that come from a layer; 0 if
    /// there are none. A layer is known if `is_known` returns `true` for its digest.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn share(&self, mut is_known: impl FnMut(&Digest) -> bool) -> f64 {
        let known: Vec<bool> = self.layers.iter().map(&mut is_known).collect();
        let (mut some, mut all) = (0, 0);
        for run in &self.runs {
            all += run.end - run.start;
            some += if known[run.layer as usize] { run.end - run.start } else { 0 };
        }
        if all == 0 { 0.0 } else { some as f64 / all as f64 }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.len(self.layers.len());
        self.layers.iter().for_each(|layer| writer.bytes.extend(layer.as_bytes()));
        writer.len(self.runs.len());
        let mut last = 0;
        for run in &self.runs {
            writer.number(run.start - last);
            writer.number(run.end - run.start);
            writer.number(run.layer);
            last = run.end;
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let count = reader.count(32)?;
        let layers = (0..count).map(|_| read_digest(reader)).collect::<Result<Vec<_>>>()?;
        let count = reader.count(3)?;
        let (mut runs, mut last) = (Vec::with_capacity(count), 0_u64);
        let wrong = || Error::corrupt("has a map of layers that makes no sense");
        for _ in 0..count {
            let start = last.checked_add(reader.u64()?).ok_or_else(wrong)?;
            let end = start.checked_add(reader.u64()?).filter(|end| *end > start).ok_or_else(wrong)?;
            let layer: u32 = reader.number()?;
            if layer as usize >= layers.len() || end > u64::MAX / SLICE_SIZE {
                return Err(wrong());
            }
            runs.push(Run { start, end, layer });
            last = end;
        }
        Ok(Self { layers, runs })
    }
}

pub(crate) fn read_digest(reader: &mut Reader<'_>) -> Result<Digest> {
    let bytes = reader.take(32)?.try_into().map_err(|_| Error::corrupt("has a digest that is not valid"))?;
    Ok(Digest::from_bytes(bytes))
}

/// The part of a plan in one layer: by block, its position in the plan and its slices.
pub(crate) type Part = BTreeMap<u64, (u32, u32)>;

/// The parts of preload plans that are in one layer, by bandwidth. Plans for a new image that has the layer
/// are made from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerPlans {
    /// Traces of the images that it is of.
    pub(crate) traces: u64,
    /// The policy that made the plans.
    pub(crate) policy: String,
    /// By bandwidth in bytes a second.
    pub(crate) parts: BTreeMap<u64, Part>,
    /// The times at which blocks of these parts are read first, in milliseconds, as in [`GroupPlans::first_reads`].
    pub(crate) first_reads: BTreeMap<u64, u32>,
}

/// Adds one or more slices of a block; the earlier position counts.
fn merge(part: &mut Part, block: u64, position: u32, mask: u32) {
    let entry = part.entry(block).or_insert((position, 0));
    *entry = (entry.0.min(position), entry.1 | mask);
}

/// Notes the first read of a block in one more image; the earlier one counts.
fn sooner(first_reads: &mut BTreeMap<u64, u32>, block: u64, ms: u32) {
    first_reads.entry(block).and_modify(|known| *known = ms.min(*known)).or_insert(ms);
}

/// Adds the plans of an image with `map` to the knowledge of each of its layers.
pub(crate) fn split(group: &GroupPlans, map: &LayerMap, known: &mut BTreeMap<Digest, LayerPlans>) {
    let mut told = BTreeSet::new();
    for plan in &group.plans {
        let mut position = 0_u32;
        for item in &*plan.items {
            for (layer, mask) in map.owners(item.block) {
                let Some(digest) = map.layers.get(layer) else { continue };
                let mask = item.mask & mask;
                if mask != 0 {
                    let layer = known.entry(*digest).or_default();
                    merge(layer.parts.entry(plan.rate).or_default(), item.block, position, mask);
                    layer.policy.clone_from(&plan.policy);
                    if let Some(ms) = group.first_read_ms(item.block) {
                        sooner(&mut layer.first_reads, item.block, ms);
                    }
                    told.insert(*digest);
                }
            }
            position = position.saturating_add(item.mask.count_ones());
        }
    }
    for digest in told {
        if let Some(layer) = known.get_mut(&digest) {
            layer.traces = layer.traces.saturating_add(group.traces);
        }
    }
}

/// The plans of an image with this map from the knowledge of its layers.
pub(crate) fn join<'a>(
    map: &LayerMap,
    known: impl Iterator<Item = (Digest, &'a LayerPlans)>,
) -> Option<GroupPlans> {
    let mut joined: BTreeMap<u64, Part> = BTreeMap::new();
    let (mut traces, mut policy, mut first_reads) = (0, String::new(), BTreeMap::new());
    for (digest, layer) in known {
        traces = layer.traces.max(traces);
        policy.clone_from(&layer.policy);
        layer.first_reads.iter().for_each(|(block, ms)| sooner(&mut first_reads, *block, *ms));
        for (rate, part) in &layer.parts {
            let into = joined.entry(*rate).or_default();
            for (block, (position, mask)) in part {
                let own = map.owners(*block).filter(|(index, _)| map.layers.get(*index) == Some(&digest));
                let mask = own.fold(0, |own, (_, mask)| own | mask) & mask;
                if mask != 0 {
                    merge(into, *block, *position, mask);
                }
            }
        }
    }
    let plan = |(rate, part): (u64, Part)| {
        let mut items: Vec<_> =
            part.into_iter().map(|(block, (at, mask))| (at, PlanItem { block, mask })).collect();
        items.sort_by_key(|(position, item)| (*position, item.block));
        let items: Arc<[PlanItem]> = items.into_iter().map(|(_, item)| item).collect();
        RatedPlan { rate, policy: policy.clone(), weights: None, score: 0.0, items }
    };
    let plans: Vec<_> = joined.into_iter().map(plan).collect();
    let first_read = |block| first_reads.get(&block).map(|ms| FirstRead { block, ms: *ms });
    let first_reads = named(&plans).into_iter().filter_map(first_read).collect();
    let (entrypoint, centroid) = (String::new(), Centroid::default());
    let group = GroupPlans { category: 0, entrypoint, traces, centroid, plans, first_reads };
    (!group.plans.is_empty()).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(number: u8) -> Digest {
        Digest::from_bytes([number; 32])
    }

    fn slices(start: u64, end: u64) -> ByteRange {
        ByteRange::between(start * SLICE_SIZE, end * SLICE_SIZE)
    }

    #[test]
    fn a_slice_belongs_to_who_has_most_of_it() {
        let part = |start, end| ByteRange::between(start, end);
        let parts = [
            (part(0, SLICE_SIZE + 512), 0),
            (part(SLICE_SIZE + 512, 2 * SLICE_SIZE - 4096), 1),
            (part(2 * SLICE_SIZE - 512, 3 * SLICE_SIZE + 512), 0),
            (slices(40, 70), 1),
        ];
        let map = LayerMap::new(vec![digest(1), digest(2)], parts).unwrap();
        let owners = |block| map.owners(block).collect::<Vec<_>>();
        assert_eq!(owners(0), [(0, 0b1), (1, 0b10), (0, 0b1100)]);
        assert_eq!(owners(1), [(1, 0xffff_ff00)]);
        assert_eq!((owners(2), owners(3)), (vec![(1, 0b11_1111)], vec![]));
        assert!((map.share(|layer| *layer == digest(2)) - 31.0 / 34.0).abs() < 1e-9);
        assert!(LayerMap::new(vec![digest(1)], [(slices(0, 1), 1)]).is_err());
        assert!(LayerMap::new(vec![digest(1)], [(slices(1, 2), 0), (slices(0, 1), 0)]).is_err());
        let mut writer = Writer::default();
        map.write(&mut writer);
        assert_eq!(LayerMap::read(&mut Reader::new(&writer.bytes)).unwrap(), map);
        assert!(LayerMap::default().share(|_| true) < 0.1);
    }

    fn group(items: &[(u64, u32)]) -> GroupPlans {
        let items = items.iter().map(|(block, mask)| PlanItem { block: *block, mask: *mask }).collect();
        let plan = RatedPlan { rate: 5, policy: "p".to_owned(), weights: None, score: 1.0, items };
        let plans = vec![plan];
        let first_read = |block| FirstRead { block, ms: 7 + block as u32 };
        let first_reads = named(&plans).into_iter().map(first_read).collect();
        let (entrypoint, centroid) = (String::new(), Centroid::default());
        GroupPlans { category: 0, entrypoint, traces: 9, centroid, plans, first_reads }
    }

    fn joined(map: &LayerMap, known: &BTreeMap<Digest, LayerPlans>) -> Vec<(u64, u32)> {
        let known = map.layers().iter().filter_map(|digest| known.get(digest).map(|layer| (*digest, layer)));
        let group = join(map, known);
        for read in group.iter().flat_map(|group| &*group.first_reads) {
            assert_eq!(u64::from(read.ms), 7 + read.block);
        }
        let known = group.as_ref().map(|group| group.first_reads.len()).unwrap_or_default();
        let plans = group.map(|group| group.plans).unwrap_or_default();
        assert_eq!(known, named(&plans).len());
        plans.iter().flat_map(|plan| plan.items.iter().map(|item| (item.block, item.mask))).collect()
    }

    #[test]
    fn an_image_starts_with_what_is_known_of_its_layers() {
        // The known image: a base below, a service above that hides part of it.
        let known_map = LayerMap::new(
            vec![digest(1), digest(2)],
            [(slices(0, 32), 0), (slices(32, 40), 1), (slices(40, 96), 0)],
        );
        let mut known = BTreeMap::new();
        split(&group(&[(2, 0b11), (1, 0xffff), (0, 0b1)]), &known_map.unwrap(), &mut known);
        assert_eq!(known.len(), 2);
        // Another image on the same base, whose own layer hides slices 64 and 65 of it.
        let map = LayerMap::new(
            vec![digest(1), digest(3)],
            [(slices(0, 64), 0), (slices(64, 66), 1), (slices(66, 96), 0)],
        );
        // The known image's boots did not read from the base the slices that the service's layer had.
        assert_eq!(joined(&map.unwrap(), &known), [(1, 0xff00), (0, 0b1)]);
        let stranger = LayerMap::new(vec![digest(4)], [(slices(0, 96), 0)]).unwrap();
        assert_eq!(joined(&stranger, &known), []);
    }

    proptest! {
        /// An image's plan comes back whole, in its order, from its own layers.
        #[test]
        fn split_and_joined_is_the_same(
            blocks in prop::collection::vec(0_u64..12, 0..12), masks in prop::collection::vec(1_u32.., 12),
            cuts in prop::collection::btree_set(1_u64..384, 0..20),
        ) {
            let mut blocks = blocks;
            let mut seen = BTreeSet::new();
            blocks.retain(|block| seen.insert(*block));
            let items: Vec<_> = blocks.into_iter().zip(masks).collect();
            let ends = cuts.iter().copied().chain([384]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let parts = starts.zip(ends).enumerate().map(|(at, (start, end))| (slices(start, end), at % 3));
            let map = LayerMap::new((0..3).map(digest).collect(), parts).unwrap();
            let mut known = BTreeMap::new();
            split(&group(&items), &map, &mut known);
            prop_assert_eq!(joined(&map, &known), items);
        }
    }
}
