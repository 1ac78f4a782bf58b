//! Reading a stack of uncompressed layers against `pread` of one flat file of the same bytes.
//!
//! A disk of 1 GiB is stored in a flat file, and in stacks of 1, 10 and 50 layers with 4,500 segments in all, in two
//! layouts. `image`: the lowest layer has half of the disk and of the segments; each layer above has its share
//! of the other half, as new files lie where there was room, and a quarter of its segments are blocks of 4 to
//! 32 KiB that it changed anywhere below. `scattered`: the lowest layer covers the whole disk, and half of all
//! segments, of 4 KiB to 1 MiB, lie anywhere over it, so that reading in sequence leaps from file to file
//! (where the same pieces by bare `pread` reach 0.85 to 0.91 of one `pread`: the kernel's part, not ours).
//! Between the runs of a layer is a hole of 4 KiB and nowhere else, so that nothing is won by not reading.
//!
//! Everything is in the page cache, and every file was written by a single call, so that the kernel keeps all
//! in pages of the same size (in small ones, a read of 4 KiB takes a tenth longer). Both sides take turns at
//! small batches of the same reads, so that other load on the machine meets both; the result is the
//! median of the batches' ratios.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::disallowed_methods, reason = "measures time")]
#![expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths up to LONGEST")]

use headstart_block::{BlockDevice, ByteRange, FileSource};
use headstart_lsmt::{Layer, LayerMeta, LayerWriter, Stack};
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCK: usize = 4096;
const DISK: u64 = 1 << 30;
const BLOCKS: u64 = DISK / BLOCK as u64;
/// Segments of a stack, all layers together.
const SEGMENTS: u64 = 4_500;
/// Longest run of an upper layer, in blocks: 1 MiB.
const LONGEST: f64 = 256.0;
const TARGET: f64 = 0.9;

/// Blocks of the disk: start and end.
type Range = (u64, u64);

/// The way in which the layers share the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Image,
    Scattered,
}

/// The reads of a case: bytes at once, reads in a batch, batches.
struct Case {
    name: &'static str,
    size: usize,
    reads: usize,
    batches: usize,
    random: bool,
}

const CASES: [Case; 2] = [
    Case { name: "random 4 KiB", size: BLOCK, reads: 1_024, batches: 600, random: true },
    Case { name: "sequential 1 MiB", size: 1 << 20, reads: 8, batches: 512, random: false },
];

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let mut random = Random(42);
    let gaps = gaps(&mut random);
    let flat_path = dir.path().join("flat");
    write_flat(&flat_path, &gaps)?;
    let flat = File::open(&flat_path)?;
    println!(
        "layout     layers  case              unit     pread     ours  ratio  target  ok   merged segments"
    );
    for (layout, layers) in
        [Layout::Image, Layout::Scattered].into_iter().flat_map(|l| [1, 10, 50].map(|n| (l, n)))
    {
        if layout == Layout::Scattered && layers == 1 {
            continue;
        }
        let stack = build(dir.path(), &flat, layout, layers, &gaps, &mut random)?;
        same_bytes(&flat, &stack)?;
        for case in &CASES {
            compare(&flat, &stack, layout, case, &mut random)?;
        }
    }
    Ok(())
}

/// The blocks at which layers may have holes, ascending, none next to another.
fn gaps(random: &mut Random) -> Vec<u64> {
    let stride = BLOCKS / SEGMENTS;
    (0..SEGMENTS).map(|number| number * stride + random.below(stride - 1)).collect()
}

/// Writes the flat file: random words, with zeros in the gaps.
fn write_flat(path: &Path, gaps: &[u64]) -> Outcome<()> {
    let mut bytes = Vec::with_capacity(usize::try_from(DISK)?);
    let mut random = Random(1);
    let mut gaps = gaps.iter().peekable();
    for block in 0..BLOCKS {
        let gap = gaps.next_if_eq(&&block).is_some();
        let words = std::iter::repeat_with(|| if gap { 0 } else { random.next() });
        bytes.extend(words.take(BLOCK / 8).flat_map(u64::to_le_bytes));
    }
    Ok(std::fs::write(path, bytes)?)
}

/// Writes the layers of a stack and opens them as one disk; the files stay open when they are deleted.
fn build(
    dir: &Path,
    flat: &File,
    layout: Layout,
    layers: u64,
    gaps: &[u64],
    random: &mut Random,
) -> Outcome<Stack> {
    let mut opened = Vec::new();
    for number in 0..layers {
        let runs = match layout {
            Layout::Image => image_layer(layers, number, gaps, random),
            Layout::Scattered if number == 0 => runs_between(0, BLOCKS, gaps, |gap| gap % 2 == 0),
            Layout::Scattered => scattered(BLOCKS, SEGMENTS / 2 / (layers - 1), random, |random| {
                LONGEST.powf(random.unit()) as u64
            }),
        };
        let path = dir.join("layer");
        write_layer(&path, flat, &runs)?;
        opened.push(Layer::open(Arc::new(FileSource::open(&path)?))?);
        std::fs::remove_file(&path)?;
    }
    Ok(Stack::new(opened)?)
}

/// A layer of the layout `image`: its own half of the disk, and the blocks that it changed below.
fn image_layer(layers: u64, number: u64, gaps: &[u64], random: &mut Random) -> Vec<Range> {
    if layers == 1 {
        return runs_between(0, BLOCKS, gaps, |_| true);
    }
    let (half, upper) = (BLOCKS / 2, layers - 1);
    if number == 0 {
        return runs_between(0, half, gaps, |_| true);
    }
    let (start, end) = (half + (number - 1) * half / upper, half + number * half / upper);
    let changed = SEGMENTS / 2 / upper / 4;
    let mut runs = scattered(start, changed, random, |random| 1 + random.below(8));
    runs.extend(runs_between(start, end, gaps, |gap| gap % 4 != 0));
    runs
}

/// The runs of `[start, end)` between those gaps whose numbers are `chosen`.
fn runs_between(start: u64, end: u64, gaps: &[u64], chosen: impl Fn(usize) -> bool) -> Vec<Range> {
    let inside =
        gaps.iter().enumerate().filter(|(number, gap)| chosen(*number) && (start..end).contains(*gap));
    let inside: Vec<u64> = inside.map(|(_, gap)| *gap).collect();
    let starts = [start].into_iter().chain(inside.iter().map(|gap| gap + 1));
    starts.zip(inside.iter().copied().chain([end])).filter(|(start, end)| start < end).collect()
}

/// `count` runs anywhere below block `end`, of lengths that `len` gives.
fn scattered(end: u64, count: u64, random: &mut Random, len: impl Fn(&mut Random) -> u64) -> Vec<Range> {
    let stride = end / count;
    let run = |number| {
        let len = len(random).min(stride - 1);
        let start = number * stride + random.below(stride - len);
        (start, start + len)
    };
    (0..count).map(run).collect()
}

/// Writes a layer that holds `runs` of the flat file.
fn write_layer(path: &Path, flat: &File, runs: &[Range]) -> Outcome<()> {
    let mut writer = LayerWriter::new(Vec::new(), LayerMeta { virtual_size: DISK, ..LayerMeta::default() })?;
    let mut buf = vec![0; 1 << 20];
    for &(start, end) in runs {
        for part in ByteRange::between(start * BLOCK as u64, end * BLOCK as u64).parts(1 << 20) {
            let bytes = &mut buf[..usize::try_from(part.len())?];
            flat.read_exact_at(bytes, part.offset())?;
            writer.data(part.offset(), bytes)?;
        }
    }
    Ok(std::fs::write(path, writer.finish()?.0)?)
}

/// Checks the stack against the flat file, and so brings both into the page cache.
fn same_bytes(flat: &File, stack: &Stack) -> Outcome<()> {
    let [mut theirs, mut ours] = [vec![0; 1 << 20], vec![0; 1 << 20]];
    for part in ByteRange::between(0, DISK).parts(1 << 20) {
        flat.read_exact_at(&mut theirs, part.offset())?;
        stack.read_at(&mut ours, part.offset())?;
        assert!(theirs == ours, "{part} differs");
    }
    Ok(())
}

fn compare(flat: &File, stack: &Stack, layout: Layout, case: &Case, random: &mut Random) -> Outcome<()> {
    let mut buf = vec![0; case.size];
    let mut offsets = vec![0; case.reads];
    let mut next = 0;
    let (mut pread, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for batch in 0..case.batches {
        for offset in &mut offsets {
            let number = if case.random { random.below(DISK / case.size as u64) } else { next };
            next = (next + 1) % (DISK / case.size as u64);
            *offset = number * case.size as u64;
        }
        let mut measured = [0.0; 2];
        // The side that comes first finds the processor's caches colder.
        for side in [batch % 2, 1 - batch % 2] {
            let begun = Instant::now();
            for &offset in &offsets {
                if side == 0 {
                    flat.read_exact_at(&mut buf, offset)?;
                } else {
                    stack.read_at(&mut buf, offset)?;
                }
            }
            measured[side] = begun.elapsed().as_secs_f64() / case.reads as f64;
        }
        pread.push(measured[0]);
        ours.push(measured[1]);
        ratios.push(measured[0] / measured[1]);
    }
    let (pread, ours, ratio) = (median(&mut pread), median(&mut ours), median(&mut ratios));
    let (unit, scale) =
        if case.random { ("k/s", 1e-3) } else { ("MiB/s", case.size as f64 / (1 << 20) as f64) };
    let ok = if ratio >= TARGET { "yes" } else { "NO" };
    let name = format!("{layout:?}").to_lowercase();
    println!(
        "{name:9}  {:6}  {:16}  {unit:5} {:9.0} {:8.0} {ratio:6.2} {TARGET:7.2}  {ok:3} {:17}",
        stack.layers(),
        case.name,
        scale / pread,
        scale / ours,
        stack.index().len(),
    );
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `SplitMix64`: the same disk and the same reads in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`, which is small enough for the bias not to matter.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number from 0 up to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
