//! qcow2 and flat vmdk through the `imago` library.

use super::{AllowedDirs, DiskFormat};
use headstart_block::{BlockDevice, ByteRange, Error, Extent, FileSource, ReadAt, Result};
use imago::file::File;
use imago::format::builder::FormatDriverBuilder;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2;
use imago::vmdk::Vmdk;
use imago::{FormatAccess, Mapping, Storage, StorageOpenOptions};
use std::io;
use std::path::Path;

/// A disk image that the library reads.
struct LibraryDisk {
    image: FormatAccess<File>,
}

/// The library takes no notice of encryption and would give the ciphertext for the disk. Looked for in every
/// file that has a qcow2 header: where its version has encryption, the method is at byte 32, 0 for none.
fn refuse_encrypted(path: &Path) -> Result<()> {
    let file = FileSource::open(path)?;
    let mut header = [0; 36];
    if file.len() < header.len() as u64 {
        return Ok(());
    }
    file.read_at(&mut header, 0)?;
    if header.starts_with(b"QFI\xfb") && header[32..] != [0; 4] {
        return Err(Error::invalid("is encrypted")
            .about(path.display())
            .remedy("decrypt it with qemu-img convert first"));
    }
    Ok(())
}

/// Opens `path`; files that it names must lie in `allowed` directories.
pub(super) fn open(path: &Path, format: DiskFormat, allowed: &AllowedDirs) -> Result<Box<dyn BlockDevice>> {
    refuse_encrypted(path)?;
    let gate = Gate(allowed.clone());
    let image = match format {
        DiskFormat::Qcow2 => Qcow2::<File>::builder_path(path).open(gate).map(FormatAccess::new),
        _ => Vmdk::<File>::builder_path(path).open(gate).map(FormatAccess::new),
    };
    let image = image.map_err(|e| match e.kind() {
        io::ErrorKind::Unsupported => {
            Error::unsupported("the library does not read this variant").caused_by(e)
        }
        // The library has no error of its own for features that are newer than it.
        _ if e.to_string().contains("incompatible feature") => {
            Error::unsupported("the library does not read this variant").caused_by(e)
        }
        // A sparse extent without a descriptor file is a variant, too.
        _ if format == DiskFormat::Vmdk => {
            Error::unsupported("the library does not read this vmdk").caused_by(e)
        }
        _ => unwrap_gate(e),
    })?;
    Ok(Box::new(LibraryDisk { image }))
}

/// The library wraps what the gate refused: show the refusal, not the wrapping.
fn unwrap_gate(error: io::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(inner) = source {
        if let Some(ours) = inner.downcast_ref::<Error>() {
            return Error::new(ours.kind(), ours.to_string());
        }
        source = inner.source();
    }
    Error::io("cannot open it as a disk image", error)
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
struct Gate(AllowedDirs);

impl ImplicitOpenGate<File> for Gate {
    fn open_format<F: FormatDriverBuilder<File>>(&mut self, builder: F) -> io::Result<FormatAccess<File>> {
        if let Some(path) = builder.get_image_path() {
            self.0.check(&path)?;
            refuse_encrypted(&path)?;
        }
        Ok(FormatAccess::new(builder.open(self.clone())?))
    }

    fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<File> {
        if let Some(path) = options.get_filename() {
            self.0.check(path)?;
        }
        File::open(options)
    }
}
