//! How a host proves that it may read a blob.
//!
//! The root of a blob's hash tree is known to who has read a manifest that names the blob, and to nobody else: it is
//! never sent. A proof is a MAC under that root of what names this connection, the direction and the blob. So it is
//! worth nothing on another connection, sent back on the same one, or for another blob; and who does not know the blob
//! learns nothing from it, not even which blob it is about.

use headstart_block::Digest;

/// What every proof begins with.
const CONTEXT: &[u8] = b"headstart swarm 1";

/// Bytes that name a connection, and that both ends of it know and nobody can choose.
pub(super) type Binding = [u8; 32];

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Who made the connection.
    Dialer,
    /// Who accepted it.
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

/// What `side` sends to prove that it may read the blob `digest`. `root` is that of its hash tree; of an outboard, that
/// of the tree which it is.
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
