//! The description by which a blob is opened in the cache.

use crate::sidecar::{Identity, Kind, MAX_LEN};
use headstart_block::{Digest, Error, Result};
use headstart_hash_tree::{Tree, TreeBuilder, outboard_len};

/// The description of a blob in the cache: its name, its length, and the hashes that verify its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobSpec {
    /// The digest of the blob's bytes, which is its name in the store.
    pub digest: Digest,
    /// The blob's length in bytes.
    pub len: u64,
    /// The blob's hash tree, which verifies each range on its own. `None`: fetched bytes are trusted until
    /// the blob is complete and can be compared with its digest.
    pub tree: Option<Tree>,
    /// The location of the store that the blob comes from, as returned by `Store::location`. Only used
    /// without a hash tree: unverified bytes are not shared between disks of different stores.
    pub origin: Option<String>,
}

impl BlobSpec {
    /// Computes the description of a blob whose bytes are in memory, and the outboard (the file of its hash
    /// tree).
    ///
    /// # Errors
    /// Errors of the temporary file that holds the hash tree of a blob that is larger than 1 GiB.
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
