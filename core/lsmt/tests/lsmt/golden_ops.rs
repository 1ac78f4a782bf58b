//! The recipes of the golden set's layers: their operations, and what those make of a disk.

use crate::plain::PlainDisk;
use headstart_testkit::golden_set::GoldenSet;
use std::fs;

/// The operations of a file of the set, in order.
pub(crate) fn ops_of(set: &GoldenSet, file: &str) -> Vec<Op> {
    let text = fs::read_to_string(set.path(file)).unwrap();
    text.lines().map(|line| Op::parse(line).unwrap_or_else(|| panic!("{file}: {line}"))).collect()
}

/// One write or discard, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Kind and seed of the written bytes; `None` is a discard.
    pub(crate) fill: Option<(char, u64)>,
}

impl Op {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let (offset, len) = (words.get(1)?.parse().ok()?, words.get(2)?.parse().ok()?);
        let fill = match words[0] {
            "W" => Some((words.get(3)?.chars().next()?, words.get(4)?.parse().ok()?)),
            "D" => None,
            _ => return None,
        };
        Some(Self { offset, len, fill })
    }

    /// The written bytes; the bytes of a part of them are the bytes of that place on the disk.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let (kind, seed) = self.fill?;
        Some((offset / 8..(offset + len) / 8).flat_map(|word| fill(kind, seed, word).to_le_bytes()).collect())
    }
}

/// The set's rule: word number `k` of a disk. Kind `M` goes by blocks of 4 KiB: R, T, Z, T, R, ...
fn fill(kind: char, seed: u64, k: u64) -> u64 {
    match kind {
        'R' => mix64(seed, k),
        'T' => mix64(seed, k >> 4) & 0x0f0f_0f0f_0f0f_0f0f | 0x6060_6060_6060_6060,
        'Z' => 0,
        'M' => fill(['R', 'T', 'Z', 'T'][(k / 512 % 4) as usize], seed, k),
        _ => panic!("unknown kind of bytes {kind}"),
    }
}

fn mix64(seed: u64, k: u64) -> u64 {
    let mut z = seed.wrapping_add((k + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The content of a disk after `ops`.
pub(crate) fn model(size: u64, ops: &[Op]) -> PlainDisk {
    let mut disk = PlainDisk { size, ..PlainDisk::default() };
    for op in ops {
        match op.bytes(op.offset, op.len) {
            Some(bytes) => disk.write(op.offset, &bytes),
            None => disk.discard(op.offset, op.len),
        }
    }
    disk
}

/// The remaining part of one operation, in bytes of the disk.
#[derive(Clone, Copy)]
pub(crate) struct LiveRun {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) op: Op,
}

/// The runs that a writable layer's index holds after `ops`, ascending: each operation is a record (a discard
/// of more than 16383 sectors several), and later ones cut earlier ones.
pub(crate) fn live_runs(ops: &[Op]) -> Vec<LiveRun> {
    let mut live: Vec<LiveRun> = Vec::new();
    for op in ops {
        let longest = if op.fill.is_some() { 8192 * 512 } else { 16383 * 512 };
        for start in (op.offset..op.offset + op.len).step_by(longest) {
            let new = LiveRun { start, end: (start + longest as u64).min(op.offset + op.len), op: *op };
            let cut = live.iter().flat_map(|old| {
                let left = LiveRun { end: old.end.min(new.start), ..*old };
                let right = LiveRun { start: old.start.max(new.end), ..*old };
                [left, right].into_iter().filter(|run| run.start < run.end)
            });
            live = cut.chain([new]).collect();
        }
    }
    live.sort_by_key(|run| run.start);
    live
}
