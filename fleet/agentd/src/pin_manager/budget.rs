//! The resources of this host that orders of other hosts may use, counted before they are used.
//!
//! The lengths in an order are claims of another host. Each blob that this host takes part in costs memory and space
//! beside its bytes, in proportion to its length; and fetched bytes fill the cache. So two amounts of orders are
//! counted, in total and for each host: the bytes that they describe, and the bytes that they fetch here at a time.

use headstart_block::{ByteSize, Error, ErrorKind, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// Most bytes of all blobs that orders describe at a time: those of one image. Describing this many takes 128 MiB of
/// memory, and 704 MiB beside the cache's files once a part of each blob is here.
pub(super) const DESCRIBED_MAX: u64 = 8 << 40;

/// Most orders of all hosts that are in progress or wait.
const ORDERS_MAX: usize = 1024;

/// The part of the total that one host may use.
const HOST_PART: (u64, u64) = (3, 4);

/// The amounts that orders use.
#[derive(Default)]
pub(super) struct Budget {
    taken: Mutex<HashMap<String, Taken>>,
}

#[derive(Clone, Copy, Default)]
struct Taken {
    orders: usize,
    described: u64,
    bytes: u64,
}

/// The amounts that one order uses; given back when it is dropped.
pub(super) struct Share {
    budget: Arc<Budget>,
    host: String,
    described: u64,
    bytes: u64,
}

impl Budget {
    fn taken(&self) -> MutexGuard<'_, HashMap<String, Taken>> {
        self.taken.lock()
    }

    /// Reserves the amounts of an order of `host`: it describes blobs of `described` bytes, and fetches `bytes` of them
    /// to a cache with room for `room` in all.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if that is too much.
    pub(super) fn take(self: &Arc<Self>, host: &str, described: u64, bytes: u64, room: u64) -> Result<Share> {
        let mut taken = self.taken();
        let all = taken.values().fold(Taken::default(), |sum, one| Taken {
            orders: sum.orders + one.orders,
            described: sum.described.saturating_add(one.described),
            bytes: sum.bytes.saturating_add(one.bytes),
        });
        let own = taken.get(host).copied().unwrap_or_default();
        let of_host = |max: u64| max / HOST_PART.1 * HOST_PART.0;
        let check = |what: &str, wanted: u64, all: u64, own: u64, max: u64| {
            let is_too_much = all.saturating_add(wanted) > max || own.saturating_add(wanted) > of_host(max);
            if !is_too_much {
                return Ok(());
            }
            let cause = format!(
                "{what} {} more, where orders of other hosts may have {} in all, and {} of one host",
                ByteSize(wanted),
                ByteSize(max),
                ByteSize(of_host(max))
            );
            Err(Error::new(ErrorKind::NoSpace, cause)
                .remedy("order less at a time, or give that host a larger cache (--cache-size)"))
        };
        check("describes", described, all.described, own.described, DESCRIBED_MAX)?;
        check("brings", bytes, all.bytes, own.bytes, room)?;
        if all.orders >= ORDERS_MAX || own.orders >= ORDERS_MAX / 4 * 3 {
            return Err(Error::new(ErrorKind::Unavailable, "it has too many orders already"));
        }
        let own = taken.entry(host.to_owned()).or_default();
        own.orders += 1;
        own.described += described;
        own.bytes += bytes;
        Ok(Share { budget: Arc::clone(self), host: host.to_owned(), described, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.budget.taken();
        if let Some(own) = taken.get_mut(&self.host) {
            own.orders -= 1;
            own.described -= self.described;
            own.bytes -= self.bytes;
            if own.orders == 0 {
                taken.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_host_takes_all_and_what_is_taken_comes_back() {
        let budget = Arc::new(Budget::default());
        let take = |host: &str, described: u64, bytes: u64| budget.take(host, described, bytes, 1000);
        let first = take("a", 1 << 40, 700).unwrap();
        let error = take("a", 1 << 40, 100).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("--cache-size"), "{error}");
        let second = take("b", 1 << 40, 300).unwrap();
        assert!(take("c", 1, 1).is_err() && take("c", 1, 0).is_ok());
        drop(first);
        assert!(take("a", 1 << 40, 700).is_ok());
        // Described bytes are counted separately.
        let described: Vec<_> = (0..6).map(|_| take("c", 1 << 40, 0).unwrap()).collect();
        assert!(
            take("c", 1, 0).is_err() && take("d", 2 << 40, 0).is_err() && take("d", u64::MAX, 0).is_err()
        );
        drop((described, second));
        assert!(budget.taken().is_empty());
        let many: Vec<_> = (0..768).map(|_| take("a", 0, 0).unwrap()).collect();
        assert!(take("a", 0, 0).is_err() && take("b", 0, 0).is_ok());
        drop(many);
    }
}
