//! CRC-32C in the raw form that OverlayBD uses everywhere.
//!
//! Raw means that the start value goes into the register as it is and nothing is inverted, neither
//! before nor after; usual libraries invert both ways.

use crc_fast::{CrcAlgorithm, Digest};

/// Start value of the checksum behind each frame.
pub(crate) const FRAME_SEED: u32 = 100_007;

/// Continues the register `seed` over `bytes`. `raw(raw(s, a), b) == raw(s, a ++ b)`.
#[expect(clippy::cast_possible_truncation, reason = "a CRC-32 is the low half of the library's u64")]
pub(crate) fn raw(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(bytes);
    !(digest.finalize() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bit_by_bit(mut register: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = register >> 1 ^ if register & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        register
    }

    #[test]
    fn the_usual_form_has_its_usual_check_value() {
        assert_eq!(!raw(!0, b"123456789"), 0xe306_9283);
        assert_eq!(raw(0, b""), 0);
        assert_eq!(raw(FRAME_SEED, b""), FRAME_SEED);
    }

    proptest! {
        #[test]
        fn equals_the_definition(seed: u32, bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut: usize) {
            let cut = cut % (bytes.len() + 1);
            prop_assert_eq!(raw(seed, &bytes), bit_by_bit(seed, &bytes));
            prop_assert_eq!(raw(raw(seed, &bytes[..cut]), &bytes[cut..]), raw(seed, &bytes));
        }
    }
}
