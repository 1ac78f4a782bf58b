//! The golden set in a scene: its layers as files there, and disks compared with their descriptions.

use crate::scene::{Scene, hex, sha256};
use headstart_testkit::golden_set::GoldenSet;
use rustix::fs::{SeekFrom, seek};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Puts the layers of a case into the scene; returns their names, lowest first.
pub(crate) fn lay_out_layers(scene: &Scene, set: &GoldenSet, case: &Value) -> Vec<String> {
    let entries = case["layers_low_to_high"].as_array().unwrap().iter().enumerate();
    let lay_out = |(n, entry): (usize, &Value)| {
        let name = format!("{}.L{n}", case["name"].as_str().unwrap());
        fs::write(scene.path(&name), set.raw(entry)).unwrap();
        name
    };
    entries.map(lay_out).collect()
}

/// Compares a file of the scene with a case's description of its disk.
#[track_caller]
pub(crate) fn check_disk(scene: &Scene, name: &str, expected: &Value) {
    let file = File::open(scene.path(name)).unwrap();
    let len = file.metadata().unwrap().len();
    assert_eq!(len, expected["vsize"].as_u64().or(expected["virtual_size"].as_u64()).unwrap());
    let (blocks, sum) = nz4k_sha256(&file, len);
    assert_eq!((&expected["nz4k_blocks"], &expected["nz4k_sha256"]), (&blocks.into(), &sum.into()));
    if let Some(sum) = expected["sha256"].as_str().filter(|_| len <= 64 << 20) {
        assert_eq!(sha256(&scene.bytes(name)), sum);
    }
    check_ranges(&file, expected);
}

/// Compares the ranges that a case has picked, of disks of any size.
#[track_caller]
pub(crate) fn check_ranges(file: &File, expected: &Value) {
    for range in expected["ranges"].as_array().into_iter().flatten() {
        let mut bytes = vec![0xa5; range["length"].as_u64().unwrap() as usize];
        file.read_exact_at(&mut bytes, range["offset"].as_u64().unwrap()).unwrap();
        assert_eq!(sha256(&bytes), range["sha256"], "{range}");
    }
}

const ZEROS: [u8; 4096] = [0; 4096];

/// The set's hash of large disks: over the blocks of 4 KiB that are not all zeros, each after its number. Holes
/// are not read.
fn nz4k_sha256(file: &File, len: u64) -> (u64, String) {
    let (mut hash, mut blocks, mut at) = (Sha256::new(), 0, 0);
    while let Ok(data) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(data)).unwrap();
        for block in data / 4096..end.div_ceil(4096) {
            let mut bytes = vec![0; 4096.min(len - block * 4096) as usize];
            file.read_exact_at(&mut bytes, block * 4096).unwrap();
            if bytes != ZEROS[..bytes.len()] {
                hash.update(block.to_le_bytes());
                hash.update(&bytes);
                blocks += 1;
            }
        }
        at = end.next_multiple_of(4096);
    }
    (blocks, hex(&hash.finalize()))
}
