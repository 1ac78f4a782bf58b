//! Blobs for tests.

use headstart_block::random::Random;
use headstart_cache::BlobSpec;

/// A blob and its hash tree.
pub(crate) struct Sample {
    pub(crate) bytes: Vec<u8>,
    pub(crate) outboard: Vec<u8>,
    pub(crate) spec: BlobSpec,
}

/// A blob of `len` bytes, which differ for each `seed`.
pub(crate) fn sample(len: usize, seed: u64) -> Sample {
    let mut random = Random::new(seed);
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten().take(len).collect();
    let (spec, outboard) = BlobSpec::of(&bytes).unwrap();
    Sample { bytes, outboard, spec }
}
