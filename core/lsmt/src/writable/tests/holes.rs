//! Writes to a data file while a hole is made in it.

use super::super::data_file::DataFile;
use super::sim::{Dice, Fault, Machine};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// A data file, and its expected content.
struct Scene {
    machine: Machine,
    data: DataFile,
    bytes: Mutex<Vec<u8>>,
    /// Blocks that no reader reads any more.
    dead: Mutex<BTreeSet<usize>>,
}

/// Events in the middle of a hole.
#[derive(Clone, Debug)]
struct During {
    writes: Vec<usize>,
    flush: bool,
    full: bool,
}

#[derive(Clone, Debug)]
enum Op {
    /// Writes this number of bytes at the end.
    Write(usize),
    /// Makes a hole of `len` blocks, or finds that it cannot.
    Hole {
        start: usize,
        blocks: usize,
        fails: bool,
        during: During,
    },
    Flush,
    Repair,
}

fn op() -> impl Strategy<Value = Op> {
    let during = (vec(1usize..3 * BLOCK, 0..6), any::<bool>(), any::<bool>())
        .prop_map(|(writes, flush, full)| During { writes, flush, full });
    prop_oneof![
        2 => (1usize..5 * BLOCK).prop_map(Op::Write),
        3 => (any::<usize>(), 1usize..5, any::<bool>(), during)
            .prop_map(|(start, blocks, fails, during)| Op::Hole { start, blocks, fails, during }),
        1 => Just(Op::Flush),
        1 => Just(Op::Repair),
    ]
}

impl Scene {
    fn new() -> Arc<Self> {
        let machine = Machine::default();
        let data = DataFile::new(machine.directory().create("data").unwrap());
        Arc::new(Self { machine, data, bytes: Mutex::default(), dead: Mutex::default() })
    }

    fn len(&self) -> usize {
        self.bytes.lock().len()
    }

    fn write(&self, len: usize) {
        let offset = self.len();
        let data: Vec<u8> = (offset..offset + len).map(|at| (at / 7 % 251) as u8 + 1).collect();
        if self.data.write_at(&data, offset as u64, None).is_ok() {
            self.bytes.lock().extend(data);
        }
    }

    /// Compares everything that is not dead.
    fn check(&self) {
        let (bytes, dead) = (self.bytes.lock(), self.dead.lock());
        let check = |start: usize, end: usize| {
            if (start / BLOCK..end.div_ceil(BLOCK)).all(|block| !dead.contains(&block)) {
                let mut found = vec![0; end - start];
                self.data.read_at(&mut found, start as u64).unwrap();
                assert!(found == bytes[start..end], "{start}..{end}");
            }
        };
        (0..bytes.len()).step_by(BLOCK).for_each(|start| check(start, bytes.len().min(start + BLOCK)));
        let mut dice = Dice::new(bytes.len() as u64 + 1);
        for _ in 0..bytes.len().min(8) {
            let start = dice.below(bytes.len());
            check(start, bytes.len().min(start + dice.below(6 * BLOCK) + 1));
        }
    }

    fn during(&self, during: &During) {
        for len in &during.writes {
            self.write(*len);
            self.check();
        }
        if during.flush {
            // Without room it fails, as a flush does; nothing is lost.
            let _ = self.data.write_kept();
            self.check();
        }
        if during.full {
            self.machine.arm(0, Fault::Full);
        }
    }

    fn hole(self: &Arc<Self>, range: (usize, usize), fails: bool, during: During) {
        let (start, blocks) = range;
        // Dead blocks were flushed, so they are in the file.
        let blocks_of_file = self.machine.contents("data").len() / BLOCK;
        let Some(last) = blocks_of_file.checked_sub(1) else { return };
        let first = start % (last + 1);
        let end = (first + blocks).min(last + 1);
        self.dead.lock().extend(first..end);
        self.machine.fail_holes(u64::from(fails));
        let scene = Arc::clone(self);
        self.machine.interrupt(0, Box::new(move || scene.during(&during)));
        let punched = self.data.punch((first * BLOCK) as u64, ((end - first) * BLOCK) as u64);
        assert_eq!(punched.is_err(), fails);
        self.machine.uninterrupted();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn writes_beside_holes_are_read_and_reach_the_file(ops in vec(op(), 1..40)) {
        let scene = Scene::new();
        for op in ops {
            match op {
                Op::Write(len) => scene.write(len),
                Op::Hole { start, blocks, fails, during } => scene.hole((start, blocks), fails, during),
                Op::Flush => _ = scene.data.write_kept(),
                Op::Repair => scene.machine.repair(),
            }
            scene.check();
        }
        scene.machine.repair();
        scene.data.write_kept().unwrap();
        prop_assert_eq!(scene.data.kept_bytes(), 0);
        let (bytes, dead) = (scene.bytes.lock(), scene.dead.lock());
        let contents = scene.machine.contents("data");
        for (number, block) in bytes.chunks(BLOCK).enumerate().filter(|(number, _)| !dead.contains(number)) {
            prop_assert!(contents[number * BLOCK..][..block.len()] == *block, "{}", number);
        }
    }
}

#[test]
fn the_bytes_kept_in_memory_are_bounded() {
    let scene = Scene::new();
    scene.write(2 * BLOCK);
    let beside = Arc::clone(&scene);
    let act = move || {
        for part in 1..=5usize {
            beside.write(1 << 20);
            assert_eq!(beside.data.kept_bytes(), part.min(4) << 20);
            // The fifth has gone to the file.
            let len = beside.machine.contents("data").len();
            assert_eq!(len, 2 * BLOCK + if part == 5 { 5 << 20 } else { 0 });
        }
        beside.check();
    };
    scene.machine.interrupt(0, Box::new(act));
    assert!(scene.data.punch(0, BLOCK as u64).unwrap());
    scene.dead.lock().insert(0);
    assert_eq!(scene.data.kept_bytes(), 0);
    scene.check();
    assert!(scene.machine.contents("data")[BLOCK..] == scene.bytes.lock()[BLOCK..]);
}
