//! The stores that the agent fetches from, for other hosts and ahead of need. Each store is opened at its first use.
//!
//! # Stores that other hosts name
//!
//! A store is opened with this host's credentials and from this host's place in the network. So another host must not
//! be able to make this one fetch from just any store. A store that another host names is never a directory of this
//! host, and is opened only in one of these cases:
//!
//! * a disk that is attached to this host has an image from that store;
//! * an image from that store was pinned at this host;
//! * the administrator of this host allows the store (`headstart agent --allow-store PREFIX`).
//!
//! Even if this host has the store open for its own use, the store is opened a second time for other hosts. The second
//! one does not follow a web server's redirect to another origin.

use headstart_block::{Error, ErrorKind, Result};
use headstart_store::{Location, Store, StorePrefix, StoreSettings};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

/// The most stores that are open at a time for this host's own use, and the same number again for stores that other
/// hosts name. If there are more, unused ones are closed.
const STORES_MAX: usize = 1024;

/// The stores from which the agent fetches. Each is opened at its first use. At most 1024 are open for this host's own
/// use, and as many for other hosts; those that nothing uses are closed to make room.
pub struct Stores {
    settings: StoreSettings,
    /// The stores by name; the flag is `true` if other hosts named it.
    open: Mutex<HashMap<(String, bool), Arc<dyn Store>>>,
    /// The most open stores of each kind: [`STORES_MAX`].
    most: usize,
    allowed: Vec<StorePrefix>,
    named: Mutex<Named>,
}

/// Stores that were named at this host.
#[derive(Default)]
struct Named {
    /// The number of blobs that attached disks have from each.
    attached: HashMap<String, usize>,
    pinned: Vec<Location>,
}

/// A store that a disk was attached from, while it is attached.
pub(crate) struct Attached {
    stores: Arc<Stores>,
    name: String,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut named = self.stores.named();
        if let Some(count) = named.attached.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                named.attached.remove(&self.name);
            }
        }
    }
}

impl Stores {
    /// Creates the collection without an open store. `settings` apply to all connections to stores; `allowed`
    /// are stores from which other hosts may always order this agent to fetch.
    #[must_use]
    pub fn new(settings: StoreSettings, allowed: Vec<StorePrefix>) -> Self {
        Self { settings, open: Mutex::default(), most: STORES_MAX, allowed, named: Mutex::default() }
    }

    fn named(&self) -> MutexGuard<'_, Named> {
        self.named.lock()
    }

    /// The store of that name, if this agent can reach it.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<dyn Store>> {
        let opened = self.open(name, false);
        opened
            .inspect_err(|error| tracing::warn!(%error, "the agent cannot fetch for others from that store"))
            .ok()
    }

    /// The store that another host names.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it was not named at this host.
    pub(crate) fn get_for_others(&self, name: &str) -> Result<Arc<dyn Store>> {
        self.check_for_others(name)?;
        self.open(name, true)
    }

    /// Checks that other hosts may name a store.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it was not named at this host.
    pub(crate) fn check_for_others(&self, name: &str) -> Result<()> {
        let shown: String = name.chars().take(200).collect();
        let denied = |cause: &'static str| {
            Error::new(ErrorKind::Denied, cause).about(shown.escape_debug()).remedy(
                "start its agent with --allow-store and the beginning of that name, or attach a disk from there",
            )
        };
        let location = name.parse::<Location>().ok().filter(Location::is_remote);
        let location = location.ok_or_else(|| denied("is not a store that other hosts may name"))?;
        if self.is_named(&location) {
            Ok(())
        } else {
            Err(denied("is a store that this host was not told to use"))
        }
    }

    fn is_named(&self, location: &Location) -> bool {
        let is_it = |other: &Location| StorePrefix::is_same(other, location);
        let named = self.named();
        self.allowed.iter().any(|prefix| prefix.allows(location))
            || named.pinned.iter().any(is_it)
            || named.attached.keys().filter_map(|name| name.parse().ok()).any(|other| is_it(&other))
    }

    /// Records that a disk is attached from this store, until the returned value is dropped.
    pub(crate) fn attach(self: &Arc<Self>, name: &str) -> Attached {
        *self.named().attached.entry(name.to_owned()).or_default() += 1;
        Attached { stores: Arc::clone(self), name: name.to_owned() }
    }

    /// Sets the stores of the images that were pinned at this host.
    pub(crate) fn set_pinned(&self, stores: impl Iterator<Item = Location>) {
        self.named().pinned = stores.collect();
    }

    fn open(&self, name: &str, for_others: bool) -> Result<Arc<dyn Store>> {
        let mut open = self.open.lock();
        let key = (name.to_owned(), for_others);
        if let Some(store) = open.get(&key) {
            return Ok(Arc::clone(store));
        }
        let location: Location = name.parse()?;
        let of_kind = |open: &HashMap<(String, bool), Arc<dyn Store>>| {
            open.keys().filter(|(_, is_of_others)| *is_of_others == for_others).count()
        };
        if of_kind(&open) >= self.most {
            // A user of a store has its reference from here, and the lock is held.
            open.retain(|(_, is_of_others), store| {
                *is_of_others != for_others || Arc::strong_count(store) > 1
            });
        }
        if of_kind(&open) >= self.most {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("the agent uses {} stores already, and no other", self.most),
            )
            .about(name));
        }
        let settings = StoreSettings { one_origin: for_others, ..self.settings.clone() };
        let store = headstart_store::open(&location, &settings)?;
        open.insert(key, Arc::clone(&store));
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_hosts_name_only_what_was_named_here() {
        let prefix = "https://store.example/images".parse().unwrap();
        let stores = Arc::new(Stores::new(StoreSettings::default(), vec![prefix]));
        let may = |name: &str| stores.check_for_others(name).is_ok();
        assert!(may("https://store.example/images/a") && !may("https://store.example/other"));
        assert!(!may("file:///images") && !may("https://store.example/images/../other") && !may("nonsense"));
        let first = stores.attach("http://10.0.0.1:5000/images");
        let second = stores.attach("http://10.0.0.1:5000/images");
        assert!(may("http://10.0.0.1:5000/images") && !may("http://10.0.0.1:5000/images/below"));
        drop(first);
        assert!(may("http://10.0.0.1:5000/images"));
        drop(second);
        assert!(!may("http://10.0.0.1:5000/images"));
        stores.set_pinned(["oci://registry.lan/vm".parse().unwrap()].into_iter());
        assert!(may("oci://registry.lan/vm") && !may("oci://registry.lan/vm/other"));
        stores.set_pinned(std::iter::empty());
        let error = stores.get_for_others("oci://registry.lan/vm").err().unwrap().to_string();
        assert!(error.contains("oci://registry.lan/vm") && error.contains("--allow-store"), "{error}");
    }

    #[test]
    fn stores_that_other_hosts_name_take_no_place_of_its_own_and_what_nothing_uses_makes_room() {
        let prefix = "https://store.example/images".parse().unwrap();
        let stores = Stores { most: 4, ..Stores::new(StoreSettings::default(), vec![prefix]) };
        let name = |number: usize| format!("https://store.example/images/{number}");
        // Other hosts name stores without end, and use none of them for long.
        for number in 0..10 * stores.most {
            stores.get_for_others(&name(number)).unwrap();
        }
        let held: Vec<_> =
            (0..stores.most).map(|number| stores.get_for_others(&name(number)).unwrap()).collect();
        let why = stores.get_for_others(&name(stores.most)).err().unwrap();
        assert_eq!(why.kind(), ErrorKind::NoSpace);
        // Stores in use stay the same ones, and this host opens its own.
        let again = stores.get_for_others(&name(1)).unwrap();
        assert!(Arc::ptr_eq(&again, &held[1]));
        let own: Vec<_> = (0..stores.most).map(|number| stores.get(&name(number)).unwrap()).collect();
        assert!(stores.get(&name(stores.most)).is_none());
        drop((again, held, own));
        assert!(
            stores.get(&name(stores.most)).is_some() && stores.get_for_others(&name(stores.most)).is_ok()
        );
    }
}
