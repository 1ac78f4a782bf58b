//! Datagrams from outside of the cluster.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses of hosts of other clusters that are remembered, at most.
const STRAYS_MAX: usize = 64;

/// Datagrams that no host of the cluster made.
#[derive(Default)]
pub(crate) struct Strays {
    /// Their number.
    pub(crate) count: AtomicU64,
    /// The addresses that they came from, so that each is named once.
    from: Mutex<BTreeSet<IpAddr>>,
}

impl Strays {
    /// Counts a datagram.
    pub(super) fn add(&self, from: IpAddr) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut known = self.from.lock();
        if known.len() < STRAYS_MAX && known.insert(from) {
            tracing::warn!(
                address = %from,
                remedy = "where that is a host of this cluster, copy what `headstart swarm init` made for it again",
                "datagrams come that are not sealed by this cluster's gossip key: a host of another cluster joins \
                 this one, or one whose key is not the same"
            );
        }
    }
}
