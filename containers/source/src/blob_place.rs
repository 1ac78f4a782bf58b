//! The places of an image's blobs: a store, or an archive.

use crate::verified::VerifiedReader;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result, to_usize};
use headstart_store::blob_reader::BlobReader;
use headstart_store::{MAX_MANIFEST_SIZE, RetrySettings, Selector, Store};
use std::io::Read;
use std::sync::Arc;
use tokio::runtime::Handle;

/// A place of blobs and documents.
pub(crate) trait BlobPlace: Send + Sync {
    /// A manifest or an index by its digest, checked, of at most [`MAX_MANIFEST_SIZE`] bytes.
    fn document(&self, digest: &Digest) -> Result<Vec<u8>>;

    /// The first `size` bytes of a blob, not checked.
    fn stream(&self, digest: &Digest, size: u64) -> Result<Box<dyn Read + Send>>;

    /// Fails if there is no blob of that digest. Only the start of it is read; `size` is its length.
    fn check_presence(&self, digest: &Digest, size: u64) -> Result<()> {
        self.stream(digest, size)?.take(1).read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

/// A store as a place.
pub(crate) struct StorePlace {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) retry: RetrySettings,
    pub(crate) runtime: Handle,
}

impl BlobPlace for StorePlace {
    fn document(&self, digest: &Digest) -> Result<Vec<u8>> {
        let (_, bytes) = self.runtime.block_on(self.store.document(&Selector::Digest(*digest)))?;
        Ok(bytes.into())
    }

    fn stream(&self, digest: &Digest, size: u64) -> Result<Box<dyn Read + Send>> {
        let range = ByteRange::between(0, size);
        Ok(Box::new(BlobReader::new(Arc::clone(&self.store), *digest, range, self.retry, &self.runtime)))
    }

    fn check_presence(&self, digest: &Digest, size: u64) -> Result<()> {
        // A whole blob would begin to come.
        self.stream(digest, size.min(1))?.read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

/// A small blob as a whole, checked; `thing` names it in messages.
pub(crate) fn small_blob(
    place: &dyn BlobPlace,
    digest: &Digest,
    size: u64,
    thing: String,
) -> Result<Vec<u8>> {
    if size > MAX_MANIFEST_SIZE {
        let cause = format!("has {size} bytes, more than the {MAX_MANIFEST_SIZE} that are read");
        return Err(Error::unsupported(cause).about(thing));
    }
    let stream = place.stream(digest, size).map_err(|e| crate::verified::named(e, &thing))?;
    let mut bytes = Vec::with_capacity(to_usize(size).min(64 << 10));
    VerifiedReader::new(stream, *digest, size, thing).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Checks the bytes of a document.
pub(crate) fn check_document(digest: &Digest, bytes: &[u8]) -> Result<()> {
    if Digest::of(bytes) == *digest {
        return Ok(());
    }
    Err(Error::corrupt("does not match its digest").about(digest).remedy("fetch or copy it again"))
}

/// The error of a blob that a place does not have.
pub(crate) fn missing(digest: &Digest) -> Error {
    Error::new(ErrorKind::NotFound, format!("has no blob {digest}")).remedy("it is incomplete: make it again")
}
