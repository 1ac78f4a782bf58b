//! The routes to the blobs of one endpoint, as far as reads have found them out.

use super::flight::Flight;
use super::redirect::Route;
use headstart_block::Digest;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The reads of an endpoint of which nothing is known yet that ask at once, each for itself: those that open an image.
const FIRST_READS: usize = 16;

/// The routes to all blobs that were asked for at one endpoint.
#[derive(Default)]
pub(super) struct BlobRoutes {
    blobs: Mutex<HashMap<Digest, Arc<BlobRoute>>>,
    /// The shortest life of an address seen so far.
    shortest: Mutex<Option<Duration>>,
    /// `true` if the endpoint has served a blob itself.
    has_served: AtomicBool,
    /// `true` if the endpoint has sent a read elsewhere.
    has_redirected: AtomicBool,
    /// The reads that asked while neither was known.
    first_reads: AtomicUsize,
}

/// The route to one blob.
#[derive(Default)]
pub(super) struct BlobRoute {
    pub(super) route: Mutex<Route>,
    /// The request that asks the registry for the route.
    pub(super) flight: Flight,
    /// The time before which the endpoint is not asked for the blob again, which it did not have.
    pub(super) lacks_until: Mutex<Duration>,
    /// `true` if the endpoint did not have the blob when it was last asked for its length, and the blob was not
    /// written since.
    pub(super) is_absent: AtomicBool,
}

impl BlobRoutes {
    pub(super) fn get(&self, digest: &Digest) -> Arc<BlobRoute> {
        Arc::clone(self.blobs.lock().entry(*digest).or_default())
    }

    /// Notes that the endpoint served a blob itself.
    pub(super) fn saw_served(&self) {
        self.has_served.store(true, Ordering::Relaxed);
    }

    /// Notes that the endpoint sent a read elsewhere.
    pub(super) fn saw_redirect(&self) {
        self.has_redirected.store(true, Ordering::Relaxed);
    }

    /// `true` if all blobs that were read so far came from the endpoint itself.
    pub(super) fn are_served_here(&self) -> bool {
        self.has_served.load(Ordering::Relaxed) && !self.has_redirected.load(Ordering::Relaxed)
    }

    /// `true` for the first few reads, as long as it is not known whether the endpoint serves blobs itself: to wait for
    /// the answer to one of them would take a round trip.
    pub(super) fn may_ask_first(&self) -> bool {
        let is_known = self.has_served.load(Ordering::Relaxed) || self.has_redirected.load(Ordering::Relaxed);
        !is_known && self.first_reads.fetch_add(1, Ordering::Relaxed) < FIRST_READS
    }

    /// The shortest life of an address seen so far.
    pub(super) fn shortest(&self) -> Option<Duration> {
        *self.shortest.lock()
    }

    /// Notes that an address lived for this time.
    pub(super) fn saw(&self, life: Duration) {
        let mut shortest = self.shortest.lock();
        *shortest = Some(shortest.map_or(life, |shortest| shortest.min(life)));
    }
}
