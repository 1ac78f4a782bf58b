//! Images with known trees, on file systems.

use super::support::{BlockMap, DiskTree, check, checker, kind_of, rows};
use crate::apply::tests::golden::{apply_tar, differences, golden, json};
use crate::erofs_tree::ErofsTree;
use crate::ext4_tree::Ext4Tree;
use headstart_block::ReadAt;
use std::sync::Arc;

/// The size of the disks: 1 GiB.
const SIZE: u64 = 1 << 30;

#[test]
fn golden_layers_give_the_golden_trees_on_ext4() {
    golden_trees_on::<Ext4Tree<BlockMap>>();
}

#[test]
fn golden_layers_give_the_golden_trees_on_erofs() {
    golden_trees_on::<ErofsTree<BlockMap>>();
}

fn golden_trees_on<T: DiskTree>() {
    let Some(dir) = golden() else { return };
    let set = json(&dir.join("golden.json"));
    let scratch = tempfile::tempdir().unwrap();
    let mut trees = 0;
    for case in set["cases"].as_array().unwrap() {
        let mut disk: Option<Arc<BlockMap>> = None;
        let layers = case["source"]["layers"].as_array().unwrap();
        for (layer, expected) in layers.iter().zip(case["trees"].as_array().unwrap()) {
            let mut tree = T::layer_on(disk.clone().map(|disk| disk as Arc<dyn ReadAt>), SIZE);
            apply_tar(&mut tree, &dir.join(layer["file"].as_str().unwrap())).unwrap();
            let layer = tree.finished();
            let merged = Arc::new(disk.as_deref().unwrap_or(&BlockMap::new(SIZE)).with(&layer));
            let file = expected["file"].as_str().unwrap();
            let found = rows(&(Arc::clone(&merged) as Arc<dyn ReadAt>));
            let found = differences(&json(&dir.join(file)), &expected["unspecified"], &found);
            assert!(found.is_empty(), "{file}: {found:#?}");
            if let Some(program) = checker(kind_of(&*merged), "the check of golden images") {
                let path = scratch.path().join("disk");
                merged.store(&path);
                check(&program, &path);
            }
            disk = Some(merged);
            trees += 1;
        }
    }
    assert!(trees >= 7, "{trees}");
}
