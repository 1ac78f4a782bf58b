//! The name of a host as a number, which the state machine knows it by.

use headstart_swarm::PeerKey;

/// The 64-bit hash of a host's name, by which all hosts identify that host.
pub fn key_of(name: &str) -> PeerKey {
    let mut hasher = blake3::Hasher::new_derive_key("headstart swarm 1 name of a host");
    hasher.update(name.as_bytes());
    let mut key = [0; 8];
    hasher.finalize_xof().fill(&mut key);
    PeerKey(u64::from_le_bytes(key))
}
