//! Merging over a base whose bytes are not on this host.

use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::sim::Machine;
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result};
use headstart_testkit::wait::wait_until;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

const SIZE: u64 = 1 << 20;
const RUNS: u64 = 64;
/// The most pieces that writes may make.
const MOST: u64 = RUNS + RUNS / 4 + 1;

/// A base whose bytes are not on this host until they are brought.
#[derive(Default)]
struct Remote {
    is_here: AtomicBool,
    /// Reads of bytes that were not here.
    missed: AtomicU64,
}

impl BlockDevice for Remote {
    fn size(&self) -> u64 {
        SIZE
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> Result<()> {
        if !self.is_here.load(Ordering::Relaxed) {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return Err(Error::new(ErrorKind::Absent, "not fetched"));
        }
        buf.fill(0xba);
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { range: ByteRange::between(offset, SIZE), zero: false })
    }
}

fn place(piece: u64) -> u64 {
    piece * 8192
}

/// A disk in as many pieces as it may be in.
fn scattered(base: &Arc<Remote>, limits: Limits) -> WritableDisk {
    let new = NewDisk { size: SIZE, parent: String::new(), uuid: Uuid::from_u128(7) };
    let base = Arc::clone(base) as Arc<dyn BlockDevice>;
    let disk = WritableDisk::create_in(Machine::default().directory(), Some(base), &new).unwrap();
    disk.view_mut().limits = Limits { runs: Some(RUNS), ..limits };
    for piece in 0..MOST {
        disk.write_at(&[1; 512], place(piece)).unwrap();
    }
    disk
}

/// Collects until there is nothing to do; returns the number of steps.
fn rest(disk: &WritableDisk, load: Load) -> u64 {
    (0..10_000).find(|_| !disk.collect(load).unwrap()).unwrap()
}

/// Brings the wanted ranges once there are any; returns them.
fn bring(disk: &WritableDisk, base: &Remote) -> Vec<ByteRange> {
    let absent = disk.take_absent();
    if !absent.is_empty() {
        base.is_here.store(true, Ordering::Relaxed);
        disk.absent_came(Ok(()));
    }
    absent
}

fn check(disk: &WritableDisk, pieces: &[(u64, u8)]) {
    let mut found = [0; 512];
    for (piece, byte) in pieces {
        disk.read_at(&mut found, place(*piece)).unwrap();
        assert_eq!(found, [*byte; 512], "{piece}");
        disk.read_at(&mut found, place(*piece) + 512).unwrap();
        assert_eq!(found, [0xba; 512], "{piece}");
    }
}

/// A limit that nothing here exceeds on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Writes that need pieces to be merged wait for the base; a write that makes no more pieces does not, nor does a
/// discard.
#[test]
fn writes_wait_for_a_base_that_is_fetched() {
    let base = Arc::<Remote>::default();
    let disk = scattered(&base, Limits::default());
    // Nothing can be merged; each window was asked for once.
    rest(&disk, Load::Pressed);
    assert_eq!(disk.space().runs, MOST);
    let missed = base.missed.load(Ordering::Relaxed);
    assert!((10..=16).contains(&missed), "{missed}");
    disk.write_at(&[2; 512], place(3)).unwrap();
    disk.write_zeroes(ByteRange::new(place(4), 512).unwrap()).unwrap();
    assert_eq!(disk.space().throttled_writes, 0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| disk.write_at(&[3; 512], place(MOST + 1)));
        wait_until("a write waits", LIMIT, || disk.space().waiting_writes == 1);
        thread::park_timeout(Duration::from_millis(50));
        assert!(!writer.is_finished());
        assert!(!bring(&disk, &base).is_empty());
        writer.join().unwrap().unwrap();
    });
    assert!(disk.space().runs < MOST && disk.space().refused_writes == 0);
    check(&disk, &[(0, 1), (3, 2), (4, 0), (MOST + 1, 3)]);
    assert!(disk.space().copied_up_bytes > 0);
}

/// A base that cannot be read is an error of the writes that need it, until it can be.
#[test]
fn writes_are_refused_while_the_base_is_away() {
    let base = Arc::<Remote>::default();
    let disk = scattered(&base, Limits::default());
    thread::scope(|scope| {
        let writer = scope.spawn(|| disk.write_at(&[3; 512], place(MOST + 1)));
        wait_until("a write waits for the base", LIMIT, || {
            disk.space().waiting_writes == 1 && !disk.take_absent().is_empty()
        });
        disk.absent_came(Err(&Error::new(ErrorKind::Unavailable, "the store is away")));
        let error = writer.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("the store is away"), "{error}");
    });
    // It is not asked for again and again, and others are refused at once.
    assert_eq!(disk.write_at(&[3; 512], place(MOST + 1)).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(disk.take_absent().is_empty() && disk.space().refused_writes == 2);
    disk.write_at(&[2; 512], place(3)).unwrap();
    disk.write_zeroes(ByteRange::new(place(4), 512).unwrap()).unwrap();
    assert!(disk.retry_absent() && !disk.retry_absent());
    thread::scope(|scope| {
        let writer = scope.spawn(|| disk.write_at(&[3; 512], place(MOST + 1)));
        wait_until("the base is wanted", LIMIT, || !bring(&disk, &base).is_empty());
        writer.join().unwrap().unwrap();
    });
    check(&disk, &[(0, 1), (3, 2), (4, 0), (MOST + 1, 3)]);
}

/// The owner brings no bytes: the write does not wait for ever.
#[test]
fn a_write_fails_when_its_base_does_not_come_in_time() {
    let limits = Limits { base_timeout: Duration::from_millis(50), ..Limits::default() };
    let disk = scattered(&Arc::default(), limits);
    let error = disk.write_at(&[3; 512], place(MOST + 1)).unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace && error.to_string().contains("in time"), "{error}");
}

/// Merging that waits for the base holds up nothing else, and goes on by itself when it has come.
#[test]
fn garbage_is_collected_while_the_base_is_on_its_way() {
    let base = Arc::<Remote>::default();
    let disk = scattered(&base, Limits { slack: 256 << 10, ..Limits::default() });
    // Over the first three pieces, so that there are fewer.
    for round in 0..20 {
        disk.write_at(&[round; 24 << 10], 0).unwrap();
        assert!(disk.space().garbage_bytes <= disk.space().live_bytes + (256 << 10));
    }
    rest(&disk, Load::Offline);
    let space = disk.space();
    assert!(space.runs > RUNS && space.garbage_bytes <= 16 << 10, "{space:?}");
    while !bring(&disk, &base).is_empty() {
        rest(&disk, Load::Quiet);
    }
    assert!(disk.space().runs <= RUNS, "{:?}", disk.space());
    check(&disk, &[(3, 1), (MOST - 1, 1)]);
}
