//! Real files, real threads.

use super::super::{FlashPlace, Host, Kind, Options, Settings, Wish};
use super::kit::{HOUR, spec};
use crate::ErrorKind;
use crate::gate::Clock;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

#[expect(clippy::disallowed_methods, reason = "a real clock")]
pub(super) fn clock() -> Arc<dyn Clock> {
    let (begun, since) = (SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap(), Instant::now());
    Arc::new(move || begun + since.elapsed())
}

fn options(dir: &Path, flash: FlashPlace) -> Options {
    Options { dir: dir.to_owned(), flash, size: None, erase: false, settings: Settings::default() }
}

pub(super) fn wait_for(host: &Host, what: impl Fn(&Host) -> bool) {
    let came = (0..2000).any(|_| {
        host.tick();
        // Threads work meanwhile.
        std::thread::park_timeout(Duration::from_millis(5));
        what(host)
    });
    assert!(came, "{:?}", host.status());
}

#[test]
fn on_a_file() {
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
    host.create("sold", spec(Kind::Regular, 4, None)).unwrap();
    host.create("unsold", spec(Kind::Unsold, 4, None)).unwrap();
    host.create("job", spec(Kind::Harvest, 2, None)).unwrap();
    let [sold, job] = ["sold", "job"].map(|name| host.disk(name).unwrap());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    sold.write_at(&bytes[..2_999_808], 4096 + 512).unwrap();
    sold.flush().unwrap();
    // Of the unsold one a gSSD a channel.
    wait_for(&host, |host| host.status().pool.iter().filter(|pooled| pooled.ready).count() >= 4);
    let size = job.size();
    let wish = Wish { capacity: 32 << 20, bandwidth: 2, duration: HOUR, partial: false };
    let leases = host.request("job", wish).unwrap();
    assert!(leases.iter().map(|lease| lease.capacity).sum::<u64>() >= 32 << 20, "{leases:?}");
    assert!(job.size() > size + (24 << 20), "{size} -> {}", job.size());
    let end = job.size() - (1 << 20);
    // More than fits what is its own.
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
    // What is unsold is sold: the job loses it, and is told.
    host.delete("unsold").unwrap();
    wait_for(&host, |host| host.status().leases.is_empty());
    assert!(host.reports().iter().any(|report| report.text.contains("evicted")), "{:?}", host.reports());
    assert_eq!(job.read_at(&mut read, end).unwrap_err().kind(), ErrorKind::Io);
    sold.read_at(&mut vec![0; 4096], 0).unwrap();
}

/// Background threads may hold the last host for a moment.
fn wait_until_free(dir: &Path, place: &FlashPlace) {
    for _ in 0..500 {
        if Host::open(options(dir, place.clone()), clock()).is_ok() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
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
    std::fs::remove_file(dir.path().join("flash.flash")).unwrap();
    let lost = Host::open(options(dir.path(), place(dir.path(), None)), clock()).err().unwrap();
    assert!(lost.to_string().contains("another directory"), "{lost}");
}

#[test]
fn on_emulated_flash() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::open(options(dir.path(), FlashPlace::Emulated { size: 256 << 20 }), clock()).unwrap();
    host.create("sold", spec(Kind::Regular, 4, None)).unwrap();
    host.create("job", spec(Kind::Harvest, 2, None)).unwrap();
    host.offer("sold", 4, 48 << 20, 10 * HOUR).unwrap();
    wait_for(&host, |host| host.status().pool.iter().any(|pooled| pooled.ready));
    host.request("job", Wish { capacity: 24 << 20, bandwidth: 2, duration: HOUR, partial: true }).unwrap();
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
