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
use super::objects::time_of;
use super::prune_mark::{PRUNING, PRUNING_LASTS, PruneMark};
use crate::layout::{
    FoundLease, HostId, JudgedLease, LEASE_MAX, Lease, LeaseFacts, LeaseHolder, RecordSeen, Standing,
    too_long,
};
use bytes::Bytes;
use futures::StreamExt;
use headstart_block::{Error, ErrorKind, Result};
use object_store::PutMode;
use serde_json::json;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The duration for which the lease of an attached disk is valid after it was written or renewed: 7 days.
pub const LEASE_LASTS: Duration = Duration::from_secs(7 * 86400);

/// The minimum age at which a blob of an object store may be deleted: 7 days. Younger blobs may be of a copy
/// that is still running.
pub const LEAST_AGE: Duration = Duration::from_secs(7 * 86400);

/// The time for which a copy is believed to go on after it wrote its object.
pub(super) const PUSH_LASTS: Duration = Duration::from_secs(3600);

/// The time after which a copy renews its object.
const PUSH_RENEWED: Duration = Duration::from_secs(600);

pub(super) const LEASES: &str = ".headstart/leases";
pub(super) const PUSHES: &str = ".headstart/pushes";

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

impl BucketStore {
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
