//! Memory of conversions: no more than 128 MiB, however many names, directories and whiteouts an image has.

use crate::large::most_anonymous;
use crate::scene::{Scene, sha256};
use crate::tools::{installed, run};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;

/// The most memory of a conversion.
const MOST: u64 = 128 << 20;
/// The part of it that is left for the pages of the program, about 18 MiB of the one that is installed.
const PROGRAM: u64 = 20 << 20;

/// A layer in the making, compressed as it grows: its tar need not fit into memory.
struct Layer {
    gzip: GzEncoder<Vec<u8>>,
    tar: Sha256,
}

impl Layer {
    fn new() -> Self {
        Self { gzip: GzEncoder::new(Vec::new(), Compression::fast()), tar: Sha256::new() }
    }

    fn add(&mut self, kind: u8, path: &str, target: &str) {
        self.put(&header(kind, path, target));
    }

    fn put(&mut self, bytes: &[u8]) {
        self.tar.update(bytes);
        self.gzip.write_all(bytes).unwrap();
    }

    /// The compressed layer and the digest of its tar.
    fn done(mut self) -> (Vec<u8>, String) {
        self.put(&[0; 1024]);
        let digest = self.tar.finalize();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        (self.gzip.finish().unwrap(), format!("sha256:{hex}"))
    }
}

/// A header of a tar: of a directory (kind 5), an empty file (0) or a hard link (1).
fn header(kind: u8, path: &str, target: &str) -> [u8; 512] {
    let mut header = [0; 512];
    let mut set = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, path.as_bytes());
    set(100, b"0000755\x000000000\x000000000\x0000000000000\x0014523570400\x00        ");
    set(156, &[kind]);
    set(157, target.as_bytes());
    set(257, b"ustar\x0000");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// Makes the image `app` of a layout.
fn make_image(scene: &Scene, layout: &str, layers: Vec<Layer>) {
    store_image(scene, layout, "gzip", layers.into_iter().map(Layer::done).collect());
}

/// Makes the image `app` of a layout, of compressed layers with the digests of their tars.
fn store_image(scene: &Scene, layout: &str, compression: &str, layers: Vec<(Vec<u8>, String)>) {
    let dir = scene.path(layout);
    fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
    let store = |media_type: &str, bytes: &[u8]| -> Value {
        let digest = sha256(bytes);
        fs::write(dir.join("blobs/sha256").join(&digest), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() })
    };
    let (mut described, mut ids) = (Vec::new(), Vec::new());
    let layer_type = format!("application/vnd.oci.image.layer.v1.tar+{compression}");
    for (bytes, id) in layers {
        described.push(store(&layer_type, &bytes));
        ids.push(id);
    }
    let config = json!({
        "os": "linux", "architecture": "amd64", "config": {},
        "rootfs": { "type": "layers", "diff_ids": ids },
    });
    let config = store("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": described,
    });
    let mut entry = store(media_type, manifest.to_string().as_bytes());
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "app" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] });
    fs::write(dir.join("index.json"), index.to_string()).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

/// Converts an image, and checks the memory that it takes.
fn convert(scene: &Scene, words: &str) {
    let words = format!("image convert file://~/layout:app file://~/store:app {words}");
    let memory = most_anonymous(scene, &words) + PROGRAM;
    assert!(memory < MOST, "{words}: {} MiB", memory >> 20);
}

/// Names in a directory of a lower layer: the layer's own are remembered, and those that go are listed.
#[test]
fn hundreds_of_thousands_of_names_need_no_more_memory() {
    let scene = Scene::new();
    let name = |number: usize| format!("d/{}-{number:08}", "n".repeat(80));
    let (mut base, mut links, mut opaque) = (Layer::new(), Layer::new(), Layer::new());
    base.add(b'5', "d/", "");
    for number in 0..8 {
        base.add(b'0', &format!("file-{number}"), "");
    }
    for number in 0..400_000 {
        links.add(b'1', &name(number), &format!("file-{}", number / 60_000));
    }
    opaque.add(b'0', "d/.wh..wh..opq", "");
    make_image(&scene, "layout", vec![base, links, opaque]);
    convert(&scene, "--codec lz4 --threads 2");
    convert(&scene, "--codec lz4 --threads 2 --mode turbo");
}

/// Directories: each has a block of metadata, and is remembered where a later layer brings something.
#[test]
fn a_hundred_thousand_directories_need_no_more_memory() {
    let scene = Scene::new();
    let path = |number: usize| format!("d/{}/{number}", number / 1000);
    let (mut made, mut filled, mut removed, mut gone) =
        (Layer::new(), Layer::new(), Layer::new(), Layer::new());
    for number in 0..150_000 {
        made.add(b'5', &path(number), "");
        filled.add(b'0', &format!("{}/file", path(number)), "");
        removed.add(b'0', &format!("{}/.wh.file", path(number)), "");
    }
    gone.add(b'0', ".wh.d", "");
    make_image(&scene, "layout", vec![made, filled, removed, gone]);
    convert(&scene, "--codec lz4 --threads 2");
}

/// A layer whose decompressor needs 64 MiB: it, compressed, and the digest of its tar.
fn windowed(scene: &Scene, entries: impl Iterator<Item = (u8, String, String)>) -> (Vec<u8>, String) {
    let mut tar = Vec::new();
    for (kind, path, target) in entries {
        tar.extend_from_slice(&header(kind, &path, &target));
    }
    tar.extend_from_slice(&[0; 1024]);
    let id = format!("sha256:{}", sha256(&tar));
    fs::write(scene.path("layer.tar"), tar).unwrap();
    run(scene, "zstd", "-q -f -1 --long=26 layer.tar -o layer.zst");
    (fs::read(scene.path("layer.zst")).unwrap(), id)
}

/// The largest window, with as many names as the first test has: both at once.
#[test]
fn the_largest_window_of_zstd_is_within_the_bound() {
    if !installed(&["zstd"]) {
        return;
    }
    let scene = Scene::new();
    let name = |number: usize| format!("d/{}-{number:08}", "n".repeat(80));
    let files = (0..8).map(|number| (b'0', format!("file-{number}"), String::new()));
    let links = (0..400_000).map(|number| (b'1', name(number), format!("file-{}", number / 60_000)));
    let all = std::iter::once((b'5', "d/".to_owned(), String::new())).chain(files).chain(links);
    store_image(&scene, "layout", "zstd", vec![windowed(&scene, all)]);
    convert(&scene, "--codec lz4 --threads 2");
    // By one thread, the window must be gone when the file system is made of the changes.
    convert(&scene, "--codec lz4 --threads 1 --fs erofs");
}

/// The largest window, with directories of which each has a block of metadata, on a parent that has as many.
#[test]
fn the_largest_window_of_zstd_is_within_the_bound_for_directories() {
    if !installed(&["zstd"]) {
        return;
    }
    let scene = Scene::new();
    let path = |number: usize| format!("d/{}/{number}", number / 1000);
    let none = String::new;
    let layers = vec![
        windowed(&scene, (0..150_000).map(|number| (b'5', path(number), none()))),
        windowed(&scene, (0..150_000).map(|number| (b'0', format!("{}/file", path(number)), none()))),
    ];
    store_image(&scene, "layout", "zstd", layers);
    convert(&scene, "--codec lz4 --threads 2");
    convert(&scene, "--codec lz4 --threads 2 --fs erofs");
}
