//! The memory that requests of a server's clients hold: bounded, and never waited for by another client.
//!
//! Large buffers (a reply of some size until it is sent, the bytes of a write until they are written) take a [`Share`]
//! of the server's memory ([`SERVER_BYTES`], or as its settings say) and of the memory that its connection may have
//! ([`CONNECTION_BYTES`]). If there is none left, the request is done in small parts, with memory that each connection
//! has of its own ([`OWN_BYTES`]), one request of the connection at a time. So a client that does not take its replies
//! holds up no other, and costs a bounded amount: with all of 64 connections at their limits, a server takes less than
//! 256 MiB.
//!
//! Small buffers are not counted: see [`SMALL`].

use headstart_block::saturating;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The most bytes that all connections of a server hold together by default: three of the largest requests.
pub(crate) const SERVER_BYTES: u64 = 96 << 20;
/// The most of these bytes that one connection holds: two of the largest requests.
const CONNECTION_BYTES: u64 = 64 << 20;
/// The bytes that each connection has beside them.
pub(crate) const OWN_BYTES: u64 = 256 << 10;
/// The most bytes of a request that is not counted. 32 threads of a connection hold 512 KiB by them.
pub(crate) const SMALL: u64 = 16 << 10;
/// The time for which a server counts as short of memory after it had none for a request.
const SHORT: Duration = Duration::from_secs(2);
/// The time between two looks whether the client is still there, of a request that waits for its connection's own
/// memory.
const LOOK: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "shortage is about time")]
fn now() -> Instant {
    Instant::now()
}

/// The memory of a server.
#[derive(Debug)]
pub(crate) struct Pool {
    left: AtomicU64,
    began: Instant,
    /// Milliseconds since `began` until which the server counts as short of memory.
    short_until: AtomicU64,
}

impl Default for Pool {
    fn default() -> Self {
        Self::of(SERVER_BYTES)
    }
}

impl Pool {
    /// A pool of `bytes`.
    pub(crate) fn of(bytes: u64) -> Self {
        Self { left: AtomicU64::new(bytes), began: now(), short_until: AtomicU64::new(0) }
    }

    fn take(&self, bytes: u64) -> bool {
        let taken =
            self.left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if taken.is_err() {
            let until = (self.began.elapsed() + SHORT).as_millis();
            self.short_until.store(saturating(until), Ordering::Relaxed);
        }
        taken.is_ok()
    }

    fn give(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::AcqRel);
    }

    /// `true` if there was no memory for a request a moment ago.
    pub(crate) fn is_short(&self) -> bool {
        let until = self.short_until.load(Ordering::Relaxed);
        until > 0 && self.began.elapsed().as_millis() < u128::from(until)
    }
}

/// The memory of a connection, taken from its server's pool.
pub(crate) struct Account {
    pool: Arc<Pool>,
    held: Mutex<Held>,
    /// Notified when the connection's own memory is free.
    free: Condvar,
}

#[derive(Default)]
struct Held {
    pooled: u64,
    own: bool,
}

/// Memory that a request may use. Dropped, it is given back.
pub(crate) struct Share {
    account: Arc<Account>,
    pooled: u64,
    own: bool,
}

impl Account {
    pub(crate) fn new(pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self { pool, held: Mutex::default(), free: Condvar::new() })
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Memory for `bytes`, if there is as much.
    pub(crate) fn try_reserve(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let mut held = self.held.lock();
        if held.pooled + bytes > CONNECTION_BYTES || !self.pool.take(bytes) {
            return None;
        }
        held.pooled += bytes;
        drop(held);
        Some(Share { account: Arc::clone(self), pooled: bytes, own: false })
    }

    /// Memory for `bytes`, or the connection's own once that is free; `None` if `gone` is `true` first.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64, gone: impl Fn() -> bool) -> Option<Share> {
        if bytes <= SMALL {
            return Some(Share { account: Arc::clone(self), pooled: 0, own: false });
        }
        if let Some(share) = self.try_reserve(bytes) {
            return Some(share);
        }
        let mut held = self.held.lock();
        while held.own {
            if gone() {
                return None;
            }
            self.free.wait_for(&mut held, LOOK);
        }
        held.own = true;
        drop(held);
        Some(Share { account: Arc::clone(self), pooled: 0, own: true })
    }
}

impl Share {
    /// `true` if there was too little memory: the request is to use [`OWN_BYTES`] at most.
    pub(crate) fn is_own(&self) -> bool {
        self.own
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.pooled > 0 {
            self.account.held.lock().pooled -= self.pooled;
            self.account.pool.give(self.pooled);
        }
        if self.own {
            self.account.held.lock().own = false;
            self.account.free.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: u64 = 32 << 20;

    #[test]
    fn a_connection_without_a_share_has_its_own_small_memory() {
        let pool = Arc::<Pool>::default();
        let accounts = [(); 4].map(|()| Account::new(Arc::clone(&pool)));
        assert!(!pool.is_short());
        let shares: Vec<_> = accounts.iter().map(|account| account.reserve(ANY, || false).unwrap()).collect();
        assert_eq!(shares.iter().map(Share::is_own).collect::<Vec<_>>(), [false, false, false, true]);
        assert!(pool.is_short());
        // The fourth connection's own memory is in use; small requests need none.
        assert!(accounts[3].reserve(ANY, || true).is_none());
        assert!(!accounts[3].reserve(SMALL, || false).unwrap().is_own());
        drop(shares);
        assert!(!accounts[3].reserve(ANY, || false).unwrap().is_own());
        assert_eq!(pool.left.load(Ordering::Relaxed), SERVER_BYTES);
    }

    #[test]
    fn a_connection_has_no_more_than_its_part() {
        let account = Account::new(Arc::default());
        let first = [(); 2].map(|()| account.try_reserve(ANY).unwrap());
        assert!(account.try_reserve(1).is_none());
        assert!(!account.pool().is_short(), "the server has some left");
        drop(first);
        assert!(account.try_reserve(1).is_some());
    }
}
