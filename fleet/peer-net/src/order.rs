//! A blob that is to be fetched to a host, as an order or a pin names it.

use headstart_block::{ByteRange, Digest, Error, Result};
use headstart_cache::BlobSpec;
use headstart_hash_tree::TreeRoot;
use headstart_image::manifest::Tree;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most parts of one order; a longer one is split.
pub(super) const PARTS_MAX: usize = 2048;

/// Longest name of a store, in bytes.
pub(crate) const STORE_MAX: usize = 4096;

/// A blob (a stored object, such as a layer of an image) that a host is ordered to fetch, and the parts of it
/// to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// The digest of the blob: `sha256:...`.
    pub digest: String,
    /// The length of the blob, in bytes.
    pub len: u64,
    /// The root hash of the blob's hash tree, in hexadecimal. It proves the bytes that other hosts send.
    pub tree_root: String,
    /// The digest of the blob that contains the hash tree itself (the outboard).
    pub tree_digest: String,
    /// The length of the blob that contains the hash tree itself, in bytes.
    pub tree_len: u64,
    /// The store that has the blob, such as `https://host/images`. A host that may not use this store gets
    /// the bytes only from other hosts.
    pub store: String,
    /// The parts to fetch, in this order: offset and length in bytes. An empty list means the whole blob.
    #[serde(default)]
    #[schema(value_type = Vec<Vec<u64>>)]
    pub parts: Vec<(u64, u64)>,
}

impl Order {
    /// Creates an order for the whole of a blob.
    #[must_use]
    pub fn of(digest: Digest, len: u64, tree: &Tree, store: String) -> Self {
        Self {
            digest: digest.to_string(),
            len,
            tree_root: tree.root.to_string(),
            tree_digest: tree.digest.to_string(),
            tree_len: tree.size,
            store,
            parts: Vec::new(),
        }
    }

    /// The digest, the length and the hash tree of the blob, in the form in which the cache takes them.
    ///
    /// # Errors
    /// An error if a digest or the root hash is malformed, or the name of the store is longer than 4096
    /// bytes.
    pub fn spec(&self) -> Result<BlobSpec> {
        let about = |e: Error| e.about("a blob");
        let root: TreeRoot = self.tree_root.parse().map_err(about)?;
        let tree = Tree { root, digest: self.tree_digest.parse().map_err(about)?, size: self.tree_len };
        let digest = self.digest.parse().map_err(about)?;
        if self.store.len() > STORE_MAX {
            return Err(Error::invalid("a store of a name that is too long"));
        }
        Ok(BlobSpec { digest, len: self.len, tree: Some(tree), origin: None })
    }

    /// The ranges to fetch, in order: the parts, cut at the blob's end and without empty ones, or the whole
    /// blob if the order has no parts.
    pub fn ranges(&self) -> Vec<ByteRange> {
        let all = ByteRange::between(0, self.len);
        if self.parts.is_empty() {
            return vec![all];
        }
        let ranges = self.parts.iter().filter_map(|(offset, len)| ByteRange::new(*offset, *len));
        ranges.map(|range| range.intersect(all)).filter(|range| !range.is_empty()).collect()
    }

    /// The same as several orders that can be sent.
    pub(super) fn split(&self) -> Vec<Self> {
        if self.parts.len() <= PARTS_MAX {
            return vec![self.clone()];
        }
        self.parts.chunks(PARTS_MAX).map(|parts| Self { parts: parts.to_vec(), ..self.clone() }).collect()
    }
}
