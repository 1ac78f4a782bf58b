//! Slots that are given up, or found empty, take nothing along; and channels take each other's place.

use super::model::Driver;
use crate::device::FlashBlock;
use crate::vssd::Effort;
use crate::vssd::space::State;
use headstart_block::ErrorKind;

/// Pages of the disk: 30 of 48 blocks.
const PAGES: usize = 240;

fn page(driver: &mut Driver) -> u32 {
    u32::try_from(driver.random.below(PAGES)).unwrap()
}

/// Blocks of a slot in one of these states.
fn count(driver: &Driver, slot: usize, states: &[State]) -> usize {
    let entries = driver.vssd.space.entries().into_iter().filter(|entry| entry.slot() == slot);
    entries.filter(|&entry| states.contains(&driver.vssd.space.info(entry).state)).count()
}

/// A disk whose free blocks are all a slot's, with recent writes there, and that has much to collect.
fn squeezed(seed: u64) -> Driver {
    let mut driver = Driver::new(30, 4, seed);
    for page in 0..240 {
        driver.write(page);
        driver.finish();
    }
    while count(&driver, 0, &[State::Free]) > 4 {
        let page = page(&mut driver);
        driver.write(page);
        driver.finish();
    }
    driver.add_slot(0);
    while count(&driver, 0, &[State::Free, State::Open]) > 0 && count(&driver, 1, &[State::Free]) > 4 {
        let page = page(&mut driver);
        driver.write(page);
        driver.finish();
    }
    driver
}

/// The last free blocks turn out to be bad, while more is written.
fn wear_out(driver: &mut Driver) {
    for entry in driver.vssd.space.entries().into_iter().filter(|entry| entry.slot() == 0) {
        if matches!(driver.vssd.space.info(entry).state, State::Free | State::Open) {
            let block = driver.vssd.space.block(entry);
            driver.toy.bad.insert(block);
        }
    }
    for _ in 0..400 {
        let page = page(driver);
        driver.write_or_be_refused(page);
    }
}

/// A slot that is given up takes its own pages along, and none from elsewhere.
#[test]
fn no_page_moves_to_an_abandoned_slot() {
    for seed in 0..40 {
        let mut driver = squeezed(seed);
        // Copies may be under way there.
        for _ in 0..seed % 8 {
            driver.step(Effort::Needed);
        }
        let change = driver.vssd.abandon_slot(1).unwrap();
        driver.note(change);
        let lost = driver.vssd.lost();
        driver.finish();
        driver.sync();
        while driver.step(Effort::Needed) && count(&driver, 0, &[State::Free]) == 0 {
            driver.finish();
        }
        driver.finish();
        wear_out(&mut driver);
        let more = driver.vssd.abandon_slot(1).unwrap();
        assert!(more.is_none(), "seed {seed}: {lost} pages were lost, then {}", driver.vssd.lost());
        driver.sync();
        driver.remove_slot(0);
        assert!(!driver.vssd.has_slot(1), "seed {seed}: it is not drained");
        for page in 0..240 {
            driver.write_or_be_refused(page);
        }
    }
    let home = squeezed(0).vssd.abandon_slot(0);
    assert_eq!(home.unwrap_err().kind(), ErrorKind::Invalid, "home's bytes are never given up");
}

/// A slot that was found to be drained stays so until it is detached, whatever happens at home.
#[test]
fn no_page_moves_to_a_closed_slot() {
    let mut closed = 0;
    for seed in 0..40 {
        let mut driver = squeezed(seed);
        if driver.vssd.drain_slot(1, None).is_err() {
            continue;
        }
        for _ in 0..2000 {
            driver.step(Effort::Needed);
            driver.finish();
        }
        if !driver.vssd.close_slot(1, None) {
            continue;
        }
        closed += 1;
        wear_out(&mut driver);
        assert_eq!(driver.vssd.abandon_slot(1).unwrap(), None, "seed {seed}");
        driver.audit();
    }
    assert!(closed > 10, "{closed}");
}

/// A channel is emptied under writes, another takes its place, and all is there, also after a crash.
#[test]
fn a_channel_takes_the_place_of_another() {
    for seed in 0..40 {
        let mut driver = Driver::new(10, 4, seed);
        for round in 0..3_u32 {
            for page in 0..60 {
                driver.write(page);
            }
            driver.finish();
            let (from, to) = if round % 2 == 0 { (1_u16, 2_u16) } else { (2, 1) };
            assert!(driver.vssd.replace_channel(from, &[]).is_err(), "it is in use");
            let fit = driver.vssd.drain_slot(0, Some(from)).unwrap();
            assert!(fit.fits() && fit.there > 0, "{fit:?}");
            while !driver.vssd.close_slot(0, Some(from)) {
                if driver.random.below(4) == 0 {
                    let page = u32::try_from(driver.random.below(60)).unwrap();
                    driver.write(page);
                }
                driver.step(Effort::Needed);
                if driver.random.below(2) == 0 {
                    driver.finish();
                }
            }
            driver.sync();
            let first = u32::from(to) * 24;
            let blocks = (first..first + 24).map(FlashBlock).map(|block| {
                // A few were bad as made.
                let bad = driver.toy.bad.contains(&block) || block.0 == first + 5;
                (block, (!bad).then(|| driver.toy.erase(block)))
            });
            let blocks: Vec<_> = blocks.collect();
            let change = driver.vssd.replace_channel(from, &blocks).unwrap();
            driver.note(Some(change));
            // The host knows of it: changes that a crash takes are done again.
            driver.sync();
            assert_eq!(driver.vssd.own_channels().into_iter().max(), Some(if to == 2 { 2 } else { 1 }));
            driver.audit();
            for page in 0..80 {
                driver.write(page);
            }
            driver.finish();
            driver.audit();
            if seed % 2 == 0 {
                driver.crash();
            }
        }
    }
}

/// A write takes back a channel that is being emptied if there is no other room.
#[test]
fn a_write_comes_before_levelling() {
    let mut driver = Driver::new(40, 4, 1);
    for page in 0..100 {
        driver.write(page);
        driver.finish();
    }
    driver.vssd.drain_slot(0, Some(1)).unwrap();
    for page in 0..320 {
        assert!(driver.write(page), "page {page} of 320 that were promised");
        driver.finish();
    }
    assert!(!driver.vssd.is_channel_draining(1));
    driver.audit();
}
