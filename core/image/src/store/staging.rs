//! Writing an image: blobs are staged out of sight, then published all at once.
//!
//! See the invariants in the parent module. The order of [`Staging::publish`], and the state that a crash or a full
//! disk leaves at each step:
//!
//! 1. Staged files are synced as they are finished. (Staging directory: removed, or stale and pruned.)
//! 2. Under the lock: all that the manifest refers to is found, staged or in the store. (The same.)
//! 3. The new index is written beside the old one and synced: the last thing that needs space. (The same.)
//! 4. The staged files are renamed into `blobs/`, which is then synced. On failure those that are new there are removed
//!    again. (After a crash: blobs that nothing refers to, pruned.)
//! 5. The index is renamed. From here on the image is there.

use super::writeback::Writeback;
use super::{Image, ImageStore};
use crate::manifest::{ImageLayer, MANIFEST_OCI, Manifest, NewImage, Tree};
use crate::reference::Tag;
use headstart_block::{Digest, Error, ErrorKind, FileSource, Result, sync_dir};
use headstart_hash_tree::sums::{BlobSums, DigestWriter, HashingWriter};
use headstart_store::layout::{INDEX_FILE, StagingDir as LeasedDir};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new image that is being written to a store. Its files are out of sight until [`Staging::publish`]; if
/// that is not called, they are deleted when this is dropped.
pub struct Staging {
    store: ImageStore,
    dir: Arc<StagingDir>,
}

struct StagingDir {
    /// The blobs that are staged, by their digests, with their lengths.
    blobs: Mutex<BTreeMap<Digest, u64>>,
    /// A counter that makes names of unfinished files unique.
    next: AtomicU64,
    leased: LeasedDir,
    /// The options with which its files are made.
    options: OpenOptions,
}

impl StagingDir {
    fn blobs(&self) -> MutexGuard<'_, BTreeMap<Digest, u64>> {
        // A panic between two inserts leaves the map whole.
        self.blobs.lock()
    }

    fn unfinished(&self) -> Result<(PathBuf, File)> {
        let name = format!("unfinished-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let path = self.leased.path().join(name);
        let file = self.options.open(&path).map_err(|e| cannot_stage(e, &path))?;
        Ok((path, file))
    }

    /// A finished file gets its digest as its name.
    fn finish(&self, path: &Path, digest: Digest, len: u64) -> Result<()> {
        fs::rename(path, self.leased.path().join(digest.hex())).map_err(|e| cannot_stage(e, path))?;
        self.blobs().insert(digest, len);
        Ok(())
    }
}

fn cannot_stage(error: io::Error, path: &Path) -> Error {
    Error::io("cannot write", error).about(path.display())
}

/// A blob that is completely written but not yet visible in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedBlob {
    /// The sha256 digest of the blob.
    pub digest: Digest,
    /// The length of the blob in bytes.
    pub size: u64,
    /// The blob's hash tree, whose outboard (inner nodes) is staged as well.
    pub tree: Tree,
}

impl StagedBlob {
    /// Describes the blob as a layer of an image.
    #[must_use]
    pub fn layer(&self) -> ImageLayer {
        ImageLayer::new(self.digest, self.size, self.tree)
    }
}

impl Staging {
    pub(super) fn new(store: ImageStore) -> Result<Self> {
        let leased = LeasedDir::new(&store.layout, false)?;
        let options = store.layout.new_file_options();
        let options = options.map_err(|e| store.layout.about(Error::io("cannot look at it", e)))?;
        let dir = StagingDir { blobs: Mutex::default(), next: AtomicU64::new(0), leased, options };
        Ok(Self { store, dir: Arc::new(dir) })
    }

    /// Returns the directory that holds the staged files. It is on the store's file system and is deleted
    /// when this is dropped. Callers may put scratch files there.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.leased.path()
    }

    /// Starts a new blob. Several blobs may be written at once, by different threads.
    ///
    /// # Errors
    /// Errors of making a file.
    pub fn blob_writer(&self) -> Result<BlobWriter> {
        let (path, file) = self.dir.unfinished()?;
        let out = Writeback::new(file, path.clone());
        Ok(BlobWriter { out: HashingWriter::new(out, self.path()), path, dir: Arc::clone(&self.dir) })
    }

    /// Starts a copy of a blob whose digest its writer finds. No hash tree is made.
    ///
    /// # Errors
    /// Errors of making a file.
    pub fn copy_writer(&self) -> Result<CopyWriter> {
        let (path, file) = self.dir.unfinished()?;
        let out = Writeback::new(file, path.clone());
        Ok(CopyWriter { out, path, dir: Arc::clone(&self.dir) })
    }

    /// Stages the file `from`, a finished blob with the digest `digest` and a length of `len` bytes: the caller vouches
    /// for both. On the file system of the store, nothing is copied: the file gets another name, and must not be
    /// written to any more. No hash tree is made.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the file has another length; errors of reading and writing files.
    pub fn adopt(&self, from: &Path, digest: &Digest, len: u64) -> Result<()> {
        let (path, mut file) = self.dir.unfinished()?;
        let mut adopted = || {
            let found = fs::metadata(from)?;
            let wanted = file.metadata()?;
            let is_alike = (found.uid(), found.gid()) == (wanted.uid(), wanted.gid());
            let linked = path.with_extension("linked");
            if is_alike && fs::hard_link(from, &linked).is_ok() {
                fs::set_permissions(&linked, wanted.permissions())?;
                fs::rename(&linked, &path)?;
                return Ok(found.len());
            }
            let copied = io::copy(&mut File::open(from)?, &mut file)?;
            file.sync_data().map(|()| copied)
        };
        let found: u64 = adopted().map_err(|e| Error::io("cannot be staged", e).about(from.display()))?;
        if found != len {
            return Err(Error::corrupt(format!("it has {found} bytes, not {len}")).about(from.display()));
        }
        self.dir.finish(&path, *digest, len)
    }

    /// Stages a small blob that is in memory. Returns its digest. No hash tree is made.
    ///
    /// # Errors
    /// Errors of writing a file.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest> {
        let (path, mut file) = self.dir.unfinished()?;
        file.write_all(bytes).and_then(|()| file.sync_data()).map_err(|e| cannot_stage(e, &path))?;
        let digest = Digest::of(bytes);
        self.dir.finish(&path, digest, bytes.len() as u64)?;
        Ok(digest)
    }

    /// Opens a blob that was staged; `None` if it was not.
    ///
    /// # Errors
    /// Errors of opening the file.
    pub fn open(&self, digest: &Digest) -> Result<Option<FileSource>> {
        let is_staged = self.dir.blobs().contains_key(digest);
        is_staged.then(|| FileSource::open(self.path().join(digest.hex()))).transpose()
    }

    /// Publishes the image in the store under `tag`. Another image that had the tag loses it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if a blob that the image shares with another image was removed meanwhile, or if another
    /// process holds the store's lock for too long; [`ErrorKind::NoSpace`] if the disk is full; errors of writing. The
    /// store is then as it was before, unless only the last step failed, the syncing of the store's directory: the
    /// image is then published, but a power failure may undo that.
    pub fn publish(self, image: &NewImage, tag: &Tag) -> Result<Image> {
        self.publish_over(image, tag).map(|(image, _)| image)
    }

    /// Works as [`Staging::publish`]. Also returns the digest of the manifest that the tag named before;
    /// `None` if the tag is new or named the same manifest.
    ///
    /// # Errors
    /// As [`Staging::publish`].
    pub fn publish_over(self, image: &NewImage, tag: &Tag) -> Result<(Image, Option<Digest>)> {
        let documents = image.documents()?;
        self.put(&documents.config)?;
        let digest = self.put(&documents.manifest)?;
        let manifest = Manifest::parse(&documents.manifest)?;

        let _lock = self.store.layout.lock()?;
        self.check_references(&manifest)?;
        let before = self.store.layout.index()?;
        let was = before.find(tag).and_then(|entry| entry.digest).filter(|was| *was != digest);
        let mut index = before.clone();
        index.set(tag, MANIFEST_OCI, &digest, documents.manifest.len() as u64);
        let prepared = self.store.layout.prepare(&index.to_bytes()?)?;
        let mut moved = Moved::default();
        let marked = self.store.layout.mark_lost(&before, &index);
        let published = marked
            .and_then(|()| self.move_blobs(&manifest, digest, &mut moved))
            .and_then(|()| prepared.publish(INDEX_FILE));
        if published.is_err() {
            moved.take_back();
        }
        published?;
        self.store.layout.unmark_gained(&before, &index);
        // If this fails, the image is there and complete, though a power cut may still undo it.
        self.store.layout.sync_root()?;
        Ok((Image { digest, manifest }, was))
    }

    fn check_references(&self, manifest: &Manifest) -> Result<()> {
        let staged = self.dir.blobs();
        for (digest, size) in manifest.blobs().filter(|(digest, _)| !staged.contains_key(digest)) {
            self.store.open_sized(&digest, size).map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    let cause = "was removed from the store while an image that shares it was written";
                    self.store
                        .layout
                        .about_blob(Error::new(ErrorKind::Conflict, cause), &digest)
                        .remedy("import its base again, then this")
                }
                _ => error,
            })?;
        }
        Ok(())
    }

    /// Moves the blobs that the manifest refers to, and the manifest, from the staging directory into the store.
    fn move_blobs(&self, manifest: &Manifest, own: Digest, moved: &mut Moved) -> Result<()> {
        let dir = self.store.layout.blobs_dir();
        let failed = |e| self.store.layout.about(Error::io("cannot publish a blob", e));
        self.store.layout.make_blobs_dir().map_err(failed)?;
        let listed = manifest.blobs().map(|(digest, _)| digest);
        let wanted: BTreeSet<_> = listed.chain(manifest.turbo_targets()).chain([own]).collect();
        for digest in self.dir.blobs().keys().filter(|digest| wanted.contains(digest)) {
            // A blob that is there already is replaced: its content is the same, or was damaged.
            let (from, to) = (self.path().join(digest.hex()), self.store.layout.blob_path(digest));
            let is_new = !to.try_exists().map_err(failed)?;
            fs::rename(&from, &to).map_err(failed)?;
            if is_new {
                moved.0.push(to);
            }
        }
        sync_dir(&dir).map_err(failed)
    }
}

/// Blobs of the store that were not there before.
#[derive(Default)]
struct Moved(Vec<PathBuf>);

impl Moved {
    /// Best effort: a file that stays is pruned some day.
    fn take_back(self) {
        for path in self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// A writer of one blob of a [`Staging`]. It computes the blob's digest, length and hash tree while the bytes
/// pass.
pub struct BlobWriter {
    out: HashingWriter<Writeback>,
    path: PathBuf,
    dir: Arc<StagingDir>,
}

impl BlobWriter {
    /// Returns the number of bytes written so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.out.len()
    }

    /// `true` if nothing has been written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Completes the blob. The blob and its hash tree are on the disk afterwards and survive a power failure,
    /// but become visible only with [`Staging::publish`].
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if the disk is full, and other errors of writing files.
    pub fn finish(self) -> Result<StagedBlob> {
        let (tree_path, tree_file) = self.dir.unfinished()?;
        let mut tree = DigestWriter::new(BufWriter::with_capacity(1 << 20, tree_file));
        let (out, BlobSums { digest, len, root }) =
            self.out.finish(&mut tree).map_err(|e| e.about(tree_path.display()))?;
        let (tree_file, tree_digest, tree_len) = tree.finish();
        let tree_file = tree_file.into_inner().map_err(|e| cannot_stage(e.into_error(), &tree_path))?;
        for (file, path) in [(out.file(), &self.path), (&tree_file, &tree_path)] {
            file.sync_data().map_err(|e| cannot_stage(e, path))?;
        }
        self.dir.finish(&self.path, digest, len)?;
        self.dir.finish(&tree_path, tree_digest, tree_len)?;
        Ok(StagedBlob { digest, size: len, tree: Tree { root, digest: tree_digest, size: tree_len } })
    }
}

impl Write for BlobWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.out.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A writer of a copy of a blob ([`Staging::copy_writer`]).
pub struct CopyWriter {
    out: Writeback,
    path: PathBuf,
    dir: Arc<StagingDir>,
}

impl CopyWriter {
    /// Completes the blob, whose bytes have the digest `digest`: the caller vouches for it.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if the disk is full, and other errors of writing files.
    pub fn finish(self, digest: &Digest) -> Result<()> {
        self.out.file().sync_data().map_err(|e| cannot_stage(e, &self.path))?;
        self.dir.finish(&self.path, *digest, self.out.written())
    }
}

impl Write for CopyWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.out.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
