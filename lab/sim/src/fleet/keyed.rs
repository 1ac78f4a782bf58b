//! Maps of the fleet, the same on every run.

use headstart_block::random::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by small keys. It is never walked, so that its order does not matter.
pub(super) type Keyed<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// Mixes the bits of keys that are a few numbers.
#[derive(Debug, Default)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0.rotate_left(23) ^ number);
    }
}
