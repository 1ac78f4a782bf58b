//! The state of the check of a blob without a hash tree (`whole`).

use headstart_block::{Digest, Error};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The number of times that a blob may be whole and wrong, in one process, before nothing of it is taken any more.
pub(crate) const WRONG_MOST: u32 = 3;

/// The state of the check of a whole blob.
#[derive(Default)]
pub(crate) struct CheckState {
    /// `true` while a thread checks the blob.
    pub(crate) running: AtomicBool,
    /// The number of times that it was wrong since it was right.
    pub(crate) wrong: AtomicU32,
    /// The number of times that it was wrong in all.
    pub(crate) wrong_in_all: AtomicU32,
}

impl CheckState {
    /// The error by which nothing of the blob, whose digest is `blob`, is taken any more, if that is so.
    pub(crate) fn refusal(&self, blob: &Digest) -> Option<Error> {
        let wrong = self.wrong.load(Ordering::Acquire);
        (wrong >= WRONG_MOST).then(|| {
            Error::corrupt(format!("came whole {wrong} times, each time with another digest than its name"))
                .about(format!("blob {blob}"))
                .remedy("its store gives wrong bytes: repair it there, then detach and attach again")
        })
    }

    pub(crate) fn times_wrong(&self) -> u32 {
        self.wrong_in_all.load(Ordering::Acquire)
    }
}
