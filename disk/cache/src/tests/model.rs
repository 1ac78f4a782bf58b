//! Any order of operations, ends of processes and losses of power, against a vector of flags a unit.
//!
//! Method: a blob of a few chunks (with a tree, and one without) in a cache of bounded size. A loss of power is played
//! by spoiling in the data files every unit that is not durable, and opening the cache in another boot; in one variant,
//! a slot is torn besides. Reads must be right or absent at all times; what the model has as local and durable must be
//! there (except for what eviction may take).

use super::{Sample, UNIT, open_in, units};
use crate::durable::durable_units;
use crate::{Cache, CachePin, CachedBlob};
use headstart_block::ByteRange;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const UNITS: u64 = 41;

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Read(u64, u64),
    Discard(u64, u64),
    Pin(u64, u64),
    Unpin,
    Sync,
    Prune(u64),
    Reopen,
    PowerLoss,
    PowerLossTorn(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..UNITS, 0..UNITS).prop_map(|(a, b)| (a.min(b), a.max(b) + 1));
    prop_oneof![
        8 => range.clone().prop_map(|(a, b)| Step::Insert(a, b)),
        4 => range.clone().prop_map(|(a, b)| Step::Read(a, b)),
        2 => range.clone().prop_map(|(a, b)| Step::Discard(a, b)),
        1 => range.prop_map(|(a, b)| Step::Pin(a, b)),
        1 => Just(Step::Unpin),
        3 => Just(Step::Sync),
        2 => (0..UNITS).prop_map(Step::Prune),
        1 => Just(Step::Reopen),
        2 => Just(Step::PowerLoss),
        1 => (0usize..2, 0usize..100).prop_map(|(slot, at)| Step::PowerLossTorn(slot, at)),
    ]
}

/// Spoils the units that are not durable, in all data files.
pub(super) fn lose_power(cache: &Cache) {
    for stem in cache.storage.directory.stems().unwrap() {
        let files = cache.storage.directory.open_stem(&stem).unwrap().unwrap();
        let layout = files.sidecar.layout;
        let durable = durable_units(&files).unwrap();
        for unit in (0..layout.units()).filter(|unit| durable[*unit as usize / 64] >> (unit % 64) & 1 == 0) {
            let len = layout.bytes_of(&(unit..unit + 1)) as usize;
            files.data.write_all_at(&vec![0; len], unit * layout.unit).unwrap();
        }
        let bits: Vec<u64> = files.sidecar.local().iter().map(|_| u64::MAX).collect();
        let bytes: Vec<u8> = bits.into_iter().flat_map(u64::to_ne_bytes).collect();
        files.sidecar.file.write_all_at(&bytes, 4096).unwrap();
    }
}

fn tear_slot(cache: &Cache, slot: usize, at: usize) {
    for stem in cache.storage.directory.stems().unwrap() {
        let files = cache.storage.directory.open_stem(&stem).unwrap().unwrap();
        let offset = files.sidecar.layout.slot_offset(slot) + (at % files.sidecar.layout.slot_len()) as u64;
        let mut byte = [0];
        files.sidecar.file.read_exact_at(&mut byte, offset).unwrap();
        files.sidecar.file.write_all_at(&[byte[0] ^ 0x40], offset).unwrap();
    }
}

struct World<'a> {
    dir: &'a Path,
    sample: &'a Sample,
    boot: u8,
    cache: Arc<Cache>,
    blob: Arc<CachedBlob>,
    pins: Vec<CachePin>,
    pinned: Vec<(u64, u64)>,
    local: Vec<bool>,
    durable: Vec<bool>,
    has_tree: bool,
}

impl<'a> World<'a> {
    fn new(dir: &'a Path, sample: &'a Sample, has_tree: bool) -> Self {
        let cache = open_in(dir, None, [0; 16]);
        let spec = if has_tree { sample.spec.clone() } else { sample.plain("a") };
        let blob = cache.blob(&spec).unwrap();
        let none = vec![false; UNITS as usize];
        Self {
            dir,
            sample,
            boot: 0,
            cache,
            blob,
            pins: vec![],
            pinned: vec![],
            local: none.clone(),
            durable: none,
            has_tree,
        }
    }

    fn reopen(&mut self) {
        self.pins.clear();
        self.pinned.clear();
        self.cache = open_in(self.dir, None, [self.boot; 16]);
        let spec = if self.has_tree { self.sample.spec.clone() } else { self.sample.plain("a") };
        self.blob = self.cache.blob(&spec).unwrap();
    }

    fn fill(flags: &mut [bool], range: (u64, u64), to: bool) {
        flags[range.0 as usize..range.1 as usize].fill(to);
    }

    fn bytes(&self, (from, to): (u64, u64)) -> ByteRange {
        units(from, to).intersect(ByteRange::between(0, self.sample.bytes.len() as u64))
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert(a, b) => {
                self.sample.fill(&self.blob, self.bytes((a, b)));
                Self::fill(&mut self.local, (a, b), true);
            }
            Step::Read(a, b) => {
                let expected = self.local[a as usize..b as usize].iter().all(|&local| local);
                assert_eq!(self.sample.reads(&self.blob, self.bytes((a, b))), expected);
            }
            Step::Discard(a, b) => {
                self.blob.discard(self.bytes((a, b))).unwrap();
                Self::fill(&mut self.local, (a, b), false);
                Self::fill(&mut self.durable, (a, b), false);
            }
            Step::Pin(a, b) => {
                self.pins.push(self.blob.pin(self.bytes((a, b))).unwrap());
                self.pinned.push((a, b));
            }
            Step::Unpin => drop((self.pins.pop(), self.pinned.pop())),
            Step::Sync => {
                self.cache.sync().unwrap();
                self.durable.clone_from(&self.local);
            }
            Step::Prune(target) => self.prune(target * UNIT),
            Step::Reopen => self.reopen(),
            Step::PowerLoss => {
                lose_power(&self.cache);
                self.boot += 1;
                self.reopen();
                self.local.clone_from(&self.durable);
            }
            Step::PowerLossTorn(slot, at) => {
                tear_slot(&self.cache, slot, at);
                lose_power(&self.cache);
                self.boot += 1;
                self.reopen();
                let there = self.sample.units(&self.blob);
                assert!(there.iter().zip(&self.durable).all(|(there, durable)| *durable || !there));
                self.durable.clone_from(&there);
                self.local = there;
            }
        }
        assert_eq!(self.sample.units(&self.blob), self.local, "after {step:?}");
        let range = ByteRange::between(0, self.blob.spec().len);
        let missing: u64 = super::missing(&self.blob, range).iter().map(|run| run.len()).sum();
        assert_eq!(self.blob.local_bytes() + missing, range.len());
    }

    fn prune(&mut self, target: u64) {
        self.cache.prune(target).unwrap();
        let there = self.sample.units(&self.blob);
        for (unit, (there, local)) in (0..).zip(there.iter().zip(&self.local)) {
            assert!(*local || !there, "unit {unit} came out of nothing");
            let pinned = |&(a, b): &(u64, u64)| (a / 4..b.div_ceil(4)).contains(&(unit / 4));
            assert!(*there || !*local || !self.pinned.iter().any(pinned), "pinned unit {unit} is gone");
        }
        let left = there.iter().filter(|&&there| there).count() as u64 * UNIT;
        if self.pinned.is_empty() {
            assert!(left <= target + 64 * 1024, "{left} are left of {target}");
        }
        for (durable, there) in self.durable.iter_mut().zip(&there) {
            *durable &= there;
        }
        self.local = there;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_history_is_read_right(
        steps in prop::collection::vec(step(), 1..40), has_tree in any::<bool>(), short in 0usize..16384,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let sample = Sample::new(UNITS as usize * UNIT as usize - short, 1);
        let mut world = World::new(dir.path(), &sample, has_tree);
        for step in &steps {
            world.step(step);
        }
    }
}
