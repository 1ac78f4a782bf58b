//! Atomic words of a model of memory, for tests of protocols without locks.
//!
//! A protocol that is generic over [`AtomicWord`] runs here on the atomic words of the crate loom: [`in_every_order`]
//! repeats a test once for every order in which its threads may act, and for every value that the memory model lets a
//! load return. So a test shows that the code is right with its orderings, on every processor, for the number of
//! threads and steps that the test has.
//!
//! A word can be made [weaker](ModelWord::weakened) than the code asks for. A test that then fails shows that the
//! model notices the lack of an ordering.
//!
//! The model has a limit: it runs the steps of each thread in the order of its program, so a load never returns a value
//! that is stored after the load. Some processors do return such values. If the code lacks an ordering that only these
//! processors need, no test on the model fails.

use headstart_block::AtomicWord;
use loom::sync::atomic::{AtomicU64, fence};
use std::sync::atomic::Ordering;

/// The most times that one order of three threads stops a thread in the middle. A fault of three threads needs no more
/// in all likelihood, and all orders take ten times as long: `HEADSTART_SOAK=1` tries them.
const STOPS: usize = 3;

/// Runs `test` once for every order in which its threads may act. `threads` is the number of these threads, including
/// the one that `test` begins in. With three or more, only those orders are run that stop threads in the middle at
/// most three times in all; with `HEADSTART_SOAK=1` in the environment, all orders are run. The test makes its words
/// itself, and starts threads by `loom::thread`.
///
/// # Panics
/// If `test` panics in one of the orders.
pub fn in_every_order(threads: usize, test: impl Fn() + Send + Sync + 'static) {
    let soak = std::env::var_os("HEADSTART_SOAK").is_some_and(|value| !value.is_empty() && value != "0");
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = (threads > 2 && !soak).then_some(STOPS);
    builder.check(test);
}

/// An operation of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordOperation {
    /// Loads.
    Load,
    /// Stores.
    Store,
    /// Maxima.
    Max,
    /// Additions.
    Add,
    /// Subtractions.
    Sub,
    /// Bits that are set.
    Or,
}

/// A word of the model. If `FENCES` is `false`, the word's fences have no effect, so that a test can show that the code
/// needs them.
#[derive(Debug)]
pub struct ModelWord<const FENCES: bool = true> {
    word: AtomicU64,
    weakened: Option<WordOperation>,
}

impl<const FENCES: bool> ModelWord<FENCES> {
    /// Makes a word with the value `value`. Its operations of the kind `operation` are `Relaxed`, whatever ordering the
    /// code asks for.
    #[must_use]
    pub fn weakened(value: u64, operation: WordOperation) -> Self {
        Self { word: AtomicU64::new(value), weakened: Some(operation) }
    }

    fn order(&self, operation: WordOperation, order: Ordering) -> Ordering {
        if self.weakened == Some(operation) { Ordering::Relaxed } else { order }
    }
}

impl<const FENCES: bool> AtomicWord for ModelWord<FENCES> {
    fn new(value: u64) -> Self {
        Self { word: AtomicU64::new(value), weakened: None }
    }

    fn load(&self, order: Ordering) -> u64 {
        self.word.load(self.order(WordOperation::Load, order))
    }

    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, self.order(WordOperation::Store, order));
    }

    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.word.fetch_max(value, self.order(WordOperation::Max, order))
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.word.fetch_add(value, self.order(WordOperation::Add, order))
    }

    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.word.fetch_sub(value, self.order(WordOperation::Sub, order))
    }

    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.word.fetch_or(value, self.order(WordOperation::Or, order))
    }

    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.word.fetch_and(value, order)
    }

    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.word.compare_exchange(current, new, success, failure)
    }

    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.word.compare_exchange_weak(current, new, success, failure)
    }

    fn fence(order: Ordering) {
        if FENCES {
            fence(order);
        }
    }
}
