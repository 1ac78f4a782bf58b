//! The writable layer on the golden set: the set's operations, played on a writable disk, give the set's bytes when
//! committed.

use crate::golden_ops::{Op, model, ops_of};
use headstart_block::{BlockDevice, ByteRange};
use headstart_lsmt::format::{Page, UserTag};
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use headstart_lsmt::{Layer, LayerMeta, Stack, open_pair};
use headstart_testkit::golden_set::GoldenSet;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

fn new_disk(size: u64) -> NewDisk {
    NewDisk { size, parent: "golden".to_owned(), uuid: Uuid::from_u128(1 << 90) }
}

fn play(disk: &WritableDisk, ops: &[Op]) {
    for (number, op) in ops.iter().enumerate() {
        match op.bytes(op.offset, op.len) {
            Some(bytes) => disk.write_at(&bytes, op.offset).unwrap(),
            None => disk.write_zeroes(ByteRange::new(op.offset, op.len).unwrap()).unwrap(),
        }
        if number % 53 == 0 {
            disk.flush().unwrap();
        }
    }
}

/// Compares the content of a disk with the model's; `play` writes nowhere else.
fn check_model(name: &Value, disk: &dyn BlockDevice, ops: &[Op]) {
    let by_ops = model(disk.size(), ops);
    for block in by_ops.written_blocks() {
        let mut bytes = vec![0xa5; 4096];
        disk.read_at(&mut bytes, block * 4096).unwrap();
        assert!(bytes == by_ops.read(block * 4096, 4096), "{name}: block {block}");
    }
}

fn read_pair(dir: &Path) -> Layer {
    let index = std::fs::read(dir.join("index")).unwrap();
    open_pair(Arc::new(std::fs::read(dir.join("data")).unwrap()), &index).unwrap()
}

#[test]
fn operations_of_the_set_give_its_layers() {
    let Some(set) = GoldenSet::open() else { return };
    let mut identical = 0;
    for case in set.cases("lsmt") {
        let entries = case["layers_low_to_high"].as_array().unwrap();
        let (Some(all_ops), [entry]) = (case["ops"].as_array(), &entries[..]) else { continue };
        let ops = ops_of(&set, all_ops[0].as_str().unwrap());
        let file = set.raw(entry);
        let page = Page::decode(file[..4096].try_into().unwrap()).unwrap();
        let size = case["virtual_size"].as_u64().unwrap();

        let dir = tempfile::tempdir().unwrap();
        let disk = WritableDisk::create(dir.path(), None, &new_disk(size)).unwrap();
        play(&disk, &ops);
        disk.flush().unwrap();
        check_model(&case["name"], &disk, &ops);
        let pair = Stack::new(vec![read_pair(dir.path())]).unwrap();
        check_model(&case["name"], &pair, &ops);

        let meta = LayerMeta {
            uuid: page.uuid,
            parent_uuid: page.parent_uuid,
            user_tag: UserTag::new(&page.user_tag.to_text()).unwrap(),
            ..LayerMeta::default()
        };
        let (layer, _) = disk.commit(Vec::new(), meta).unwrap();
        // A committed layer is the same file, except for discards of ranges that read as zeros anyway: those leave no
        // record here. A sealed one (header flags 3) keeps its garbage.
        if ops.iter().all(|op| op.fill.is_some()) && page.flags.0 == 7 {
            assert!(layer == file, "{}", case["name"]);
            identical += 1;
        }
        let committed = Stack::new(vec![Layer::open(Arc::new(layer)).unwrap()]).unwrap();
        check_model(&case["name"], &committed, &ops);
    }
    assert!(identical >= 3, "{identical} layers were the same file");
}
