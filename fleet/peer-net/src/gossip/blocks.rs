//! Streams of blocks: the form in which the library packs changes, and entries where they have to be short.
//!
//! ```text
//! 0   1   1 (packed by zstd) or 2 (as it is); 0 ends the stream
//! 1   2   length, little-endian
//! 3   ..  the block
//! ```

use headstart_block::exact;

/// Most blocks of a stream. Those of the library have 16 KiB each, unpacked.
pub(super) const BLOCKS_MAX: usize = 64;

/// Most bytes of a block, packed or not.
pub(super) const BLOCK_MAX: usize = 65_535;

const END: u8 = 0;
const PACKED: u8 = 1;
const PLAIN: u8 = 2;

/// A block of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block<'a> {
    Packed(&'a [u8]),
    Plain(&'a [u8]),
}

impl Block<'_> {
    /// The most bytes that the block has, unpacked.
    pub(super) fn most(self) -> usize {
        match self {
            Self::Packed(_) => BLOCK_MAX,
            Self::Plain(bytes) => bytes.len(),
        }
    }
}

/// Splits the stream off that `bytes` begin with: its blocks. `None` if there is none, or it has more blocks than any
/// host sends.
pub(super) fn split(bytes: &[u8]) -> Option<Vec<Block<'_>>> {
    let (mut rest, mut blocks) = (bytes, Vec::new());
    loop {
        let (kind, after) = rest.split_first()?;
        if *kind == END {
            return Some(blocks);
        }
        let (len, after) = after.split_first_chunk::<2>()?;
        let (block, after) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
        blocks.push(match *kind {
            PACKED => Block::Packed(block),
            PLAIN => Block::Plain(block),
            _ => return None,
        });
        if blocks.len() > BLOCKS_MAX {
            return None;
        }
        rest = after;
    }
}

/// The bytes of blocks; `None` if one does not unpack.
pub(super) fn unpack(blocks: &[Block<'_>]) -> Option<Vec<u8>> {
    let (mut bytes, mut unpacked) = (Vec::new(), vec![0; BLOCK_MAX]);
    for block in blocks {
        match block {
            Block::Plain(block) => bytes.extend_from_slice(block),
            Block::Packed(block) => {
                let len = zstd_safe::decompress(&mut unpacked[..], block).ok()?;
                bytes.extend_from_slice(unpacked.get(..len)?);
            }
        }
    }
    Some(bytes)
}

/// A stream of these bytes: as they are where the stream has at most `room` bytes then, packed otherwise.
pub(super) fn pack(bytes: &[u8], room: usize) -> Vec<u8> {
    let is_plain = bytes.len() + 3 * bytes.len().div_ceil(BLOCK_MAX) < room;
    let mut stream = Vec::with_capacity(bytes.len().min(room) + 4);
    let mut packed = vec![0; if is_plain { 0 } else { BLOCK_MAX }];
    for block in bytes.chunks(BLOCK_MAX) {
        let len = if is_plain {
            None
        } else {
            zstd_safe::compress(&mut packed[..], block, zstd_safe::CLEVEL_DEFAULT).ok()
        };
        let smaller = len.filter(|len| *len < block.len()).and_then(|len| packed.get(..len));
        let (kind, block) = smaller.map_or((PLAIN, block), |packed| (PACKED, packed));
        stream.push(kind);
        stream.extend_from_slice(&exact::<u16>(block.len(), "a block has at most BLOCK_MAX").to_le_bytes());
        stream.extend_from_slice(block);
    }
    stream.push(END);
    stream
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stream_of_more_blocks_than_any_host_sends_is_none() {
        let stream = |blocks: usize| [[PLAIN, 1, 0, 7].repeat(blocks), vec![END, 9]].concat();
        let (most, more) = (stream(BLOCKS_MAX), stream(BLOCKS_MAX + 1));
        assert_eq!(unpack(&split(&most).unwrap()), Some(vec![7; BLOCKS_MAX]));
        assert_eq!(split(&more), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn bytes_are_the_same_after_they_were_packed(
            drawn in prop::collection::vec(any::<u8>(), 0..200), times in 1usize..1000, room in 0usize..200_000,
        ) {
            let bytes = drawn.repeat(times);
            let stream = pack(&bytes, room);
            let blocks = split(&stream).unwrap();
            prop_assert!(blocks.iter().map(|block| block.most()).sum::<usize>() >= bytes.len());
            prop_assert_eq!(unpack(&blocks).unwrap(), bytes);
        }

        #[test]
        fn any_bytes_are_split(bytes in prop::collection::vec(0u8..4, 0..300)) {
            if let Some(blocks) = split(&bytes) {
                prop_assert!(blocks.len() <= BLOCKS_MAX);
                let _ = unpack(&blocks);
            }
        }
    }
}
