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
    let mut bytes = vec![0; len.next_multiple_of(8)];
    bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.bits().to_le_bytes());
    bytes.truncate(len);
    let (spec, outboard) = BlobSpec::of(&bytes).unwrap();
    SampleBlob { bytes, outboard, spec }
}
