//! Jobs that take too long, come too late or fail.

use super::super::{HarvestRequest, Host, ReportKind};
use super::kit::{BLOCK, Fuse, HOUR, Machine, PAGE, SMALL, harvest_request, pattern, read_page, spec};
use headstart_block::ErrorKind;
use headstart_broker::{BlockRun, BrokerAction, BrokerAnswer, BrokerEvent, BrokerRequestId};
use headstart_flash::device::emulator::FlashFaults;
use headstart_flash::{GssdId, VssdId, VssdKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pages that the borrower has written: more than one step of the collector moves, less than its own blocks hold.
const PAGES: u32 = 130;

/// A borrower with a lease that holds about a third of its pages.
fn lent(machine: &mut Machine, fuse: &Arc<Fuse>) -> (Arc<Host>, GssdId) {
    let host = machine.start(fuse).unwrap();
    host.create("regular", spec(VssdKind::Regular, 2, Some(20 * 8 * PAGE as u64))).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR).unwrap();
    let lease = host.request("ghost", harvest_request(12)).unwrap()[0].id;
    write(&host, 1);
    (host, lease)
}

fn write(host: &Host, generation: u32) {
    let disk = host.disk("ghost").unwrap();
    for page in 0..PAGES {
        disk.write_at(&pattern(b'G', page, generation), u64::from(page) * PAGE as u64).unwrap();
    }
    disk.flush().unwrap();
}

fn number(host: &Host, name: &str) -> VssdId {
    host.list().iter().find(|vssd| vssd.name == name).map(|vssd| vssd.id).unwrap()
}

fn holds(host: &Host, generation: u32) {
    let disk = host.disk("ghost").unwrap();
    for page in 0..PAGES {
        let read = read_page(disk.as_ref(), page).unwrap();
        assert!(read.iter().all(|sector| *sector == Some((b'G', page, generation))), "page {page}");
    }
}

fn press(host: &Host) {
    let home = number(host, "regular");
    host.notify(BrokerEvent::SpacePressure { lender: home, bandwidth: 0, capacity: 8 }).unwrap();
}

/// Makes the pages of a lease unreadable, so that they cannot be moved.
fn spoil(host: &Host, fuse: &Fuse, lease: GssdId) {
    fuse.unreadable.lock().extend(host.custody.blocks(lease).into_iter().flat_map(BlockRun::blocks));
}

#[test]
fn a_home_that_is_pressed_waits_for_so_long() {
    for (pressed, slow) in [(true, false), (true, true), (false, true)] {
        let mut machine = Machine::new(SMALL, FlashFaults::default());
        let (host, lease) = lent(&mut machine, &Fuse::of(u64::MAX));
        // Each look at the clock takes a twentieth of a second, and each page is waited for.
        machine.pace.store(if slow { 50_000 } else { 500 }, Ordering::SeqCst);
        let before = machine.time();
        if pressed {
            press(&host);
        } else {
            host.release("ghost", Some(lease)).unwrap();
        }
        let took = machine.time() - before;
        machine.pace.store(500, Ordering::SeqCst);
        assert!(
            host.status().leases.is_empty(),
            "pressed {pressed}, slow {slow}: {:?}",
            host.status().leases
        );
        let reports = host.reports();
        if pressed && slow {
            assert!(took < Duration::from_secs(60), "{took:?}");
            let [report] = &reports[..] else { unreachable!("{reports:?}") };
            assert_eq!(report.what, ReportKind::Evicted);
            assert!(report.text.contains("it was not done within 10 s"), "{report:?}");
        } else {
            assert!(reports.is_empty(), "{reports:?}");
            holds(&host, 1);
        }
        assert_eq!(host.status().pool.iter().filter(|pooled| !pooled.ready).count(), 0);
        assert!(!pressed || host.list().iter().all(|vssd| vssd.lent == 0), "its owner has it");
    }
}

#[test]
fn unreadable_pages_are_lost_with_their_lease_or_kept() {
    for pressed in [true, false] {
        let mut machine = Machine::new(SMALL, FlashFaults::default());
        let fuse = Fuse::of(u64::MAX);
        let (host, lease) = lent(&mut machine, &fuse);
        spoil(&host, &fuse, lease);
        if pressed {
            press(&host);
        } else {
            host.release("ghost", Some(lease)).unwrap();
        }
        assert!(host.status().leases[0].leaving);
        for _ in 0..20 {
            machine.pass(Duration::from_secs(5));
            host.tick();
        }
        let (leases, reports) = (host.status().leases, host.reports());
        assert!(leases.iter().all(|lease| !lease.leaving), "{leases:?}");
        let [report] = &reports[..] else { unreachable!("{reports:?}") };
        assert_eq!(report.what, if pressed { ReportKind::Evicted } else { ReportKind::Kept });
        assert_eq!(leases.len(), usize::from(!pressed));
        // It is a lease like any other again.
        fuse.unreadable.lock().clear();
        if !pressed {
            holds(&host, 1);
            write(&host, 2);
            host.release("ghost", Some(lease)).unwrap();
            assert!(host.status().leases.is_empty());
            holds(&host, 2);
        }
    }
}

#[test]
fn a_job_that_is_tried_again_leaves_the_next_lease_alone() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let fuse = Fuse::of(u64::MAX);
    let (host, lease) = lent(&mut machine, &fuse);
    spoil(&host, &fuse, lease);
    host.release("ghost", Some(lease)).unwrap();
    host.release("ghost", None).unwrap();
    assert!(host.status().leases.is_empty());
    fuse.unreadable.lock().clear();
    host.request("ghost", harvest_request(12)).unwrap();
    write(&host, 2);
    host.tick();
    let ghost = host.volume(number(&host, "ghost")).unwrap();
    assert_eq!(ghost.read().vssd.harvested(), [1]);
    assert!(!ghost.read().vssd.is_draining(1), "nobody has asked for it");
    holds(&host, 2);
    assert!(host.status().leases.iter().all(|lease| !lease.leaving));
}

/// A borrower that refuses a lease does not prevent the answers to others or any other decided action.
#[test]
fn an_action_that_fails_takes_no_other_along() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(20 * 8 * PAGE as u64))).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR).unwrap();
    let lease = host.request("ghost", harvest_request(8)).unwrap()[0].id;
    let ghost = host.list().iter().find(|vssd| vssd.name == "ghost").map(|vssd| vssd.id).unwrap();
    // It has these blocks already, in another slot.
    let refused = BrokerAction::Attach { gssd: lease, borrower: ghost, slot: 77 };
    let request = BrokerRequestId(1 << 40);
    let answer = BrokerAction::Answer { request, answer: BrokerAnswer::Nothing };
    let failed = {
        let control = &mut *host.control.lock();
        host.decide(control, vec![refused, answer]).and_then(|()| host.act(control))
    };
    assert!(failed.is_err());
    assert_eq!(host.answer_to(request), Some(BrokerAnswer::Nothing));
    // From now on nothing is decided, and every caller is told the reason.
    let told = host.request("ghost", harvest_request(1)).unwrap_err().to_string();
    assert!(told.contains("it stopped") && told.contains(&format!("gSSD {}", lease.0)), "{told}");
    // Disks go on, and a restart puts all in order.
    host.disk("regular").unwrap().write_at(&[7; PAGE], 0).unwrap();
    drop(host);
    let host = machine.restart();
    assert_eq!(host.status().leases.len(), 1);
    host.release("ghost", None).unwrap();
    assert_eq!(host.status().leases.len(), 0);
}

#[test]
fn unsold_flash_is_offered_for_as_long_as_its_like_was_unsold() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let mut host = machine.restart();
    let lasts = |host: &Host, name: &str| {
        let vssd = host.list().into_iter().find(|vssd| vssd.name == name).unwrap();
        vssd.forecast.unwrap().lasts_s
    };
    let minutes = Duration::from_secs(60);
    host.create("stays", spec(VssdKind::Unsold, 1, None)).unwrap();
    for round in 0..20 {
        assert_eq!(lasts(&host, "stays"), 12 * 3600, "{round} are too few");
        host.create("goes", spec(VssdKind::Unsold, 1, None)).unwrap();
        machine.pass(100 * minutes);
        host.delete("goes").unwrap();
        if round == 10 {
            host.rewrite().unwrap();
            machine.pass(minutes);
            host = machine.restart();
        }
        host.tick();
    }
    // For a vSSD that has been there for longer than any before, there is no better estimate.
    assert_eq!(lasts(&host, "stays"), 12 * 3600);
    for restart in [false, true] {
        if restart {
            host = machine.restart();
        }
        host.create("new", spec(VssdKind::Unsold, 1, None)).unwrap();
        let new = lasts(&host, "new");
        assert!(new <= 100 * 60 && new > 80 * 60, "{new}");
        machine.pass(30 * minutes);
        host.tick();
        let older = lasts(&host, "new");
        assert!(older + 30 * 60 <= new && older + 31 * 60 > new, "{new}, then {older}");
        host.delete("new").unwrap();
    }
}

#[test]
fn unleased_flash_grows_with_a_larger_offer() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(8 * BLOCK))).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    let pooled = |host: &Host| host.status().pool.iter().map(|it| it.capacity / BLOCK).collect::<Vec<_>>();
    host.offer("regular", 2, 8 * BLOCK, HOUR).unwrap();
    assert_eq!(pooled(&host), [8]);
    let offered = |host: &Host| {
        let regular = host.list().into_iter().find(|vssd| vssd.name == "regular").unwrap();
        [regular.offered, regular.erasing, regular.leased, regular.lent].map(|bytes| bytes / BLOCK)
    };
    assert_eq!(offered(&host), [8, 0, 0, 8]);
    host.offer("regular", 2, 16 * BLOCK, HOUR).unwrap();
    assert_eq!((pooled(&host), offered(&host)), (vec![16], [16, 0, 0, 16]));
    // For longer, too.
    assert!(host.request("ghost", HarvestRequest { duration: 3 * HOUR, ..harvest_request(4) }).is_err());
    host.offer("regular", 2, 16 * BLOCK, 5 * HOUR).unwrap();
    let lease =
        &host.request("ghost", HarvestRequest { duration: 3 * HOUR, ..harvest_request(4) }).unwrap()[0];
    assert_eq!((lease.capacity, offered(&host)), (16 * BLOCK, [0, 0, 16, 16]));
    // A leased gSSD stays as it is.
    host.offer("regular", 2, 20 * BLOCK, 5 * HOUR).unwrap();
    assert_eq!(offered(&host), [0, 0, 16, 16]);
    let nothing = host.request("ghost", HarvestRequest { capacity: 0, ..harvest_request(1) }).unwrap_err();
    assert!(nothing.kind() == ErrorKind::Invalid && nothing.to_string().contains("asks for nothing"));
}
