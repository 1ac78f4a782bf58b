//! Range lookups against bisection of the same array, and the merge of a stack's tables.
//!
//! A lookup is complete: a random range of 8 sectors (4 KiB) to the trimmed segments in it. Both sides trim with
//! the same code ([`Lookup`]); bisection is `partition_point`. They take turns at small batches of the same
//! queries, so that other load on the machine meets both, and the result is the median of the batches'
//! ratios. The queries are more than branch predictors remember, and all results flow into a sum.
//!
//! The layouts: `spread` (runs of 1 to 64 sectors, at random on a 40 GiB disk), `half` (as much hole as data),
//! `dense` (no holes), `wide` (spread over 4 TiB), `front` (runs side by side, then nothing but one at the end
//! of the disk, as partition tables make it), `crowded` (runs side by side in a far corner of a huge disk,
//! where buckets cannot tell them apart: the tree alone). Ranges are placed where runs are. The last two have no target
//! but to be no slower than bisection.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::disallowed_methods, reason = "measures time")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use headstart_lsmt::Segment;
use headstart_lsmt::index::{Index, Lookup, Simd, merge};

/// Sectors of a range: 4 KiB.
const RANGE: u64 = 8;
const QUERIES: usize = 1 << 20;
const BATCH: usize = 1 << 15;
const LAYOUTS: [&str; 6] = ["spread", "half", "dense", "wide", "front", "crowded"];
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "layout   segments  instructions  partition_point M/s  ours M/s  ratio  target  ok   bytes/segment"
    );
    for layout in LAYOUTS {
        for (size_number, size) in SIZES.into_iter().enumerate() {
            compare(layout, size_number, size)?;
        }
    }
    time_merge(50, 90);
    time_merge(50, 4_500);
    time_merge(255, 4_500);
    Ok(())
}

/// Measures every available instruction set against bisection, and prints a line for each.
fn compare(layout: &str, size_number: usize, size: usize) -> Result<(), Box<dyn Error>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ size as u64);
    let (segments, begin, span) = segments(layout, size, &mut random);
    let queries: Vec<u64> = (0..QUERIES).map(|_| begin + random.below(span)).collect();
    let index = Index::new(segments)?;
    let contestants: Vec<Index> = Simd::ALL
        .iter()
        .filter(|simd| simd.is_available())
        .map(|&simd| index.clone().with_simd(simd))
        .collect();
    let (mut bisection_ns, mut ours) = (Vec::new(), vec![(Vec::new(), Vec::new()); contestants.len()]);
    for batch in queries.chunks_exact(BATCH) {
        let bisect = |start| {
            let segments = index.segments();
            let first = segments.partition_point(|segment| segment.end() <= start);
            Lookup::new(segments.get(first..).unwrap_or_default(), start, start + RANGE)
        };
        let (bisection, expected) = time(batch, bisect);
        bisection_ns.push(bisection);
        for (index, (ns, ratios)) in contestants.iter().zip(&mut ours) {
            let (elapsed, sum) = time(batch, |start| index.lookup(start, start + RANGE));
            assert_eq!(sum, expected, "{layout} {size}: {:?} finds something else", index.simd());
            ns.push(elapsed);
            ratios.push(bisection / elapsed);
        }
    }
    let bisection = 1e3 / median(&mut bisection_ns);
    for (index, (ns, ratios)) in contestants.iter().zip(&mut ours) {
        let (rate, ratio) = (1e3 / median(ns), median(ratios));
        let target = target(layout, size_number, index.simd());
        let (simd, ok) = (format!("{:?}", index.simd()), if ratio >= target { "yes" } else { "NO" });
        let extra = (index.memory_bytes() as f64) / size as f64;
        println!(
            "{layout:8} {size:8}  {simd:12} {bisection:20.1} {rate:9.1} {ratio:6.2} {target:7.1}  {ok:3} {extra:14.1}"
        );
    }
    Ok(())
}

/// Nanoseconds of a lookup, and a sum over all that was found.
#[inline(always)]
fn time<'a>(batch: &[u64], lookup: impl Fn(u64) -> Lookup<'a>) -> (f64, u64) {
    let begun = Instant::now();
    let mut sum = 0u64;
    for &start in batch {
        for part in lookup(start) {
            sum = sum.wrapping_add(part.offset() ^ part.len() << 50 ^ part.moffset().rotate_left(7));
        }
    }
    let sum = black_box(sum);
    (begun.elapsed().as_secs_f64() * 1e9 / batch.len() as f64, sum)
}

fn target(layout: &str, size_number: usize, simd: Simd) -> f64 {
    match simd {
        _ if matches!(layout, "front" | "crowded") => 1.0,
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => [2.0, 2.5, 2.5][size_number],
        _ => 1.3,
    }
}

/// Segments, and the first and the number of the sectors in which ranges begin.
fn segments(layout: &str, size: usize, random: &mut Random) -> (Vec<Segment>, u64, u64) {
    let disk: u64 = if layout == "wide" { 4 << 31 } else { 40 << 21 };
    let longest = if layout == "wide" { Segment::MAX_LEN.min(disk / size as u64 / 2) } else { 64 };
    let mut offsets: Vec<u64> = (0..size).map(|_| random.below(disk - longest)).collect();
    offsets.sort_unstable();
    let begin = if layout == "crowded" { 1 << 40 } else { 0 };
    let (mut end, mut moffset) = (begin, 8);
    let mut segments = Vec::with_capacity(size + 1);
    for spread in offsets {
        let len = 1 + random.below(longest);
        let offset = match layout {
            "spread" | "wide" => spread.max(end),
            "half" => end + random.below(65),
            _ => end,
        };
        segments.push(Segment::data(offset, len, moffset));
        (end, moffset) = (offset + len, moffset + len + 1);
    }
    let span = end - begin;
    if layout == "front" {
        segments.push(Segment::data(disk.max(2 * end), 8, moffset));
    }
    (segments, begin, span)
}

/// Prints the time that the merge of `layers` tables of `each` segments takes.
fn time_merge(layers: usize, each: usize) {
    let mut random = Random(7);
    let tables: Vec<Vec<Segment>> = (0..layers).map(|_| segments("spread", each, &mut random).0).collect();
    let views: Vec<&[Segment]> = tables.iter().map(Vec::as_slice).collect();
    let mut all_ms: Vec<f64> = (0..9)
        .map(|_| {
            let begun = Instant::now();
            black_box(merge(black_box(&views)));
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    let ms = median(&mut all_ms);
    let verdict = if layers * each > 4_500 {
        "no target"
    } else if ms < 20.0 {
        "target 20 ms: ok"
    } else {
        "target 20 ms: NO"
    };
    println!("merge of {layers} layers with {} segments in all: {ms:.3} ms ({verdict})", layers * each);
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A xorshift generator: the same layouts and queries in every run.
struct Random(u64);

impl Random {
    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
