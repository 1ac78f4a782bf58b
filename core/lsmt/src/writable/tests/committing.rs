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
