//! The description by which a blob is opened in the cache.

use crate::sidecar::{Identity, Kind, MAX_LEN};
use headstart_block::{Digest, Error, Result};
use headstart_hash_tree::{Tree, TreeBuilder, outboard_len};

/// The description of a blob in the cache: its name, and the sums that its bytes are checked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobSpec {
    /// The blob's name in its store.
    pub digest: Digest,
    /// The blob's length in bytes.
    pub len: u64,
    /// The blob's hash tree. Without one its bytes are trusted as they came from the store, until the blob is whole.
    pub tree: Option<Tree>,
    /// The store that the blob comes from, as returned by `Store::location`. Only used if there is no tree: bytes that
    /// nothing proves are not shared between disks of different stores.
    pub origin: Option<String>,
}

impl BlobSpec {
    /// The description of a blob that is in memory, and the outboard of its hash tree.
    ///
    /// # Errors
    /// Errors of spooling the tree, for blobs beyond 1 GiB.
    pub fn of(bytes: &[u8]) -> Result<(Self, Vec<u8>)> {
        let mut builder = TreeBuilder::new(&std::env::temp_dir());
        builder.update(bytes)?;
        let mut outboard = Vec::new();
        let root = builder.finish(&mut outboard)?;
        let tree = Tree { root, digest: Digest::of(&outboard), size: outboard.len() as u64 };
        let spec =
            Self { digest: Digest::of(bytes), len: bytes.len() as u64, tree: Some(tree), origin: None };
        Ok((spec, outboard))
    }

    pub(crate) fn identity(&self) -> Result<Identity> {
        if self.len > MAX_LEN {
            return Err(Error::unsupported(format!("a blob of {} bytes is too long to be cached", self.len))
                .about(self.digest)
                .remedy("split the image into layers of less than 1 TiB"));
        }
        if let Some(tree) = self.tree.filter(|tree| tree.size != outboard_len(self.len)) {
            return Err(Error::corrupt(format!(
                "its hash tree is said to have {} bytes, that of {} bytes has {}",
                tree.size,
                self.len,
                outboard_len(self.len)
            ))
            .about(self.digest));
        }
        let origin = self.origin.as_ref().filter(|_| self.tree.is_none());
        Ok(Identity {
            kind: if self.tree.is_some() { Kind::Verified } else { Kind::Plain },
            digest: self.digest,
            len: self.len,
            root: self.tree.map_or([0; 32], |tree| *tree.root.as_bytes()),
            outboard: self.tree.map_or([0; 32], |tree| *tree.digest.as_bytes()),
            origin: origin.map_or([0; 32], |origin| *Digest::of(origin.as_bytes()).as_bytes()),
        })
    }
}
