//! The bytes of a window to which a piece really refers.
//!
//! A deflate stream refers back at most 32 KiB, so only its first 32 KiB of data can refer to the window before it, and
//! mostly they refer to a small part of that. The rest of a window may be zeros, which take no space when packed.
//!
//! To find the part without an inflater of our own, the first 32 KiB are inflated three times, each time with a window
//! whose bytes say where they are: the low half of their place, its complement, and the high half. A byte that was
//! copied out of the window differs in all its bits between the first two; a literal is the same in both.

use crate::format::WINDOW_SIZE;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_IGNORE_ADLER32, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

const FLAGS: u32 =
    TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_IGNORE_ADLER32 | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;

/// Sets the bytes of `window` to 0 to which no data refers that `input` inflates to. `input` begins at a deflate block,
/// after the `bits` low bits of `bit_buf`, and gives at least 32 KiB of data or all that there is. A stream that is not
/// valid leaves the window as it is.
pub(crate) fn clear_unused(window: &mut [u8], bits: u8, bit_buf: u8, input: &[u8]) {
    let low = inflated_after(bits, bit_buf, input, |place| place.to_le_bytes()[0]);
    let complement = inflated_after(bits, bit_buf, input, |place| !place.to_le_bytes()[0]);
    let high = inflated_after(bits, bit_buf, input, |place| place.to_le_bytes()[1]);
    let (Some(low), Some(complement), Some(high)) = (low, complement, high) else { return };
    let mut is_used = vec![false; WINDOW_SIZE];
    for ((low, complement), high) in low.iter().zip(&complement).zip(&high) {
        if low ^ complement == 0xff {
            is_used[usize::from(u16::from_le_bytes([*low, *high]))] = true;
        }
    }
    for (byte, _) in window.iter_mut().zip(is_used).filter(|(_, is_used)| !is_used) {
        *byte = 0;
    }
}

/// The first 32 KiB of data after a window that has at each place what `byte_at` says; `None` if the stream is not
/// valid.
fn inflated_after(bits: u8, bit_buf: u8, input: &[u8], byte_at: impl Fn(usize) -> u8) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = (0..WINDOW_SIZE).map(byte_at).collect();
    out.resize(2 * WINDOW_SIZE, 0);
    let start = BlockBoundaryState { num_bits: bits, bit_buf, ..BlockBoundaryState::default() };
    let mut inflater = Box::new(DecompressorOxide::from_block_boundary_state(&start));
    let (status, _, written) = decompress(&mut inflater, input, &mut out, WINDOW_SIZE, FLAGS);
    match status {
        TINFLStatus::Done | TINFLStatus::HasMoreOutput | TINFLStatus::NeedsMoreInput => {
            out.truncate(WINDOW_SIZE + written);
            Some(out.split_off(WINDOW_SIZE))
        }
        _ => None,
    }
}
