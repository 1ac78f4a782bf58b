//! A journal that differs from the written one: flushed data is there, or the host is not opened.

use super::crash::{Model, live};
use super::kit::{Fuse, Machine, SMALL};
use headstart_block::ErrorKind;
use headstart_flash::device::emulator::FlashFaults;
use headstart_flash::journal::repair::{JournalFault, examine};
use std::sync::Arc;

/// A machine whose host lived and was killed, or closed, after a flush of all; its model and its journal.
fn lived(closed: bool) -> (Machine, Model, Vec<u8>) {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.start(&Fuse::of(u64::MAX)).unwrap();
    let mut model = Model::default();
    live(&host, &mut model).unwrap();
    model.write(&host, "regular", 0..8).unwrap();
    for name in ["regular", "second"] {
        model.flush(&host, name).unwrap();
    }
    if closed {
        host.close().unwrap();
    }
    drop(host);
    let journal = std::fs::read(machine.journal()).unwrap();
    (machine, model, journal)
}

/// Opens a host on copies of all, and checks that flushed data is there; `false` if it is not opened.
fn opens(machine: &mut Machine, model: &Model, journal: &[u8], what: &str) -> bool {
    let flash = Arc::clone(&machine.flash);
    machine.flash = Arc::new(flash.copied());
    std::fs::write(machine.journal(), journal).unwrap();
    let opened = machine.start(&Fuse::of(u64::MAX));
    let is_open = match opened {
        Ok(host) => {
            model.clone().check(&host);
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid), "{what}: {error}");
            false
        }
    };
    machine.flash = flash;
    is_open
}

#[test]
fn a_wrong_bit_anywhere_never_changes_what_was_flushed() {
    for closed in [false, true] {
        let (mut machine, model, journal) = lived(closed);
        let front = headstart_flash::journal::FRONT;
        let sampled = (front..journal.len()).step_by((journal.len() - front) / 150);
        let last = (journal.len() - 120..journal.len()).step_by(3);
        let (mut refused, mut all) = (0, 0);
        for at in (0..48).step_by(5).chain((4096..front).step_by(4099)).chain(sampled).chain(last) {
            let (mut broken, bit) = (journal.clone(), u32::try_from(at % 8).unwrap());
            broken[at] ^= 1 << bit;
            all += 1;
            if opens(&mut machine, &model, &broken, &format!("bit {bit} of byte {at}")) {
                continue;
            }
            refused += 1;
            // A refused journal is put right, and nothing is lost.
            let examined = examine(&broken).unwrap();
            assert_eq!(examined.faults, [JournalFault::Bit { at: at as u64, bit }]);
            assert!(examined.mended == journal);
        }
        assert!(refused > 100 && refused < all, "{refused} of {all}");
        assert!(opens(&mut machine, &model, &journal, "as it was"));
    }
}

#[test]
fn a_journal_that_lost_its_end_after_it_was_closed_is_not_opened() {
    let (mut machine, model, journal) = lived(true);
    let front = headstart_flash::journal::FRONT;
    for cut in (front..journal.len()).step_by((journal.len() - front) / 60) {
        opens(&mut machine, &model, &journal[..cut], &format!("cut at {cut}"));
        let mut zeroed = journal.clone();
        zeroed[cut..].fill(0);
        opens(&mut machine, &model, &zeroed, &format!("zeros from {cut} on"));
    }
}
