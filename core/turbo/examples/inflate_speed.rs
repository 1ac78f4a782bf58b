//! The speed of making an index, and of reads by it: `cargo run --release -p headstart-turbo --example inflate_speed --
//! layer.tar.gz`. Beside it, zlib-rs alone and flate2 inflate the whole stream.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement")]

use headstart_block::{Error, ReadAt, Result, to_usize};
use headstart_turbo::format::DEFAULT_SPAN;
use headstart_turbo::{GzipIndex, IndexingReader, InflatedCache, InflatedView};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use zlib_rs::{Inflate, InflateFlush, Status};

/// Bytes of a read.
const READ: usize = 4096;
const READS: u64 = 2000;
const MIB: f64 = 1_048_576.0;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| Error::invalid("give a gzip file"))?;
    let blob = std::fs::read(path)?;
    let start = Instant::now();
    let len = io::copy(&mut flate2::read::MultiGzDecoder::new(&blob[..]), &mut io::sink())?;
    let mebibytes = len as f64 / MIB;
    println!("{mebibytes:.0} MiB in a gzip of {:.0} MiB", blob.len() as f64 / MIB);
    println!("flate2: {:.0} MiB/s", mebibytes / start.elapsed().as_secs_f64());
    let start = Instant::now();
    let alone = inflate_alone(&blob)?;
    println!("zlib-rs: {:.0} MiB/s", alone as f64 / MIB / start.elapsed().as_secs_f64());

    let start = Instant::now();
    let mut reader = IndexingReader::new(&blob[..], DEFAULT_SPAN)?;
    io::copy(&mut reader, &mut io::sink())?;
    let built = reader.finish()?;
    println!(
        "indexing: {:.0} MiB/s, {} points, {} bytes",
        mebibytes / start.elapsed().as_secs_f64(),
        built.points,
        built.bytes.len()
    );

    let index = Arc::new(GzipIndex::open(Arc::new(built.bytes))?);
    let cache = |bytes| InflatedCache::new(bytes);
    let view = InflatedView::new(&blob, Arc::clone(&index), cache(InflatedCache::DEFAULT_BYTES))?;
    let start = Instant::now();
    headstart_block::copy_source(&view, &mut io::sink(), &mut |_| Ok(()))?;
    println!("reads of 1 MiB in order: {:.0} MiB/s", mebibytes / start.elapsed().as_secs_f64());

    let view = InflatedView::new(&blob, Arc::clone(&index), cache(InflatedCache::DEFAULT_BYTES))?;
    let mut buf = [0; READ];
    let start = Instant::now();
    for number in 0..len / READ as u64 {
        view.read_at(&mut buf, number * READ as u64)?;
    }
    println!("reads of 4 KiB in order: {:.0} MiB/s", mebibytes / start.elapsed().as_secs_f64());

    // With the cache of a disk, and with one that keeps nothing, so that each read starts at a restart point.
    for bytes in [InflatedCache::DEFAULT_BYTES, 0] {
        let view = InflatedView::new(&blob, Arc::clone(&index), cache(bytes))?;
        let start = Instant::now();
        for number in 0..READS {
            view.read_at(&mut buf, number * 7_919 * 4096 % len.saturating_sub(READ as u64).max(1))?;
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "reads of 4 KiB anywhere, cache of {} MiB: {:.2} MiB/s, {:.2} ms each",
            bytes >> 20,
            READS as f64 * READ as f64 / MIB / seconds,
            seconds * 1000.0 / READS as f64
        );
    }
    Ok(())
}

/// Inflates the first member of `blob` by zlib-rs, without keeping anything; returns the number of bytes.
fn inflate_alone(blob: &[u8]) -> Result<u64> {
    // 16 above the size of the window: with the header and the trailer of gzip.
    let mut inflate = Inflate::new(true, 16 + 15);
    let mut out = vec![0; 256 << 10];
    loop {
        let fed = to_usize(inflate.total_in());
        let status = inflate.decompress(&blob[fed..], &mut out, InflateFlush::NoFlush);
        match status {
            Ok(Status::StreamEnd) => return Ok(inflate.total_out()),
            Ok(_) => {}
            Err(_) => return Err(Error::corrupt("is no gzip stream")),
        }
    }
}
