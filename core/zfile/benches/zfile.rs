//! Speed of ZFile reading and packing beside the bare codecs, `liblz4` and `libzstd`.
//!
//! ```text
//! cargo bench -p headstart-zfile                        all, about a minute
//! cargo bench -p headstart-zfile -- lz4 random          only cases whose name has all these words
//! ```
//!
//! # What is compared
//! The content is 256 MiB of files from `/usr`. Ours has frame checksums on; the peer is the C codec alone,
//! without any checksum, on the same compressed frames:
//!
//! * `sequential`: reads of 1 MiB, one after the other; the peer decompresses the same frames to the
//!   same places.
//! * `random`: reads of 4 KiB at multiples of 4 KiB, and `unaligned` of 512 bytes; the peer decompresses the
//!   frames that the range touches, whole, and copies nothing.
//! * `file`: the same from a file in the page cache; the peer does one `pread` for each read, then as above.
//! * `pack`: on one thread; the peer compresses the same frames with a reused context.
//! * `pack 2 threads`: the peer is our own packing on one thread.
//!
//! # How
//! Machines are noisy, so ours and the peer take turns in batches of some milliseconds with the same work,
//! in changing order, on source bytes that were touched before. A ratio is the median of the ratios of the
//! rounds; the rates shown are those of the medians.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark reads the clock and prints"
)]
#![expect(clippy::cast_precision_loss, reason = "rates are shown with four digits")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a benchmark may panic")]

use headstart_block::{FileSource, ReadAt};
use headstart_zfile::{Codec, ZFileOptions, ZFileReader, ZFileWriter};
use std::hint::black_box;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const CONTENT_SIZE: usize = 256 << 20;
const SEQUENTIAL_READ: usize = 1 << 20;
const RANDOM_READ: usize = 4 << 10;
/// Bytes that one batch packs.
const PACKED: usize = 32 << 20;

fn main() {
    // Cargo passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let content = gather();
    println!(
        "{:<28} {:>10} {:>10} {:>7} {:>7}  ok   (MB/s; content {} MiB)",
        "zfile",
        "peer",
        "ours",
        "ratio",
        "target",
        content.len() >> 20
    );
    for codec in [Codec::Lz4, Codec::Zstd] {
        for frame_size in [4, 16, 32, 64u32] {
            let case = Case { codec, frame_size: frame_size << 10, words: &words, content: &content };
            case.run();
        }
    }
}

/// One codec and frame size.
struct Case<'a> {
    codec: Codec,
    frame_size: u32,
    words: &'a [String],
    content: &'a [u8],
}

impl Case<'_> {
    fn run(&self) {
        let kinds = ["sequential", "random", "unaligned", "file sequential", "file random"];
        if kinds.iter().any(|kind| self.wants(kind)) {
            let blob = self.pack(self.content, 2, Vec::new());
            self.run_reads(&blob);
        }
        if self.wants("pack") {
            self.run_pack();
        }
        if self.wants("pack 2 threads") {
            self.run_pack_threads();
        }
    }

    fn name(&self, kind: &str) -> String {
        format!("{} {}k {kind}", self.codec, self.frame_size >> 10)
    }

    fn wants(&self, kind: &str) -> bool {
        let name = self.name(kind);
        self.words.iter().all(|word| name.contains(word.as_str()))
    }

    /// The form of one case: measures where it is wanted, prints a line.
    fn measure(&self, kind: &str, target: f64, rounds: usize, mut batch: impl FnMut(usize, Side) -> usize) {
        if !self.wants(kind) {
            return;
        }
        let mut times = [Vec::new(), Vec::new()];
        let mut ratios = Vec::new();
        let mut bytes = 0;
        for round in 0..rounds + 1 {
            let mut took = [Duration::ZERO; 2];
            let order = [[Side::Peer, Side::Ours], [Side::Ours, Side::Peer]][round % 2];
            for side in order {
                batch(round, Side::Touch);
                let start = Instant::now();
                bytes = batch(round, side);
                took[side as usize] = start.elapsed();
            }
            // The first round warms up.
            if round > 0 {
                times[0].push(took[0].as_secs_f64());
                times[1].push(took[1].as_secs_f64());
                ratios.push(took[0].as_secs_f64() / took[1].as_secs_f64());
            }
        }
        let rate = |times: &mut Vec<f64>| bytes as f64 / median(times) / 1e6;
        let (peer, ours) = (rate(&mut times[0]), rate(&mut times[1]));
        let ratio = median(&mut ratios);
        let ok = if ratio >= target { "yes" } else { "NO" };
        println!("{:<28} {peer:>10.1} {ours:>10.1} {ratio:>7.2} {target:>7.2}  {ok}", self.name(kind));
    }

    fn pack(&self, content: &[u8], threads: usize, mut out: Vec<u8>) -> Vec<u8> {
        out.clear();
        let options = ZFileOptions {
            codec: self.codec,
            frame_size: self.frame_size,
            threads,
            ..ZFileOptions::default()
        };
        let mut writer = ZFileWriter::new(out, &options).unwrap();
        for piece in content.chunks(1 << 20) {
            writer.write_all(piece).unwrap();
        }
        writer.finish().unwrap().0
    }

    fn run_reads(&self, blob: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blob");
        std::fs::write(&path, blob).unwrap();
        let near = ZFileReader::open(blob).unwrap();
        let far = ZFileReader::open(FileSource::open(&path).unwrap()).unwrap();
        let mut peer = Peer::new(self.codec, self.frame_size, blob, &path);
        let mut buf = vec![0; SEQUENTIAL_READ];

        let size = self.content.len();
        let per_batch = 8;
        let sequential = |round: usize| {
            let start = round * per_batch * SEQUENTIAL_READ % (size - per_batch * SEQUENTIAL_READ);
            (0..per_batch).map(move |i| start + i * SEQUENTIAL_READ)
        };
        let random = |round: usize, unit: usize| {
            let mut dice = Dice(round as u64);
            (0..1000).map(move |_| dice.below((size - RANDOM_READ) / unit) * unit)
        };
        for (kind, from_file) in [("sequential", false), ("file sequential", true)] {
            self.measure(kind, 0.9, 40, |round, side| {
                for start in sequential(round) {
                    let out = &mut buf[..SEQUENTIAL_READ];
                    match side {
                        Side::Touch => peer.touch(start..start + SEQUENTIAL_READ, from_file),
                        Side::Peer => peer.read(start..start + SEQUENTIAL_READ, Some(out), from_file),
                        Side::Ours if from_file => far.read_at(out, start as u64).unwrap(),
                        Side::Ours => near.read_at(out, start as u64).unwrap(),
                    }
                }
                black_box(&buf);
                per_batch * SEQUENTIAL_READ
            });
        }
        for (kind, unit, from_file) in
            [("random", 4096, false), ("unaligned", 512, false), ("file random", 4096, true)]
        {
            self.measure(kind, 0.9, 40, |round, side| {
                for start in random(round, unit) {
                    let out = &mut buf[..RANDOM_READ];
                    match side {
                        Side::Touch => peer.touch(start..start + RANDOM_READ, from_file),
                        Side::Peer => peer.read(start..start + RANDOM_READ, None, from_file),
                        Side::Ours if from_file => far.read_at(out, start as u64).unwrap(),
                        Side::Ours => near.read_at(out, start as u64).unwrap(),
                    }
                    black_box(&buf);
                }
                1000 * RANDOM_READ
            });
        }
    }

    fn run_pack(&self) {
        let mut codec = PeerCodec::new(self.codec);
        let mut out = vec![0; 2 * PACKED];
        let mut blob = Vec::with_capacity(2 * PACKED);
        self.measure("pack", 0.9, self.pack_rounds(), |round, side| {
            let content = self.piece(round);
            match side {
                Side::Touch => touch(content),
                Side::Ours => blob = self.pack(content, 1, std::mem::take(&mut blob)),
                Side::Peer => {
                    let mut used = 0;
                    for frame in content.chunks(self.frame_size as usize) {
                        used += codec.compress(frame, &mut out[used..]);
                    }
                }
            }
            content.len()
        });
    }

    fn run_pack_threads(&self) {
        let mut blob = Vec::with_capacity(2 * PACKED);
        self.measure("pack 2 threads", 1.7, self.pack_rounds(), |round, side| {
            let content = self.piece(round);
            match side {
                Side::Touch => touch(content),
                Side::Peer => blob = self.pack(content, 1, std::mem::take(&mut blob)),
                Side::Ours => blob = self.pack(content, 2, std::mem::take(&mut blob)),
            }
            content.len()
        });
    }

    fn pack_rounds(&self) -> usize {
        if self.codec == Codec::Lz4 { 16 } else { 8 }
    }

    fn piece(&self, round: usize) -> &[u8] {
        let start = round * PACKED % (self.content.len() - PACKED);
        &self.content[start..start + PACKED]
    }
}

/// The side whose turn it is.
#[derive(Clone, Copy)]
enum Side {
    Peer,
    Ours,
    /// Neither side: brings the source into the cache, so that going second is no advantage.
    Touch,
}

/// The codec alone, on the frames of a blob.
struct Peer<'a> {
    codec: PeerCodec,
    frame_size: usize,
    blob: &'a [u8],
    file: std::fs::File,
    /// The offset of each frame; the last entry is the end of the last frame.
    starts: Vec<u32>,
    /// A copy of `starts` for touching only, so that a range's entries are as cold to the peer as ours to us.
    touched: Vec<u32>,
    fetched: Vec<u8>,
    frame: Vec<u8>,
}

impl<'a> Peer<'a> {
    fn new(codec: Codec, frame_size: u32, blob: &'a [u8], path: &Path) -> Self {
        let u64_at =
            |at: usize| usize::try_from(u64::from_le_bytes(blob[at..at + 8].try_into().unwrap())).unwrap();
        let (index_at, count) = (u64_at(blob.len() - 512 + 40), u64_at(blob.len() - 512 + 48));
        let mut starts = vec![512];
        for entry in blob[index_at..index_at + 4 * count].chunks_exact(4) {
            starts.push(starts.last().unwrap() + u32::from_le_bytes(entry.try_into().unwrap()));
        }
        let file = std::fs::File::open(path).unwrap();
        let frame = vec![0; frame_size as usize];
        let frame_size = frame_size as usize;
        let (codec, touched, fetched) = (PeerCodec::new(codec), starts.clone(), vec![0; 4 << 20]);
        Self { codec, frame_size, blob, file, starts, touched, fetched, frame }
    }

    fn frames(&self, range: &Range<usize>) -> Range<usize> {
        range.start / self.frame_size..range.end.div_ceil(self.frame_size)
    }

    /// Brings the compressed bytes of a range into the cache: the blob's own, or the page cache's.
    fn touch(&mut self, range: Range<usize>, from_file: bool) {
        let frames = self.frames(&range);
        let place = self.touched[frames.start] as usize..self.touched[frames.end] as usize;
        if from_file {
            self.file.read_exact_at(&mut self.fetched[..place.len()], place.start as u64).unwrap();
        } else {
            touch(&self.blob[place]);
        }
    }

    /// Decompresses the frames that `range` touches, to `out` if they fill it exactly, otherwise each to the
    /// same place.
    fn read(&mut self, range: Range<usize>, mut out: Option<&mut [u8]>, from_file: bool) {
        let frames = self.frames(&range);
        let (start, end) = (self.starts[frames.start] as usize, self.starts[frames.end] as usize);
        let stored = if from_file {
            let fetched = &mut self.fetched[..end - start];
            self.file.read_exact_at(fetched, start as u64).unwrap();
            &*fetched
        } else {
            &self.blob[start..end]
        };
        for (i, frame) in frames.enumerate() {
            // Without the checksum.
            let packed =
                &stored[self.starts[frame] as usize - start..self.starts[frame + 1] as usize - start - 4];
            let place = match &mut out {
                Some(out) => &mut out[i * self.frame_size..(i + 1) * self.frame_size],
                None => &mut self.frame,
            };
            self.codec.decompress(packed, place);
        }
        black_box(&self.frame);
    }
}

/// The C library's one-shot calls with reused contexts.
struct PeerCodec {
    codec: Codec,
    pack: zstd_safe::CCtx<'static>,
    unpack: zstd_safe::DCtx<'static>,
}

impl PeerCodec {
    fn new(codec: Codec) -> Self {
        Self { codec, pack: zstd_safe::CCtx::create(), unpack: zstd_safe::DCtx::create() }
    }

    fn compress(&mut self, frame: &[u8], out: &mut [u8]) -> usize {
        match self.codec {
            Codec::Zstd => self.pack.compress(out, frame, 3).unwrap(),
            Codec::Lz4 => {
                let (frame_len, out_len) = (frame.len().try_into().unwrap(), out.len().try_into().unwrap());
                // SAFETY: both lengths are those of the slices.
                let len = unsafe {
                    lz4_sys::LZ4_compress_default(
                        frame.as_ptr().cast(),
                        out.as_mut_ptr().cast(),
                        frame_len,
                        out_len,
                    )
                };
                usize::try_from(len).unwrap()
            }
        }
    }

    fn decompress(&mut self, packed: &[u8], out: &mut [u8]) {
        match self.codec {
            Codec::Zstd => {
                self.unpack.decompress(out, packed).unwrap();
            }
            Codec::Lz4 => {
                let (packed_len, out_len) = (packed.len().try_into().unwrap(), out.len().try_into().unwrap());
                // SAFETY: both lengths are those of the slices.
                let len = unsafe {
                    lz4_sys::LZ4_decompress_safe(
                        packed.as_ptr().cast(),
                        out.as_mut_ptr().cast(),
                        packed_len,
                        out_len,
                    )
                };
                assert!(len > 0);
            }
        }
    }
}

/// Reads a byte of each cache line, at any alignment of the first and the last byte.
fn touch(bytes: &[u8]) {
    let last = bytes.last().copied().unwrap_or_default();
    black_box(bytes.iter().step_by(64).fold(last, |sum, byte| sum ^ byte));
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { values[middle - 1].midpoint(values[middle]) } else { values[middle] }
}

/// Reproducible random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ z >> 31) % limit as u64).unwrap()
    }
}

/// Real files, one behind the other, until there is enough; the same files again if the machine has too few.
fn gather() -> Vec<u8> {
    let mut content = Vec::with_capacity(CONTENT_SIZE + (64 << 20));
    for root in ["/usr/bin", "/usr/lib", "/usr/share"] {
        let share = CONTENT_SIZE / 3 + 1;
        let end = content.len() + share;
        add_files(Path::new(root), &mut content, end);
    }
    assert!(content.len() > 1 << 20, "no files in /usr");
    while content.len() < CONTENT_SIZE {
        let again = content.len().min(CONTENT_SIZE - content.len());
        content.extend_from_within(..again);
    }
    content.truncate(CONTENT_SIZE);
    content
}

fn add_files(dir: &Path, content: &mut Vec<u8>, end: usize) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::path);
    for entry in entries {
        if content.len() >= end {
            return;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => add_files(&entry.path(), content, end),
            Ok(kind) if kind.is_file() => {
                let file = std::fs::read(entry.path()).unwrap_or_default();
                content.extend_from_slice(&file[..file.len().min(end - content.len())]);
            }
            _ => {}
        }
    }
}
