//! Containers of the fleet: found by key or by number, and the same on every run.

use headstart_block::random::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// No number of a [`Slab`].
pub(super) const NONE: u32 = u32::MAX;

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

/// Things by a number that they keep until they are taken out.
#[derive(Debug)]
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, item: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.items[number as usize] = Some(item);
            return number;
        }
        let number = u32::try_from(self.items.len()).unwrap_or(NONE);
        self.items.push(Some(item));
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items.get_mut(number as usize)?.as_mut()
    }

    /// The numbers of those that are so, ascending.
    pub(super) fn numbers(&self, is_so: impl Fn(&T) -> bool) -> Vec<u32> {
        let items = (0..).zip(&self.items);
        items.filter(|(_, item)| item.as_ref().is_some_and(&is_so)).map(|(number, _)| number).collect()
    }

    pub(super) fn take(&mut self, number: u32) -> Option<T> {
        let item = self.items.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(item)
    }
}
