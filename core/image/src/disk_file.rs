//! Disk images of other formats, opened as block devices to be imported.
//!
//! Raw files and devices and flat vmdk are read here, with their holes. qcow2 (backing chains, compressed clusters) is
//! read through the `imago` library. The formats that the library lacks (vhd, vhdx, sparse vmdk, zstd qcow2) go through
//! `qemu-img` if it is installed: it converts to a sparse raw file in a scratch directory.
//!
//! All of these read zeros past the end of a file: a file that was cut short would be an empty disk. So headers, tables
//! and places of data are compared with the files' ends before anything is read.
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

/// Formats of disk images that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFormat {
    /// The disk's bytes alone.
    Raw,
    /// QEMU copy-on-write, version 2 and 3.
    Qcow2,
    /// VMware, descriptor with flat or sparse extents.
    Vmdk,
    /// Microsoft Virtual PC and Azure; QEMU calls it `vpc`.
    Vhd,
    /// Microsoft Hyper-V.
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
    /// Finds the format of the file at `path` by its first bytes, and a fixed vhd, which looks like a raw disk, by its
    /// name and its last bytes.
    ///
    /// # Errors
    /// Errors of reading the file, and an error if it is a vhd by its name only.
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

/// The path and the manner of opening a disk image.
#[derive(Clone, Debug)]
pub struct DiskFile {
    /// The file or device.
    pub path: PathBuf,
    /// Its format; found by its bytes if it is not given.
    pub format: Option<DiskFormat>,
    /// The directories in which files that it names may be. Its own directory is one of them only if it is named here.
    pub allowed_dirs: Vec<PathBuf>,
}

/// An open disk image: a device to read and, during the reading, the scratch file behind it.
pub struct OpenDisk {
    device: Box<dyn BlockDevice>,
    /// The format that it was read from.
    pub format: DiskFormat,
    _scratch: Option<tempfile::TempPath>,
}

impl OpenDisk {
    /// The disk.
    #[must_use]
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }
}

impl DiskFile {
    /// A disk image at `path` whose format is found by its bytes.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), format: None, allowed_dirs: Vec::new() }
    }

    /// Opens it. `scratch` is a directory for a converted copy, if one is needed.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if it takes `qemu-img` and there is none; errors of the file, its
    /// chain or the conversion.
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
