//! The object by which a prune announces itself: written, renewed and removed.
//!
//! Its place among the other objects, and the reason that it needs no lock, are in `leases`.

use super::BucketStore;
use crate::MAX_MANIFEST_SIZE;
use crate::layout::HostId;
use bytes::Bytes;
use headstart_block::{Error, ErrorKind, Result};
use object_store::{PutMode, UpdateVersion};
use serde_json::json;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The duration for which a prune is assumed to be running after it last wrote the object that announces it:
/// 15 minutes. A later prune may then begin.
pub const PRUNING_LASTS: Duration = Duration::from_secs(900);

/// The time after which a prune announces again that it goes on.
const RENEWED: Duration = Duration::from_secs(120);

pub(super) const PRUNING: &str = ".headstart/pruning";

impl BucketStore {
    /// Announces a prune.
    pub(super) async fn begin_prune(&self, now: SystemTime) -> Result<PruneMark> {
        let died = match self.object(PRUNING, MAX_MANIFEST_SIZE).await {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            there => Some(there?.1),
        };
        if let Some(other) = self.written(PRUNING).await?
            && now.duration_since(other).map_or(true, |age| age < PRUNING_LASTS)
        {
            return Err(self.other_prunes());
        }
        let mode = match died {
            // The mark may have been renewed since, or be another prune's by now: only this version is replaced.
            Some(version) if version.e_tag.is_some() => PutMode::Update(version),
            // A mark without a version was written by no prune.
            Some(_) => {
                self.delete(PRUNING).await?;
                PutMode::Create
            }
            None => PutMode::Create,
        };
        let bytes = mark_bytes(now, 0);
        let version = self.put_version(PRUNING, bytes.clone(), mode).await.map_err(|e| match e.kind() {
            ErrorKind::Conflict => self.other_prunes().caused_by(e),
            _ => e,
        })?;
        let state = MarkState { bytes, version, renewals: 0, renewed: Instant::now() };
        Ok(PruneMark { begun: now, state: Mutex::new(state) })
    }

    fn other_prunes(&self) -> Error {
        Error::new(ErrorKind::Conflict, "another process prunes it")
            .about(&self.location)
            .remedy("run it again in some minutes")
    }
}

/// The object that announces a prune.
pub(super) struct PruneMark {
    begun: SystemTime,
    state: Mutex<MarkState>,
}

/// The mark as this prune wrote it last.
struct MarkState {
    bytes: Bytes,
    version: UpdateVersion,
    renewals: u64,
    renewed: Instant,
}

/// The content of a mark of a prune that began at `begun`: other bytes each time, because the versions of many
/// stores are hashes of the content.
fn mark_bytes(begun: SystemTime, renewals: u64) -> Bytes {
    let host = HostId::here().map(|host| host.name).unwrap_or_default();
    let begun = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
    let mark = json!({"host": host, "pid": std::process::id(), "begun": begun, "renewals": renewals});
    Bytes::from(mark.to_string())
}

impl PruneMark {
    /// Announces the prune again in time. Fails if that comes too late, so that others may believe the prune dead,
    /// and if another prune took its place.
    pub(super) async fn renew(&self, store: &BucketStore) -> Result<()> {
        let mut state = self.state.lock().await;
        let took = state.renewed.elapsed();
        if took < RENEWED {
            return Ok(());
        }
        let renewals = state.renewals + 1;
        let (bytes, mode) = (mark_bytes(self.begun, renewals), PutMode::Update(state.version.clone()));
        let version = store.put_version(PRUNING, bytes.clone(), mode).await.map_err(|e| match e.kind() {
            ErrorKind::Conflict | ErrorKind::NotFound => store.other_prunes().caused_by(e),
            _ => e,
        })?;
        let took = took.max(state.renewed.elapsed());
        *state = MarkState { bytes, version, renewals, renewed: Instant::now() };
        if took < PRUNING_LASTS / 2 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the object store is too slow to be pruned safely")
            .about(&store.location)
            .remedy("run it again: only unneeded blobs were deleted"))
    }

    /// Removes the mark, unless another prune took its place.
    pub(super) async fn end(&self, store: &BucketStore) -> Result<()> {
        let state = self.state.lock().await;
        match store.object(PRUNING, MAX_MANIFEST_SIZE).await {
            // A renewal that was cut off may have taken place.
            Ok((bytes, _)) if bytes == state.bytes || bytes == mark_bytes(self.begun, state.renewals + 1) => {
                store.delete(PRUNING).await
            }
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}
