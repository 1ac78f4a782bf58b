//! Random stacks of layers on ext4, beside the same in memory.

use super::support::{BlockMap, check, e2fsck, finished, layer_on, rows};
use crate::apply::ApplyLimits;
use crate::apply::tests::naive::{DEPTH, NaiveTree};
use crate::apply::tests::properties::{accepted, item};
use crate::apply::tests::support::{Item, apply, apply_within, dir, file, symlink};
use crate::model_tree::ModelTree;
use headstart_block::{ByteRange, ErrorKind, ReadAt};
use headstart_tar::TarKind;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The size of the disks: 16 MiB.
const SIZE: u64 = 16 << 20;

/// An entry whose content, if it has any, takes up to three blocks.
fn large_item() -> impl Strategy<Value = Item> {
    (item(), prop_oneof![Just(1), Just(4096), 1..5000_usize]).prop_map(|(mut item, times)| {
        item.stored = item.stored.repeat(times);
        item.entry.size = item.stored.len() as u64;
        item.entry.stored_size = item.entry.size;
        item
    })
}

fn checker() -> Option<&'static PathBuf> {
    static E2FSCK: OnceLock<Option<PathBuf>> = OnceLock::new();
    E2FSCK.get_or_init(|| e2fsck("the check of random layers on ext4")).as_ref()
}

/// Applies a layer to a disk; returns the layer and the disk with it.
fn apply_to(disk: Option<&Arc<BlockMap>>, items: &[Item]) -> (BlockMap, Arc<BlockMap>) {
    let mut tree = layer_on(disk, SIZE);
    let limits = ApplyLimits { depth: DEPTH, ..ApplyLimits::default() };
    apply_within(&mut tree, items, limits).unwrap();
    let layer = finished(tree);
    let merged = disk.map_or_else(|| layer.clone(), |disk| disk.with(&layer));
    (layer, Arc::new(merged))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn stacks_of_layers_give_the_trees_in_memory(
        layers in prop::collection::vec(prop::collection::vec(large_item(), 0..14), 1..4),
    ) {
        let (mut tree, mut naive) = (ModelTree::new(), NaiveTree::new());
        let mut disk: Option<Arc<BlockMap>> = None;
        for layer in &layers {
            naive.next_layer();
            let (taken, _) = accepted(&mut naive, layer);
            let limits = ApplyLimits { depth: DEPTH, ..ApplyLimits::default() };
            apply_within(&mut tree, &taken, limits).unwrap();
            let (blocks, merged) = apply_to(disk.as_ref(), &taken);
            prop_assert_eq!(rows(&(Arc::clone(&merged) as Arc<dyn ReadAt>)), tree.rows());
            // The parent as a file, read again, gives the same blocks.
            if let Some(parent) = &disk {
                let again = BlockMap { size: parent.size, blocks: parent.blocks.clone() };
                prop_assert!(apply_to(Some(&Arc::new(again)), &taken).0 == blocks);
            }
            disk = Some(merged);
        }
        if let (Some(e2fsck), Some(disk)) = (checker(), disk) {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().join("disk");
            disk.store(&path);
            check(e2fsck, &path);
        }
    }
}

#[test]
fn a_file_that_comes_again_keeps_its_blocks() {
    let content = vec![b'c'; 3 << 20];
    let (_, disk) = apply_to(None, &[dir("d"), file("d/f", &content), file("d/g", &content)]);
    let (kept, _) = apply_to(Some(&disk), &[file("d/f", &content).mode(0o600), file("d/g", &content)]);
    assert!(kept.blocks.len() <= 4, "{} blocks", kept.blocks.len());
    let mut changed = content;
    changed[2 << 20] = b'x';
    let (written, disk) = apply_to(Some(&disk), &[file("d/f", &changed)]);
    assert!(written.blocks.len() >= 768);
    assert!(rows(&(disk as Arc<dyn ReadAt>))[b"d/f".as_slice()].bytes == changed);
}

#[test]
fn holes_devices_and_attributes_reach_the_disk() {
    let mut device = Item::new(TarKind::CharDevice, "null").mode(0o666);
    device.entry.device = (4095, 1_048_575);
    let holes = [ByteRange::between(10_000, 10_004), ByteRange::between(1 << 20, (1 << 20) + 3)];
    let layer = [
        dir("d").mode(0o3777).owner(4_000_000_000, 70_000).time(8_589_934_597).xattr("user.a", "1"),
        file("d/holes", "abcdefg").sparse(2 << 20, &holes),
        symlink("x".repeat(300), "long"),
        symlink("x", "short").owner(1, 2),
        device,
        file("empty", "").xattr("security.x", ""),
    ];
    let mut model = ModelTree::new();
    apply(&mut model, &layer).unwrap();
    let (blocks, disk) = apply_to(None, &layer);
    assert_eq!(rows(&(disk as Arc<dyn ReadAt>)), model.rows());
    assert!(blocks.blocks.len() < 40, "{} blocks", blocks.blocks.len());
}

#[test]
fn errors_name_the_entry() {
    let large = |bytes: usize| file("d/large", vec![1; bytes]);
    let value = "v".repeat(5000);
    let cases = [
        (vec![large(20 << 20)], ErrorKind::Invalid, "d/large"),
        (vec![file("d/f", "").xattr("user.value", &value)], ErrorKind::Unsupported, "d/f"),
        (vec![dir("d/e").xattr("user.value", &value)], ErrorKind::Unsupported, "d/e"),
    ];
    for (items, kind, name) in cases {
        let error = apply(&mut layer_on(None, SIZE), &items).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == kind && text.starts_with(&format!("tar entry \"{name}\": ")), "{text}");
    }
}

#[test]
fn a_content_that_ends_early_is_an_error() {
    let mut cut = file("f", "abc");
    cut.entry.size = 10_000;
    assert_eq!(apply(&mut layer_on(None, SIZE), &[cut]).unwrap_err().kind(), ErrorKind::Corrupt);
}
