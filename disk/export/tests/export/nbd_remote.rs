//! Goal: a disk that another process serves is that disk: bytes, zeros, sizes, errors and durability.
//! Method: a disk in memory behind a [`PrivateServer`], used through a [`RemoteDisk`], against a plain model.

use crate::memory_disk::{Deed, MemoryDisk};
use headstart_block::{BlockDevice, ByteRange, ErrorKind, Result};
use headstart_export::Export;
use headstart_export::nbd::{PrivateServer, RemoteDisk};
use headstart_testkit::wait::wait_until;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const SIZE: usize = 3 << 20;
const CONNECTIONS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A disk, its server, the disk as another process sees it, and the number of losses that were noticed.
struct Scene {
    disk: Arc<MemoryDisk>,
    server: PrivateServer,
    remote: Arc<RemoteDisk>,
    losses: Arc<AtomicUsize>,
}

fn scene(read_only: bool) -> Scene {
    let bytes = (0..SIZE).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    let disk = Arc::new(MemoryDisk::new(bytes, read_only));
    let export = Export::new("a", Arc::clone(&disk) as Arc<dyn BlockDevice>);
    let server = PrivateServer::new(export, CONNECTIONS, 8 << 20);
    let connections = (0..CONNECTIONS).map(|_| server.connect().unwrap()).collect();
    let losses = Arc::<AtomicUsize>::default();
    let noticed = Arc::clone(&losses);
    let on_loss = move |_: &_| {
        noticed.fetch_add(1, Ordering::SeqCst);
    };
    let remote = Arc::new(RemoteDisk::new(connections, 1, "a", on_loss).unwrap());
    Scene { disk, server, remote, losses }
}

/// A request of the model test.
#[derive(Clone, Debug)]
enum Step {
    Read(usize, usize),
    ReadParts(Vec<(usize, usize)>),
    Write(usize, usize, u8),
    Zero(usize, usize),
    Flush,
    Grow(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let sectors = SIZE / 512;
    // Some are beyond the end.
    let place = (0..sectors + 8, 1..600_usize);
    prop_oneof![
        (0..SIZE + 999, 0..1_100_000_usize).prop_map(|(at, len)| Step::Read(at, len)),
        (place.clone(), any::<u8>()).prop_map(|((at, len), byte)| Step::Write(at * 512, len * 512, byte)),
        prop::collection::vec((0..SIZE + 99, 0..9000_usize), 0..40).prop_map(Step::ReadParts),
        place.prop_map(|(at, len)| Step::Zero(at * 512, len * 512)),
        Just(Step::Flush),
        (0..64_usize).prop_map(|more| Step::Grow(more * 512)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_remote_disk_reads_and_writes_as_the_disk(steps in prop::collection::vec(step(), 1..40)) {
        let Scene { disk, server: _server, remote, losses } = scene(false);
        let mut model = disk.content();
        for step in steps {
            match step {
                Step::Read(at, len) => {
                    let mut bytes = vec![0; len];
                    let read = remote.read_at(&mut bytes, at as u64);
                    match model.get(at..at + len) {
                        Some(expected) => {
                            read.unwrap();
                            prop_assert!(bytes == expected);
                        }
                        None => prop_assert_eq!(read.unwrap_err().kind(), ErrorKind::Invalid),
                    }
                }
                Step::ReadParts(places) => {
                    let mut buffers: Vec<_> = places.iter().map(|(_, len)| vec![0; *len]).collect();
                    let mut parts: Vec<_> = buffers
                        .iter_mut()
                        .zip(&places)
                        .map(|(buffer, (at, _))| (buffer.as_mut_slice(), *at as u64))
                        .collect();
                    let results = remote.read_local_parts(&mut parts);
                    prop_assert_eq!(results.len(), places.len());
                    for ((result, buffer), (at, len)) in results.into_iter().zip(&buffers).zip(places) {
                        match model.get(at..at + len) {
                            Some(expected) => prop_assert!(result.is_ok() && buffer == expected),
                            None => prop_assert!(result.is_err()),
                        }
                    }
                }
                Step::Write(at, len, byte) => {
                    let written = remote.write_at(&vec![byte; len], at as u64);
                    prop_assert_eq!(written.is_ok(), at + len <= model.len());
                    if written.is_ok() {
                        model[at..at + len].fill(byte);
                    }
                }
                Step::Zero(at, len) => {
                    let zeroed = remote.write_zeroes(ByteRange::between(at as u64, (at + len) as u64));
                    prop_assert_eq!(zeroed.is_ok(), at + len <= model.len());
                    if zeroed.is_ok() {
                        model[at..at + len].fill(0);
                    }
                }
                Step::Flush => {
                    remote.flush().unwrap();
                    prop_assert!(disk.deeds().last() == Some(&Deed::Flushed));
                }
                Step::Grow(more) => {
                    model.resize(model.len() + more, 0);
                    remote.resize(model.len() as u64).unwrap();
                    prop_assert_eq!(remote.size(), model.len() as u64);
                }
            }
        }
        prop_assert!(disk.content() == model);
        prop_assert_eq!(losses.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn threads_share_the_connections() {
    let Scene { disk, server: _server, remote, .. } = scene(false);
    let threads: Vec<_> = (0_u8..16)
        .map(|number| {
            let remote = Arc::clone(&remote);
            std::thread::spawn(move || {
                let at = u64::from(number) * (SIZE as u64 / 16);
                for round in 0..50 {
                    let bytes = vec![number ^ round; 64 << 10];
                    remote.write_at(&bytes, at).unwrap();
                    let mut read = vec![0; bytes.len()];
                    remote.read_at(&mut read, at).unwrap();
                    assert!(read == bytes, "{number}, {round}");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(disk.content()[SIZE - SIZE / 16], 15 ^ 49);
}

#[test]
fn errors_are_those_of_the_disk_and_the_connection_stays() {
    let Scene { disk, server: _server, remote, losses } = scene(false);
    disk.spoil(ByteRange::between(1 << 20, (1 << 20) + 512));
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(remote.read_at(&mut bytes, 512 << 10).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(remote.write_at(&bytes, 512 << 10).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(remote.write_at(&[0; 100], 0).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(remote.write_at(&[0; 512], u64::MAX - 511).unwrap_err().kind(), ErrorKind::Invalid);
    remote.read_at(&mut bytes, 0).unwrap();
    // Of several reads, only the one that has to fail fails.
    let mut buffers = vec![[1; 512]; 3];
    let places = [0, 1 << 20, 2 << 20];
    let parts = buffers.iter_mut().zip(places).map(|(buffer, at)| (&mut buffer[..], at));
    let results = remote.read_local_parts(&mut parts.collect::<Vec<_>>());
    let kinds = results.into_iter().map(|result| result.err().map(|error| error.kind()));
    assert_eq!(kinds.collect::<Vec<_>>(), [None, Some(ErrorKind::Io), None]);
    assert_eq!(buffers[2], disk.content()[2 << 20..][..512]);
    assert_eq!(losses.load(Ordering::SeqCst), 0);
    let Scene { server: _read_only_server, remote, .. } = scene(true);
    assert!(remote.is_read_only());
    assert_eq!(remote.write_at(&[0; 512], 0).unwrap_err().kind(), ErrorKind::ReadOnly);
    remote.flush().unwrap();
}

/// Begins a flush, which the disk holds until it is told otherwise.
fn held_flush(disk: &MemoryDisk, remote: &Arc<RemoteDisk>) -> JoinHandle<Result<()>> {
    disk.hold_flush(true);
    let remote = Arc::clone(remote);
    let flushing = std::thread::spawn(move || remote.flush());
    wait_until("the flush begins", TIMEOUT, || disk.deeds().last() == Some(&Deed::FlushBegins));
    flushing
}

/// A flush is answered when the disk has flushed, and holds up neither reads nor writes.
#[test]
fn a_flush_waits_for_the_disk_and_for_nobody_else() {
    let Scene { disk, server: _server, remote, .. } = scene(false);
    let flushing = held_flush(&disk, &remote);
    remote.write_at(&[9; 512], 0).unwrap();
    let mut bytes = [0; 512];
    remote.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == [9; 512] && !flushing.is_finished());
    disk.hold_flush(false);
    flushing.join().unwrap().unwrap();
    assert_eq!(disk.deeds().last(), Some(&Deed::Flushed));
}

/// The requests of a client that has gone have ended when the server reports that, and not before.
#[test]
fn a_closed_connection_ends_all_requests() {
    let Scene { disk, server, remote, losses } = scene(false);
    let flushing = held_flush(&disk, &remote);
    assert!(!server.end(Duration::from_millis(50)), "a flush is under way");
    assert_eq!(flushing.join().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(losses.load(Ordering::SeqCst), 1);
    assert!(remote.write_at(&[1; 512], 0).is_err(), "it is cut off");
    assert!(server.connect().is_err());
    disk.hold_flush(false);
    assert!(server.end(TIMEOUT), "nothing is under way any more");
    assert_ne!(disk.content()[0], 1);
}

/// Holes are reported as such, and read as zeros.
#[test]
fn extents_come_through() {
    struct Sparse;
    impl BlockDevice for Sparse {
        fn size(&self) -> u64 {
            8 << 20
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            assert!(offset + buf.len() as u64 <= 4 << 20, "a hole is read");
            buf.fill(5);
            Ok(())
        }
        fn extent_at(&self, offset: u64) -> Result<headstart_block::Extent> {
            let zero = offset >= 4 << 20;
            let end = if zero { 8 << 20 } else { 4 << 20 };
            Ok(headstart_block::Extent { range: ByteRange::between(offset, end), zero })
        }
    }
    let server = PrivateServer::new(Export::new("s", Arc::new(Sparse)), 2, 8 << 20);
    let connections = vec![server.connect().unwrap(), server.connect().unwrap()];
    let remote = RemoteDisk::new(connections, 1, "s", |_| ()).unwrap();
    let extent = remote.extent_at(512).unwrap();
    assert_eq!((extent.range, extent.zero), (ByteRange::between(512, 4 << 20), false));
    let extent = remote.extent_at(5 << 20).unwrap();
    assert_eq!((extent.range, extent.zero), (ByteRange::between(5 << 20, 8 << 20), true));
    let mut bytes = vec![1; 8 << 20];
    remote.read_at(&mut bytes, 0).unwrap();
    assert!(bytes[..4 << 20].iter().all(|byte| *byte == 5) && bytes[4 << 20..].iter().all(|byte| *byte == 0));
}
