//! qcow2 files: the header, and the tables checked against the file's end.
//!
//! Programs that read qcow2 take bytes past the end of a file for zeros. In a file that was cut short the tables are
//! zeros then, and the disk is empty without an error. So all parts that the disk needs are looked for first:
//!
//! ```text
//! header -> table of tables (L1) -> tables (L2) -> clusters of the disk
//! ```
//!
//! Format: `docs/interop/qcow2.txt` of QEMU. All numbers are big-endian.

use super::{AllowedDirs, chain};
use headstart_block::{Error, FileSource, ReadAt, Result, to_usize};
use std::collections::HashSet;
use std::path::Path;

/// The first bytes of a qcow2 file.
const MAGIC: &[u8] = b"QFI\xfb";
/// The length of the header of version 2, in bytes; later versions store the length of theirs.
const V2_HEADER: usize = 72;
/// The longest header and extensions that are read, in bytes.
const MAX_HEADER: u64 = 64 << 10;
/// The longest name of another file, in bytes: the limit of QEMU.
const MAX_NAME: u64 = 1023;
/// The most tables: the limit of QEMU.
const MAX_TABLES: u64 = (32 << 20) / 8;
/// The offset in an entry of a table.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bits of an entry: its cluster has one user; it is compressed; it reads as zeros.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
/// Bits of the features without which an image cannot be read.
const EXTERNAL_DATA: u64 = 1 << 2;
const EXTENDED_ENTRIES: u64 = 1 << 4;
/// Compressed clusters are counted in sectors.
const SECTOR: u64 = 512;
const TRUNCATED: &str = "it is truncated: copy it again";

/// The numbers of a qcow2 header that give the places of the disk's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// The size of the disk, in bytes.
    pub(super) size: u64,
    /// The number of bits of an offset in a cluster, 9 to 21.
    cluster_bits: u64,
    tables: u64,
    tables_offset: u64,
    features: u64,
    /// `true` if compressed clusters are deflate streams, not zstd frames.
    is_deflate: bool,
    /// The file below, as the header names it.
    pub(super) backing: Option<String>,
    /// The format of the file below, if it is given: `raw`, `qcow2`, ...
    pub(super) backing_format: Option<String>,
    /// The name of the file that holds the disk's bytes, if that is another one; empty if it is not given.
    pub(super) data_file: Option<String>,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Header {
    /// Reads the header of `file`; `None` if it is not a qcow2 image.
    ///
    /// ```text
    /// byte 0   "QFI\xfb"
    /// byte 4   version, u32
    /// byte 8   offset of the backing file's name, u64, 0 = none; its length at byte 16, u32
    /// byte 20  number of bits of an offset in a cluster, u32, 9 to 21
    /// byte 24  size of the disk in bytes, u64
    /// byte 32  method of encryption, u32, 0 = none
    /// byte 36  entries of the table of tables, u32; its offset at byte 40, u64
    /// byte 72  features without which it cannot be read, u64, from version 3 on; bit 2 = the disk's bytes are in
    ///          another file, bit 4 = entries of 16 bytes in the tables, not 8
    /// byte 100 length of the header, u32, from version 3 on
    /// byte 104 method of compression, u8, if the header is that long: 0 = deflate, 1 = zstd
    /// ```
    ///
    /// # Errors
    /// Errors if the header is cut off, encrypted, or its numbers do not fit each other: a few bytes could otherwise
    /// keep a reader walking through an exabyte of nothing.
    pub(super) fn read(file: &dyn ReadAt) -> Result<Option<Self>> {
        let mut head = vec![0; to_usize(file.len().min(MAX_HEADER))];
        file.read_at(&mut head, 0)?;
        if !head.starts_with(MAGIC) {
            return Ok(None);
        }
        let cut_off = || Error::corrupt("ends in its header").remedy(TRUNCATED);
        let field = |at: usize, len: usize| head.get(at..at + len).map(number).ok_or_else(cut_off);
        let version = field(4, 4)?;
        if version < 2 {
            return Err(Error::invalid("is qcow version 1").remedy("convert it with qemu-img convert first"));
        }
        if field(32, 4)? != 0 {
            return Err(Error::invalid("is encrypted").remedy("decrypt it with qemu-img convert first"));
        }
        let cluster_bits @ 9..=21 = field(20, 4)? else {
            return Err(Error::corrupt("has clusters of a size that there is not"));
        };
        let (features, length) =
            if version >= 3 { (field(72, 8)?, to_usize(field(100, 4)?)) } else { (0, V2_HEADER) };
        let backing_offset = field(8, 8)?;
        // The list of extensions ends with its own mark, the backing file's name or the first cluster.
        let list_end = if backing_offset > 0 { backing_offset } else { 1 << cluster_bits };
        let list_end = to_usize(list_end.min(MAX_HEADER)).max(length);
        let extensions = head.get(length..).ok_or_else(cut_off)?;
        let (extensions, is_cut_off) = match extensions.get(..list_end - length) {
            Some(list) => (list, false),
            None => (extensions, true),
        };
        let mut header = Self {
            size: field(24, 8)?,
            cluster_bits,
            tables: field(36, 4)?,
            tables_offset: field(40, 8)?,
            features,
            is_deflate: length <= 104 || head.get(104).is_none_or(|method| *method == 0),
            backing: backing_name(file, backing_offset, field(16, 4)?)?,
            backing_format: None,
            data_file: (features & EXTERNAL_DATA != 0).then(String::new),
        };
        if header.tables > MAX_TABLES || header.needed_tables() > header.tables {
            return Err(Error::corrupt(format!("has {} tables, which does not fit its size", header.tables)));
        }
        if !header.read_extensions(extensions)? && is_cut_off {
            // The missing part may contain the name of a file that holds the data.
            return Err(Error::corrupt("ends in its header's extensions").remedy(TRUNCATED));
        }
        Ok(Some(header))
    }

    /// Reads extensions: u32 type, u32 length in bytes, the text, zeros up to 8 bytes; type 0 ends them. Returns `true`
    /// if that end is there.
    fn read_extensions(&mut self, mut bytes: &[u8]) -> Result<bool> {
        const BACKING_FORMAT: u64 = 0xe279_2aca;
        const DATA_FILE: u64 = 0x4441_5441;
        while let (Some(kind), Some(len)) = (bytes.get(..4).map(number), bytes.get(4..8).map(number)) {
            let len = to_usize(len);
            let text = bytes.get(8..).and_then(|rest| rest.get(..len));
            match (kind, text) {
                (0, _) => return Ok(true),
                (_, None) => break,
                (BACKING_FORMAT, Some(text)) => self.backing_format = Some(name(text)?),
                (DATA_FILE, Some(text)) if self.data_file.is_some() => self.data_file = Some(name(text)?),
                _ => {}
            }
            bytes = bytes[8..].get(len.next_multiple_of(8)..).unwrap_or_default();
        }
        Ok(false)
    }

    /// `true` if `file` begins as a qcow2 does.
    pub(super) fn is_at_start_of(file: &dyn ReadAt) -> Result<bool> {
        let mut start = [0; MAGIC.len()];
        if file.len() < MAGIC.len() as u64 {
            return Ok(false);
        }
        file.read_at(&mut start, 0)?;
        Ok(start == MAGIC)
    }

    /// Opens the file that holds the disk's bytes, if the image at `path` has another one for them.
    pub(super) fn open_data_file(&self, path: &Path, allowed: &AllowedDirs) -> Result<Option<FileSource>> {
        match self.data_file.as_deref() {
            None => Ok(None),
            Some("") => Err(Error::corrupt("does not name the file that has its data").about(path.display())),
            Some(name) => allowed.open(&chain::beside(path, name)).map(Some),
        }
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    fn entry_len(&self) -> u64 {
        if self.has(EXTENDED_ENTRIES) { 16 } else { 8 }
    }

    /// The number of bytes of the disk that one table covers.
    fn covered(&self) -> u64 {
        (self.cluster() / self.entry_len()) << self.cluster_bits
    }

    fn needed_tables(&self) -> u64 {
        self.size.div_ceil(self.covered())
    }

    /// Checks that all parts of `file` that the disk needs are there: the tables, and clusters unless they are in a
    /// `data` file, whose length is then checked instead.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] with what reaches past the end; errors of reading.
    pub(super) fn check(&self, file: &dyn ReadAt, data: Option<&FileSource>) -> Result<()> {
        let inside = |what: &str, offset: u64, len: u64| {
            check_inside(what, offset, len, file.len())?;
            usize::try_from(len).map_err(|_| Error::corrupt("has tables larger than memory"))
        };
        let len = inside("table of tables", self.tables_offset, self.needed_tables() * 8)?;
        let mut tables = vec![0; len];
        file.read_at(&mut tables, self.tables_offset)?;
        let mut table = Vec::new();
        let mut seen = HashSet::new();
        let mut start = 0;
        for entry in tables.chunks_exact(8) {
            let offset = number(entry) & OFFSET;
            // A table that occurs in several places is read once; the first covers as much of the disk as any.
            if offset != 0 && seen.insert(offset) {
                table.resize(inside("table", offset, self.cluster())?, 0);
                file.read_at(&mut table, offset)?;
                self.check_table(&table, start, file, data)?;
            }
            start += self.covered();
        }
        Ok(())
    }

    /// Checks the clusters of a table whose first is at byte `start` of the disk.
    fn check_table(
        &self,
        table: &[u8],
        start: u64,
        file: &dyn ReadAt,
        data: Option<&FileSource>,
    ) -> Result<()> {
        let step = to_usize(self.entry_len());
        let places = (start..self.size).step_by(1 << self.cluster_bits);
        for (entry, place) in table.chunks_exact(step).zip(places) {
            let on_disk = self.cluster().min(self.size - place);
            let subclusters = self.has(EXTENDED_ENTRIES).then(|| number(&entry[8..]));
            let entry = number(&entry[..8]);
            if entry & COMPRESSED != 0 {
                self.check_compressed(entry, on_disk, file)?;
                continue;
            }
            let offset = entry & OFFSET;
            let is_allocated = offset != 0 || (data.is_some() && entry & COPIED != 0);
            let used = match subclusters {
                _ if !is_allocated => 0,
                // The low half has a bit for each of 32 parts that are there.
                Some(bits) => {
                    let parts = 64 - (bits & 0xffff_ffff).leading_zeros();
                    (u64::from(parts) * self.cluster() / 32).min(on_disk)
                }
                None if entry & ZERO != 0 => 0,
                None => on_disk,
            };
            if used > 0 {
                check_inside("data", offset, used, data.map_or(file.len(), ReadAt::len))?;
            }
        }
        Ok(())
    }

    /// Checks a compressed cluster, which has `on_disk` bytes of the disk: its length is known in sectors only. If the
    /// file ends in the last of them, only decompressing it shows if something is missing.
    fn check_compressed(&self, entry: u64, on_disk: u64, file: &dyn ReadAt) -> Result<()> {
        let offset_bits = 62 - (self.cluster_bits - 8);
        let offset = entry & ((1 << offset_bits) - 1);
        let more_sectors = (entry & !(COPIED | COMPRESSED)) >> offset_bits;
        let end = offset / SECTOR * SECTOR + (more_sectors + 1) * SECTOR;
        if end <= file.len() {
            return Ok(());
        }
        let ends_earlier = check_inside("compressed data", offset, end - offset, file.len());
        if !self.is_deflate || end - SECTOR >= file.len() || offset >= file.len() {
            return ends_earlier;
        }
        // At most twice a cluster, according to the number of sectors.
        let mut packed = vec![0; to_usize(file.len() - offset)];
        file.read_at(&mut packed, offset)?;
        let mut bytes = vec![0; 1 << self.cluster_bits];
        let mut inflater = flate2::Decompress::new(false);
        let result = inflater.decompress(&packed, &mut bytes, flate2::FlushDecompress::Finish);
        if result.is_ok() && inflater.total_out() >= on_disk { Ok(()) } else { ends_earlier }
    }
}

/// The name of the backing file.
fn backing_name(file: &dyn ReadAt, offset: u64, len: u64) -> Result<Option<String>> {
    if offset == 0 || len == 0 {
        return Ok(None);
    }
    if len > MAX_NAME {
        return Err(Error::corrupt(format!("names a backing file by {len} bytes")));
    }
    check_inside("name of its backing file", offset, len, file.len())?;
    let mut bytes = vec![0; to_usize(len)];
    file.read_at(&mut bytes, offset)?;
    name(&bytes).map(Some)
}

fn name(bytes: &[u8]) -> Result<String> {
    let text = String::from_utf8(bytes.to_vec()).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| Error::corrupt("has a name in its header that is not text"))
}

/// Checks that `len` bytes at `offset` are in a file of `end` bytes.
pub(super) fn check_inside(what: &str, offset: u64, len: u64, end: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(last) if last <= end => Ok(()),
        _ => Err(Error::corrupt(format!(
            "has {end} bytes, but its {what} goes on to byte {}",
            offset.saturating_add(len)
        ))
        .remedy(TRUNCATED)),
    }
}
