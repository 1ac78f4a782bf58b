//! Writers and the reader of a ring, in every order of their steps that the memory model allows.
//!
//! The last tests weaken one ordering each, and must fail. The model runs each thread in the order of its program, so
//! that it cannot show why a slot is freed with `Release` and its freeing seen with `Acquire`: without these, a
//! processor might move the reader's loads of a slot behind its freeing. Steps that were left out to see the model
//! fail: the emptying of a slot, its emptying before it is freed, and the look at the mark of a full slot.

use super::Ring;
use headstart_block::AtomicWord;
use headstart_testkit::model::{ModelWord, WordOperation, in_every_order};
use loom::sync::Arc;
use loom::thread;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

type Strong = ModelWord<true>;

/// The record number `n`: four words that are one whole.
fn record(n: u64) -> [u64; 4] {
    [n, n + 10, n + 20, n + 30]
}

/// The records that are there.
fn drained(ring: &Ring<Strong>) -> Vec<[u64; 4]> {
    let mut records = Vec::new();
    ring.drain(&mut |record| records.push(record));
    records
}

fn put(ring: &Ring<Strong>, numbers: &[u64]) -> Vec<u64> {
    numbers.iter().filter(|&&number| ring.put(record(number))).copied().collect()
}

/// Two threads put the records of their numbers in, while another takes them out. Returns the least and the most that
/// found room.
fn least_and_most(
    writers: [&'static [u64]; 2],
    make: impl Fn() -> Ring<Strong> + Send + Sync + 'static,
) -> (usize, usize) {
    let seen = std::sync::Arc::new([AtomicUsize::new(usize::MAX), AtomicUsize::new(0)]);
    let counted = std::sync::Arc::clone(&seen);
    let threads = if writers[1].is_empty() { 2 } else { 3 };
    in_every_order(threads, move || {
        let ring = Arc::new(make());
        let [taken, other] = [(); 2].map(|()| Arc::clone(&ring));
        // The model tries each place of a look among the steps of a writer only if the look is another thread's.
        let taking = thread::spawn(move || drained(&taken));
        let putting = (!writers[1].is_empty()).then(|| thread::spawn(move || put(&other, writers[1])));
        let mut numbers: BTreeSet<u64> = put(&ring, writers[0]).into_iter().collect();
        numbers.extend(putting.map(|putting| putting.join().unwrap()).unwrap_or_default());
        let mut records = taking.join().unwrap();
        records.extend(drained(&ring));
        for words in &records {
            assert_eq!(*words, record(words[0]), "a record is in pieces");
        }
        let found: BTreeSet<u64> = records.iter().map(|words| words[0]).collect();
        assert_eq!(
            (records.len(), found),
            (numbers.len(), numbers.clone()),
            "a record is lost or came twice"
        );
        assert_eq!(ring.taken(), numbers.len() as u64);
        counted[0].fetch_min(numbers.len(), Ordering::Relaxed);
        counted[1].fetch_max(numbers.len(), Ordering::Relaxed);
    });
    (seen[0].load(Ordering::Relaxed), seen[1].load(Ordering::Relaxed))
}

#[test]
fn records_of_two_threads_are_taken_whole_and_once() {
    assert_eq!(least_and_most([&[1], &[2]], || Ring::new(2)), (2, 2));
}

#[test]
fn a_slot_is_used_again_only_after_its_record_was_taken() {
    // The second record finds room where the reader was there before it.
    assert_eq!(least_and_most([&[1, 2], &[]], || Ring::new(1)), (1, 2));
}

fn ring_of(last: impl Fn() -> Strong) -> Ring<Strong> {
    let slot = || [Strong::new(0), Strong::new(0), Strong::new(0), last()];
    Ring { slots: (0..2).map(|_| slot()).collect(), taken: Strong::new(0), freed: Strong::new(0) }
}

#[test]
#[should_panic(expected = "a record is in pieces")]
fn a_slot_that_is_filled_without_release_is_in_pieces() {
    least_and_most([&[1], &[]], || ring_of(|| Strong::weakened(0, WordOperation::Store)));
}

#[test]
#[should_panic(expected = "a record is in pieces")]
fn a_slot_that_is_looked_at_without_acquire_is_in_pieces() {
    least_and_most([&[1], &[]], || ring_of(|| Strong::weakened(0, WordOperation::Load)));
}
