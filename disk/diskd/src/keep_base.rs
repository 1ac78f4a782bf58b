//! `--keep-base`: a writable directory gets a copy of the image that it is based on, and needs no store from then on.

use crate::environment::Environment;
use headstart_block::guarded::GuardedDir;
use headstart_block::{Digest, Error, ErrorKind, Result, private};
use headstart_disk::KnownImage;
use headstart_image::disk_form::{FormWish, took_writable, wanted_form};
use headstart_image::kept_base;
use headstart_image::progress::Progress;
use headstart_image::store::{ImageStore, by_digest, lease_of_directory};
use headstart_image::transfer::transfer;
use headstart_lsmt::writable::{BASE_DIR, WritableDisk};
use headstart_store::{Location, Reference, Selector, Store};
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time without a byte after which the user learns the cause of a copy's wait; twice that the next time.
const REPORT_AFTER: Duration = Duration::from_secs(2);

/// The interval of checks that a copy makes progress.
const LOOK: Duration = Duration::from_millis(200);

/// Checks that a writable directory, if it exists, is one that no other user can replace, and that its copy is inside
/// it and not elsewhere. A copy that others can read is closed to them.
///
/// # Errors
/// [`ErrorKind::Denied`] and [`ErrorKind::Io`] otherwise.
pub(crate) fn check(dir: &Path) -> Result<()> {
    // Other errors are reported when the directory is opened as a disk.
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

/// The copy of its image in a writable directory.
pub(crate) struct Kept {
    /// The copy.
    pub(crate) copy: Reference,
    /// The image that was copied, by the name that the directory has recorded.
    pub(crate) origin: Option<Reference>,
    /// A warning for the user if the requested image may be another one.
    pub(crate) warning: Option<String>,
}

impl Kept {
    /// The name of the image for people.
    pub(crate) fn image(&self) -> String {
        self.origin.as_ref().unwrap_or(&self.copy).to_string()
    }
}

/// The copy by which a disk is attached; `None` if the directory has none, or one of another image than the requested
/// digest.
///
/// # Errors
/// [`ErrorKind::Conflict`] if the request is for a tag of another store than that of the copy.
pub(crate) fn kept(dir: &Path, asked: &Reference, known: Option<&KnownImage>) -> Result<Option<Kept>> {
    let Some(copy) = kept_base::find(dir) else { return Ok(None) };
    let Selector::Digest(digest) = copy.selector else { return Ok(None) };
    let noted = WritableDisk::inspect(dir)?.reference;
    let noted = noted.and_then(|noted| noted.parse::<Reference>().ok());
    let noted = noted.filter(|noted| noted.location != copy.location);
    let wanted = match (&asked.selector, known) {
        (_, Some(known)) => Some(known.digest),
        (Selector::Digest(wanted), None) => Some(*wanted),
        (Selector::Tag(_), None) => None,
    };
    match wanted {
        Some(wanted) if wanted != digest => Ok(None),
        Some(_) => {
            let origin = noted.unwrap_or_else(|| by_digest(asked, digest));
            Ok(Some(Kept { copy, origin: Some(origin), warning: None }))
        }
        None => kept_of_tag(dir, asked, copy, digest, noted).map(Some),
    }
}

/// The copy for a tag, which is not resolved: the image of the directory does not change.
fn kept_of_tag(
    dir: &Path,
    asked: &Reference,
    copy: Reference,
    digest: Digest,
    noted: Option<Reference>,
) -> Result<Kept> {
    let other =
        "the image of a tag is not looked up again for such a directory; for another image, give a new one";
    let warning = match &noted {
        None => Some(format!(
            "{} keeps a copy of an image, {digest}, without a note of its name: that image is served, whatever \
             {asked} stands for; {other}",
            dir.display()
        )),
        Some(noted) if noted.location != asked.location => {
            let cause =
                format!("it keeps its own copy of {noted} ({digest}), and {asked} is of another store");
            let same = by_digest(asked, digest);
            return Err(Error::new(ErrorKind::Conflict, cause).about(dir.display()).remedy(format!(
                "`headstart attach {noted}`, or `headstart attach {same}` where that is the same image, or give a new \
                 directory"
            )));
        }
        Some(noted) if noted.selector != asked.selector => Some(format!(
            "{} keeps its own copy of {noted} ({digest}): that image is served, not {asked}; {other}",
            dir.display()
        )),
        Some(_) => None,
    };
    Ok(Kept { copy, origin: noted, warning })
}

/// Copies the image of `reference` into the writable directory, and returns the copy; `None` if the directory is based
/// on another image. A silent store is waited for until `deadline`.
///
/// # Errors
/// Errors of the stores. The copied part stays, and the next copy continues there.
pub(crate) async fn keep(
    environment: &Environment<'_>,
    reference: &Reference,
    dir: &Path,
    deadline: Option<Duration>,
) -> Result<Option<Kept>> {
    let settings = environment.copies.settings(environment.stores, deadline);
    let from = headstart_store::open(&reference.location, &settings)?;
    let moved =
        Moved { progress: environment.progress, bytes: AtomicU64::new(0), left: AtomicU64::new(u64::MAX) };
    let copied = async {
        let found = wanted_form(&*from, &reference.selector, FormWish::Writable).await?;
        let digest = found.digest;
        let disk = WritableDisk::inspect(dir).ok();
        if disk.as_ref().is_some_and(|disk| disk.parent != digest.to_string()) {
            return Ok(None);
        }
        private::make_directory(&dir.join(BASE_DIR))
            .map_err(|e| Error::io("cannot make the directory", e).about(dir.display()))?;
        check(dir)?;
        let location = kept_base::location(dir)?;
        let to = headstart_store::open(&location, &settings)?;
        let (selector, tag) = (Selector::Digest(digest), kept_base::tag()?);
        let copied = transfer(&from, &selector, &to, &tag, settings.retry, &moved).await;
        copied.map_err(|e| match e.kind() {
            ErrorKind::Unavailable => {
                e.remedy("run it again: blobs that are copied already are not copied twice")
            }
            _ => e,
        })?;
        if let Some(disk) = disk {
            release(&*from, reference, disk.uuid, dir).await;
        }
        let copy = Reference { location, selector };
        let warning = found.passed_over.map(|newer| took_writable(reference, &digest, &newer));
        Ok::<_, Error>(Some(Kept { copy, origin: Some(reference.clone()), warning }))
    };
    let waiting = report_waiting((&*from, reference), &moved, settings.retry.deadline, environment.notify);
    tokio::select! {
        biased;
        copied = copied => copied,
        never = waiting => match never {},
    }
}

/// Reports the cause of a copy's wait, each time that no byte has come for long.
async fn report_waiting(
    (from, reference): (&dyn Store, &Reference),
    moved: &Moved<'_>,
    deadline: Duration,
    notify: &(dyn Fn(&str) + Sync),
) -> Infallible {
    let so_far = || (from.counters().bytes, moved.bytes.load(Ordering::Relaxed));
    let (mut last, mut since, mut after, mut is_reported) = (so_far(), Instant::now(), REPORT_AFTER, false);
    loop {
        sleep(LOOK).await;
        let now = so_far();
        // A delay after the last byte is not the store's.
        if now != last || moved.left.load(Ordering::Relaxed) == 0 {
            (last, since, is_reported) = (now, Instant::now(), false);
        } else if !is_reported && since.elapsed() >= after {
            notify(&format!(
                "--keep-base copies {reference}, and nothing has come for {} s, from its store or through \
                 --limit-rate; a store that gives nothing is given up after {} (--deadline)",
                after.as_secs(),
                humantime::format_duration(deadline)
            ));
            (is_reported, after) = (true, after * 2);
        }
    }
}

/// The progress of a copy, with the bytes that have moved.
struct Moved<'a> {
    progress: &'a dyn Progress,
    bytes: AtomicU64,
    /// Bytes that have not moved yet.
    left: AtomicU64,
}

impl Progress for Moved<'_> {
    fn begin(&self, task: &'static str, total: u64) {
        self.left.store(total, Ordering::Relaxed);
        self.progress.begin(task, total);
    }

    fn advance(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let less = |left: u64| Some(left.saturating_sub(bytes));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.progress.advance(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}

/// Releases the lease of a directory that needs its store no more. Best effort: a superfluous lease deletes nothing.
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
