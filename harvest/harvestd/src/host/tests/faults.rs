//! Erasures that fail, pages that cannot be read, and requests by the thousand.

use super::super::{Host, ReportKind};
use super::kit::{HOUR, Machine, PAGE, SMALL, harvest_request, pattern, read_page, spec};
use headstart_block::random::Random;
use headstart_broker::BlockRun;
use headstart_flash::VssdKind;
use headstart_flash::custody::Holder;
use headstart_flash::device::emulator::FlashFaults;
use headstart_flash::device::{Flash, FlashBlock};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_block_that_cannot_be_erased_never_comes_back() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let mut host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(20 * 8 * PAGE as u64))).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR).unwrap();
    let lease = host.request("ghost", harvest_request(8)).unwrap()[0].id;
    let disk = host.disk("ghost").unwrap();
    for page in 0..u32::try_from(disk.size() / PAGE as u64).unwrap() - 40 {
        disk.write_at(&pattern(b'G', page, 1), u64::from(page) * PAGE as u64).unwrap();
    }
    disk.flush().unwrap();
    drop(disk);
    let leased: Vec<FlashBlock> = host.custody.blocks(lease).into_iter().flat_map(BlockRun::blocks).collect();
    let broken = [leased[1], leased[4]];
    broken.iter().for_each(|block| machine.flash.fail_next_erase(*block));
    host.release("ghost", None).unwrap();
    for round in 0..3 {
        for block in broken {
            assert_eq!(host.custody.holder(block), Holder::Bad, "round {round}");
        }
        assert_eq!(host.status().flash.bad_blocks, 2);
        // Neither its lender nor the next harvest VM meets the bad block.
        host.offer("regular", 2, 22 * 8 * PAGE as u64, 10 * HOUR).unwrap();
        if let Ok(leases) = host.request("ghost", harvest_request(8)) {
            let blocks =
                leases.iter().flat_map(|lease| host.custody.blocks(lease.id)).flat_map(BlockRun::blocks);
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

/// A host with one regular vSSD on two channels, full; the number of its pages.
fn full(machine: &mut Machine) -> (Arc<Host>, u32) {
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(36 * 8 * PAGE as u64))).unwrap();
    let pages = 36 * 8;
    let disk = host.disk("regular").unwrap();
    for page in 0..pages {
        disk.write_at(&pattern(b'R', page, 1), u64::from(page) * PAGE as u64).unwrap();
    }
    disk.flush().unwrap();
    (host, pages)
}

fn locate(host: &Host, page: u32) -> (FlashBlock, u32) {
    let id = host.list()[0].id;
    host.volume(id).unwrap().read().vssd.locate(page).unwrap().unwrap()
}

/// Writes pages here and there, some of them again and again: collecting must go on.
fn churn(host: &Host, pages: u32, keep: &[u32], generation: u32) {
    let disk = host.disk("regular").unwrap();
    let mut random = Random::new(generation.into());
    for _ in 0..pages * 3 {
        let page = u32::try_from(random.below(pages as usize)).unwrap();
        if !keep.contains(&page) {
            disk.write_at(&pattern(b'R', page, generation), u64::from(page) * PAGE as u64).unwrap();
        }
    }
    disk.flush().unwrap();
}

#[test]
fn a_page_that_cannot_be_read_does_not_stop_collection() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let (host, pages) = full(&mut machine);
    let broken = [77, 78, 200];
    for page in broken {
        let (block, at) = locate(&host, page);
        machine.flash.make_unreadable(block, at).unwrap();
    }
    for round in 2..8 {
        churn(&host, pages, &broken, round);
        machine.pass(Duration::from_secs(1));
        host.tick();
    }
    let lost = host.status().flash.unreadable_pages;
    assert_eq!(lost, 3, "{:?}", host.reports());
    let reports = host.reports();
    let told: Vec<_> = reports.iter().filter(|report| report.what == ReportKind::Unreadable).collect();
    assert!(told.iter().all(|report| report.vssd == "regular"), "{told:?}");
    let text = format!("is at byte {} of the disk (page", 77 * PAGE);
    assert!(told.iter().any(|report| report.text.contains(&text)), "{told:?}");
    // They fail, are the only ones, and stay so over a restart; pages that are written again are there again.
    drop(host);
    let host = machine.restart();
    let disk = host.disk("regular").unwrap();
    for page in 0..pages {
        let read = read_page(disk.as_ref(), page);
        assert_eq!(read.is_err(), broken.contains(&page), "page {page}: {read:?}");
    }
    for page in broken {
        disk.write_at(&pattern(b'R', page, 99), u64::from(page) * PAGE as u64).unwrap();
        assert_eq!(read_page(disk.as_ref(), page).unwrap()[0], Some((b'R', page, 99)));
    }
    drop(disk);
    for round in 10..14 {
        churn(&host, pages, &[], round);
    }
    assert_eq!(host.status().flash.unreadable_pages, 0);
}

#[test]
fn a_lease_with_a_page_that_cannot_be_read_moves_without_it() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.create("regular", spec(VssdKind::Regular, 2, Some(20 * 8 * PAGE as u64))).unwrap();
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR).unwrap();
    let lease = host.request("ghost", harvest_request(8)).unwrap()[0].id;
    let leased: Vec<FlashBlock> = host.custody.blocks(lease).into_iter().flat_map(BlockRun::blocks).collect();
    let disk = host.disk("ghost").unwrap();
    for page in 0..80 {
        disk.write_at(&pattern(b'G', page, 1), u64::from(page) * PAGE as u64).unwrap();
    }
    disk.flush().unwrap();
    let there = |page: &u32| leased.contains(&locate(&host, *page).0);
    let broken: Vec<u32> = (0..80).filter(there).take(2).collect();
    for page in &broken {
        let (block, at) = locate(&host, *page);
        machine.flash.make_unreadable(block, at).unwrap();
    }
    host.release("ghost", Some(lease)).unwrap();
    let status = host.status();
    assert!(status.leases.iter().all(|other| other.id != lease), "{:?} {:?}", status.leases, host.reports());
    assert_eq!((status.flash.unreadable_pages, status.broker.evicted), (2, 0), "{:?}", host.reports());
    for page in 0..80 {
        assert_eq!(read_page(disk.as_ref(), page).is_err(), broken.contains(&page), "page {page}");
    }
}

#[test]
fn a_loose_cable_loses_nothing() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let (host, pages) = full(&mut machine);
    machine.flash.unplug(true);
    let disk = host.disk("regular").unwrap();
    let mut told = None;
    for round in 0..400 {
        machine.pass(Duration::from_secs(1));
        host.tick();
        let page = (round * 37) % pages;
        // A write that needs room is told in the end that there is none.
        if let Err(error) = disk.write_at(&pattern(b'R', page, 1), u64::from(page) * PAGE as u64) {
            told = Some(error);
            break;
        }
    }
    let told = told.unwrap();
    assert!(told.to_string().contains("does not answer"), "{told}");
    machine.flash.unplug(false);
    machine.pass(Duration::from_secs(1));
    churn(&host, pages, &[1, 2, 3], 2);
    assert_eq!(host.status().flash.unreadable_pages, 0, "{:?}", host.reports());
    assert!((0..pages).all(|page| read_page(disk.as_ref(), page).is_ok()));
    assert_eq!(read_page(disk.as_ref(), 2).unwrap()[0], Some((b'R', 2, 1)));
}

#[test]
fn an_erasure_that_fails_in_passing_costs_no_block() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let (host, pages) = full(&mut machine);
    for round in 2..8 {
        (0..SMALL.total_blocks()).for_each(|block| machine.flash.interrupt_next_erase(FlashBlock(block)));
        // A write that finds no room because all erasures fail returns an error that says so, and can be tried again.
        let disk = host.disk("regular").unwrap();
        let mut failures = 0;
        for page in (0..pages).chain(0..pages) {
            while let Err(error) = disk.write_at(&pattern(b'R', page, round), u64::from(page) * PAGE as u64) {
                assert!(error.to_string().contains("busy"), "{error}");
                failures += 1;
                assert!(failures < 500, "{error}");
            }
        }
        disk.flush().unwrap();
    }
    assert_eq!(host.status().flash.bad_blocks, 0);
    let (id, blocks) = (host.list()[0].id, 48);
    assert_eq!(host.volume(id).unwrap().read().vssd.usage().blocks, blocks);
    // Blocks that change hands are erased before.
    drop(host);
    let host = machine.restart();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    let disk = host.disk("regular").unwrap();
    disk.write_zeroes(headstart_block::ByteRange::between(0, disk.size())).unwrap();
    disk.flush().unwrap();
    (0..SMALL.total_blocks()).for_each(|block| machine.flash.interrupt_next_erase(FlashBlock(block)));
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR).unwrap();
    for _ in 0..100 {
        host.tick();
    }
    let lease = host.request("ghost", harvest_request(8)).unwrap()[0].id;
    for block in host.custody.blocks(lease).into_iter().flat_map(BlockRun::blocks) {
        let mut bytes = vec![1; usize::try_from(SMALL.block_size()).unwrap()];
        machine.flash.read(block, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "flash block {} was handed over unerased", block.0);
    }
}

/// Waits until nothing is leased and all that is in the pool is erased.
fn settled(host: &Host) {
    for _ in 0..12_000 {
        host.tick();
        let status = host.status();
        if status.leases.is_empty() && status.pool.iter().all(|pooled| pooled.ready) {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn requests_from_all_sides_share_out_what_there_is() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    machine.inline = false;
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(20 * 8 * PAGE as u64))).unwrap();
    host.create("one", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.create("two", spec(VssdKind::Harvest, 1, None)).unwrap();
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
                    if let Ok(leases) = host.request(name, harvest_request(4)) {
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
