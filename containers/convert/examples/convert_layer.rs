//! Converts one layer file to a store, and prints the time that it took and the speed: for profiles.
//!
//! ```text
//! cargo run --release -p headstart-convert --example convert_layer -- layer.tar.gz /tmp/store lz4 2
//! cargo run --release -p headstart-convert --example convert_layer -- layer.tar.gz /tmp/store turbo 2
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a program for people"
)]

use headstart_block::Digest;
use headstart_convert::{ConvertMode, ConvertOptions, LayerInput, LayerPlace, convert_layer};
use headstart_image::new_layer::Packing;
use headstart_image::progress::Silent;
use headstart_image::store::ImageStore;
use headstart_zfile::{Codec, ZFileOptions};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Read;
use std::time::Instant;

fn digest_of(mut bytes: impl Read) -> Digest {
    let (mut sha256, mut buf) = (Sha256::new(), vec![0; 1 << 20]);
    while let n @ 1.. = bytes.read(&mut buf).unwrap() {
        sha256.update(&buf[..n]);
    }
    Digest::from_bytes(sha256.finalize().into())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, store, codec, threads] = arguments.as_slice() else {
        println!("usage: convert_layer LAYER STORE lz4|zstd|plain|turbo THREADS");
        return;
    };
    let packing = |codec| Packing::ZFile(ZFileOptions { codec, ..ZFileOptions::default() });
    let packing = match codec.as_str() {
        "lz4" => packing(Codec::Lz4),
        "zstd" | "turbo" => packing(Codec::Zstd),
        _ => Packing::Plain,
    };
    let mode = if codec == "turbo" { ConvertMode::Turbo } else { ConvertMode::Native };
    let threads = threads.parse().unwrap();
    let options = ConvertOptions { mode, packing, threads, ..ConvertOptions::default() };
    let file = || File::open(path).unwrap();
    let digest = digest_of(file());
    let diff_id = match path.rsplit_once('.') {
        Some((_, "gz")) => digest_of(flate2::read::MultiGzDecoder::new(file())),
        _ => digest,
    };
    let size = file().metadata().unwrap().len();
    let staging = ImageStore::create_or_open(store).unwrap().stage().unwrap();
    let place = LayerPlace { chain: diff_id, parent_chain: None, parent: None };
    for _ in 0..5 {
        let media_type = String::new();
        let input =
            LayerInput { name: path.clone(), bytes: Box::new(file()), digest, size, diff_id, media_type };
        let start = Instant::now();
        let layer = convert_layer(input, &place, &staging, &options, &Silent).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{seconds:.3} s, {:.0} MB/s of tar, {} entries, blob of {} bytes, {}",
            f64::from(u32::try_from(layer.tar_bytes >> 10).unwrap()) * 1024.0 / 1e6 / seconds,
            layer.entries.entries,
            layer.layer.blob.size,
            layer.layer.blob.digest
        );
    }
}
