//! Random stacks of layers on file systems, beside the same in memory.

use super::KINDS;
use super::support::{BlockMap, DiskTree, check, checker, rows};
use crate::apply::ApplyLimits;
use crate::apply::tests::naive::{DEPTH, NaiveTree};
use crate::apply::tests::properties::{accepted, item};
use crate::apply::tests::support::{Item, apply, apply_within, dir, file, link, symlink};
use crate::erofs_tree::ErofsTree;
use crate::ext4_tree::Ext4Tree;
use crate::model_tree::ModelTree;
use headstart_block::{ByteRange, Error, ErrorKind, FileSystemKind, ReadAt};
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

fn cached_checker(kind: FileSystemKind) -> Option<&'static PathBuf> {
    static PROGRAMS: [OnceLock<Option<PathBuf>>; 2] = [const { OnceLock::new() }; 2];
    let place = &PROGRAMS[usize::from(kind == FileSystemKind::Erofs)];
    place.get_or_init(|| checker(kind, "the check of random layers")).as_ref()
}

/// Applies a layer to a disk; returns the layer and the disk with it.
fn apply_to(kind: FileSystemKind, disk: Option<&Arc<BlockMap>>, items: &[Item]) -> (BlockMap, Arc<BlockMap>) {
    fn layer<T: DiskTree>(disk: Option<&Arc<BlockMap>>, items: &[Item]) -> BlockMap {
        let mut tree = T::layer_on(disk.map(|disk| Arc::clone(disk) as Arc<dyn ReadAt>), SIZE);
        let limits = ApplyLimits { depth: DEPTH, ..ApplyLimits::default() };
        apply_within(&mut tree, items, limits).unwrap();
        tree.finished()
    }
    let layer = match kind {
        FileSystemKind::Ext4 => layer::<Ext4Tree<BlockMap>>(disk, items),
        FileSystemKind::Erofs => layer::<ErofsTree<BlockMap>>(disk, items),
    };
    let merged = disk.map_or_else(|| layer.clone(), |disk| disk.with(&layer));
    (layer, Arc::new(merged))
}

/// The error of a first layer.
fn error_of(kind: FileSystemKind, items: &[Item]) -> Error {
    match kind {
        FileSystemKind::Ext4 => apply(&mut Ext4Tree::<BlockMap>::layer_on(None, SIZE), items).unwrap_err(),
        FileSystemKind::Erofs => apply(&mut ErofsTree::<BlockMap>::layer_on(None, SIZE), items).unwrap_err(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn stacks_of_layers_give_the_trees_in_memory(
        layers in prop::collection::vec(prop::collection::vec(large_item(), 0..14), 1..4),
    ) {
        let (mut tree, mut naive) = (ModelTree::new(), NaiveTree::new());
        let mut disks: [Option<Arc<BlockMap>>; 2] = [None, None];
        for layer in &layers {
            naive.next_layer();
            let (taken, _) = accepted(&mut naive, layer);
            let limits = ApplyLimits { depth: DEPTH, ..ApplyLimits::default() };
            apply_within(&mut tree, &taken, limits).unwrap();
            for (kind, disk) in KINDS.into_iter().zip(&mut disks) {
                let (blocks, merged) = apply_to(kind, disk.as_ref(), &taken);
                prop_assert_eq!(rows(&(Arc::clone(&merged) as Arc<dyn ReadAt>)), tree.rows());
                // The parent as a file, read again, gives the same blocks.
                if let Some(parent) = &disk {
                    let again = BlockMap { size: parent.size, blocks: parent.blocks.clone() };
                    prop_assert!(apply_to(kind, Some(&Arc::new(again)), &taken).0 == blocks);
                }
                *disk = Some(merged);
            }
        }
        for (kind, disk) in KINDS.into_iter().zip(disks) {
            if let (Some(program), Some(disk)) = (cached_checker(kind), disk) {
                let scratch = tempfile::tempdir().unwrap();
                let path = scratch.path().join("disk");
                disk.store(&path);
                check(program, &path);
            }
        }
    }
}

#[test]
fn a_file_that_comes_again_keeps_its_blocks() {
    for kind in KINDS {
        let content = vec![b'c'; 3 << 20];
        let (_, disk) = apply_to(kind, None, &[dir("d"), file("d/f", &content), file("d/g", &content)]);
        let (kept, _) =
            apply_to(kind, Some(&disk), &[file("d/f", &content).mode(0o600), file("d/g", &content)]);
        assert!(kept.blocks.len() <= 4, "{} blocks", kept.blocks.len());
        let mut changed = content;
        changed[2 << 20] = b'x';
        let (written, disk) = apply_to(kind, Some(&disk), &[file("d/f", &changed)]);
        assert!(written.blocks.len() >= 768);
        assert!(rows(&(disk as Arc<dyn ReadAt>))[b"d/f".as_slice()].bytes == changed);
    }
}

/// Applies layers to disks of all kinds, and compares each state with the tree in memory.
fn check_layers(layers: &[Vec<Item>]) {
    for kind in KINDS {
        let (mut model, mut disk) = (ModelTree::new(), None);
        for layer in layers {
            apply(&mut model, layer).unwrap();
            let (_, merged) = apply_to(kind, disk.as_ref(), layer);
            assert!(rows(&(Arc::clone(&merged) as Arc<dyn ReadAt>)) == model.rows(), "{kind:?}");
            if let Some(program) = cached_checker(kind) {
                let scratch = tempfile::tempdir().unwrap();
                let path = scratch.path().join("disk");
                merged.store(&path);
                check(program, &path);
            }
            disk = Some(merged);
        }
    }
}

#[test]
fn attributes_that_grow_leave_all_names_and_directories_right() {
    let value = "v".repeat(900);
    let base = vec![
        dir("a"),
        dir("a/b"),
        dir("a/b/c"),
        file("a/f", "content"),
        link("a/f", "a/b/g"),
        link("a/f", "h"),
        symlink("../f", "a/b/l"),
        file("a/b/c/x", "x"),
    ];
    let grown = vec![
        dir("a").xattr("user.a", &value),
        dir("a/b").xattr("user.b", &value),
        link("a/f", "a/b/c/i").xattr("user.f", &value),
        symlink("../f", "a/b/l").xattr("trusted.l", &value),
        file("a/b/c/x", "x").xattr("user.x", &value),
    ];
    let shrunk = vec![dir("a/b"), file("a/f", "new"), file("a/b/c/.wh.x", "")];
    check_layers(&[base, grown, shrunk, vec![file("a/.wh.b", "")]]);
}

#[test]
fn large_directories_take_names_in_any_order() {
    let name = |number: usize| format!("d/{:0>5}-{}", number * 7919 % 10_007, "n".repeat(number % 60));
    let files = |range: std::ops::Range<usize>| range.map(|n| file(name(n), ""));
    let base = std::iter::once(dir("d")).chain(files(0..600)).collect();
    let few = files(600..603).chain([file("d/zzz", ""), file("d/!", ""), file("d/-", "")]).collect();
    let many = files(603..850).collect();
    let gone = (0..800).step_by(2).map(|n| file(name(n).replace("d/", "d/.wh."), "")).collect();
    let emptied = vec![file("d/.wh..wh..opq", ""), file("d/one", "")];
    check_layers(&[base, few, many, gone, emptied]);
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
    for kind in KINDS {
        let (blocks, disk) = apply_to(kind, None, &layer);
        assert_eq!(rows(&(disk as Arc<dyn ReadAt>)), model.rows());
        assert!(blocks.blocks.len() < 40, "{} blocks", blocks.blocks.len());
    }
}

#[test]
fn errors_name_the_entry() {
    let large = |bytes: usize| file("d/large", vec![1; bytes]);
    let value = "v".repeat(5000);
    let largest = "v".repeat(70_000);
    let valued = |item: Item, value| vec![item.xattr("user.value", value)];
    let (ext4, erofs) = (FileSystemKind::Ext4, FileSystemKind::Erofs);
    let cases = [
        (ext4, vec![large(20 << 20)], ErrorKind::Invalid, "d/large"),
        (ext4, valued(file("d/f", ""), &value), ErrorKind::Unsupported, "d/f"),
        (ext4, valued(dir("d/e"), &value), ErrorKind::Unsupported, "d/e"),
        (erofs, vec![large(20 << 20)], ErrorKind::Invalid, "d/large"),
        (erofs, valued(file("d/f", ""), &largest), ErrorKind::Unsupported, "d/f"),
        (erofs, valued(dir("."), &value), ErrorKind::Unsupported, "."),
    ];
    for (file_system, items, kind, name) in cases {
        let error = error_of(file_system, &items);
        let text = error.to_string();
        assert!(error.kind() == kind && text.starts_with(&format!("tar entry \"{name}\": ")), "{text}");
    }
}

#[test]
fn a_content_that_ends_early_is_an_error() {
    let mut cut = file("f", "abc");
    cut.entry.size = 10_000;
    for kind in KINDS {
        assert_eq!(error_of(kind, std::slice::from_ref(&cut)).kind(), ErrorKind::Corrupt);
    }
}
