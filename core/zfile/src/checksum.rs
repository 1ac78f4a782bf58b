//! CRC-32C in the raw form that OverlayBD uses everywhere.
//!
//! Raw means that the start value goes into the register as it is and nothing is inverted, neither
//! before nor after; usual libraries invert both ways.
//!
//! `crc-fast` computes it, two to three times as fast as `crc32c` from 1500 bytes on (57 and 24 GB/s at 2 KiB
//! on a Zen 5). For frames there is a kernel of our own where the CPU has AVX-512: between the decompression
//! of one frame and the next the library takes some 130 ns, more than a tenth of what lz4 needs for 4 KiB,
//! because its loops over the odd bytes at both ends mispredict on every frame. What is left of the gain today is in
//! `cargo bench -p headstart-zfile`: reads with frame checksums beside the C codec without any.

#[cfg(target_arch = "x86_64")]
mod avx512;

use crc_fast::{CrcAlgorithm, Digest};

/// Start value of the checksum behind each frame.
const FRAME_SEED: u32 = 100_007;

/// The checksum of a frame's compressed bytes.
pub(crate) fn of_frame(packed: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = avx512::of_frame(packed) {
        return crc;
    }
    raw(FRAME_SEED, packed)
}

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
        assert_eq!(of_frame(b""), FRAME_SEED);
    }

    #[test]
    fn frames_of_every_length_and_alignment_have_the_defined_checksum() {
        let bytes: Vec<u8> = (0..4000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in 0..1400 {
            let start = len * 7 % 67;
            let frame = &bytes[start..start + len];
            assert_eq!(of_frame(frame), bit_by_bit(FRAME_SEED, frame), "{len}");
        }
    }

    proptest! {
        #[test]
        fn equals_the_definition(seed: u32, bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut: usize) {
            let cut = cut % (bytes.len() + 1);
            prop_assert_eq!(raw(seed, &bytes), bit_by_bit(seed, &bytes));
            prop_assert_eq!(raw(raw(seed, &bytes[..cut]), &bytes[cut..]), raw(seed, &bytes));
            prop_assert_eq!(of_frame(&bytes), bit_by_bit(FRAME_SEED, &bytes));
        }
    }
}
