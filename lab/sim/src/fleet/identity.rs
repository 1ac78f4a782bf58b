//! The key and the role of each host.

use headstart_block::random::{STEP, mix};
use headstart_swarm::{PeerKey, Role};

/// The key of a host.
pub(super) fn key(host: u32) -> PeerKey {
    PeerKey(mix(STEP.wrapping_mul(u64::from(host) + 1)))
}

/// The role of a host, of which the first `roots` are roots.
pub(super) fn role(roots: u32, host: u32) -> Role {
    if host < roots { Role::Root } else { Role::Agent }
}
