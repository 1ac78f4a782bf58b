//! Leases in object stores, and the copies and prunes that must not meet.
//!
//! ```text
//! .headstart/leases/<id>        a disk that needs an image: as in a directory, renewed while it is attached
//! .headstart/pushes/<id>        a copy into the store that is going on, renewed while it writes
//! .headstart/pruning            a prune that is going on, renewed while it deletes
//! .headstart/untagged/<hex>     an image that lost its last name, and the time
//! .headstart/clock              asks the store for its time
//! ```
//!
//! There are no locks in an object store, but its writes are seen by all reads that begin later. So a process that
//! attaches or copies writes its object *before* it looks for a prune, and a prune writes its own *before* it looks
//! for those: at least one of the two sees the other. A prune that sees a copy gives way; a copy that sees a prune
//! gives way; an attach that sees a prune writes all its leases, waits for its end, then finds its image there or
//! gone. All times are those of the store: the time at which each object was written last.
//!
//! # How long they count
//!
//! A lease of an attach counts for [`LEASE_LASTS`] after it was written or renewed: its process renews it every few
//! hours. On the host that wrote it, it is over as soon as that process is gone and the disk is not to be started
//! again. One of a writable directory counts until its own host sees that the directory is gone, or an operator
//! releases it. Copies and prunes count for minutes.
//!
//! Version 0.1.0 leaves none of these objects. Against its copies, nothing younger than [`LEAST_AGE`] is deleted.

use super::BucketStore;
use super::prune::PruneMark;
use crate::layout::{
    FoundLease, HostId, JudgedLease, LEASE_MAX, Lease, LeaseFacts, LeaseHolder, RecordSeen, Standing,
    too_long,
};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use headstart_block::{Error, ErrorKind, Result};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use serde_json::json;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The time for which the lease of an attach counts after it was written.
pub const LEASE_LASTS: Duration = Duration::from_secs(7 * 86400);

/// Nothing younger is deleted.
pub const LEAST_AGE: Duration = Duration::from_secs(7 * 86400);

/// The time for which a copy is believed to go on after it wrote its object.
pub(super) const PUSH_LASTS: Duration = Duration::from_secs(3600);

/// The time after which a copy renews its object.
const PUSH_RENEWED: Duration = Duration::from_secs(600);

/// The time for which a prune is believed to go on after it wrote its object.
pub const PRUNING_LASTS: Duration = Duration::from_secs(900);

pub(super) const LEASES: &str = ".headstart/leases";
pub(super) const PUSHES: &str = ".headstart/pushes";
pub(super) const PRUNING: &str = ".headstart/pruning";
const CLOCK: &str = ".headstart/clock";

/// Leases and marks that are read at once.
const READS_IN_FLIGHT: usize = 16;

/// The state of a copy into the store that is going on.
#[derive(Debug)]
pub(super) struct Push {
    name: String,
    renewed: Instant,
}

/// The force of a lease in an object store at `now`, by the facts that the host `here` sees.
fn standing(
    lease: &Lease,
    written: SystemTime,
    now: SystemTime,
    here: &HostId,
    seen: &LeaseFacts,
) -> Standing {
    match &lease.holder {
        LeaseHolder::Attach { record } => match now.duration_since(written) {
            Ok(age) if age > LEASE_LASTS => Standing::Over,
            _ if has_ended(lease, record.is_some(), here, seen) => Standing::Over,
            _ => Standing::Held,
        },
        // All hosts have the same bucket, even hosts that were made as copies of each other.
        LeaseHolder::Writable { .. } => {
            lease.standing(here, &LeaseFacts { is_locked: false, is_on_local_filesystem: false, ..*seen })
        }
    }
}

/// `true` if the process of an attach of this host ended, and its disk is not to be started again.
fn has_ended(lease: &Lease, has_record: bool, here: &HostId, seen: &LeaseFacts) -> bool {
    let is_recorded =
        has_record && (seen.record != RecordSeen::IsGone || !here.sees_what_is_seen_by(&lease.host));
    seen.process_is_gone && !is_recorded
}

/// The time of an object by the store's clock.
fn time_of(meta: &ObjectMeta) -> SystemTime {
    SystemTime::from(meta.last_modified)
}

impl BucketStore {
    /// The objects below a name, with the rest of their names.
    pub(super) async fn objects_below(&self, name: &str) -> Result<Vec<(String, ObjectMeta)>> {
        let prefix = self.path(name);
        let listing = self.objects.list(Some(&prefix)).try_collect::<Vec<_>>();
        let objects = self.call(name, super::WRITE_TIMEOUT, listing).await?;
        let rest = |path: &Path| {
            let parts = path.prefix_match(&prefix).into_iter().flatten();
            let parts = parts.map(|part| AsRef::<str>::as_ref(&part).to_owned());
            parts.collect::<Vec<_>>().join("/")
        };
        Ok(objects.into_iter().map(|meta| (rest(&meta.location), meta)).collect())
    }

    /// The time at which an object was written last; `None` if it is not there.
    pub(super) async fn written(&self, name: &str) -> Result<Option<SystemTime>> {
        let path = self.path(name);
        match self.call(name, self.first_byte, self.objects.head(&path)).await {
            Ok(meta) => Ok(Some(time_of(&meta))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match self.call(name, self.first_byte, self.objects.delete(&path)).await {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The present, by the clock of the store.
    pub(super) async fn store_time(&self) -> Result<SystemTime> {
        self.put(CLOCK, Bytes::from_static(b"{}"), PutMode::Overwrite).await?;
        let time = self.written(CLOCK).await?;
        self.delete(CLOCK).await?;
        time.ok_or_else(|| {
            Error::new(ErrorKind::Conflict, "another process asks for its time at the same moment")
                .about(&self.location)
                .remedy("run it again")
        })
    }

    /// The present by the clock of the store. It is `here`, the present by the clock of this host, if nothing may be
    /// written there or others keep asking at the same moments.
    pub(super) async fn store_time_or(&self, here: SystemTime) -> Result<SystemTime> {
        for _ in 0..super::MOST_RACES {
            match self.store_time().await {
                Err(e) if e.kind() == ErrorKind::Conflict => {}
                Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::ReadOnly) => return Ok(here),
                time => return time,
            }
        }
        Ok(here)
    }

    /// Writes or renews a lease; `true` if a prune is going on that may not have seen it. A caller that waits for
    /// that prune to end writes again, because the time goes on only with writes.
    pub(super) async fn write_lease(&self, id: &str, lease: &Lease) -> Result<bool> {
        let name = format!("{LEASES}/{id}");
        self.put(&name, lease.to_bytes()?.into(), PutMode::Overwrite).await?;
        // Without a prune, one look is enough.
        if self.written(PRUNING).await?.is_none() {
            return Ok(false);
        }
        match self.written(&name).await? {
            Some(now) => self.is_being_pruned(now).await,
            // It was released at once, or a prune found it over.
            None => Ok(true),
        }
    }

    /// `true` if a prune is going on that began, or was renewed, not long before `now`.
    async fn is_being_pruned(&self, now: SystemTime) -> Result<bool> {
        let Some(begun) = self.written(PRUNING).await? else { return Ok(false) };
        Ok(now.duration_since(begun).is_ok_and(|age| age < PRUNING_LASTS) || begun >= now)
    }

    /// Announces a copy, so that no prune begins.
    pub(super) async fn begin_push(&self) -> Result<()> {
        let mut push = self.push.lock().await;
        if push.is_some() {
            return Ok(());
        }
        let here = HostId::here().map(|host| host.name).unwrap_or_default();
        let bytes = json!({"host": here, "pid": std::process::id()}).to_string();
        // Two on one host at the same moment do not matter: the later writes the same as the earlier.
        let id =
            headstart_block::Digest::of(format!("{bytes} {:?}", std::ptr::from_ref(self)).as_bytes()).hex();
        let name = format!("{PUSHES}/{}", &id[..32]);
        let path = self.path(&name);
        self.put(&name, bytes.into(), PutMode::Overwrite).await?;
        let now = self.written(&name).await?.unwrap_or(SystemTime::UNIX_EPOCH);
        if self.is_being_pruned(now).await? {
            self.delete(&name).await?;
            return Err(Error::new(ErrorKind::Conflict, "another process prunes it")
                .about(&self.location)
                .remedy("run it again in some minutes"));
        }
        tracing::debug!(%path, "a copy begins");
        *push = Some(Push { name, renewed: Instant::now() });
        Ok(())
    }

    /// Announces that the copy is still going on.
    pub(super) async fn renew_push(&self) {
        let mut push = self.push.lock().await;
        let Some(push) = push.as_mut().filter(|push| push.renewed.elapsed() > PUSH_RENEWED) else { return };
        push.renewed = Instant::now();
        if let Err(error) = self.put(&push.name, Bytes::from_static(b"{}"), PutMode::Overwrite).await {
            tracing::debug!(%error, "cannot say that a copy goes on");
        }
    }

    /// Announces that the copy has ended.
    pub(super) async fn end_push(&self) {
        if let Some(push) = self.push.lock().await.take()
            && let Err(error) = self.delete(&push.name).await
        {
            tracing::debug!(%error, "cannot say that a copy has ended");
        }
    }

    /// Reads the objects below a name, some at a time, in their order.
    pub(super) fn read_all<'s>(
        &'s self,
        below: &'s str,
        objects: Vec<(String, ObjectMeta)>,
        max_len: u64,
    ) -> impl Stream<Item = (String, ObjectMeta, Result<(Bytes, UpdateVersion)>)> + Unpin + 's {
        let read = move |(id, meta): (String, ObjectMeta)| async move {
            let read = match meta.size {
                len if len > max_len => Err(too_long()),
                _ => self.object(&format!("{below}/{id}"), max_len).await,
            };
            (id, meta, read)
        };
        Box::pin(stream::iter(objects).map(read).buffered(READS_IN_FLIGHT))
    }

    /// All leases, judged at `now`. `look` finds the facts that this host knows. A prune renews its `mark` meanwhile.
    pub(super) async fn judged_leases(
        &self,
        now: SystemTime,
        look: &(dyn Fn(&Lease) -> LeaseFacts + Send + Sync),
        mark: Option<&PruneMark>,
    ) -> Result<Vec<JudgedLease>> {
        let here = HostId::here()?;
        let mut judged = Vec::new();
        let objects = self.objects_below(LEASES).await?;
        let mut reading = self.read_all(LEASES, objects, LEASE_MAX);
        while let Some((id, meta, read)) = reading.next().await {
            if let Some(mark) = mark {
                mark.renew(self).await?;
            }
            let lease = match read {
                // Its disk was detached meanwhile.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                // It counts anyway.
                Err(e) if e.kind() == ErrorKind::Denied => Err(e),
                // It became larger meanwhile.
                Err(e) if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Unsupported) => Err(too_long()),
                read => Lease::parse(&read?.0),
            };
            let lease =
                lease.map_err(|e| e.about(format!("lease {} of {}", id.escape_debug(), self.location)));
            let written = time_of(&meta);
            let standing = lease
                .as_ref()
                .map_or(Standing::Foreign, |lease| standing(lease, written, now, &here, &look(lease)));
            judged.push(JudgedLease { found: FoundLease { id, lease, is_locked: false, written }, standing });
        }
        Ok(judged)
    }
}
