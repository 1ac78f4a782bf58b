//! An image that hosts keep together, as one host sends it to another.
//!
//! A pin contains the image's manifest, and with that the roots of its hash trees: a host that has the pin may read
//! the image.

use crate::order::{Order, STORE_MAX};
use headstart_block::{Digest, Error, Result, saturating};
use headstart_image::manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// Longest name of an image or a host.
const NAME_MAX: usize = 1024;

/// The time by which other hosts' clocks may be ahead of this host's.
const AHEAD_MS: u64 = 24 * 3600 * 1000;

/// An image that hosts keep together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pin {
    /// Its name, as it was pinned.
    pub image: String,
    /// The digest of its manifest.
    pub digest: String,
    /// Its manifest; empty for one that is not pinned any more.
    pub manifest: String,
    /// The store that has it, such as `https://host/images`.
    pub store: String,
    /// The number of hosts that keep each byte.
    pub copies: u32,
    /// The names of these hosts, in order; empty if the image is not pinned any more.
    pub hosts: Vec<String>,
    /// The time of the pin, in milliseconds since 1970.
    #[serde(default)]
    pub since: u64,
}

impl Pin {
    /// The digest of its manifest.
    ///
    /// # Errors
    /// If the text is not a digest.
    pub fn digest(&self) -> Result<Digest> {
        self.digest.parse().map_err(|e: Error| e.about("a pinned image"))
    }

    /// `true` if any host keeps it.
    pub fn is_kept(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Its blobs, each once.
    ///
    /// # Errors
    /// If the pin is not valid, or is too long to be sent; if a layer has no hash tree.
    pub fn orders(&self) -> Result<Vec<Order>> {
        let about = |e: Error| e.about(&self.image);
        let digest = self.digest()?;
        let long =
            [&self.image, &self.digest].into_iter().chain(&self.hosts).any(|name| name.len() > NAME_MAX);
        if long || self.store.len() > STORE_MAX {
            return Err(Error::invalid("a pin with a name that is too long"));
        }
        if self.since > now().saturating_add(AHEAD_MS) {
            return Err(about(Error::invalid("was pinned in the future").remedy("set the hosts' clocks")));
        }
        if !self.is_kept() {
            return Ok(Vec::new());
        }
        let hosts = self.hosts.len();
        if self.copies == 0 || self.copies as usize > hosts {
            let error = Error::invalid(format!("{} copies of it on {hosts} hosts", self.copies));
            return Err(about(
                error.remedy("ask for one copy at least, and not for more than there are hosts"),
            ));
        }
        if Digest::of(self.manifest.as_bytes()) != digest {
            return Err(about(Error::corrupt("its manifest is another")));
        }
        let manifest = Manifest::parse(self.manifest.as_bytes()).map_err(about)?;
        let mut orders = BTreeMap::new();
        for layer in manifest.disk_layers() {
            let tree = layer.tree.as_ref().ok_or_else(|| {
                about(Error::unsupported("has a layer without a hash tree, which hosts do not exchange"))
                    .remedy("make them with `headstart image flatten`")
            })?;
            let order = Order::of(layer.blob.digest, layer.blob.size, tree, self.store.clone());
            orders.insert(layer.blob.digest, order);
        }
        Ok(orders.into_values().collect())
    }

    /// The rank of a pin among those of the same image: the greatest is in force.
    pub fn rank(&self) -> (u64, bool, &[String], u32) {
        (self.since, !self.is_kept(), &self.hosts, self.copies)
    }

    /// The numbers of the image and of the pin, the same on all hosts.
    pub fn known(&self) -> KnownPin {
        let hash = |parts: &[&[u8]]| {
            let mut hasher = blake3::Hasher::new_derive_key("headstart swarm 1 pinned image");
            for part in parts {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
            }
            let mut number = [0; 8];
            hasher.finalize_xof().fill(&mut number);
            u64::from_le_bytes(number)
        };
        let mut parts = vec![self.digest.as_bytes()];
        let image = hash(&parts);
        let (since, copies) = (self.since.to_le_bytes(), self.copies.to_le_bytes());
        parts.extend([since.as_slice(), &copies]);
        parts.extend(self.hosts.iter().map(String::as_bytes));
        KnownPin { image, pin: hash(&parts) }
    }
}

/// A pin that a host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPin {
    /// The number of the image.
    pub image: u64,
    /// The number of the pin.
    pub pin: u64,
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "when something was pinned, to be compared among hosts")]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    saturating::<u64>(since.as_millis())
}
