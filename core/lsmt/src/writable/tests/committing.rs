//! A commit reads the data that was there when it began, whatever the collector does meanwhile.

use super::super::{Load, NewDisk, WritableDisk};
use crate::{Layer, LayerMeta, Stack};
use headstart_block::BlockDevice;
use std::io::Write;
use std::sync::Arc;
use uuid::Uuid;

const DATA: usize = 4 << 20;

/// Absorbs a part of a frozen pair, once, and collects what is dead.
struct Absorber<'a> {
    disk: &'a WritableDisk,
    bytes: Vec<u8>,
}

impl Write for Absorber<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.is_empty() {
            // A step that the collector decided to do before the commit began.
            assert!(self.disk.absorb(&mut self.disk.collector.lock())?);
            self.disk.flush()?;
            while self.disk.collect(Load::Offline)? {}
        }
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The copy of a collection has a higher number than the pair on top of it.
#[test]
fn a_frozen_pair_of_a_higher_number_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let new = NewDisk { size: 16 << 20, parent: String::new(), uuid: Uuid::from_u128(7) };
    let disk = WritableDisk::create(dir.path(), None, &new).unwrap();
    for byte in [1, 2] {
        disk.write_at(&vec![byte; DATA], 0).unwrap();
    }
    disk.collect_garbage().unwrap();
    {
        let generation = disk.generation();
        let frozen = generation.frozen.first().unwrap();
        assert!(frozen.pair.number > generation.active.number && disk.view().runs.is_empty());
    }
    let out = Absorber { disk: &disk, bytes: Vec::new() };
    let (layer, _) = disk.commit(out, LayerMeta::default()).unwrap();
    let committed = Stack::new(vec![Layer::open(Arc::new(layer.bytes)).unwrap()]).unwrap();
    let mut found = vec![0; DATA];
    committed.read_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|byte| *byte == 2), "the commit has read a hole");
    // Held sectors are given back once it has ended.
    while disk.collect(Load::Offline).unwrap() {}
    let space = disk.space();
    assert!(space.garbage_bytes < 64 << 10, "{space:?}");
    assert_eq!(space.live_bytes, DATA as u64);
}

/// A pass that finds more than it may seal leaves the rest in a list: the next ones do not walk over all runs again.
#[test]
fn passes_go_on_where_the_last_one_stopped() {
    const PART: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let new = NewDisk { size: 16 << 20, parent: String::new(), uuid: Uuid::from_u128(7) };
    let disk = WritableDisk::create(dir.path(), None, &new).unwrap();
    // Backwards, so that the order of the disk is not that of the file.
    for place in (0..DATA as u64 / 4096).rev().map(|page| page * 4096) {
        disk.write_at(&[1; 4096], place).unwrap();
    }
    let cold = disk.data_marks();
    let mut ahead = disk.begin_layer(Vec::new(), LayerMeta::default()).unwrap();
    let first = disk.seal_ahead(&mut ahead, &cold, PART).unwrap();
    assert_eq!((first.appended_bytes, first.left_bytes), (PART, DATA as u64 - PART));
    // A walk would find this, and a list alone would seal what it was written over.
    disk.write_at(&[2; 8192], 0).unwrap();
    disk.write_at(&[3; 4096], DATA as u64).unwrap();
    let second = disk.seal_ahead(&mut ahead, &disk.data_marks(), PART).unwrap();
    assert_eq!(second.appended_bytes, PART);
    assert_eq!(
        second.share.unsealed_bytes,
        first.share.unsealed_bytes - PART,
        "it walked over all of the disk"
    );
    let mut last = second;
    while last.left_bytes > 0 {
        last = disk.seal_ahead(&mut ahead, &disk.data_marks(), PART).unwrap();
    }
    assert_eq!(ahead.stored_bytes(), DATA as u64 - 8192, "it sealed what was written over");
    let last = disk.seal_ahead(&mut ahead, &disk.data_marks(), PART).unwrap();
    assert_eq!((last.appended_bytes, last.left_bytes), (8192 + 4096, 0));
    assert_eq!((last.share.sealed_bytes, last.share.unsealed_bytes), (DATA as u64 + 4096, 0));
    let (layer, _) = disk.begin_commit().unwrap().complete(&disk, ahead, LayerMeta::default()).unwrap();
    let committed = Stack::new(vec![Layer::open(Arc::new(layer)).unwrap()]).unwrap();
    let (mut found, mut expected) = (vec![0; DATA + 4096], vec![1; DATA + 4096]);
    committed.read_at(&mut found, 0).unwrap();
    expected[..8192].fill(2);
    expected[DATA..].fill(3);
    assert!(found == expected);
}
