//! Atomic words behind a trait: a protocol without locks is written once, runs on the processor's words, and is
//! checked on words of a model that tries every order in which threads and memory may act.
//!
//! The trait has only the operations that such protocols use. Outside tests, [`AtomicU64`] is the only type with the
//! trait, and each call is one of the standard library, in line.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// An atomic word of 64 bits. The methods are those of [`AtomicU64`].
pub trait AtomicWord: Sized {
    /// Makes a word.
    fn new(value: u64) -> Self;

    /// Returns the value.
    fn load(&self, order: Ordering) -> u64;

    /// Replaces the value.
    fn store(&self, value: u64, order: Ordering);

    /// Replaces the word's value by `value` if that is greater; returns the value before.
    fn fetch_max(&self, value: u64, order: Ordering) -> u64;

    /// Adds to the value, wrapping around; returns the value before.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;

    /// Subtracts from the value, wrapping around; returns the value before.
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;

    /// Sets the bits of `value`; returns the value before.
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;

    /// Clears the bits that `value` lacks; returns the value before.
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;

    /// Replaces the value by `new` if it is `current`; returns the value before.
    ///
    /// # Errors
    /// The value, which is not `current` and stays as it is.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;

    /// Replaces the value by `new` if it is `current`, as `compare_exchange` does, but may fail although the value is
    /// `current`.
    ///
    /// # Errors
    /// The value, which was not replaced.
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;

    /// Orders the accesses of this thread to all words of this type, as `std::sync::atomic::fence` does.
    fn fence(order: Ordering);
}

impl AtomicWord for AtomicU64 {
    #[inline]
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, order)
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_sub(value, order)
    }

    #[inline]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_or(value, order)
    }

    #[inline]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_and(value, order)
    }

    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }

    #[inline]
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, success, failure)
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}
