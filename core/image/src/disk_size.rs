//! The allowed sizes of a disk in layers.

use headstart_block::{Error, Result, SECTOR_SIZE};
use headstart_lsmt::Segment;

/// The largest disk that layers can hold: sectors have numbers of 50 bits, and the last number has another meaning.
const MAX_SIZE: u64 = Segment::PADDING_OFFSET * SECTOR_SIZE;

/// Checks that a disk of `size` bytes can be stored in the layers of an image.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if `size` is above the limit of the LSMT format, about 2^50
/// sectors of 512 bytes.
pub fn check_size(size: u64) -> Result<()> {
    if size > MAX_SIZE {
        return Err(Error::invalid(format!("a disk cannot have {size} bytes, {MAX_SIZE} are the most")));
    }
    Ok(())
}
