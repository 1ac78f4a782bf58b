//! The leases of a store's images: taken by attaches, judged before deletions.
//!
//! The form and the rules are in [`headstart_store::layout`]; here is the code that looks at file systems, records and
//! writable directories.

use super::{Image, ImageStore};
use crate::disk_form::FormWish;
use crate::manifest::Manifest;
use crate::reference::{Reference, Selector};
use headstart_block::guarded::{FileAccess, GuardedDir, is_trusted};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_lsmt::writable::WritableDisk;
use headstart_store::layout::{
    ATTACH, ATTACH_LOCK_LIMIT, DirectorySeen, FoundLease, HeldLease, HostId, JudgedLease, LayoutLock, Lease,
    LeaseFacts, LeaseHolder, RecordSeen, Standing, undecided,
};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// File systems that only one host at a time can have mounted, by the numbers that the kernel gives them: ext2 to ext4,
/// XFS, Btrfs, F2FS, ZFS, bcachefs, tmpfs, ramfs, overlayfs.
const LOCAL_FILESYSTEMS: [u64; 9] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0xF2F5_2010,
    0x2FC1_2FC1,
    0xCA45_1A4E,
    0x0102_1994,
    0x8584_58F6,
    0x794C_7630,
];

/// An image that was found in a store and is protected by a lease: a record that keeps other processes from
/// deleting its blobs.
#[derive(Debug)]
pub struct HeldImage {
    /// The image that was found.
    pub image: Image,
    /// The bytes of the image's manifest.
    pub bytes: Vec<u8>,
    /// A newer form of a container's image, which was passed over because its file system can only be read.
    pub passed_over: Option<Digest>,
    /// The lease. Dropping this value ends the lease, unless the lease names a record file that still exists (`record`
    /// of [`ImageStore::hold`]). `Err` gives the reason that no lease could be written; the image can be read anyway,
    /// but may be deleted.
    pub lease: Result<HeldLease>,
}

/// Describes a writable directory for which a lease on its base image is to be written.
#[derive(Clone, Debug)]
pub struct HoldingDirectory<'a> {
    /// The path of the writable directory.
    pub dir: &'a Path,
    /// The UUID of the disk in the directory.
    pub uuid: Uuid,
    /// The digest of the manifest of the base image.
    pub image: Digest,
    /// The manifest of the base image.
    pub manifest: &'a Manifest,
    /// The reference by which the user named the base image.
    pub reference: &'a Reference,
}

impl ImageStore {
    /// Finds an image for a process that attaches it, and writes a lease on it. Both happen under the store's
    /// lock, so [`Self::prune`] cannot delete the image in between. If the lease cannot be written, the image
    /// is returned with the error in [`HeldImage::lease`].
    ///
    /// Of `reference`, only the tag or digest selects the image; the location is not compared with this store. The
    /// lease records the whole reference. Of several forms of a container's image, the wanted one is found.
    ///
    /// `known` is the digest and the bytes of the manifest, if the caller has them already. `record` is the
    /// path of a file that exists as long as the disk is to be started again after its process ends; the
    /// lease then stays valid until that file is gone. `unique` becomes part of the lease's name if there is
    /// no `record`.
    ///
    /// # Errors
    /// As [`ImageStore::resolve`]; [`ErrorKind::Conflict`] if another process holds the store's lock for 30 s
    /// and `known` is `None`. With `known`, that error is in [`HeldImage::lease`] instead: a disk that is
    /// started again must not wait longer, and its lease from before is still there.
    pub fn hold(
        &self,
        (reference, wish): (&Reference, FormWish),
        known: Option<(Digest, Vec<u8>)>,
        record: Option<PathBuf>,
        unique: Uuid,
    ) -> Result<HeldImage> {
        let lock = match self.layout.lock_within(ATTACH_LOCK_LIMIT) {
            Err(e) if e.kind() == ErrorKind::Conflict && known.is_none() => return Err(e),
            lock => lock,
        };
        let (image, bytes, passed_over) = match known {
            Some((digest, bytes)) => {
                let manifest = Manifest::parse(&bytes).map_err(|e| e.about(reference))?;
                (Image { digest, manifest }, bytes, None)
            }
            None => {
                let (image, passed_over) = self.wanted_form(&reference.selector, wish)?;
                let bytes = self.read_document(&image.digest)?;
                (image, bytes, passed_over)
            }
        };
        let lease = lock.and_then(|lock| {
            let targets = image.manifest.turbo_targets();
            let blobs = image.manifest.blobs().map(|(digest, _)| digest).chain(targets).collect();
            let host = HostId::here()?;
            let id = attach_id(record.as_deref(), &image.digest, &host, unique);
            let holder = LeaseHolder::Attach { record };
            let lease = Lease::new(holder, image.digest, blobs, reference.to_string(), host);
            self.layout.hold(&lock, &id, &lease)
        });
        Ok(HeldImage { image, bytes, passed_over, lease })
    }

    /// Writes the lease of a writable directory on its base image, unless the same lease is there already.
    /// The lease survives a power failure.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another process holds the store's lock for 30 s; errors of looking at the
    /// directory and of writing the lease.
    pub fn hold_for_directory(&self, holding: &HoldingDirectory<'_>) -> Result<()> {
        let lock = self.layout.lock_within(ATTACH_LOCK_LIMIT)?;
        let id = lease_of_directory(holding.uuid, holding.dir)?;
        self.layout.keep_lease(&lock, &id, &holding.lease()?)
    }

    /// Removes the lease of the writable directory `dir` with the disk `uuid`. Leases of copies of that
    /// directory, which have the same UUID and other paths, stay. A lease that is not there is not an error.
    ///
    /// # Errors
    /// Errors of looking at the path and of deleting a file.
    pub fn release_directory(&self, uuid: Uuid, dir: &Path) -> Result<()> {
        self.layout.remove_lease(&lease_of_directory(uuid, dir)?)
    }

    /// Removes the lease with the name `id` of an attached disk. The caller must know that the disk's process
    /// has ended and that the disk is not to be started again; otherwise a prune may delete blobs that the disk
    /// needs. A lease that is not there is not an error.
    ///
    /// # Errors
    /// Errors of deleting a file.
    pub fn release_attach(&self, id: &str) -> Result<()> {
        self.layout.remove_lease(id)
    }

    /// Returns all leases of the store, each with its state as far as this host can tell it.
    ///
    /// # Errors
    /// Errors of reading the leases.
    pub fn leases(&self) -> Result<Vec<JudgedLease>> {
        let found = self.layout.leases()?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let here = HostId::here()?;
        let is_local = is_on_local_filesystem(self.root());
        let judge = |found: FoundLease| {
            if found.is_torn() {
                return JudgedLease { found, standing: Standing::Over };
            }
            // A lease that is not understood here counts.
            let standing = found.lease.as_ref().map_or(Standing::Foreign, |lease| {
                lease.standing(&here, &seen(lease, found.is_locked, is_local))
            });
            JudgedLease { found, standing }
        };
        Ok(found.into_iter().map(judge).collect())
    }

    /// Removes a lease. If it is of a writable directory and its image has no tag, the time for which prunes keep an
    /// untagged image starts now. A lease that is not there any more is not an error.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another process holds the store's lock for too long; errors of reading the
    /// index and of writing or deleting a file.
    pub fn release(&self, lease: &JudgedLease) -> Result<()> {
        let lock = self.layout.lock()?;
        self.end_lease(&lock, lease)
    }

    /// The same under the lock.
    pub(super) fn end_lease(&self, _lock: &LayoutLock, lease: &JudgedLease) -> Result<()> {
        // A directory may have been moved: its image stays for a while, so that it can be attached in time.
        if let Ok(Lease { holder: LeaseHolder::Writable { .. }, image, .. }) = &lease.found.lease {
            let index = self.layout.index()?;
            if index.entries().all(|entry| entry.digest != Some(*image)) {
                let tags = self.layout.marks()?.remove(image).map(|mark| mark.tags).unwrap_or_default();
                self.layout.mark(image, tags)?;
            }
        }
        self.layout.remove_lease(&lease.found.id)
    }

    /// The leases that count, and the blobs that they name. Leases that are over are removed under a lock, if there is
    /// one.
    pub(super) fn counting_leases(&self, lock: Option<&LayoutLock>) -> Result<CountingLeases> {
        let mut counting = CountingLeases::default();
        for lease in self.leases()? {
            if lease.standing == Standing::Over {
                counting.over += 1;
                if let Ok(Lease { holder: LeaseHolder::Writable { .. }, image, .. }) = &lease.found.lease {
                    counting.ended.insert(*image);
                }
                if let Some(lock) = lock {
                    self.end_lease(lock, &lease)?;
                }
                continue;
            }
            match lease.found.lease {
                Ok(lease) => counting.leases.push(lease),
                Err(error) => {
                    let store = format!("file://{}", self.root().display());
                    let remedy = undecided(&error, &store, &lease.found.id);
                    return Err(error.remedy(remedy));
                }
            }
        }
        Ok(counting)
    }
}

impl HoldingDirectory<'_> {
    /// Makes the lease of this directory, without writing it to a store.
    ///
    /// # Errors
    /// Errors of looking at the directory, and of reading this host's identity from `/proc`.
    pub fn lease(&self) -> Result<Lease> {
        let dir = canonical(self.dir)?;
        let filesystem = filesystem_of(&dir).map_err(|e| cannot_look(e, self.dir))?;
        let holder = LeaseHolder::Writable { dir, uuid: self.uuid.to_string(), filesystem };
        let blobs = self.manifest.blobs().map(|(digest, _)| digest);
        let blobs = blobs.chain(self.manifest.turbo_targets()).collect();
        Ok(Lease::new(holder, self.image, blobs, self.reference.to_string(), HostId::here()?))
    }
}

/// The leases of a store that count.
#[derive(Debug, Default)]
pub(super) struct CountingLeases {
    pub(super) leases: Vec<Lease>,
    /// The number of those that do not count.
    pub(super) over: u64,
    /// The images of those that do not count and were of writable directories.
    pub(super) ended: BTreeSet<Digest>,
}

/// Returns the name of the lease of an attached disk. With a `record` file, the name depends only on the
/// record's path, the image and the host, so that a disk that is started again replaces its earlier lease.
/// Without a record, the name is made from `unique`.
#[must_use]
pub fn attach_id(record: Option<&Path>, image: &Digest, host: &HostId, unique: Uuid) -> String {
    match record {
        Some(record) => {
            // Agents of several hosts have the same directories, and often disks of the same names.
            let machine = host.machine.as_deref().unwrap_or_default();
            let text = format!("{machine}\0{}\0{} {image}", host.name, record.display());
            format!("disk-{}", &Digest::of(text.as_bytes()).hex()[..32])
        }
        None => format!("{ATTACH}{unique}"),
    }
}

/// The name of the lease of the writable directory at the canonical path `dir` of `host`: another one for a copy, whose
/// disk has the same id.
fn directory_id(uuid: Uuid, dir: &Path, host: &HostId) -> String {
    use std::os::unix::ffi::OsStrExt;
    // Copies of a host may still have its machine id.
    let host = format!("{}\0{}\0", host.machine.as_deref().unwrap_or_default(), host.name);
    let place = [host.as_bytes(), dir.as_os_str().as_bytes()].concat();
    format!("writable-{uuid}-{}", &Digest::of(&place).hex()[..16])
}

/// The path without symbolic links; also of a directory that is gone, if its parent directory is there.
fn canonical(dir: &Path) -> Result<PathBuf> {
    let found = fs::canonicalize(dir).or_else(|e| match (e.kind(), dir.parent(), dir.file_name()) {
        (io::ErrorKind::NotFound, Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            fs::canonicalize(parent).map(|parent| parent.join(name))
        }
        _ => Err(e),
    });
    found.map_err(|e| cannot_look(e, dir))
}

fn cannot_look(error: io::Error, path: &Path) -> Error {
    Error::io("cannot look at it", error).about(path.display())
}

/// Returns the name of the lease of the writable directory `dir` with the disk `uuid`, as used in every
/// store. The lease of a copy of the directory, at another path or on another host, has another name.
///
/// # Errors
/// Errors of looking at the path, and of reading this host's identity from `/proc`.
pub fn lease_of_directory(uuid: Uuid, dir: &Path) -> Result<String> {
    Ok(directory_id(uuid, &canonical(dir)?, &HostId::here()?))
}

/// Collects what this host knows about a lease: the state of its process, and of the record or writable
/// directory that the lease names. `is_locked` and `is_on_local_filesystem` are copied into the result.
#[must_use]
pub fn seen(lease: &Lease, is_locked: bool, is_on_local_filesystem: bool) -> LeaseFacts {
    let (mut record_seen, mut directory) = (RecordSeen::IsGone, DirectorySeen::Unknown);
    match &lease.holder {
        LeaseHolder::Attach { record: Some(record) } => record_seen = look_at_record(record, &lease.image),
        LeaseHolder::Attach { record: None } => {}
        LeaseHolder::Writable { dir, uuid, filesystem } => {
            directory = look_at_directory(dir, uuid, &lease.image, filesystem);
        }
    }
    let process_is_gone = lease.process_is_gone();
    LeaseFacts { is_locked, is_on_local_filesystem, record: record_seen, process_is_gone, directory }
}

/// The ending of records of disks.
const RECORD_ENDING: &str = "images";

/// The most bytes of a record: some manifests.
const RECORD_MAX: u64 = 64 << 20;

/// The state of the record of a disk. A path in a lease may come from any user with write access to leases: only a
/// record of root's or of this user's that names the image shows that the disk is there.
fn look_at_record(record: &Path, image: &Digest) -> RecordSeen {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    if !record.is_absolute() || record.extension().is_none_or(|ending| ending != RECORD_ENDING) {
        return RecordSeen::Unknown;
    }
    let read = || -> io::Result<Vec<u8>> {
        let (dir, name) = GuardedDir::around(record)?;
        let file = dir.open_file(name, FileAccess::Read)?;
        let mut text = Vec::new();
        if is_trusted(&file.metadata()?) {
            file.take(RECORD_MAX).read_to_end(&mut text)?;
        }
        Ok(text)
    };
    match read() {
        Ok(text) => {
            let name = image.to_string();
            let has = text.windows(name.len()).any(|part| part == name.as_bytes());
            if has { RecordSeen::Holds } else { RecordSeen::Unknown }
        }
        // The record is of a user whose directories this one cannot look into.
        Err(e) if e.kind() == PermissionDenied => RecordSeen::Holds,
        Err(e) if matches!(e.kind(), NotFound | NotADirectory) => RecordSeen::IsGone,
        Err(_) => RecordSeen::Unknown,
    }
}

/// The state of a writable directory, as far as it can be seen.
fn look_at_directory(dir: &Path, uuid: &str, image: &Digest, filesystem: &str) -> DirectorySeen {
    if !dir.is_absolute() {
        return DirectorySeen::Unknown;
    }
    let is_absent = match dir.join("state.json").symlink_metadata() {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => true,
        Err(_) => return DirectorySeen::Unknown,
        Ok(_) => match WritableDisk::inspect(dir) {
            Ok(info) if info.uuid.to_string() == uuid && info.parent == image.to_string() => {
                return DirectorySeen::Holds;
            }
            Ok(_) => false,
            // Removed meanwhile, perhaps, or damaged: the next look shows it.
            Err(_) => return DirectorySeen::Unknown,
        },
    };
    // A missing path may be on a file system that is not mounted, or mounted for others only.
    let nearest = dir.ancestors().find(|dir| !is_absent || dir.is_dir());
    match nearest.map(filesystem_of) {
        Some(Ok(here)) if here == filesystem => DirectorySeen::IsGone,
        _ => DirectorySeen::Unknown,
    }
}

/// The id of the file system of a directory: its own if it has one that survives a restart of the host.
fn filesystem_of(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let id = rustix::fs::statvfs(path)?.f_fsid;
    Ok(if id == 0 { format!("dev-{:x}", fs::metadata(path)?.dev()) } else { format!("{id:x}") })
}

/// `true` if a directory is on a file system that only one host at a time can have mounted.
fn is_on_local_filesystem(path: &Path) -> bool {
    // The type has another sign and width on each architecture.
    let kind = rustix::fs::statfs(path).map(|fs| i128::from(fs.f_type) & 0xFFFF_FFFF);
    kind.is_ok_and(|kind| LOCAL_FILESYSTEMS.iter().any(|local| i128::from(*local) == kind))
}

/// Returns the warning for the user that no lease could be written for the image, because of `error`.
#[must_use]
pub fn unprotected(reference: &Reference, error: &Error) -> String {
    let why = match error.kind() {
        ErrorKind::ReadOnly => "it cannot be written".to_owned(),
        _ => error.to_string(),
    };
    let store = &reference.location;
    format!("no lease can be left in {store} ({why}): nothing keeps others from deleting the image")
}

/// Returns a reference to the image with the manifest `digest`, in the same store as `reference`.
#[must_use]
pub fn by_digest(reference: &Reference, digest: Digest) -> Reference {
    Reference { location: reference.location.clone(), selector: Selector::Digest(digest) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_lsmt::writable::NewDisk;

    fn host(name: &str, machine: Option<&str>) -> HostId {
        HostId {
            name: name.to_owned(),
            machine: machine.map(str::to_owned),
            boot: "b".to_owned(),
            root: None,
            pids: None,
        }
    }

    #[test]
    fn disks_of_one_name_on_several_hosts_have_leases_of_their_own() {
        let (record, image) = (Path::new("/run/headstart/disks/vm.images"), Digest::of(b"image"));
        let id = |host: HostId| attach_id(Some(record), &image, &host, Uuid::new_v4());
        let ids = [id(host("a", Some("m"))), id(host("b", Some("m"))), id(host("a", None))];
        assert_eq!(BTreeSet::from(ids.clone()).len(), ids.len());
        assert_eq!(id(host("a", Some("m"))), ids[0], "all processes of a disk have one");
    }

    #[test]
    fn a_record_holds_only_the_image_that_it_names() {
        let scratch = tempfile::tempdir().unwrap();
        let (image, other) = (Digest::of(b"i"), Digest::of(b"j"));
        let path = |name: &str| scratch.path().join(name);
        let look = |name: &str| look_at_record(&path(name), &image);
        fs::write(path("vm.images"), format!("{{\"digest\": \"{image}\"}}")).unwrap();
        fs::write(path("other.images"), format!("{{\"digest\": \"{other}\"}}")).unwrap();
        fs::write(path("passwd"), image.to_string()).unwrap();
        fs::create_dir(path("dir.images")).unwrap();
        for (link, to) in [("link.images", "vm.images"), ("loop.images", "loop.images"), ("loop", "loop")] {
            std::os::unix::fs::symlink(path(to), path(link)).unwrap();
        }
        let made = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe.images"), made, rustix::fs::Mode::RWXU, 0).unwrap();
        assert_eq!(look("vm.images"), RecordSeen::Holds);
        for gone in ["none.images", "none/vm.images", "passwd/vm.images"] {
            assert_eq!(look(gone), RecordSeen::IsGone, "{gone}");
        }
        for unknown in [
            "other.images",
            "passwd",
            "dir.images",
            "link.images",
            "loop.images",
            "loop/vm.images",
            "pipe.images",
        ] {
            assert_eq!(look(unknown), RecordSeen::Unknown, "{unknown}");
        }
        assert_eq!(look_at_record(Path::new("vm.images"), &image), RecordSeen::Unknown);
    }

    #[test]
    fn directories_of_one_disk_have_leases_of_their_own() {
        let uuid = Uuid::from_u128(5);
        let ids = [
            directory_id(uuid, Path::new("/vm1"), &host("a", Some("m"))),
            directory_id(uuid, Path::new("/vm2"), &host("a", Some("m"))),
            directory_id(uuid, Path::new("/vm1"), &host("b", Some("m"))),
            directory_id(uuid, Path::new("/vm1"), &host("a", Some("n"))),
            directory_id(uuid, Path::new("/vm1"), &host("a", None)),
        ];
        assert!(ids.iter().all(|id| id.starts_with(&format!("writable-{uuid}-"))));
        assert_eq!(BTreeSet::from(ids.clone()).len(), ids.len());
        let later = HostId { boot: "c".to_owned(), ..host("a", Some("m")) };
        assert_eq!(directory_id(uuid, Path::new("/vm1"), &later), ids[0]);
        // A directory that has just been removed is still known by its name.
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("vm");
        fs::create_dir(&dir).unwrap();
        let before = canonical(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
        assert_eq!(canonical(&dir).unwrap(), before);
    }

    #[test]
    fn a_directory_is_gone_only_where_it_would_be_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("a/vm");
        let image = Digest::of(b"i");
        let new = NewDisk { size: 1 << 20, parent: image.to_string(), uuid: Uuid::from_u128(5) };
        fs::create_dir(scratch.path().join("a")).unwrap();
        drop(WritableDisk::create(&dir, None, &new).unwrap());
        let uuid = new.uuid.to_string();
        let here = filesystem_of(&dir).unwrap();
        let look =
            |uuid: &str, image: &Digest, filesystem: &str| look_at_directory(&dir, uuid, image, filesystem);
        assert_eq!(look(&uuid, &image, &here), DirectorySeen::Holds);
        assert_eq!(look(&uuid, &Digest::of(b"j"), &here), DirectorySeen::IsGone);
        assert_eq!(look("other", &image, &here), DirectorySeen::IsGone);
        assert_eq!(look("other", &image, "elsewhere"), DirectorySeen::Unknown);
        let state = fs::read(dir.join("state.json")).unwrap();
        fs::write(dir.join("state.json"), "{").unwrap();
        assert_eq!(look(&uuid, &image, &here), DirectorySeen::Unknown);
        fs::write(dir.join("state.json"), state).unwrap();
        fs::remove_dir_all(scratch.path().join("a")).unwrap();
        assert_eq!(look(&uuid, &image, &here), DirectorySeen::IsGone);
        assert_eq!(look(&uuid, &image, "elsewhere"), DirectorySeen::Unknown);
    }
}
