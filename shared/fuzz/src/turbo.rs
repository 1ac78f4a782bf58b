//! The parts of TurboOCI images: indexes of gzip files, gzip streams, packages, layers with a target.

use crate::{read_layer, read_source, split};
use headstart_block::{Error, Result, to_usize};
use headstart_lsmt::Layer;
use headstart_turbo::format::{HEADER_SIZE, MIN_SPAN};
use headstart_turbo::{GzipIndex, IndexingReader, InflatedCache, InflatedView, PackageBudget, TurboPackage};
use std::io::Read;
use std::sync::Arc;

/// Uncompressed bytes that are read of a stream.
const STREAM_BUDGET: u64 = 1 << 20;
/// Bytes of a cache: with so many it keeps a few parts.
const CACHE: usize = 1 << 20;
/// Bytes of a layer's target.
const TARGET_SIZE: usize = 64 << 10;

/// The index of a gzip file, and views by it; the input is the index and the gzip file, joined. The header's checksum
/// is made right first: it would hide everything behind it.
///
/// # Errors
/// Fails if the index is none, or the file is not the one that it is of.
///
/// # Panics
/// Panics if pieces do not tile the data.
pub fn gzip_index(input: &[u8]) -> Result<()> {
    let [index, blob] = split(input)?;
    let index = Arc::new(GzipIndex::open(Arc::new(with_checksum(index)))?);
    let mut end = 0;
    for (number, point) in index.points().iter().enumerate() {
        let piece = index.piece(number);
        assert!(
            piece.inflated.offset() == end && piece.compressed.offset() == point.first_byte(),
            "{piece:?}"
        );
        end = piece.inflated.end();
    }
    assert_eq!(end, index.header().inflated_size);
    let windows = (0..index.points().len()).try_for_each(|number| index.window(number).map(drop));
    let view = InflatedView::new(blob.to_vec(), index, InflatedCache::new(CACHE))?;
    let read = read_source(&view);
    // A second time, with parts in the cache.
    assert_eq!(read.is_ok(), read_source(&view).is_ok());
    windows.and(read)
}

/// The index with the checksum that its header should have.
fn with_checksum(index: &[u8]) -> Vec<u8> {
    let mut index = index.to_vec();
    if let Some(header) = index.get_mut(..HEADER_SIZE) {
        let (checked, stored) = header.split_at_mut(HEADER_SIZE - 4);
        let mut register = 0_u32;
        for byte in checked {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = register >> 1 ^ if register & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        stored.copy_from_slice(&register.to_le_bytes());
    }
    index
}

/// A gzip stream, of which an index is made.
///
/// # Errors
/// Fails if the stream is damaged.
///
/// # Panics
/// Panics if the index that was made does not give the same bytes.
pub fn gzip_stream(input: &[u8]) -> Result<()> {
    let mut reader = IndexingReader::new(input, MIN_SPAN)?;
    let mut data = Vec::new();
    reader.by_ref().take(STREAM_BUDGET).read_to_end(&mut data)?;
    let built = reader.finish()?;
    let index = GzipIndex::open(Arc::new(built.bytes))?;
    let view = InflatedView::new(input.to_vec(), Arc::new(index), InflatedCache::new(CACHE))?;
    let mut viewed = vec![0; to_usize(built.inflated_size.min(STREAM_BUDGET))];
    let read = headstart_block::ReadAt::read_at(&view, &mut viewed, 0);
    assert!(read.is_ok(), "{read:?}");
    assert!(viewed == data, "a view gives other bytes than the stream");
    Ok(())
}

/// The blob of a TurboOCI layer.
///
/// # Errors
/// Fails if the input is none.
pub fn turbo_package(input: &[u8]) -> Result<()> {
    let mut package = TurboPackage::open(&input.to_vec(), &mut PackageBudget::default())?;
    let index = package.gzip_index.take();
    let (_, metadata) = package.into_metadata();
    let _ = headstart_image::blob::open_layer_source(Arc::new(metadata));
    index.map_or(Ok(()), |index| GzipIndex::open(Arc::new(index)).map(drop))
}

/// A layer that has a part of its bytes in a target of 64 KiB.
///
/// # Errors
/// Fails if the input is none.
pub fn lsmt_target(input: &[u8]) -> Result<()> {
    if input.is_empty() {
        return Err(Error::corrupt("is empty"));
    }
    let target = vec![0x5a; TARGET_SIZE];
    read_layer(Layer::open_with_target(Arc::new(input.to_vec()), Arc::new(target))?)
}
