//! The reads of a boot of an image, and the differences between boots.
//!
//! A boot reads *stripes*: runs of neighbouring blocks, anywhere in the part of the disk that the image fills. Each
//! stripe has a generator of its own. The generator depends on the parts that the image shares with others at that
//! stripe: most stripes belong to the base that an owner makes images from, some to all images of the family, some
//! to a configuration, some to the image alone. This makes images more or less alike.
//!
//! The reads of all stripes, in the order of a boot, are the image's *template*, cut into segments: the reads of a
//! service at its start. A boot repeats the template, except for the variations that the paper finds: segments come
//! in another order (the groups of section 5.2), the last ones are left out (its categories), reads are reordered
//! by a few places, lost one by one and in bursts, merged; some boots read more than others, are cut off, or scan
//! the disk.

use super::SynthesisSettings;
use super::population::{Disk, FAMILIES, Image};
use super::random::{Random, whole};
use crate::fast26::{IMAGE_TYPE, META_INFO};
use crate::record::{Op, Record};
use crate::stats::BLOCK;
use crate::stats::boot::RATIO_US;
use crate::trace::{Creation, Trace};
use headstart_block::{ByteRange, to_usize};

/// The number of blocks with stripes: not quite 9 GiB, so that every image has them.
const SPAN: u64 = 4600;
/// Neighbouring blocks that a stripe has on average, and at most.
const STRIPE: (f64, u64) = (6.0, 24);
/// The shares of the stripes that all images of a family have, that a configuration has for itself, and that an image
/// has for itself.
const FAMILY_SHARE: f64 = 0.01;
const CONFIGURATION_SHARE: f64 = 0.016;
const IMAGE_SHARE: f64 = 0.015;
/// Reads of a block on average, and at most.
const READS: (f64, u64) = (3.5, 40);
/// Blocks that a boot reads by default, before sizes of disks are looked at: median, deviation of the logarithm.
const BLOCKS: (f64, f64) = (500.0, 0.35);
/// Lengths of reads in bytes, and their shares.
const LENGTHS: [(u64, f64); 6] = [
    (4 << 10, 0.35),
    (8 << 10, 0.1),
    (16 << 10, 0.15),
    (32 << 10, 0.12),
    (64 << 10, 0.12),
    (128 << 10, 0.16),
];
/// The share of the reads that are in two blocks: of public images, of users' images.
const CROSS: [f64; 2] = [0.025, 0.021];
/// Segments of a template: those that always come first, all, and those that only one category has.
const FIXED: usize = 3;
const SEGMENTS: usize = 24;
const OPTIONAL: usize = 3;
/// The shares of the images with two categories and with several orders.
const TWO_CATEGORIES: f64 = 0.4;
const SEVERAL_ORDERS: f64 = 0.5;
/// The share of the blocks that one boot does not read, and of the other blocks that it reads, on average each.
const VARIED: f64 = 0.015;
/// Microseconds between reads: median, deviation of the logarithm; between segments, mean.
const GAP_US: (f64, f64) = (200.0, 1.6);
const PAUSE_US: f64 = 900_000.0;
/// Seconds from the creation to the first read: median by kind, deviation of the logarithm, least, most.
const GRACE_S: ([f64; 2], f64, f64, f64) = ([4.6, 4.3], 0.4, 0.8, 60.0);
/// The share of reads in the requests of the first three minutes: mean, and the largest distance from it.
const READ_RATIO: [(f64, f64); 2] = [(0.849, 0.13), (0.623, 0.33)];
/// The share of the boots that are not like the others, beside outliers: half of all pairs of which the paper finds
/// 84.8 and 72.7% alike have none of them.
const UNLIKE: [f64; 2] = [0.035, 0.115];
const US: f64 = 1e6;
const TAIL: u64 = 4096;

/// A read of a template.
#[derive(Clone, Copy, Debug)]
struct Read {
    offset: u64,
    len: u64,
}

/// The reads of a boot of an image.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// The reads, by segment.
    segments: Vec<Vec<Read>>,
    /// The orders that segments come in.
    orders: Vec<Vec<usize>>,
    /// The share of the boots that leave the optional segments out.
    short: f64,
    /// Root of the sum of squares of the reads of each block.
    norm: f64,
    /// Distinct blocks of a whole boot and of one without the optional segments.
    blocks: [u64; 2],
}

/// The thing that a generator belongs to.
const FAMILY: u64 = 10;
const BASE: u64 = 11;
const CONFIGURATION: u64 = 12;
const IMAGE: u64 = 13;
const TRACE: u64 = 14;

impl Template {
    /// Draws the template of an image. The number of blocks of all images of its kind is multiplied with `scale`.
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    pub(super) fn of(settings: &SynthesisSettings, number: usize, image: &Image, scale: f64) -> Self {
        let seed = settings.seed;
        let family = [seed, FAMILY, image.family as u64];
        let base = [seed, BASE, image.family as u64, image.owner];
        let configuration = [seed, CONFIGURATION, image.owner, image.configuration];
        let alone = [seed, IMAGE, number as u64];
        let blocks =
            (Random::of(&base).log_normal(BLOCKS.0, BLOCKS.1) * scale).clamp(30.0, SPAN as f64 / 2.0);
        let stripes = whole(blocks / STRIPE.0).max(4);
        let mut keyed = Vec::new();
        for stripe in 0..stripes {
            let of = |name: &[u64]| Random::of(&[name, &[stripe, 77]].concat());
            let random = if of(&alone).chance(IMAGE_SHARE) {
                of(&[&alone[..], &[1]].concat())
            } else if of(&configuration).chance(CONFIGURATION_SHARE) {
                of(&[&configuration[..], &[1]].concat())
            } else if of(&family).chance(FAMILY_SHARE) {
                of(&[&family[..], &[1]].concat())
            } else {
                of(&[&base[..], &[1]].concat())
            };
            read_stripe(random, stripe as f64, CROSS[usize::from(!image.public)], &mut keyed);
        }
        keyed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let reads: Vec<_> = keyed.into_iter().map(|(_, read)| read).collect();
        let segments: Vec<_> =
            reads.chunks(reads.len().div_ceil(SEGMENTS).max(1)).map(<[Read]>::to_vec).collect();
        let mut random = Random::of(&alone);
        let mut orders = vec![(0..segments.len()).collect::<Vec<_>>()];
        if random.chance(SEVERAL_ORDERS) {
            for _ in 0..2 {
                let mut order = orders[0].clone();
                let end = order.len().saturating_sub(OPTIONAL);
                random.shuffle(order.get_mut(FIXED..end).unwrap_or_default());
                orders.push(order);
            }
        }
        let short = if random.chance(TWO_CATEGORIES) { 0.3 + 0.4 * random.unit() } else { 0.0 };
        let usual = segments.len().saturating_sub(OPTIONAL);
        let counts = counts(segments.iter().flatten());
        let norm = counts.iter().map(|count| (*count as f64).powi(2)).sum::<f64>().sqrt();
        let distinct =
            [counts.len() as u64, self::counts(segments.iter().take(usual).flatten()).len() as u64];
        Self { segments, orders, short, norm, blocks: distinct }
    }

    /// Distinct blocks of a boot, on average.
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub(super) fn blocks(&self) -> f64 {
        self.blocks[0] as f64 * (1.0 - self.short) + self.blocks[1] as f64 * self.short
    }
}

/// The reads of a stripe, with their places in a boot.
fn read_stripe(mut random: Random, place: f64, cross: f64, keyed: &mut Vec<(f64, Read)>) {
    let len = random.tries(STRIPE.0, STRIPE.1);
    let start = random.below(SPAN - STRIPE.1);
    // The last block has no neighbour that is read as well.
    let cross = cross * STRIPE.0 / (STRIPE.0 - 1.0);
    let lengths = LENGTHS.map(|(_, weight)| weight);
    for block in start..start + len {
        for again in 0..random.tries(READS.0, READS.1) {
            let (bytes, _) = LENGTHS[random.weighted(&lengths)];
            let offset = if block + 1 < start + len && random.chance(cross) {
                (block + 1) * BLOCK - (bytes / 2).next_multiple_of(4096).min(bytes - 512)
            } else {
                block * BLOCK + random.below((BLOCK - bytes) / 4096 + 1) * 4096
            };
            // Many blocks are read again later.
            let later = if again > 0 && random.chance(0.5) { random.exponential(12.0) } else { 0.0 };
            keyed.push((place + later, Read { offset, len: bytes }));
        }
    }
}

/// The number of reads of each block.
fn counts<'a>(reads: impl Iterator<Item = &'a Read>) -> Vec<u64> {
    let mut blocks: Vec<_> =
        reads.flat_map(|read| read.offset / BLOCK..=(read.offset + read.len - 1) / BLOCK).collect();
    blocks.sort_unstable();
    blocks.chunk_by(|a, b| a == b).map(|same| same.len() as u64).collect()
}

/// The boot of one disk.
pub(super) fn boot(settings: &SynthesisSettings, image: &Image, template: &Template, disk: &Disk) -> Trace {
    let mut random = Random::of(&[settings.seed, TRACE, disk.image as u64, disk.number]);
    let kind = usize::from(!image.public);
    let (medians, deviation, least, most) = GRACE_S;
    let grace_us = whole(random.log_normal(medians[kind], deviation).clamp(least, most) * US);
    let mut reads = in_order(settings, template, &mut random);
    vary(template, &mut reads, &mut random);
    lose(settings, &mut reads, &mut random);
    reads = merge(&reads, &mut random);
    if random.chance(UNLIKE[kind]) {
        read_more(template, &mut reads, &mut random);
    }
    let outlier = random.chance(settings.outliers);
    let scans = random.chance(0.5);
    if outlier && scans {
        scan(&mut reads, &mut random, (disk.size / BLOCK).saturating_sub(1));
    } else if outlier {
        let part = if random.chance(0.5) { 0.01 } else { 0.6 };
        reads.truncate(random.index((whole_len(reads.len(), part)).max(1)) + 3);
    }
    let mut records = timed(&reads, disk, grace_us, &mut random);
    write(image, disk, &mut records, &mut random);
    Trace { creation: creation(settings, image, disk), records, ..Trace::default() }
}

#[expect(clippy::cast_precision_loss, reason = "a part of a count")]
fn whole_len(len: usize, part: f64) -> usize {
    to_usize(whole(len as f64 * part))
}

/// The template's reads as they come this time; `true` ends a segment.
#[expect(clippy::cast_precision_loss, reason = "a place")]
fn in_order(settings: &SynthesisSettings, template: &Template, random: &mut Random) -> Vec<(Read, bool)> {
    let other = template.orders.len() > 1 && random.chance(settings.reordering);
    let order = if other { 1 + random.index(template.orders.len() - 1) } else { 0 };
    let left_out = if random.chance(template.short) { OPTIONAL } else { 0 };
    let last = template.segments.len() - left_out.min(template.segments.len());
    let mut keyed = Vec::new();
    for segment in template.orders.get(order).into_iter().flatten().filter(|segment| **segment < last) {
        let reads = template.segments.get(*segment).map(Vec::as_slice).unwrap_or_default();
        for (at, read) in reads.iter().enumerate() {
            // Some are overtaken by the next few.
            let behind = if random.chance(settings.reordering / 3.0) { random.unit() * 8.0 } else { 0.0 };
            keyed.push((keyed.len() as f64 + behind, *read, at + 1 == reads.len()));
        }
    }
    keyed.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    keyed.into_iter().map(|(_, read, ends)| (read, ends)).collect()
}

/// Leaves some blocks out, and reads some others: no two boots read exactly the same.
#[expect(clippy::cast_precision_loss, reason = "a part of a count")]
fn vary(template: &Template, reads: &mut Vec<(Read, bool)>, random: &mut Random) {
    let out = random.exponential(VARIED).min(0.2);
    let name = random.next();
    reads.retain(|(read, _)| !Random::of(&[name, read.offset / BLOCK]).chance(out));
    let more = whole(template.blocks[0] as f64 * random.exponential(VARIED).min(0.2));
    for _ in 0..more {
        let offset = random.below(SPAN) * BLOCK + random.below(BLOCK / 4096 - 4) * 4096;
        let at = random.index(reads.len() + 1);
        reads.insert(at, (Read { offset, len: 4096 << random.below(3) }, false));
    }
}

/// Loses requests: in most boots a few here and there, in some a burst as well.
fn lose(settings: &SynthesisSettings, reads: &mut Vec<(Read, bool)>, random: &mut Random) {
    let loss = settings.loss.clamp(0.0, 1.0);
    if loss <= 0.0 {
        return;
    }
    if random.chance(0.2) {
        let len = whole_len(reads.len(), (random.unit() * 5.0 * loss).min(0.9));
        let start = random.index(reads.len().saturating_sub(len) + 1);
        reads.drain(start..start + len);
    }
    reads.retain(|_| !random.chance(loss / 2.0));
}

/// Merges reads that touch, and some that almost do not: as the kernel's queue does.
fn merge(reads: &[(Read, bool)], random: &mut Random) -> Vec<(Read, bool)> {
    let mut merged: Vec<(Read, bool)> = Vec::with_capacity(reads.len() + 16);
    for (read, ends) in reads {
        if let Some((last, last_ends)) = merged.last_mut() {
            let touches = last.offset + last.len == read.offset && read.offset % BLOCK != 0;
            if touches && last.len + read.len <= 512 << 10 && random.chance(0.5) {
                last.len += read.len;
                *last_ends |= *ends;
                continue;
            }
        }
        merged.push((*read, *ends));
    }
    merged
}

/// Adds reads of a few blocks that no other boot reads that often: a log that is looked through, a database that
/// recovers.
fn read_more(template: &Template, reads: &mut Vec<(Read, bool)>, random: &mut Random) {
    let at = reads.len() - reads.len() / 4;
    let mut more = Vec::new();
    for _ in 0..3 {
        let block = random.below(SPAN);
        for _ in 0..whole(template.norm * 0.5) {
            let offset = block * BLOCK + random.below(BLOCK / 4096 - 4) * 4096;
            more.push((Read { offset, len: 16 << 10 }, false));
        }
    }
    reads.splice(at..at, more);
}

/// Reads all of a part of the disk: three times as many blocks as a boot has.
fn scan(reads: &mut Vec<(Read, bool)>, random: &mut Random, blocks: u64) {
    let len = 2 * counts(reads.iter().map(|(read, _)| read)).len() as u64;
    let start = random.below(blocks.saturating_sub(len) + 1);
    for half in 2 * start..2 * (start + len).min(blocks) {
        reads.push((Read { offset: half * (BLOCK / 2), len: BLOCK / 2 }, false));
    }
}

/// The requests with their times; before all others the partition table is read, and its copy at the disk's end.
fn timed(reads: &[(Read, bool)], disk: &Disk, grace_us: u64, random: &mut Random) -> Vec<Record> {
    let speed = random.log_normal(1.0, 0.3);
    let tail = (Read { offset: disk.size.saturating_sub(TAIL), len: TAIL }, false);
    let start = [(Read { offset: 0, len: 512 }, false), (Read { offset: 512, len: 3584 }, false), tail];
    let mut t_us = grace_us;
    let mut records = Vec::with_capacity(2 * reads.len());
    for (read, ends) in start.iter().chain(reads) {
        let range = ByteRange::between(read.offset, read.offset + read.len);
        records.push(Record { t_us, op: Op::Read, range, service_us: None });
        let gap = random.log_normal(GAP_US.0, GAP_US.1) * speed;
        let pause = if *ends { random.exponential(PAUSE_US) * speed } else { 0.0 };
        t_us += whole(gap.min(2.0 * US) + pause.min(10.0 * US));
    }
    records
}

/// Adds writes in between and after, up to three minutes, in the number that leaves the share of reads of this boot.
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn write(image: &Image, disk: &Disk, records: &mut Vec<Record>, random: &mut Random) {
    const UNTIL_US: u64 = 170_000_000;
    let (mean, far) = READ_RATIO[usize::from(!image.public)];
    let ratio = mean + far * (random.unit() + random.unit() - 1.0);
    let first = records.first().map_or(0, |record| record.t_us);
    let early = records.iter().filter(|record| record.t_us - first <= RATIO_US).count();
    let writes = whole(early as f64 * (1.0 - ratio) / ratio);
    let free = disk.size / BLOCK;
    for _ in 0..writes {
        let t_us = first + 1 + random.below(UNTIL_US);
        // Journals, logs, and new files.
        let block = if random.chance(0.7) { free / 3 + random.below(16) } else { random.below(free - 1) };
        let offset = block * BLOCK + random.below(BLOCK / 4096 - 8) * 4096;
        let range = ByteRange::between(offset, offset + (4096 << random.below(4)));
        records.push(Record { t_us, op: Op::Write, range, service_us: None });
    }
    records.sort_by_key(|record| record.t_us);
}

fn creation(settings: &SynthesisSettings, image: &Image, disk: &Disk) -> Creation {
    let mut random = Random::of(&[settings.seed, TRACE, disk.image as u64, disk.number, 1]);
    let (family, _) = FAMILIES[image.family];
    let level = ["PL0", "PL1", "PL2"][random.weighted(&[0.3, 0.6, 0.1])];
    let label = |key: &str, value: String| (key.to_owned(), value);
    let meta_info = format!("base={family};configuration={}", image.configuration);
    Creation {
        // Unlike any other volume, and like the published ones a number.
        volume: format!("{}", 10_000_000 + disk.image as u64 * 1_000_000 + disk.number),
        image: image.id.clone(),
        family: family.to_owned(),
        user: format!("{}", 100_000 + disk.user),
        cluster: format!("{}", disk.cluster),
        host: String::new(),
        options: format!("image_size={};level={level}", image.bytes),
        size: disk.size,
        created_us: disk.created_s * 1_000_000,
        labels: [
            label(IMAGE_TYPE, if image.public { "1" } else { "2" }.to_owned()),
            label(META_INFO, meta_info),
        ]
        .into(),
    }
}
