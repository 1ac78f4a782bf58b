//! Masks of a block's slices.

use headstart_block::SLICE_SIZE;

/// The slices of a mask, ascending.
pub(crate) fn of(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let slice = (left != 0).then(|| left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        slice
    })
}

/// The number of slices of the mask that are whole in a block of `len` bytes, and the bytes of one that is
/// not: the last of a disk.
pub(crate) fn measure(mask: u32, len: u64) -> (u32, u64) {
    let (full, part) = (len / SLICE_SIZE, len % SLICE_SIZE);
    let inside = if full >= 32 { u32::MAX } else { (1 << full) - 1 };
    let has_part = full < 32 && mask >> full & 1 == 1;
    ((mask & inside).count_ones(), if has_part { part } else { 0 })
}

/// Bytes of the slices in a block of `len` bytes.
pub(crate) fn bytes(mask: u32, len: u64) -> u64 {
    let (whole, part) = measure(mask, len);
    u64::from(whole) * SLICE_SIZE + part
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::BLOCK_SIZE;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slices_are_those_whose_bits_are_set(mask in any::<u32>(), len in 0..=BLOCK_SIZE) {
            let slices: Vec<_> = (0..32_usize).filter(|slice| mask >> slice & 1 == 1).collect();
            prop_assert_eq!(of(mask).collect::<Vec<_>>(), &slices[..]);
            let inside = |slice: &usize| len.saturating_sub(*slice as u64 * SLICE_SIZE).min(SLICE_SIZE);
            prop_assert_eq!(bytes(mask, len), slices.iter().map(inside).sum::<u64>());
            prop_assert_eq!(bytes(mask, BLOCK_SIZE), slices.len() as u64 * SLICE_SIZE);
        }
    }
}
