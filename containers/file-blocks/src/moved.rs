//! The places of blocks in a temporary file, compactly: 4 bytes for each of blocks that follow each other.

use headstart_block::to_usize;
use std::collections::BTreeMap;

/// Blocks of a chunk.
const BLOCKS: usize = 64;
/// The same, as a number of blocks.
const CHUNK: u64 = BLOCKS as u64;

/// Block numbers, each with a place.
#[derive(Debug, Default)]
pub(crate) struct MovedBlocks(BTreeMap<u64, Box<[Option<Place>; BLOCKS]>>);

/// A place, as its complement: so that no place takes no more room.
type Place = std::num::NonZeroU32;

impl MovedBlocks {
    /// The place of a block.
    pub(crate) fn get(&self, number: u64) -> Option<u32> {
        self.0.get(&(number / CHUNK))?[slot(number)].map(place_of)
    }

    /// Adds a block with a place that is less than 2^32 - 1.
    pub(crate) fn insert(&mut self, number: u64, place: u32) {
        let chunk = self.0.entry(number / CHUNK).or_insert_with(|| Box::new([None; BLOCKS]));
        chunk[slot(number)] = Place::new(!place);
    }

    /// Removes a block; returns its place.
    pub(crate) fn remove(&mut self, number: u64) -> Option<u32> {
        let key = number / CHUNK;
        let chunk = self.0.get_mut(&key)?;
        let place = chunk[slot(number)].take();
        if chunk.iter().all(Option::is_none) {
            self.0.remove(&key);
        }
        place.map(place_of)
    }

    /// The block with the lowest number, and its place.
    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        let (key, chunk) = self.0.first_key_value()?;
        let mut places = (key * CHUNK..).zip(chunk.iter());
        places.find_map(|(number, place)| Some((number, place_of((*place)?))))
    }
}

fn place_of(place: Place) -> u32 {
    !place.get()
}

/// The place of a block in its chunk.
fn slot(number: u64) -> usize {
    to_usize(number % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_are_those_of_a_map(steps in prop::collection::vec((0..3_u8, 0..200_u64, 0..1000_u32), 0..200)) {
            let (mut moved, mut model) = (MovedBlocks::default(), BTreeMap::new());
            for (step, number, place) in steps {
                if step == 0 {
                    prop_assert_eq!(moved.remove(number), model.remove(&number));
                } else {
                    moved.insert(number, place);
                    model.insert(number, place);
                }
                prop_assert_eq!(moved.first(), model.first_key_value().map(|(number, place)| (*number, *place)));
                prop_assert_eq!(moved.get(number), model.get(&number).copied());
            }
            while let Some((number, place)) = moved.first() {
                prop_assert_eq!(model.remove(&number), Some(place));
                moved.remove(number);
            }
            prop_assert!(model.is_empty() && moved.0.is_empty());
        }
    }
}
