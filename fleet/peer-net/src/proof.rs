//! The proof of a host that it may read a blob.
//!
//! The root of a blob's hash tree is known only to hosts that have read a manifest that names the blob: it is never
//! sent. A proof is a MAC under that root of this connection's name, the direction and the blob. So it is worth nothing
//! on another connection, sent back on the same one, or for another blob; and a host that does not know the blob learns
//! nothing from it, not even which blob it is about.

use headstart_block::Digest;

/// The first bytes of every proof.
const CONTEXT: &[u8] = b"headstart swarm 1";

/// Bytes that name a connection: both ends of it know them and neither can choose them.
pub(super) type Binding = [u8; 32];

/// The end that sends a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The end that made the connection.
    Dialer,
    /// The end that accepted it.
    Acceptor,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }
}

/// The proof of `side` that it may read the blob `digest`. `root` is that of its hash tree; for an outboard, that of
/// the tree itself.
pub(super) fn proof(root: &[u8; 32], binding: &Binding, side: Side, digest: &Digest) -> blake3::Hash {
    let mut mac = blake3::Hasher::new_keyed(root);
    mac.update(CONTEXT);
    mac.update(binding);
    mac.update(&[match side {
        Side::Dialer => 0,
        Side::Acceptor => 1,
    }]);
    mac.update(digest.as_bytes());
    mac.finalize()
}
