//! The helpers of tests of several modules: data, gzip streams, the golden images.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The folder of the golden images; `HEADSTART_SHARED` names another place for the folder of all shared data. If there
/// is none, says that a test is skipped.
pub(crate) fn golden() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("HEADSTART_SHARED").map_or(beside, PathBuf::from);
    let dir = shared.join("formats/golden-containers");
    if !dir.is_dir() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no golden images at {}", dir.display());
    }
    dir.is_dir().then_some(dir)
}

/// Numbers that look random, from a seed.
pub(crate) fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Data of about `len` bytes that compresses somewhat: words from a small vocabulary, noise, runs, and copies of what
/// was before.
pub(crate) fn data(seed: u64, len: usize) -> Vec<u8> {
    let mut next = noise(seed);
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        let part = usize::try_from(next() % 3000).unwrap();
        match next() % 4 {
            0 => bytes.extend((0..part).map(|_| next().to_le_bytes()[0])),
            1 => bytes.extend(std::iter::repeat_n(next().to_le_bytes()[0], part)),
            2 if bytes.len() > part => {
                let from = bytes.len() - part - (usize::try_from(next()).unwrap() % (bytes.len() - part));
                bytes.extend_from_within(from..from + part);
            }
            _ => bytes.extend((0..part).map(|_| b"etaoin shrdlu\n"[usize::try_from(next() % 14).unwrap()])),
        }
    }
    bytes.truncate(len);
    bytes
}

/// A gzip stream of one member.
pub(crate) fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
