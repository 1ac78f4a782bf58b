//! Disk images of other formats, opened as block devices to be imported.
//!
//! Raw files, block devices and flat vmdk are read here, with their holes. qcow2 (backing chains, compressed clusters)
//! is read through the `imago` library. The formats that the library lacks (vhd, vhdx, sparse vmdk, zstd qcow2) need
//! `qemu-img`, which converts them to a sparse raw file in a scratch directory.
//!
//! All of these readers return zeros past the end of a file, so a truncated file would become an empty disk. Therefore
//! headers, tables and places of data are compared with the ends of the files before any data is read.
//!
//! A disk image may name other files: its backing file, its extents. The author of the image chose those names, so a
//! hostile image could pull `/etc/shadow`, or another tenant's disk in the same directory, into a tenant's disk. Only
//! files in directories that the caller allows are opened; for any other file the error names the reason.

mod archives;
mod chain;
mod confined;
mod library;
mod qcow2;
mod qemu_img;
mod raw;
mod source;
mod vhd;
mod vmdk;

pub use chain::AllowedDirs;
pub use raw::RawDisk;

use crate::progress::Progress;
use headstart_block::{BlockDevice, Error, ErrorKind, FileSource, ReadAt, Result, to_usize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest chain of backing files: a chain that leads back to itself has no end.
const MAX_CHAIN: usize = 100;

/// The formats of disk images that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFormat {
    /// A file or block device that holds the disk's bytes and nothing else.
    Raw,
    /// The copy-on-write format of QEMU, version 2 or 3.
    Qcow2,
    /// The format of VMware: a descriptor and flat or sparse extents.
    Vmdk,
    /// The format of Microsoft Virtual PC and Azure, which QEMU calls `vpc`.
    Vhd,
    /// The format of Microsoft Hyper-V.
    Vhdx,
}

const FORMATS: [(DiskFormat, &str); 5] = [
    (DiskFormat::Raw, "raw"),
    (DiskFormat::Qcow2, "qcow2"),
    (DiskFormat::Vmdk, "vmdk"),
    (DiskFormat::Vhd, "vhd"),
    (DiskFormat::Vhdx, "vhdx"),
];

impl fmt::Display for DiskFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FORMATS.iter().find(|(format, _)| format == self).map_or("?", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for DiskFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        FORMATS.iter().find(|(_, name)| *name == text).map(|(format, _)| *format).ok_or_else(|| {
            Error::invalid(format!("`{text}` is not a disk format"))
                .remedy("use raw, qcow2, vmdk, vhd or vhdx, or leave it out to have it found")
        })
    }
}

impl DiskFormat {
    /// Detects the format of the file at `path` from its first bytes. A fixed-size vhd has no header; it is
    /// recognized by its name (`.vhd` or `.vpc`) and its footer. Every other file without a known header is
    /// taken for a raw disk.
    ///
    /// # Errors
    /// Errors of reading the file; [`headstart_block::ErrorKind::Corrupt`] if the file is named like a vhd,
    /// but has neither the header nor the footer of one.
    pub fn probe(path: &Path) -> Result<Self> {
        Self::of(&chain::open_disk(path)?)
    }

    fn of(file: &FileSource) -> Result<Self> {
        let path = file.path();
        let mut start = [0; 512];
        let len = start.len().min(to_usize(file.len()));
        file.read_at(&mut start[..len], 0)?;
        let is_vhd_name = path
            .extension()
            .is_some_and(|ext| ext.eq_ignore_ascii_case("vhd") || ext.eq_ignore_ascii_case("vpc"));
        Ok(match &start {
            s if s.starts_with(b"QFI\xfb") => Self::Qcow2,
            s if s.starts_with(b"KDMV") || s.starts_with(b"# Disk DescriptorFile") => Self::Vmdk,
            s if s.starts_with(b"vhdxfile") => Self::Vhdx,
            s if s.starts_with(b"conectix") => Self::Vhd,
            _ if is_vhd_name && !ends_like_vhd(file)? => {
                return Err(Error::corrupt("is named like a vhd, but does not end like one")
                    .about(path.display())
                    .remedy("it is truncated: copy it again, or say --format raw"));
            }
            _ if is_vhd_name => Self::Vhd,
            _ => Self::Raw,
        })
    }

    /// The name that `qemu-img` uses.
    fn qemu_name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vhd => "vpc",
            Self::Vhdx => "vhdx",
        }
    }
}

/// The error of a read of a disk past its end.
fn past_end(offset: u64, size: u64) -> Error {
    Error::invalid(format!("a read at {offset} reaches past the end of the disk ({size} bytes)"))
}

fn ends_like_vhd(file: &FileSource) -> Result<bool> {
    let mut cookie = [0; 8];
    match file.len().checked_sub(512) {
        Some(footer) => file.read_at(&mut cookie, footer)?,
        None => return Ok(false),
    }
    Ok(&cookie == b"conectix")
}

/// A disk image to be opened for import: its path, its format and the directories of other files that it may
/// refer to.
#[derive(Clone, Debug)]
pub struct DiskFile {
    /// The path of the file or block device.
    pub path: PathBuf,
    /// The format of the disk image. `None`: the format is detected from the file's content.
    pub format: Option<DiskFormat>,
    /// The directories in which files that the disk image names (backing files, extents) may be. Empty: no
    /// other file may be opened. The image's own directory is allowed only if it is listed here.
    pub allowed_dirs: Vec<PathBuf>,
}

/// An open disk image: a block device to read. If the format had to be converted, the temporary raw copy is
/// deleted when this is dropped.
pub struct OpenDisk {
    device: Box<dyn BlockDevice>,
    /// The format of the disk image's file.
    pub format: DiskFormat,
    _scratch: Option<tempfile::TempPath>,
}

impl OpenDisk {
    /// Returns the disk's content as a block device.
    #[must_use]
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }
}

impl DiskFile {
    /// Describes a disk image at `path` whose format is detected when it is opened, and which may name no
    /// other files.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), format: None, allowed_dirs: Vec::new() }
    }

    /// Opens the disk image. `scratch` is an existing directory for a temporary raw copy, which is made by
    /// `qemu-img` only for formats that cannot be read directly.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if the format needs `qemu-img` and that is not installed;
    /// [`headstart_block::ErrorKind::Invalid`] if the image names a file in a directory that is not allowed; if the
    /// format is to be detected, one of these two also for a file that is no disk (an archive, a compressed file, a
    /// disk of another program, a length that is not one or more sectors); errors of the file, of its backing files or
    /// of the conversion.
    pub fn open(&self, scratch: &Path, progress: &dyn Progress) -> Result<OpenDisk> {
        let file = chain::open_disk(&self.path)?;
        let named = |e| self.named(e);
        let format = self.format.map_or_else(|| DiskFormat::of(&file), Ok)?;
        let disk = match format {
            DiskFormat::Raw => {
                if self.format.is_none() {
                    archives::refuse(&file).map_err(named)?;
                }
                OpenDisk { device: Box::new(RawDisk::of(file)), format, _scratch: None }
            }
            _ => self.open_container(&file, format, scratch, progress).map_err(named)?,
        };
        // The size that a container gives for its disk may end within a sector; the bytes of a file that does were cut
        // off.
        if self.format.is_none() && (format == DiskFormat::Raw || disk.device.size() == 0) {
            archives::check_size(disk.device.size()).map_err(named)?;
        }
        Ok(disk)
    }

    fn open_container(
        &self,
        file: &FileSource,
        format: DiskFormat,
        scratch: &Path,
        progress: &dyn Progress,
    ) -> Result<OpenDisk> {
        let allowed = AllowedDirs::new(&self.allowed_dirs)?;
        let device = match format {
            DiskFormat::Qcow2 => library::open(file, &allowed),
            DiskFormat::Vmdk => vmdk::open(file, &allowed),
            DiskFormat::Raw | DiskFormat::Vhd | DiskFormat::Vhdx => Err(Error::unsupported("takes qemu-img")),
        };
        match device {
            Ok(device) => Ok(OpenDisk { device, format, _scratch: None }),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                let raw = qemu_img::convert_to_raw(file, format, &allowed, scratch, progress)?;
                let device = Box::new(RawDisk::open(&raw)?);
                Ok(OpenDisk { device, format, _scratch: Some(raw) })
            }
            Err(e) => Err(e),
        }
    }

    /// Names this file in front of the subject of an error, which may be a file that this one names.
    fn named(&self, error: Error) -> Error {
        let (path, error) = (self.path.display(), error.about(self.path.display()));
        if error.to_string().starts_with(&path.to_string()) {
            return error;
        }
        Error::new(error.kind(), error.to_string()).about(path)
    }
}
