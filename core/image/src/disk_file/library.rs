//! qcow2 through the `imago` library.
//!
//! The library opens nothing by itself: the files that an image names are opened here, each after its check.

use super::chain::beside;
use super::qcow2::Header;
use super::{AllowedDirs, MAX_CHAIN};
use headstart_block::{BlockDevice, ByteRange, Error, Extent, FileSource, Result};
use imago::file::File;
use imago::format::builder::FormatDriverBuilder;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, Mapping};
use std::io;
use std::path::Path;

/// A disk image that the library reads.
struct LibraryDisk {
    image: FormatAccess<File>,
}

/// Opens the qcow2 in `file`; files that it names must be in `allowed` directories.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] if the library does not read this variant; an error if a file of the
/// chain is damaged, or may not be opened.
pub(super) fn open(file: &FileSource, allowed: &AllowedDirs) -> Result<Box<dyn BlockDevice>> {
    Ok(Box::new(LibraryDisk { image: open_qcow2(file, allowed, 1)? }))
}

/// The remedy of a disk that is not of the format that the user named.
const FIND_FORMAT: &str = "leave out --format, and the format is found";

/// Opens one qcow2 with all that is below it; `depth` images are open with it.
fn open_qcow2(file: &FileSource, allowed: &AllowedDirs, depth: usize) -> Result<FormatAccess<File>> {
    let named = |e: Error| e.about(file.path().display());
    let Some(header) = Header::read(file).map_err(named)? else {
        let error = named(Error::corrupt("is not a qcow2 image"));
        return Err(if depth == 1 { error.remedy(FIND_FORMAT) } else { error });
    };
    if depth > MAX_CHAIN {
        return Err(named(Error::invalid(format!(
            "a chain of more than {MAX_CHAIN} images, or one without end"
        ))));
    }
    let data = header.open_data_file(file.path(), allowed)?;
    header.check(file, data.as_ref()).map_err(named)?;
    let backing = match &header.backing {
        Some(name) => Some(open_backing(&beside(file.path(), name), &header, allowed, depth + 1)?),
        None => None,
    };
    let builder = Qcow2::<File>::builder(storage(file)?).backing(backing);
    let builder = builder.data_file(data.as_ref().map(storage).transpose()?);
    let image = builder.open(DenyImplicitOpenGate::default()).map_err(|e| named(not_opened(e)))?;
    Ok(FormatAccess::new(image))
}

fn open_backing(
    path: &Path,
    above: &Header,
    allowed: &AllowedDirs,
    depth: usize,
) -> Result<FormatAccess<File>> {
    let file = allowed.open(path)?;
    match above.backing_format.as_deref() {
        Some("qcow2") => open_qcow2(&file, allowed, depth),
        None if Header::is_at_start_of(&file)? => open_qcow2(&file, allowed, depth),
        Some("raw" | "file") | None => {
            let raw = Raw::<File>::builder(storage(&file)?).open(DenyImplicitOpenGate::default());
            Ok(FormatAccess::new(raw.map_err(|e| not_opened(e).about(path.display()))?))
        }
        Some(format) => {
            Err(Error::unsupported(format!("the library does not read {format}")).about(path.display()))
        }
    }
}

/// The open file in the form that the library takes.
fn storage(file: &FileSource) -> Result<File> {
    let cannot = |e| Error::io("cannot open it once more", e).about(file.path().display());
    File::try_from(file.file().try_clone().map_err(cannot)?).map_err(cannot)
}

fn not_opened(error: io::Error) -> Error {
    let is_variant = error.kind() == io::ErrorKind::Unsupported
        // The library has no error of its own for features that are newer than itself.
        || error.to_string().contains("incompatible feature");
    if is_variant {
        Error::unsupported("the library does not read this variant").caused_by(error)
    } else {
        Error::io("cannot open it as a disk image", error)
    }
}

impl BlockDevice for LibraryDisk {
    fn size(&self) -> u64 {
        self.image.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // The library would return zeros there.
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(super::past_end(offset, self.size()));
        }
        self.image.read(buf, offset).map_err(|e| Error::io(format!("cannot read at {offset}"), e))
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let size = self.size();
        if offset >= size {
            return Err(super::past_end(offset, size));
        }
        let (mapping, len) = self
            .image
            .get_mapping(offset, size - offset)
            .map_err(|e| Error::io(format!("cannot find the data of byte {offset}"), e))?;
        let zero = matches!(mapping, Mapping::Zero { .. } | Mapping::Eof { .. });
        let end = if len == 0 { size } else { offset.saturating_add(len).min(size) };
        Ok(Extent { range: ByteRange::between(offset, end), zero })
    }
}
