//! The bytes of a window to which a piece really refers.
//!
//! A deflate stream refers back at most 32 KiB, so only its first 32 KiB of data can refer to the window before it, and
//! mostly they refer to a small part of that. The rest of a window may be zeros, which take no space when packed.
//!
//! To find the part without an inflater of our own, the first 32 KiB are inflated twice, each time with a window whose
//! bytes say where they are: the low half of their place, and that half changed by what the high half says. A byte that
//! was copied out of the window differs between both; a literal is the same in both.

use crate::format::WINDOW_SIZE;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_IGNORE_ADLER32, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

const FLAGS: u32 =
    TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_IGNORE_ADLER32 | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;

/// Sets the bytes of `window` to 0 to which no data refers that `input` inflates to. `input` begins at a deflate block,
/// after the bits of `start`, and gives at least 32 KiB of data or all that there is. A stream that is not
/// valid leaves the window as it is.
pub(crate) fn clear_unused(window: &mut [u8], start: BitStart, input: &[u8]) {
    let low = inflated_after(start, input, 2 * WINDOW_SIZE, low_half);
    let marked = inflated_after(start, input, 2 * WINDOW_SIZE, |place| low_half(place) ^ mark(place));
    let (Some(low), Some(marked)) = (low, marked) else { return };
    let mut is_used = vec![false; WINDOW_SIZE];
    for (low, marked) in low.iter().zip(&marked) {
        if let Some(high) = (low ^ marked).checked_sub(1) {
            is_used[usize::from(u16::from_le_bytes([*low, high]))] = true;
        }
    }
    for (byte, _) in window.iter_mut().zip(is_used).filter(|(_, is_used)| !is_used) {
        *byte = 0;
    }
}

fn low_half(place: usize) -> u8 {
    place.to_le_bytes()[0]
}

/// The high half of a place, plus one so that it is never 0: a place has 15 bits.
fn mark(place: usize) -> u8 {
    place.to_le_bytes()[1] + 1
}

/// The bits of a byte with which a block begins.
#[derive(Clone, Copy)]
pub(crate) struct BitStart {
    pub(crate) bits: u8,
    pub(crate) bit_buf: u8,
}

/// The data after a window that has at each place what `byte_at` says, up to `end` bytes of both; `None` if the stream
/// is not valid.
pub(crate) fn inflated_after(
    start: BitStart,
    input: &[u8],
    end: usize,
    byte_at: impl Fn(usize) -> u8,
) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = (0..WINDOW_SIZE).map(byte_at).collect();
    out.resize(end, 0);
    let state =
        BlockBoundaryState { num_bits: start.bits, bit_buf: start.bit_buf, ..BlockBoundaryState::default() };
    let mut inflater = Box::new(DecompressorOxide::from_block_boundary_state(&state));
    let (status, _, written) = decompress(&mut inflater, input, &mut out, WINDOW_SIZE, FLAGS);
    match status {
        TINFLStatus::Done | TINFLStatus::HasMoreOutput | TINFLStatus::NeedsMoreInput => {
            out.truncate(WINDOW_SIZE + written);
            Some(out.split_off(WINDOW_SIZE))
        }
        _ => None,
    }
}
