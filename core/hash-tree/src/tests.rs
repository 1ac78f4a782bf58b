//! The tree against another implementation (`bao-tree`), and against hostile outboards.
//!
//! Method: the outboard of every interesting size must equal byte for byte that of `bao-tree`, with regions of the real
//! size and with tiny ones (so that all shapes of the upper tree occur in little data); verification must accept it,
//! and must refuse any flipped bit in it or in the blob, naming the group.

use super::*;
use bao_tree::BlockSize;
use bao_tree::io::outboard::PreOrderMemOutboard;
use headstart_block::{ByteRange, ErrorKind, ReadAt};
use proptest::prelude::*;

fn blob(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn build(bytes: &[u8], region_groups: usize, piece: usize) -> (TreeRoot, Vec<u8>) {
    let mut builder = TreeBuilder::with_regions(&std::env::temp_dir(), region_groups);
    for piece in bytes.chunks(piece.max(1)) {
        builder.update(piece).unwrap();
    }
    let mut outboard = Vec::new();
    let root = builder.finish(&mut outboard).unwrap();
    (root, outboard)
}

fn check_against_bao_tree(bytes: &[u8], region_groups: usize, piece: usize) {
    let (root, outboard) = build(bytes, region_groups, piece);
    let theirs = PreOrderMemOutboard::create(bytes, BlockSize::from_chunk_log(4));
    assert_eq!(root.0, theirs.root, "{} bytes", bytes.len());
    assert!(outboard == theirs.into_inner_with_prefix(), "{} bytes", bytes.len());
    assert_eq!(outboard.len() as u64, outboard_len(bytes.len() as u64));
    verify_all(&HashTree::open(root, outboard, bytes.len() as u64).unwrap(), bytes.len(), bytes).unwrap();
}

/// Checks every byte of a blob of `len` bytes.
fn verify_all(tree: &HashTree<impl ReadAt>, len: usize, blob: &(impl ReadAt + ?Sized)) -> Result<()> {
    tree.verify(blob, ByteRange::between(0, len as u64))
}

#[test]
fn small_blobs_are_as_bao_tree_has_them() {
    for groups in 0..9 {
        for delta in [-1, 0, 1, 1023, 1024, 1025, 5000] {
            let Some(len) = (groups * 16384usize).checked_add_signed(delta) else { continue };
            check_against_bao_tree(&blob(len), 1024, 10_000);
        }
    }
}

#[test]
fn blobs_of_several_regions_are_as_bao_tree_has_them() {
    const REGION: usize = 1024 * 16384;
    for len in [REGION - 1, REGION, REGION + 1, 2 * REGION, 2 * REGION + 16385, 5 * REGION + 777] {
        check_against_bao_tree(&blob(len), 1024, 1 << 20);
    }
}

#[test]
fn every_number_of_tiny_regions_is_as_bao_tree_has_it() {
    let bytes = blob(70 * 16384);
    for groups in 1..70 {
        check_against_bao_tree(&bytes[..groups * 16384 - 16000], 2, 100_000);
        check_against_bao_tree(&bytes[..groups * 16384], 4, 16384);
    }
}

/// A file-like source: nothing in memory, no more read than it has.
struct NotInMemory(Vec<u8>);

impl ReadAt for NotInMemory {
    fn len(&self) -> u64 {
        ReadAt::len(&self.0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }
}

/// An outboard that has only some of its pages.
struct SomePages {
    bytes: Vec<u8>,
    there: Vec<ByteRange>,
}

impl ReadAt for SomePages {
    fn len(&self) -> u64 {
        ReadAt::len(&self.bytes)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let wanted = ByteRange::new(offset, buf.len() as u64).unwrap();
        for page in wanted.parts(TREE_PAGE) {
            if !self.there.iter().any(|run| run.intersect(page) == page) {
                return Err(Error::new(ErrorKind::Absent, format!("page {page}")));
            }
        }
        self.bytes.read_at(buf, offset)
    }
}

/// The pages that checking `range` needs, as runs and one by one.
fn pages_of(blob_len: u64, range: ByteRange) -> (Vec<ByteRange>, Vec<ByteRange>) {
    let mut runs = Vec::new();
    pages(blob_len, range, &mut |run| runs.push(run));
    let single = runs.iter().flat_map(|run| run.parts(TREE_PAGE)).collect();
    (runs, single)
}

#[test]
fn a_whole_blob_needs_its_whole_tree_and_a_group_few_pages() {
    let len = (1 << 30) + 5;
    assert_eq!(
        pages_of(len, ByteRange::between(0, len)).0,
        [ByteRange::between(0, outboard_len(len))],
        "the whole"
    );
    let one = pages_of(len, ByteRange::between(len / 2 - 1, len / 2)).1;
    assert!(one.len() <= 12, "{one:?}");
    assert_eq!(pages_of(100, ByteRange::between(0, 100)).0, [ByteRange::between(0, 8)]);
    assert_eq!(pages_of(0, ByteRange::between(0, 0)).0, [ByteRange::between(0, 8)]);
}

#[test]
fn a_part_in_memory_is_checked_where_it_belongs() {
    let bytes = blob(20 * 16384 + 77);
    let (root, outboard) = build(&bytes, 4, 1 << 20);
    let tree = HashTree::open(root, outboard, ReadAt::len(&bytes)).unwrap();
    tree.verify_part(&bytes[16384 * 3..16384 * 7], 16384 * 3).unwrap();
    tree.verify_part(&bytes[16384 * 19..], 16384 * 19).unwrap();
    tree.verify_part(&bytes[16384 * 20..], 16384 * 20).unwrap();
    tree.verify_part(&bytes, 0).unwrap();
    let elsewhere = tree.verify_part(&bytes[16384 * 3..16384 * 7], 16384 * 4).unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::Corrupt);
    for (from, to) in [(1, 16384), (0, 16383), (16384 * 19, 16384 * 20 + 76)] {
        let error = tree.verify_part(&bytes[from..to], from as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{from} {to}");
    }
    tree.verify_part(&[0; 16384], u64::MAX - 3).unwrap_err();
}

#[test]
fn a_wrong_group_is_named_and_others_are_still_right() {
    let mut bytes = blob(100 * 16384 + 5);
    let (root, outboard) = build(&bytes, 1024, 1 << 20);
    let tree = HashTree::open(root, NotInMemory(outboard), ReadAt::len(&bytes)).unwrap();
    bytes[37 * 16384 + 9] ^= 1;
    let bytes = NotInMemory(bytes);
    let error = tree.verify(&bytes, ByteRange::between(0, bytes.len())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("the 16384 bytes at 606208 do not match"), "{error}");
    tree.verify(&bytes, ByteRange::between(0, 37 * 16384)).unwrap();
    tree.verify(&bytes, ByteRange::between(38 * 16384, bytes.len())).unwrap();
    tree.verify(&bytes, ByteRange::between(38 * 16384 - 1, 38 * 16384)).unwrap_err();
    tree.verify(&bytes, ByteRange::between(5, 5)).unwrap();
    let past = tree.verify(&bytes, ByteRange::between(0, bytes.len() + 1)).unwrap_err();
    assert_eq!(past.kind(), ErrorKind::Invalid);
}

#[test]
fn an_empty_blob_has_a_root_too() {
    let (root, outboard) = build(&[], 1024, 1);
    assert_eq!((root, outboard.as_slice()), (TreeRoot::of(&[]), [0; 8].as_slice()));
    verify_all(&HashTree::open(root, outboard.clone(), 0).unwrap(), 0, [].as_slice()).unwrap();
    let other = HashTree::open(TreeRoot::of(b"x"), outboard, 0).unwrap();
    assert_eq!(verify_all(&other, 0, [].as_slice()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn outboards_of_another_length_are_refused() {
    let bytes = blob(50_000);
    let (root, outboard) = build(&bytes, 1024, 1 << 20);
    for len in 0..outboard.len() {
        HashTree::open(root, &outboard[..len], 50_000).err().expect("truncated");
    }
    for blob_len in [0, 49_999, 50_001, 1 << 40, u64::MAX] {
        HashTree::open(root, outboard.as_slice(), blob_len).err().expect("another blob");
    }
    let tree = HashTree::open(root, outboard.as_slice(), 50_000).unwrap();
    assert_eq!(verify_all(&tree, 50_000, &bytes[1..]).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn any_flipped_bit_of_the_outboard_is_refused() {
    let bytes = blob(9 * 16384 + 100);
    let (root, outboard) = build(&bytes, 1024, 1 << 20);
    for at in 0..outboard.len() {
        let mut flipped = outboard.clone();
        flipped[at] ^= 1 << (at % 8);
        let tree = HashTree::open(root, flipped, ReadAt::len(&bytes));
        let result = tree.and_then(|tree| verify_all(&tree, bytes.len(), &bytes));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_size_in_any_pieces_has_the_tree_of_bao(len in 0usize..600_000, piece in 1usize..40_000, log in 1u32..5) {
        check_against_bao_tree(&blob(len), 1 << log, piece);
    }

    #[test]
    fn a_flip_fails_exactly_the_ranges_whose_groups_hold_it(
        len in 1usize..300_000, at: prop::sample::Index, from: prop::sample::Index, to: prop::sample::Index,
    ) {
        let mut bytes = blob(len);
        let (root, outboard) = build(&bytes, 4, 1 << 20);
        let at = at.index(len);
        bytes[at] ^= 0x10;
        let tree = HashTree::open(root, outboard, len as u64).unwrap();
        let range = ByteRange::between(from.index(len + 1) as u64, to.index(len + 1) as u64);
        let group = at as u64 / GROUP_SIZE;
        let touched = !range.is_empty() && range.offset() / GROUP_SIZE <= group && group * GROUP_SIZE < range.end();
        prop_assert_eq!(tree.verify(&bytes, range).is_err(), touched);
    }

    #[test]
    fn exactly_the_pages_named_suffice(
        len in 1usize..6_000_000,
        from in any::<prop::sample::Index>(),
        span in prop_oneof![1usize..40_000, 1usize..6_000_000],
    ) {
        let bytes = blob(len);
        let (root, outboard) = build(&bytes, 16, 1 << 20);
        let from = from.index(len);
        let range = ByteRange::between(from as u64, (from + span).min(len) as u64);
        let (runs, single) = pages_of(len as u64, range);
        for pair in runs.windows(2) {
            prop_assert!(pair[0].end() < pair[1].offset());
        }
        let verify = |there: Vec<ByteRange>| {
            let some = SomePages { bytes: outboard.clone(), there };
            let tree = HashTree::open(root, some, len as u64)?;
            tree.verify_nodes(range)?;
            tree.verify(&bytes, range)
        };
        prop_assert!(verify(single.clone()).is_ok());
        for left_out in 0..single.len() {
            let mut fewer = single.clone();
            fewer.remove(left_out);
            prop_assert_eq!(verify(fewer).unwrap_err().kind(), ErrorKind::Absent);
        }
    }
}

/// An outboard of which only some bytes are there.
struct Parts {
    bytes: Vec<u8>,
    there: Vec<ByteRange>,
}

impl ReadAt for Parts {
    fn len(&self) -> u64 {
        ReadAt::len(&self.bytes)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + buf.len() as u64;
        if !self.there.iter().any(|part| part.offset() <= offset && end <= part.end()) {
            return Err(Error::absent(ByteRange::between(offset, end)));
        }
        self.bytes.read_at(buf, offset)
    }
}

#[test]
fn parts_of_an_outboard_are_checked_as_far_as_they_can_be() {
    let bytes = blob(1000 * 16384 + 77);
    let (root, outboard) = build(&bytes, 1024, 1 << 20);
    let (len, all) = (bytes.len() as u64, outboard.len() as u64);
    let check =
        |outboard: Parts, part: ByteRange| HashTree::open(root, outboard, len).unwrap().check_outboard(part);
    let part = ByteRange::between(8192, 12288);
    let whole = Parts { bytes: outboard.clone(), there: vec![ByteRange::between(0, all)] };
    assert_eq!(check(whole, part).unwrap(), OutboardCheck { wrong: None, is_complete: true });
    // Without the nodes above it, it may be right.
    let alone = Parts { bytes: outboard.clone(), there: vec![ByteRange::between(0, 8), part] };
    assert_eq!(check(alone, part).unwrap(), OutboardCheck { wrong: None, is_complete: false });
    for at in (8192..12288).step_by(61) {
        let mut wrong = outboard.clone();
        wrong[at] ^= 1;
        let node = ((at - 8) / 64 * 64 + 8) as u64;
        let node = ByteRange::between(node, node + 64);
        let found =
            check(Parts { bytes: wrong, there: vec![ByteRange::between(0, all)] }, part).unwrap().wrong;
        // A node that is in the part with one end only is checked if something below it is.
        let is_within = part.offset() <= node.offset() && node.end() <= part.end();
        assert!(found == Some(node) || !is_within && found.is_none(), "{at}: {found:?}");
    }
    // The nodes above are blamed if they are wrong.
    let mut wrong = outboard;
    wrong[20] ^= 1;
    let found = check(Parts { bytes: wrong, there: vec![ByteRange::between(0, all)] }, part).unwrap().wrong;
    assert_eq!(found, Some(ByteRange::between(8, 72)));
}
