//! Roots take part in what their agents have: agents tell them.
//!
//! A root need not have a disk of an image to bring it to its agents. But nobody takes part in a blob whose hash
//! tree he does not know the root of: he could not check what he brings, and could not prove to others that he may
//! read it. So in the topology `roots` an agent tells each root that it is connected to which blobs its disks have,
//! with the roots of their hash trees and the store that they come from ([`Word::Open`]). It does so when a disk
//! opens a blob that a root has not proved that it knows, and again when that root was away: a root that has begun
//! anew knows nothing of what lies in its cache until somebody names it.
//!
//! Who gives his host a root trusts that host with what his disks read, as who warms an image there does. Whether it
//! can use the store is another matter: one that cannot has what others send it.

use crate::peers::frame::Kind;
use crate::peers::host::Host;
use crate::peers::orders::{Order, Word};
use headstart_store::Location;
use headstart_swarm::{BlobId, Role, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// How often it is looked whether a root has to be told, where no disk has opened anything.
const LOOK: Duration = Duration::from_secs(1);

/// How long a root may take to prove that it knows a blob that it was told of, before it is told again.
const AGAIN: Duration = Duration::from_secs(30);

/// Tells roots what they do not know, until the swarm ends.
pub(super) async fn keep_telling(host: Arc<Host>, mut stopping: watch::Receiver<bool>) {
    loop {
        let opened = host.opened.notified();
        tokio::select! {
            // Timed out or called: look.
            _ = tokio::time::timeout(LOOK, opened) => host.tell_roots(),
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// Whether a root is to be told of a blob; from then on it was.
fn is_due(told: &mut HashMap<BlobId, Time>, blob: BlobId, now: Time) -> bool {
    let is_due = told.get(&blob).is_none_or(|before| now.since(*before) >= AGAIN);
    if is_due {
        told.insert(blob, now);
    }
    is_due
}

impl Host {
    fn tell_roots(&self) {
        let now = self.now();
        let mut core = self.core();
        let core = &mut *core;
        for peer in core.peers.values_mut().filter(|peer| peer.link.role == Role::Root) {
            peer.told.retain(|blob, _| core.blobs.contains_key(blob) && !peer.shared_blobs.contains(blob));
            for (id, entry) in &core.blobs {
                let is_told = entry.blob.is_outboard() || peer.shared_blobs.contains(id);
                let Some(order) = (!is_told).then(|| entry.blob.order()).flatten() else { continue };
                if !is_due(&mut peer.told, *id, now) {
                    continue;
                }
                let number = self.orders.last.fetch_add(1, Ordering::Relaxed);
                match Word::Open(order).encode() {
                    // One that does not read it will be cut off by what is sent to it next.
                    Ok(body) => _ = peer.link.outbox.control(Kind::Order, number, &body),
                    Err(error) => tracing::debug!(%error, "a root is not told of a blob"),
                }
            }
        }
    }
}

impl super::blob::Blob {
    /// What a root is told of it; nothing where it comes from no store that others reach.
    fn order(&self) -> Option<Order> {
        let store = self.carrier()?.location().to_owned();
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
        let (mut told, blob) = (HashMap::new(), BlobId(1));
        let at = |ms: u64| Time(ms * 1000);
        assert!(is_due(&mut told, blob, at(0)) && !is_due(&mut told, blob, at(29_999)));
        assert!(is_due(&mut told, BlobId(2), at(1)));
        assert!(is_due(&mut told, blob, at(30_000)) && !is_due(&mut told, blob, at(30_001)));
    }
}
