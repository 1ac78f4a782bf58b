//! Blobs for tests.

use headstart_block::Digest;
use headstart_cache::BlobSpec;
use headstart_image::hash_tree::TreeBuilder;
use headstart_image::manifest::Tree;

/// A blob and its hash tree.
pub(crate) struct Sample {
    pub(crate) bytes: Vec<u8>,
    pub(crate) outboard: Vec<u8>,
    pub(crate) spec: BlobSpec,
}

/// Of `len` bytes, which are others for each `seed`.
pub(crate) fn sample(len: usize, seed: u64) -> Sample {
    let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    let mut builder = TreeBuilder::new(&std::env::temp_dir());
    builder.update(&bytes).unwrap();
    let mut outboard = Vec::new();
    let root = builder.finish(&mut outboard).unwrap();
    let tree = Tree { root, digest: Digest::of(&outboard), size: outboard.len() as u64 };
    let spec = BlobSpec { digest: Digest::of(&bytes), len: len as u64, tree: Some(tree), origin: None };
    Sample { bytes, outboard, spec }
}
