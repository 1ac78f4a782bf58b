//! Images that the hosts of a swarm keep together: each host keeps a part, so that all of an image can be fetched while
//! its store cannot be reached. This module records the pinned images, and the hosts that keep each of them.
//!
//! An operator (a host whose certificate has that role) pins an image, and names the hosts that keep it. Each blob of
//! the image is divided into stripes, groups of consecutive chunks, and the hosts keep the stripes in turn, with the
//! requested number of copies. The same applies to the blob's hash tree. Every host saves the pins that it received in
//! a file of its state directory. A pin contains the time at which the operator made it: the newest pin of an image is
//! in force, and a pin without hosts ends an earlier one. Hosts compare their pins with those of operators from time to
//! time, so that a host that could not be reached gets the pins that it lacks.
//!
//! A pin contains the image's manifest, and with that the roots of the image's hash trees. So pinning an image permits
//! the hosts that keep the image to read it. Other hosts get the pin once they have proved that they may read the
//! image.
//!
//! A host accepts a pin only from an operator, however new the pin is. Hosts that are no operators do not pass pins on.

use headstart_block::{Digest, Error, Result};
use headstart_daemon::file::{self, Readers};
use headstart_peer_net::order::Order;
use headstart_peer_net::pin::{KnownPin, Pin, now};
use headstart_peer_net::pinning::Holding;
use headstart_store::Location;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

/// The version of the file.
const VERSION: u32 = 1;

/// The most pins at a time, including those without hosts: a list of the known ones fits a frame.
pub(crate) const PINS_MAX: usize = 2048;

/// The largest accepted file, in bytes: a pin fits a frame.
const LEN_MAX: u64 = PINS_MAX as u64 * (256 << 10);

/// The holders of an image's blobs: each blob with its order.
type Kept = BTreeMap<Digest, (Order, Arc<Holding>)>;

/// All pins that a host knows.
pub(crate) struct Pins {
    path: PathBuf,
    /// The pins by the images' digests.
    pins: BTreeMap<String, Pin>,
    /// The digests of images that were pinned at this host.
    own: BTreeSet<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Records {
    version: u32,
    pins: Vec<Pin>,
    /// Earlier builds do not write it, and ignore it.
    #[serde(default)]
    own: BTreeSet<String>,
}

impl Pins {
    /// The pins in a file, if it is there.
    ///
    /// # Errors
    /// If it cannot be read, or has other content.
    pub(crate) fn load(path: PathBuf) -> Result<Self> {
        let about = |e: Error| e.about(path.display());
        let (mut pins, mut own) = (BTreeMap::new(), BTreeSet::new());
        if let Some(text) = file::read(&path, LEN_MAX)? {
            let records: Records = serde_json::from_slice(&text)
                .map_err(|e| about(Error::corrupt("is not a list of pinned images").caused_by(e)))?;
            if records.version != VERSION {
                let error = Error::unsupported(format!("is a list of version {}", records.version));
                return Err(about(error.remedy("start the agent of the release that wrote it")));
            }
            pins.extend(records.pins.into_iter().map(|pin| (pin.digest.clone(), pin)));
            own = records.own;
        }
        Ok(Self { path, pins, own })
    }

    /// No pins, for a file that cannot be read; the file is not replaced before there is a new pin.
    pub(crate) fn empty(path: PathBuf) -> Self {
        Self { path, pins: BTreeMap::new(), own: BTreeSet::new() }
    }

    /// Adds a pin; returns `true` if it is new. The pin is written to the file.
    ///
    /// # Errors
    /// If it is not valid, there are too many, or the file cannot be written.
    pub(crate) fn insert(&mut self, pin: &Pin) -> Result<bool> {
        pin.orders()?;
        let known = self.pins.get(&pin.digest);
        if known.is_some_and(|known| known.rank() >= pin.rank()) {
            return Ok(false);
        }
        let mut made_room = None;
        if known.is_none() && self.pins.len() >= PINS_MAX {
            // The end of an old pin is known to all hosts by now.
            let over = self.pins.values().filter(|pin| !pin.is_kept()).min_by_key(|pin| pin.since);
            let over = over.map(|pin| pin.digest.clone()).ok_or_else(|| {
                Error::invalid(format!("{PINS_MAX} images are pinned already"))
                    .about(&pin.image)
                    .remedy("unpin what is not needed any more")
            })?;
            made_room = self.pins.remove_entry(&over);
        }
        let before = self.pins.insert(pin.digest.clone(), pin.clone());
        self.write().map(|()| true).inspect_err(|_| {
            match before {
                Some(before) => self.pins.insert(pin.digest.clone(), before),
                None => self.pins.remove(&pin.digest),
            };
            self.pins.extend(made_room);
        })
    }

    fn write(&self) -> Result<()> {
        let own = self.own.iter().filter(|digest| self.pins.contains_key(*digest)).cloned().collect();
        let records = Records { version: VERSION, pins: self.pins.values().cloned().collect(), own };
        let text = serde_json::to_vec(&records);
        let text = text.map_err(|e| Error::invalid("is not a list").caused_by(e))?;
        file::replace(&self.path, &text, Readers::Owner)
    }

    /// Records that an image was pinned at this host, so that others may name its store. This has to precede its
    /// insertion.
    pub(crate) fn is_own(&mut self, digest: &str) {
        self.own.insert(digest.to_owned());
    }

    /// The stores of images that were pinned at this host and are still pinned.
    pub(crate) fn own_stores(&self) -> impl Iterator<Item = Location> {
        self.kept().filter(|pin| self.own.contains(&pin.digest)).filter_map(|pin| pin.store.parse().ok())
    }

    /// The pins of images that are kept.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Pin> {
        self.pins.values().filter(|pin| pin.is_kept())
    }

    /// The images of that name or digest that are kept.
    pub(crate) fn named(&self, image: &str) -> Vec<Pin> {
        let is_it = |pin: &&Pin| pin.image == image || image.ends_with(&pin.digest);
        self.kept().filter(is_it).cloned().collect()
    }

    /// The date of a pin that supersedes all earlier ones of the image.
    pub(crate) fn next_since(&self, digest: &str) -> u64 {
        self.pins.get(digest).map_or(0, |pin| pin.since.saturating_add(1)).max(now())
    }

    /// The holders of each blob; for a blob of several images the newest pin is in force, on all hosts alike.
    pub(crate) fn holdings(&self) -> Kept {
        let mut pins: Vec<&Pin> = self.kept().collect();
        pins.sort_unstable_by_key(|pin| (pin.since, &pin.digest));
        let mut kept = Kept::new();
        for pin in pins {
            // A pin was checked when it came.
            let Ok(orders) = pin.orders() else { continue };
            let holding = Arc::new(Holding::new(&pin.hosts, pin.copies));
            for order in orders {
                if let Ok(digest) = order.digest.parse() {
                    kept.insert(digest, (order, Arc::clone(&holding)));
                }
            }
        }
        kept
    }

    /// The list from which another host can see which pins this one lacks.
    pub(crate) fn known(&self) -> Vec<KnownPin> {
        self.pins.values().map(Pin::known).collect()
    }

    /// The pins that a host with these known pins lacks. That host finds out itself which are newer.
    pub(crate) fn unknown_to(&self, known: &[KnownPin]) -> Vec<Pin> {
        let known: HashMap<u64, u64> = known.iter().map(|known| (known.image, known.pin)).collect();
        let differs = |pin: &&Pin| {
            let own = pin.known();
            known.get(&own.image) != Some(&own.pin)
        };
        self.pins.values().filter(differs).cloned().collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
