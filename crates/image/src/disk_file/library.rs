//! qcow2 and flat vmdk through the `imago` library.

use super::{AllowedDirs, DiskFormat, MAX_CHAIN};
use headstart_block::{BlockDevice, ByteRange, Error, Extent, FileSource, ReadAt, Result};
use imago::file::File;
use imago::format::builder::FormatDriverBuilder;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2;
use imago::vmdk::Vmdk;
use imago::{FormatAccess, Mapping, Storage, StorageOpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most tables of a qcow2: what QEMU allows.
const MAX_TABLES: u64 = (32 << 20) / 8;

/// A disk image that the library reads.
struct LibraryDisk {
    image: FormatAccess<File>,
    /// Bytes by which a file may end before its last cluster does.
    slack: u64,
}

/// Opens `path`; files that it names must lie in `allowed` directories.
pub(super) fn open(path: &Path, format: DiskFormat, allowed: &AllowedDirs) -> Result<Box<dyn BlockDevice>> {
    let largest_cluster = Arc::new(AtomicU64::new(check_header(path)?));
    let gate = Gate { allowed: allowed.clone(), depth: 1, largest_cluster: Arc::clone(&largest_cluster) };
    let image = match format {
        DiskFormat::Qcow2 => Qcow2::<File>::builder_path(path).open(gate).map(FormatAccess::new),
        _ => Vmdk::<File>::builder_path(path).open(gate).map(FormatAccess::new),
    };
    let image = image.map_err(|e| {
        let variant = e.kind() == io::ErrorKind::Unsupported
            // The library has no error of its own for features that are newer than it.
            || e.to_string().contains("incompatible feature")
            // A backing file of a format that only qemu-img reads.
            || e.to_string().to_lowercase().contains("unknown backing format")
            // A sparse extent without a descriptor file is a variant, too.
            || format == DiskFormat::Vmdk;
        match refusal(&e) {
            Some(refusal) => refusal,
            None if variant => Error::unsupported("the library does not read this variant").caused_by(e),
            None => Error::io("cannot open it as a disk image", e),
        }
    })?;
    Ok(Box::new(LibraryDisk { image, slack: largest_cluster.load(Ordering::Relaxed) }))
}

/// Looks at what the library does not: returns the size of clusters where `path` has a qcow2 header, otherwise 0.
///
/// ```text
/// byte 0   "QFI\xfb"
/// byte 20  number of bits of an offset in a cluster, u32, 9 to 21; all numbers are big-endian
/// byte 24  size of the disk in bytes, u64
/// byte 32  method of encryption, u32, 0 = none
/// byte 36  entries of the table of tables, u32
/// byte 72  features without which it cannot be read, u64, where the version (byte 4, u32) is 3;
///          bit 4 = entries of 16 bytes in the tables, not 8
/// ```
///
/// The library takes no notice of encryption, and would give the ciphertext for the disk. Nor does it compare
/// the disk's size with the table of tables: a few bytes could keep it walking through an exabyte of
/// nothing, table by table.
fn check_header(path: &Path) -> Result<u64> {
    let file = FileSource::open(path)?;
    let mut header = [0; 80];
    let len = header.len().min(usize::try_from(file.len()).unwrap_or(usize::MAX));
    file.read_at(&mut header[..len], 0)?;
    if !header.starts_with(b"QFI\xfb") {
        return Ok(0);
    }
    let field =
        |at: usize, len: usize| header[at..at + len].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let wrong = |error: Error| Err(error.about(path.display()));
    if field(32, 4) != 0 {
        return wrong(Error::invalid("is encrypted").remedy("decrypt it with qemu-img convert first"));
    }
    let bits @ 9..=21 = field(20, 4) else {
        return wrong(Error::corrupt("has clusters of a size that there is not"));
    };
    let entry_bits = if field(4, 4) >= 3 && field(72, 8) & 1 << 4 != 0 { 4 } else { 3 };
    let (tables, covered_bits) = (field(36, 4), bits + bits - entry_bits);
    if tables > MAX_TABLES || field(24, 8).div_ceil(1 << covered_bits) > tables {
        return wrong(Error::corrupt(format!("has {tables} tables, which does not fit its size")));
    }
    Ok(1 << bits)
}

/// What the gate said, where it was that which refused; the library wraps it.
fn refusal(error: &io::Error) -> Option<Error> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(ours) = inner.downcast_ref::<Error>() {
            return Some(Error::new(ours.kind(), ours.to_string()));
        }
        source = inner.source();
    }
    None
}

impl LibraryDisk {
    /// Past the end of a file the library reads zeros: a truncated image would be half a disk.
    fn check_inside(&self, storage: &File, end: u64) -> Result<()> {
        let len = storage.size().map_err(|e| Error::io("cannot find a file's length", e))?;
        if end > len.saturating_add(self.slack) {
            let file = storage.get_filename().unwrap_or_default();
            return Err(Error::corrupt(format!(
                "{} has {len} bytes, but the disk's data goes on to byte {end} of it",
                file.display()
            ))
            .remedy("it is truncated: copy it again"));
        }
        Ok(())
    }
}

impl BlockDevice for LibraryDisk {
    fn size(&self) -> u64 {
        self.image.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // The library would give zeros there.
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(past_end(offset, self.size()));
        }
        self.image.read(buf, offset).map_err(|e| Error::io(format!("cannot read at {offset}"), e))
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let size = self.size();
        if offset >= size {
            return Err(past_end(offset, size));
        }
        let (mapping, len) = self
            .image
            .get_mapping(offset, size - offset)
            .map_err(|e| Error::io(format!("cannot find what lies at {offset}"), e))?;
        if let Mapping::Raw { storage, offset, .. } = mapping {
            self.check_inside(storage, offset.saturating_add(len))?;
        }
        let zero = matches!(mapping, Mapping::Zero { .. } | Mapping::Eof { .. });
        let end = if len == 0 { size } else { offset.saturating_add(len).min(size) };
        Ok(Extent { range: ByteRange::between(offset, end), zero })
    }
}

fn past_end(offset: u64, size: u64) -> Error {
    Error::invalid(format!("a read at {offset} reaches past the end of the disk ({size} bytes)"))
}

/// Lets an image open only files in allowed directories.
#[derive(Clone)]
struct Gate {
    allowed: AllowedDirs,
    /// Images open one above the other.
    depth: usize,
    /// Bytes of the largest cluster of any of them.
    largest_cluster: Arc<AtomicU64>,
}

impl ImplicitOpenGate<File> for Gate {
    fn open_format<F: FormatDriverBuilder<File>>(&mut self, builder: F) -> io::Result<FormatAccess<File>> {
        if let Some(path) = builder.get_image_path() {
            self.allowed.check(&path)?;
            self.largest_cluster.fetch_max(check_header(&path)?, Ordering::Relaxed);
        }
        if self.depth == MAX_CHAIN {
            let cause = format!("a chain of more than {MAX_CHAIN} images, or one without end");
            return Err(Error::invalid(cause).into());
        }
        let below = Self { depth: self.depth + 1, ..self.clone() };
        Ok(FormatAccess::new(builder.open(below)?))
    }

    fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<File> {
        if let Some(path) = options.get_filename() {
            self.allowed.check(path)?;
        }
        File::open(options)
    }
}
