//! Channels that swap owners.

use super::super::Host;
use super::kit::{BLOCK, HOUR, Machine, PAGE, SMALL, harvest_request, pattern, read_page, spec};
use headstart_flash::custody::Holder;
use headstart_flash::device::FlashBlock;
use headstart_flash::device::emulator::FlashFaults;
use headstart_flash::{VssdId, VssdKind};
use std::sync::Arc;
use std::time::Duration;

const PAGES: u32 = 60;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn make(host: &Arc<Host>, name: &str, letter: u8) {
    host.create(name, spec(VssdKind::Regular, 2, Some(16 * 8 * PAGE as u64))).unwrap();
    write(host, name, letter, 1);
}

fn write(host: &Arc<Host>, name: &str, letter: u8, generation: u32) {
    let disk = host.disk(name).unwrap();
    for page in 0..PAGES {
        disk.write_at(&pattern(letter, page, generation), u64::from(page) * PAGE as u64).unwrap();
    }
    disk.flush().unwrap();
}

fn holds(host: &Arc<Host>, name: &str, letter: u8, generation: u32) {
    let disk = host.disk(name).unwrap();
    for page in 0..u32::try_from(disk.size() / PAGE as u64).unwrap() {
        let said = (page < PAGES).then_some((letter, page, generation));
        assert!(
            read_page(disk.as_ref(), page).unwrap().iter().all(|sector| *sector == said),
            "{name} {page}"
        );
    }
}

fn owned(host: &Host, name: &str) -> (VssdId, Vec<u16>) {
    let id = host.list().iter().find(|vssd| vssd.name == name).map(|vssd| vssd.id).unwrap();
    let channels = host.volume(id).unwrap().channels();
    for channel in &channels {
        for block in SMALL.blocks_of(*channel) {
            let holder = host.custody.holder(FlashBlock(block));
            assert!(holder == Holder::Vssd(id) || holder == Holder::Nobody, "{block}: {holder:?}");
        }
    }
    (id, channels)
}

#[test]
fn two_channels_swap_owners() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let mut host = machine.restart();
    make(&host, "one", b'1');
    make(&host, "other", b'2');
    let (one, other) = (owned(&host, "one"), owned(&host, "other"));
    host.plan((one.0, one.1[0]), (other.0, other.1[1]));
    host.tick();
    for restart in [false, true] {
        if restart {
            host.rewrite().unwrap();
            drop(host);
            host = machine.restart();
        }
        assert_eq!(host.planned_swap(), None);
        assert_eq!(owned(&host, "one").1, [one.1[1], other.1[1]]);
        assert_eq!(owned(&host, "other").1, [one.1[0], other.1[0]]);
        holds(&host, "one", b'1', 1 + u32::from(restart));
        holds(&host, "other", b'2', 1);
        write(&host, "one", b'1', 2);
        write(&host, "other", b'2', 1);
    }
    // All harvested storage of them is counted in its new place.
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap_err();
    host.delete("other").unwrap();
    assert_eq!(host.status().flash.free_channels, 2);
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.offer("one", 2, 20 * 8 * PAGE as u64, 10 * HOUR).unwrap();
    let lease = host.request("ghost", harvest_request(8)).unwrap()[0].clone();
    assert_eq!(lease.home, "one");
    write(&host, "ghost", b'3', 1);
    host.release("ghost", None).unwrap();
    holds(&host, "one", b'1', 2);
}

/// Pooled storage goes home, leased storage is waited for.
#[test]
fn lent_channels_are_not_swapped() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    make(&host, "one", b'1');
    host.create("other", spec(VssdKind::Unsold, 1, None)).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    let (one, other) = (owned(&host, "one"), owned(&host, "other"));
    assert!(host.request("ghost", harvest_request(4)).unwrap().iter().all(|lease| lease.home == "other"));
    host.plan((one.0, one.1[0]), (other.0, other.1[0]));
    let minutes = Duration::from_secs(660);
    for round in 0..3 {
        host.tick();
        machine.pass(minutes);
        assert_eq!(owned(&host, "one").1, one.1, "{round}: it is leased");
        assert_eq!(host.status().leases.len(), 1);
    }
    host.release("ghost", None).unwrap();
    for _ in 0..3 {
        host.tick();
        machine.pass(minutes);
    }
    assert_eq!(host.planned_swap(), None);
    assert_eq!(owned(&host, "one").1, [one.1[1], other.1[0]]);
    holds(&host, "one", b'1', 1);
    // It is lent again.
    machine.pass(minutes);
    host.tick();
    assert!(host.request("ghost", harvest_request(4)).unwrap().iter().all(|lease| lease.home == "other"));
}

/// A vSSD that is full keeps its channels.
#[test]
fn a_full_vssd_keeps_its_channels() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    host.create("one", spec(VssdKind::Regular, 1, None)).unwrap();
    make(&host, "other", b'2');
    host.disk("one").unwrap().write_at(&pattern(b'1', 0, 1), 0).unwrap();
    let (one, other) = (owned(&host, "one"), owned(&host, "other"));
    host.plan((one.0, one.1[0]), (other.0, other.1[0]));
    host.tick();
    assert_eq!((owned(&host, "one").1, owned(&host, "other").1), (one.1, other.1));
    let disk = host.disk("one").unwrap();
    for page in 0..u32::try_from(disk.size() / PAGE as u64).unwrap() {
        disk.write_at(&pattern(b'1', page, 2), u64::from(page) * PAGE as u64).unwrap();
    }
    write(&host, "other", b'2', 2);
    holds(&host, "other", b'2', 2);
}

/// One that writes a lot and one that does not, for more than a year.
#[test]
fn channels_that_wear_fast_swap_with_those_that_do_not() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    make(&host, "hot", b'1');
    make(&host, "cold", b'2');
    let (mut generation, mut swaps) = (1, 0);
    for _ in 0..24 {
        for _ in 0..12 {
            generation += 1;
            write(&host, "hot", b'1', generation);
        }
        let channels = owned(&host, "hot").1;
        machine.pass(20 * DAY);
        for _ in 0..3 {
            // Lent storage goes home first.
            host.tick();
            machine.pass(Duration::from_secs(660));
        }
        swaps += u32::from(owned(&host, "hot").1 != channels);
        holds(&host, "hot", b'1', generation);
        holds(&host, "cold", b'2', 1);
    }
    let wear: Vec<u64> = (0..4).map(|channel| host.wear_of(&SMALL, channel)).collect();
    let (sum, most) = (wear.iter().sum::<u64>(), wear.iter().max().unwrap());
    // It writes to one or two of the four at a time, which would have worn two to four times as much as the mean.
    assert!(swaps > 6 && most * 4 < sum * 3 / 2, "{swaps} swaps: {wear:?}");
}

#[test]
fn wear_for_harvest_vms_is_counted_for_good() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    make(&host, "home", b'1');
    // A vSSD that was not involved is deleted, and erased.
    make(&host, "other", b'3');
    host.delete("other").unwrap();
    let erased = host.status().flash;
    assert!(erased.erasures > 0 && erased.harvest_erasures == 0, "{erased:?}");
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.offer("home", 2, 16 * BLOCK, 10 * HOUR).unwrap();
    host.request("ghost", harvest_request(8)).unwrap();
    write(&host, "ghost", b'2', 1);
    host.release("ghost", None).unwrap();
    let count = |host: &Host| {
        let home = host.list().into_iter().find(|vssd| vssd.name == "home").unwrap();
        let flash = host.status().flash;
        (flash.harvest_erasures, flash.erasures, home.harvest_wear.to_bits())
    };
    let counted = count(&host);
    assert!(counted.0 > 0 && counted.0 < counted.1 && counted.2 > 0, "{counted:?}");
    let written = host.status().flash.written_bytes;
    host.close().unwrap();
    drop(host);
    let host = machine.restart();
    assert_eq!(count(&host), counted);
    host.rewrite().unwrap();
    drop(host);
    let host = machine.restart();
    assert_eq!(count(&host), counted);
    // Written bytes are counted from each start on, and stay counted when their writer is gone.
    assert!(written > 0 && host.status().flash.written_bytes == 0);
    write(&host, "ghost", b'2', 9);
    let written = host.status().flash.written_bytes;
    host.delete("ghost").unwrap();
    assert!(written > 0 && host.list().len() == 1 && host.status().flash.written_bytes == written);
}
