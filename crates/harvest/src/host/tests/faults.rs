//! Erasures that fail, and requests by the thousand.

use super::super::{Host, Kind};
use super::kit::{HOUR, Machine, PAGE, SMALL, pattern, read_page, spec, wish};
use crate::broker::Run;
use crate::custody::Holder;
use crate::flash::FlashBlock;
use crate::flash::emulator::Faults;

#[test]
fn a_block_that_cannot_be_erased_never_comes_back() {
    let mut machine = Machine::new(SMALL, Faults::default());
    let mut host = machine.restart();
    host.create("regular", spec(Kind::Regular, 2, Some(20 * 8 * PAGE as u64))).unwrap();
    host.create("ghost", spec(Kind::Harvest, 1, None)).unwrap();
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR).unwrap();
    let lease = host.request("ghost", wish(8)).unwrap()[0].id;
    let disk = host.disk("ghost").unwrap();
    for page in 0..u32::try_from(disk.size() / PAGE as u64).unwrap() - 40 {
        disk.write_at(&pattern(b'G', page, 1), u64::from(page) * PAGE as u64).unwrap();
    }
    disk.flush().unwrap();
    drop(disk);
    let leased: Vec<FlashBlock> = host.custody.blocks(lease).into_iter().flat_map(Run::blocks).collect();
    let broken = [leased[1], leased[4]];
    broken.iter().for_each(|block| machine.flash.fail_next_erase(*block));
    host.release("ghost", None).unwrap();
    for round in 0..3 {
        for block in broken {
            assert_eq!(host.custody.holder(block), Holder::Bad, "round {round}");
        }
        assert_eq!(host.status().flash.bad_blocks, 2);
        // Neither its home nor the next harvest VM meets it.
        host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR).unwrap();
        if let Ok(leases) = host.request("ghost", wish(8)) {
            let blocks = leases.iter().flat_map(|lease| host.custody.blocks(lease.id)).flat_map(Run::blocks);
            assert!(blocks.into_iter().all(|block| !broken.contains(&block)), "round {round}");
        }
        for (name, letter) in [("regular", b'R'), ("ghost", b'H')] {
            let disk = host.disk(name).unwrap();
            for page in 0..u32::try_from(disk.size() / PAGE as u64).unwrap().min(130) {
                disk.write_at(&pattern(letter, page, round), u64::from(page) * PAGE as u64).unwrap();
                let read = read_page(disk.as_ref(), page).unwrap();
                assert!(read.iter().all(|sector| *sector == Some((letter, page, round))));
            }
            disk.flush().unwrap();
        }
        host.release("ghost", None).unwrap();
        drop(host);
        host = machine.restart();
    }
}

/// Waits until nothing is leased and all that is in the pool is erased.
fn settled(host: &Host) {
    for _ in 0..2000 {
        host.tick();
        let status = host.status();
        if status.leases.is_empty() && status.pool.iter().all(|pooled| pooled.ready) {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

#[test]
fn requests_from_all_sides_share_out_what_there_is() {
    let mut machine = Machine::new(SMALL, Faults::default());
    machine.inline = false;
    let host = machine.restart();
    host.create("regular", spec(Kind::Regular, 2, Some(20 * 8 * PAGE as u64))).unwrap();
    host.create("one", spec(Kind::Harvest, 1, None)).unwrap();
    host.create("two", spec(Kind::Harvest, 1, None)).unwrap();
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 1000 * HOUR).unwrap();
    settled(&host);
    assert!(!host.status().pool.is_empty());
    let granted = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..20 {
            let (host, granted) = (&host, &granted);
            let name = if thread % 2 == 0 { "one" } else { "two" };
            scope.spawn(move || {
                for _ in 0..500 {
                    if let Ok(leases) = host.request(name, wish(4)) {
                        assert!(!leases.is_empty());
                        granted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        host.release(name, None).unwrap();
                    }
                }
            });
        }
    });
    settled(&host);
    let status = host.status();
    assert!(status.leases.is_empty() && status.pool.iter().all(|pooled| pooled.ready), "{status:?}");
    assert_eq!(status.broker.requests, 10_000);
    assert!(granted.into_inner() > 0);
}
