//! Things by a number that they keep until they are taken out; numbers are used again.

use headstart_block::exact;

/// No number of a [`Slab`].
pub(crate) const NONE: u32 = u32::MAX;

/// The things.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.items[number as usize] = Some(item);
            return number;
        }
        let number = exact(self.items.len(), "items have numbers of 32 bits");
        self.items.push(Some(item));
        number
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items.get_mut(number as usize)?.as_mut()
    }

    /// The numbers of the things for which `is_so` is `true`, ascending.
    pub(crate) fn numbers(&self, is_so: impl Fn(&T) -> bool) -> Vec<u32> {
        let items = (0..).zip(&self.items);
        items.filter(|(_, item)| item.as_ref().is_some_and(&is_so)).map(|(number, _)| number).collect()
    }

    pub(crate) fn take(&mut self, number: u32) -> Option<T> {
        let item = self.items.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(item)
    }
}
