//! Damaged directories: errors at most, never a panic or an endless search.

use super::support::{MemoryBlocks, OWN, PARENT, directory_of, half_md4, name};
use crate::directory::{DirectoryEntry, each_of_all, insert, insert_linear, lookup, remove};
use crate::little_endian::put_u32;
use proptest::collection::vec;
use proptest::prelude::*;

/// Does everything with a directory that can be done with it.
fn use_it(directory: &mut MemoryBlocks, indexed: bool) {
    let settings = half_md4();
    let mut indexed = indexed;
    let _ = each_of_all(directory, &mut |_, _, _| Ok(()));
    for number in 0..100 {
        let name = name(number, 200);
        let _ = lookup(directory, indexed, &settings, &name);
        if number % 3 == 0 {
            let _ = remove(directory, indexed, &settings, &name);
        }
    }
    for number in 1000..1100 {
        let name = name(number, 200);
        let entry = DirectoryEntry { name: &name, inode: 8, kind: 1 };
        indexed = insert(directory, indexed, &settings, &entry).unwrap_or(indexed);
    }
    let _ = insert_linear(directory, &DirectoryEntry { name: b"last", inode: 8, kind: 1 });
}

fn directory(entries: u16) -> (MemoryBlocks, bool) {
    let entries = (0..entries).map(|n| (name(n, 200), 20));
    let (mut directory, indexed) = directory_of((OWN, PARENT), entries, &half_md4());
    directory.limit = 300;
    (directory, indexed)
}

proptest! {
    #[test]
    fn damaged_directories_never_panic(
        entries in prop_oneof![Just(20_u16), Just(100)],
        damage in vec((any::<prop::sample::Index>(), 0..1024_usize, any::<u32>()), 1..20),
        near in any::<bool>(),
        pretend in any::<bool>(),
    ) {
        let (mut directory, indexed) = directory(entries);
        for (block, word, value) in damage {
            let block = block.index(directory.blocks.len());
            // Structures at the beginning of a block, and small numbers, do the most harm.
            let (at, value) = if near { (word % 16 * 4, value % 512) } else { (word * 4, value) };
            put_u32(&mut *directory.blocks[block], at, value);
        }
        use_it(&mut directory, indexed ^ pretend);
    }

    #[test]
    fn random_blocks_never_panic(bytes in vec(any::<u8>(), 3 * 4096), indexed in any::<bool>()) {
        let blocks = bytes.chunks(4096).map(|block| Box::new(block.try_into().unwrap())).collect();
        use_it(&mut MemoryBlocks { blocks, limit: 100 }, indexed);
    }
}

#[test]
fn a_directory_without_blocks_or_of_zeros_is_an_error() {
    let settings = half_md4();
    let entry = DirectoryEntry { name: b"a", inode: 8, kind: 1 };
    for indexed in [false, true] {
        let mut none = MemoryBlocks::new(Vec::new());
        assert!(insert(&mut none, indexed, &settings, &entry).is_err());
        assert!(insert_linear(&mut none, &entry).is_err());
        let mut zeros = MemoryBlocks::new(vec![Box::new([0; 4096])]);
        assert!(insert(&mut zeros, indexed, &settings, &entry).is_err());
        assert!(lookup(&mut zeros, indexed, &settings, b"a").is_err());
        assert!(each_of_all(&mut zeros, &mut |_, _, _| Ok(())).is_err());
    }
}
