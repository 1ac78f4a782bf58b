//! A buffer that replies are built in, and that disks are read into.
//!
//! Unlike a `Vec`, it hands out room that is not zeroed again for each reply: bytes once initialised stay so.

/// The most bytes to which it grows by doubling.
const DOUBLED_MAX: usize = 256 << 10;
/// The number of bytes of whose multiples it grows above that.
const STEP: usize = 64 << 10;

/// Replies to be sent.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    /// All initialised; those from `len` on mean nothing.
    bytes: Vec<u8>,
    len: usize,
}

impl ReplyBuffer {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the bytes after the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends `bytes`.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `len` bytes with any content, to be overwritten.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.len + len;
        if end > self.bytes.len() {
            self.grow(end);
        }
        let room = &mut self.bytes[self.len..end];
        self.len = end;
        room
    }

    /// Makes sure of memory for `len` more bytes, so that appending them grows it once.
    pub(crate) fn make_room(&mut self, len: usize) {
        if self.len + len > self.bytes.len() {
            self.grow(self.len + len);
        }
    }

    #[cold]
    fn grow(&mut self, wanted: usize) {
        // By doubling while it is small; no more than is needed if doubling would cost.
        let len = if wanted <= DOUBLED_MAX {
            wanted.next_power_of_two().max(4096)
        } else {
            wanted.next_multiple_of(STEP)
        };
        // Fresh memory of zeros costs nothing until it is written to.
        let mut bytes = vec![0; len];
        bytes[..self.len].copy_from_slice(self.as_slice());
        self.bytes = bytes;
    }

    /// The number of bytes of memory that it holds.
    pub(crate) fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Gives its memory back.
    pub(crate) fn release(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_no_further_than_needed() {
        let mut buffer = ReplyBuffer::default();
        buffer.room((32 << 20) + 16);
        assert!(buffer.held() <= (32 << 20) + STEP, "{}", buffer.held());
    }

    #[test]
    fn keeps_what_was_put_before_it_grew() {
        let mut buffer = ReplyBuffer::default();
        buffer.put(b"head");
        buffer.room(100_000).fill(7);
        buffer.put(b"tail");
        assert_eq!(buffer.len(), 100_008);
        assert!(buffer.as_slice().starts_with(b"head\x07") && buffer.as_slice().ends_with(b"\x07tail"));
        buffer.truncate(4);
        assert_eq!(buffer.as_slice(), b"head");
        buffer.release();
        assert!(buffer.is_empty() && buffer.held() == 0);
    }
}
