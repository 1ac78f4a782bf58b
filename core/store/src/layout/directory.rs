//! [`LayoutDir`]: the files of an OCI layout directory, and the lock under which they change.
//!
//! The invariants that all writers keep (a blob in `blobs/` is complete and durable; the index is replaced by
//! rename, after the blobs' directory is synced) are documented at the code that publishes images: in the image
//! store of `headstart-image`, and in this crate's `directory` for single blobs.

use super::{
    INDEX_FILE, LAYOUT, LAYOUT_FILE, LayoutIndex, MAX_INDEX_SIZE, blob_name, check_document, check_layout,
};
use crate::MAX_MANIFEST_SIZE;
use crate::referrers::{Referrer, listed};
use headstart_block::guarded::{GuardedDir, Like, not_made_in, open_regular, shell_word};
use headstart_block::{Digest, Error, ErrorKind, FileSource, ReadAt, Result, SHA256, sync_dir};
use std::error::Error as StdError;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// The name of the part of the directory that only headstart uses; it means nothing to other tools.
pub const PRIVATE_DIR: &str = ".headstart";

/// The directory in it for files that writers have not published yet.
pub(super) const STAGING: &str = "staging";

/// The directory in it of beginnings of blobs.
pub(super) const PARTIAL: &str = "partial";

/// The directory in it of leases.
pub(super) const LEASES: &str = "leases";

/// The directory in it of marks of images without a name.
pub(super) const UNTAGGED: &str = "untagged";

/// The directory in it of notes of conversions.
pub(super) const CONVERTED: &str = "converted";

/// The file that is locked.
const LOCK: &str = "lock";

/// The beginning of the names of files that get their own name, or are removed, before the lock is given back.
const NEW: &str = ".new-";

/// The time after which a message says that the lock is waited for.
const LOCK_TOLD: Duration = Duration::from_secs(2);

/// The maximum duration for which an attach of a disk waits for the store's lock: 30 s. The start of the guest is
/// delayed by that wait.
pub const ATTACH_LOCK_LIMIT: Duration = Duration::from_secs(30);

/// The longest time that all others wait for the lock, in seconds: a prune of a large store takes minutes.
const LOCK_LIMIT: Duration = Duration::from_secs(900);

/// The remedy for a blob that is not there.
const MISSING_REMEDY: &str = "the image is incomplete: copy or import it again, or fetch what it lacks from a copy by \
                              `headstart image verify IMAGE --repair-from COPY`";

/// A local directory in the OCI image layout, in which images are stored.
#[derive(Clone, Debug)]
pub struct LayoutDir {
    root: PathBuf,
}

/// The store's exclusive lock, to be held while the index or the set of blobs changes. It is released when
/// this is dropped.
pub struct LayoutLock {
    _file: File,
}

/// The permissions of the parts of a layout, which are those of its top directory: a user that may write there may
/// lock it, and a user that may not read there reads nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modes {
    /// Directories of ours.
    pub(super) dir: Like,
    /// The lock, leases and marks: for users that may write to the store, because a lock that all users can open is one
    /// that all users can hold.
    pub(super) file: Like,
    /// The most permissions of files that are as open as the umask lets them be.
    pub(super) most: u32,
}

impl Modes {
    fn of(top: &fs::Metadata) -> Self {
        let mode = top.permissions().mode();
        let owner = Some((top.uid(), top.gid()));
        // In a sticky directory each user owns the files that it made.
        let others = if mode & 0o1002 == 0o002 { 0o006 } else { 0 };
        let group = if mode & 0o020 == 0 { 0 } else { 0o060 };
        let dir = Like { mode: 0o700 | mode & 0o3077, owner };
        Self { dir, file: Like { mode: 0o600 | group | others, owner }, most: 0o600 | mode & 0o066 }
    }
}

/// New content for a file in the layout's top directory. It is written and synced to a temporary file, which
/// is deleted on drop unless [`publish`](Self::publish) renames it.
pub struct Prepared {
    from: GuardedDir,
    top: GuardedDir,
    name: String,
    is_published: bool,
}

impl Prepared {
    /// Renames the temporary file to `name` in the layout's top directory, in place of an older file. The rename
    /// survives a power failure only after [`LayoutDir::sync_root`].
    ///
    /// # Errors
    /// Errors of renaming; the temporary file is then deleted.
    pub fn publish(mut self, name: &str) -> Result<()> {
        self.from
            .rename(&self.name, &self.top, name)
            .map_err(|e| Error::io("cannot replace", e).about(self.top.path().join(name).display()))?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.is_published {
            // A full disk must not be made fuller by an unused file.
            let _ = self.from.remove_file(&self.name);
        }
    }
}

impl LayoutDir {
    /// Makes a value for the layout in the directory `root`. Nothing is checked, and the directory need not
    /// exist.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Opens the layout in the directory `root`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no `oci-layout` file; [`ErrorKind::Corrupt`] if that file is not JSON;
    /// [`ErrorKind::Unsupported`] if it states no version or another one than 1; other errors of reading it.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let layout = Self::at(root);
        let mut text = Vec::new();
        let read =
            open_regular(&layout.root.join(LAYOUT_FILE)).and_then(|f| f.take(4096).read_to_end(&mut text));
        read.map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => layout
                .about(Error::io("cannot be read", e))
                .remedy("run it as a user who may read it, such as its owner"),
            _ => layout
                .about(Error::io("is not an OCI image layout: cannot read its oci-layout file", e))
                .remedy("check the directory, or import an image to make the store"),
        })?;
        check_layout(&text).map_err(|e| layout.about(e))?;
        Ok(layout)
    }

    /// Opens the layout in the directory `root`, or creates one if the directory does not exist or is empty.
    ///
    /// # Errors
    /// As [`LayoutDir::open`]; [`ErrorKind::Invalid`] if the directory holds other files; errors of creating
    /// files.
    pub fn create_or_open(root: impl Into<PathBuf>) -> Result<Self> {
        let layout = Self::at(root);
        if layout.root.join(LAYOUT_FILE).exists() {
            return Self::open(layout.root);
        }
        let made = |e: io::Error| {
            let is_denied = e.kind() == io::ErrorKind::PermissionDenied;
            let error = layout.about(Error::io("cannot make an image store", e));
            if is_denied {
                error.remedy("run it as a user who may write there, or name another directory")
            } else {
                error
            }
        };
        let created = fs::create_dir_all(&layout.root);
        created.map_err(|e| layout.about(not_made_in(&layout.root, "cannot make an image store", e)))?;
        for entry in fs::read_dir(&layout.root).map_err(made)? {
            let name = entry.map_err(made)?.file_name();
            // All but the last may be there from a crash in the code below, or from another process that is in it.
            if ![LAYOUT_FILE, PRIVATE_DIR, "blobs", INDEX_FILE, "lost+found"]
                .iter()
                .any(|known| name == *known)
            {
                let name = name.display();
                return Err(layout
                    .about(Error::invalid(format!(
                        "is not an image store, but holds something else (`{name}`)"
                    )))
                    .remedy("name a new or an empty directory"));
            }
        }
        let _lock = layout.lock()?;
        layout.make_blobs_dir().map_err(made)?;
        // A file that is published later is only as durable as the directories above it.
        sync_dir(&layout.root.join("blobs")).and_then(|()| sync_dir(&layout.root)).map_err(made)?;
        // This one may belong to another user, and not be open to us.
        let _ = layout.root.parent().map(sync_dir);
        if !layout.index_path().exists() {
            layout.replace(INDEX_FILE, &LayoutIndex::empty().to_bytes()?)?;
        }
        layout.replace(LAYOUT_FILE, LAYOUT.as_bytes())?;
        Ok(layout)
    }

    /// Returns the path of the layout's top directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the index, which lists the images with their tags.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the file is not an index; [`ErrorKind::Unsupported`] if it is longer than
    /// [`MAX_INDEX_SIZE`]; errors of reading it. The message names the file.
    pub fn index(&self) -> Result<LayoutIndex> {
        let path = self.index_path();
        let mut bytes = Vec::new();
        open_regular(&path)
            .and_then(|file| file.take(MAX_INDEX_SIZE + 1).read_to_end(&mut bytes))
            .map_err(|e| Error::io("cannot read", e))
            .and_then(|_| LayoutIndex::parse(&bytes))
            .map_err(|e| match e.kind() {
                ErrorKind::Corrupt => e.about(path.display()).remedy(format!(
                    "bring back a copy of that file; without one, each image whose digest is known can still be \
                     copied: `headstart image copy file://{}@DIGEST file:///NEW:TAG`",
                    self.root.display()
                )),
                _ => e.about(path.display()),
            })
    }

    /// Reads the index as [`index`](Self::index) does, for a list of what there is or a decision on what goes: an index
    /// with a damaged entry is refused ([`LayoutIndex::check_entries`]).
    ///
    /// # Errors
    /// As [`Self::index`]; [`ErrorKind::Corrupt`] if an entry is damaged.
    pub fn whole_index(&self) -> Result<LayoutIndex> {
        let index = self.index()?;
        index.check_entries().map_err(|e| e.about(self.index_path().display()))?;
        Ok(index)
    }

    /// Returns the artifacts of one type that belong to the manifest `subject`, in the order in which they were added.
    /// The list is not checked: see [`Store::referrers`](crate::Store::referrers).
    ///
    /// # Errors
    /// Errors of reading the index and the list; [`ErrorKind::Corrupt`] if one is not valid.
    pub fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let Some((list, bytes)) = self.list_of_referrers(&self.index()?, subject)? else {
            return Ok(Vec::new());
        };
        listed(&bytes, artifact_type).map_err(|e| self.about_blob(e, &list))
    }

    /// The list of a manifest's artifacts, if there is one, and its digest.
    pub(crate) fn list_of_referrers(
        &self,
        index: &LayoutIndex,
        subject: &Digest,
    ) -> Result<Option<(Digest, Vec<u8>)>> {
        let list = super::referrers_list(index, subject)?;
        list.map(|list| Ok((list, self.read_document(&list)?))).transpose()
    }

    /// Opens the file of a blob. Its content is not checked against `digest`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the store does not have the blob; other errors of opening it.
    pub fn open_blob(&self, digest: &Digest) -> Result<FileSource> {
        let path = self.blob_path(digest);
        let missing = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, "is not in the store").remedy(MISSING_REMEDY)
            }
            _ => Error::io("cannot open", e),
        };
        let file = open_regular(&path).map_err(missing).map_err(|e| self.about_blob(e, digest))?;
        FileSource::from_file(file, path)
    }

    /// Reads a manifest, an index or a config, and checks its bytes against `digest`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the blob is not there, [`ErrorKind::Corrupt`] if it does not match
    /// `digest`, [`ErrorKind::Unsupported`] if it is larger than [`MAX_MANIFEST_SIZE`]; other errors of opening and
    /// reading its file.
    pub fn read_document(&self, digest: &Digest) -> Result<Vec<u8>> {
        let source = self.open_blob(digest)?;
        let len = usize::try_from(source.len()).ok().filter(|len| *len as u64 <= MAX_MANIFEST_SIZE);
        let Some(len) = len else {
            let error = format!("has {} bytes, a manifest has at most {MAX_MANIFEST_SIZE}", source.len());
            return Err(self.about_blob(Error::unsupported(error), digest));
        };
        let mut bytes = vec![0; len];
        source.read_at(&mut bytes, 0)?;
        check_document(digest, &bytes).map_err(|e| self.about_blob(e, digest))?;
        Ok(bytes)
    }

    /// Names this store as the thing that `error` is about, unless the error names a thing already.
    #[must_use]
    pub fn about(&self, error: Error) -> Error {
        error.about(format!("image store {}", self.root.display()))
    }

    /// Names the blob `digest` of this store as the thing that `error` is about, unless the error names a thing
    /// already.
    #[must_use]
    pub fn about_blob(&self, error: Error, digest: &Digest) -> Error {
        error.about(format!("blob {digest} of {}", self.root.display()))
    }

    /// Returns the path of the directory that holds the blobs.
    #[must_use]
    pub fn blobs_dir(&self) -> PathBuf {
        self.root.join("blobs").join(SHA256)
    }

    /// Returns the path of the blob `digest`, which need not exist.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join(blob_name(digest))
    }

    /// Returns the path of the index file.
    #[must_use]
    pub fn index_path(&self) -> PathBuf {
        self.root.join(INDEX_FILE)
    }

    /// The directory of files that mean nothing to other tools.
    pub(super) fn private_dir(&self) -> PathBuf {
        self.root.join(PRIVATE_DIR)
    }

    pub(super) fn modes(&self) -> io::Result<Modes> {
        Ok(Modes::of(&fs::metadata(&self.root)?))
    }

    /// Returns options for creating a new file. The file gets the permissions of the layout's top directory,
    /// limited by the umask of this process.
    ///
    /// # Errors
    /// Errors of reading the permissions of the layout's top directory.
    pub fn new_file_options(&self) -> io::Result<OpenOptions> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(self.modes()?.most);
        Ok(options)
    }

    /// The directory `name` of those that mean nothing to other tools; `None` if it is not there.
    pub(super) fn private_part(&self, name: &str) -> io::Result<Option<GuardedDir>> {
        let opened = GuardedDir::open(&self.root)
            .and_then(|top| open_named(&top, PRIVATE_DIR))
            .and_then(|private| open_named(&private, name));
        match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The directory of files that mean nothing to other tools, which is made if it is not there.
    pub(super) fn make_private(&self) -> io::Result<GuardedDir> {
        let top = GuardedDir::open(&self.root)?;
        let like = Modes::of(&top.handle().metadata()?).dir;
        let made = top.make_dir(PRIVATE_DIR, like).map_err(|e| named(PRIVATE_DIR, e))?;
        tighten(made.handle(), like.mode);
        Ok(made)
    }

    /// The directory `name` of these, which is made if it is not there.
    pub(super) fn make_private_part(&self, name: &str) -> io::Result<GuardedDir> {
        let like = self.modes()?.dir;
        let made = self.make_private()?.make_dir(name, like).map_err(|e| named(name, e))?;
        tighten(made.handle(), like.mode);
        Ok(made)
    }

    /// Creates the directory that holds the blobs, if it does not exist.
    ///
    /// # Errors
    /// Errors of making a directory.
    pub fn make_blobs_dir(&self) -> io::Result<()> {
        let mode = 0o700 | self.modes()?.dir.mode & 0o077;
        fs::DirBuilder::new().recursive(true).mode(mode).create(self.blobs_dir())
    }

    /// Returns the path of the directory in which writers keep their unpublished files.
    #[must_use]
    pub fn staging_dir(&self) -> PathBuf {
        self.private_dir().join(STAGING)
    }

    /// Returns the path of the directory with the first parts of blobs whose copies broke off, for later
    /// copies to continue.
    #[must_use]
    pub fn partial_dir(&self) -> PathBuf {
        self.private_dir().join(PARTIAL)
    }

    /// Renames the file `staged`, so that it becomes the blob `digest`. The new name survives a power failure.
    /// The caller must have completed and synced the file: the content is not checked against `digest`.
    ///
    /// # Errors
    /// Errors of renaming or syncing; the file `staged` is then deleted.
    pub fn put_in_place(&self, staged: &Path, digest: &Digest) -> Result<()> {
        let dir = self.blobs_dir();
        self.make_blobs_dir()
            .and_then(|()| fs::rename(staged, self.blob_path(digest)))
            .and_then(|()| sync_dir(&dir))
            .map_err(|e| {
                let _ = fs::remove_file(staged);
                self.about(Error::io("cannot publish a blob", e))
            })
    }

    /// Waits for the store's exclusive lock, at most 15 minutes.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another process still holds the lock then; errors of creating or locking
    /// the lock file.
    pub fn lock(&self) -> Result<LayoutLock> {
        self.lock_within(LOCK_LIMIT)
    }

    /// Waits for the store's exclusive lock, at most for the duration `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another process still holds the lock then; errors of creating or locking
    /// the lock file.
    pub fn lock_within(&self, limit: Duration) -> Result<LayoutLock> {
        let failed = |e: io::Error| {
            let is_barred = is_barred(&e);
            let error = self.about(Error::io("cannot lock it", e));
            if is_barred { error.remedy("run it as a user who may write there") } else { error }
        };
        let like = self.modes().map_err(failed)?.file;
        let dir = self.make_private().map_err(failed)?;
        let file = dir.open_or_create(LOCK, like).map_err(|e| failed(named(LOCK, e)))?;
        // No more than that: another user may have put a file of ours from elsewhere there.
        tighten(&file, like.mode);
        Ok(LayoutLock { _file: lock_file(file, &dir.path().join(LOCK), limit)? })
    }

    /// Waits for the store's exclusive lock as [`Self::lock`] does, for a caller that only reads. `None` if
    /// this user may not write to the store; the caller then reads without a lock.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub fn lock_to_look(&self) -> Result<Option<LayoutLock>> {
        let lock = self.lock();
        let cause = lock.as_ref().err().and_then(StdError::source).and_then(<dyn StdError>::downcast_ref);
        if cause.is_some_and(is_barred) { Ok(None) } else { lock.map(Some) }
    }

    /// Writes and syncs new content for a file in the layout's top directory, without replacing that file
    /// yet. The caller must hold the store's lock; otherwise another writer's change can be lost.
    ///
    /// # Errors
    /// Errors of writing; the temporary file is then deleted.
    pub fn prepare(&self, bytes: &[u8]) -> Result<Prepared> {
        let failed = |e| self.about(Error::io("cannot write", e));
        let top = GuardedDir::open(&self.root).map_err(failed)?;
        let from = self.make_private().map_err(failed)?;
        // As open as the umask lets it be: other tools read it.
        let mode = self.modes().map_err(failed)?.most;
        let (name, mut file) = temporary(&from, Creation::AtMost(mode)).map_err(failed)?;
        let prepared = Prepared { from, top, name, is_published: false };
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(prepared)
    }

    /// Replaces the content of the file `name` in the layout's top directory. The caller must hold the
    /// store's lock; otherwise another writer's change can be lost. After a crash, the file has either the old
    /// or the new content.
    ///
    /// # Errors
    /// Errors of writing, renaming or syncing.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.prepare(bytes)?.publish(name)?;
        self.sync_root()
    }

    /// Deletes temporary files that a crash left behind. Failures are ignored, because such files only take
    /// space.
    pub fn remove_unnamed(&self, _lock: &LayoutLock) {
        let parts = [LEASES, UNTAGGED, CONVERTED].map(|name| self.private_part(name).ok().flatten());
        for dir in parts.into_iter().flatten().chain(self.make_private().ok()) {
            let names = dir.names().unwrap_or_default().into_iter();
            // The others are those of earlier versions.
            let unnamed =
                names.filter(|name| name.starts_with(NEW) || [".new", "prepared"].contains(&name.as_str()));
            unnamed.for_each(|name| drop(dir.remove_file(&name)));
        }
    }

    /// Syncs the layout's top directory, so that files created or renamed in it survive a power failure.
    ///
    /// # Errors
    /// Errors of syncing.
    pub fn sync_root(&self) -> Result<()> {
        sync_dir(&self.root).map_err(|e| self.about(Error::io("cannot make its index durable", e)))
    }
}

/// The mode of a new file.
#[derive(Clone, Copy)]
pub(super) enum Creation {
    /// This mode and this owner.
    Like(Like),
    /// This mode, less the bits that the umask takes.
    AtMost(u32),
}

/// Makes a file with a name that cannot be guessed.
pub(super) fn temporary(dir: &GuardedDir, creation: Creation) -> io::Result<(String, File)> {
    let mut name = String::new();
    let make = |path: &Path| {
        // Only the name is taken, and looked up in the directory that is open.
        name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match creation {
            Creation::Like(like) => dir.create_file(&name, like),
            Creation::AtMost(mode) => dir.create_file_by_umask(&name, mode),
        }
    };
    let made = tempfile::Builder::new().prefix(NEW).rand_bytes(12).make_in(dir.path(), make)?;
    let (file, _) = made.keep().map_err(|e| e.error)?;
    Ok((name, file))
}

/// Opens a directory; an error names it.
fn open_named(dir: &GuardedDir, name: &str) -> io::Result<GuardedDir> {
    dir.open_dir(name).map_err(|e| named(name, e))
}

/// `true` if an error says that this user may not write there.
fn is_barred(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// An error about one of the files that mean nothing to other tools.
fn named(name: &str, error: io::Error) -> io::Error {
    match error.kind() {
        // Only entries that a user put there have to be named.
        io::ErrorKind::InvalidInput => io::Error::new(error.kind(), format!("`{name}` in it {error}")),
        _ => error,
    }
}

/// Removes the permissions that `allowed` lacks from a file of this user's. Best effort: another user's stays as it is.
pub(super) fn tighten(file: &File, allowed: u32) {
    let Ok(found) = file.metadata() else { return };
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 & !allowed != 0 {
        let _ = file.set_permissions(Permissions::from_mode(mode & (allowed | 0o7700)));
    }
}

/// Locks a file that another process may hold for `limit` at most; reports it if that takes long.
fn lock_file(file: File, path: &Path, limit: Duration) -> Result<File> {
    let failed = |e| Error::io("cannot lock it", e).about(path.display());
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(e)) => return Err(failed(e)),
    }
    // The kernel serves those that wait in turn, and has no time limit for it: so a thread waits. If that is given
    // up, the thread gets the lock at some time and gives it back at once, with the file.
    let (sender, locked) = mpsc::channel();
    let wait = move || {
        let waited = file.lock().map(|()| file);
        let _ = sender.send(waited);
    };
    std::thread::Builder::new().name("lock".to_owned()).spawn(wait).map_err(failed)?;
    let first = locked.recv_timeout(LOCK_TOLD.min(limit));
    let waited = match first {
        Err(RecvTimeoutError::Timeout) if limit > LOCK_TOLD => {
            let (lock, seconds) = (path.display(), limit.as_secs());
            tracing::warn!(%lock, "another process holds the lock of the image store: waiting for at most {seconds} s");
            locked.recv_timeout(limit.saturating_sub(LOCK_TOLD))
        }
        first => first,
    };
    match waited {
        Ok(file) => file.map_err(failed),
        Err(_) => {
            let cause = format!("another process holds the lock for more than {} s", limit.as_secs());
            let word = shell_word(&path.to_string_lossy());
            Err(Error::new(ErrorKind::Conflict, cause)
                .about(path.display())
                .remedy(format!("`fuser -v {word}` shows which one: wait for it, or end it")))
        }
    }
}
