//! Writers, readers, a flusher and a maintainer on one real directory.
//!
//! Every written sector names its writer, the number of the write among that writer's, and the place. A reader
//! checks that a sector is never a mixture or from another place, and that no write shows again after a later one
//! of the same writer was seen in its place: old content that comes back when pairs are exchanged would. At the end
//! the disk is opened again, and must be what it was: the log has overlapping writes in the order of the map.

use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::sim::Dice;
use crate::{Layer, LayerMeta, Stack};
use headstart_block::{BlockDevice, ByteRange, ErrorKind, SECTOR_SIZE};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use uuid::Uuid;

const SECTOR: usize = SECTOR_SIZE as usize;
const SECTORS: usize = 1024;
const WRITERS: usize = 3;
const WRITES: u64 = 1500;

/// Writer, number of the write and sector, all over a sector.
fn stamp(writer: usize, number: u64, sector: usize) -> u64 {
    (writer as u64 + 1) << 56 | number << 24 | sector as u64
}

fn write(disk: &WritableDisk, writer: usize) {
    let mut dice = Dice::new(0x1234_5678_9abc_def1 + writer as u64);
    for number in 1..=WRITES {
        let start = dice.below(SECTORS - 40);
        let sectors = start..start + 1 + dice.below(40);
        if dice.below(8) == 0 {
            let range = ByteRange::between(start as u64 * SECTOR_SIZE, sectors.end as u64 * SECTOR_SIZE);
            disk.write_zeroes(range).unwrap();
            continue;
        }
        let data: Vec<u8> = sectors
            .flat_map(|sector| stamp(writer, number, sector).to_le_bytes().repeat(SECTOR / 8))
            .collect();
        disk.write_at(&data, start as u64 * SECTOR_SIZE).unwrap();
    }
}

fn read(disk: &WritableDisk, seed: u64, writing: &AtomicUsize) {
    let mut dice = Dice::new(seed);
    let mut seen = vec![[0u64; WRITERS]; SECTORS];
    let mut buf = vec![0; 100 * SECTOR];
    while writing.load(Ordering::Relaxed) > 0 {
        let start = dice.below(SECTORS - 100);
        disk.read_at(&mut buf, start as u64 * SECTOR_SIZE).unwrap();
        for (bytes, sector) in buf.chunks(SECTOR).zip(start..) {
            let words = bytes.as_chunks::<8>().0;
            assert!(words.iter().all(|word| *word == words[0]), "sector {sector} is a mixture");
            let found = u64::from_le_bytes(words[0]);
            if found != 0 {
                assert_eq!(found as usize & 0xff_ffff, sector);
                let last = &mut seen[sector][(found >> 56) as usize - 1];
                let number = found >> 24 & 0xffff_ffff;
                assert!(number >= *last, "sector {sector}: write {number} is back after {last}");
                *last = number;
            }
        }
    }
}

/// Collects and commits in turn; returns the base at the end and its name.
fn maintain(disk: &WritableDisk, writing: &AtomicUsize) -> (Option<Arc<dyn BlockDevice>>, String) {
    let mut layers = Vec::new();
    let mut base: Option<Arc<dyn BlockDevice>> = None;
    let mut rounds = 0;
    while writing.load(Ordering::Relaxed) > 0 || rounds < 4 {
        rounds += 1;
        if rounds % 4 != 0 || layers.len() == 50 {
            disk.collect_garbage().unwrap();
            continue;
        }
        let (layer, _) = disk.stack_and_commit(Vec::new(), LayerMeta::default()).unwrap();
        layers.push(Layer::open(Arc::new(layer)).unwrap());
        let stack: Arc<dyn BlockDevice> = Arc::new(Stack::new(layers.clone()).unwrap());
        disk.replace_frozen(stack.clone(), layers.len().to_string()).unwrap();
        base = Some(stack);
    }
    (base, layers.len().to_string())
}

fn contents(disk: &dyn BlockDevice) -> Vec<u8> {
    let mut buf = vec![0; SECTORS * SECTOR];
    disk.read_at(&mut buf, 0).unwrap();
    buf
}

fn open(path: &Path, base: Option<Arc<dyn BlockDevice>>, parent: &str) -> WritableDisk {
    WritableDisk::open(path, base, parent).unwrap()
}

#[test]
fn writers_readers_and_maintenance_get_along() {
    let dir = tempfile::tempdir().unwrap();
    let new = NewDisk { size: (SECTORS * SECTOR) as u64, parent: "0".to_owned(), uuid: Uuid::from_u128(99) };
    let disk = WritableDisk::create(dir.path(), None, &new).unwrap();
    // So little that collecting has work to do.
    disk.view_mut().limits = Limits { slack: 2 << 20, runs: Some(64), ..Limits::default() };
    let writing = AtomicUsize::new(WRITERS);
    let (base, parent) = thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (disk, writing) = (&disk, &writing);
            scope.spawn(move || {
                write(disk, writer);
                writing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| read(&disk, 77, &writing));
        scope.spawn(|| {
            while writing.load(Ordering::Relaxed) > 0 {
                disk.flush().unwrap();
            }
        });
        scope.spawn(|| {
            while writing.load(Ordering::Relaxed) > 0 {
                disk.commit(Vec::new(), LayerMeta::default()).unwrap();
            }
        });
        scope.spawn(|| {
            let mut loads = [Load::Busy, Load::Offline, Load::Quiet, Load::Pressed].into_iter().cycle();
            while writing.load(Ordering::Relaxed) > 0 {
                disk.collect(loads.next().unwrap()).unwrap();
            }
        });
        scope.spawn(|| maintain(&disk, &writing)).join().unwrap()
    });
    disk.flush().unwrap();
    let before = contents(&disk);
    let (layer, _) = disk.commit(Vec::new(), LayerMeta::default()).unwrap();
    drop(disk);
    let disk = open(dir.path(), base.clone(), &parent);
    assert!(contents(&disk) == before, "the log disagrees with the map");
    let committed = Layer::open(Arc::new(layer)).unwrap();
    assert_eq!(committed.info().virtual_size, new.size);
    disk.collect_garbage().unwrap();
    drop(disk);
    assert!(contents(&open(dir.path(), base, &parent)) == before, "garbage collection changed the disk");
}

#[test]
fn only_one_maintainer_works_at_a_time() {
    /// An output that tries to collect while it is written to.
    struct Meddler<'a>(&'a WritableDisk, usize);
    impl std::io::Write for Meddler<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            for refused in [
                self.0.collect_garbage().err(),
                self.0.abandon_commit().err(),
                self.0.stack_and_commit(Vec::new(), LayerMeta::default()).err(),
            ] {
                assert_eq!(refused.unwrap().kind(), ErrorKind::Conflict);
            }
            // Reads and writes go on.
            self.0.write_at(&[3; 512], 0)?;
            self.0.read_at(&mut [0; 512], 0)?;
            self.1 += 1;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let new = NewDisk { size: 4 << 20, parent: String::new(), uuid: Uuid::from_u128(99) };
    let disk = WritableDisk::create(dir.path(), None, &new).unwrap();
    // More than is gathered before it is written, so that there are several writes.
    disk.write_at(&vec![1; 3 << 20], 0).unwrap();
    let (meddler, _) = disk.stack_and_commit(Meddler(&disk, 0), LayerMeta::default()).unwrap();
    assert!(meddler.1 > 2);
}
