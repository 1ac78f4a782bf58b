//! The table of flash: the layout of the flash, the number of erasures of each block, and the bad blocks.
//!
//! | bytes | content (little-endian) |
//! |---|---|
//! | 0..8 | `HSFLASH` and the version, 1 |
//! | 8..14 | channels, dies, planes, of two bytes each |
//! | 14..16 | zero |
//! | 16..28 | blocks of a plane, pages of a block, bytes of a page, of four bytes each |
//! | 28..32 | zero |
//! | 32.. | four bytes a block: erasures, and the highest bit set if it is bad |
//! | the last 8 | CRC-64/NVME of all before |

use super::{FlashBlock, Geometry};
use crate::replace::put_in_place;
use crate::wrong_bit::named_bit;
use crc_fast::{CrcAlgorithm, checksum};
use headstart_block::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MAGIC: &[u8; 8] = b"HSFLASH\x01";
const HEADER: usize = 32;
/// The bit of an entry of a bad block.
pub(super) const BAD: u32 = 1 << 31;

/// Replaces the file of a table by `bytes`, atomically and durably.
///
/// # Errors
/// Errors of the operating system.
pub fn write(table: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(table, bytes).map_err(|error| Error::io("cannot be saved", error).about(table.display()))
}

/// Replaces a small file of one host, durably.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.to_owned().into_os_string();
    name.push(".new");
    let replace = || {
        let mut new = File::options().write(true).create(true).truncate(true).mode(0o600).open(&name)?;
        new.write_all(bytes)?;
        new.sync_all()?;
        put_in_place(name.as_ref(), path).map_err(|(error, _)| error)
    };
    replace().inspect_err(|_| drop(std::fs::remove_file(&name)))
}

/// Returns the table with its only wrong bit corrected; the checksum tells which bit that is. `None` if no bit or more
/// than one bit is wrong.
pub fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let (body, there) = bytes.split_last_chunk::<8>()?;
    let difference = checksum(CrcAlgorithm::Crc64Nvme, body) ^ u64::from_le_bytes(*there);
    let (byte, bit) = if difference.count_ones() == 1 {
        (body.len() + difference.trailing_zeros() as usize / 8, difference.trailing_zeros() % 8)
    } else {
        named_bit(difference, body.len())?
    };
    let mut mended = bytes.to_vec();
    mended[byte] ^= 1 << bit;
    decode(&mended).is_ok().then_some(mended)
}

/// Encodes a new table, as [`encode`] does, for flash of which only the layout and the bad blocks are known. All blocks
/// count as never erased. Writes no file.
pub fn anew(geometry: &Geometry, bad: impl Iterator<Item = FlashBlock>) -> Vec<u8> {
    let mut entries = vec![0; geometry.total_blocks() as usize];
    for block in bad {
        if let Some(entry) = entries.get_mut(block.0 as usize) {
            *entry = BAD;
        }
    }
    encode(geometry, entries.into_iter())
}

/// Encodes a table: the layout of the flash, and one entry for each block, in order. An entry is the block's
/// number of erasures; its highest bit marks a bad block.
pub fn encode(geometry: &Geometry, blocks: impl Iterator<Item = u32>) -> Vec<u8> {
    let Geometry { channels, dies, planes, blocks: per_plane, pages, page_size } = *geometry;
    let mut bytes = MAGIC.to_vec();
    [channels, dies, planes, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    [per_plane, pages, page_size, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    blocks.for_each(|entry| bytes.extend(entry.to_le_bytes()));
    let sum = checksum(CrcAlgorithm::Crc64Nvme, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Decodes a table. Returns the layout of the flash and one entry for each block, as [`encode`] takes them.
///
/// # Errors
/// Corrupt if the table is damaged; Unsupported if it is of another version.
pub fn decode(bytes: &[u8]) -> Result<(Geometry, Vec<u32>), Error> {
    let damaged = || Error::corrupt("the table of flash is damaged");
    let (body, sum) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
    let header = body.get(..HEADER).ok_or_else(damaged)?;
    if header[..7] != MAGIC[..7] {
        return Err(damaged());
    }
    if header[7] != MAGIC[7] {
        let cause = format!("the table of flash has version {}, and this program knows 1", header[7]);
        return Err(Error::unsupported(cause));
    }
    if checksum(CrcAlgorithm::Crc64Nvme, body) != u64::from_le_bytes(*sum) {
        return Err(damaged());
    }
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let long = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum: u32, byte| sum << 8 | u32::from(*byte));
    let geometry = Geometry {
        channels: short(8),
        dies: short(10),
        planes: short(12),
        blocks: long(&header[16..20]),
        pages: long(&header[20..24]),
        page_size: long(&header[24..28]),
    };
    geometry.check().map_err(|error| damaged().caused_by(error))?;
    let blocks: Vec<u32> = body[HEADER..].chunks_exact(4).map(long).collect();
    if blocks.len() as u64 != u64::from(geometry.total_blocks()) || body.len() % 4 != 0 {
        return Err(damaged());
    }
    Ok((geometry, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    const SMALL: Geometry =
        Geometry { channels: 2, dies: 1, planes: 1, blocks: 4, pages: 4, page_size: 4096 };

    #[test]
    fn the_table_round_trips_and_damage_is_seen() {
        let entries = vec![0, 1, BAD | 7, BAD - 1, 5, 6, 7, 8];
        let bytes = encode(&SMALL, entries.iter().copied());
        assert_eq!(decode(&bytes).unwrap(), (SMALL, entries));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let kind = decode(&damaged).unwrap_err().kind();
            assert_eq!(kind, if at == 7 { ErrorKind::Unsupported } else { ErrorKind::Corrupt }, "byte {at}");
            assert!(decode(&bytes[..at]).is_err());
            assert!(mended(&damaged) == Some(bytes.clone()), "byte {at}");
        }
    }

    /// Version 1, as it was first written.
    #[test]
    fn the_first_version_is_read() {
        let header = b"HSFLASH\x01\x02\x00\x01\x00\x01\x00\0\0\x04\0\0\0\x04\0\0\0\x00\x10\0\0\0\0\0\0";
        assert!(encode(&SMALL, (0..8).map(|_| 0)).starts_with(header));
    }

    #[test]
    fn a_table_that_is_made_again_knows_the_bad_blocks() {
        let (geometry, entries) = decode(&anew(&SMALL, [FlashBlock(3)].into_iter())).unwrap();
        assert!(geometry == SMALL && entries == [0, 0, 0, BAD, 0, 0, 0, 0]);
    }
}
