//! A host crashes at every change of its flash and every write of its journal, and comes back.

use super::super::Host;
use super::kit::{Fuse, HOUR, Machine, PAGE, SMALL, harvest_request, pattern, read_page, spec};
use headstart_block::{ByteRange, ErrorKind, Result};
use headstart_broker::BrokerEvent;
use headstart_flash::VssdKind;
use headstart_flash::custody::Holder;
use headstart_flash::device::emulator::FlashFaults;
use headstart_flash::device::{Flash, FlashBlock};
use headstart_flash::journal::room::limit;
use headstart_testkit::soak;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;

/// Holders by name: each writes its own letter.
pub(super) const HOLDERS: [(&str, u8); 3] = [("regular", b'R'), ("ghost", b'G'), ("second", b'S')];

/// The allowed content of a holder's pages: the generations that each can be, 0 for zeros.
#[derive(Clone, Default)]
pub(super) struct Model {
    pages: BTreeMap<(&'static str, u32), Vec<u32>>,
    generation: u32,
    /// Pages that a write may have written or not.
    unsure: BTreeSet<(&'static str, u32)>,
}

impl Model {
    pub(super) fn write(
        &mut self,
        host: &Arc<Host>,
        name: &'static str,
        pages: std::ops::Range<u32>,
    ) -> Result<()> {
        self.generation += 1;
        let letter = HOLDERS.iter().find(|(holder, _)| *holder == name).unwrap().1;
        let bytes: Vec<u8> = pages.clone().flat_map(|page| pattern(letter, page, self.generation)).collect();
        self.may_become(name, pages.clone(), self.generation);
        let disk = host.disk(name)?;
        let written = disk.write_at(&bytes, u64::from(pages.start) * PAGE as u64);
        if written.is_ok() {
            self.became(name, &pages);
        }
        match written {
            Err(error) if error.kind() == ErrorKind::NoSpace && name != "regular" => Ok(()),
            written => written,
        }
    }

    pub(super) fn trim(
        &mut self,
        host: &Arc<Host>,
        name: &'static str,
        pages: std::ops::Range<u32>,
    ) -> Result<()> {
        self.may_become(name, pages.clone(), 0);
        let (start, end) = (u64::from(pages.start) * PAGE as u64, u64::from(pages.end) * PAGE as u64);
        host.disk(name)?.write_zeroes(ByteRange::between(start, end))?;
        self.became(name, &pages);
        Ok(())
    }

    /// Notes that pages are about to be of this generation.
    fn may_become(&mut self, name: &'static str, pages: std::ops::Range<u32>, generation: u32) {
        for page in pages {
            self.pages.entry((name, page)).or_insert_with(|| vec![0]).push(generation);
            self.unsure.insert((name, page));
        }
    }

    /// Notes that they are.
    fn became(&mut self, name: &str, pages: &std::ops::Range<u32>) {
        self.unsure.retain(|(holder, page)| *holder != name || !pages.contains(page));
    }

    pub(super) fn flush(&mut self, host: &Arc<Host>, name: &'static str) -> Result<()> {
        host.disk(name)?.flush()?;
        for (key, generations) in &mut self.pages {
            if key.0 == name && !self.unsure.contains(key) {
                generations.drain(..generations.len() - 1);
            }
        }
        Ok(())
    }

    /// Checks that everything that each holder can read is its own, and a regular VM's is the flushed state or newer.
    pub(super) fn check(&mut self, host: &Arc<Host>) {
        for (name, letter) in HOLDERS {
            let Ok(disk) = host.disk(name) else { continue };
            for page in 0..u32::try_from(disk.size() / PAGE as u64).unwrap() {
                let read = match read_page(disk.as_ref(), page) {
                    Ok(read) => read,
                    Err(error) => {
                        assert!(
                            name != "regular" && error.kind() == ErrorKind::Io,
                            "{name} page {page}: {error}"
                        );
                        continue;
                    }
                };
                let told = read[0];
                assert!(read.iter().all(|sector| *sector == told), "{name} page {page} is torn: {read:?}");
                let generation = told.map_or(0, |(_, _, generation)| generation);
                if let Some((holder, at, _)) = told {
                    assert_eq!((holder, at), (letter, page), "{name} reads what is another's");
                }
                let may_be = self.pages.entry((name, page)).or_insert_with(|| vec![0]);
                assert!(
                    may_be.contains(&generation),
                    "{name} page {page} is {generation}, not one of {may_be:?}"
                );
                // Once read after a start it is that for good.
                *may_be = vec![generation];
                self.unsure.remove(&(name, page));
            }
        }
    }
}

/// All events that can happen to a host, one after the other.
pub(super) fn live(host: &Arc<Host>, model: &mut Model) -> Result<()> {
    host.create("regular", spec(VssdKind::Regular, 2, Some(36 * 8 * PAGE as u64)))?;
    host.create("ghost", spec(VssdKind::Harvest, 1, None))?;
    model.write(host, "regular", 0..60)?;
    model.flush(host, "regular")?;
    model.write(host, "ghost", 0..20)?;
    model.flush(host, "ghost")?;
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR)?;
    harvest(host, "ghost", 8)?;
    let most = u32::try_from(host.disk("ghost")?.size() / PAGE as u64).unwrap();
    model.write(host, "ghost", 10..most)?;
    model.flush(host, "ghost")?;
    model.write(host, "regular", 20..70)?;
    model.trim(host, "regular", 30..40)?;
    host.tick();
    model.flush(host, "regular")?;
    // Given back while it does not fit, then while it does.
    let lease = host.status().leases.first().map(|lease| lease.id);
    host.release("ghost", lease)?;
    model.trim(host, "ghost", 0..most - 10)?;
    model.flush(host, "ghost")?;
    if let Some(lease) = host.status().leases.first().map(|lease| lease.id) {
        host.release("ghost", Some(lease))?;
    }
    host.offer("regular", 2, 24 * 8 * PAGE as u64, 10 * HOUR)?;
    harvest(host, "ghost", 8)?;
    model.write(host, "ghost", 0..most)?;
    host.rewrite()?;
    // Its owner wants it back, and it fits nowhere.
    let home = host.list().iter().find(|vssd| vssd.name == "regular").map(|vssd| vssd.id).unwrap();
    host.notify(BrokerEvent::SpacePressure { lender: home, bandwidth: 0, capacity: 8 })?;
    model.write(host, "regular", 0..100)?;
    model.flush(host, "regular")?;
    host.offer("regular", 1, 12 * 8 * PAGE as u64, 10 * HOUR)?;
    harvest(host, "ghost", 4)?;
    model.write(host, "ghost", 0..40)?;
    host.delete("ghost")?;
    host.create("second", spec(VssdKind::Harvest, 1, None))?;
    harvest(host, "second", 4)?;
    model.write(host, "second", 30..50)?;
    model.flush(host, "second")?;
    host.tick();
    Ok(())
}

/// Harvests all that there is.
fn harvest(host: &Arc<Host>, name: &str, blocks: u64) -> Result<()> {
    match host.request(name, harvest_request(blocks)) {
        Err(error) if error.kind() != ErrorKind::NoSpace => Err(error),
        _ => Ok(()),
    }
}

/// Checks that no lease is stuck: unfinished work is finished.
pub(super) fn settled(host: &Arc<Host>, point: u64) {
    for _ in 0..3 {
        host.tick();
    }
    let status = host.status();
    assert!(status.leases.iter().all(|lease| !lease.leaving), "point {point}: {:?}", status.leases);
    assert!(status.pool.iter().all(|pooled| pooled.ready), "point {point}: {:?}", status.pool);
}

/// Checks that blocks without a holder hold nothing.
pub(super) fn nobodys_is_clean(machine: &Machine, host: &Arc<Host>, point: u64) {
    let zeros = vec![0; usize::try_from(SMALL.block_size()).unwrap()];
    let mut bytes = vec![0; usize::try_from(SMALL.block_size()).unwrap()];
    let pooled: Vec<FlashBlock> = (0..SMALL.total_blocks())
        .map(FlashBlock)
        .filter(|block| host.custody.holder(*block) == Holder::Nobody)
        .collect();
    for block in pooled {
        machine.flash.read(block, 0, &mut bytes).unwrap();
        assert!(bytes == zeros, "point {point}: flash block {} is nobody's and not clean", block.0);
    }
}

/// All leases can end and all flash comes back.
pub(super) fn ends_well(machine: &Machine, host: &Arc<Host>, point: u64) {
    for (name, _) in HOLDERS {
        if host.disk(name).is_ok() {
            host.delete(name).unwrap();
        }
    }
    host.tick();
    let status = host.status();
    assert!(status.leases.is_empty() && status.pool.is_empty(), "point {point}: {status:?}");
    assert!(host.list().is_empty(), "point {point}");
    assert_eq!(status.flash.free_channels, SMALL.channels, "point {point}");
    nobodys_is_clean(machine, host, point);
}

/// The end of a host.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    Killed,
    PowerLost,
}

/// The life of a host.
pub(super) type Life = fn(&Arc<Host>, &mut Model) -> Result<()>;

/// Prints the point of the crash if the test fails.
struct CrashPoint(u64);

impl Drop for CrashPoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "this was the crash at point {}", self.0);
        }
    }
}

fn crash_at(point: u64, end: End, faults: FlashFaults, live: Life) -> bool {
    let _point = CrashPoint(point);
    let mut machine = Machine::new(SMALL, faults);
    let (fuse, mut model) = (Fuse::of(point), Model::default());
    let lived = machine.start(&fuse).and_then(|host| live(&host, &mut model));
    assert!(lived.is_ok() || fuse.is_dead(), "{lived:?}");
    let died = fuse.is_dead();
    if end == End::PowerLost {
        let garbage: Vec<u8> = (0..point % 60).map(|byte| u8::try_from(byte * 37 % 256).unwrap()).collect();
        machine.lose_power(&garbage);
    }
    // It may crash while it recovers, too.
    let early = Fuse::of(point % 17);
    if let Ok(host) = machine.start(&early) {
        host.tick();
        drop(host);
        if end == End::PowerLost {
            machine.lose_power(&[]);
        }
    }
    // It may have been on a full disk until now.
    limit::here().fill(false);
    let host = machine.restart();
    model.check(&host);
    nobodys_is_clean(&machine, &host, point);
    settled(&host, point);
    model.check(&host);
    // The disk works, and its content is there after another restart.
    if host.disk("regular").is_ok() {
        model.write(&host, "regular", 5..90).unwrap();
        model.flush(&host, "regular").unwrap();
        drop(host);
        let host = machine.restart();
        model.check(&host);
        ends_well(&machine, &host, point);
    }
    died
}

/// Crashes at every ninth point of a life, at other ones from run to run, and at all of them in `make soak`; at one in
/// `sparse` of these.
pub(super) fn crash_everywhere(end: End, live: Life, sparse: u64) {
    let step = sparse * if soak::is_on() { 1 } else { 9 };
    let start = u64::from(std::process::id()) % step;
    let _ = writeln!(std::io::stderr(), "crashes at point {start} and each {step} further");
    let mut point = start;
    while crash_at(point, end, FlashFaults::default(), live) {
        point += step;
    }
    assert!(point > 300, "the life ended before point {point}, counted from {start} in steps of {step}");
}

/// A host that was closed in good order knows the erased blocks, and dies after it used some of them.
fn crash_after_a_close_at(point: u64, end: End) -> bool {
    let (mut machine, mut model) = (Machine::new(SMALL, FlashFaults::default()), Model::default());
    let host = machine.restart();
    live(&host, &mut model).unwrap();
    model.flush(&host, "regular").unwrap();
    host.close().unwrap();
    drop(host);
    let fuse = Fuse::of(point);
    if let Ok(host) = machine.start(&fuse) {
        let written = ["regular", "second"].map(|name| model.write(&host, name, 3..40));
        let _ = written.into_iter().collect::<Result<Vec<_>>>().and_then(|_| model.flush(&host, "regular"));
        if point.is_multiple_of(3) {
            let _ = host.close();
        }
    }
    let died = fuse.is_dead();
    if end == End::PowerLost {
        machine.lose_power(&[]);
    }
    let host = machine.restart();
    model.check(&host);
    nobodys_is_clean(&machine, &host, point);
    // The rules of flash hold: only erased pages are programmed.
    model.write(&host, "regular", 5..90).unwrap();
    model.flush(&host, "regular").unwrap();
    model.check(&host);
    settled(&host, point);
    ends_well(&machine, &host, point);
    died
}

#[test]
fn a_crash_anywhere_after_a_close_is_recovered() {
    let step = if soak::is_on() { 1 } else { 4 };
    // Of the ends, each one has points of its own.
    for (start, end) in [(0, End::Killed), (2, End::PowerLost)] {
        let points = (start % step as u64..).step_by(step);
        let points = points.take_while(|point| crash_after_a_close_at(*point, end)).count() * step;
        assert!(points > 30, "{points}");
    }
}

/// Blocks that are erased when a host is closed are not erased again by the next.
#[test]
fn an_orderly_restart_wears_no_flash() {
    let (mut machine, mut model) = (Machine::new(SMALL, FlashFaults::default()), Model::default());
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(36 * 8 * PAGE as u64))).unwrap();
    model.write(&host, "regular", 0..10).unwrap();
    model.flush(&host, "regular").unwrap();
    let erasures = |host: &Arc<Host>| host.status().flash.erasures;
    let first = erasures(&host);
    host.close().unwrap();
    drop(host);
    let host = machine.restart();
    model.write(&host, "regular", 20..60).unwrap();
    model.flush(&host, "regular").unwrap();
    model.check(&host);
    assert_eq!(erasures(&host), first);
    // One that was killed knows nothing.
    drop(host);
    let host = machine.restart();
    model.write(&host, "regular", 60..80).unwrap();
    model.flush(&host, "regular").unwrap();
    assert!(erasures(&host) > first);
}

/// Channels change owners under data of both, there and back.
pub(super) fn swap(host: &Arc<Host>, model: &mut Model) -> Result<()> {
    for name in ["regular", "second"] {
        host.create(name, spec(VssdKind::Regular, 2, Some(20 * 8 * PAGE as u64)))?;
        model.write(host, name, 0..60)?;
        model.flush(host, name)?;
    }
    let owned = |name: &str| {
        let id = host.list().iter().find(|vssd| vssd.name == name).map(|vssd| vssd.id).unwrap();
        (id, host.volume(id).unwrap().channels())
    };
    for round in 0..2 {
        let (one, other) = (owned("regular"), owned("second"));
        host.plan((one.0, one.1[1]), (other.0, other.1[round]));
        host.tick();
        model.write(host, "second", 20..90)?;
        model.write(host, "regular", 10..70)?;
        model.flush(host, "regular")?;
        assert_eq!(owned("regular").1.contains(&one.1[1]), host.planned_swap().is_some());
        assert_eq!(owned("second").1.contains(&one.1[1]), host.planned_swap().is_none());
    }
    model.flush(host, "second")?;
    Ok(())
}

#[test]
fn a_kill_anywhere_in_a_swap_is_recovered() {
    crash_everywhere(End::Killed, swap, 1);
}

#[test]
fn a_power_cut_anywhere_in_a_swap_is_recovered() {
    crash_everywhere(End::PowerLost, swap, 1);
}

#[test]
fn a_kill_anywhere_in_a_life_is_recovered() {
    crash_everywhere(End::Killed, live, 1);
}

#[test]
fn a_power_cut_anywhere_in_a_life_is_recovered() {
    crash_everywhere(End::PowerLost, live, 1);
}

#[test]
fn a_crash_with_flash_that_fails_is_recovered() {
    let step = if soak::is_on() { 1 } else { 4 };
    for seed in (1..30).step_by(step) {
        let faults = FlashFaults { seed, made_bad: 0.02, program: 0.004, erase: 0.01 };
        for end in [End::Killed, End::PowerLost] {
            crash_at(seed * 17, end, faults, live);
            crash_at(seed * 17, end, faults, swap);
        }
    }
}
