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

/// A blob, and the parts of it that a host is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// Its digest: `sha256:...`.
    pub digest: String,
    /// Its length in bytes.
    pub len: u64,
    /// The root of its hash tree, in hexadecimal.
    pub tree_root: String,
    /// The digest of that tree's outboard.
    pub tree_digest: String,
    /// The outboard's length in bytes.
    pub tree_len: u64,
    /// The store that has it, such as `https://host/images`. A host that cannot use it gets the bytes from others.
    pub store: String,
    /// The parts: offset and length in bytes, in the order in which they are fetched. None: all of it.
    #[serde(default)]
    #[schema(value_type = Vec<Vec<u64>>)]
    pub parts: Vec<(u64, u64)>,
}

impl Order {
    /// An order for all of a blob.
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

    /// The blob of the order.
    ///
    /// # Errors
    /// If it is not valid.
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

    /// The parts of the order that exist, in order.
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
