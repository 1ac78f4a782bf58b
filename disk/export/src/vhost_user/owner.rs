//! The owner of a disk that can be written: one front end at a time.
//!
//! A hypervisor that restarts connects again while the connection of its earlier life may still be torn down, with
//! writes under way that must not reach the disk after those of its new life. So the next front end waits, at the start
//! of its first ring, until the one before has left. Connections that start no ring hold up no other.

use super::blk::Target;
use crate::complaints::complain;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Owner {
    taken: Mutex<bool>,
    left: Condvar,
}

impl Owner {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.taken.lock()
    }

    /// Waits until the disk is free and takes it; `false` if `gone` is `true` first.
    pub(crate) fn claim(&self, target: &Target, gone: &dyn Fn() -> bool) -> bool {
        let mut taken = self.lock();
        if *taken {
            let disk = &target.name;
            complain!(
                target.complaints,
                Waits,
                "{disk}: another front end uses the disk; the new one waits until it has left"
            );
        }
        while *taken {
            if gone() {
                return false;
            }
            self.left.wait_for(&mut taken, Duration::from_millis(50));
        }
        *taken = true;
        true
    }

    /// Gives the disk back.
    pub(crate) fn leave(&self) {
        *self.lock() = false;
        self.left.notify_all();
    }
}
