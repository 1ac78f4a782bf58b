//! Bitmaps of one group: a bit for each block or inode, set if it is in use. A bitmap is a whole block; the bits past
//! the group's last block or inode are set.

use crate::Block;

/// Returns the bit.
pub(crate) fn is_set(bitmap: &Block, bit: u32) -> bool {
    bitmap[byte_of(bit)] & mask_of(bit) != 0
}

/// Sets the bit; returns `true` if it was clear.
pub(crate) fn set(bitmap: &mut Block, bit: u32) -> bool {
    let was = is_set(bitmap, bit);
    bitmap[byte_of(bit)] |= mask_of(bit);
    !was
}

/// Clears the bit; returns `true` if it was set.
pub(crate) fn clear(bitmap: &mut Block, bit: u32) -> bool {
    let was = is_set(bitmap, bit);
    bitmap[byte_of(bit)] &= !mask_of(bit);
    was
}

/// Returns the first clear bit of `from..end`; `None` if all are set.
pub(crate) fn first_clear(bitmap: &Block, from: u32, end: u32) -> Option<u32> {
    let mut bit = from;
    while bit < end {
        if bit.is_multiple_of(8) && bitmap[byte_of(bit)] == 0xff {
            bit += 8;
        } else if is_set(bitmap, bit) {
            bit += 1;
        } else {
            return Some(bit);
        }
    }
    None
}

/// Returns the first set bit of `from..end`, or `end` if all are clear.
pub(crate) fn first_set(bitmap: &Block, from: u32, end: u32) -> u32 {
    let mut bit = from;
    while bit < end {
        if bit.is_multiple_of(8) && bitmap[byte_of(bit)] == 0 {
            bit += 8;
        } else if is_set(bitmap, bit) {
            return bit;
        } else {
            bit += 1;
        }
    }
    end
}

/// Sets all bits from `from` on to the end of the bitmap: those past the group's end.
pub(crate) fn pad(bitmap: &mut Block, from: u32) {
    for bit in from..BITS {
        set(bitmap, bit);
    }
}

/// Bits of a bitmap.
const BITS: u32 = 32_768;

fn byte_of(bit: u32) -> usize {
    (bit / 8) as usize
}

fn mask_of(bit: u32) -> u8 {
    1 << (bit % 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bitmap_is_a_list_of_flags(
            runs in proptest::collection::vec((0..BITS, 0..300_u32, any::<bool>()), 0..60),
            searches in proptest::collection::vec((0..BITS, 0..BITS), 1..20),
            end in prop_oneof![Just(BITS), 0..BITS],
        ) {
            let (mut bitmap, mut model) = ([0; crate::BLOCK_SIZE], vec![false; BITS as usize]);
            for (start, len, value) in runs {
                for bit in start..BITS.min(start + len) {
                    let changed = if value { set(&mut bitmap, bit) } else { clear(&mut bitmap, bit) };
                    prop_assert_eq!(changed, model[bit as usize] != value);
                    model[bit as usize] = value;
                }
            }
            pad(&mut bitmap, end);
            model[end as usize..].fill(true);
            for bit in 0..BITS {
                prop_assert_eq!(is_set(&bitmap, bit), model[bit as usize]);
            }
            for (from, to) in searches {
                let found = |value: bool| (from..to).find(|&bit| model[bit as usize] == value);
                prop_assert_eq!(first_clear(&bitmap, from, to), found(false));
                prop_assert_eq!(first_set(&bitmap, from, to), found(true).unwrap_or(to));
            }
        }
    }
}
