//! A table of byte strings in order of their keys: the changes of a layer, however many there are.
//!
//! The table is a B+ tree of pages of 4 KiB in [`ChangedBlocks`], which moves to a temporary file what is too much for
//! memory. Nothing is ever removed from it; a caller that removes something puts a value that says so. Values too large
//! for a page are in pages of their own, which are used again when the value is replaced.
//!
//! ```text
//! page:  0 leaf?   2 number of cells   4 start of the cells' bytes   6 bytes of no cell
//!        8 places of the cells, 2 bytes each, by key ...   ... cells, from the end of the page down
//! cell:  length of key, 2   length of value, 2   key   value
//! ```
//!
//! The value of a cell in a branch is the number of the page with the keys from the cell's on; the key of the first
//! cell is empty.

use headstart_block::{Error, Result, exact, to_usize};
use headstart_file_blocks::{BLOCK_SIZE, Block, ChangedBlocks};

/// Pages that stay in memory: 12 MiB, as of changed blocks.
const PAGES_IN_MEMORY: usize = 3 << 10;
/// Bytes of the fields before the places of cells.
const HEADER: usize = 8;
/// Bytes of a cell's lengths.
const LENGTHS: usize = 4;
/// Bytes of the longest key: a page has room for three cells at least.
const MAX_KEY: usize = 280;
/// Bytes of the longest value in a cell.
const MAX_INLINE: usize = 1000;
/// Bytes of a value in a page of its own; the number of the next page precedes them.
const LARGE_PART: usize = BLOCK_SIZE - 4;

/// The beginnings of values in leaves: the value follows, or its first page and its length.
const INLINE: u8 = 0;
const LARGE: u8 = 1;

/// Keys with values.
pub(crate) struct Table {
    pages: ChangedBlocks,
    root: u32,
    /// Number of pages.
    end: u32,
    /// Pages that are not used any more.
    free: Vec<u32>,
}

/// A leaf and the place in it at which a key is or would be, and `true` if it is there.
type FoundCell = (u32, usize, bool);

/// A way from the root to a cell: pages, and the cell of each.
type Way = Vec<(u32, usize)>;

impl Table {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self::with_capacity(PAGES_IN_MEMORY)
    }

    fn with_capacity(pages: usize) -> Self {
        // A page of zeros is an empty branch; the first page is made a leaf when it is needed.
        Self { pages: ChangedBlocks::scratch(pages), root: 0, end: 0, free: Vec::new() }
    }

    /// Returns the value of a key; `None` if it was never put.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some((page, at, true)) = self.find(key)?.0 else { return Ok(None) };
        let cell = cell(self.page(page)?, at).1.to_vec();
        self.value(&cell).map(Some)
    }

    /// Returns the first key after `key` that begins with `prefix`, and its value.
    pub(crate) fn next(&mut self, prefix: &[u8], key: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(found) = self.next_cell(key)? else { return Ok(None) };
        if !found.0.starts_with(prefix) {
            return Ok(None);
        }
        let value = self.value(&found.1)?;
        Ok(Some((found.0, value)))
    }

    /// Puts a value in place of the one that the key has.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if key.len() > MAX_KEY {
            return Err(Error::invalid("a key is too long"));
        }
        if self.end == 0 {
            let root = self.take()?;
            *self.pages.fresh(root.into())? = empty_page(true);
            self.root = root;
        }
        let (found, way) = self.find(key)?;
        if let Some((page, at, true)) = found {
            let old = cell(self.page(page)?, at).1.to_vec();
            self.release(&old)?;
            let stored = self.stored(value)?;
            let content = self.pages.get_mut(page.into())?;
            if set_value(content, at, &stored) {
                return Ok(());
            }
            remove_cell(content, at);
            return self.insert(way, key, &stored);
        }
        let stored = self.stored(value)?;
        self.insert(way, key, &stored)
    }

    /// The leaf and the place in it at which a key is or would be, and `true` if it is there; the way to the leaf.
    fn find(&mut self, key: &[u8]) -> Result<(Option<FoundCell>, Way)> {
        let mut way = Way::new();
        if self.end == 0 {
            return Ok((None, way));
        }
        let mut page = self.root;
        loop {
            let content = self.page(page)?;
            let (at, is_there) = search(content, key);
            if is_leaf(content) {
                way.push((page, at));
                return Ok((Some((page, at, is_there)), way));
            }
            let at = if is_there { at } else { at.saturating_sub(1) };
            let next = child(content, at);
            way.push((page, at));
            page = next;
        }
    }

    /// The first cell of a leaf behind a key.
    fn next_cell(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let (Some((page, at, is_there)), mut way) = self.find(key)? else { return Ok(None) };
        let at = at + usize::from(is_there);
        let content = self.page(page)?;
        if at < cells(content) {
            let (key, value) = cell(content, at);
            return Ok(Some((key.to_vec(), value.to_vec())));
        }
        way.pop();
        while let Some((page, at)) = way.pop() {
            let content = self.page(page)?;
            if at + 1 < cells(content) {
                let mut page = child(content, at + 1);
                while !is_leaf(self.page(page)?) {
                    page = child(self.page(page)?, 0);
                }
                let content = self.page(page)?;
                let (key, value) = cell(content, 0);
                return Ok(Some((key.to_vec(), value.to_vec())));
            }
        }
        Ok(None)
    }

    /// Inserts a cell at the end of a way, and splits pages that are full.
    fn insert(&mut self, mut way: Way, key: &[u8], value: &[u8]) -> Result<()> {
        let (mut key, mut value) = (key.to_vec(), value.to_vec());
        while let Some((page, at)) = way.pop() {
            let content = self.pages.get_mut(page.into())?;
            // The way leads to the cell before the new one in a branch.
            let at = if is_leaf(content) { at } else { at + 1 };
            if insert_cell(content, at, &key, &value) {
                return Ok(());
            }
            let leaf = is_leaf(content);
            let mut all = all_cells(content);
            all.insert(at, (key, value));
            let half = split_at(&all, at);
            let (mut low, mut high) = (empty_page(leaf), empty_page(leaf));
            let first = all[half].0.clone();
            if !leaf {
                all[half].0.clear();
            }
            for (number, (key, value)) in all.iter().enumerate() {
                let (to, at) = if number < half { (&mut low, number) } else { (&mut high, number - half) };
                insert_cell(to, at, key, value);
            }
            *content = low;
            let new = self.take()?;
            *self.pages.fresh(new.into())? = high;
            (key, value) = (first, new.to_le_bytes().to_vec());
            if way.is_empty() {
                let root = self.take()?;
                let mut content = empty_page(false);
                insert_cell(&mut content, 0, &[], &page.to_le_bytes());
                insert_cell(&mut content, 1, &key, &value);
                *self.pages.fresh(root.into())? = content;
                self.root = root;
                return Ok(());
            }
        }
        Ok(())
    }

    fn page(&mut self, page: u32) -> Result<&Block> {
        self.pages.get(page.into())
    }

    /// A page that is not used.
    fn take(&mut self) -> Result<u32> {
        if let Some(page) = self.free.pop() {
            return Ok(page);
        }
        let page = self.end;
        self.end = page.checked_add(1).ok_or_else(|| Error::unsupported("a layer has too many changes"))?;
        Ok(page)
    }

    /// A value as it is in a leaf.
    fn stored(&mut self, value: &[u8]) -> Result<Vec<u8>> {
        if value.len() < MAX_INLINE {
            return Ok([&[INLINE], value].concat());
        }
        let mut next = u32::MAX;
        for part in value.chunks(LARGE_PART).rev() {
            let page = self.take()?;
            let content = self.pages.fresh(page.into())?;
            content[..4].copy_from_slice(&next.to_le_bytes());
            content[4..4 + part.len()].copy_from_slice(part);
            next = page;
        }
        let len: u32 = exact(value.len() as u64, "a record is smaller than 4 GiB");
        Ok([&[LARGE][..], &next.to_le_bytes(), &len.to_le_bytes()].concat())
    }

    /// The value that a leaf has.
    fn value(&mut self, stored: &[u8]) -> Result<Vec<u8>> {
        match stored {
            [INLINE, value @ ..] => Ok(value.to_vec()),
            [LARGE, place @ ..] => {
                let mut page = number_at(place, 0);
                let len = to_usize(number_at(place, 4).into());
                let mut value = Vec::with_capacity(len);
                while value.len() < len {
                    let content = self.page(page)?;
                    let part = LARGE_PART.min(len - value.len());
                    value.extend_from_slice(&content[4..4 + part]);
                    page = number_at(&content[..], 0);
                }
                Ok(value)
            }
            _ => Err(Error::corrupt("a change of the layer was lost")),
        }
    }

    /// Says that the pages of a value are not used any more.
    fn release(&mut self, stored: &[u8]) -> Result<()> {
        let [LARGE, place @ ..] = stored else { return Ok(()) };
        let mut page = number_at(place, 0);
        while page != u32::MAX {
            self.free.push(page);
            page = number_at(&self.page(page)?[..], 0);
        }
        Ok(())
    }
}

fn empty_page(is_leaf: bool) -> Block {
    let mut page = [0; BLOCK_SIZE];
    page[0] = is_leaf.into();
    set_number(&mut page, 4, BLOCK_SIZE);
    page
}

fn is_leaf(page: &Block) -> bool {
    page[0] != 0
}

/// Number of cells.
fn cells(page: &Block) -> usize {
    short_at(page, 2)
}

fn short_at(page: &Block, at: usize) -> usize {
    usize::from(u16::from_le_bytes([page[at], page[at + 1]]))
}

fn set_number(page: &mut Block, at: usize, number: usize) {
    let number: u16 = exact(number as u64, "places in a page have 13 bits");
    page[at..at + 2].copy_from_slice(&number.to_le_bytes());
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
}

/// The key and the value of a cell.
fn cell(page: &Block, at: usize) -> (&[u8], &[u8]) {
    let place = short_at(page, HEADER + 2 * at);
    let (key, value) = (short_at(page, place), short_at(page, place + 2));
    let start = place + LENGTHS;
    (&page[start..start + key], &page[start + key..start + key + value])
}

/// The page that a cell of a branch leads to.
fn child(page: &Block, at: usize) -> u32 {
    number_at(cell(page, at).1, 0)
}

/// The place of the first cell whose key is not less; `true` if it is the same.
fn search(page: &Block, key: &[u8]) -> (usize, bool) {
    let (mut low, mut high) = (0, cells(page));
    while low < high {
        let middle = low.midpoint(high);
        if cell(page, middle).0 < key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    (low, low < cells(page) && cell(page, low).0 == key)
}

/// Overwrites the value of a cell, if the new one is as long.
fn set_value(page: &mut Block, at: usize, value: &[u8]) -> bool {
    let place = short_at(page, HEADER + 2 * at);
    let (key, len) = (short_at(page, place), short_at(page, place + 2));
    if len == value.len() {
        let start = place + LENGTHS + key;
        page[start..start + len].copy_from_slice(value);
    }
    len == value.len()
}

fn remove_cell(page: &mut Block, at: usize) {
    let count = cells(page);
    let (key, value) = cell(page, at);
    let unused = short_at(page, 6) + LENGTHS + key.len() + value.len();
    page.copy_within(HEADER + 2 * (at + 1)..HEADER + 2 * count, HEADER + 2 * at);
    set_number(page, 2, count - 1);
    set_number(page, 6, unused);
}

/// Inserts a cell, unless there is no room for it: `false`.
fn insert_cell(page: &mut Block, at: usize, key: &[u8], value: &[u8]) -> bool {
    let count = cells(page);
    let len = LENGTHS + key.len() + value.len();
    let free = short_at(page, 4) - (HEADER + 2 * count);
    if len + 2 > free + short_at(page, 6) {
        return false;
    }
    if len + 2 > free {
        let mut compact = empty_page(is_leaf(page));
        for (number, (key, value)) in all_cells(page).iter().enumerate() {
            insert_cell(&mut compact, number, key, value);
        }
        *page = compact;
    }
    let start = short_at(page, 4) - len;
    page[start + LENGTHS..start + LENGTHS + key.len()].copy_from_slice(key);
    page[start + LENGTHS + key.len()..start + len].copy_from_slice(value);
    set_number(page, start, key.len());
    set_number(page, start + 2, value.len());
    page.copy_within(HEADER + 2 * at..HEADER + 2 * count, HEADER + 2 * (at + 1));
    set_number(page, HEADER + 2 * at, start);
    set_number(page, 2, count + 1);
    set_number(page, 4, start);
    true
}

fn all_cells(page: &Block) -> Vec<(Vec<u8>, Vec<u8>)> {
    let copied = |at| {
        let (key, value) = cell(page, at);
        (key.to_vec(), value.to_vec())
    };
    (0..cells(page)).map(copied).collect()
}

/// The number of cells that stay in a page that is split. Keys that come in their order fill pages.
fn split_at(all: &[(Vec<u8>, Vec<u8>)], new: usize) -> usize {
    if new + 1 == all.len() {
        return new;
    }
    let size = |(key, value): &(Vec<u8>, Vec<u8>)| LENGTHS + 2 + key.len() + value.len();
    let total: usize = all.iter().map(size).sum();
    let mut sum = 0;
    let half = all.iter().position(|cell| {
        sum += size(cell);
        sum > total / 2
    });
    half.unwrap_or(0).clamp(1, all.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn all(table: &mut Table, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut last = prefix.to_vec();
        while let Some((key, value)) = table.next(prefix, &last).unwrap() {
            last.clone_from(&key);
            found.push((key, value));
        }
        found
    }

    #[test]
    fn keys_in_order_fill_pages() {
        let mut table = Table::with_capacity(4);
        for number in 0..20_000_u32 {
            table.put(&number.to_be_bytes(), &[7; 20]).unwrap();
        }
        // 31 bytes each.
        assert!(table.end < 160, "{}", table.end);
        assert_eq!(table.get(&5000_u32.to_be_bytes()).unwrap().unwrap(), [7; 20]);
        assert_eq!(table.get(&20_000_u32.to_be_bytes()).unwrap(), None);
        assert_eq!(all(&mut table, &[]).len(), 20_000);
    }

    #[test]
    fn pages_of_large_values_are_used_again() {
        let mut table = Table::new();
        for round in 0..100_u8 {
            table.put(b"key", &vec![round; 50_000]).unwrap();
        }
        assert!(table.end <= 16 && table.get(b"key").unwrap().unwrap() == vec![99; 50_000]);
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(
            steps in prop::collection::vec(
                (
                    prop_oneof![prop::collection::vec(0..4_u8, 1..8), prop::collection::vec(any::<u8>(), 1..264)],
                    prop_oneof![0..30_usize, 900..1100_usize, 4000..9000_usize],
                    any::<u8>(),
                ),
                0..400,
            ),
            prefix in prop::collection::vec(0..4_u8, 0..2),
        ) {
            let (mut table, mut model) = (Table::with_capacity(3), BTreeMap::new());
            for (key, len, byte) in steps {
                table.put(&key, &vec![byte; len]).unwrap();
                model.insert(key.clone(), vec![byte; len]);
                prop_assert_eq!(&table.get(&key).unwrap().unwrap(), &model[&key]);
            }
            for (key, value) in &model {
                prop_assert_eq!(&table.get(key).unwrap().unwrap(), value);
            }
            let behind = |key: &[u8]| key.starts_with(&prefix) && *key != prefix[..];
            let expected: Vec<_> = model.into_iter().filter(|(key, _)| behind(key)).collect();
            prop_assert!(all(&mut table, &prefix) == expected);
        }
    }
}
