//! A slow, plain reader of LSMT files, made from the notes on the format alone.
//!
//! It shares no code with the crate: bytes are sliced, and a disk is a map from every single sector to its
//! content. A file of the crate must read the same here, and a file that this reader reads must read the same there.

use std::collections::BTreeMap;

pub(crate) type Sector = [u8; 512];

/// A disk, sector by sector: `None` is a sector that was zeroed, one without entry was never written.
#[derive(Clone, Default)]
pub(crate) struct PlainDisk {
    pub(crate) size: u64,
    pub(crate) sectors: BTreeMap<u64, Option<Box<Sector>>>,
}

/// A header or trailer, field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainPage {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) index_offset: u64,
    pub(crate) index_size: u64,
    pub(crate) virtual_size: u64,
    pub(crate) uuid: String,
    pub(crate) parent_uuid: String,
    pub(crate) reserved: [u8; 2],
    pub(crate) version: [u8; 2],
    pub(crate) user_tag: String,
    pub(crate) rest_is_zero: bool,
}

/// One record of a table: offset, length, mapped offset, zeroed, tag.
pub(crate) type Record = [u64; 5];

/// A sealed layer.
pub(crate) struct PlainLayer {
    pub(crate) header: PlainPage,
    pub(crate) trailer: PlainPage,
    /// As stored, padding records dropped.
    pub(crate) records: Vec<Record>,
    /// The table as stored, padding records kept.
    pub(crate) table: Vec<u8>,
    pub(crate) disk: PlainDisk,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.iter().copied().take_while(|&byte| byte != 0).collect()).unwrap()
}

fn page(bytes: &[u8]) -> Result<PlainPage, String> {
    if bytes[..8] != [0x4c, 0x53, 0x4d, 0x54, 0, 1, 2, 0] {
        return Err("first magic".into());
    }
    let second =
        [0x65, 0x7e, 0x63, 0xd2, 0x94, 0x44, 0x08, 0x4c, 0xa2, 0xd2, 0xc8, 0xec, 0x4f, 0xcf, 0xae, 0x8a];
    if bytes[8..24] != second {
        return Err("second magic".into());
    }
    Ok(PlainPage {
        size: u32::from_le_bytes(bytes[24..28].try_into().unwrap()),
        flags: u32::from_le_bytes(bytes[28..32].try_into().unwrap()),
        index_offset: u64_at(bytes, 32),
        index_size: u64_at(bytes, 40),
        virtual_size: u64_at(bytes, 48),
        uuid: text(&bytes[56..93]),
        parent_uuid: text(&bytes[93..130]),
        reserved: bytes[130..132].try_into().unwrap(),
        version: bytes[132..134].try_into().unwrap(),
        user_tag: text(&bytes[134..390]),
        rest_is_zero: bytes[390..4096].iter().all(|&byte| byte == 0),
    })
}

fn records(table: &[u8]) -> Vec<Record> {
    let fields = |record: &[u8]| {
        let (lo, hi) = (u64_at(record, 0), u64_at(record, 8));
        [lo & ((1 << 50) - 1), lo >> 50, hi & ((1 << 55) - 1), (hi >> 55) & 1, hi >> 56]
    };
    table.chunks_exact(16).map(fields).filter(|record| record[0] != (1 << 50) - 1).collect()
}

/// Reads a sealed layer and checks the promises of the format.
pub(crate) fn sealed(file: &[u8]) -> Result<PlainLayer, String> {
    if file.len() < 8192 {
        return Err("too short".into());
    }
    let (header, trailer) = (page(&file[..4096])?, page(&file[file.len() - 4096..])?);
    if header.flags & 3 != 3 || trailer.flags & 7 != 6 {
        return Err(format!("flags {} and {}", header.flags, trailer.flags));
    }
    let start = trailer.index_offset as usize;
    let table = file[..file.len() - 4096].get(start..start + trailer.index_size as usize * 16);
    let table = table.ok_or("the table is not inside")?.to_vec();
    let records = records(&table);
    let mut disk = PlainDisk { size: trailer.virtual_size, ..PlainDisk::default() };
    let mut end = 0;
    for record in &records {
        let [offset, len, moffset, zeroed, _] = *record;
        let mapped_len = if zeroed == 1 { 0 } else { len };
        if offset < end || moffset < 8 || (moffset + mapped_len) * 512 > trailer.index_offset {
            return Err(format!("record {record:?} is out of order or out of the data"));
        }
        end = offset + len;
        disk.put(file, record);
    }
    Ok(PlainLayer { header, trailer, records, table, disk })
}

/// Reads an unsealed data file with its index file: a log in which later records win.
pub(crate) fn pair(data: &[u8], index: &[u8]) -> Result<PlainDisk, String> {
    let header = page(&data[..4096])?;
    page(&index[..4096])?;
    let mut disk = PlainDisk { size: header.virtual_size, ..PlainDisk::default() };
    for record in records(&index[4096..]) {
        disk.put(data, &record);
    }
    Ok(disk)
}

/// Reads an unsealed sparse file, given its extents of data (offset, length, in bytes).
pub(crate) fn sparse(file: &[u8], extents: &[(u64, u64)]) -> Result<PlainDisk, String> {
    let header = page(&file[..4096])?;
    let mut disk = PlainDisk { size: header.virtual_size, ..PlainDisk::default() };
    for (offset, len) in extents {
        let (first, last) = ((*offset).max(4096) / 512, (offset + len) / 512);
        if first < last {
            disk.put(file, &[first - 8, last - first, first, 0, 0]);
        }
    }
    Ok(disk)
}

impl PlainDisk {
    fn put(&mut self, file: &[u8], record: &Record) {
        let [offset, len, moffset, zeroed, _] = *record;
        for i in 0..len {
            let at = (moffset + i) as usize * 512;
            let bytes = (zeroed == 0).then(|| Box::new(file[at..at + 512].try_into().unwrap()));
            self.sectors.insert(offset + i, bytes);
        }
    }

    /// Writes `bytes` (whole sectors) at byte `offset`.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (sector, bytes) in (offset / 512..).zip(bytes.chunks_exact(512)) {
            self.sectors.insert(sector, Some(Box::new(bytes.try_into().unwrap())));
        }
    }

    /// Zeroes `len` bytes (whole sectors) at byte `offset`.
    pub(crate) fn discard(&mut self, offset: u64, len: u64) {
        for sector in offset / 512..(offset + len) / 512 {
            self.sectors.insert(sector, None);
        }
    }

    /// Lays `upper` over this disk: it wins where it says anything, and its size counts unless it is 0.
    pub(crate) fn overlaid(&mut self, upper: &Self) {
        self.sectors.extend(upper.sectors.iter().map(|(sector, bytes)| (*sector, bytes.clone())));
        if upper.size != 0 {
            self.size = upper.size;
        }
    }

    /// The bytes from `offset` on; they may go past the end, where there are zeros.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let end = offset + len as u64;
        for (sector, bytes) in self.sectors.range(offset / 512..end.div_ceil(512)) {
            let Some(bytes) = bytes else { continue };
            for (at, byte) in (sector * 512..).zip(bytes.iter()) {
                if (offset..end).contains(&at) {
                    out[(at - offset) as usize] = *byte;
                }
            }
        }
        out
    }

    /// Every block of 4096 bytes in which any sector was written, by number.
    pub(crate) fn written_blocks(&self) -> Vec<u64> {
        let mut blocks: Vec<_> =
            self.sectors.iter().filter(|(_, bytes)| bytes.is_some()).map(|(sector, _)| sector / 8).collect();
        blocks.dedup();
        blocks
    }

    /// Compares the content of every sector (not the size); the error names the first that differs.
    pub(crate) fn compare(&self, other: &Self) -> Result<(), String> {
        let sectors = self.sectors.keys().chain(other.sectors.keys());
        match sectors.into_iter().find(|sector| self.sectors.get(sector) != other.sectors.get(sector)) {
            Some(sector) => Err(format!("sector {sector} differs")),
            None => Ok(()),
        }
    }
}
