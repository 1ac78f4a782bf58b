//! The TurboOCI images that the reference made, laid out as stores, and the hashes of their disks.
//!
//! The images are beside the repository (`formats/golden-containers`); without them the tests say so and pass.

use headstart_block::{BlockDevice, Digest, to_usize};
use headstart_image::reference::{Reference, Tag};
use headstart_image::store::ImageStore;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const BLOCK: u64 = 4096;

pub(crate) fn golden() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("HEADSTART_SHARED").map_or(beside, PathBuf::from);
    let dir = shared.join("formats/golden-containers");
    if !dir.is_dir() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no golden images at {}", dir.display());
    }
    dir.is_dir().then_some(dir)
}

fn put(root: &Path, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    fs::write(root.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
    digest
}

/// Puts an image of a kind (`turbo`, `erofs`) with its targets into a store, cut to its lowest `layers`, if so many are
/// given.
pub(crate) fn lay_out(
    golden: &Path,
    root: &Path,
    image: &str,
    kind: &str,
    layers: Option<usize>,
) -> Reference {
    let store = ImageStore::create_or_open(root).unwrap();
    let of_image = fs::read_dir(golden.join(image).join(kind)).unwrap();
    for entry in of_image.chain(fs::read_dir(golden.join(image).join("source")).unwrap()) {
        put(root, &fs::read(entry.unwrap().path()).unwrap());
    }
    let mut manifest = fs::read(golden.join(format!("{image}/{kind}/manifest.json"))).unwrap();
    if let Some(layers) = layers {
        let mut value: Value = serde_json::from_slice(&manifest).unwrap();
        value["layers"].as_array_mut().unwrap().truncate(layers);
        manifest = serde_json::to_vec(&value).unwrap();
    }
    store.tag(&put(root, &manifest), &Tag::default()).unwrap();
    format!("file://{}", root.display()).parse().unwrap()
}

/// The hash of all blocks that are not zeros, as `golden.json` has it, and their number.
pub(crate) fn hash_of(disk: &dyn BlockDevice) -> (u64, String) {
    let mut blocks = BTreeSet::new();
    let mut offset = 0;
    while offset < disk.size() {
        let extent = disk.extent_at(offset).unwrap();
        if !extent.zero {
            blocks.extend(extent.range.offset() / BLOCK..extent.range.end().div_ceil(BLOCK));
        }
        offset = extent.range.end();
    }
    let (mut hashed, mut count) = (Vec::new(), 0);
    let mut block = vec![0; to_usize(BLOCK)];
    for number in blocks {
        disk.read_at(&mut block, number * BLOCK).unwrap();
        if block.iter().any(|&byte| byte != 0) {
            hashed.extend_from_slice(&number.to_le_bytes());
            hashed.extend_from_slice(&block);
            count += 1;
        }
    }
    (count, Digest::of(&hashed).hex())
}
