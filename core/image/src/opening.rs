//! The parts of a layer's blob that opening it reads, as far as they can be known before.

use headstart_block::ByteRange;

/// The number of bytes of a blob's start that opening a layer reads: the headers, the second of them in the first
/// frame.
pub const HEAD: u64 = 32 << 10;

/// The most bytes of an end that are fetched because of an annotation: the index of a layer of a terabyte in frames of
/// 4 KiB is larger, but then one more step does not matter.
const END_MAX: u64 = 16 << 20;

/// The parts of a blob of `len` bytes that opening its layer most likely reads: its head, and its end from the offset
/// in the manifest on ([`Layer::index_offset`](crate::manifest::Layer::index_offset)). The ranges ascend and do not
/// overlap.
#[must_use]
pub fn opening_ranges(len: u64, index_offset: Option<u64>) -> Vec<ByteRange> {
    let end = match index_offset {
        Some(start) if start < len && len - start <= END_MAX => start,
        // Frames of 4 KiB that shrink to a third take 0.3% of the blob in the jump table.
        _ => len.saturating_sub((len / 256).clamp(64 << 10, 1 << 20)),
    };
    if end <= HEAD {
        vec![ByteRange::between(0, len)]
    } else {
        vec![ByteRange::between(0, HEAD), ByteRange::between(end, len)]
    }
}
