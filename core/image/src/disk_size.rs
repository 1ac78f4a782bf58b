//! The allowed sizes of a disk in layers.

use headstart_block::{Error, Result, SECTOR_SIZE};
use headstart_lsmt::Segment;

/// The largest disk that layers can hold: sectors have numbers of 50 bits, and the last number has another meaning.
const MAX_SIZE: u64 = Segment::PADDING_OFFSET * SECTOR_SIZE;

/// Checks a disk's size before anything is calculated with it.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if it is larger than layers can hold.
pub fn check_size(size: u64) -> Result<()> {
    if size > MAX_SIZE {
        return Err(Error::invalid(format!("a disk cannot have {size} bytes, {MAX_SIZE} are the most")));
    }
    Ok(())
}
