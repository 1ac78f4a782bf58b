//! The vhost-user-blk server, driven through its socket by a front end with a guest's driver.

use crate::memory_disk::{Deed, MemoryDisk};
use crate::vhost_frontend::{
    DISCARD, Driver, F_EVENT_IDX, F_FLUSH, F_MQ, F_RO, FLUSH, GET_ID, Guest, IN, IOERR, OK, OUT, Shape,
    UNSUPP, WRITE_ZEROES, sleep_on,
};
use headstart_block::{BlockDevice, ByteRange};
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{ClientCounts, Export, Server};
use headstart_testkit::process::is_alone;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vhost::vhost_user::{FrontendReqHandler, VhostUserFrontend, VhostUserFrontendReqHandlerMut};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A server over a disk in memory.
struct Served {
    disk: Arc<MemoryDisk>,
    server: Option<Box<dyn Server>>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Served {
    fn new(bytes: Vec<u8>, read_only: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sock");
        let disk = Arc::new(MemoryDisk::new(bytes, read_only));
        let mut served = Self { disk, server: None, path, _dir: dir };
        served.start();
        served
    }

    fn start(&mut self) {
        let export = Export::new("a disk", Arc::clone(&self.disk) as Arc<dyn BlockDevice>);
        let settings = VhostUserSettings { queues: 4, ..VhostUserSettings::default() };
        let server = VhostUserServer::start(&self.path, &export, &settings).unwrap();
        self.server = Some(Box::new(server));
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop().unwrap();
    }

    fn guest(&self) -> Guest {
        Guest::connect(&self.path, &Shape::default())
    }
}

/// Bytes that depend on their place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512 * 7 + at % 251).to_le_bytes()[0]).collect()
}

/// The content of guest memory.
fn get(memory: &GuestMemoryMmap<()>, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
    bytes
}

fn bytes(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, len).unwrap()
}

#[test]
fn reads_and_writes_every_way_a_driver_may_ask() {
    for (indirect, refuse) in [(true, 0), (false, 0), (true, F_EVENT_IDX), (false, F_EVENT_IDX)] {
        let content = pattern(4 << 20);
        let served = Served::new(content.clone(), false);
        let shape = Shape { indirect, refuse, ..Shape::default() };
        let mut guest = Guest::connect(&served.path, &shape);
        assert_eq!(guest.read(0, 512), Ok(content[..512].to_vec()));
        assert_eq!(guest.read(4096, 2 << 20).unwrap(), content[4096..4096 + (2 << 20)]);
        assert_eq!(guest.read((4 << 20) - 4096, 4096).unwrap(), content[(4 << 20) - 4096..]);
        assert_eq!(guest.write(8192, &[9; 3 << 19]), OK);
        assert_eq!(guest.read(7680, 1024).unwrap(), [&content[7680..8192], &[9; 512]].concat());
        // A write of that size reaches the disk in parts of a mebibyte.
        assert_eq!(
            served.disk.deeds(),
            [Deed::Write(bytes(8192, 1 << 20)), Deed::Write(bytes(8192 + (1 << 20), 1 << 19))]
        );
        assert_eq!(guest.request(FLUSH, 0, 0), OK);
        assert_eq!(guest.request(GET_ID, 0, 20), OK);
        let id = get(&guest.memory, guest.data, 20);
        assert_eq!(id, b"a disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    }
}

#[test]
fn segments_may_be_of_any_size() {
    let content = pattern(1 << 20);
    let served = Served::new(content.clone(), false);
    let mut guest = served.guest();
    let data = guest.data;
    let parts = [(data + 3, 1), (data + 10_000, 4000), (data + 50_000, 0), (data + 4, 4191)];
    assert_eq!(guest.queues[0].request(IN, 2, &parts), OK);
    let mut got = vec![0; 8192];
    for (at, (addr, len)) in [(0, parts[0]), (1, parts[1]), (4001, parts[3])] {
        let got = &mut got[at..at + len as usize];
        guest.memory.read_slice(got, GuestAddress(addr)).unwrap();
    }
    assert_eq!(got, content[1024..1024 + 8192]);
    assert_eq!(guest.queues[0].request(OUT, 100, &parts), OK);
    assert_eq!(served.disk.content()[51_200..51_200 + 8192], content[1024..1024 + 8192]);
    // 128 KiB in 32 pages, as Linux reads ahead.
    let pages: Vec<_> = (0..32).rev().map(|page| (data + page * 4096, 4096)).collect();
    assert_eq!(guest.queues[0].request(IN, 0, &pages), OK);
    let first = get(&guest.memory, data + 31 * 4096, 4096);
    assert_eq!(first, content[..4096]);
}

#[test]
fn the_configuration_space_tells_the_disk() {
    let served = Served::new(vec![0; 1 << 20], false);
    let mut guest = served.guest();
    assert_eq!(guest.capacity(), 1 << 20);
    assert_eq!(guest.config::<4>(20), 512_u32.to_le_bytes());
    assert_eq!(guest.config::<2>(34), 4_u16.to_le_bytes());
    assert!(guest.features & F_MQ != 0 && guest.features & F_RO == 0);
    assert_eq!(guest.frontend.get_queue_num().unwrap(), 4);
    let served = Served::new(vec![0; 1 << 20], true);
    assert!(served.guest().features & F_RO != 0);
}

#[test]
fn a_request_that_cannot_be_done_fails_alone() {
    let served = Served::new(pattern(1 << 20), false);
    served.disk.spoil(bytes(65_536, 4096));
    let mut guest = served.guest();
    let data = guest.data;
    let outside = 1 << 40;
    for (kind, sector, part, status) in [
        (IN, 2047, (data, 1024), IOERR),
        (IN, 2048, (data, 512), IOERR),
        (IN, u64::MAX, (data, 512), IOERR),
        (IN, u64::MAX / 512, (data, 512), IOERR),
        (IN, 0, (data, 100), IOERR),
        (OUT, 0, (data, 513), IOERR),
        (OUT, 2048, (data, 512), IOERR),
        (IN, 0, (outside, 512), IOERR),
        (OUT, 0, (outside, 512), IOERR),
        (IN, 0, (u64::MAX, 512), IOERR),
        (IN, 128, (data, 512), IOERR),
        (OUT, 128, (data, 512), IOERR),
        (77, 0, (data, 512), UNSUPP),
        (IN, 0, (data, 512), OK),
    ] {
        assert_eq!(guest.queues[0].request(kind, sector, &[part]), status, "{kind} {sector} {part:?}");
    }
    assert_eq!(served.disk.deeds(), []);
    let served = Served::new(pattern(1 << 20), true);
    let mut guest = served.guest();
    assert_eq!(guest.write(0, &[0; 512]), IOERR);
    assert_eq!(guest.zero(DISCARD, &[(0, 1, 0)]), IOERR);
    assert_eq!(guest.request(FLUSH, 0, 0), OK);
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeros() {
    let served = Served::new(vec![1; 1 << 20], false);
    let mut guest = served.guest();
    assert_eq!(guest.zero(DISCARD, &[(0, 8, 0), (16, 8, 0)]), OK);
    assert_eq!(guest.zero(WRITE_ZEROES, &[(100, 2, 0), (102, 1, 1)]), OK);
    assert_eq!(guest.zero(DISCARD, &[(0, 8, 1)]), UNSUPP, "a discard has no flags");
    assert_eq!(guest.zero(WRITE_ZEROES, &[(0, 8, 2)]), UNSUPP);
    assert_eq!(guest.zero(DISCARD, &[(200, 8, 0), (2048, 8, 0)]), IOERR, "all or nothing");
    assert_eq!(guest.zero(DISCARD, &[(u64::MAX, u32::MAX, 0)]), IOERR);
    assert_eq!(guest.zero(DISCARD, &[(0, 1, 0); 33]), IOERR, "more segments than offered");
    assert_eq!(guest.request(DISCARD, 0, 15), IOERR);
    let zeroed =
        [(0, 4096), (8192, 4096), (51_200, 1024), (52_224, 512)].map(|(at, len)| Deed::Zero(bytes(at, len)));
    assert_eq!(served.disk.deeds(), zeroed);
    assert_eq!(guest.read(4096, 4096).unwrap(), [1; 4096]);
    assert_eq!(guest.read(0, 4096).unwrap(), [0; 4096]);
}

#[test]
fn a_flush_covers_answered_writes_and_holds_up_nobody() {
    let served = Served::new(vec![0; 1 << 20], false);
    let mut guest = served.guest();
    assert_eq!(guest.write(0, &[1; 4096]), OK);
    served.disk.hold_flush(true);
    let data = guest.data;
    guest.queues[0].submit(7, FLUSH, 0, &[]);
    guest.queues[0].kick();
    // Other requests go on while the disk syncs, on the same queue.
    assert_eq!(guest.write(4096, &[2; 512]), OK);
    assert_eq!(guest.queues[0].request(IN, 0, &[(data, 512)]), OK);
    assert!(!served.disk.deeds().contains(&Deed::Flushed));
    served.disk.hold_flush(false);
    assert_eq!(guest.queues[0].wait(TIMEOUT), Some((7, 1)));
    assert_eq!(guest.queues[0].status(7), OK);
    let deeds = served.disk.deeds();
    let write = deeds.iter().position(|deed| *deed == Deed::Write(bytes(0, 4096))).unwrap();
    let flush = deeds.iter().position(|deed| *deed == Deed::FlushBegins).unwrap();
    assert!(write < flush, "{deeds:?}");
}

#[test]
fn a_driver_that_does_not_flush_has_durable_writes() {
    let served = Served::new(vec![0; 1 << 20], false);
    let mut guest = Guest::connect(&served.path, &Shape { refuse: F_FLUSH, ..Shape::default() });
    assert_eq!(guest.write(512, &[1; 512]), OK);
    assert_eq!(served.disk.deeds(), [Deed::Write(bytes(512, 512)), Deed::FlushBegins, Deed::Flushed]);
}

#[test]
fn queues_work_side_by_side() {
    let content = pattern(4 << 20);
    let served = Served::new(content.clone(), false);
    let mut guest = Guest::connect(&served.path, &Shape { queues: 4, data: 16 << 20, ..Shape::default() });
    let (data, memory) = (guest.data, guest.memory.clone());
    std::thread::scope(|scope| {
        for (number, queue) in guest.queues.iter_mut().enumerate() {
            let (memory, content) = (&memory, &content);
            scope.spawn(move || {
                let buffers = data + (number as u64) * (4 << 20);
                let mut state = number as u64 + 1;
                for _ in 0..50 {
                    let mut sectors = Vec::new();
                    for slot in 0..32_u16 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let sector = (state >> 33) % (8192 - 8);
                        sectors.push(sector);
                        queue.submit(slot, IN, sector, &[(buffers + u64::from(slot) * 4096, 4096)]);
                    }
                    queue.kick();
                    for _ in 0..32 {
                        let (slot, len) = queue.wait(TIMEOUT).expect("an answer");
                        assert_eq!((queue.status(slot), len), (OK, 4097));
                        let got = get(memory, buffers + u64::from(slot) * 4096, 4096);
                        let from = usize::try_from(sectors[usize::from(slot)]).unwrap() * 512;
                        assert_eq!(got, content[from..from + 4096]);
                    }
                }
            });
        }
    });
}

#[test]
fn a_read_that_waits_holds_up_no_other() {
    let content = pattern(4 << 20);
    let served = Served::new(content.clone(), true);
    served.disk.hold_back(bytes(1 << 20, 4096));
    let mut guest = served.guest();
    let data = guest.data;
    // Its end is local, and the rest is more than one wait fetches.
    guest.queues[0].submit(40, IN, 0, &[(data, 3 << 20)]);
    for slot in 41..48 {
        guest.queues[0].submit(slot, IN, (1 << 20) / 512, &[(data + (4 << 20), 512)]);
    }
    guest.queues[0].kick();
    served.disk.until_waiting(8);
    for round in 0..100 {
        let part = (data + (5 << 20), 4096);
        assert_eq!(guest.queues[0].request(IN, round, &[part]), OK);
    }
    served.disk.bring();
    for _ in 40..48 {
        let (slot, _) = guest.queues[0].wait(TIMEOUT).unwrap();
        assert_eq!(guest.queues[0].status(slot), OK);
    }
    assert!(get(&guest.memory, data, 3 << 20) == content[..3 << 20]);
}

#[test]
fn large_reads_may_be_answered_in_any_order() {
    let content = pattern(8 << 20);
    let served = Served::new(content.clone(), true);
    served.disk.spoil(bytes(3 << 20, 512));
    let mut guest = Guest::connect(&served.path, &Shape { data: 8 << 20, ..Shape::default() });
    let (data, len) = (guest.data, 1_u32 << 20);
    for round in 0..20_u64 {
        served.disk.hold_back(bytes(round % 8 * u64::from(len) + 4096, 4096));
        for slot in 0..8 {
            let offset = u64::from(slot) * u64::from(len);
            guest.queues[0].submit(slot, IN, offset / 512, &[(data + offset, len)]);
        }
        guest.queues[0].kick();
        served.disk.until_waiting(usize::from(round % 8 != 3));
        served.disk.bring();
        for _ in 0..8 {
            let (slot, _) = guest.queues[0].wait(TIMEOUT).unwrap();
            let status = guest.queues[0].status(slot);
            assert_eq!(status, if slot == 3 { IOERR } else { OK }, "slot {slot}");
        }
        for part in (0..8).filter(|part| *part != 3) {
            let at = part * len as usize;
            assert!(get(&guest.memory, data + at as u64, len as usize) == content[at..at + len as usize]);
        }
        guest.memory.write_slice(&[0; 8 << 20], GuestAddress(data)).unwrap();
    }
}

#[test]
fn a_front_end_that_vanishes_leaves_the_disk_to_the_next() {
    let served = Served::new(pattern(1 << 20), false);
    served.disk.hold_back(bytes(0, 4096));
    for _ in 0..5 {
        let mut guest = served.guest();
        let data = guest.data;
        for slot in 0..8 {
            guest.queues[0].submit(slot, IN, 0, &[(data, 4096)]);
        }
        guest.queues[0].kick();
        served.disk.until_waiting(1);
        drop(guest);
    }
    let mut guest = served.guest();
    assert_eq!(guest.write(8192, &[5; 512]), OK);
    assert_eq!(guest.read(8192, 512).unwrap(), [5; 512]);
    served.disk.bring();
    assert_eq!(guest.read(0, 512).unwrap(), pattern(512));
    assert_eq!(served.server.as_ref().unwrap().clients().ever, 6);
}

#[test]
fn requests_in_flight_survive_the_server() {
    let content = pattern(1 << 20);
    let mut served = Served::new(content.clone(), false);
    served.disk.hold_back(bytes(0, 4096));
    let mut guest = served.guest();
    let data = guest.data;
    guest.queues[0].submit(3, IN, 0, &[(data + 4096, 4096)]);
    guest.queues[0].submit(9, IN, 1, &[(data + 8192, 512)]);
    guest.queues[0].kick();
    served.disk.until_waiting(2);
    // Others overtake them, so that the used ring's end does not show the missing ones.
    assert_eq!(guest.read(65_536, 4096).unwrap(), content[65_536..65_536 + 4096]);
    assert_eq!(guest.write(131_072, &[6; 512]), OK);
    // The old server ends as by kill -9: nothing is answered any more.
    served.stop();
    served.start();
    served.disk.bring();
    guest.reconnect(&served.path);
    let mut slots = [0, 0].map(|_| guest.queues[0].wait(TIMEOUT).expect("an answer").0);
    slots.sort_unstable();
    assert_eq!(slots, [3, 9]);
    assert_eq!([3, 9].map(|slot| guest.queues[0].status(slot)), [OK, OK]);
    let got = get(&guest.memory, data + 4096, 4096);
    assert_eq!(got, content[..4096]);
    assert_eq!(guest.read(131_072, 512).unwrap(), [6; 512]);
    assert!(guest.queues[0].poll().is_none(), "nothing is answered twice");
}

#[test]
fn a_ring_that_is_stopped_answers_first_and_goes_on_later() {
    use vhost::VhostBackend;
    let served = Served::new(pattern(1 << 20), true);
    served.disk.hold_back(bytes(0, 512));
    let mut guest = served.guest();
    let data = guest.data;
    guest.queues[0].submit(1, IN, 0, &[(data, 512)]);
    guest.queues[0].kick();
    served.disk.until_waiting(1);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| guest.frontend.get_vring_base(0).unwrap());
        assert!(!stopping.is_finished());
        served.disk.bring();
        assert_eq!(stopping.join().unwrap(), 1);
    });
    assert_eq!(guest.queues[0].poll(), Some((1, 513)));
    // A request that is offered meanwhile waits for the next start.
    guest.queues[0].submit(2, IN, 0, &[(data, 512)]);
    guest.queues[0].kick();
    assert_eq!(guest.queues[0].wait(Duration::from_millis(50)), None);
    guest.start_queue(0);
    assert_eq!(guest.queues[0].wait(TIMEOUT), Some((2, 513)));
    let clients = served.server.as_ref().unwrap().clients();
    assert_eq!(clients, ClientCounts { connected: 1, ever: 1 }, "the same guest as before");
    // Disabled and enabled again, without a stop.
    guest.frontend.set_vring_enable(0, false).unwrap();
    guest.queues[0].submit(3, IN, 0, &[(data, 512)]);
    guest.queues[0].kick();
    assert_eq!(guest.queues[0].wait(Duration::from_millis(50)), None);
    guest.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(guest.queues[0].wait(TIMEOUT), Some((3, 513)));
}

struct Changes(Arc<AtomicUsize>);

impl VhostUserFrontendReqHandlerMut for Changes {
    fn handle_config_change(&mut self) -> std::io::Result<u64> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    }
}

#[test]
fn a_new_size_is_told() {
    let served = Served::new(vec![1; 1 << 20], false);
    let mut guest = served.guest();
    let changes = Arc::new(AtomicUsize::new(0));
    let backend = Arc::new(Mutex::new(Changes(Arc::clone(&changes))));
    let mut channel = FrontendReqHandler::new(backend).unwrap();
    guest.frontend.set_backend_request_fd(&channel.get_tx_raw_fd()).unwrap();
    served.disk.resize(2 << 20).unwrap();
    served.server.as_ref().unwrap().resized();
    channel.handle_request().unwrap();
    assert_eq!(changes.load(Ordering::SeqCst), 1);
    assert_eq!(guest.capacity(), 2 << 20);
    assert_eq!(guest.read(3 << 19, 512).unwrap(), [0; 512]);
}

#[test]
fn one_front_end_at_a_time_may_write() {
    let served = Served::new(vec![0; 1 << 20], false);
    let mut first = served.guest();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| served.guest().write(0, &[2; 512]));
        for _ in 0..20 {
            assert_eq!(first.write(0, &[1; 512]), OK);
        }
        assert!(!second.is_finished());
        drop(first);
        assert_eq!(second.join().unwrap(), OK);
    });
    let served = Served::new(pattern(1 << 20), true);
    let mut guests = [(); 3].map(|()| served.guest());
    for guest in &mut guests {
        assert_eq!(guest.read(0, 512).unwrap(), pattern(512));
    }
}

#[test]
fn a_stop_is_bounded_and_cleans_up() {
    let mut served = Served::new(vec![0; 1 << 20], false);
    let mut guest = served.guest();
    assert_eq!(guest.write(0, &[1; 512]), OK);
    let error = VhostUserServer::start(
        &served.path,
        &Export::new("", Arc::clone(&served.disk) as Arc<dyn BlockDevice>),
        &VhostUserSettings::default(),
    );
    assert!(error.err().unwrap().to_string().contains("another server listens there"));
    assert!(served.server.as_ref().unwrap().failed().is_none());
    assert_eq!(served.server.as_ref().unwrap().uri(), served.path.display().to_string());
    served.stop();
    assert!(!served.path.exists());
    assert_eq!(served.disk.deeds().last(), Some(&Deed::Flushed));
    assert!(guest.frontend.get_queue_num().is_err());
    // A socket that another program left is not replaced, although nothing answers there.
    drop(std::os::unix::net::UnixListener::bind(&served.path).unwrap());
    let error = VhostUserServer::start(
        &served.path,
        &Export::new("", Arc::clone(&served.disk) as Arc<dyn BlockDevice>),
        &VhostUserSettings::default(),
    );
    assert!(error.err().unwrap().to_string().contains("on which no process answers"));
    std::fs::remove_file(&served.path).unwrap();
    served.start();
    assert_eq!(served.guest().read(0, 512).unwrap(), [1; 512]);
}

#[test]
fn a_plain_file_ends_within_a_sector() {
    let served = Served::new(pattern(1000), true);
    let mut guest = served.guest();
    assert_eq!(guest.capacity(), 1024);
    assert_eq!(guest.read(0, 1024).unwrap(), [&pattern(1000)[..], &[0; 24]].concat());
}

#[test]
fn a_connection_that_stalls_or_raves_harms_itself_alone() {
    let served = Served::new(pattern(1 << 20), false);
    let _stalled = UnixStream::connect(&served.path).unwrap();
    let mut half = UnixStream::connect(&served.path).unwrap();
    half.write_all(&[1, 0, 0]).unwrap();
    for seed in 0..50_u8 {
        let mut raving = UnixStream::connect(&served.path).unwrap();
        let message: Vec<u8> = (0..200_u8).map(|at| at.wrapping_mul(seed).rotate_left(3) ^ seed).collect();
        let header = [u32::from(seed), 1, 188].map(u32::to_ne_bytes).concat();
        let _ = raving.write_all(&header);
        let _ = raving.write_all(&message[..188]);
        raving.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let _ = raving.read(&mut [0; 64]);
    }
    assert_eq!(served.guest().read(0, 512).unwrap(), pattern(512));
}

#[test]
fn memory_that_is_not_there_is_refused() {
    use std::os::fd::AsRawFd;
    use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
    let served = Served::new(pattern(1 << 20), false);
    let guest = served.guest();
    let short = tempfile::tempfile().unwrap();
    short.set_len(4096).unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: 1 << 20,
        userspace_addr: 0,
        mmap_offset: 0,
        mmap_handle: short.as_raw_fd(),
    };
    assert!(guest.frontend.set_mem_table(&[region]).is_err());
    drop(guest);
    assert_eq!(served.guest().read(0, 512).unwrap(), pattern(512));
}

/// Makes the chain at head 0.
type Spoil = Box<dyn Fn(&mut Driver)>;

/// A chain that no driver may make breaks its queue: the front end is notified, others go on.
#[test]
fn a_broken_queue_is_given_up_and_told() {
    let served = Served::new(pattern(1 << 20), true);
    let (next, write, indirect) = (1, 2, 4);
    let header = |queue: &Driver| (queue.slot_page(0), 16);
    let cases: Vec<Spoil> = vec![
        // A loop.
        Box::new(move |queue| queue.describe(queue.table, 0, header(queue), next, 0)),
        // An index outside of the table.
        Box::new(move |queue| queue.describe(queue.table, 0, header(queue), next, 9999)),
        // No room for the status.
        Box::new(move |queue| queue.describe(queue.table, 0, header(queue), 0, 0)),
        // Nothing to read.
        Box::new(move |queue| queue.describe(queue.table, 0, header(queue), write, 0)),
        // A header outside of memory.
        Box::new(move |queue| {
            queue.describe(queue.table, 0, (u64::MAX - 3, 16), next, 1);
            queue.describe(queue.table, 1, header(queue), write, 0);
        }),
        // A status outside of memory.
        Box::new(move |queue| {
            queue.describe(queue.table, 0, header(queue), next, 1);
            queue.describe(queue.table, 1, (1 << 50, 1), write, 0);
        }),
        // A part to read after a part to write.
        Box::new(move |queue| {
            queue.describe(queue.table, 0, header(queue), next | write, 1);
            queue.describe(queue.table, 1, header(queue), next, 2);
            queue.describe(queue.table, 2, header(queue), write, 0);
        }),
        // A table in a table.
        Box::new(move |queue| queue.describe(queue.table, 0, (queue.table, 16), indirect, 0)),
        // A table of no length, of a broken length, outside of memory.
        Box::new(move |queue| queue.describe(queue.table, 0, (queue.table + 16, 0), indirect, 0)),
        Box::new(move |queue| queue.describe(queue.table, 0, (queue.table + 16, 17), indirect, 0)),
        Box::new(move |queue| queue.describe(queue.table, 0, (1 << 45, 32), indirect, 0)),
        // More than 4 GiB.
        Box::new(move |queue| {
            queue.describe(queue.table, 0, (0, u32::MAX), next | write, 1);
            queue.describe(queue.table, 1, (0, u32::MAX), write, 0);
        }),
    ];
    for (number, spoil) in cases.iter().enumerate() {
        let mut guest = Guest::connect(&served.path, &Shape { queues: 2, ..Shape::default() });
        let data = guest.data;
        spoil(&mut guest.queues[0]);
        guest.queues[0].offer(0);
        guest.queues[0].kick();
        assert!(sleep_on(&guest.queues[0].error, TIMEOUT), "case {number}");
        assert_eq!(guest.queues[1].request(IN, 0, &[(data, 512)]), OK, "case {number}");
        // After a reset of the device it works again.
        vhost::VhostBackend::get_vring_base(&guest.frontend, 0).unwrap();
        let queue = &mut guest.queues[0];
        queue.used_idx = queue.avail_idx;
        queue.memory.write_obj(queue.avail_idx.0, GuestAddress(queue.used + 2)).unwrap();
        guest.start_queue(0);
        assert_eq!(guest.read(0, 512).unwrap(), pattern(512), "case {number}");
    }
    // A head outside of the table, and more heads than the ring has.
    for (head, skip) in [(9999, 0), (0, 999)] {
        let mut guest = served.guest();
        guest.queues[0].avail_idx += skip;
        guest.queues[0].offer(head);
        guest.queues[0].kick.write(1).unwrap();
        assert!(sleep_on(&guest.queues[0].error, TIMEOUT), "head {head}");
    }
}

/// The number of threads of the server that panicked, which would not be noticed otherwise. The hook is one of the
/// whole process, so that the test has to be alone in it.
fn count_panics() -> Arc<AtomicUsize> {
    let panics = Arc::new(AtomicUsize::new(0));
    let (counted, default) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        if thread.name().is_some_and(|name| name.starts_with("vhost-") || name == "blocking-pool") {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        default(info);
    }));
    panics
}

/// The bytes that a hostile guest writes to some places of its memory, and the time that it waits then.
fn scribbles() -> impl Strategy<Value = Vec<(u64, u64, u8)>> {
    prop::collection::vec((0..40_000_u64, any::<u64>(), 0..20_u8), 1..200)
}

/// A guest writes at random into its rings, tables and requests while they are served. Its queues may break; the
/// server does not, and serves the next guest.
#[test]
fn a_guest_that_scribbles_harms_itself_alone() {
    if !is_alone("vhost_user::a_guest_that_scribbles_harms_itself_alone") {
        return;
    }
    let panics = count_panics();
    let served = Served::new(pattern(1 << 20), false);
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(scribbles in scribbles(), indirect: bool)| {
        let shape = Shape { indirect, entries: 64, ..Shape::default() };
        let mut guest = Guest::connect(&served.path, &shape);
        let (data, queue) = (guest.data, &mut guest.queues[0]);
        for (number, (at, value, kind)) in (0_u16..).zip(scribbles) {
            // Sensible requests in between, so that there is something to disturb.
            queue.submit(number % 16, u32::from(kind), value % 2048, &[(data, 512), (data + 600, 1024)]);
            queue.memory.write_obj(value, GuestAddress(at)).unwrap();
            if kind < 4 {
                // The most harmful places: the table and the heads.
                let small = [value % 40_000, (u64::from(kind) << 32) | (value % 4096)];
                let at = queue.table + 16 * (value % u64::from(queue.entries));
                queue.memory.write_obj(small, GuestAddress(at)).unwrap();
            }
            queue.kick.write(1).unwrap();
            if kind == 5 {
                sleep_on(&queue.call, Duration::from_millis(1));
            }
        }
        drop(guest);
    });
    let mut guest = served.guest();
    assert_eq!(guest.write(4096, &[3; 4096]), OK);
    assert_eq!(guest.read(4096, 4096).unwrap(), [3; 4096]);
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

/// A front end that makes its memory file shorter loses its rings. Nothing of the lost memory reaches the disk, other
/// disks of this process are served as before, and so is the next front end.
#[test]
fn memory_that_is_shortened_ends_its_rings_alone() {
    let content = pattern(1 << 20);
    let served = Served::new(content.clone(), false);
    let other = Served::new(content.clone(), false);
    let mut others = other.guest();
    for kind in [IN, OUT] {
        let shape = Shape { sealed: false, ..Shape::default() };
        let mut guest = Guest::connect(&served.path, &shape);
        assert_eq!(guest.read(0, 512).unwrap(), content[..512]);
        guest.take_data_away();
        let data = guest.data;
        guest.queues[0].submit(0, kind, 0, &[(data, 4096)]);
        guest.queues[0].kick();
        assert!(sleep_on(&guest.queues[0].error, TIMEOUT), "kind {kind}: the front end is not told");
        assert_eq!(others.read(4096, 512).unwrap(), content[4096..4608]);
    }
    assert_eq!(served.guest().read(0, 8192).unwrap(), content[..8192]);
    assert_eq!(served.disk.deeds(), []);
}
