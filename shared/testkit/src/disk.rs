//! Disks for tests: sparse files with pseudo-random content, the same in each run.

use crate::scene::Scene;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Returns `len` pseudo-random bytes, which do not compress; the same `seed` gives the same bytes.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len.next_multiple_of(8)];
    // In tests nothing here is optimized: byte by byte, some tests would take most of their time for it.
    for word in bytes.as_chunks_mut::<8>().0 {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        *word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}

/// Returns `len` pseudo-random bytes that compress to about a third and contain no long runs of zeros; the
/// same `seed` gives the same bytes.
pub fn text(seed: u64, len: usize) -> Vec<u8> {
    let words: Vec<_> = (0..50).map(|n| hex_word(seed ^ n) + " ").collect();
    let picks = noise(seed, len / 4 + 1);
    let mut text = Vec::with_capacity(len + 16);
    for pick in picks {
        if text.len() >= len {
            break;
        }
        text.extend_from_slice(words[usize::from(pick) % words.len()].as_bytes());
    }
    text.truncate(len);
    text
}

fn hex_word(seed: u64) -> String {
    noise(seed, usize::try_from(3 + seed % 4).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A sparse file with the content of a disk, for writing to it. Ranges that are not written are holes.
pub struct DiskBuilder {
    file: File,
}

impl DiskBuilder {
    /// Creates a sparse file of `size` bytes without data.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Self {
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
        file.set_len(size).unwrap();
        Self { file }
    }

    /// Writes `bytes` at the byte offset `offset`.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> &Self {
        self.file.write_all_at(bytes, offset).unwrap();
        self
    }
}

/// Creates the file `name`: a disk of `mib` MiB with many kinds of content, namely text, incompressible data,
/// written zeros, single sectors, holes, and data in the last sector. `mib` must be at least 6, because the content
/// reaches beyond the first 5 MiB.
pub fn mixed_disk(scene: &Scene, name: &str, mib: u64) {
    let size = mib << 20;
    DiskBuilder::create(scene.path(name), size)
        .write(0, &text(1, 5000))
        .write(1 << 20, &noise(2, 300_000))
        .write(2 << 20, &text(3, 1_000_000))
        .write((4 << 20) - 512, &noise(4, 512))
        .write(4 << 20, &[0; 200_000])
        .write((5 << 20) + 1024, &noise(5, 1536))
        .write(size / 2, &text(6, 150_000))
        .write(size - 512, &noise(7, 512));
}

/// Copies a disk's file from `from` to `to`, and opens the copy for changes. Holes stay holes, and written zeros may
/// become holes.
pub fn copy_of(scene: &Scene, from: &str, to: &str) -> DiskBuilder {
    crate::scene::run_tool("cp", &["--sparse=always", "--reflink=auto", from, to], &scene.path(""));
    DiskBuilder { file: File::options().read(true).write(true).open(scene.path(to)).unwrap() }
}

/// Panics unless two files of the scene have the same bytes; the message does not contain the bytes.
#[track_caller]
pub fn assert_same(scene: &Scene, left: &str, right: &str) {
    let (a, b) = (scene.bytes(left), scene.bytes(right));
    assert_eq!(a.len(), b.len(), "sizes of {left} and {right}");
    // Equal files are compared at once: a walk over their bytes is slow.
    if a != b {
        let at = a.iter().zip(&b).position(|(a, b)| a != b).unwrap();
        panic!("{left} and {right} differ at byte {at}");
    }
}
