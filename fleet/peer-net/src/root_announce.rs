//! Roots take part in the blobs of their agents: agents name them.
//!
//! A root need not have a disk of an image to fetch the image for its agents. But no host takes part in a blob without
//! the root of its hash tree: it could not check the fetched bytes, and could not prove to others that it may read
//! them. So in the topology `roots` an agent sends to each root that it is connected to the blobs that its disks have,
//! with the roots of their hash trees and the store that they come from ([`RemoteCommand::Open`]). It does so when a
//! disk opens a blob that a root has not proved that it knows, and again when that root was away: a root that has
//! restarted does not know which blobs are in its cache until a host names them.
//!
//! An operator that gives a host a root trusts that root with the reads of the host's disks, as with warming an image
//! there. The root may be unable to use the store: it then has only the bytes that others send it.

use crate::frame::FrameKind;
use crate::host::Host;
use crate::host::remote_commands::RemoteCommand;
use crate::order::Order;
use headstart_store::Location;
use headstart_swarm::{BlobId, Role, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// The interval of checks whether a root is to be notified, if no disk has opened a blob.
const LOOK: Duration = Duration::from_secs(1);

/// The time for a root to prove that it knows a named blob, before the blob is named to it again.
const AGAIN: Duration = Duration::from_secs(30);

/// Names blobs to roots until the swarm ends.
pub(super) async fn keep_announcing(host: Arc<Host>, mut stopping: watch::Receiver<bool>) {
    loop {
        let opened = host.opened.notified();
        tokio::select! {
            // After a timeout or a call, the loop checks.
            _ = tokio::time::timeout(LOOK, opened) => host.announce_to_roots(),
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// `true` if a blob is to be named to a root; records that it was.
fn is_due(announced_at: &mut HashMap<BlobId, Time>, blob: BlobId, now: Time) -> bool {
    let is_due = announced_at.get(&blob).is_none_or(|before| now.since(*before) >= AGAIN);
    if is_due {
        announced_at.insert(blob, now);
    }
    is_due
}

impl Host {
    fn announce_to_roots(&self) {
        let now = self.now();
        let mut core = self.core();
        let core = &mut *core;
        for peer in core.peers.values_mut().filter(|peer| peer.link.role == Role::Root) {
            peer.announced_at
                .retain(|blob, _| core.blobs.contains_key(blob) && !peer.shared_blobs.contains(blob));
            for (id, entry) in &core.blobs {
                let is_known = entry.blob.is_outboard() || peer.shared_blobs.contains(id);
                let Some(order) = (!is_known).then(|| entry.blob.order()).flatten() else { continue };
                if !is_due(&mut peer.announced_at, *id, now) {
                    continue;
                }
                let number = self.remote_commands.last.fetch_add(1, Ordering::Relaxed);
                match RemoteCommand::Open(order).encode() {
                    // A host that does not read it will be cut off by the frames that follow.
                    Ok(body) => _ = peer.link.outbox.control(FrameKind::Order, number, &body),
                    Err(error) => tracing::debug!(%error, "a root is not told of a blob"),
                }
            }
        }
    }
}

impl super::blob::Blob {
    /// The order that names the blob to a root; `None` if it does not come from a store that others reach.
    fn order(&self) -> Option<Order> {
        let store = self.range_fetcher()?.location().to_owned();
        store.parse::<Location>().ok().filter(Location::is_remote)?;
        let spec = self.cached.spec();
        Some(Order::of(spec.digest, spec.len, spec.tree.as_ref()?, store))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_told_again_only_after_a_while() {
        let (mut announced_at, blob) = (HashMap::new(), BlobId(1));
        let at = |ms: u64| Time(ms * 1000);
        assert!(is_due(&mut announced_at, blob, at(0)) && !is_due(&mut announced_at, blob, at(29_999)));
        assert!(is_due(&mut announced_at, BlobId(2), at(1)));
        assert!(is_due(&mut announced_at, blob, at(30_000)) && !is_due(&mut announced_at, blob, at(30_001)));
    }
}
