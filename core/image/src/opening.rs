//! The parts of a layer's blob that opening it reads, as far as they can be known before.

use crate::manifest::ImageLayer;
use headstart_block::ByteRange;

/// The number of bytes at the start of a blob that opening its layer reads. They hold the headers of the
/// wrappers and of the layer; the layer's header is in the first compressed frame.
pub const HEAD: u64 = 32 << 10;

/// The most bytes of an end that are fetched because of an annotation: the index of a layer of a terabyte in frames of
/// 4 KiB is larger, but then one more step does not matter.
const END_MAX: u64 = 16 << 20;

/// The length of the parts in which a blob is fetched of which opening its layer reads everything.
const WHOLE_PART: u64 = 8 << 20;

/// Returns the parts of a layer's blob that opening the layer most likely reads: all of the package of a TurboOCI
/// layer, and of other layers what [`opening_ranges`] says.
#[must_use]
pub fn opening_ranges_of(layer: &ImageLayer) -> Vec<ByteRange> {
    if layer.is_turbo() {
        return ByteRange::between(0, layer.blob.size).parts(WHOLE_PART).collect();
    }
    opening_ranges(layer.blob.size, layer.index_offset())
}

/// Returns the parts of a blob that opening its layer most likely reads: its first [`HEAD`] bytes, and its end. `len`
/// is the length of the blob in bytes. `index_offset` is the offset at which the end part starts, as the manifest gives
/// it ([`ImageLayer::index_offset`](crate::manifest::ImageLayer::index_offset)). If `index_offset` is `None`, is not
/// within the blob, or gives an end of more than 16 MiB, the length of the end is estimated from `len`. The ranges
/// ascend and do not overlap. A short blob gives a single range, the whole blob, which is an empty range for an empty
/// blob.
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
