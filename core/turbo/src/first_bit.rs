//! The bit at which a deflate block begins.
//!
//! A block begins anywhere in a byte. The fastest inflater stops between blocks and tells the bytes that it has read,
//! but not the bits of the last byte that it has not used. There are eight possibilities, and one of them is right:
//! inflating from there gives the data that is known to follow. Inflating from another bit fails nearly always with the
//! first symbols. A place where another bit gives the data, too, is given up; except for a stored block, which has
//! unused bits before its length, so that all of them are right. The bit that is returned is thus never wrong, whatever
//! a stream was made for.

use crate::format::WINDOW_SIZE;
use crate::window_use::{BitStart, inflated_after};

/// Bytes of data that are inflated first, since they tell nearly all wrong bits.
const FIRST: usize = 64;

/// Returns the number of high bits of the byte `before` that belong to the block, and these bits. The other bytes of
/// the block are the first ones of `input`, which gives `after` at least; `window` is the data before. `None` if the
/// bits cannot be told.
pub(crate) fn first_bit(window: &[u8], before: u8, input: &[u8], after: &[u8]) -> Option<BitStart> {
    let gives = |start: BitStart, data: &[u8]| {
        let inflated = inflated_after(start, input, WINDOW_SIZE + data.len(), |place| window[place]);
        inflated.is_some_and(|inflated| inflated == data)
    };
    let start = |bits: u8| BitStart { bits, bit_buf: before.checked_shr(8 - u32::from(bits)).unwrap_or(0) };
    let is_first = |start: &BitStart| gives(*start, &after[..after.len().min(FIRST)]);
    let mut fitting = (0..8).map(start).filter(is_first).filter(|start| gives(*start, after));
    let mut last = fitting.next()?;
    for next in fitting {
        if stored_block(last, input)? != stored_block(next, input)? {
            return None;
        }
        last = next;
    }
    Some(last)
}

/// The header of a stored block: `true` if it is the last block, and `true` if its length is one byte further in
/// `input`. `None` if the block is of another kind.
fn stored_block(start: BitStart, input: &[u8]) -> Option<(bool, bool)> {
    let bits = u16::from(start.bit_buf) | u16::from(*input.first()?) << start.bits;
    (bits & 0b110 == 0).then_some((bits & 1 == 1, start.bits < 3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::data;
    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use std::io::Write;

    /// A stream of one block, moved up by `shift` bits, with `ones` before.
    fn shifted(bytes: &[u8], level: u32, shift: u32, ones: bool) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(bytes).unwrap();
        let (mut carry, mut moved) = (if ones { 0xff } else { 0 } >> (8 - shift), Vec::new());
        for byte in encoder.finish().unwrap() {
            let wide = u16::from(byte) << shift | carry;
            moved.push(wide.to_le_bytes()[0]);
            carry = wide >> 8;
        }
        moved.push(carry.to_le_bytes()[0]);
        moved
    }

    #[test]
    fn the_bit_is_found_wherever_it_is() {
        for (seed, len) in [(1, 1), (2, 40), (3, 3000), (4, 20_000)] {
            let bytes = data(seed, len);
            for (shift, ones) in (1..8).flat_map(|shift| [(shift, true), (shift, false)]) {
                let stream = shifted(&bytes, 6, shift, ones);
                let found = first_bit(&[0; WINDOW_SIZE], stream[0], &stream[1..], &bytes);
                let found = found.map(|found| (u32::from(found.bits), found.bit_buf));
                assert_eq!(found, Some((8 - shift, stream[0] >> shift)), "{len}, {shift}");
            }
            let stream = shifted(&bytes, 6, 0, false);
            assert_eq!(first_bit(&[0; WINDOW_SIZE], 0xff, &stream, &bytes).map(|found| found.bits), Some(0));
        }
    }

    #[test]
    fn a_stored_block_may_begin_at_any_of_its_unused_bits() {
        // Two blocks, the first of which is not the last.
        let stored = |len: u8| [&[0, len, 0, !len, 0xff][..], &vec![7; usize::from(len)]].concat();
        let input = [stored(40), stored(9)].concat();
        let found = first_bit(&[0; WINDOW_SIZE], 0, &input[1..], &[7; 49]).unwrap();
        assert_eq!((found.bits, found.bit_buf), (7, 0));
        let found = first_bit(&[0; WINDOW_SIZE], 0xff, &input, &[7; 49]).unwrap();
        assert_eq!(found.bits, 0);
    }

    #[test]
    fn a_place_that_two_bits_fit_is_given_up() {
        // A stored block that is the last one by one bit, and not by another; no data follows that would tell.
        let input = [&[40, 0, !40, 0xff][..], &[7; 40]].concat();
        assert!(first_bit(&[0; WINDOW_SIZE], 0b1000, &input, &[7; 40]).is_none());
        // More data follows, so only one of them is right.
        let more = [&input[..], &[0, 9, 0, !9, 0xff], &[7; 9]].concat();
        let found = first_bit(&[0; WINDOW_SIZE], 0b1000, &more, &[7; 49]).unwrap();
        assert_eq!((found.bits, found.bit_buf & 0b111), (4, 0));
        let stream = shifted(&data(5, 100), 6, 3, false);
        assert!(first_bit(&[0; WINDOW_SIZE], stream[0], &stream[1..], &[1; 100]).is_none());
    }
}
