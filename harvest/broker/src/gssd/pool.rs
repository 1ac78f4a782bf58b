//! The unused gSSDs. A binary search finds the one that fits a request best.
//!
//! As in section 4.3.2 of BlockFlex, the gSSDs are in lists, one for each pair `<capacity, bandwidth>`: the capacity in
//! whole units of the [grain](super::Grain), the bandwidth in channels. The lists are sorted by that pair, and each
//! list from the farthest expiry to the nearest. The size of a gSSD in the pool does not change, but its expiry does,
//! with the forecasts of its lender.
//!
//! A search considers only gSSDs that have enough capacity and bandwidth and last long enough. The best fit is the one
//! with the least capacity; of several, the one with the least bandwidth; of several of the same size, the one that
//! expires first. So gSSDs that are larger or last longer are left for requests that need them.
//!
//! The paper's lists are lock-free. Here a search holds one lock, for a fraction of a microsecond. A request often
//! takes several gSSDs, all of them or none: under a lock that is a single step, and without one it is many.

use super::record::{Grain, Gssd, Want};
use crate::{GssdId, Time};
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The size and expiry of a gSSD in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Number of channels.
    pub bandwidth: u16,
    /// Number of flash blocks.
    pub capacity: u32,
    /// The time until which the lender can spare the gSSD.
    pub expire: Time,
}

impl From<&Gssd> for Offer {
    fn from(gssd: &Gssd) -> Self {
        Self { bandwidth: gssd.bandwidth, capacity: gssd.capacity, expire: gssd.expire }
    }
}

/// The pool: the gSSDs that are erased and that no harvest VM has, sorted by size and expiry. All methods may
/// be called from any thread.
#[derive(Debug)]
pub struct Pool {
    grain: Grain,
    lists: Mutex<Lists>,
}

impl Pool {
    /// Returns an empty pool. Its capacities are compared in whole grains of `grain`.
    #[must_use]
    pub fn new(grain: Grain) -> Self {
        Self { grain: grain.sane(), lists: Mutex::default() }
    }

    /// Adds a gSSD, or replaces its entry if it is in the pool already. Returns `false` and adds nothing if
    /// the gSSD is smaller than a grain in channels or capacity.
    pub fn insert(&self, id: GssdId, offer: Offer) -> bool {
        let units = self.grain.units(offer.capacity);
        if units == 0 || offer.bandwidth < self.grain.bandwidth {
            return false;
        }
        self.lock().insert(id, Place { units, offer });
        true
    }

    /// Removes a gSSD from the pool. Returns its size and expiry, or `None` if it was not in the pool.
    pub fn remove(&self, id: GssdId) -> Option<Offer> {
        self.lock().remove(id)
    }

    /// Changes the time at which a gSSD expires. Returns `false` if it is not in the pool.
    pub fn redate(&self, id: GssdId, expire: Time) -> bool {
        let mut lists = self.lock();
        let Some(&place) = lists.places.get(&id) else { return false };
        if place.offer.expire != expire {
            lists.insert(id, Place { offer: Offer { expire, ..place.offer }, ..place });
        }
        true
    }

    /// Returns the gSSD that fits `want` best, and leaves it in the pool. `None` if no single gSSD is large
    /// enough for long enough.
    #[must_use]
    pub fn find(&self, want: &Want) -> Option<GssdId> {
        let units = want.capacity.div_ceil(self.grain.capacity);
        self.lock().find(units, want.bandwidth, want.until).map(|(_, _, id)| id)
    }

    /// Removes and returns the gSSD that fits `want` best. `None` if no single gSSD is large enough for long
    /// enough.
    pub fn take(&self, want: &Want) -> Option<GssdId> {
        let units = want.capacity.div_ceil(self.grain.capacity);
        let mut lists = self.lock();
        let (list, at, _) = lists.find(units, want.bandwidth, want.until)?;
        Some(lists.take_at(list, at).0)
    }

    /// Removes and returns up to `most` gSSDs that together meet `want`. If one gSSD suffices, the one that fits best
    /// is taken. Otherwise the gSSD that covers the largest part of `want` is taken (capacity and bandwidth weigh the
    /// same), and the remainder is met in the same way. If `most` gSSDs do not meet `want`, the result depends on
    /// `partial`: with `true`, those that were found are taken; with `false`, the result is empty and the pool is
    /// unchanged. The result is also empty if `want` asks for nothing.
    pub fn take_many(&self, want: &Want, most: usize, partial: bool) -> Vec<(GssdId, Offer)> {
        let mut units = want.capacity.div_ceil(self.grain.capacity);
        let mut bandwidth = want.bandwidth;
        let mut taken = Vec::new();
        let mut lists = self.lock();
        if !partial && (lists.units < u64::from(units) || lists.bandwidth < u64::from(bandwidth)) {
            return Vec::new();
        }
        while taken.len() < most && (units > 0 || bandwidth > 0) {
            let found = lists.find(units, bandwidth, want.until).map(|(list, at, _)| (list, at));
            let Some((list, at)) = found.or_else(|| lists.largest(units, bandwidth, want.until)) else {
                break;
            };
            let (id, place) = lists.take_at(list, at);
            units = units.saturating_sub(place.units);
            bandwidth = bandwidth.saturating_sub(place.offer.bandwidth);
            taken.push((id, place));
        }
        if !partial && (units > 0 || bandwidth > 0) {
            taken.drain(..).for_each(|(id, place)| lists.insert(id, place));
        }
        taken.into_iter().map(|(id, place)| (id, place.offer)).collect()
    }

    /// Returns the gSSDs that expire at `now` or earlier, and leaves them in the pool. They are sorted by size, and
    /// those of equal size by expiry, earliest first.
    #[must_use]
    pub fn expired(&self, now: Time) -> Vec<GssdId> {
        let lists = self.lock();
        let expired = |list: &Vec<Entry>| {
            let first = list.partition_point(|entry| entry.offer.expire > now);
            list[first..].iter().rev().map(|entry| entry.id).collect::<Vec<_>>()
        };
        lists.lists.iter().flat_map(expired).collect()
    }

    /// Returns the number of gSSDs in the pool.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().places.len()
    }

    /// Returns `true` if no gSSD is in the pool.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns two sums over the gSSDs that expire at `until` or later: the number of their channels, and the
    /// number of their flash blocks. Of each gSSD only whole grains of blocks are counted.
    #[must_use]
    pub fn total(&self, until: Time) -> (u64, u64) {
        let lists = self.lock();
        let mut total = (0, 0);
        for (head, list) in lists.heads.iter().zip(&lists.lists) {
            let count = list.partition_point(|entry| entry.offer.expire >= until) as u64;
            total.0 += count * u64::from(head.bandwidth);
            total.1 += count * u64::from(head.units) * u64::from(self.grain.capacity);
        }
        total
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock()
    }
}

/// The place of a gSSD: the list and the place in it follow from this.
#[derive(Clone, Copy, Debug)]
struct Place {
    units: u32,
    offer: Offer,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: GssdId,
    offer: Offer,
}

/// The part of a list that a search looks at, side by side so that it looks at little memory.
#[derive(Clone, Copy, Debug)]
struct Head {
    units: u32,
    bandwidth: u16,
    /// The first entry's expiry.
    farthest: Time,
}

/// `heads` ascend by `(units, bandwidth)`; no list is empty.
#[derive(Debug, Default)]
struct Lists {
    heads: Vec<Head>,
    lists: Vec<Vec<Entry>>,
    places: BTreeMap<GssdId, Place>,
    /// Sums of all entries.
    units: u64,
    bandwidth: u64,
}

impl Lists {
    fn insert(&mut self, id: GssdId, place: Place) {
        self.remove(id);
        let (units, bandwidth) = (place.units, place.offer.bandwidth);
        let expire = place.offer.expire;
        let list = match self.list_of(units, bandwidth) {
            Ok(list) => list,
            Err(list) => {
                self.heads.insert(list, Head { units, bandwidth, farthest: expire });
                self.lists.insert(list, Vec::new());
                list
            }
        };
        let entries = &mut self.lists[list];
        let at = entries.partition_point(|entry| Self::order(entry) < (Reverse(expire), id));
        entries.insert(at, Entry { id, offer: place.offer });
        self.heads[list].farthest = entries[0].offer.expire;
        self.places.insert(id, place);
        self.units += u64::from(units);
        self.bandwidth += u64::from(bandwidth);
    }

    fn remove(&mut self, id: GssdId) -> Option<Offer> {
        let place = *self.places.get(&id)?;
        let list = self.list_of(place.units, place.offer.bandwidth).ok()?;
        let key = (Reverse(place.offer.expire), id);
        let at = self.lists[list].binary_search_by(|entry| Self::order(entry).cmp(&key)).ok()?;
        Some(self.take_at(list, at).1.offer)
    }

    fn order(entry: &Entry) -> (Reverse<Time>, GssdId) {
        (Reverse(entry.offer.expire), entry.id)
    }

    fn list_of(&self, units: u32, bandwidth: u16) -> Result<usize, usize> {
        self.heads.binary_search_by_key(&(units, bandwidth), |head| (head.units, head.bandwidth))
    }

    /// The list, the place in it, and the gSSD there.
    fn find(&self, units: u32, bandwidth: u16, until: Time) -> Option<(usize, usize, GssdId)> {
        let first = self.heads.partition_point(|head| (head.units, head.bandwidth) < (units, bandwidth));
        let fits = |head: &Head| head.bandwidth >= bandwidth && head.farthest >= until;
        let list = first + self.heads[first..].iter().position(fits)?;
        let at = self.lists[list].partition_point(|entry| entry.offer.expire >= until) - 1;
        Some((list, at, self.lists[list][at].id))
    }

    /// The one that lasts and covers most of the need, capacity and bandwidth weighing the same; of several the
    /// smallest.
    fn largest(&self, units: u32, bandwidth: u16, until: Time) -> Option<(usize, usize)> {
        let (of_units, of_bandwidth) = (u64::from(units.max(1)), u64::from(bandwidth.max(1)));
        let covers = |head: &Head| {
            u64::from(head.units.min(units)) * of_bandwidth
                + u64::from(head.bandwidth.min(bandwidth)) * of_units
        };
        let lasting = self.heads.iter().enumerate().filter(|(_, head)| head.farthest >= until);
        let (list, _) = lasting.min_by_key(|(_, head)| Reverse(covers(head)))?;
        Some((list, self.lists[list].partition_point(|entry| entry.offer.expire >= until) - 1))
    }

    fn take_at(&mut self, list: usize, at: usize) -> (GssdId, Place) {
        let entry = self.lists[list].remove(at);
        let head = self.heads[list];
        match self.lists[list].first() {
            Some(first) => self.heads[list].farthest = first.offer.expire,
            None => {
                self.heads.remove(list);
                self.lists.remove(list);
            }
        }
        self.units -= u64::from(head.units);
        self.bandwidth -= u64::from(head.bandwidth);
        self.places.remove(&entry.id);
        (entry.id, Place { units: head.units, offer: entry.offer })
    }
}

#[cfg(test)]
mod tests;
