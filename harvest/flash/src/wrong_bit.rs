//! The one wrong bit that explains a wrong checksum.

/// The polynomial of CRC-64/NVME, the lowest bit first.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// The byte and bit of `len` bytes that changes their CRC-64/NVME by this difference, if one does.
#[must_use]
pub(crate) fn named_bit(difference: u64, len: usize) -> Option<(usize, u32)> {
    let mut effect = 1_u64;
    (0..len.checked_mul(8)?).find_map(|from_end| {
        effect = if effect & 1 == 1 { effect >> 1 ^ POLYNOMIAL } else { effect >> 1 };
        let bit = 7 - from_end % 8;
        #[expect(clippy::cast_possible_truncation, reason = "at most 7")]
        (effect == difference).then_some((len - 1 - from_end / 8, bit as u32))
    })
}
