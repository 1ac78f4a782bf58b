mod hostile;
mod image;
mod support;

use super::*;
use crate::hash::{COARSE, HALF_MD4, LEGACY, TEA};
use crate::htree::{CONTINUES, IndexInfo, IndexKind, slots};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{Listing, MemoryBlocks, OWN, PARENT, check, directory_of, half_md4, name};

/// A change of a directory; names are given by numbers.
#[derive(Clone, Debug)]
enum Change {
    Insert(u16),
    Remove(u16),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let number = 0..300_u16;
    vec(
        prop_oneof![
            5 => number.clone().prop_map(Change::Insert),
            2 => number.prop_map(Change::Remove),
        ],
        0..600,
    )
}

fn settings() -> impl Strategy<Value = HashSettings> {
    let version = prop::sample::select(vec![LEGACY, HALF_MD4, TEA, COARSE]);
    (version, any::<[u32; 4]>(), any::<bool>()).prop_map(|(version, seed, unsigned)| HashSettings {
        version,
        seed,
        unsigned,
    })
}

/// A directory that is changed, and what it must have.
struct Pair {
    directory: MemoryBlocks,
    indexed: bool,
    settings: HashSettings,
    expected: Listing,
    longest: usize,
}

impl Pair {
    fn new(settings: HashSettings, first: u16, longest: usize) -> Self {
        let entries = (0..first).map(|n| (name(n, longest), u32::from(n) + 20));
        let expected = entries.clone().map(|(name, inode)| (name, (inode, 1))).collect();
        let (directory, indexed) = directory_of((OWN, PARENT), entries, &settings);
        Self { directory, indexed, settings, expected, longest }
    }

    fn insert(&mut self, name: &[u8], inode: u32) {
        let entry = DirectoryEntry { name, inode, kind: 1 };
        self.indexed = insert(&mut self.directory, self.indexed, &self.settings, &entry).unwrap();
        self.expected.insert(name.to_vec(), (inode, 1));
    }

    fn remove(&mut self, name: &[u8]) {
        let removed = remove(&mut self.directory, self.indexed, &self.settings, name).unwrap();
        assert_eq!(removed, self.expected.remove(name));
    }

    fn apply(&mut self, change: &Change) {
        match *change {
            Change::Insert(number) => {
                let name = name(number, self.longest);
                let found = lookup(&mut self.directory, self.indexed, &self.settings, &name).unwrap();
                assert_eq!(found, self.expected.get(&name).copied());
                if found.is_none() {
                    self.insert(&name, u32::from(number) + 20);
                }
            }
            Change::Remove(number) => self.remove(&name(number, self.longest)),
        }
    }

    fn check(&mut self) {
        assert_eq!(check(&self.directory, self.indexed, &self.settings), self.expected);
        let mut listed = Listing::new();
        each_of_all(&mut self.directory, &mut |name, inode, kind| {
            assert_eq!(listed.insert(name.to_vec(), (inode, kind)), None);
            Ok(())
        })
        .unwrap();
        assert_eq!(listed, self.expected);
    }
}

proptest! {
    #[test]
    fn changes_have_the_effect_that_they_have_on_a_map(
        settings in settings(),
        first in 0..200_u16,
        longest in 6..=255_usize,
        changes in changes(),
    ) {
        let mut pair = Pair::new(settings, first, longest);
        pair.check();
        for change in &changes {
            pair.apply(change);
        }
        pair.check();
        let names: Vec<_> = pair.expected.keys().cloned().collect();
        for name in names {
            let found = lookup(&mut pair.directory, pair.indexed, &pair.settings, &name).unwrap();
            prop_assert_eq!(found, pair.expected.get(&name).copied());
            pair.remove(&name);
        }
        pair.check();
    }

    #[test]
    fn linear_directories_of_several_blocks_stay_linear(changes in changes()) {
        let mut pair = Pair::new(half_md4(), 0, 255);
        for n in 10_000..10_040 {
            let name = name(n, 255);
            insert_linear(&mut pair.directory, &DirectoryEntry { name: &name, inode: 5, kind: 1 }).unwrap();
            pair.expected.insert(name, (5, 1));
        }
        prop_assert!(pair.directory.blocks.len() > 1);
        for change in &changes {
            pair.apply(change);
        }
        prop_assert!(!pair.indexed);
        pair.check();
    }
}

#[test]
fn entries_of_one_block_stay_in_the_order_in_which_they_came() {
    let names: [&[u8]; 4] = [b"z", b"a", b"\xff", b"m"];
    let (mut directory, indexed) = directory_of((OWN, PARENT), names.map(|name| (name, 20)), &half_md4());
    assert!(!indexed && directory.blocks.len() == 1);
    let mut listed = Vec::new();
    each_of_all(&mut directory, &mut |name, _, _| {
        listed.push(name.to_vec());
        Ok(())
    })
    .unwrap();
    assert_eq!(listed, names);
    assert_eq!(lookup(&mut directory, false, &half_md4(), b"..").unwrap(), Some((PARENT, 2)));
}

#[test]
fn one_block_is_filled_to_its_last_byte_and_one_more_entry_makes_an_index() {
    // Two entries of 12 bytes, 16 of 252, one of 40.
    let names = (0..16).map(|n| format!("{n:0>244}")).chain(["x".repeat(32)]);
    let (mut directory, indexed) = directory_of((OWN, PARENT), names.map(|name| (name, 20)), &half_md4());
    assert!(!indexed && directory.blocks.len() == 1);
    let more = DirectoryEntry { name: b"y", inode: 22, kind: 7 };
    assert!(insert(&mut directory, false, &half_md4(), &more).unwrap());
    assert_eq!(directory.blocks.len(), 3);
    assert_eq!(check(&directory, true, &half_md4()).len(), 18);
    assert_eq!(lookup(&mut directory, true, &half_md4(), b"..").unwrap(), Some((PARENT, 2)));
}

#[test]
fn names_with_one_hash_go_on_in_the_next_leaf() {
    let settings = HashSettings { version: COARSE, ..half_md4() };
    let names: Vec<_> = (0..200).map(|n| format!("a{n:0>200}")).collect();
    let entries = names.iter().map(|name| (name, 20));
    let (mut directory, indexed) = directory_of((OWN, PARENT), entries, &settings);
    assert!(indexed);
    let leaves = slots(&directory.blocks[0], IndexKind::Root).unwrap();
    assert!(leaves.len() > 10 && leaves[1..].iter().all(|(hash, _)| hash & CONTINUES == CONTINUES));
    for name in &names {
        assert_eq!(lookup(&mut directory, true, &settings, name.as_bytes()).unwrap(), Some((20, 1)));
    }
    assert_eq!(lookup(&mut directory, true, &settings, b"a").unwrap(), None);
}

#[test]
fn an_index_gets_nodes_when_its_root_is_full_and_splits_them_when_they_are() {
    let settings = half_md4();
    let mut pair = Pair::new(settings, 0, 255);
    let long = |n: u32| format!("{n:0>250}").into_bytes();
    let mut most = 0;
    for n in 0..14_000 {
        pair.insert(&long(n), n + 20);
        if n % 1000 == 0 {
            pair.check();
        }
        if pair.indexed && IndexInfo::decode(&pair.directory.blocks[0]).unwrap().has_nodes {
            most = most.max(slots(&pair.directory.blocks[0], IndexKind::Root).unwrap().len());
        }
    }
    assert!(most >= 3, "{most} nodes");
    pair.check();
    for n in 0..14_000 {
        assert_eq!(lookup(&mut pair.directory, true, &settings, &long(n)).unwrap(), Some((n + 20, 1)));
    }
    for n in (0..14_000).filter(|n| n % 3 != 0) {
        pair.remove(&long(n));
    }
    let blocks = pair.directory.blocks.len();
    for n in 20_000..22_000 {
        pair.insert(&long(n), n);
    }
    assert_eq!(pair.directory.blocks.len(), blocks, "freed room is used again");
    pair.check();
}

#[test]
fn nothing_of_a_removed_name_stays() {
    let mut pair = Pair::new(half_md4(), 0, 255);
    for name in [b"first", b"other", b"third"] {
        pair.insert(name, 20);
    }
    let before = pair.directory.blocks.clone();
    pair.insert(b"secret", 21);
    pair.remove(b"secret");
    assert_eq!(pair.directory.blocks, before);
}

#[test]
fn what_no_directory_can_have_is_refused() {
    let settings = half_md4();
    let mut directory = Pair::new(settings, 3, 255).directory;
    let long = [b'x'; 256];
    let names: [&[u8]; 6] = [b"", b".", b"..", b"a/b", b"a\0", &long];
    for name in names {
        let bad = DirectoryEntry { name, inode: 20, kind: 1 };
        assert!(insert(&mut directory, false, &settings, &bad).is_err());
        assert!(insert_linear(&mut directory, &bad).is_err());
    }
    assert!(
        insert(&mut directory, false, &settings, &DirectoryEntry { name: b"a", inode: 0, kind: 1 }).is_err()
    );
    assert!(remove(&mut directory, false, &settings, b"..").is_err());
    let unknown = HashSettings { version: 6, ..settings };
    let mut full = Pair::new(settings, 20, 150);
    let more: Vec<_> = (0..30).map(|n| name(1000 + n, 150)).collect();
    let mut added = more.iter().map(|name| {
        let entry = DirectoryEntry { name, inode: 20, kind: 1 };
        insert(&mut full.directory, false, &unknown, &entry)
    });
    assert!(added.any(|result| result.is_err()));
}

#[test]
fn an_index_of_two_levels_that_is_full_is_an_error() {
    // A root with 508 full nodes, of which the last has the only leaves that are there.
    let settings = half_md4();
    let names: Vec<_> = (0..15).map(|n| format!("{n:0>250}")).collect();
    let mut leaf = [0; BLOCK_SIZE];
    chain::fill(
        &mut leaf,
        names.iter().map(|name| DirectoryEntry { name: name.as_bytes(), inode: 20, kind: 1 }),
    );
    let mut root = [0; BLOCK_SIZE];
    crate::htree::make_root(&mut root, OWN, PARENT, IndexInfo { version: HALF_MD4, has_nodes: true }, 1);
    crate::htree::set_slots(&mut root, IndexKind::Root, &[(0, 1); 508]);
    let mut node = [0; BLOCK_SIZE];
    crate::htree::make_node(&mut node, &[(0, 2); 511]);
    let mut directory = MemoryBlocks::new(vec![root.into(), node.into(), leaf.into()]);
    let long = [b'y'; 250];
    let error = insert(&mut directory, true, &settings, &DirectoryEntry { name: &long, inode: 20, kind: 1 });
    assert_eq!(error.unwrap_err().kind(), headstart_block::ErrorKind::Unsupported);
}
