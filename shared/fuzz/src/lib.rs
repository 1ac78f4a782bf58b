//! Every parser of headstart on hostile input.
//!
//! A target is a function from bytes to a result: it opens the bytes as what its name says and then uses
//! what it got, as far as a budget allows. Any result is fine; a panic, a hang or an allocation out of
//! proportion to the input is a fault, and so is a broken promise that [`read_disk`] or [`read_source`]
//! notices. The same functions run in three places:
//!
//! * `make fuzz`: `fuzz_targets/` hands them to libFuzzer, on a nightly compiler;
//! * `make test`: `tests/replay.rs` replays the committed corpus, with every eighth byte of it changed in turn;
//! * `examples/make_corpus` writes the corpus's valid inputs with our own writers.

#![forbid(unsafe_code)]

mod containers;
mod erofs;
pub mod harvest;
mod nbd;
mod snapshots;
mod swarm;
mod turbo;

pub use containers::{image_archive, image_document};
pub use erofs::erofs_parent;
pub use harvest::{demand_series, harvest_journal};
pub use nbd::nbd;
pub use snapshots::{snapshot_filter, snapshot_journal};
pub use swarm::{signing_request, swarm};
pub use turbo::{gzip_index, gzip_stream, lsmt_target, turbo_package};

use headstart_block::{BlockDevice, Error, ErrorKind, FileSource, ReadAt, Result, exact, to_usize};
use headstart_image::blob::open_layer_source;
use headstart_image::disk_file::{DiskFile, DiskFormat};
use headstart_image::manifest::{Config, Manifest};
use headstart_image::progress::Silent;
use headstart_image::reference::Selector;
use headstart_image::store::ImageStore;
use headstart_image::tar_wrapper::{self, SourceRange};
use headstart_lsmt::writable::WritableDisk;
use headstart_lsmt::{Layer, LayerMeta, LayerWriter, Stack, copy_segments, open_pair};
use headstart_plan::overlaybd_trace::{self, LayerExtent};
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{Knowledge, PlanFile, RecordedImage};
use headstart_tar::{TarEntry, TarLimits, TarReader};
use headstart_trace::file::{ReadLimits, encode, read};
use headstart_trace::stats::RequestStats;
use headstart_trace::{Creation, Trace, fast26};
use headstart_zfile::ZFileReader;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// A named function from hostile bytes to whether they were wholly valid.
pub type Target = (&'static str, fn(&[u8]) -> Result<()>);

/// Every target; the names are those of the files in `fuzz_targets/` and of the directories in `corpus/`.
pub const TARGETS: &[Target] = &[
    ("zfile", zfile),
    ("lsmt_layer", lsmt_layer),
    ("lsmt_pair", lsmt_pair),
    ("lsmt_sparse", lsmt_sparse),
    ("writable", writable),
    ("tar_wrapper", tar_wrapper),
    ("layer_tar", layer_tar),
    ("erofs_parent", erofs_parent),
    ("image_archive", image_archive),
    ("image_document", image_document),
    ("gzip_index", gzip_index),
    ("gzip_stream", gzip_stream),
    ("turbo_package", turbo_package),
    ("lsmt_target", lsmt_target),
    ("manifest", manifest),
    ("config", config),
    ("oci_index", oci_index),
    ("blob", blob),
    ("qcow2", qcow2),
    ("cache_sidecar", cache_sidecar),
    ("nbd", nbd),
    ("trace", trace),
    ("npy", npy),
    ("plans", plans),
    ("knowledge", knowledge),
    ("overlaybd_trace", overlaybd_trace),
    ("swarm", swarm),
    ("signing_request", signing_request),
    ("harvest_journal", harvest_journal),
    ("snapshot_journal", snapshot_journal),
    ("snapshot_filter", snapshot_filter),
    ("demand_series", demand_series),
];

/// Bytes that a target reads from one thing: an input of a few bytes can claim to be terabytes of zeros.
const READ_BUDGET: u64 = 1 << 20;
/// Bytes that are written anew from one layer.
const REWRITE_BUDGET: u64 = 256 << 10;
/// Bytes read at once: odd, so that reads start and end inside sectors and frames.
const READ_SIZE: u64 = 20_011;
/// Records read of one trace: an input of a few bytes can hold millions of the same.
const RECORDS_MAX: usize = 10_000;
/// Extents looked at on one disk.
const EXTENT_BUDGET: usize = 256;

/// A ZFile: header, index, trailer, frames.
///
/// # Errors
/// Fails if the input is not one.
pub fn zfile(input: &[u8]) -> Result<()> {
    read_source(&ZFileReader::open(input.to_vec())?)
}

/// A sealed layer: header, index, trailer.
///
/// # Errors
/// Fails if the input is not one.
pub fn lsmt_layer(input: &[u8]) -> Result<()> {
    read_layer(Layer::open(Arc::new(input.to_vec()))?)
}

/// An unsealed writable layer; the input is its data file and its index file, joined.
///
/// # Errors
/// Fails if the input is not one.
pub fn lsmt_pair(input: &[u8]) -> Result<()> {
    let [data, index] = split(input)?;
    read_layer(open_pair(Arc::new(data.to_vec()), &index)?)
}

/// A writable layer's directory, as a crash or an enemy may have left it; the input is `state.json` and the
/// two files of its one pair, joined.
///
/// # Errors
/// Fails if the input is not one, or there is no place for a directory.
pub fn writable(input: &[u8]) -> Result<()> {
    let files: [&[u8]; 3] = split(input)?;
    let directory = scratch_directory()?;
    for (name, content) in WRITABLE_FILES.iter().zip(files) {
        fs::write(directory.path().join(name), content)?;
    }
    let parent = WritableDisk::inspect(directory.path())?.parent;
    read_disk(&WritableDisk::open(directory.path(), None, &parent)?)
}

/// The files of a writable directory with one pair, in the order in which an input joins them.
pub const WRITABLE_FILES: [&str; 3] = ["state.json", "data", "index"];

/// A file of plans: trailer, head, sections.
///
/// # Errors
/// Fails if the input is not one.
pub fn plans(input: &[u8]) -> Result<()> {
    let file = PlanFile::open(input)?;
    let stranger = Metadata { family: "debian".to_owned(), ..Metadata::default() };
    let _ = file.choose(&RecordedImage::default(), &stranger);
    file.read_all()?.write(&mut io::sink())
}

/// A file of knowledge: trailer, head, sections, packed traces.
///
/// # Errors
/// Fails if the input is not one.
pub fn knowledge(input: &[u8]) -> Result<()> {
    let knowledge = Knowledge::read(&input)?;
    for (_, image) in knowledge.images() {
        let _ = (image.dropped(), image.model().groups().len());
    }
    knowledge.write(&mut io::sink())
}

/// A trace file of `OverlayBD`'s, as a plan of a disk of three layers.
///
/// # Errors
/// Fails if the input is not one.
pub fn overlaybd_trace(input: &[u8]) -> Result<()> {
    let records = overlaybd_trace::parse(input)?;
    let extents: Vec<_> = (0..300)
        .map(|n| LayerExtent {
            disk: n * 24_576,
            len: 16_384,
            layer: (n % 3) as u32,
            offset: 4096 + n * 8192,
        })
        .collect();
    let items = overlaybd_trace::plan(&records, &extents, 8 << 20);
    let again = overlaybd_trace::encode(&overlaybd_trace::of_plan(&items, &extents, 8 << 20))?;
    overlaybd_trace::parse(&again).map(drop)
}

/// A directory of its own for one run: in memory where that is possible, since recovery syncs files.
///
/// # Errors
/// Errors of the operating system.
pub fn scratch_directory() -> Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.map_err(|e| Error::io("cannot make a scratch directory", e))
}

/// A sparse layer. Its index is the map of a file's holes, so the input becomes a file in memory.
///
/// # Errors
/// Fails if the input is not one, or there is no memory for the file.
pub fn lsmt_sparse(input: &[u8]) -> Result<()> {
    read_layer(Layer::open_sparse(FileSource::from_file(memory_file(input)?, "layer")?)?)
}

/// A tar wrapper around a blob.
///
/// # Errors
/// Fails if the input is not one.
pub fn tar_wrapper(input: &[u8]) -> Result<()> {
    let range = tar_wrapper::locate(input)?.ok_or_else(|| Error::corrupt("no tar wrapper"))?;
    read_source(&SourceRange::new(input, range)?)
}

/// A layer of a container image: a tar archive, once with all content read and once with all content skipped.
///
/// # Errors
/// Fails if the input is not one.
///
/// # Panics
/// Panics if the two have other entries, or an entry's extents or offsets are not what they are said to be.
pub fn layer_tar(input: &[u8]) -> Result<()> {
    let (read, result) = tar_entries(input, true);
    let (skipped, _) = tar_entries(input, false);
    assert!(read == skipped, "the content decides on the entries");
    result
}

/// The entries in front of the first fault, and that fault.
fn tar_entries(input: &[u8], reads: bool) -> (Vec<TarEntry>, Result<()>) {
    let mut entries = Vec::new();
    let mut reader = TarReader::new(input, TarLimits::default());
    let mut buf = vec![0; to_usize(READ_SIZE)];
    let result = loop {
        match reader.next_entry() {
            Ok(Some(entry)) => {
                check_tar_entry(&entry, &reader);
                entries.push(entry);
            }
            Ok(None) => break reader.finish().map(drop),
            Err(e) => break Err(e),
        }
        while reads && reader.content_left() > 0 {
            match reader.read_content(&mut buf) {
                Ok(n) => assert!(n > 0, "the content ends early"),
                Err(e) => return (entries, Err(e)),
            }
        }
    };
    (entries, result)
}

fn check_tar_entry(entry: &TarEntry, reader: &TarReader<&[u8]>) {
    assert_eq!((reader.position(), reader.content_left()), (entry.content_offset, entry.stored_size));
    assert!(entry.content_offset.is_multiple_of(512) && entry.header_offset < entry.content_offset);
    let (mut end, mut stored) = (0, 0);
    for extent in entry.sparse.iter().flatten() {
        assert!(extent.offset() >= end && !extent.is_empty() && extent.end() <= entry.size, "{entry:?}");
        (end, stored) = (extent.end(), stored + extent.len());
    }
    assert_eq!(entry.stored_size, if entry.sparse.is_some() { stored } else { entry.size });
    assert!(entry.xattrs.is_sorted_by(|a, b| a.0 < b.0) && entry.mtime.nanoseconds < 1_000_000_000);
}

/// An image's manifest.
///
/// # Errors
/// Fails if the input is not one.
pub fn manifest(input: &[u8]) -> Result<()> {
    let manifest = Manifest::parse(input)?;
    let _ = (manifest.version(), manifest.options(), manifest.stored_size(), manifest.disk_layers().count());
    Ok(())
}

/// An image's config.
///
/// # Errors
/// Fails if the input is not one.
pub fn config(input: &[u8]) -> Result<()> {
    let _ = Config::parse(input)?.diff_ids();
    Ok(())
}

/// A store's `index.json`, in a store that has no blobs.
///
/// # Errors
/// Fails if the input is not one, or there is no place for a store.
pub fn oci_index(input: &[u8]) -> Result<()> {
    let directory = scratch_directory()?;
    let store = ImageStore::create_or_open(directory.path())?;
    fs::write(directory.path().join("index.json"), input)?;
    let _ = store.resolve(&Selector::Tag("latest".parse()?));
    store.list().map(drop)
}

/// A blob as stored: tar wrapper, ZFile, layer.
///
/// # Errors
/// Fails if the input is not one.
pub fn blob(input: &[u8]) -> Result<()> {
    read_layer(Layer::open(open_layer_source(Arc::new(input.to_vec()))?.source)?)
}

/// A qcow2 disk image, as an import opens it.
///
/// # Errors
/// Fails if the input is not one, or there is no place for a file.
pub fn qcow2(input: &[u8]) -> Result<()> {
    let directory = scratch_directory()?;
    let path = directory.path().join("disk");
    fs::write(&path, input)?;
    let disk = DiskFile { format: Some(DiskFormat::Qcow2), ..DiskFile::at(path) };
    read_disk(disk.open(directory.path(), &Silent)?.device())
}

/// The sidecar of a cached blob, as a crash or an enemy may have left it, when it is believed after a reboot.
///
/// # Errors
/// Fails if the input is not one, or there is no memory for the file.
pub fn cache_sidecar(input: &[u8]) -> Result<()> {
    headstart_cache::recover_sidecar(memory_file(input)?, memory_file(&[])?).map(drop)
}

/// A file in memory.
fn memory_file(content: &[u8]) -> Result<File> {
    let io = |e| Error::io("cannot make a file in memory", e);
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC).map_err(|e| io(e.into()))?);
    file.write_all(content).map_err(io)?;
    Ok(file)
}

/// A trace as a Parquet file. What is read is written again, and must then be the same.
///
/// # Errors
/// Fails if the input is not one.
///
/// # Panics
/// Panics if it is not the same.
pub fn trace(input: &[u8]) -> Result<()> {
    let limits = ReadLimits { records_max: RECORDS_MAX, ..ReadLimits::default() };
    let trace = read(input, &limits)?;
    let _ = RequestStats::of(&trace.records);
    assert!(read(&encode(&trace)?, &limits)? == trace, "written, it is another trace");
    Ok(())
}

/// A trace as a NumPy file, whose first request is its creation. What is read is written again, and must then be the
/// same.
///
/// # Errors
/// Fails if the input is not one.
///
/// # Panics
/// Panics if it is not the same.
pub fn npy(input: &[u8]) -> Result<()> {
    let rows = headstart_trace::npy::decode(input)?;
    let created_us = rows.iter().filter_map(|row| u64::try_from(row[3]).ok()).min().unwrap_or(0);
    let records = fast26::records(&rows, created_us)?;
    let trace =
        Trace { creation: Creation { created_us, ..Creation::default() }, records, ..Trace::default() };
    let again = headstart_trace::npy::decode(&headstart_trace::npy::encode(&fast26::rows(&trace)?))?;
    assert!(fast26::records(&again, created_us)? == trace.records, "written, it is another trace");
    Ok(())
}

/// Several files as one input: each is preceded by its length in four little-endian bytes.
#[must_use]
pub fn join(files: &[&[u8]]) -> Vec<u8> {
    let len = |file: &[u8]| exact::<u32>(file.len(), "fuzzed files are short").to_le_bytes();
    files.iter().flat_map(|file| [&len(file), *file].concat()).collect()
}

/// Takes [`join`]'s result apart.
fn split<const FILES: usize>(mut input: &[u8]) -> Result<[&[u8]; FILES]> {
    let mut files: [&[u8]; FILES] = [&[]; FILES];
    for file in &mut files {
        let (len, rest) = input.split_first_chunk::<4>().ok_or_else(too_few_files)?;
        let len = usize::try_from(u32::from_le_bytes(*len)).map_err(|_| too_few_files())?;
        (*file, input) = rest.split_at_checked(len).ok_or_else(too_few_files)?;
    }
    Ok(files)
}

fn too_few_files() -> Error {
    Error::corrupt("too few files in this input")
}

/// Reads a layer's disk and then writes it as a new layer, as flattening does.
fn read_layer(layer: Layer) -> Result<()> {
    let disk = Stack::new(vec![layer])?;
    read_disk(&disk)?;
    let meta = LayerMeta { virtual_size: disk.size(), ..LayerMeta::default() };
    let mut writer = LayerWriter::new(io::sink(), meta)?;
    let mut left = REWRITE_BUDGET;
    let mut spend = |bytes: u64| {
        left = left.checked_sub(bytes).ok_or_else(|| Error::new(ErrorKind::Cancelled, "enough"))?;
        Ok(())
    };
    match copy_segments(&disk, disk.index().segments().iter().copied(), &mut writer, &mut spend) {
        Err(e) if e.kind() != ErrorKind::Cancelled => return Err(e),
        _ => {}
    }
    writer.finish().map(drop)
}

/// Reads a source from its start and at its end, within the budget.
///
/// # Errors
/// Errors of the source.
///
/// # Panics
/// Panics if a read past the end succeeds.
pub fn read_source(source: &dyn ReadAt) -> Result<()> {
    let mut buf = vec![0; to_usize(READ_SIZE)];
    let mut read = |from: u64, to: u64| {
        let part = buf.get_mut(..to_usize(to - from)).unwrap_or_default();
        source.read_at(part, from)
    };
    let mut offset = 0;
    while offset < source.len().min(READ_BUDGET) {
        let end = source.len().min(offset + READ_SIZE);
        read(offset, end)?;
        offset = end;
    }
    read(source.len().saturating_sub(READ_SIZE), source.len())?;
    assert!(source.read_at(&mut [0; 2], source.len().saturating_sub(1)).is_err(), "read past the end");
    Ok(())
}

/// Walks a disk's extents and reads both ends of each, within the budgets.
///
/// # Errors
/// Errors of the disk.
///
/// # Panics
/// Panics if the extents do not tile the disk, or one that is said to be zeros is not.
pub fn read_disk(disk: &dyn BlockDevice) -> Result<()> {
    let mut buf = vec![0; to_usize(READ_SIZE)];
    let mut offset = 0;
    for _ in 0..EXTENT_BUDGET {
        if offset == disk.size() {
            break;
        }
        let extent = disk.extent_at(offset)?;
        let range = extent.range;
        assert!(range.offset() == offset && !range.is_empty() && range.end() <= disk.size(), "{extent:?}");
        for start in [offset, range.end().saturating_sub(READ_SIZE).max(offset)] {
            let len = to_usize(range.end() - start).min(buf.len());
            let part = &mut buf[..len];
            part.fill(0xa5);
            disk.read_at(part, start)?;
            assert!(!extent.zero || part.iter().all(|&byte| byte == 0), "{extent:?} has bytes");
        }
        offset = range.end();
    }
    assert!(disk.read_at(&mut [0; 2], disk.size().saturating_sub(1)).is_err(), "read past the end");
    Ok(())
}
