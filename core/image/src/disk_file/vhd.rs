//! Dynamic vhd files checked against the file's end: programs that read them take blocks past it for zeros.

use super::qcow2::check_inside;
use headstart_block::{Error, ReadAt, Result, SECTOR_SIZE, to_usize};

const FOOTER: &[u8] = b"conectix";
const HEADER: &[u8] = b"cxsparse";
/// The length of the footer and of its copy at the start, in bytes.
const FOOTER_LEN: usize = 512;
/// An entry of the table whose block is not there.
const NOT_THERE: u64 = 0xffff_ffff;
/// The most bytes of the table: the format's largest disk, 2040 GiB, in blocks of 512 bytes.
const MAX_TABLE: u64 = 4 * (2040 << 30) / 512;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn bytes<const N: usize>(file: &dyn ReadAt, what: &str, offset: u64) -> Result<[u8; N]> {
    check_inside(what, offset, N as u64, file.len())?;
    let mut bytes = [0; N];
    file.read_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Checks that the blocks of the vhd in `file` are there. A fixed vhd ends with its footer, and has no table.
///
/// ```text
/// copy of the footer, byte 0: "conectix", offset of the header at byte 16, u64; bytes of the disk at 48, u64; all
///                     numbers are big-endian
/// header:             "cxsparse", offset of the table at byte 16, u64; its entries at 28, u32; bytes of a block at
///                     32, u32
/// table:              first sector of each block, u32, all ones = not there
/// block:              a bit for each sector, in whole sectors; the sectors
/// ```
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] with what reaches past the end; errors of reading.
pub(super) fn check(file: &dyn ReadAt) -> Result<()> {
    let footer: [u8; FOOTER_LEN] = bytes(file, "footer", 0)?;
    if !footer.starts_with(FOOTER) {
        return Ok(());
    }
    let size = number(&footer[48..56]);
    let header: [u8; 36] = bytes(file, "header", number(&footer[16..24]))?;
    if !header.starts_with(HEADER) {
        return Err(Error::corrupt("has no header of a dynamic vhd"));
    }
    let (table, block) = (number(&header[16..24]), number(&header[32..36]));
    let len = number(&header[28..32]) * 4;
    if block < SECTOR_SIZE || !block.is_power_of_two() || len > MAX_TABLE {
        return Err(Error::corrupt("has blocks or a table of a size that there is not"));
    }
    check_inside("table", table, len, file.len())?;
    let bitmap = (block / SECTOR_SIZE).div_ceil(8).next_multiple_of(SECTOR_SIZE);
    let mut part = vec![0; 64 << 10];
    let mut place = 0;
    for offset in (table..table + len).step_by(part.len()) {
        let part_len = to_usize(table + len - offset).min(part.len());
        file.read_at(&mut part[..part_len], offset)?;
        for entry in part[..part_len].chunks_exact(4).map(number) {
            if entry != NOT_THERE && place < size {
                let used = bitmap + block.min(size - place);
                check_inside("block", entry * SECTOR_SIZE, used, file.len())?;
            }
            place += block;
        }
    }
    Ok(())
}
