//! Reads, inserts and evictions of the same units, in every order of their steps that the memory model allows.
//!
//! The code is the product's, the words are the model's. The bytes of a unit are one word, and a file is weaker here
//! than the kernel makes it: a read and a write order nothing, and only giving back, which the kernel does under its
//! locks, comes after what its thread did before.
//!
//! The last tests weaken one ordering each, and must fail: so each of them is needed, and the model notices its lack.
//! The clearing of bits alone may be relaxed, as the raise of the generation that follows orders it. Other steps that
//! were left out to see the model fail: the second look at the generation, the raise, and the order of clear and
//! raise, of write and set, and of the lock and the look for units to give back.

use super::{Outcome, forget, insert, read, runs};
use headstart_block::AtomicWord;
use headstart_testkit::model::{ModelWord, WordOperation, in_every_order};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The word of a unit whose bytes are not there.
const HOLE: u64 = 0;
/// The word of a unit whose bytes are there.
const BYTES: u64 = 7;

/// A file and its bitmap, as far as they concern one range of units.
struct Model<W> {
    units: Range<u64>,
    bits: Vec<W>,
    generation: W,
    bytes: Vec<W>,
    /// The lock that keeps writers and those that give space back apart.
    write: Mutex<()>,
}

impl<W: AtomicWord> Model<W> {
    /// A file that has all of `units`, or none of them.
    fn new(units: Range<u64>, is_there: bool, bit: impl Fn(u64) -> W, generation: W) -> Self {
        let mask = if is_there { u64::MAX } else { 0 };
        let byte = if is_there { BYTES } else { HOLE };
        Self {
            bits: (0..units.end.div_ceil(64)).map(|_| bit(mask)).collect(),
            generation,
            bytes: units.clone().map(|_| W::new(byte)).collect(),
            write: Mutex::new(()),
            units,
        }
    }

    fn set_bytes(&self, units: Range<u64>, value: u64, order: Ordering) {
        for unit in units {
            self.bytes[usize::try_from(unit - self.units.start).unwrap()].store(value, order);
        }
    }

    /// The cache's read of the file, once (`CachedBlob::read_file` repeats it), and the bytes that it saw.
    fn read(&self) -> (Outcome<Infallible>, Vec<u64>) {
        let mut seen = Vec::new();
        let outcome = read(&self.bits, &self.generation, &self.units, || {
            seen.extend(self.bytes.iter().map(|word| word.load(Ordering::Relaxed)));
            Ok(())
        });
        (outcome, seen)
    }

    fn insert(&self) {
        let _writing = self.write.lock().unwrap();
        let mut missing = Vec::new();
        runs(&self.bits, &self.units, false, &mut |run| missing.push(run));
        for run in missing {
            let write = || {
                self.set_bytes(run.clone(), BYTES, Ordering::Relaxed);
                Ok::<_, Infallible>(())
            };
            let Ok(_) = insert(&self.bits, &run, write);
        }
    }

    fn evict(&self) {
        forget(&self.bits, &self.generation, [self.units.clone()]);
        let _giving_back = self.write.lock().unwrap();
        runs(&self.bits, &self.units, false, &mut |free| self.set_bytes(free, HOLE, Ordering::Release));
    }
}

/// The threads beside the one that reads.
#[derive(Clone, Copy)]
struct Others {
    evict: bool,
    insert: bool,
}

const EVICT: Others = Others { evict: true, insert: false };
const INSERT: Others = Others { evict: false, insert: true };
const BOTH: Others = Others { evict: true, insert: true };

/// Runs one read beside `others` in every order. Returns how many orders let it read, find nothing, and notice a
/// loss.
fn outcomes<W: AtomicWord + Send + Sync + 'static>(
    others: Others,
    make: impl Fn() -> Model<W> + Send + Sync + 'static,
) -> [usize; 3] {
    let counts = std::sync::Arc::new([(); 3].map(|()| AtomicUsize::new(0)));
    let counted = std::sync::Arc::clone(&counts);
    let threads = if others.evict && others.insert { 3 } else { 2 };
    in_every_order(threads, move || {
        let model = Arc::new(make());
        let [reader, evictor] = [(); 2].map(|()| Arc::clone(&model));
        // The model tries each place of a read among the steps of this thread only if the read is another thread's.
        let reading = thread::spawn(move || reader.read());
        let evicting = (others.evict && others.insert).then(|| thread::spawn(move || evictor.evict()));
        if others.insert {
            model.insert();
        } else {
            model.evict();
        }
        let (outcome, seen) = reading.join().unwrap();
        if let Some(evicting) = evicting {
            evicting.join().unwrap();
        }
        let at = match outcome {
            Outcome::Read => 0,
            Outcome::Absent => 1,
            Outcome::Forgotten => 2,
            Outcome::Failed(never) => match never {},
        };
        assert!(at != 0 || seen.iter().all(|&word| word == BYTES), "a read returned a hole");
        counted[at].fetch_add(1, Ordering::Relaxed);
    });
    std::array::from_fn(|at| counts[at].load(Ordering::Relaxed))
}

type Strong = ModelWord<true>;

#[test]
fn a_read_returns_no_hole_while_its_unit_is_evicted_and_inserted() {
    let make = || Model::new(0..1, true, Strong::new, Strong::new(0));
    let [read, absent, forgotten] = outcomes(BOTH, make);
    assert!(read > 0 && absent > 0 && forgotten > 0, "{read} {absent} {forgotten}");
}

#[test]
fn a_read_of_units_in_two_words_returns_no_hole_while_they_are_evicted() {
    let make = || Model::new(63..65, true, Strong::new, Strong::new(0));
    let [read, absent, forgotten] = outcomes(EVICT, make);
    assert!(read > 0 && absent > 0 && forgotten > 0, "{read} {absent} {forgotten}");
}

#[test]
fn a_read_returns_all_bytes_of_an_insert_or_finds_nothing() {
    let make = || Model::new(63..65, false, Strong::new, Strong::new(0));
    let [read, absent, forgotten] = outcomes(INSERT, make);
    assert!(read > 0 && absent > 0 && forgotten == 0, "{read} {absent} {forgotten}");
}

#[test]
#[should_panic(expected = "a read returned a hole")]
fn bits_that_are_set_without_release_show_holes() {
    let bit = |mask| Strong::weakened(mask, WordOperation::Or);
    outcomes(INSERT, move || Model::new(0..1, false, bit, Strong::new(0)));
}

#[test]
#[should_panic(expected = "a read returned a hole")]
fn bits_that_are_looked_at_without_acquire_show_holes() {
    let bit = |mask| Strong::weakened(mask, WordOperation::Load);
    outcomes(INSERT, move || Model::new(0..1, false, bit, Strong::new(0)));
}

#[test]
#[should_panic(expected = "a read returned a hole")]
fn a_generation_that_is_raised_without_release_shows_holes() {
    let make = || Model::new(0..1, true, Strong::new, Strong::weakened(0, WordOperation::Add));
    outcomes(EVICT, make);
}

#[test]
#[should_panic(expected = "a read returned a hole")]
fn a_generation_that_is_looked_at_without_acquire_shows_holes() {
    let make = || Model::new(0..1, true, Strong::new, Strong::weakened(0, WordOperation::Load));
    outcomes(EVICT, make);
}

#[test]
#[should_panic(expected = "a read returned a hole")]
fn a_second_look_without_a_fence_shows_holes() {
    outcomes(EVICT, || Model::<ModelWord<false>>::new(0..1, true, ModelWord::new, ModelWord::new(0)));
}
