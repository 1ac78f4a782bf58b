//! The cache against plain models, with crashes; tests that need other processes are in `tests/processes.rs`.

#![allow(clippy::cast_possible_truncation, clippy::panic, reason = "small numbers, and a failure is one")]

mod basic;
mod broken;
mod crashes;
mod earlier;
mod model;
mod pages;
mod pressure;
mod rot;
mod sharing;
mod whole;

use crate::sidecar::BootId;
use crate::{BlobSpec, Cache, CacheSettings, CachedBlob};
use headstart_block::random::Random;
use headstart_block::{ByteRange, ErrorKind, ReadAt};
use std::path::Path;
use std::sync::Arc;

pub(super) const UNIT: u64 = 16384;
pub(super) const BOOT: BootId = [7; 16];

/// A blob with its tree.
pub(super) struct Sample {
    pub(super) bytes: Vec<u8>,
    pub(super) outboard: Vec<u8>,
    pub(super) spec: BlobSpec,
}

impl Sample {
    /// A sample of bytes that are nowhere zero and nowhere the same, so that any mix-up shows.
    pub(super) fn new(len: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nowhere_zero = move || (random.bits() | 0x0101_0101_0101_0101).to_le_bytes();
        let bytes: Vec<u8> = std::iter::repeat_with(nowhere_zero).flatten().take(len).collect();
        let (spec, outboard) = BlobSpec::of(&bytes).unwrap();
        Self { bytes, outboard, spec }
    }

    /// The same blob without its tree, from a store of that name.
    pub(super) fn plain(&self, origin: &str) -> BlobSpec {
        BlobSpec { tree: None, origin: Some(origin.to_owned()), ..self.spec.clone() }
    }

    pub(super) fn part(&self, range: ByteRange) -> &[u8] {
        &self.bytes[range.offset() as usize..range.end() as usize]
    }

    /// Inserts the tree pages that `range` needs, then its units.
    pub(super) fn fill(&self, blob: &CachedBlob, range: ByteRange) {
        let mut pages = Vec::new();
        blob.tree_missing(range, &mut |run| pages.push(run));
        for run in pages {
            let bytes = &self.outboard[run.offset() as usize..run.end() as usize];
            blob.tree().unwrap().insert(run.offset(), bytes).unwrap();
        }
        for run in missing(blob, range) {
            blob.insert(run.offset(), self.part(run)).unwrap();
        }
    }

    /// Reads a range; the bytes must be right, or absent.
    #[track_caller]
    pub(super) fn reads(&self, blob: &CachedBlob, range: ByteRange) -> bool {
        let mut buf = vec![0; range.len() as usize];
        match blob.read_at(&mut buf, range.offset()) {
            Ok(()) => {
                assert!(buf == self.part(range), "wrong bytes in {range}");
                true
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Absent, "{e}");
                false
            }
        }
    }

    /// The units that can be read.
    #[track_caller]
    pub(super) fn units(&self, blob: &CachedBlob) -> Vec<bool> {
        let all = ByteRange::between(0, self.bytes.len() as u64);
        all.parts(UNIT).map(|unit| self.reads(blob, unit)).collect()
    }
}

pub(super) fn missing(blob: &CachedBlob, range: ByteRange) -> Vec<ByteRange> {
    let mut runs = Vec::new();
    blob.missing(range, &mut |run| runs.push(run));
    runs
}

pub(super) fn units(from: u64, to: u64) -> ByteRange {
    ByteRange::between(from * UNIT, to * UNIT)
}

pub(super) fn open(dir: &Path, size_limit: Option<u64>) -> Arc<Cache> {
    open_in(dir, size_limit, BOOT)
}

pub(super) fn open_in(dir: &Path, size_limit: Option<u64>, boot: BootId) -> Arc<Cache> {
    // Most tests spoil files behind the cache's back: a check would notice at any moment.
    let settings = CacheSettings { size_limit, check_whole: false, ..CacheSettings::default() };
    Cache::open_in_boot(dir, settings, boot).unwrap()
}
