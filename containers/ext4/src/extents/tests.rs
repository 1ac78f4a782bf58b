use super::*;
use crate::support::{Image, OpenImage, skip_without};
use headstart_block::ErrorKind;
use headstart_file_blocks::FileKind;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Blocks of a disk in the tests.
const DISK: u64 = 1 << 40;

/// A tree, read back from what [`build`] made with blocks from 1,000,000,000,000 on.
fn built(extents: &[Extent]) -> (BuiltExtents, ExtentMap) {
    let mut next = 1_000_000_000_000;
    let built = build(extents, &mut || {
        next += 1;
        Ok(next - 1)
    })
    .unwrap();
    let blocks: BTreeMap<_, _> = built.blocks.iter().cloned().collect();
    let map = of_tree(&built.i_block, DISK, &mut |number| Ok(blocks[&number].clone())).unwrap();
    (built, map)
}

/// Extents of one block each, with holes between them.
fn scattered(count: u32) -> Vec<Extent> {
    (0..count)
        .map(|at| Extent {
            logical: 2 * at,
            start: DISK / 2 - 3 * u64::from(at),
            len: 1,
            unwritten: at % 7 == 3,
        })
        .collect()
}

#[test]
fn nodes_are_filled_one_after_the_other() {
    for (count, depth, nodes) in [
        (0, 0, 0),
        (4, 0, 0),
        (5, 1, 1),
        (340, 1, 1),
        (341, 1, 2),
        (1360, 1, 4),
        (1361, 2, 6),
        (120_000, 2, 355),
    ] {
        let extents = scattered(count);
        let (built, map) = built(&extents);
        assert_eq!((u16_at(&built.i_block, 6), built.blocks.len()), (depth, nodes), "{count}");
        let mut numbers: Vec<_> = map.tree_blocks.clone();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq((1_000_000_000_000..).take(nodes)));
        assert!(map.extents == extents);
    }
}

/// An inode whose blocks are in a tree or in lists, with this beginning.
fn inode_of(i_block: [u8; PLACES], flags: u32) -> Inode {
    let mut inode = Inode::new(FileKind::Regular, 32);
    (inode.block, inode.flags) = (i_block, flags);
    inode
}

/// The place of one block, by a search that reads `blocks`, and the number of blocks that it read.
fn found(
    inode: &Inode,
    logical: u32,
    end: u64,
    read: &dyn Fn(u64) -> Box<Block>,
) -> Result<(Option<u64>, usize)> {
    let (mut search, mut reads) = (BlockSearch::new(inode, logical, end)?, 0);
    while let Some(number) = search.wanted() {
        assert!(number < end && reads < 5, "block {number} after {reads} others");
        search.go_on(&read(number))?;
        reads += 1;
    }
    Ok((search.found(), reads))
}

/// The place of one block, by the extents of all.
fn by_map(map: &ExtentMap, logical: u32) -> Option<u64> {
    let after = map.extents.partition_point(|extent| extent.logical <= logical);
    let extent = map.extents.get(after.checked_sub(1)?)?;
    let has_it = u64::from(logical) < extent.end() && !extent.unwritten;
    has_it.then(|| extent.start + u64::from(logical - extent.logical))
}

#[test]
fn a_block_is_found_by_its_number_in_the_file() {
    let extents = [
        Extent { logical: 3, start: 100, len: 2, unwritten: false },
        Extent { logical: 5, start: 200, len: 1, unwritten: true },
        Extent { logical: 6, start: 300, len: 4, unwritten: false },
    ];
    let inode = inode_of(built(&extents).0.i_block, USES_EXTENTS);
    let places: Vec<_> =
        (2..11).map(|logical| found(&inode, logical, DISK, &|_| unreachable!()).unwrap().0).collect();
    assert_eq!(places, [None, Some(100), Some(101), None, Some(300), Some(301), Some(302), Some(303), None]);
    let mut device = inode_of(inode.block, USES_EXTENTS);
    device.mode = FileKind::CharDevice.mode_bits();
    assert_eq!(found(&device, 3, DISK, &|_| unreachable!()).unwrap(), (None, 0));
}

#[test]
fn extents_that_cannot_be_stored_are_refused() {
    let good = Extent { logical: 10, start: 100, len: 32_768, unwritten: false };
    let bad: [&[Extent]; 7] = [
        &[Extent { len: 0, ..good }],
        &[Extent { len: 32_769, ..good }],
        &[Extent { unwritten: true, ..good }],
        &[Extent { start: 1 << 48, ..good }],
        &[Extent { logical: u32::MAX - 32_767, ..good }],
        &[good, good],
        &[good, Extent { logical: 0, len: 1, ..good }],
    ];
    for bad in bad {
        assert_eq!(build(bad, &mut || Ok(1)).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
    build(&[Extent { logical: u32::MAX - 32_768, ..good }], &mut || Ok(1)).unwrap();
    for number in [0, 1 << 48] {
        assert_eq!(build(&scattered(5), &mut || Ok(number)).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn damaged_trees_are_refused() {
    let (built, _) = built(&scattered(2000));
    let blocks: BTreeMap<_, _> = built.blocks.iter().cloned().collect();
    let mut root = built.i_block;
    // Every bit of the root's header and record that has a meaning.
    for at in (0..8).chain(12..22) {
        for bit in 0..8 {
            root[at] ^= 1 << bit;
            let read = of_tree(&root, DISK, &mut |number| {
                blocks.get(&number).cloned().ok_or_else(|| Error::corrupt("no such block"))
            });
            assert!(read.is_err(), "{at} {bit}");
            root[at] ^= 1 << bit;
        }
    }
    // A node that is its own child.
    let error =
        of_tree(&built.i_block, DISK, &mut |_| Ok(blocks.values().last().unwrap().clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn extents_outside_the_disk_are_refused() {
    let read = |start, end| {
        let tree = build(&[Extent { logical: 0, start, len: 10, unwritten: false }], &mut || Ok(1)).unwrap();
        of_tree(&tree.i_block, end, &mut |_| unreachable!())
    };
    read(90, 100).unwrap();
    for (start, end) in [(91, 100), (0, 100), ((1 << 48) - 1, 1 << 47)] {
        assert_eq!(read(start, end).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let tree = build(&scattered(5), &mut || Ok(DISK)).unwrap();
    assert!(of_tree(&tree.i_block, DISK, &mut |_| unreachable!()).is_err());
}

/// The blocks of an inode as `blocks` of debugfs prints them: those of content, in order, without those of trees.
fn content(open: &OpenImage, number: u32) -> (Vec<u64>, Vec<u64>) {
    let map = open.extents(&open.inode(number));
    let blocks =
        map.extents.iter().flat_map(|extent| extent.start..extent.start + u64::from(extent.len)).collect();
    (blocks, map.tree_blocks)
}

#[test]
fn lists_of_blocks_are_read_as_extents() {
    let Some(programs) = skip_without("lists_of_blocks_are_read", &["mke2fs", "debugfs"]) else { return };
    let commands = [
        "write 9 a",
        "write 3 b",
        "symlink l a-target-that-is-longer-than-fifty-nine-bytes-and-so-needs-a-block",
        "mkdir d",
    ];
    let options = ["-O", "^metadata_csum,^has_journal,^extent,^64bit"];
    let image = Image::make(&programs[0], "32M", &options, &commands);
    let mut bytes = image.bytes();
    // Files keep their lists when the feature comes later.
    bytes[1024 + 96] |= 0x40;
    let open = OpenImage::open(bytes);
    let (mut lists, mut sizes) = (0, Vec::new());
    for number in open.used().into_iter().filter(|&number| number != 1 && number != 7) {
        let inode = open.inode(number);
        assert_eq!(inode.flags & USES_EXTENTS, 0);
        let (mut blocks, tree) = content(&open, number);
        assert_eq!(inode.blocks, 8 * (blocks.len() + tree.len()) as u64);
        sizes.push(blocks.len());
        lists += tree.len();
        if inode.kind().unwrap() == FileKind::Regular {
            assert!(blocks.len() as u64 == inode.size.div_ceil(4096));
            for (at, &block) in blocks.iter().enumerate() {
                let expected = (at * 4096..(at + 1) * 4096).map(|at| (at % 251).to_le_bytes()[0] | 1);
                let whole = open.block(block).iter().copied().zip(expected).take(to_end(inode.size, at));
                assert!(whole.into_iter().all(|(byte, expected)| byte == expected), "{number} {at}");
            }
        }
        let shown = image.shows(&format!("blocks <{number}>"), &programs[1]);
        let mut shown: Vec<u64> = shown.split_whitespace().map(|word| word.parse().unwrap()).collect();
        blocks.extend(tree);
        blocks.sort_unstable();
        shown.sort_unstable();
        assert_eq!(blocks, shown);
    }
    sizes.sort_unstable();
    assert_eq!((lists, sizes), (2, vec![1, 1, 1, 4, 74, 220]));
}

fn to_end(size: u64, block: usize) -> usize {
    headstart_block::to_usize(size).saturating_sub(block * 4096).min(4096)
}

#[test]
fn deep_lists_are_read_and_endless_ones_are_refused() {
    let mut places = [0; PLACES];
    put_u32(&mut places, 56, 1000);
    // Three levels with one number each, the last of its list.
    let mut blocks: BTreeMap<u64, Box<Block>> = BTreeMap::new();
    for block in 1000..1003 {
        let mut list = Box::new([0; BLOCK_SIZE]);
        put_u32(&mut *list, BLOCK_SIZE - 4, block + 1);
        blocks.insert(u64::from(block), list);
    }
    let map = of_lists(&places, 2000, &mut |number| Ok(blocks[&number].clone())).unwrap();
    let last = 12 + 1024 + (1 << 20) + (1 << 30) - 1;
    assert_eq!(map.extents, [Extent { logical: last, start: 1003, len: 1, unwritten: false }]);
    assert_eq!(map.tree_blocks, [1000, 1001, 1002]);
    let inode = inode_of(places, 0);
    for (logical, place) in [(last, Some(1003)), (last - 1, None), (0, None), (12, None), (u32::MAX, None)] {
        let reads = if logical < last - 1 || logical > last { 0 } else { 3 };
        assert_eq!(
            found(&inode, logical, 2000, &|at| blocks[&at].clone()).unwrap(),
            (place, reads),
            "{logical}"
        );
    }
    assert!(found(&inode, last, 1003, &|at| blocks[&at].clone()).is_err());
    assert!(of_lists(&places, 1003, &mut |number| Ok(blocks[&number].clone())).is_err());
    for list in blocks.values_mut() {
        list.chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&1001_u32.to_le_bytes()));
    }
    let error = of_lists(&places, 2000, &mut |number| Ok(blocks[&number].clone())).unwrap_err();
    assert!(error.to_string().contains("block 1001 is in the lists of a file's blocks twice"), "{error}");
}

#[test]
fn long_runs_in_lists_become_several_extents() {
    let mut places = [0; PLACES];
    put_u32(&mut places, 52, 1);
    let list = |from: u32| {
        let mut list = Box::new([0; BLOCK_SIZE]);
        list.chunks_exact_mut(4)
            .zip(from..)
            .for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        list
    };
    let read = |number| {
        if number == 1 { list(2) } else { list(u32::try_from(number - 2).unwrap() * 1024 + 5000) }
    };
    let map = of_lists(&places, 1 << 32, &mut |number| Ok(read(number))).unwrap();
    assert_eq!(map.extents.len(), 32);
    assert!(map.extents.iter().all(|extent| extent.len == MAX_EXTENT));
    let there = found(&inode_of(places, 0), 12 + 1024 + 77_777, 1 << 32, &read).unwrap();
    assert_eq!(there, (Some(5000 + 77_777), 2));
}

#[test]
fn trees_of_debugfs_come_back_and_e2fsck_takes_ours() {
    let Some(programs) = skip_without("trees_of_debugfs_come_back", &["mke2fs", "debugfs", "e2fsck"]) else {
        return;
    };
    let commands = [
        "write 9 a",
        "write 3000 n0",
        "write 3000 n1",
        "write 3000 n2",
        "mkdir d",
        "write 1 f",
        "fallocate f 30 40",
    ];
    let image = Image::make(&programs[0], "64M", &["-O", "^metadata_csum,^has_journal"], &commands);
    let mut open = OpenImage::open(image.bytes());
    for number in open.used().into_iter().filter(|&number| number > 10) {
        let inode = open.inode(number);
        let map = open.extents(&inode);
        let mut tree = map.tree_blocks.clone().into_iter();
        let again = build(&map.extents, &mut || Ok(tree.next().unwrap())).unwrap();
        assert!(again.i_block == inode.block && map.tree_blocks.is_empty(), "{number}");
        let shown = image.shows(&format!("blocks <{number}>"), &programs[1]);
        assert_eq!(content(&open, number).0.len(), shown.split_whitespace().count());
    }
    // The blocks of the file `a` one by one, in nodes that were other files' content.
    let first = 12;
    let (blocks, _) = content(&open, first);
    let extents: Vec<_> = (0..)
        .zip(&blocks)
        .map(|(logical, &start)| Extent { logical, start, len: 1, unwritten: false })
        .collect();
    let mut free: Vec<_> = [13, 14, 15].into_iter().flat_map(|number| open.take_blocks(number)).collect();
    let built = build(&extents, &mut || Ok(free.remove(0))).unwrap();
    assert_eq!(built.blocks.len(), 1);
    let mut inode = open.inode(first);
    inode.block = built.i_block;
    inode.blocks += 8;
    open.put_inode(first, &inode);
    for (number, block) in built.blocks {
        open.put_block(number, &block);
    }
    // The other two blocks go back, so that the count of free ones is right.
    for (number, block) in [14, 15].into_iter().zip(free) {
        let mut inode = open.inode(number);
        (inode.size, inode.blocks) = (4096, 8);
        let extent = Extent { logical: 0, start: block, len: 1, unwritten: false };
        inode.block = build(&[extent], &mut || unreachable!()).unwrap().i_block;
        open.put_inode(number, &inode);
    }
    image.check(&programs[2], &open.bytes);
    let content_before: Vec<u8> = blocks.iter().flat_map(|&block| *open.block(block)).take(900_000).collect();
    assert!(image.output(&format!("cat <{first}>"), &programs[1]) == content_before);
    assert_eq!(content(&open, first).0, blocks);
}

fn any_extents() -> impl Strategy<Value = Vec<Extent>> {
    let one = (0_u32..2000, 1_u64..DISK / 2, 1_u16..MAX_EXTENT, any::<bool>());
    proptest::collection::vec(one, 0..2000).prop_map(|parts| {
        let mut logical = 0;
        parts
            .into_iter()
            .map(|(hole, start, len, unwritten)| {
                let extent = Extent { logical: logical + hole, start, len, unwritten };
                logical = extent.logical + u32::from(len);
                extent
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_extents_come_back(extents in any_extents()) {
        let (built, map) = built(&extents);
        prop_assert!(map.extents == extents);
        let blocks: BTreeMap<_, _> = built.blocks.into_iter().collect();
        let inode = inode_of(built.i_block, USES_EXTENTS);
        for extent in &extents {
            let last = u32::try_from(extent.end() - 1).unwrap();
            for logical in [extent.logical.saturating_sub(1), extent.logical, last] {
                let (place, reads) = found(&inode, logical, DISK, &|at| blocks[&at].clone()).unwrap();
                prop_assert_eq!(place, by_map(&map, logical));
                prop_assert!(reads <= usize::from(u16_at(&inode.block, 6)));
            }
        }
    }
}

proptest! {
    #[test]
    fn hostile_trees_do_no_harm(
        root in proptest::collection::vec(any::<u8>(), PLACES),
        depth in 0_u8..7,
        child in proptest::collection::vec(any::<u8>(), 96),
        end in 1_u64..1 << 33,
        logicals in proptest::collection::vec(any::<u32>(), 8),
    ) {
        let mut root: [u8; PLACES] = *root.first_chunk().unwrap();
        let mut node = Box::new([0; BLOCK_SIZE]);
        node[..96].copy_from_slice(&child);
        for (bytes, depth) in [(&mut root[..], depth), (&mut node[..], depth.saturating_sub(1))] {
            bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
            (bytes[2], bytes[3], bytes[4], bytes[5]) = (bytes[2] % 5, 0, 4, 0);
            (bytes[6], bytes[7]) = (depth, 0);
        }
        let mut reads = 0;
        let read = of_tree(&root, end, &mut |_| {
            reads += 1;
            Ok(node.clone())
        });
        prop_assert!(reads <= 5);
        for logical in logicals {
            let place = found(&inode_of(root, USES_EXTENTS), logical, end, &|_| node.clone());
            prop_assert!(place.is_err() || place.is_ok_and(|(place, _)| place.is_none_or(|place| place < end)));
        }
        if let Ok(map) = read {
            prop_assert!(map.extents.iter().all(|extent| extent.start + u64::from(extent.len) <= end));
            prop_assert!(map.extents.windows(2).all(|pair| pair[0].end() <= u64::from(pair[1].logical)));
        }
    }

    #[test]
    fn hostile_lists_do_no_harm(
        places in proptest::collection::vec(0_u8..3, PLACES),
        list in proptest::collection::vec(0_u8..3, 64),
        logical in 0_u32..1 << 21,
    ) {
        let mut reads = 0;
        let mut node = Box::new([0; BLOCK_SIZE]);
        node[..64].copy_from_slice(&list);
        let places = *places.first_chunk().unwrap();
        let map = of_lists(&places, 1 << 32, &mut |_| {
            reads += 1;
            Ok(node.clone())
        });
        prop_assert!(reads <= 3 + 16 + 1);
        let (place, _) = found(&inode_of(places, 0), logical, 1 << 32, &|_| node.clone()).unwrap();
        if let Ok(map) = map {
            prop_assert_eq!(place, by_map(&map, logical));
        }
    }
}
