//! The counts of trackers, as boots to learn from.
//!
//! For each slice, a tracker knows the number of disks that have read it, and the mean time of these reads, but not
//! which slices the same disk has read. So its counts become a few *boots* that together read as the disks did. A slice
//! that a quarter of the disks read is in a quarter of the boots (chosen by the slice's number), at its mean time.
//! There are at most eight boots, and a slice's number of boots is rounded: a slice that fewer than one in sixteen
//! disks read is in none. From such boots, training can distinguish slices that most boots read from those that few
//! boots read, and order them; but only from recorded boots can it make groups of boots that are unlike. The times
//! include the waits of the guests; only recorded boots have the lengths of the waits.
//!
//! Counts that have not changed make the same boots again; training recognizes these, and does not learn from them
//! twice. Counts that have grown make other boots, which are learned in addition to the earlier ones, as the boots of
//! another day would be.

use headstart_block::exchange::{Hint, ImageCounts};
use headstart_block::random::mix;
use headstart_block::{ByteRange, Result, SLICE_SIZE, to_usize};
use headstart_image::image_key::key_of_manifest;
use headstart_image::manifest::Manifest;
use headstart_image::named_image::NamedImage;
use headstart_image::store_access::{StoreAccess, StoredImage};
use headstart_plan::knowledge::Knowledge;
use headstart_trace::{Creation, DIGEST, Op, Record, Trace};
use serde::Serialize;

/// The most boots that are made of counts: a slice that fewer than one in twice this many disks read is not preloaded.
const BOOTS_MAX: u32 = 8;

/// The counts of an image from a tracker, converted to boots to learn from.
///
/// A tracker knows how many disks read a slice, and when on average. Its counts become at most eight boots: a slice
/// that half of the disks read is in half of the boots, at its mean time.
pub struct Counted {
    counts: ImageCounts,
    image: String,
    boots: Vec<Trace>,
}

impl Counted {
    /// Finds the counts of `image` among those of a tracker, by the key in the image's manifest. `None` if the tracker
    /// counted no disk of the image, or the manifest has no such key.
    ///
    /// # Errors
    /// Errors of the store if the image's manifest cannot be found or read.
    pub fn find(all: &[ImageCounts], image: &NamedImage, stores: StoreAccess<'_>) -> Result<Option<Self>> {
        let StoredImage { digest, manifest, .. } = stores.stored(&image.reference)?;
        let key = key_of_manifest(&manifest);
        let Some(counts) = all.iter().find(|counts| Some(counts.image) == key) else { return Ok(None) };
        let known_as = manifest.known_as(digest).to_string();
        let (name, label) = if image.name.is_empty() {
            (image.reference.to_string(), Some(known_as))
        } else {
            (image.name.clone(), None)
        };
        let boots = boots_of(counts, &creation(counts, &manifest, &name, label));
        Ok(Some(Self { counts: counts.clone(), image: name, boots }))
    }

    /// Learns from the boots that the counts became, and returns their numbers. Boots that were learned before change
    /// nothing.
    pub fn learn(self, knowledge: &mut Knowledge) -> CountedBoots {
        let new = self.boots.iter().filter(|boot| knowledge.learn_one(boot)).count();
        let (image, disks) = (self.image, self.counts.disks);
        CountedBoots { image, disks, slices: self.counts.slices.len(), boots: self.boots.len(), new }
    }
}

/// The result of learning from counts.
#[derive(Clone, Debug, Serialize)]
pub struct CountedBoots {
    /// The name that the boots have for the image: the given one, otherwise its reference.
    pub image: String,
    /// The number of disks that the tracker counted.
    pub disks: u32,
    /// The number of distinct slices (64 KiB) that the disks read.
    pub slices: usize,
    /// The number of boots that were made of the counts.
    pub boots: usize,
    /// The number of these boots that had not been learned before.
    pub new: usize,
}

/// The creation that all boots of an image share.
fn creation(counts: &ImageCounts, manifest: &Manifest, name: &str, digest: Option<String>) -> Creation {
    let end = counts.slices.last().map_or(0, |hint| (u64::from(hint.slice) + 1) * SLICE_SIZE);
    Creation {
        image: name.to_owned(),
        size: manifest.virtual_size.unwrap_or(end),
        labels: digest.map(|digest| (DIGEST.to_owned(), digest)).into_iter().collect(),
        ..Creation::default()
    }
}

/// Boots that together read as the counted disks did.
fn boots_of(counts: &ImageCounts, creation: &Creation) -> Vec<Trace> {
    let boots = counts.disks.min(BOOTS_MAX);
    let mut all: Vec<Vec<Record>> = (0..boots).map(|_| Vec::new()).collect();
    let print =
        counts.slices.iter().fold(u64::from(counts.disks), |print, Hint { slice, disks, mean_ms }| {
            let read = u64::from(*slice) << 32 ^ u64::from(*disks) << 40 ^ u64::from(*mean_ms);
            mix(print ^ read)
        });
    for Hint { slice, disks, mean_ms } in &counts.slices {
        let share = u64::from(*disks) * u64::from(boots) * 2 / u64::from(counts.disks.max(1));
        let of = share.div_ceil(2).min(boots.into());
        let first = mix(u64::from(*slice));
        let start = u64::from(*slice) * SLICE_SIZE;
        let range = ByteRange::between(start, (start + SLICE_SIZE).min(creation.size.max(start)));
        let record = Record { t_us: u64::from(*mean_ms) * 1000, op: Op::Read, range, service_us: None };
        for n in 0..of {
            let place = first.wrapping_add(n) % u64::from(boots.max(1));
            all[to_usize(place)].push(record);
        }
    }
    let trace = |(n, mut records): (usize, Vec<Record>)| {
        records.retain(|record| !record.range.is_empty());
        records.sort_by_key(|record| record.t_us);
        let volume = format!("counted-{:016x}-{print:016x}-{n}", counts.image.0);
        Trace { creation: Creation { volume, ..creation.clone() }, records, ..Trace::default() }
    };
    all.into_iter().enumerate().map(trace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::exchange::ImageKey;

    fn counts(disks: u32, slices: &[(u32, u32)]) -> ImageCounts {
        let hint = |(slice, disks): &(u32, u32)| Hint { slice: *slice, disks: *disks, mean_ms: 10 * slice };
        ImageCounts { image: ImageKey(7), disks, slices: slices.iter().map(hint).collect() }
    }

    fn boots(counts: &ImageCounts) -> Vec<Trace> {
        boots_of(counts, &Creation { size: 1 << 30, ..Creation::default() })
    }

    fn with(boots: &[Trace], slice: u64) -> usize {
        let reads =
            |boot: &&Trace| boot.records.iter().any(|record| record.range.offset() == slice * SLICE_SIZE);
        boots.iter().filter(reads).count()
    }

    #[test]
    fn each_slice_is_in_as_many_boots_as_disks_read_it() {
        let all = boots(&counts(120, &[(3, 120), (4, 60), (5, 15), (6, 8), (7, 7), (9000, 119)]));
        assert_eq!(all.len(), 8);
        assert_eq!([3, 4, 5, 6, 7, 9000].map(|slice| with(&all, slice)), [8, 4, 1, 1, 0, 8]);
        assert!(all.iter().all(|boot| boot.records.is_sorted_by_key(|record| record.t_us)));
        assert_eq!(all[0].records.iter().find(|r| r.range.offset() == 3 * SLICE_SIZE).unwrap().t_us, 30_000);
        // Few disks become the same number of boots.
        let few = boots(&counts(2, &[(1, 2), (2, 1)]));
        assert_eq!((few.len(), with(&few, 1), with(&few, 2)), (2, 2, 1));
        assert!(boots(&counts(0, &[(1, 0)])).is_empty());
    }

    #[test]
    fn unchanged_counts_make_the_same_boots() {
        let names = |counts| boots(&counts).into_iter().map(|boot| boot.creation.volume).collect::<Vec<_>>();
        assert_eq!(names(counts(20, &[(3, 9)])), names(counts(20, &[(3, 9)])));
        assert_ne!(names(counts(20, &[(3, 9)])), names(counts(20, &[(3, 10)])));
        let mut knowledge = Knowledge::default();
        let slices: Vec<_> = (0..40).map(|n| (n * 8, 20)).collect();
        let learn = |knowledge: &mut Knowledge| {
            boots(&counts(20, &slices)).iter().filter(|boot| knowledge.learn_one(boot)).count()
        };
        assert_eq!((learn(&mut knowledge), learn(&mut knowledge)), (8, 0));
        assert_eq!(knowledge.images().map(|(_, image)| image.traces()).collect::<Vec<_>>(), [8]);
    }
}
