//! Reads and clients that come together, in every order of their steps that the memory model allows.
//!
//! The last tests weaken one ordering each, and must fail. Steps that were swapped to see the model fail: the beginning
//! of a boot and the end of the pause; the looks at the time of the last read and at the boot.

use super::BootClock;
use headstart_block::{AtomicWord, ByteRange};
use headstart_testkit::model::{ModelWord, WordOperation, in_every_order};
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};

type Strong = ModelWord<true>;

const HOUR_US: u64 = 3_600_000_000;

fn sector() -> ByteRange {
    ByteRange::between(0, 512)
}

/// Makes a clock that has seen a boot begin after a second, of a client that has left.
fn used(clock: BootClock<Strong>) -> BootClock<Strong> {
    clock.client_came();
    clock.read_arrived(sector(), 1_000_000);
    clock.client_left();
    clock
}

/// Three threads read the boot sector at `times`: one boot begins, and all the reads are of that.
fn read_together(clock: BootClock<Strong>, times: [u64; 3]) {
    let before = clock.boots();
    let clock = Arc::new(clock);
    let others = [times[1], times[2]].map(|at_us| {
        let clock = Arc::clone(&clock);
        thread::spawn(move || clock.read_arrived(sector(), at_us))
    });
    let mut of = vec![clock.read_arrived(sector(), times[0])];
    of.extend(others.map(|other| other.join().unwrap()));
    assert_eq!(clock.boots(), before + 1, "a boot began twice");
    assert_eq!(of, [clock.boot(); 3], "a read is counted to the boot before");
}

#[test]
fn reads_that_come_together_belong_to_the_first_boot() {
    in_every_order(3, || read_together(BootClock::new(), [HOUR_US; 3]));
}

#[test]
fn reads_that_come_together_after_a_pause_belong_to_one_boot() {
    in_every_order(3, || read_together(used(BootClock::new()), [HOUR_US, HOUR_US, HOUR_US + 200_000]));
}

#[test]
fn reads_that_come_together_of_a_new_client_belong_to_one_boot() {
    in_every_order(3, || {
        let clock = used(BootClock::new());
        clock.client_came();
        read_together(clock, [1_050_000, 1_050_000, 1_200_000]);
    });
}

#[test]
fn a_read_of_another_place_begins_no_boot() {
    in_every_order(2, || {
        let clock = Arc::new(used(BootClock::new()));
        let (first, other) = (clock.boot(), Arc::clone(&clock));
        let elsewhere = thread::spawn(move || other.read_arrived(ByteRange::between(4096, 8192), HOUR_US));
        let of_sector = clock.read_arrived(sector(), HOUR_US);
        let of_elsewhere = elsewhere.join().unwrap();
        // Whichever came first has ended the pause.
        assert_eq!(clock.boot(), of_sector);
        assert_eq!(clock.boots(), if of_sector == first { 1 } else { 2 });
        assert!(of_elsewhere == first || of_elsewhere == of_sector);
    });
}

/// A client leaves after the first read of a boot. If another comes after that, its first read begins a boot. Returns
/// the number of orders in which it does.
fn replace_client(clients: impl Fn() -> Strong + Send + Sync + 'static) -> usize {
    let replaced = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&replaced);
    in_every_order(2, move || {
        let clock = BootClock { clients: clients(), ..BootClock::new() };
        clock.client_came();
        let clock = Arc::new(clock);
        let leaving = Arc::clone(&clock);
        let old = thread::spawn(move || {
            let boot = leaving.read_arrived(sector(), 1_000_000);
            leaving.client_left();
            boot
        });
        if clock.clients.load(Ordering::Relaxed) == 0 {
            clock.client_came();
            let of_new = clock.read_arrived(sector(), 1_050_000);
            assert_ne!(of_new, old.join().unwrap(), "a new client's boot is not noticed");
            assert_eq!(clock.boots(), 2);
            count.fetch_add(1, Ordering::Relaxed);
        } else {
            old.join().unwrap();
        }
    });
    replaced.load(Ordering::Relaxed)
}

#[test]
fn a_client_that_comes_after_another_has_left_begins_a_boot() {
    assert!(replace_client(|| Strong::new(0)) > 0);
}

/// Reads together after a pause, with another word for the time of the last read.
fn read_together_weakened(operation: WordOperation) {
    in_every_order(3, move || {
        let last_read_us = Strong::weakened(0, operation);
        read_together(used(BootClock { last_read_us, ..BootClock::new() }), [HOUR_US; 3]);
    });
}

#[test]
#[should_panic(expected = "a read is counted to the boot before")]
fn a_pause_that_ends_without_release_loses_a_read() {
    read_together_weakened(WordOperation::Max);
}

#[test]
#[should_panic(expected = "a read is counted to the boot before")]
fn a_pause_that_is_looked_at_without_acquire_loses_a_read() {
    read_together_weakened(WordOperation::Load);
}

#[test]
#[should_panic(expected = "a new client's boot is not noticed")]
fn a_client_that_leaves_without_release_hides_the_next_boot() {
    replace_client(|| Strong::weakened(0, WordOperation::Sub));
}

#[test]
#[should_panic(expected = "a new client's boot is not noticed")]
fn a_client_that_comes_without_acquire_hides_its_boot() {
    replace_client(|| Strong::weakened(0, WordOperation::Add));
}
