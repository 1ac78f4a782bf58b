//! The blob of a TurboOCI layer: a tar archive in gzip, with these files.
//!
//! | name | content |
//! |---|---|
//! | `ext4.fs.meta` or `erofs.fs.meta`, or both | the metadata of the file system: a ZFile with an LSMT layer |
//! | `.turbo.ociv1` | nothing; a mark |
//! | `gzip.meta` | the index of the target (`format.rs`); only if the target is compressed by gzip |
//!
//! The LSMT layer's segments say in their tags where their data is: 0 in this layer, 1 in the uncompressed target.
//!
//! A package is small (a hundredth of its layer, or a few), so its files are read once and kept: in memory if they are
//! few, in temporary files otherwise. [`PackageBudget`] bounds both for all packages of an image. Names are those of
//! the plain tar header; other files are skipped.

use crate::index::{SourceReader, decoding_failed};
use crate::spool::Spool;
use flate2::read::MultiGzDecoder;
use headstart_block::{Error, ErrorKind, FileSystemKind, ReadAt, Result};
use std::io::{self, Read};

pub(crate) const BLOCK: usize = 512;
const EXT4: &str = "ext4.fs.meta";
const EROFS: &str = "erofs.fs.meta";
/// The mark.
pub(crate) const MARK: &str = ".turbo.ociv1";
pub(crate) const GZIP: &str = "gzip.meta";
/// Most files of a package.
const FILES_MAX: usize = 64;
/// Most bytes that the files of a package may have for each byte of it: the metadata in it is compressed already, and
/// real ones have 3 to 20.
const GROWTH_MAX: u64 = 64;
/// Bytes that the files of a package may have in any case, and never.
const SIZE_FREE: u64 = 1 << 20;
pub(crate) const SIZE_MAX: u64 = 1 << 30;
const DAMAGED: &str = "it is damaged, or no TurboOCI layer: fetch it again";

/// The space that the packages of one image may take, and what is left of it. Reading a package takes from it.
#[derive(Debug)]
pub struct PackageBudget {
    /// Bytes of files in memory.
    memory: usize,
    /// Bytes of all files.
    bytes: u64,
}

impl PackageBudget {
    /// Bytes of files in memory: 16 MiB, as images of a gigabyte have. Others are in temporary files.
    pub const MEMORY: usize = 16 << 20;
    /// Bytes of all files: 1 GiB, as images of some 80 GB have.
    pub const BYTES: u64 = SIZE_MAX;

    /// The budget of an image, with these bounds on the bytes of files, in memory and in all.
    #[must_use]
    pub fn new(memory: usize, bytes: u64) -> Self {
        Self { memory, bytes }
    }

    fn take(&mut self, bytes: u64) -> Result<()> {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| {
            Error::unsupported(
                "the metadata of the image's TurboOCI layers has more bytes than the 1 GiB for an image",
            )
            .remedy("convert the image with --mode native: its disk has no such limit")
        })?;
        Ok(())
    }
}

impl Default for PackageBudget {
    fn default() -> Self {
        Self::new(Self::MEMORY, Self::BYTES)
    }
}

/// The name of the file with the metadata.
pub(crate) fn metadata_name(kind: FileSystemKind) -> &'static str {
    match kind {
        FileSystemKind::Ext4 => EXT4,
        FileSystemKind::Erofs => EROFS,
    }
}

/// The files of a TurboOCI layer's blob.
#[derive(Debug)]
pub struct TurboPackage {
    /// The metadata for ext4, a ZFile with an LSMT layer; `None` if the package has none.
    pub ext4: Option<Spool>,
    /// The metadata for EROFS, in the same form; `None` if the package has none.
    pub erofs: Option<Spool>,
    /// The index of the target, in the format of [`GzipIndex`](crate::GzipIndex); `None` if the target is not
    /// compressed.
    pub gzip_index: Option<Spool>,
}

impl TurboPackage {
    /// Reads the package that `blob` holds, compressed by gzip or plain.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the blob is damaged, or has no metadata of a file system;
    /// [`headstart_block::ErrorKind::Unsupported`] if its files are too large or too many, or more than is left of the
    /// image's `budget`; errors of `blob` and of temporary files.
    pub fn open(blob: &dyn ReadAt, budget: &mut PackageBudget) -> Result<Self> {
        let mut magic = [0; 2];
        if blob.len() >= 2 {
            blob.read_at(&mut magic, 0)?;
        }
        let stored = SourceReader { source: blob, next: 0, end: blob.len() };
        let bytes: Box<dyn Read + '_> = match magic {
            [0x1f, 0x8b] => Box::new(MultiGzDecoder::new(stored)),
            _ => Box::new(stored),
        };
        let allowed = blob.len().saturating_mul(GROWTH_MAX).clamp(SIZE_FREE, SIZE_MAX);
        let package = read_files(bytes, allowed, budget).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => e.remedy(DAMAGED),
            _ => e,
        })?;
        if package.ext4.is_none() && package.erofs.is_none() {
            return Err(Error::corrupt(format!("has neither {EXT4} nor {EROFS}")).remedy(DAMAGED));
        }
        Ok(package)
    }

    /// Takes out the metadata of the file system to use: ext4 if the package has it, otherwise EROFS. All layers of an
    /// image must be of the same kind.
    #[must_use]
    pub fn into_metadata(self) -> (FileSystemKind, Spool) {
        match (self.ext4, self.erofs) {
            (Some(ext4), _) => (FileSystemKind::Ext4, ext4),
            (None, erofs) => (FileSystemKind::Erofs, erofs.unwrap_or_default()),
        }
    }
}

/// Reads the tar archive, whose files may have `allowed` bytes in all.
fn read_files(mut bytes: impl Read, allowed: u64, budget: &mut PackageBudget) -> Result<TurboPackage> {
    let mut package = TurboPackage { ext4: None, erofs: None, gzip_index: None };
    let mut left = allowed;
    for _ in 0..FILES_MAX {
        let Some((name, size)) = next_file(&mut bytes)? else { return Ok(package) };
        let padded = size.checked_next_multiple_of(BLOCK as u64).filter(|padded| *padded <= left);
        let Some(padded) = padded else {
            let cause = format!(
                "its files have more than {allowed} bytes, more than any metadata that compresses so"
            );
            return Err(Error::unsupported(cause).remedy(DAMAGED));
        };
        left -= padded;
        budget.take(padded)?;
        let place = match name.as_str() {
            EXT4 => Some(&mut package.ext4),
            EROFS => Some(&mut package.erofs),
            GZIP => Some(&mut package.gzip_index),
            _ => None,
        };
        let read = match place {
            // Grows with what is really there.
            Some(place) => {
                let mut content = Spool::new(budget.memory);
                let read = io::copy(&mut bytes.by_ref().take(padded), &mut content).map_err(failed)?;
                content.truncate(size);
                budget.memory = budget.memory.saturating_sub(content.memory());
                *place = Some(content);
                read
            }
            None => io::copy(&mut bytes.by_ref().take(padded), &mut io::sink()).map_err(failed)?,
        };
        if read != padded {
            return Err(Error::corrupt(format!("its file `{}` ends early", name.escape_default())));
        }
    }
    Err(Error::unsupported(format!("has more than {FILES_MAX} files, where three are known")).remedy(DAMAGED))
}

/// Reads a header: the name and the size of a file; `None` at the end of the archive.
fn next_file(bytes: &mut impl Read) -> Result<Option<(String, u64)>> {
    let mut header = Vec::with_capacity(BLOCK);
    bytes.by_ref().take(BLOCK as u64).read_to_end(&mut header).map_err(failed)?;
    if header.is_empty() || (header.len() == BLOCK && header.iter().all(|&byte| byte == 0)) {
        return Ok(None);
    }
    let header: [u8; BLOCK] = header.try_into().map_err(|_| Error::corrupt("ends inside a tar header"))?;
    let sum = |byte: (usize, &u8)| if (148..156).contains(&byte.0) { 32 } else { u64::from(*byte.1) };
    let sum: u64 = header.iter().enumerate().map(sum).sum();
    if octal(&header[148..156]) != Some(sum) {
        return Err(Error::corrupt("the checksum of a tar header is wrong"));
    }
    let size = octal(&header[124..136]).ok_or_else(|| Error::corrupt("a tar header has no size"))?;
    let name: Vec<u8> = header[..100].iter().copied().take_while(|&byte| byte != 0).collect();
    let name = String::from_utf8_lossy(&name);
    // Only files have content, and only theirs counts: names of other entries are not looked for.
    let is_file = matches!(header[156], b'0' | 0);
    let name = if is_file { name.trim_start_matches("./") } else { "" };
    Ok(Some((name.to_owned(), size)))
}

/// A number as tar writes it: octal digits, with spaces or NULs around.
fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches([' ', '\0']), 8).ok()
}

fn failed(error: io::Error) -> Error {
    decoding_failed(error, "its gzip stream is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::golden;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use headstart_block::ErrorKind;
    use std::fs;
    use std::io::Write;

    fn opened(blob: &dyn ReadAt) -> Result<TurboPackage> {
        TurboPackage::open(blob, &mut PackageBudget::default())
    }

    fn in_memory(file: Option<&Spool>) -> Option<&[u8]> {
        file.and_then(ReadAt::as_slice)
    }

    #[test]
    fn packages_of_an_image_share_memory_and_space() {
        let blob = gzip(&[file("ext4.fs.meta", &[1; 1500]), file("gzip.meta", &[2; 1500])].concat());
        let mut budget = PackageBudget::new(4000, 10_000);
        let mut read = || TurboPackage::open(&blob, &mut budget);
        let (first, second) = (read().unwrap(), read().unwrap());
        let files = [&first.ext4, &first.gzip_index, &second.ext4, &second.gzip_index];
        let files = files.map(|file| file.as_ref().unwrap());
        assert_eq!(files.map(|file| file.as_slice().is_some()), [true, true, false, false]);
        for (file, value) in files.into_iter().zip([1, 2, 1, 2]) {
            let mut content = [0; 1500];
            file.read_at(&mut content, 0).unwrap();
            assert_eq!((Spool::len(file), content), (1500, [value; 1500]));
        }
        let error = read().unwrap();
        assert!(error.ext4.is_some(), "3 x 3072 bytes are within the budget");
        let error = read().unwrap_err().to_string();
        assert!(error.contains("for an image") && error.contains("--mode native"), "{error}");
    }

    fn file(name: &str, content: &[u8]) -> Vec<u8> {
        let mut header = vec![0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u64 = header.iter().copied().map(u64::from).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        header.extend_from_slice(content);
        header.resize(header.len().next_multiple_of(BLOCK), 0);
        header
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_files_of_a_package_are_found() {
        let tar =
            [file("./ext4.fs.meta", b"fs"), file(".turbo.ociv1", b""), file("gzip.meta", &[7; 600])].concat();
        for blob in [gzip(&[&tar[..], &[0; 1024]].concat()), tar] {
            let package = opened(&blob).unwrap();
            assert_eq!((in_memory(package.ext4.as_ref()), package.erofs.is_none()), (Some(&b"fs"[..]), true));
            assert_eq!(in_memory(package.gzip_index.as_ref()), Some(&[7; 600][..]));
            let (kind, metadata) = package.into_metadata();
            assert_eq!((kind, in_memory(Some(&metadata))), (FileSystemKind::Ext4, Some(&b"fs"[..])));
        }
    }

    #[test]
    fn damaged_packages_are_refused() {
        let whole = gzip(&file("erofs.fs.meta", &[1; 3000]));
        assert!(opened(&whole).is_ok());
        for len in 0..whole.len() {
            let cut = opened(&whole[..len].to_vec()).unwrap_err();
            assert_eq!(cut.kind(), ErrorKind::Corrupt, "{len}: {cut}");
        }
        let none = opened(&gzip(&file("file", b""))).unwrap_err();
        assert!(none.to_string().contains("has neither ext4.fs.meta nor"), "{none}");
        let bomb = opened(&gzip(&file("ext4.fs.meta", &vec![0; 8 << 20]))).unwrap_err();
        assert_eq!(bomb.kind(), ErrorKind::Unsupported, "{bomb}");
    }

    #[test]
    fn packages_of_the_reference_have_the_files_beside_them() {
        let Some(golden) = golden() else { return };
        for (image, layers) in [("img3", 3), ("quirks2", 2), ("xlink2", 2)] {
            for layer in 0..layers {
                let read =
                    |name: &str| fs::read(golden.join(format!("{image}/turbo/layer{layer}.{name}"))).ok();
                let package = opened(&read("turboOCIv1.tar.gz").unwrap()).unwrap();
                assert!(in_memory(package.ext4.as_ref()) == read("ext4.fs.meta").as_deref());
                assert!(package.erofs.is_none());
                assert!(in_memory(package.gzip_index.as_ref()) == read("gzip.meta").as_deref());
            }
        }
    }
}
