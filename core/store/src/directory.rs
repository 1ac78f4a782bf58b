//! Stores in OCI layout directories.
//!
//! Local images are opened through `headstart-image`, straight from their files; this store is for code
//! for which the kind of store does not matter: copying images, attaching by the same code as from afar.
//!
//! Blobs are written one by one: staged out of sight, synced, renamed into their place. So a copy that broke off
//! finds most of its blobs already there, and goes on within the one that it was at ([`Unfinished`]). As long as a
//! writer that works like this lives, prune keeps all blobs; the manifest goes into the index last, under the layout's
//! lock, and only if all blobs that it has are there.

use crate::counters::StoreCounters;
use crate::layout::{
    self, INDEX_FILE, LayoutDir, LayoutIndex, StagingDir, Unfinished, follow, named_blobs, select,
};
use crate::link::{Answer, Link, about_errors};
use crate::media_type::INDEX_OCI;
use crate::reference::{Location, Selector, Tag};
use crate::referrers::{Change, Referrer};
use crate::settings::StoreSettings;
use crate::store::{Copied, Store, Urgency};
use crate::upload::{Upload, stopped};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, FileSource, ReadAt, Result};
use parking_lot::Mutex;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are read from a file at once.
const PART: u64 = 1 << 20;

/// An OCI layout directory as a [`Store`].
pub(crate) struct DirectoryStore {
    layout: LayoutDir,
    link: Link,
    /// Made by the first write; living until the store is dropped.
    staging: Arc<Mutex<Option<Arc<StagingDir>>>>,
    /// Makes names of staged files unique.
    next: AtomicU64,
}

impl DirectoryStore {
    pub(crate) fn new(root: &Path, settings: &StoreSettings) -> Self {
        Self {
            layout: LayoutDir::at(root),
            // A second read of the same disk is no faster than the first.
            link: Link::new(settings).without_hedge(),
            staging: Arc::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Does blocking work on a thread for blocking work.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LayoutDir) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let layout = self.layout.clone();
        tokio::task::spawn_blocking(move || work(&layout)).await.map_err(stopped)?
    }

    async fn read_document(&self, digest: Digest) -> Result<Bytes> {
        self.blocking(move |layout| layout.read_document(&digest)).await.map(Bytes::from)
    }

    async fn selected(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let digest = match selector.clone() {
            Selector::Digest(digest) => digest,
            Selector::Tag(tag) => {
                let location = self.location();
                let found = move |layout: &LayoutDir| {
                    select(&LayoutDir::open(layout.root())?.index()?, &tag, &location)
                };
                self.blocking(found).await?
            }
        };
        Ok((digest, self.read_document(digest).await?))
    }

    /// The layout, made if there is none yet, and this writer's part of it.
    async fn writable(&self) -> Result<Arc<StagingDir>> {
        let shared = Arc::clone(&self.staging);
        self.blocking(move |layout| {
            let mut staging = shared.lock();
            if let Some(staging) = &*staging {
                return Ok(Arc::clone(staging));
            }
            let layout = LayoutDir::create_or_open(layout.root())?;
            let made = Arc::new(StagingDir::new(&layout, true)?);
            *staging = Some(Arc::clone(&made));
            Ok(made)
        })
        .await
    }

    async fn read_part(&self, blob: Digest, range: ByteRange) -> Result<Answer> {
        let open = self.blocking(move |layout| {
            let source = layout.open_blob(&blob)?;
            if range.end() > source.len() {
                let cause = format!("has {} bytes, none at {range}", source.len());
                return Err(layout.about_blob(Error::corrupt(cause).remedy("copy or import it again"), &blob));
            }
            Ok(source)
        });
        let source = Arc::new(open.await?);
        let thing = format!("blob {blob} of {}", self.layout.root().display());
        let parts = range.parts(PART).map(move |part| read_from(Arc::clone(&source), part));
        Ok(Answer { thing, body: stream::iter(parts).then(|part| part).boxed() })
    }

    /// Writes the missing bytes of a blob to a file that has its beginning.
    async fn fill(
        &self,
        unfinished: &Arc<Unfinished>,
        digest: &Digest,
        source: &Arc<dyn ReadAt>,
        copied: Copied<'_>,
    ) -> Result<()> {
        let mut upload = Upload::new(digest, Arc::clone(source));
        if unfinished.there() > 0 {
            upload.skip(&Arc::new(unfinished.beginning()?), copied).await?;
        }
        let mut offset = unfinished.there();
        while let Some(part) = upload.next().await? {
            let (len, file) = (part.len() as u64, Arc::clone(unfinished));
            self.blocking(move |_| file.write_at(&part, offset)).await?;
            offset += len;
            copied(len)?;
        }
        Ok(())
    }

    /// Writes a document and changes the index by `change`, all under the lock.
    async fn publish(
        &self,
        bytes: Bytes,
        change: impl FnOnce(&mut LayoutIndex, &LayoutDir, Digest) -> Result<()> + Send + 'static,
    ) -> Result<Digest> {
        let staging = self.writable().await?;
        self.blocking(move |layout| {
            let digest = Digest::of(&bytes);
            let _lock = layout.lock()?;
            check_blobs(layout, &bytes)?;
            let before = layout.index()?;
            let mut index = before.clone();
            change(&mut index, layout, digest)?;
            put_document(layout, &staging, &bytes)?;
            layout.replace_index(&before, &index)?;
            Ok(digest)
        })
        .await
    }
}

/// Checks that all blobs of a manifest are there.
fn check_blobs(layout: &LayoutDir, manifest: &[u8]) -> Result<()> {
    named_blobs(manifest)?.iter().try_for_each(|blob| {
        layout.open_blob(blob).map(drop).map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                let cause = "was removed from the store while an image that has it was written";
                layout.about_blob(Error::new(ErrorKind::Conflict, cause).remedy("run it again"), blob)
            }
            _ => e,
        })
    })
}

/// Makes a document a blob, durably.
fn put_document(layout: &LayoutDir, staging: &StagingDir, bytes: &[u8]) -> Result<Digest> {
    let digest = Digest::of(bytes);
    let staged = staging.path().join(format!("document-{}", digest.hex()));
    // The same document may have been staged before.
    let _ = std::fs::remove_file(&staged);
    let wrote = layout.new_file_options().and_then(|options| options.open(&staged)).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_data()
    });
    wrote.map_err(|e| cannot_write(e, &staged))?;
    layout.put_in_place(&staged, &digest)?;
    Ok(digest)
}

/// Adds an artifact to the list of its subject's artifacts, under the lock.
fn add_referrer(
    layout: &LayoutDir,
    staging: &StagingDir,
    subject: &Digest,
    change: &Change<'_>,
) -> Result<()> {
    let _lock = layout.lock()?;
    check_blobs(layout, change.artifact)?;
    put_document(layout, staging, change.artifact)?;
    let mut index = layout.index()?;
    let before = match layout.list_of_referrers(&index, subject) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => None,
        before => before?.map(|(_, list)| list),
    };
    let Some(after) = change.of(before.as_deref())? else { return Ok(()) };
    let list = put_document(layout, staging, &after)?;
    index.set(&layout::referrers_of(subject)?, INDEX_OCI, &list, after.len() as u64);
    layout.replace(INDEX_FILE, &index.to_bytes()?)
}

/// Reads a part of a file on a thread for blocking work.
async fn read_from(source: Arc<FileSource>, part: ByteRange) -> Result<Bytes> {
    let read = move || {
        let len = usize::try_from(part.len()).map_err(|_| Error::invalid("a range past the memory"))?;
        let mut bytes = vec![0; len];
        source.read_at(&mut bytes, part.offset())?;
        Ok(Bytes::from(bytes))
    };
    tokio::task::spawn_blocking(read).await.map_err(stopped)?
}

fn cannot_write(error: io::Error, path: &Path) -> Error {
    Error::io("cannot write", error).about(path.display())
}

#[async_trait]
impl Store for DirectoryStore {
    fn location(&self) -> String {
        Location::Directory(self.layout.root().to_owned()).to_string()
    }

    async fn check(&self) -> Result<()> {
        self.blocking(|layout| LayoutDir::open(layout.root()).map(drop)).await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let find = async {
            let (digest, bytes) = self.selected(selector).await?;
            follow(digest, bytes, |digest| self.read_document(digest)).await
        };
        find.await.map_err(|e| e.about(layout::name(&self.location(), selector)))
    }

    async fn document(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.selected(selector).await.map_err(|e| e.about(layout::name(&self.location(), selector)))
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        let read = self.link.read(range, urgency, || self.read_part(*blob, range));
        read.await.map_err(|e| self.layout.about_blob(e, blob))
    }

    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        let thing = format!("blob {blob} of {}", self.layout.root().display());
        let begun = self.link.stream(range, urgency, || self.read_part(*blob, range)).await;
        Ok(about_errors(begun.map_err(|e| self.layout.about_blob(e, blob))?, thing))
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        let blob = *blob;
        self.blocking(move |layout| match layout.open_blob(&blob) {
            Ok(source) => Ok(Some(source.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        })
        .await
    }

    /// From here on prune deletes nothing.
    async fn prepare_to_write(&self) -> Result<()> {
        self.writable().await.map(drop)
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        let staging = self.writable().await?;
        let name = format!("unfinished-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (blob, len) = (*digest, source.len());
        let kept = self.blocking(move |layout| Unfinished::kept(layout, &blob, len)).await?;
        // Here and not on another thread, which would go on making files after this was stopped.
        let staged = || Unfinished::staged(&self.layout, &staging, &name);
        let mut unfinished = Arc::new(kept.map_or_else(staged, Ok)?);
        let mut filled = self.fill(&unfinished, digest, &source, copied).await;
        let is_wrong = |filled: &Result<()>| filled.as_ref().is_err_and(|e| e.kind() == ErrorKind::Corrupt);
        if is_wrong(&filled)
            && unfinished.there() > 0
            && let Some(again) = Arc::get_mut(&mut unfinished)
        {
            // The wrong bytes may be those that an earlier copy left.
            again.clear()?;
            filled = self.fill(&unfinished, digest, &source, copied).await;
        }
        let Some(unfinished) = Arc::into_inner(unfinished) else { return filled };
        self.blocking(move |layout| match filled {
            Ok(()) => unfinished.publish(layout, &blob),
            Err(e) => {
                // The file is of no use, or takes space that others need.
                if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NoSpace) {
                    unfinished.discard();
                }
                Err(e)
            }
        })
        .await
    }

    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        let (media_type, tag, size) = (media_type.to_owned(), tag.cloned(), bytes.len() as u64);
        let change = move |index: &mut LayoutIndex, _: &LayoutDir, digest: Digest| {
            match tag {
                Some(tag) => index.set(&tag, &media_type, &digest, size),
                None => index.keep(&media_type, &digest, size),
            }
            Ok(())
        };
        self.publish(bytes, change).await
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        self.blocking(|layout| Ok(LayoutDir::open(layout.root())?.whole_index()?.tags())).await
    }

    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let (subject, kind) = (*subject, artifact_type.to_owned());
        self.blocking(move |layout| LayoutDir::open(layout.root())?.referrers(&subject, &kind)).await
    }

    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        let staging = self.writable().await?;
        let (subject, media_type, replaced) = (*subject, media_type.to_owned(), replaced.to_vec());
        self.blocking(move |layout| {
            let digest = Digest::of(&bytes);
            let change = Change { artifact: &bytes, digest, media_type: &media_type, replaced: &replaced };
            add_referrer(layout, &staging, &subject, &change).map(|()| digest)
        })
        .await
    }

    fn counters(&self) -> StoreCounters {
        self.link.counters()
    }
}
