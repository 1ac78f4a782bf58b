//! Blobs for tests.

use headstart_block::random::Random;
use headstart_cache::BlobSpec;

/// A blob and its hash tree.
pub struct SampleBlob {
    /// Its content.
    pub bytes: Vec<u8>,
    /// The outboard of its tree.
    pub outboard: Vec<u8>,
    /// Its description.
    pub spec: BlobSpec,
}

/// A blob of `len` bytes, which differ for each `seed`.
pub fn sample(len: usize, seed: u64) -> SampleBlob {
    let mut random = Random::new(seed);
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten().take(len).collect();
    let (spec, outboard) = BlobSpec::of(&bytes).unwrap();
    SampleBlob { bytes, outboard, spec }
}
