//! Blobs for tests.

use headstart_block::random::Random;
use headstart_cache::BlobSpec;

/// A blob for tests, with its hash tree.
pub struct SampleBlob {
    /// The bytes of the blob.
    pub bytes: Vec<u8>,
    /// The bytes of the blob's hash tree (the outboard).
    pub outboard: Vec<u8>,
    /// The description of the blob: digest, length and hash tree.
    pub spec: BlobSpec,
}

/// Creates a blob of `len` pseudo-random bytes; the same `seed` gives the same bytes.
pub fn sample(len: usize, seed: u64) -> SampleBlob {
    let mut random = Random::new(seed);
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten().take(len).collect();
    let (spec, outboard) = BlobSpec::of(&bytes).unwrap();
    SampleBlob { bytes, outboard, spec }
}
