//! The CRC-16 of group descriptors: polynomial 0x8005, bits reflected, nothing inverted (CRC-16/ARC, but started at
//! 0xFFFF where ext4 uses it).

/// The polynomial with its bits reflected.
const POLYNOMIAL: u16 = 0xa001;

/// The remainders of all bytes.
const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let (mut remainder, mut bit) = (byte, 0);
        while bit < 8 {
            remainder = if remainder & 1 == 1 { remainder >> 1 ^ POLYNOMIAL } else { remainder >> 1 };
            bit += 1;
        }
        table[byte as usize] = remainder;
        byte += 1;
    }
    table
}

/// Continues the checksum `crc` over `bytes`.
pub(crate) fn crc16(crc: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(crc, |crc, &byte| crc >> 8 ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_values_of_the_algorithm_come_out() {
        // CRC-16/ARC and CRC-16/MODBUS: the same polynomial with the two starts.
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        assert_eq!(crc16(0xffff, b"123456789"), 0x4b37);
    }

    #[test]
    fn a_checksum_in_parts_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(crc16(crc16(7, &bytes[..100]), &bytes[100..]), crc16(7, &bytes));
        assert_eq!(crc16(7, b""), 7);
    }
}
