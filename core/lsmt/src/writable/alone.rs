//! The base of a disk that is opened without its base.

use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result};

/// A base of this number of bytes, whose content is not known: zeros above it have something to hide.
pub(super) struct Unknown(pub(super) u64);

impl BlockDevice for Unknown {
    fn size(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::NotFound, "the writable layer was opened without its image")
            .remedy("attach it with the image that it belongs to"))
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { range: ByteRange::between(offset, self.0), zero: false })
    }
}
