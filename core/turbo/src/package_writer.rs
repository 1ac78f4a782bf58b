//! Writing the blob of a TurboOCI layer; [`crate::package`] reads it and describes its files.
//!
//! The tar archive is the reference's to the byte: the same names in the same order, and headers in which everything
//! is fixed but the length. The gzip stream around it has the reference's header; the deflate stream in it is this
//! crate's own, and the same on every machine.

use crate::format::{GzipCrc, low_half};
use crate::index::SourceReader;
use crate::package::{BLOCK, GZIP, MARK, SIZE_MAX, metadata_name};
use headstart_block::{Error, FileSystemKind, ReadAt, Result, to_usize};
use miniz_oxide::deflate::core::{CompressorOxide, create_comp_flags_from_zip_params};
use miniz_oxide::deflate::stream::deflate;
use miniz_oxide::{MZError, MZFlush, MZStatus};
use std::io::{Read, Write};

/// The level of the gzip stream. The files in it are packed already; more takes time and saves nothing.
const LEVEL: i32 = 1;
/// The gzip header: deflate, no time, no name, an unknown system; as Go's library writes it for the reference.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// Bytes that are copied and packed at once.
const PART: usize = 64 << 10;
/// Zeros at the end of a tar archive.
const END: usize = 2 * BLOCK;

/// The content of a package.
pub struct NewPackage<'a> {
    /// The file system that the metadata is of.
    pub kind: FileSystemKind,
    /// The metadata: a ZFile with an LSMT layer.
    pub metadata: &'a mut dyn Read,
    /// Length of the metadata in bytes.
    pub metadata_len: u64,
    /// The index of the target; `None` if the target is not compressed.
    pub gzip_index: Option<&'a dyn ReadAt>,
}

impl NewPackage<'_> {
    /// Writes the package to `out`. `tar` is called with all bytes of the tar archive, part by part: their digest is
    /// the one that an image's config has. The same content gives the same bytes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if the files have more bytes than readers accept;
    /// [`headstart_block::ErrorKind::Invalid`] if the metadata does not have its length; errors of the metadata and of
    /// `out`.
    pub fn write(self, tar: &mut dyn FnMut(&[u8]), out: &mut dyn Write) -> Result<()> {
        let index_len = self.gzip_index.map_or(0, ReadAt::len);
        let files = padded(self.metadata_len).saturating_add(padded(index_len));
        if files > SIZE_MAX {
            return Err(Error::unsupported(format!(
                "its metadata has {files} bytes, more than the {SIZE_MAX} of a TurboOCI layer"
            ))
            .remedy("convert the image with --mode native"));
        }
        let mut writer = PackageWriter { gzip: GzipWriter::new(out)?, tar };
        writer.header(metadata_name(self.kind), self.metadata_len)?;
        writer.copy(self.metadata, self.metadata_len)?;
        writer.header(MARK, 0)?;
        if let Some(index) = self.gzip_index {
            writer.header(GZIP, index_len)?;
            writer.copy(&mut SourceReader { source: index, next: 0, end: index_len }, index_len)?;
        }
        writer.put(&[0; END])?;
        writer.gzip.finish()
    }
}

/// A length with the padding behind it.
fn padded(len: u64) -> u64 {
    len.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX)
}

/// The tar archive on its way into the gzip stream.
struct PackageWriter<'a> {
    gzip: GzipWriter<'a>,
    tar: &'a mut dyn FnMut(&[u8]),
}

impl PackageWriter<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        (self.tar)(bytes);
        self.gzip.put(bytes)
    }

    fn header(&mut self, name: &str, len: u64) -> Result<()> {
        self.put(&tar_header(name, len))
    }

    fn pad(&mut self, len: u64) -> Result<()> {
        self.put(&[0; BLOCK][..to_usize(padded(len) - len)])
    }

    /// Copies a file, which must have `len` bytes.
    fn copy(&mut self, from: &mut dyn Read, len: u64) -> Result<()> {
        let (mut buf, mut done) = (vec![0; PART], 0);
        let mut from = from.take(len.saturating_add(1));
        loop {
            match from.read(&mut buf) {
                Ok(0) => break,
                Ok(read) => {
                    self.put(&buf[..read])?;
                    done += read as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        if done != len {
            return Err(Error::invalid(format!("the metadata does not have {len} bytes")));
        }
        self.pad(len)
    }
}

/// A header as Go's library writes it for a file with only a name, a mode and a length.
fn tar_header(name: &str, len: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut set = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, name.as_bytes());
    set(100, b"0000644\0");
    set(108, b"0000000\0");
    set(116, b"0000000\0");
    set(124, format!("{len:011o}\0").as_bytes());
    set(136, b"00000000000\0");
    set(148, b"        ");
    set(156, b"0");
    set(257, b"ustar\x0000");
    set(329, b"0000000\0");
    set(337, b"0000000\0");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// A gzip stream of one member. Not that of a library whose code depends on how the program is built: the digest of a
/// package must not.
struct GzipWriter<'a> {
    out: &'a mut dyn Write,
    compressor: Box<CompressorOxide>,
    crc: GzipCrc,
    len: u64,
    buf: Box<[u8]>,
}

impl<'a> GzipWriter<'a> {
    fn new(out: &'a mut dyn Write) -> Result<Self> {
        out.write_all(&GZIP_HEADER)?;
        // Negative: a deflate stream without the header of zlib.
        let flags = create_comp_flags_from_zip_params(LEVEL, -15, 0);
        let compressor = Box::new(CompressorOxide::new(flags));
        Ok(Self { out, compressor, crc: GzipCrc::new(), len: 0, buf: vec![0; PART].into() })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.crc.update(bytes);
        self.len += bytes.len() as u64;
        self.deflate(bytes, MZFlush::None)
    }

    fn finish(mut self) -> Result<()> {
        self.deflate(&[], MZFlush::Finish)?;
        self.out.write_all(&self.crc.value().to_le_bytes())?;
        Ok(self.out.write_all(&low_half(self.len))?)
    }

    fn deflate(&mut self, mut bytes: &[u8], flush: MZFlush) -> Result<()> {
        loop {
            let step = deflate(&mut self.compressor, bytes, &mut self.buf, flush);
            self.out.write_all(&self.buf[..step.bytes_written])?;
            bytes = &bytes[step.bytes_consumed..];
            match step.status {
                Ok(MZStatus::StreamEnd) => return Ok(()),
                // There is nothing more to give, and nothing more to take.
                Err(MZError::Buf) if bytes.is_empty() && flush == MZFlush::None => return Ok(()),
                Ok(MZStatus::Ok) if bytes.is_empty() && flush == MZFlush::None => return Ok(()),
                Ok(_) => {}
                Err(_) => return Err(Error::invalid("cannot pack the files of a TurboOCI layer")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::{PackageBudget, TurboPackage};
    use crate::support::{data, golden};
    use flate2::read::GzDecoder;
    use headstart_block::ErrorKind;
    use std::fs;

    /// A package, and its tar archive.
    fn write(kind: FileSystemKind, metadata: &[u8], gzip_index: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
        let (mut blob, mut tar) = (Vec::new(), Vec::new());
        let metadata_len = metadata.len() as u64;
        let index = gzip_index.map(<[u8]>::to_vec);
        let gzip_index = index.as_ref().map(|index| index as &dyn ReadAt);
        let package = NewPackage { kind, metadata: &mut &metadata[..], metadata_len, gzip_index };
        package.write(&mut |part| tar.extend_from_slice(part), &mut blob).unwrap();
        (blob, tar)
    }

    fn inflated(blob: &[u8]) -> Vec<u8> {
        let mut tar = Vec::new();
        GzDecoder::new(blob).read_to_end(&mut tar).unwrap();
        tar
    }

    #[test]
    fn a_header_is_that_of_the_reference() {
        let header = tar_header("ext4.fs.meta", 0o6266);
        assert_eq!(
            &header[100..156],
            b"0000644\x000000000\x000000000\x0000000006266\x0000000000000\x00011362\0 "
        );
        assert_eq!((header[156], &header[257..265]), (b'0', &b"ustar\x0000"[..]));
        assert_eq!(&tar_header(".turbo.ociv1", 0)[148..156], b"011347\0 ");
        assert_eq!(&tar_header("gzip.meta", 0o625)[148..156], b"011031\0 ");
    }

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 511, 512, 513, 300_000] {
            let (metadata, index) = (data(1, len), data(2, len / 3));
            for (kind, index) in [(FileSystemKind::Ext4, Some(&index[..])), (FileSystemKind::Erofs, None)] {
                let (blob, tar) = write(kind, &metadata, index);
                assert_eq!((&blob[..10], inflated(&blob) == tar), (&GZIP_HEADER[..], true));
                let package = TurboPackage::open(&blob, &mut PackageBudget::default()).unwrap();
                assert_eq!(package.gzip_index.as_ref().and_then(ReadAt::as_slice), index);
                let (found, content) = package.into_metadata();
                assert_eq!((found, content.as_slice()), (kind, Some(&metadata[..])));
            }
        }
    }

    #[test]
    fn a_package_that_no_reader_takes_is_refused() {
        let mut out = Vec::new();
        let mut write = |metadata: &[u8], metadata_len| {
            let package = NewPackage {
                kind: FileSystemKind::Ext4,
                metadata: &mut &metadata[..],
                metadata_len,
                gzip_index: None,
            };
            package.write(&mut |_| {}, &mut out).unwrap_err().kind()
        };
        assert_eq!(write(b"", SIZE_MAX + 1), ErrorKind::Unsupported);
        assert_eq!(write(b"", u64::MAX), ErrorKind::Unsupported);
        assert_eq!((write(b"ab", 3), write(b"ab", 1)), (ErrorKind::Invalid, ErrorKind::Invalid));
    }

    #[test]
    fn the_files_of_golden_packages_give_their_archives() {
        let Some(golden) = golden() else { return };
        for (image, layers) in [("img3", 3), ("quirks2", 2), ("xlink2", 2)] {
            for layer in 0..layers {
                let read = |name: &str| fs::read(golden.join(format!("{image}/turbo/layer{layer}.{name}")));
                let (metadata, index) = (read("ext4.fs.meta").unwrap(), read("gzip.meta").ok());
                let blob = read("turboOCIv1.tar.gz").unwrap();
                let (written, tar) = write(FileSystemKind::Ext4, &metadata, index.as_deref());
                assert!(tar == inflated(&blob) && written[..10] == blob[..10], "{image}, {layer}");
            }
        }
    }
}
