//! `--keep-base`: a writable directory gets a copy of the image that it lies on, and needs no store from then on.

use headstart_block::guarded::GuardedDir;
use headstart_block::{Digest, Error, ErrorKind, Result, private};
use headstart_disk::KnownImage;
use headstart_image::kept_base;
use headstart_image::progress::Progress;
use headstart_image::store::{ImageStore, lease_of_directory};
use headstart_image::transfer::transfer;
use headstart_lsmt::writable::{BASE_DIR, WritableDisk};
use headstart_store::{Location, Reference, Selector, Settings, Store};
use std::path::Path;

/// Checks that a writable directory, where it is there, is one that no other user can exchange, and that its copy is in
/// it and not elsewhere. A copy that others can read is closed.
///
/// # Errors
/// [`ErrorKind::Denied`] and [`ErrorKind::Io`] where it is not so.
pub(super) fn check(dir: &Path) -> Result<()> {
    // What else is wrong is said where it is opened as a disk.
    let Ok(opened) = GuardedDir::open(dir) else { return Ok(()) };
    opened.check_owner()?;
    match opened.open_dir(BASE_DIR) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => {
            let thing = dir.join(BASE_DIR);
            Err(Error::io("cannot use the copy of the image in it", e).about(thing.display()))
        }
        Ok(base) => {
            base.check_owner()?;
            let closed = private::close(base.handle());
            closed.map(drop).map_err(|e| private::not_closed(base.path(), e))
        }
    }
}

/// The image that a disk is attached by: the copy in its writable directory, where there is one of the image that is
/// asked for.
pub(super) fn kept(dir: &Path, reference: &Reference, known: Option<&KnownImage>) -> Option<Reference> {
    let kept = kept_base::find(dir)?;
    let asked = match (&reference.selector, known) {
        (_, Some(known)) => Some(known.digest),
        (Selector::Digest(digest), None) => Some(*digest),
        // A tag may mean something else by now: the directory lies on what it lies on.
        (Selector::Tag(_), None) => None,
    };
    asked.is_none_or(|asked| kept.selector == Selector::Digest(asked)).then_some(kept)
}

/// Copies the image of `reference` into the writable directory, and returns the copy; none where the directory lies on
/// another image.
///
/// # Errors
/// What the stores report. What was copied stays, and the next copy goes on there.
pub(super) async fn keep(
    settings: &Settings,
    reference: &Reference,
    dir: &Path,
    progress: &dyn Progress,
) -> Result<Option<Reference>> {
    let from = headstart_store::open(&reference.location, settings)?;
    let (digest, _) = from.manifest(&reference.selector).await?;
    let disk = WritableDisk::inspect(dir).ok();
    if disk.as_ref().is_some_and(|disk| disk.parent != digest.to_string()) {
        return Ok(None);
    }
    private::make_directory(&dir.join(BASE_DIR))
        .map_err(|e| Error::io("cannot make the directory", e).about(dir.display()))?;
    check(dir)?;
    let location = kept_base::location(dir)?;
    let to = headstart_store::open(&location, settings)?;
    let (selector, tag) = (Selector::Digest(digest), kept_base::tag()?);
    let copied = transfer(&from, &selector, &to, &tag, settings.retry, progress).await;
    copied.map_err(|e| match e.kind() {
        ErrorKind::Unavailable => e.remedy("run it again: what is copied already is not copied twice"),
        _ => e,
    })?;
    if let Some(disk) = disk {
        release(&*from, reference, disk.uuid, dir).await;
    }
    Ok(Some(reference_of(location, digest)))
}

fn reference_of(location: Location, digest: Digest) -> Reference {
    Reference { location, selector: Selector::Digest(digest) }
}

/// Releases the lease of a directory that needs its store no more. Best effort: a lease too many deletes nothing.
async fn release(store: &dyn Store, reference: &Reference, uuid: uuid::Uuid, dir: &Path) {
    let released = match (&reference.location, lease_of_directory(uuid, dir)) {
        (_, Err(error)) => Err(error),
        (Location::Directory(root), Ok(_)) => {
            ImageStore::open(root).and_then(|store| store.release_directory(uuid, dir))
        }
        (_, Ok(id)) => store.remove_lease(&id).await,
    };
    if let Err(error) = released {
        tracing::debug!(%error, "the lease of a directory that keeps its base stays");
    }
}
