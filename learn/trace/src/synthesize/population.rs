//! The creations of disks: users, images, clusters, times and sizes.
//!
//! Properties that the paper gives as shares of the creations are not drawn but dealt out: images are few and the
//! first of them has a sixth of all creations, so that draws would miss a share of 80% by ten points. Images are
//! taken by their number of creations, the largest first, and each gets the value that is missing most at that
//! time.

use super::SynthesisSettings;
use super::random::{Random, whole};
use headstart_block::to_usize;

/// The share of the creations that are of public images: users' images have 1.26 times as many.
const PUBLIC_SHARE: f64 = 1.0 / 2.26;
/// Sizes of disks in GiB and their shares of the creations: 80% are smaller than 64 GiB.
const SIZES: [(u64, f64); 10] = [
    (40, 0.47),
    (20, 0.18),
    (50, 0.08),
    (60, 0.07),
    (100, 0.08),
    (80, 0.06),
    (200, 0.03),
    (500, 0.02),
    (1024, 0.006),
    (2048, 0.004),
];
/// Median of the size of an image over that of its disk: public, of users.
const IMAGE_RATIO: [f64; 2] = [0.5, 0.55];
/// The largest distance from that median.
const IMAGE_RATIO_SPREAD: f64 = 0.35;
/// Least size of an image: the reads of a boot are below it.
pub(super) const IMAGE_MIN: u64 = 9 << 30;
/// The share of the users with one image; the share of these that use it once.
const ONE_IMAGE: f64 = 0.579;
const ONE_CREATION: f64 = 0.95;
/// The share of the images that are used on disks of two sizes, and the share of the larger size.
const TWO_SIZES: f64 = 0.15;
const LARGER: f64 = 0.25;
/// Images that an owner has on average.
const OWNED: usize = 4;
/// Clusters of the region, and those that an image is used in: median, deviation of the logarithm, most.
const CLUSTERS: u64 = 330;
const IMAGE_CLUSTERS: (f64, f64, f64) = (23.0, 0.7, 133.0);
/// Ten weeks.
const DAYS: u64 = 70;
/// Days on which an image is used: two days in a row have few images in common.
const ACTIVE_DAYS: u64 = 5;
/// The weight of each hour of a day in creations: most at 17, least at 3.
const HOURS: [f64; 24] = [
    3.0, 2.0, 1.4, 1.0, 1.2, 1.6, 2.2, 3.0, 4.5, 6.0, 7.0, 7.5, 7.2, 7.6, 8.4, 9.0, 9.6, 10.0, 9.2, 8.0, 7.0,
    6.0, 5.0, 4.0,
];
/// 2026-03-02, in seconds of Unix time: a Monday.
const START_S: u64 = 1_772_409_600;
const DAY_S: u64 = 86_400;
const NOON_S: u64 = DAY_S / 2;
const GIB: u64 = 1 << 30;

/// Families of images, and the share of the images in each.
pub(super) const FAMILIES: [(&str, f64); 8] = [
    ("ubuntu-22.04", 0.25),
    ("windows-2019", 0.18),
    ("centos-7", 0.15),
    ("alinux-3", 0.13),
    ("debian-12", 0.1),
    ("ubuntu-20.04", 0.09),
    ("windows-2022", 0.06),
    ("rocky-9", 0.04),
];

/// An image.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub(super) id: String,
    pub(super) public: bool,
    pub(super) family: usize,
    /// The owner of the image; for a public image, a number that no other image has.
    pub(super) owner: u64,
    /// The configuration: images of an owner with one configuration are the most alike.
    pub(super) configuration: u64,
    /// Bytes of the image.
    pub(super) bytes: u64,
    /// Bytes of the disks that it is used on.
    pub(super) sizes: Vec<u64>,
    pub(super) creations: usize,
}

/// The creation of one disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    /// The index of the image.
    pub(super) image: usize,
    /// The number of the disk among those of the image.
    pub(super) number: u64,
    pub(super) size: u64,
    pub(super) user: u64,
    pub(super) cluster: u64,
    pub(super) created_s: u64,
}

/// All images and creations.
#[derive(Clone, Debug)]
pub(super) struct Population {
    pub(super) images: Vec<Image>,
    pub(super) disks: Vec<Disk>,
}

impl Population {
    pub(super) fn of(settings: &SynthesisSettings) -> Self {
        let mut images = images(settings);
        deal_sizes(settings, &mut images);
        let mut disks = disks(settings, &images);
        deal_users(settings, &images, &mut disks);
        Self { images, disks }
    }
}

/// The images, those with the most creations first; creations fall with the rank.
#[expect(clippy::cast_precision_loss, reason = "shares")]
fn images(settings: &SynthesisSettings) -> Vec<Image> {
    let all = settings.images.min(settings.traces).max(1);
    let public_count = whole(all as f64 * PUBLIC_SHARE);
    let public_creations = whole(settings.traces as f64 * PUBLIC_SHARE);
    let mut images = Vec::with_capacity(all);
    for public in [true, false] {
        let count = if public { public_count } else { all as u64 - public_count };
        let creations = if public { public_creations } else { settings.traces as u64 - public_creations };
        let weights: Vec<_> = (0..count).map(|rank| 1.0 / (rank as f64 + 1.5)).collect();
        let sum: f64 = weights.iter().sum();
        let mut families = vec![0.0; FAMILIES.len()];
        for (rank, weight) in (0_u64..).zip(&weights) {
            let mut random = Random::of(&[settings.seed, 1, u64::from(public), rank]);
            let shares = FAMILIES.map(|(_, share)| share);
            // Owners have images of one family each, so that they have some that are alike.
            let owner = if public { 1_000_000 + rank } else { rank % (count / OWNED as u64).max(1) };
            let family = if public {
                most_missing(&shares, &families, 1.0)
            } else {
                Random::of(&[settings.seed, 2, owner]).weighted(&shares)
            };
            families[family] += 1.0;
            images.push(Image {
                id: format!("{}-{:08x}", if public { "p" } else { "m" }, random.next() >> 32),
                public,
                family,
                owner,
                configuration: if public { 0 } else { random.below(2) },
                bytes: 0,
                sizes: Vec::new(),
                creations: to_usize(whole(creations as f64 * weight / sum).max(1)),
            });
        }
    }
    images
}

/// The index of the thing that is furthest behind its share, when one of size `next` is dealt.
fn most_missing(shares: &[f64], dealt: &[f64], next: f64) -> usize {
    let all = dealt.iter().sum::<f64>() + next;
    let missing = |at: usize| shares[at] * all - dealt[at];
    (0..shares.len()).max_by(|a, b| missing(*a).total_cmp(&missing(*b)).then(b.cmp(a))).unwrap_or(0)
}

/// The bits of a number behind the point, in reverse: evenly spread from the middle on.
#[expect(clippy::cast_precision_loss, reason = "a position")]
fn spread(rank: usize) -> f64 {
    (rank as u64 + 1).reverse_bits() as f64 / 2.0_f64.powi(64)
}

#[expect(clippy::cast_precision_loss, reason = "shares")]
fn deal_sizes(settings: &SynthesisSettings, images: &mut [Image]) {
    let shares = SIZES.map(|(_, share)| share);
    for public in [true, false] {
        let mut dealt = vec![0.0; SIZES.len()];
        let of_kind = images.iter_mut().filter(|image| image.public == public);
        for (rank, image) in of_kind.enumerate() {
            let choice = most_missing(&shares, &dealt, image.creations as f64);
            dealt[choice] += image.creations as f64;
            let size = SIZES[choice].0 * GIB;
            image.sizes.push(size);
            if Random::of(&[settings.seed, 3, u64::from(public), rank as u64]).chance(TWO_SIZES) && rank > 2 {
                image.sizes.push(2 * size);
            }
            let median = IMAGE_RATIO[usize::from(!public)];
            let ratio = median + (spread(rank) - 0.5) * 2.0 * IMAGE_RATIO_SPREAD;
            image.bytes = whole(size as f64 * ratio).max(IMAGE_MIN).min(size);
        }
    }
}

fn disks(settings: &SynthesisSettings, images: &[Image]) -> Vec<Disk> {
    let mut disks = Vec::with_capacity(settings.traces);
    // The largest cluster has thirty times as many as the smallest.
    for (number, image) in images.iter().enumerate() {
        let mut random = Random::of(&[settings.seed, 4, number as u64]);
        let (median, deviation, max) = IMAGE_CLUSTERS;
        let pool = whole(random.log_normal(median, deviation).clamp(1.0, max));
        let pool: Vec<_> = (0..pool).map(|_| cluster(&mut random)).collect();
        let days: Vec<_> = (0..random.tries(3.0, ACTIVE_DAYS)).map(|_| random.below(DAYS)).collect();
        for disk in 0..image.creations as u64 {
            let larger = image.sizes.len() > 1 && random.chance(LARGER);
            let day = days[random.index(days.len())];
            let hour = random.weighted(&HOURS) as u64;
            disks.push(Disk {
                image: number,
                number: disk,
                size: image.sizes[usize::from(larger)],
                user: image.owner,
                cluster: pool[random.index(pool.len())],
                // Days begin at noon, as the paper's: a day on which an image is used is one in its figure.
                created_s: START_S + NOON_S + day * DAY_S + (hour + 12) % 24 * 3600 + random.below(3600),
            });
        }
    }
    disks
}

/// A cluster; the first has thirty times as many disks as the last.
#[expect(clippy::cast_precision_loss, reason = "a position")]
fn cluster(random: &mut Random) -> u64 {
    let position = 30_f64.powf(random.unit());
    whole((position - 1.0) / 29.0 * (CLUSTERS - 1) as f64)
}

/// Users of public images: most use one image once, some many.
fn deal_users(settings: &SynthesisSettings, images: &[Image], disks: &mut [Disk]) {
    let mut random = Random::of(&[settings.seed, 5]);
    let mut slots: Vec<_> = (0..disks.len()).filter(|at| images[disks[*at].image].public).collect();
    random.shuffle(&mut slots);
    let owners = images.iter().filter(|image| !image.public).map(|image| image.owner + 1).max().unwrap_or(0);
    let mut user = owners;
    let give = |disks: &mut [Disk], slot: usize, user: u64| disks[slot].user = user;
    // The deal: one use for users that use one image once; some uses of one image; two images, and the rest.
    let mut several = Vec::new();
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let users_all = slots.len() as f64 / 3.0 + owners as f64;
    let single = whole(users_all * ONE_IMAGE);
    let multiple = whole(users_all).saturating_sub(single).saturating_sub(owners);
    for _ in 0..multiple {
        let Some(first) = slots.pop() else { break };
        give(disks, first, user);
        let other = slots.iter().rposition(|slot| disks[*slot].image != disks[first].image);
        if let Some(other) = other {
            give(disks, slots.swap_remove(other), user);
        }
        several.push(user);
        user += 1;
    }
    for number in 0..single {
        let Some(first) = slots.pop() else { break };
        give(disks, first, user);
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let again = number as f64 >= single as f64 * ONE_CREATION;
        let other = slots.iter().rposition(|slot| disks[*slot].image == disks[first].image);
        if let Some(other) = other.filter(|_| again) {
            give(disks, slots.swap_remove(other), user);
        }
        user += 1;
    }
    for slot in slots {
        // A few users have most of the rest.
        let rank = random.unit().powi(3);
        #[expect(clippy::cast_precision_loss, reason = "a position")]
        let at = to_usize(whole(rank * several.len().saturating_sub(1) as f64));
        give(disks, slot, several.get(at).copied().unwrap_or(owners));
    }
}
