//! Pins, in the form in which hosts send them to each other: each describes an image that hosts keep together.
//!
//! A pin contains the image's manifest, and with that the root hashes of the hash trees of the image's blobs. A host
//! that knows these hashes may read the blobs, so a host that has the pin may read the image.

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

/// A pin: an image that several hosts keep in their caches together, each of them a part. A pin without hosts
/// says that the image is no longer pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pin {
    /// The reference of the image, as it was given when the image was pinned.
    pub image: String,
    /// The digest of the image's manifest.
    pub digest: String,
    /// The text of the image's manifest; empty if the image is no longer pinned.
    pub manifest: String,
    /// The store that has the image, such as `https://host/images`.
    pub store: String,
    /// The number of hosts that keep each byte of the image; at least 1, at most the number of `hosts`.
    pub copies: u32,
    /// The names of the hosts that keep the image. Their order decides which host keeps which part. Empty if
    /// the image is no longer pinned.
    pub hosts: Vec<String>,
    /// The time at which the image was pinned or unpinned, in milliseconds since 1970.
    #[serde(default)]
    pub since: u64,
}

impl Pin {
    /// Parses the digest of the image's manifest.
    ///
    /// # Errors
    /// An error if the field `digest` is not a digest.
    pub fn digest(&self) -> Result<Digest> {
        self.digest.parse().map_err(|e: Error| e.about("a pinned image"))
    }

    /// Returns `true` if the image is pinned, that is, if the pin names at least one host.
    pub fn is_kept(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Returns one order for each different layer blob of the image, to fetch the whole of it. Empty if the image
    /// is no longer pinned.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](headstart_block::ErrorKind::Invalid) if a name is too long, `copies` is 0 or
    /// above the number of hosts, or the pin was made more than a day in the future; an error if the manifest
    /// is malformed or does not match the digest, or if a layer has no hash tree.
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

    /// The sort key of a pin among the pins of the same image: the pin with the greatest key is in force. A
    /// later pin has a greater key. Of two pins of the same time, one without hosts (which ends the pin) has the
    /// greater key.
    pub fn rank(&self) -> (u64, bool, &[String], u32) {
        (self.since, !self.is_kept(), &self.hosts, self.copies)
    }

    /// Hashes that identify the image and this version of its pin, the same on all hosts.
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

/// The identity of a pin. Two hosts exchange these to find out which pins the other host lacks, without sending whole
/// pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPin {
    /// A 64-bit hash of the digest of the image's manifest.
    pub image: u64,
    /// A 64-bit hash of the image's digest and of the pin's time, copies and hosts. It differs for each new
    /// pin of an image.
    pub pin: u64,
}

/// The present time of the system's clock, in milliseconds since 1970; 0 if the clock is before 1970.
#[expect(clippy::disallowed_methods, reason = "when something was pinned, to be compared among hosts")]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    saturating::<u64>(since.as_millis())
}
