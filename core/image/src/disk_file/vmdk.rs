//! vmdk: the descriptor and the files that it names, and sparse files checked against the file's end.
//!
//! A descriptor is text. Its extents are lines such as `RW 2048 SPARSE "disk-s001.vmdk"`: the disk is all of them, one
//! after the other. Flat extents are read here. Sparse ones are only checked, for `qemu-img`:
//!
//! ```text
//! header -> grain directory -> grain tables -> grains
//! ```
//!
//! Programs that read them take grains past the end of a file that was cut short for zeros.

use super::qcow2::check_inside;
use super::{AllowedDirs, RawDisk, chain};
use headstart_block::{
    BlockDevice, ByteRange, Error, Extent, FileSource, ReadAt, Result, SECTOR_SIZE, to_usize,
};
use std::path::Path;

/// The largest descriptor in bytes: the most that QEMU reads.
const MAX_DESCRIPTOR: u64 = 1 << 20;
/// The first bytes of a sparse file.
const SPARSE_MAGIC: &[u8] = b"KDMV";
/// The most bytes of one grain, and the most entries of a grain table: the limits of QEMU.
const MAX_GRAIN: u64 = 64 << 20;
const MAX_TABLE: u64 = 512;
/// The most bytes of the grain directory: the limit of QEMU, and more than a disk of 100 TiB needs.
const MAX_DIRECTORY: u64 = 32 << 20;
const TRUNCATED: &str = "it is truncated: copy it again";

/// One line of a descriptor: a run of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExtentLine {
    /// The length in sectors.
    sectors: u64,
    /// `FLAT`, `SPARSE`, `ZERO` and others.
    pub(super) kind: String,
    /// The file in which it is; `None` if the kind needs no file.
    pub(super) file: Option<String>,
    /// The offset of its beginning in the file, in sectors.
    offset: u64,
}

/// The text of a vmdk that names the files of the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) extents: Vec<ExtentLine>,
    /// The image below, if this one holds only the differences from it.
    pub(super) parent: Option<String>,
    /// The numbers of this content and of the content of the image below, and the way in which the extents belong
    /// together.
    cid: String,
    parent_cid: String,
    create_type: String,
    /// `true` if the database of adapters and geometry is there, with which all writers end a descriptor.
    has_end: bool,
}

impl Descriptor {
    /// The descriptor of the vmdk in `file`: all of it, or the one at the beginning of a sparse file.
    ///
    /// # Errors
    /// Errors if it cannot be parsed; errors of reading.
    pub(super) fn read(file: &dyn ReadAt) -> Result<Self> {
        let (offset, len) = match SparseHeader::read(file, 0)? {
            Some(header) if header.descriptor_sectors == 0 => return Ok(Self::default()),
            Some(header) => {
                let start = header.descriptor_offset.saturating_mul(SECTOR_SIZE);
                let len = header.descriptor_sectors.saturating_mul(SECTOR_SIZE);
                check_inside("descriptor", start, len, file.len())?;
                (start, len)
            }
            None => (0, file.len()),
        };
        if len > MAX_DESCRIPTOR {
            return Err(Error::unsupported(format!("has a descriptor of {len} bytes")));
        }
        let mut text = vec![0; to_usize(len)];
        file.read_at(&mut text, offset)?;
        let text = String::from_utf8_lossy(&text);
        Self::parse(text.split('\0').next().unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut descriptor = Self::default();
        for line in text.lines().map(str::trim) {
            let first = line.split_whitespace().next().unwrap_or_default();
            if matches!(first, "RW" | "RDONLY" | "NOACCESS") {
                let cannot = || Error::corrupt(format!("has an extent that cannot be understood: {line}"));
                descriptor.extents.push(ExtentLine::parse(line).ok_or_else(cannot)?);
                descriptor.has_end = false;
            }
            descriptor.has_end |= first.starts_with("ddb.");
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim().trim_matches('"').to_owned();
            match key.trim() {
                "parentFileNameHint" => descriptor.parent = Some(value),
                "CID" => descriptor.cid = value,
                "parentCID" => descriptor.parent_cid = value,
                "createType" => descriptor.create_type = value,
                _ => {}
            }
        }
        Ok(descriptor)
    }

    /// `true` if all of the disk is in flat files, with nothing below it.
    pub(super) fn is_flat(&self) -> bool {
        let flat = |extent: &ExtentLine| matches!(&extent.kind[..], "FLAT" | "VMFS" | "ZERO");
        self.parent.is_none() && !self.extents.is_empty() && self.extents.iter().all(flat)
    }

    /// A descriptor of the same disk whose extents are files named by their numbers, from 0 on. No empty line is in
    /// front of them: QEMU would take the first for two.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if an extent is in no file.
    pub(super) fn renamed(&self) -> Result<String> {
        let word = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
        let [cid, parent_cid, create_type] =
            [&self.cid, &self.parent_cid, &self.create_type].map(|text| word(text));
        let mut text = format!(
            "# Disk DescriptorFile\nversion=1\nCID={cid}\nparentCID={parent_cid}\ncreateType=\"{create_type}\"\n\n\
             # Extents\n"
        );
        for (name, extent) in self.extents.iter().enumerate() {
            if extent.file.is_none() {
                return Err(Error::unsupported("has extents of zeros beside sparse ones"));
            }
            let offset = if extent.kind == "FLAT" { format!(" {}", extent.offset) } else { String::new() };
            text += &format!("RW {} {} \"{name}\"{offset}\n", extent.sectors, word(&extent.kind));
        }
        Ok(text)
    }

    /// Checks that it is whole: without one of its lines, the disk would be a shorter one.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if no line shows that it is.
    pub(super) fn check_end(&self) -> Result<()> {
        if self.has_end {
            return Ok(());
        }
        Err(Error::corrupt("is a descriptor without its end (`ddb.` lines after the extents)")
            .remedy(TRUNCATED))
    }
}

fn too_long() -> Error {
    Error::corrupt("has an extent of more sectors than there can be")
}

impl ExtentLine {
    /// The offset of its beginning in its file and its length, in bytes.
    fn bytes(&self) -> Result<(u64, u64)> {
        let bytes = |sectors: u64| sectors.checked_mul(SECTOR_SIZE).ok_or_else(too_long);
        Ok((bytes(self.offset)?, bytes(self.sectors)?))
    }

    /// Parses `RW 4192256 FLAT "disk-f001.vmdk" 0`.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once('"').unwrap_or((line, ""));
        let mut words = before.split_whitespace();
        let access = words.next()?;
        let sectors = words.next()?.parse().ok()?;
        let kind = words.next().unwrap_or(access).to_owned();
        if kind == "ZERO" && words.next().is_none() {
            return Some(Self { sectors, kind, file: None, offset: 0 });
        }
        let (file, after) = after.split_once('"')?;
        let offset = after.split_whitespace().next().map_or(Some(0), |offset| offset.parse().ok())?;
        let is_readable = access != "NOACCESS" && words.next().is_none() && !file.is_empty();
        is_readable.then(|| Self { sectors, kind, file: Some(file.to_owned()), offset })
    }
}

/// The numbers of a sparse file's header.
struct SparseHeader {
    flags: u64,
    /// Sectors of the disk, of a grain, from the start to the descriptor, and of the descriptor.
    capacity: u64,
    grain: u64,
    descriptor_offset: u64,
    descriptor_sectors: u64,
    /// The number of grains that one table covers.
    table_len: u64,
    /// The first sector of the grain directory; all ones if the header at the file's end gives it.
    directory: u64,
    is_compressed: bool,
}

impl SparseHeader {
    const LEN: usize = 512;
    const AT_END: u64 = u64::MAX;
    /// Flags: grains that are marked 1 are zeros; grains begin with a marker that has their length.
    const HAS_ZERO_GRAINS: u64 = 1 << 2;
    const HAS_MARKERS: u64 = 1 << 17;

    /// Reads the header at `offset`; `None` if there is none. All numbers are little-endian.
    ///
    /// ```text
    /// byte 0   "KDMV"
    /// byte 8   flags, u32
    /// byte 12  capacity in sectors, u64
    /// byte 20  sectors of a grain, u64
    /// byte 28  first sector of the descriptor, u64; its sectors at byte 36, u64
    /// byte 44  entries of a grain table, u32
    /// byte 56  first sector of the grain directory, u64
    /// byte 77  method of compression, u16, 0 = none, 1 = deflate
    /// ```
    fn read(file: &dyn ReadAt, offset: u64) -> Result<Option<Self>> {
        let mut head = [0; Self::LEN];
        let len = to_usize(file.len().saturating_sub(offset)).min(Self::LEN);
        file.read_at(&mut head[..len], offset)?;
        if !head.starts_with(SPARSE_MAGIC) {
            return Ok(None);
        }
        check_inside("header", offset, Self::LEN as u64, file.len())?;
        Ok(Some(Self {
            flags: number(&head[8..12]),
            capacity: number(&head[12..20]),
            grain: number(&head[20..28]),
            descriptor_offset: number(&head[28..36]),
            descriptor_sectors: number(&head[36..44]),
            table_len: number(&head[44..48]),
            directory: number(&head[56..64]),
            is_compressed: number(&head[77..79]) != 0,
        }))
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Checks that all data of the disk that is in the sparse `file` is there.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] with what reaches past the end, and if it is no sparse file; errors of
/// reading.
pub(super) fn check_sparse(file: &dyn ReadAt) -> Result<()> {
    let Some(mut header) = SparseHeader::read(file, 0)? else {
        return Err(Error::corrupt("is not the sparse vmdk that its descriptor says"));
    };
    // QEMU looks for names in a file without a capacity; real disks have one.
    if header.capacity == 0 {
        return Err(Error::invalid("is a sparse vmdk without a capacity"));
    }
    if header.directory == SparseHeader::AT_END {
        // The footer is before the last sector, which ends the stream.
        let at_end = file.len().checked_sub(2 * SparseHeader::LEN as u64);
        let footer = at_end.map(|offset| SparseHeader::read(file, offset)).transpose()?.flatten();
        header = footer.ok_or_else(|| Error::corrupt("has no footer").remedy(TRUNCATED))?;
    }
    let table_sectors = header.grain.saturating_mul(header.table_len);
    if !(1..=MAX_GRAIN / SECTOR_SIZE).contains(&header.grain) || !(1..=MAX_TABLE).contains(&header.table_len)
    {
        return Err(Error::corrupt("has grains or tables of a size that there is not"));
    }
    let directory_len = header.capacity.div_ceil(table_sectors).saturating_mul(4);
    if directory_len > MAX_DIRECTORY {
        return Err(Error::corrupt(format!("has a grain directory of {directory_len} bytes")));
    }
    let directory = entries(file, "grain directory", header.directory, directory_len)?;
    for (table, start) in directory.into_iter().zip((0..).step_by(to_usize(table_sectors))) {
        if table != 0 {
            let table = entries(file, "grain table", table, header.table_len * 4)?;
            check_grains(file, &header, &table, start)?;
        }
    }
    Ok(())
}

/// The entries of a table of `len` bytes: the first sectors of the tables or grains below it.
fn entries(file: &dyn ReadAt, what: &str, sector: u64, len: u64) -> Result<Vec<u64>> {
    let offset = sector.saturating_mul(SECTOR_SIZE);
    check_inside(what, offset, len, file.len())?;
    let mut bytes = vec![0; to_usize(len)];
    file.read_at(&mut bytes, offset)?;
    Ok(bytes.chunks_exact(4).map(number).collect())
}

/// Checks the grains of a table whose first is at sector `start` of the disk.
fn check_grains(file: &dyn ReadAt, header: &SparseHeader, table: &[u64], start: u64) -> Result<()> {
    let step = to_usize(header.grain);
    for (grain, place) in table.iter().zip((start..header.capacity).step_by(step)) {
        let is_zero = *grain == 1 && header.flags & SparseHeader::HAS_ZERO_GRAINS != 0;
        if *grain == 0 || is_zero {
            continue;
        }
        let offset = grain * SECTOR_SIZE;
        let len = if !header.is_compressed {
            header.grain.min(header.capacity - place) * SECTOR_SIZE
        } else if header.flags & SparseHeader::HAS_MARKERS != 0 {
            // Its place on the disk, u64, and its length, u32.
            let mut marker = [0; 12];
            check_inside("grain", offset, 12, file.len())?;
            file.read_at(&mut marker, offset)?;
            12 + number(&marker[8..])
        } else {
            1
        };
        check_inside("grain", offset, len, file.len())?;
    }
    Ok(())
}

/// A disk in flat files, one after the other.
struct FlatDisk {
    parts: Vec<Part>,
}

struct Part {
    /// Its range of the disk.
    range: ByteRange,
    /// Its file and the offset of its beginning there; `None` if it is zeros.
    file: Option<(RawDisk, u64)>,
}

/// Opens the vmdk in `file` if it is flat; the files that it names must be in `allowed` directories.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] if it is not flat; an error if a file is damaged, or may not be opened.
pub(super) fn open(file: &FileSource, allowed: &AllowedDirs) -> Result<Box<dyn BlockDevice>> {
    let descriptor = check(file, allowed)?;
    if !descriptor.is_flat() {
        return Err(Error::unsupported("is not a flat vmdk"));
    }
    open_flat(&descriptor, file.path(), allowed)
}

/// `true` if `file` is a sparse vmdk, not a text.
///
/// # Errors
/// Errors if its header is cut off; errors of reading.
pub(super) fn is_sparse(file: &FileSource) -> Result<bool> {
    Ok(SparseHeader::read(file, 0)?.is_some())
}

/// Checks the vmdk in `file` and its extents against the ends of their files. Returns its descriptor.
///
/// # Errors
/// Errors if a file is damaged, or may not be opened.
pub(super) fn check(file: &FileSource, allowed: &AllowedDirs) -> Result<Descriptor> {
    let descriptor = Descriptor::read(file)?;
    if is_sparse(file)? {
        check_sparse(file)?;
        return Ok(descriptor);
    }
    for extent in &descriptor.extents {
        let Some(name) = &extent.file else { continue };
        let path = chain::beside(file.path(), name);
        let file = allowed.open(&path)?;
        let checked = match &extent.kind[..] {
            "FLAT" | "VMFS" => {
                extent.bytes().and_then(|(offset, len)| check_inside("extent", offset, len, file.len()))
            }
            "SPARSE" => check_sparse(&file),
            // Only `qemu-img check` knows these.
            _ => Ok(()),
        };
        checked.map_err(|e| e.about(path.display()))?;
    }
    descriptor.check_end()?;
    Ok(descriptor)
}

fn open_flat(descriptor: &Descriptor, path: &Path, allowed: &AllowedDirs) -> Result<Box<dyn BlockDevice>> {
    let mut parts = Vec::new();
    let mut start = 0u64;
    for extent in &descriptor.extents {
        let (offset, len) = extent.bytes()?;
        let file = extent.file.as_ref().map(|name| allowed.open(&chain::beside(path, name))).transpose()?;
        let range = ByteRange::new(start, len).ok_or_else(too_long)?;
        start = range.end();
        parts.push(Part { range, file: file.map(|file| (RawDisk::of(file), offset)) });
    }
    Ok(Box::new(FlatDisk { parts }))
}

impl FlatDisk {
    /// The parts from the one that holds `offset` on.
    fn parts_from(&self, offset: u64) -> &[Part] {
        &self.parts[self.parts.partition_point(|part| part.range.end() <= offset)..]
    }
}

impl BlockDevice for FlatDisk {
    fn size(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.range.end())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(super::past_end(offset, self.size()));
        }
        let (mut rest, mut offset) = (buf, offset);
        for part in self.parts_from(offset) {
            let len = rest.len().min(to_usize(part.range.end() - offset));
            let (here, after) = rest.split_at_mut(len);
            match &part.file {
                Some((file, start)) => file.read_at(here, start + (offset - part.range.offset()))?,
                None => here.fill(0),
            }
            (rest, offset) = (after, offset + len as u64);
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let past_end = || super::past_end(offset, self.size());
        let part = self.parts_from(offset).first().ok_or_else(past_end)?;
        let Some((file, start)) = &part.file else {
            return Ok(Extent { range: ByteRange::between(offset, part.range.end()), zero: true });
        };
        let there = file.extent_at(start + (offset - part.range.offset()))?;
        let end = part.range.end().min(offset + there.range.len());
        Ok(Extent { range: ByteRange::between(offset, end), zero: there.zero })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_read_as_they_are_written() {
        let text = "# Disk DescriptorFile\ncreateType=\"x\"\nRW 1 FLAT \"a b\" 7\n  RW\t2  SPARSE \"c\"\r\n\
                    RDONLY 4 ZERO\nparentFileNameHint=\"base.vmdk\"\nddb.adapterType = \"ide\"\n";
        let read = Descriptor::parse(text).unwrap();
        let line = |sectors, kind: &str, file: Option<&str>, offset| ExtentLine {
            sectors,
            kind: kind.to_owned(),
            file: file.map(str::to_owned),
            offset,
        };
        let expected =
            [line(1, "FLAT", Some("a b"), 7), line(2, "SPARSE", Some("c"), 0), line(4, "ZERO", None, 0)];
        assert_eq!(read.extents, expected);
        assert_eq!(read.parent.as_deref(), Some("base.vmdk"));
        read.check_end().unwrap();
        assert!(!read.is_flat());
        for bad in
            ["RW 1 FLAT", "RW x FLAT \"a\"", "NOACCESS 1 FLAT \"a\"", "RW 1 FLAT \"a", "RW 1 FLAT \"\""]
        {
            assert!(Descriptor::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_descriptor_that_was_cut_short_is_refused() {
        let cut = Descriptor::parse("RW 1 FLAT \"a\" 0\nddb.x = 1\nRW 1 FLAT \"b\" 0\n").unwrap();
        assert!(cut.check_end().unwrap_err().to_string().contains("truncated"));
    }
}
