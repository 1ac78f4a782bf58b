//! Things by number, whose numbers are used again.

/// The things.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    vacant: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, item: T) -> usize {
        match self.vacant.pop() {
            Some(number) => {
                self.items[number] = Some(item);
                number
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        }
    }

    pub(super) fn get(&mut self, number: usize) -> Option<&mut T> {
        self.items.get_mut(number)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: usize) -> Option<T> {
        let item = self.items.get_mut(number)?.take()?;
        self.vacant.push(number);
        Some(item)
    }
}
