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
