//! Real files, real threads.

use super::super::rescue::{self, PartState};
use super::super::{FlashPlace, HarvestRequest, Host, HostSettings, Options};
use super::kit::{HOUR, spec};
use headstart_block::ErrorKind;
use headstart_flash::VssdKind;
use headstart_flash::queue::Clock;
use headstart_testkit::wait;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

#[expect(clippy::disallowed_methods, reason = "a real clock")]
pub(super) fn clock() -> Arc<dyn Clock> {
    let (begun, since) = (SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap(), Instant::now());
    Arc::new(move || begun + since.elapsed())
}

fn options(dir: &Path, flash: FlashPlace) -> Options {
    Options { dir: dir.to_owned(), flash, size: None, erase: false, settings: HostSettings::default() }
}

/// A limit that nothing here exceeds on any machine.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `is_so` of a host, whose threads work meanwhile.
#[track_caller]
pub(super) fn wait_for(host: &Host, is_so: impl Fn(&Host) -> bool) {
    wait::wait_for("the host has come so far", LIMIT, || {
        host.tick();
        if is_so(host) { Ok(()) } else { Err(Box::new(host.status())) }
    });
}

#[test]
fn a_host_on_a_file_lends_flash_and_takes_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flash");
    let place = |size| FlashPlace::File { path: path.clone(), size };
    assert_eq!(
        Host::open(options(dir.path(), place(None)), clock()).err().unwrap().kind(),
        ErrorKind::Invalid
    );
    let host = Host::open(options(dir.path(), place(Some(256 << 20))), clock()).unwrap();
    let second = Host::open(options(dir.path(), place(None)), clock()).err().unwrap();
    assert_eq!(second.kind(), ErrorKind::Conflict, "{second}");
    host.create("sold", spec(VssdKind::Regular, 4, None)).unwrap();
    host.create("unsold", spec(VssdKind::Unsold, 4, None)).unwrap();
    host.create("job", spec(VssdKind::Harvest, 2, None)).unwrap();
    let [sold, job] = ["sold", "job"].map(|name| host.disk(name).unwrap());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    sold.write_at(&bytes[..2_999_808], 4096 + 512).unwrap();
    sold.flush().unwrap();
    // Of the unsold one a gSSD a channel.
    wait_for(&host, |host| host.status().pool.iter().filter(|pooled| pooled.ready).count() >= 4);
    let size = job.size();
    let request = HarvestRequest { capacity: 32 << 20, bandwidth: 2, duration: HOUR, partial: false };
    let leases = host.request("job", request).unwrap();
    assert!(leases.iter().map(|lease| lease.capacity).sum::<u64>() >= 32 << 20, "{leases:?}");
    assert!(job.size() > size + (24 << 20), "{size} -> {}", job.size());
    let end = job.size() - (1 << 20);
    // More than fits its own flash.
    for back in 0..36 {
        job.write_at(&bytes[..1 << 20], end - (back << 20)).unwrap();
    }
    job.flush().unwrap();
    drop((sold, job));
    host.close().unwrap();
    drop(host);
    wait_until_free(dir.path(), &place(None));
    let host = Host::open(options(dir.path(), place(None)), clock()).unwrap();
    let [sold, job] = ["sold", "job"].map(|name| host.disk(name).unwrap());
    let mut read = vec![0; 2_999_808];
    sold.read_at(&mut read, 4096 + 512).unwrap();
    assert_eq!(read, bytes[..2_999_808]);
    let mut read = vec![0; 1 << 20];
    job.read_at(&mut read, end).unwrap();
    assert_eq!(read, bytes[..1 << 20]);
    // The unsold vSSD is sold: the job loses its storage, and is told.
    host.delete("unsold").unwrap();
    wait_for(&host, |host| host.status().leases.is_empty());
    assert!(host.reports().iter().any(|report| report.text.contains("evicted")), "{:?}", host.reports());
    assert_eq!(job.read_at(&mut read, end).unwrap_err().kind(), ErrorKind::Io);
    sold.read_at(&mut vec![0; 4096], 0).unwrap();
}

/// Background threads may hold the last host for a moment.
fn wait_until_free(dir: &Path, place: &FlashPlace) {
    let is_free = || Host::open(options(dir, place.clone()), clock()).is_ok();
    wait::wait_until("the host is closed", LIMIT, is_free);
}

#[test]
fn another_flash_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let place = |dir: &Path, size| FlashPlace::File { path: dir.join("flash"), size };
    drop(Host::open(options(dir.path(), place(dir.path(), Some(64 << 20))), clock()).unwrap());
    let wrong_size =
        Host::open(options(dir.path(), place(dir.path(), Some(128 << 20))), clock()).err().unwrap();
    assert_eq!(wrong_size.kind(), ErrorKind::Conflict, "{wrong_size}");
    let elsewhere = Host::open(options(other.path(), place(dir.path(), None)), clock()).err().unwrap();
    assert_eq!(elsewhere.kind(), ErrorKind::Conflict, "{elsewhere}");
    let table = dir.path().join("flash.flash");
    std::fs::remove_file(&table).unwrap();
    let open = || Host::open(options(dir.path(), place(dir.path(), None)), clock());
    let lost = open().err().unwrap();
    assert!(lost.to_string().contains("harvest rescue"), "{lost}");
    // It is made again.
    assert_eq!(rescue::check(dir.path(), None).unwrap().state(), PartState::Mendable);
    assert!(!table.exists(), "it was looked at");
    rescue::rescue(dir.path(), None).unwrap();
    drop(open().unwrap());
    assert_eq!(rescue::check(dir.path(), None).unwrap().state(), PartState::Whole);
    let whole = std::fs::read(&table).unwrap();
    for (at, len) in [(40, 1), (3, 1), (60, 9), (0, 5000)] {
        let mut broken = whole.clone();
        let end = broken.len().min(at + len);
        broken[at..end].iter_mut().for_each(|byte| *byte ^= if len == 1 { 4 } else { 0x5a });
        std::fs::write(&table, broken).unwrap();
        let damaged = open().err().unwrap().to_string();
        assert!(damaged.contains("flash.flash") && damaged.contains("harvest rescue"), "{damaged}");
        rescue::rescue(dir.path(), None).unwrap();
        assert!(len > 1 || std::fs::read(&table).unwrap() == whole, "{at}");
        assert!(std::fs::read(dir.path().join("flash.flash.damaged")).unwrap() != whole);
        drop(open().unwrap());
        std::fs::write(&table, &whole).unwrap();
    }
}

#[test]
fn damaged_vssds_are_given_up_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let place = FlashPlace::File { path: dir.path().join("flash"), size: Some(64 << 20) };
    let open = || Host::open(options(dir.path(), place.clone()), clock());
    let host = open().unwrap();
    host.create("db", spec(VssdKind::Regular, 2, None)).unwrap();
    host.create("web", spec(VssdKind::Regular, 1, None)).unwrap();
    let busy = rescue::check(dir.path(), None).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Conflict, "{busy}");
    host.disk("db").unwrap().write_at(&[7; 8192], 0).unwrap();
    host.close().unwrap();
    drop(host);
    let journal = dir.path().join("journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    // Two bytes of the part that was written first.
    let at = headstart_flash::journal::FRONT + 70;
    bytes[at..at + 2].copy_from_slice(&[0xaa, 0x55]);
    std::fs::write(&journal, &bytes).unwrap();
    let error = open().err().unwrap();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("harvest check"), "{error}");
    let error = rescue::rescue(dir.path(), None).unwrap_err().to_string();
    assert!(error.contains("--discard-all") && error.contains("nothing was changed"), "{error}");
    assert!(std::fs::read(&journal).unwrap() == bytes);
    let gone = rescue::discard_all(dir.path(), None).unwrap();
    assert_eq!(gone.state(), PartState::Lost);
    let host = open().unwrap();
    assert!(host.list().is_empty());
    assert!(std::fs::read(dir.path().join("journal.damaged")).unwrap() == bytes);
    // The list for an undamaged directory is complete.
    host.create("db", spec(VssdKind::Regular, 2, None)).unwrap();
    drop(host);
    let gone = rescue::discard_all(dir.path(), None).unwrap();
    assert_eq!(gone.vssds.iter().map(|vssd| vssd.name.as_str()).collect::<Vec<_>>(), ["db"]);
    assert_eq!(rescue::discard_all(dir.path(), None).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_directory_of_something_else_and_sizes_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |size| {
        let place = FlashPlace::File { path: dir.path().join("flash"), size: Some(size) };
        Host::open(options(dir.path(), place), clock())
    };
    let small = open(1 << 20).err().unwrap();
    assert!(small.kind() == ErrorKind::Invalid && small.to_string().contains("give 2 MiB"), "{small}");
    drop(open(2 << 20).unwrap());
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("index.json"), "{}").unwrap();
    let place = FlashPlace::File { path: other.path().join("flash"), size: Some(64 << 20) };
    let taken = Host::open(options(other.path(), place), clock()).err().unwrap();
    assert!(taken.kind() == ErrorKind::Conflict && taken.to_string().contains("index.json"), "{taken}");
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1, "nothing was made there");
}

#[test]
fn a_host_on_emulated_flash_lends_it_and_takes_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::open(options(dir.path(), FlashPlace::Emulated { size: 256 << 20 }), clock()).unwrap();
    host.create("sold", spec(VssdKind::Regular, 4, None)).unwrap();
    host.create("job", spec(VssdKind::Harvest, 2, None)).unwrap();
    host.offer("sold", 4, 48 << 20, 10 * HOUR).unwrap();
    wait_for(&host, |host| host.status().pool.iter().any(|pooled| pooled.ready));
    host.request("job", HarvestRequest { capacity: 24 << 20, bandwidth: 2, duration: HOUR, partial: true })
        .unwrap();
    let [sold, job] = ["sold", "job"].map(|name| host.disk(name).unwrap());
    std::thread::scope(|scope| {
        for (disk, letter) in [(&sold, b's'), (&job, b'j')] {
            for part in 0..2 {
                scope.spawn(move || {
                    let at = part * (3 << 20) + 512;
                    disk.write_at(&vec![letter; 2 << 20], at).unwrap();
                    disk.flush().unwrap();
                    let mut read = vec![0; 2 << 20];
                    disk.read_at(&mut read, at).unwrap();
                    assert!(read.iter().all(|byte| *byte == letter));
                });
            }
        }
    });
    host.release("job", None).unwrap();
    wait_for(&host, |host| host.status().leases.is_empty());
    host.delete("job").unwrap();
    host.delete("sold").unwrap();
    wait_for(&host, |host| host.status().flash.free_channels == 16 && host.status().pool.is_empty());
    assert!(host.list().is_empty());
}
