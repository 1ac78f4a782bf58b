//! The merge of a header block with the extended headers in front of it.

use crate::entry::{TarEntry, TarKind, TarTime};
use crate::header::{BLOCK, HeaderFormat, TarHeader};
use crate::limits::{TarLimits, check, entry_name};
use crate::number;
use crate::pax::{PaxHeader, SparseRecords, malformed, number_or};
use crate::sparse::{PaxMap, old_file_size};
use headstart_block::{Error, Result, exact};

/// The extended headers in front of a header block.
#[derive(Debug, Default)]
pub(crate) struct Extended {
    pub(crate) pax: PaxHeader,
    /// The name from an `L` header; empty if there is none.
    pub(crate) long_path: Vec<u8>,
    /// The target from a `K` header; empty if there is none.
    pub(crate) long_link: Vec<u8>,
}

/// The place of the map of a sparse file.
#[derive(Debug)]
pub(crate) enum MapPlace {
    /// In the header block and the blocks that follow.
    Header,
    /// In these records.
    Records(SparseRecords),
    /// At the start of the content.
    Content,
}

/// An entry, as far as its headers tell: the offsets, the stored size and the map of a sparse file are not set.
#[derive(Debug)]
pub(crate) struct Merged {
    pub(crate) entry: TarEntry,
    /// The size that the headers give for the content, also for kinds that have none.
    pub(crate) declared: u64,
    pub(crate) map: Option<MapPlace>,
}

impl Merged {
    /// Merges `header`, which was parsed from `block`, with `extended`.
    ///
    /// # Errors
    /// Corrupt or Unsupported if the headers have something that is wrong, that is refused, or that exceeds `limits`.
    pub(crate) fn new(
        block: &[u8; BLOCK],
        header: &TarHeader<'_>,
        mut extended: Extended,
        limits: &TarLimits,
    ) -> Result<Self> {
        let long_path = Some(std::mem::take(&mut extended.long_path)).filter(|path| !path.is_empty());
        let mut path = long_path.or(extended.pax.path.take()).unwrap_or_else(|| header.path());
        let is_directory = header.typeflag == 0 && path.ends_with(b"/");
        // The records of a file in the old sparse format have no effect.
        let pax_map = if header.typeflag == b'S' { Ok(None) } else { extended.pax.sparse.place() };
        if let Ok(Some(_)) = pax_map {
            path = extended.pax.sparse.name.take().unwrap_or(path);
        }
        let merged = pax_map.and_then(|map| {
            check(path.len() as u64, limits.path_bytes, "path_bytes", "bytes of path")?;
            let kind = kind_of(header.typeflag, is_directory)?;
            let mut merged = Self::without_content(header, &mut extended, kind, limits)?;
            merged.set_content(block, header, map, extended.pax)?;
            Ok(merged)
        });
        let mut merged = merged.map_err(|e| e.about(entry_name(&path)))?;
        merged.entry.path = path;
        Ok(merged)
    }

    /// All that does not concern the content and the path.
    fn without_content(
        header: &TarHeader<'_>,
        extended: &mut Extended,
        kind: TarKind,
        limits: &TarLimits,
    ) -> Result<Self> {
        let Extended { pax, long_link, .. } = extended;
        pax.check_times()?;
        let entry = TarEntry {
            path: Vec::new(),
            kind,
            mode: exact(header.mode & 0o7777, "it has twelve bits"),
            uid: id(number_or(pax.uid.as_deref(), "uid", header.uid)?, "uid")?,
            gid: id(number_or(pax.gid.as_deref(), "gid", header.gid)?, "gid")?,
            mtime: match &pax.mtime {
                None => TarTime { seconds: header.mtime, nanoseconds: 0 },
                Some(text) => number::time(text).ok_or_else(|| malformed("mtime", text))?,
            },
            size: 0,
            stored_size: 0,
            link_target: match kind {
                TarKind::HardLink | TarKind::Symlink => {
                    let long_link = Some(std::mem::take(long_link)).filter(|link| !link.is_empty());
                    long_link.or(pax.link_path.take()).unwrap_or_else(|| header.link.to_vec())
                }
                _ => Vec::new(),
            },
            device: match kind {
                TarKind::CharDevice | TarKind::BlockDevice => {
                    (id(header.device.0, "major number")?, id(header.device.1, "minor number")?)
                }
                _ => (0, 0),
            },
            xattrs: pax.take_xattrs(limits.xattr_bytes)?,
            sparse: None,
            header_offset: 0,
            content_offset: 0,
        };
        check(entry.link_target.len() as u64, limits.path_bytes, "path_bytes", "bytes of link target")?;
        Ok(Self { entry, declared: 0, map: None })
    }

    /// Sets the sizes and the place of the map.
    fn set_content(
        &mut self,
        block: &[u8; BLOCK],
        header: &TarHeader<'_>,
        map: Option<PaxMap>,
        pax: PaxHeader,
    ) -> Result<()> {
        let declared = number_or(pax.size.as_deref(), "size", header.size)?;
        if !self.entry.kind.has_content() {
            // The size is of no use, so it may be anything, except where Go reads it before it knows the kind.
            if header.typeflag == 0 {
                size(header.size)?;
            }
            if map.is_some() {
                return Err(Error::corrupt("has the map of a sparse file, but is of another kind"));
            }
            if declared > 0 {
                self.declared = size(declared)?;
            }
            return Ok(());
        }
        size(header.size)?;
        self.declared = size(declared)?;
        let (file_size, place) = match map {
            Some(PaxMap::InRecords) => (pax.sparse.file_size()?, Some(MapPlace::Records(pax.sparse))),
            Some(PaxMap::InContent) => (pax.sparse.file_size()?, Some(MapPlace::Content)),
            None if header.typeflag == b'S' => {
                if header.format != HeaderFormat::Gnu {
                    return Err(Error::corrupt("is a sparse file of GNU's old format without a GNU header"));
                }
                let file_size = old_file_size(block);
                (
                    Some(file_size.ok_or_else(|| Error::corrupt("its sparse size is not a number"))?),
                    Some(MapPlace::Header),
                )
            }
            None => (None, None),
        };
        self.entry.size = size(file_size.unwrap_or(declared))?;
        self.map = place;
        Ok(())
    }
}

/// The kind of a typeflag.
///
/// # Errors
/// Unsupported if entries with the typeflag make no file.
fn kind_of(typeflag: u8, is_directory: bool) -> Result<TarKind> {
    let meaning = match typeflag {
        0 if is_directory => return Ok(TarKind::Directory),
        0 | b'0' | b'7' | b'S' => return Ok(TarKind::Regular),
        b'1' => return Ok(TarKind::HardLink),
        b'2' => return Ok(TarKind::Symlink),
        b'3' => return Ok(TarKind::CharDevice),
        b'4' => return Ok(TarKind::BlockDevice),
        b'5' => return Ok(TarKind::Directory),
        b'6' => return Ok(TarKind::Fifo),
        b'D' => "a directory of an incremental dump",
        b'M' => "the rest of a file from another volume",
        b'N' => "old long names",
        b'V' => "a volume label",
        _ => "unknown",
    };
    let flag = [typeflag];
    let flag = flag.escape_ascii();
    let cause = format!("has the typeflag '{flag}' ({meaning}), which no container runtime unpacks");
    Err(Error::unsupported(cause).remedy("write the layer without such entries"))
}

/// An id, or one number of a device.
fn id(number: i64, what: &str) -> Result<u32> {
    let cause = || format!("has the {what} {number}, which is outside of 0 to {}", u32::MAX);
    u32::try_from(number).map_err(|_| Error::unsupported(cause()))
}

fn size(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| Error::corrupt(format!("has a size of {number} bytes")))
}
