//! [`Upload`]: a blob's bytes on their way into a store, part by part, checked against its digest.

use crate::store::Copied;
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, FileSource, ReadAt, Result, to_usize};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Bytes of a part: the least that S3 takes is 5 MiB, and more would only cost memory.
pub(crate) const PART: u64 = 8 << 20;

/// Most parts of a store that counts them: S3 takes 10,000. Blobs past 75 GiB get larger parts there.
const MOST_PARTS: u64 = 9_600;

/// The largest part, because parts are held in memory: this is for 4.6 TiB, near the largest object of S3.
const LARGEST_PART: u64 = 512 << 20;

/// A reader of a blob from front to back on the threads for blocking work, which hashes it.
pub(crate) struct Upload {
    digest: Digest,
    source: Arc<dyn ReadAt>,
    hasher: Sha256,
    offset: u64,
    /// Bytes of each part but the last.
    part: u64,
}

impl Upload {
    pub(crate) fn new(digest: &Digest, source: Arc<dyn ReadAt>) -> Self {
        Self { digest: *digest, source, hasher: Sha256::new(), offset: 0, part: PART }
    }

    /// The same upload in larger parts if there would be too many. The length is the one that a manifest claims.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if even the largest parts would be too many.
    pub(crate) fn in_few_parts(mut self) -> Result<Self> {
        self.part = PART.max(self.len().div_ceil(MOST_PARTS));
        if self.part > LARGEST_PART {
            return Err(Error::unsupported(format!("has {} bytes: no object can have as many", self.len()))
                .about(format!("blob {}", self.digest)));
        }
        Ok(self)
    }

    /// Length of the whole blob in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.source.len()
    }

    /// The next part of [`PART`] bytes or, [`Self::in_few_parts`], more; `None` at the end. The last part is given only
    /// if the whole matches the digest, so that a store which makes a blob visible with its last byte never shows a
    /// wrong one.
    ///
    /// # Errors
    /// Errors of the source; [`ErrorKind::Corrupt`] if the blob does not match its digest.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        let range = ByteRange::between(self.offset, self.len().min(self.offset.saturating_add(self.part)));
        if range.is_empty() {
            // An empty blob has no last part to withhold.
            return self.check_end().map(|()| None);
        }
        let (source, mut hasher) = (Arc::clone(&self.source), self.hasher.clone());
        let read = tokio::task::spawn_blocking(move || {
            let mut part = vec![0; to_usize(range.len())];
            source.read_at(&mut part, range.offset())?;
            hasher.update(&part);
            Ok::<_, Error>((Bytes::from(part), hasher))
        });
        let (part, hasher) = read.await.map_err(stopped)??;
        self.hasher = hasher;
        self.offset = range.end();
        if self.offset == self.len() {
            self.check_end()?;
        }
        Ok(Some(part))
    }

    /// Goes on behind `beginning`, which is hashed instead of being read from the source.
    ///
    /// # Errors
    /// Errors of reading it; errors of `copied`, which gets its bytes, too.
    pub(crate) async fn skip(&mut self, beginning: &Arc<FileSource>, copied: Copied<'_>) -> Result<()> {
        for range in ByteRange::between(0, beginning.len().min(self.len())).parts(self.part) {
            let (source, mut hasher) = (Arc::clone(beginning), self.hasher.clone());
            let read = tokio::task::spawn_blocking(move || {
                let mut part = vec![0; to_usize(range.len())];
                source.read_at(&mut part, range.offset())?;
                hasher.update(&part);
                Ok::<_, Error>(hasher)
            });
            self.hasher = read.await.map_err(stopped)??;
            self.offset = range.end();
            copied(range.len())?;
        }
        Ok(())
    }

    fn check_end(&self) -> Result<()> {
        let found = Digest::from_bytes(self.hasher.clone().finalize().into());
        if found == self.digest {
            return Ok(());
        }
        Err(Error::corrupt(format!("its content has the digest {found}"))
            .about(format!("blob {}", self.digest))
            .remedy("copy or import it again from its source"))
    }
}

/// The error of a task for blocking work that did not end by itself: the program is being stopped.
pub(crate) fn stopped(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Cancelled, "stopped").caused_by(error)
}
