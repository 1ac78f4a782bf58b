//! Stores that the agent fetches from, for others and ahead of need. Each is opened once.

use headstart_store::{Location, Settings, Store};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Stores that are opened at a time; more are not used.
const STORES_MAX: usize = 1024;

/// The stores that the agent can reach.
pub struct Stores {
    settings: Settings,
    open: Mutex<HashMap<String, Arc<dyn Store>>>,
}

impl Stores {
    /// None yet; `settings` say how they are reached.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, open: Mutex::default() }
    }

    /// The store of that name, where it is one that this agent can reach.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<dyn Store>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.get(name) {
            return Some(Arc::clone(store));
        }
        if open.len() >= STORES_MAX {
            tracing::warn!("the agent uses {STORES_MAX} stores already, and no other");
            return None;
        }
        let opened =
            name.parse().and_then(|location: Location| headstart_store::open(&location, &self.settings));
        match opened {
            Ok(store) => {
                open.insert(name.to_owned(), Arc::clone(&store));
                Some(store)
            }
            Err(error) => {
                tracing::warn!(%error, "the agent cannot fetch for others from that store");
                None
            }
        }
    }
}
