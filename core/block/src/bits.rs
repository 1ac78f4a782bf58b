//! Bitmaps in words of 64 bits, lowest bit first.

use crate::to_usize;
use std::ops::Range;

/// The number of bits in a word.
pub const WORD_BITS: u64 = u64::BITS as u64;

/// The words of a bitmap that a range of bits touches: the place of each word, and the mask of the bits in it.
pub fn words_of(bits: &Range<u64>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let (mut at, end) = (bits.start, bits.end);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let word_end = (at - at % WORD_BITS).saturating_add(WORD_BITS).min(end);
        let ones = word_end - at;
        let mask = if ones == WORD_BITS { u64::MAX } else { ((1 << ones) - 1) << (at % WORD_BITS) };
        let index = to_usize(at / WORD_BITS);
        at = word_end;
        Some((index, mask))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_each_of_its_bits_once() {
        for (start, end) in [(0, 0), (5, 5), (0, 1), (3, 64), (63, 65), (64, 128), (10, 300), (127, 128)] {
            let mut found = Vec::new();
            for (index, mask) in words_of(&(start..end)) {
                let first = index as u64 * WORD_BITS;
                found.extend((0..WORD_BITS).filter(|bit| mask >> bit & 1 == 1).map(|bit| first + bit));
            }
            assert!(found.iter().copied().eq(start..end), "{start}..{end}: {found:?}");
        }
    }
}
