//! The journal's disk gets full, and there is room again.

use super::super::meta::Meta;
use super::super::meta::Sold;
use super::super::{FlashPlace, Host, HostSettings, Options};
use super::crash::{
    End, HOLDERS, Life, Model, crash_everywhere, ends_well, live, nobodys_is_clean, settled, swap,
};
use super::kit::{BLOCK, HOUR, Machine, PAGE, SMALL, harvest_request, pattern, read_page, spec};
use super::smoke::{LIMIT, clock, wait_for};
use headstart_block::{ByteRange, ErrorKind, Result};
use headstart_flash::VssdKind;
use headstart_flash::device::emulator::FlashFaults;
use headstart_flash::device::forks::output_of;
use headstart_flash::journal::room::limit;
use headstart_testkit::soak;
use headstart_testkit::wait::wait_until;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A host whose harvest VM has a lease.
fn lent(machine: &mut Machine) -> Arc<Host> {
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(20 * BLOCK))).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.offer("regular", 2, 24 * BLOCK, 10 * HOUR).unwrap();
    host.request("ghost", harvest_request(8)).unwrap();
    host
}

/// Lets the journal have no more room, and uses its room ahead except the part that is kept for giving back.
fn fill(host: &Host) -> Result<()> {
    limit::here().fill(true);
    let record = Meta::Sold(vec![Sold { size: 1, lasted_s: u64::MAX }; 900]).record()?;
    while host.log.may_take(20_000).is_ok() {
        host.log.append(&record)?;
    }
    while host.log.may_take(0).is_ok() {
        host.log.append(&Meta::Next(0).record()?)?;
    }
    host.log.sync_all(&host.media)
}

fn refused<T>(result: Result<T>) {
    let error = result.err().unwrap();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{text}");
    assert!(text.contains("/journal: its file system is full"), "{text}");
    assert_eq!(text.matches("make room").count(), 1, "{text}");
}

#[test]
fn a_full_disk_is_waited_out() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let mut host = lent(&mut machine);
    let page = |page: u32| u64::from(page) * PAGE as u64;
    let write = |host: &Host, at: u32, generation: u32| {
        let disk = host.disk("regular")?;
        disk.write_at(&pattern(b'R', at, generation), page(at))?;
        disk.flush()
    };
    (0..60).for_each(|at| write(&host, at, 1).unwrap());
    fill(&host).unwrap();
    for round in 0..2 {
        for _ in 0..10 {
            host.tick();
        }
        refused(write(&host, 1, 2));
        refused(host.create("more", spec(VssdKind::Regular, 1, None)));
        refused(host.offer("regular", 2, 24 * BLOCK, 10 * HOUR));
        refused(host.request("ghost", harvest_request(8)));
        refused(host.resize("regular", 21 * BLOCK));
        // Present data can be read, and given back.
        let disk = host.disk("regular").unwrap();
        disk.flush().unwrap();
        disk.write_zeroes(ByteRange::between(page(30 + round), page(31 + round))).unwrap();
        disk.flush().unwrap();
        assert_eq!(read_page(disk.as_ref(), 2).unwrap()[0], Some((b'R', 2, 1)));
        let status = host.status();
        assert!(status.stopped.is_none() && status.journal.full.unwrap().contains("make room"));
        drop((disk, host));
        // The host starts on a full disk as well.
        host = machine.restart();
    }
    host.release("ghost", None).unwrap();
    assert!(host.status().leases.is_empty());
    host.delete("ghost").unwrap();
    host.tick();
    assert_eq!((host.list().len(), host.status().flash.free_channels), (1, 2));
    refused(write(&host, 1, 2));
    limit::here().fill(false);
    host.tick();
    assert!(host.status().journal.full.is_none());
    write(&host, 1, 2).unwrap();
    host.create("more", spec(VssdKind::Harvest, 1, None)).unwrap();
    drop(host);
    let host = machine.restart();
    let disk = host.disk("regular").unwrap();
    for at in 0..60 {
        let expected = (!(30..32).contains(&at)).then_some((b'R', at, if at == 1 { 2 } else { 1 }));
        assert_eq!(read_page(disk.as_ref(), at).unwrap()[0], expected);
    }
    assert_eq!(host.list().len(), 2);
}

#[test]
fn decisions_on_a_full_disk_are_carried_out_later() {
    for blind in [false, true] {
        let mut machine = Machine::new(SMALL, FlashFaults::default());
        limit::here().is_blind.store(blind, Ordering::SeqCst);
        let host = lent(&mut machine);
        let disk = host.disk("regular").unwrap();
        disk.write_at(&pattern(b'R', 3, 1), 3 * PAGE as u64).unwrap();
        disk.flush().unwrap();
        limit::here().fill(true);
        let record = Meta::Sold(vec![Sold { size: 1, lasted_s: u64::MAX }; 900]).record().unwrap();
        let full = std::iter::repeat_with(|| {
            host.log.append(&record).and_then(|lsn| host.log.sync(&host.media, lsn))
        });
        refused(full.take(1000).find(Result::is_err).unwrap());
        let disk = host.disk("regular").unwrap();
        refused(disk.write_at(&pattern(b'R', 3, 2), 3 * PAGE as u64));
        refused(disk.flush().and_then(|()| host.log.sync_all(&host.media)));
        host.delete("ghost").unwrap();
        for _ in 0..5 {
            host.tick();
        }
        assert!(host.status().stopped.is_none(), "{:?}", host.status().stopped);
        assert_eq!(read_page(disk.as_ref(), 3).unwrap()[0], Some((b'R', 3, 1)));
        limit::here().fill(false);
        for _ in 0..5 {
            host.tick();
        }
        let status = host.status();
        assert!(status.leases.is_empty() && status.journal.full.is_none(), "{status:?}");
        assert_eq!(host.list().len(), 1);
        disk.write_at(&pattern(b'R', 3, 2), 3 * PAGE as u64).unwrap();
        disk.flush().unwrap();
        drop((disk, host));
        let host = machine.restart();
        assert_eq!(read_page(host.disk("regular").unwrap().as_ref(), 3).unwrap()[0], Some((b'R', 3, 2)));
        assert_eq!(host.list().len(), 1);
        limit::here().is_blind.store(false, Ordering::SeqCst);
    }
}

#[test]
fn refused_changes_do_not_happen_later() {
    limit::here().is_blind.store(true, Ordering::SeqCst);
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(20 * BLOCK))).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 1, None)).unwrap();
    host.offer("regular", 2, 24 * BLOCK, 10 * HOUR).unwrap();
    let there = |host: &Host| (host.list().len(), host.status().leases.len());
    for other in [false, true] {
        // With another vSSD that waits for room before, and without.
        limit::here().fill(true);
        if other {
            drop(host.offer("regular", 2, 24 * BLOCK, 20 * HOUR));
        }
        let asked = host.request("ghost", harvest_request(8));
        refused(asked);
        refused(host.create("more", spec(VssdKind::Unsold, 1, None)));
        limit::here().fill(false);
        for _ in 0..5 {
            host.tick();
        }
        assert_eq!(there(&host), (2, 0), "{other}: {:?}", host.status());
        assert!(host.control.lock().answers.is_empty());
    }
    host.offer("regular", 2, 24 * BLOCK, 10 * HOUR).unwrap();
    assert_eq!(host.request("ghost", harvest_request(8)).unwrap().len(), 1);
    host.create("more", spec(VssdKind::Regular, 1, None)).unwrap();
    assert_eq!(there(&host), (3, 1));
    // A release stays done.
    limit::here().fill(true);
    host.release("ghost", None).unwrap();
    host.delete("more").unwrap();
    limit::here().fill(false);
    for _ in 0..5 {
        host.tick();
    }
    assert_eq!(there(&host), (2, 0));
    // If there still is no room at the end, the host reports that.
    limit::here().fill(true);
    host.delete("ghost").unwrap();
    refused(host.close());
    drop(host);
    limit::here().fill(false);
    assert_eq!(there(&machine.restart()), (2, 0));
    limit::here().is_blind.store(false, Ordering::SeqCst);
}

#[test]
fn a_first_start_on_a_full_disk_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    limit::here().is_blind.store(true, Ordering::SeqCst);
    limit::here().fill(true);
    let options = || Options {
        dir: dir.path().to_owned(),
        flash: FlashPlace::File { path: dir.path().join("flash"), size: Some(64 << 20) },
        size: None,
        erase: false,
        settings: HostSettings::default(),
    };
    assert_eq!(Host::open(options(), clock()).err().unwrap().kind(), ErrorKind::NoSpace);
    assert_eq!(std::fs::metadata(dir.path().join("flash")).unwrap().len(), 0);
    assert!(!dir.path().join("flash.flash").exists());
    limit::here().fill(false);
    Host::open(options(), clock()).unwrap().create("one", spec(VssdKind::Regular, 1, None)).unwrap();
    limit::here().is_blind.store(false, Ordering::SeqCst);
}

/// Ignores the errors of a full disk.
fn unless_full(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
        result => result,
    }
}

/// A life on a disk that gets full, and then has room again.
fn life(host: &Arc<Host>, model: &mut Model) -> Result<()> {
    host.create("regular", spec(VssdKind::Regular, 2, Some(30 * BLOCK)))?;
    host.create("ghost", spec(VssdKind::Harvest, 1, None))?;
    for (name, _) in &HOLDERS[..2] {
        model.write(host, name, 0..40)?;
        model.flush(host, name)?;
    }
    host.offer("regular", 2, 20 * BLOCK, 10 * HOUR)?;
    unless_full(host.request("ghost", harvest_request(8)).map(drop))?;
    model.write(host, "ghost", 20..70)?;
    fill(host)?;
    for round in 0..3 {
        unless_full(model.write(host, "regular", 10..50))?;
        model.write(host, "ghost", 0..30)?;
        model.trim(host, "regular", round..20 + round)?;
        model.flush(host, "regular")?;
        unless_full(host.create("second", spec(VssdKind::Harvest, 1, None)).map(drop))?;
        host.tick();
    }
    let lease = host.status().leases.first().map(|lease| lease.id);
    host.release("ghost", lease)?;
    assert!(host.rewrite().is_err());
    host.tick();
    host.delete("ghost")?;
    limit::here().fill(false);
    host.tick();
    model.write(host, "regular", 0..60)?;
    model.flush(host, "regular")?;
    host.create("second", spec(VssdKind::Harvest, 1, None))?;
    model.write(host, "second", 0..20)?;
    model.flush(host, "second")?;
    host.rewrite()?;
    model.write(host, "regular", 30..60)?;
    model.flush(host, "regular")
}

#[test]
fn a_crash_anywhere_in_a_life_on_a_full_disk_is_recovered() {
    crash_everywhere(End::Killed, life, 1);
    crash_everywhere(End::PowerLost, life, 2);
}

/// Lets the disk of a host's journal be full after `point` writes to it, until there is room; `true` if it came to
/// that.
fn full_after(point: u64, life: Life) -> bool {
    let limit = limit::here();
    limit.is_blind.store(true, Ordering::SeqCst);
    let (mut machine, mut model) = (Machine::new(SMALL, FlashFaults::default()), Model::default());
    let host = machine.restart();
    limit.after.store(point, Ordering::SeqCst);
    unless_full(life(&host, &mut model)).unwrap();
    host.tick();
    let came = limit.is_full.load(Ordering::SeqCst);
    limit.after.store(0, Ordering::SeqCst);
    limit.fill(false);
    settled(&host, point);
    let status = host.status();
    assert!(status.stopped.is_none() && status.journal.full.is_none(), "point {point}: {status:?}");
    model.check(&host);
    nobodys_is_clean(&machine, &host, point);
    if host.disk("regular").is_ok() {
        model.write(&host, "regular", 5..90).unwrap();
        model.flush(&host, "regular").unwrap();
    }
    host.rewrite().unwrap();
    drop(host);
    let host = machine.restart();
    model.check(&host);
    ends_well(&machine, &host, point);
    came
}

#[test]
fn a_disk_that_is_full_from_any_point_on_is_waited_out() {
    for (life, least) in [(live as Life, 40), (swap, 10)] {
        let step = if soak::is_on() { 1 } else { 4 };
        let points = (1..).step_by(step).take_while(|point| full_after(*point, life)).count() * step;
        assert!(points > least, "{points}");
    }
    limit::here().is_blind.store(false, Ordering::SeqCst);
}

/// The variable that tells this process the place of a small file system of its own.
const SMALL_DISK: &str = "HEADSTART_TEST_SMALL_DISK";

/// A file system of 64 MiB: real files, and the system's own errors when it is full.
#[test]
fn a_host_survives_a_file_system_that_gets_full() {
    if let Some(dir) = std::env::var_os(SMALL_DISK).map(PathBuf::from) {
        let (first, second) = (dir.join("first"), dir.join("second"));
        flash_and_journal(&first);
        std::fs::remove_dir_all(&first).unwrap();
        return journal_alone(&second);
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = format!(
        "mount -t tmpfs -o size=64m none \"$0\" && echo mounted && exec env {SMALL_DISK}=\"$0\" \"$@\""
    );
    let test = std::env::current_exe().unwrap();
    let mut args: Vec<&OsStr> = ["--map-root-user", "--mount", "sh", "-c", &mount].map(OsStr::new).to_vec();
    args.extend([dir.path().as_os_str(), test.as_os_str()]);
    args.extend(
        ["--nocapture", "--exact", "host::tests::full::a_host_survives_a_file_system_that_gets_full"]
            .map(OsStr::new),
    );
    let said = |output: &Output| {
        [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned()).concat()
    };
    match output_of("unshare", &args) {
        Ok(output) if said(&output).contains("mounted") => {
            assert!(output.status.success(), "{}", said(&output));
        }
        _ => drop(writeln!(std::io::stderr(), "SKIPPED: no small file system can be mounted")),
    }
}

fn open(dir: &Path, flash: &Path) -> Arc<Host> {
    let flash = FlashPlace::File { path: flash.join("flash"), size: Some(256 << 20) };
    let settings = HostSettings::default();
    let options = Options { dir: dir.to_owned(), flash, size: None, erase: false, settings };
    Host::open(options, clock()).unwrap()
}

/// Has another file take all space.
fn take_all(dir: &Path) -> PathBuf {
    let filler = dir.join("filler");
    std::fs::write(&filler, vec![1; 65 << 20]).unwrap_err();
    filler
}

fn journal_alone(dir: &Path) {
    let elsewhere = tempfile::tempdir().unwrap();
    let host = open(dir, elsewhere.path());
    host.create("one", spec(VssdKind::Regular, 4, None)).unwrap();
    host.create("two", spec(VssdKind::Regular, 4, None)).unwrap();
    let filler = take_all(dir);
    let disk = host.disk("one").unwrap();
    let write = |at: u64| disk.write_at(&[7; PAGE], at % 1000 * PAGE as u64);
    refused((0..100_000).map(write).find(Result::is_err).unwrap());
    disk.flush().unwrap();
    host.tick();
    refused(write(0));
    host.delete("two").unwrap();
    disk.write_zeroes(ByteRange::between(0, 1 << 20)).unwrap();
    disk.flush().unwrap();
    std::fs::remove_file(filler).unwrap();
    refused(write(0));
    host.tick();
    write(0).unwrap();
    disk.flush().unwrap();
    assert!(host.status().journal.full.is_none() && host.status().stopped.is_none());
}

fn mib(name: &str, at: u64) -> Vec<u8> {
    vec![u8::try_from((at + name.len() as u64) % 251 + 1).unwrap(); 1 << 20]
}

fn write_mib(host: &Host, name: &str, at: u64) -> Result<()> {
    let disk = host.disk(name)?;
    disk.write_at(&mib(name, at), at << 20)?;
    disk.flush()
}

fn check(host: &Host, written: &[(&str, u64)]) {
    for (name, at) in written {
        let mut read = vec![0; 1 << 20];
        host.disk(name).unwrap().read_at(&mut read, at << 20).unwrap();
        assert!(read == mib(name, *at), "{name} {at}");
    }
}

fn flash_and_journal(dir: &Path) {
    let host = open(dir, dir);
    host.create("one", spec(VssdKind::Regular, 4, None)).unwrap();
    host.create("two", spec(VssdKind::Regular, 4, None)).unwrap();
    // Flash takes all that there is.
    let all = (0..60).flat_map(|at| ["one", "two"].map(|name| (name, at)));
    let mut written: Vec<_> = all.take_while(|(name, at)| write_mib(&host, name, *at).is_ok()).collect();
    assert!(written.len() > 40, "{}", written.len());
    let filler = take_all(dir);
    // Whatever is tried now, the host goes on.
    for round in 0..60 {
        assert_eq!(write_mib(&host, "one", 55).unwrap_err().kind(), ErrorKind::NoSpace);
        if round % 10 == 0 {
            host.tick();
        }
    }
    assert!(host.status().stopped.is_none(), "{:?}", host.status());
    check(&host, &written);
    host.close().unwrap();
    drop(host);
    // After a restart as well.
    wait_until_closed(dir);
    let host = open(dir, dir);
    check(&host, &written);
    // Trimmed and deleted data becomes room.
    let disk = host.disk("one").unwrap();
    disk.write_zeroes(ByteRange::between(0, 8 << 20)).unwrap();
    disk.flush().unwrap();
    wait_for(&host, |host| write_mib(host, "one", 20).is_ok());
    host.delete("two").unwrap();
    wait_for(&host, |host| host.list().len() == 1 && host.status().journal.full.is_none());
    std::fs::remove_file(filler).unwrap();
    write_mib(&host, "one", 40).unwrap();
    written.retain(|(name, at)| *name == "one" && *at >= 8);
    written.extend([("one", 20), ("one", 40)]);
    check(&host, &written);
    host.create("three", spec(VssdKind::Regular, 4, None)).unwrap();
    assert!(host.status().stopped.is_none(), "{:?}", host.status());
}

/// Threads that work in the background hold the host for a while.
fn wait_until_closed(dir: &Path) {
    let lock = std::fs::File::open(dir.join("lock")).unwrap();
    wait_until("the host is closed", LIMIT, || lock.try_lock().is_ok());
}
