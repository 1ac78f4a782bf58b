//! Integers in little-endian order, at fixed offsets of the structures of the file system.
//!
//! Offsets come from the layout of a structure, never from its content: an offset past the end of the bytes is a fault
//! of this program, and panics.

/// The 16-bit number at byte `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The 32-bit number at byte `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores a 16-bit number at byte `at`.
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
}

/// Stores a 32-bit number at byte `at`.
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// The number whose lower and higher 32 bits are at two places.
pub(crate) fn u64_at(bytes: &[u8], low: usize, high: usize) -> u64 {
    u64::from(u32_at(bytes, low)) | u64::from(u32_at(bytes, high)) << 32
}

/// Stores the lower and higher 32 bits of a number at two places.
pub(crate) fn put_u64(bytes: &mut [u8], low: usize, high: usize, number: u64) {
    let parts = number.to_le_bytes();
    bytes[low..low + 4].copy_from_slice(&parts[..4]);
    bytes[high..high + 4].copy_from_slice(&parts[4..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_from_where_they_were_stored() {
        let mut bytes = [0; 16];
        put_u16(&mut bytes, 1, 0x1234);
        put_u32(&mut bytes, 3, 0xfedc_ba98);
        put_u64(&mut bytes, 12, 8, 0x0102_0304_0506_0708);
        assert_eq!(bytes, [0, 0x34, 0x12, 0x98, 0xba, 0xdc, 0xfe, 0, 4, 3, 2, 1, 8, 7, 6, 5]);
        assert_eq!((u16_at(&bytes, 1), u32_at(&bytes, 3)), (0x1234, 0xfedc_ba98));
        assert_eq!(u64_at(&bytes, 12, 8), 0x0102_0304_0506_0708);
    }
}
