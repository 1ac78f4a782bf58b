//! A vhost-user-blk front end with a guest's driver, for tests and load: the memory, the rings and the requests that
//! a hypervisor and Linux would make. It drives any server of the protocol.
//!
//! Guest memory begins with the rings of each queue, then a page for each request slot (header, status, indirect
//! table), then [`Guest::data`]: free for the data of requests.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::num::Wrapping;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const OK: u8 = 0;
pub(crate) const IOERR: u8 = 1;
pub(crate) const UNSUPP: u8 = 2;

pub(crate) const F_RO: u64 = 1 << 5;
pub(crate) const F_FLUSH: u64 = 1 << 9;
pub(crate) const F_MQ: u64 = 1 << 12;
pub(crate) const F_INDIRECT: u64 = 1 << 28;
pub(crate) const F_EVENT_IDX: u64 = 1 << 29;
const F_PROTOCOL: u64 = 1 << 30;
pub(crate) const F_VERSION_1: u64 = 1 << 32;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The address at which the front end claims to have guest address 0: unlike any address that it has.
const USER_BASE: u64 = 0x7000_0000_0000;

/// The number of entries of each slot's direct chain.
const SLOT_ENTRIES: u16 = 4;
const PAGE: u64 = 4096;

/// The properties of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) queues: u16,
    /// The number of entries of a ring; a fourth as many requests can be in flight.
    pub(crate) entries: u16,
    /// The number of bytes for data.
    pub(crate) data: u64,
    /// The features that are not accepted although they are offered.
    pub(crate) refuse: u64,
    /// `true` if requests are made of indirect tables.
    pub(crate) indirect: bool,
    /// `true` if the record of requests in flight is kept, if the server has one.
    pub(crate) record: bool,
    /// `true` if the memory can never be made shorter.
    pub(crate) sealed: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { queues: 1, entries: 256, data: 8 << 20, refuse: 0, indirect: true, record: true, sealed: true }
    }
}

/// A run of guest memory: address, bytes.
pub(crate) type Part = (u64, u32);

/// A front end and its guest.
pub(crate) struct Guest {
    pub(crate) frontend: Frontend,
    pub(crate) memory: GuestMemoryMmap<()>,
    file: File,
    pub(crate) queues: Vec<Driver>,
    /// The start of free memory.
    pub(crate) data: u64,
    pub(crate) offered: u64,
    pub(crate) features: u64,
    shape: Shape,
    record: Option<(VhostUserInflight, File)>,
}

/// The driver's side of a queue.
pub(crate) struct Driver {
    pub(crate) memory: GuestMemoryMmap<()>,
    pub(crate) entries: u16,
    /// Descriptor table; the rings follow it.
    pub(crate) table: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
    slots: u64,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) error: EventFd,
    pub(crate) avail_idx: Wrapping<u16>,
    kicked: Wrapping<u16>,
    pub(crate) used_idx: Wrapping<u16>,
    event_idx: bool,
    indirect: bool,
}

fn ring_pages(entries: u16) -> u64 {
    // 16 bytes a descriptor, 2 and 8 in the rings, and their heads.
    (26 * u64::from(entries) + 64).div_ceil(PAGE) + 1
}

impl Guest {
    /// Connects to the server at `path` and starts all queues.
    pub(crate) fn connect(path: &Path, shape: &Shape) -> Self {
        let slots = u64::from(shape.entries / SLOT_ENTRIES);
        let queue_pages = ring_pages(shape.entries) + slots;
        let data = queue_pages * u64::from(shape.queues) * PAGE;
        let len = data + shape.data.next_multiple_of(PAGE);
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len).unwrap();
        if shape.sealed {
            fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).unwrap();
        }
        let file = File::from(file);
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let ranges = [(GuestAddress(0), usize::try_from(len).unwrap(), Some(offset))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        let queues = (0..u64::from(shape.queues))
            .map(|index| Driver::new(&memory, shape, index * queue_pages * PAGE))
            .collect();
        let frontend = Frontend::connect(path, u64::from(shape.queues)).unwrap();
        let (offered, features, shape, record) = (0, 0, shape.clone(), None);
        let mut guest = Self { frontend, memory, file, queues, data, offered, features, shape, record };
        guest.negotiate(len);
        guest
    }

    /// Connects again after the server went away, as QEMU does: the rings go on from the end of the used ring.
    pub(crate) fn reconnect(&mut self, path: &Path) {
        self.frontend = Frontend::connect(path, u64::from(self.shape.queues)).unwrap();
        let len = self.file.metadata().unwrap().len();
        self.negotiate(len);
    }

    fn negotiate(&mut self, len: u64) {
        let frontend = &mut self.frontend;
        frontend.set_owner().unwrap();
        self.offered = frontend.get_features().unwrap();
        let wanted = F_INDIRECT | F_EVENT_IDX | F_PROTOCOL | F_VERSION_1 | 0xffff;
        self.features = self.offered & wanted & !self.shape.refuse;
        let protocol = frontend.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        frontend.set_protocol_features(protocol & wanted).unwrap();
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        frontend.set_features(self.features).unwrap();
        if self.shape.record && protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            let about = VhostUserInflight::new(0, 0, self.shape.queues, self.shape.entries);
            let (about, file) =
                self.record.take().unwrap_or_else(|| frontend.get_inflight_fd(&about).unwrap());
            frontend.set_inflight_fd(&about, file.as_raw_fd()).unwrap();
            self.record = Some((about, file));
        }
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: len,
            userspace_addr: USER_BASE,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        for index in 0..self.queues.len() {
            self.start_queue(index);
        }
    }

    /// Makes the memory file shorter: all but the rings and slots is gone.
    pub(crate) fn take_data_away(&self) {
        self.file.set_len(self.data).unwrap();
    }

    pub(crate) fn start_queue(&mut self, index: usize) {
        let (frontend, queue) = (&mut self.frontend, &mut self.queues[index]);
        queue.event_idx = self.features & F_EVENT_IDX != 0;
        frontend.set_vring_num(index, queue.entries).unwrap();
        let addrs = VringConfigData {
            queue_max_size: queue.entries,
            queue_size: queue.entries,
            flags: 0,
            desc_table_addr: USER_BASE + queue.table,
            used_ring_addr: USER_BASE + queue.used,
            avail_ring_addr: USER_BASE + queue.avail,
            log_addr: None,
        };
        frontend.set_vring_addr(index, &addrs).unwrap();
        let used: u16 = queue.memory.load(GuestAddress(queue.used + 2), Ordering::Acquire).unwrap();
        frontend.set_vring_base(index, used).unwrap();
        frontend.set_vring_err(index, &queue.error).unwrap();
        frontend.set_vring_call(index, &queue.call).unwrap();
        frontend.set_vring_kick(index, &queue.kick).unwrap();
        if self.features & F_PROTOCOL != 0 {
            frontend.set_vring_enable(index, true).unwrap();
        }
    }

    /// A field of the configuration space.
    pub(crate) fn config<const N: usize>(&mut self, at: u32) -> [u8; N] {
        let len = u32::try_from(N).unwrap();
        let (_, bytes) = self.frontend.get_config(at, len, VhostUserConfigFlags::empty(), &[0; N]).unwrap();
        bytes.try_into().unwrap()
    }

    /// The number of bytes of the disk.
    pub(crate) fn capacity(&mut self) -> u64 {
        u64::from_le_bytes(self.config(0)) * 512
    }

    /// Has one request done on queue 0 with data in one run, and returns its status.
    pub(crate) fn request(&mut self, kind: u32, sector: u64, len: u32) -> u8 {
        let data = self.data;
        self.queues[0].request(kind, sector, &[(data, len)])
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, u8> {
        let status = self.request(IN, offset / 512, u32::try_from(len).unwrap());
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(self.data)).unwrap();
        if status == OK { Ok(bytes) } else { Err(status) }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> u8 {
        self.memory.write_slice(bytes, GuestAddress(self.data)).unwrap();
        self.request(OUT, offset / 512, u32::try_from(bytes.len()).unwrap())
    }

    /// A discard or write-zeroes request of these segments: sector, sectors, flags.
    pub(crate) fn zero(&mut self, kind: u32, segments: &[(u64, u32, u32)]) -> u8 {
        let bytes: Vec<u8> = segments
            .iter()
            .flat_map(|(sector, sectors, flags)| {
                [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
            })
            .collect();
        self.memory.write_slice(&bytes, GuestAddress(self.data)).unwrap();
        self.request(kind, 0, u32::try_from(bytes.len()).unwrap())
    }
}

impl Driver {
    fn new(memory: &GuestMemoryMmap<()>, shape: &Shape, at: u64) -> Self {
        let entries = u64::from(shape.entries);
        let avail = at + 16 * entries;
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        Self {
            memory: memory.clone(),
            entries: shape.entries,
            table: at,
            avail,
            used: (avail + 6 + 2 * entries).next_multiple_of(8),
            slots: at + ring_pages(shape.entries) * PAGE,
            kick: event(),
            call: event(),
            error: event(),
            avail_idx: Wrapping(0),
            kicked: Wrapping(0),
            used_idx: Wrapping(0),
            event_idx: false,
            indirect: shape.indirect,
        }
    }

    /// The number of requests that can be in flight.
    pub(crate) fn slots(&self) -> u16 {
        self.entries / SLOT_ENTRIES
    }

    /// The page of a slot: header at 0, status at 16, indirect table at 1024.
    pub(crate) fn slot_page(&self, slot: u16) -> u64 {
        self.slots + u64::from(slot) * PAGE
    }

    /// Writes an entry of a descriptor table.
    pub(crate) fn describe(&self, table: u64, index: u16, part: Part, flags: u16, next: u16) {
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&part.0.to_le_bytes());
        entry[8..12].copy_from_slice(&part.1.to_le_bytes());
        entry[12..14].copy_from_slice(&flags.to_le_bytes());
        entry[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_slice(&entry, GuestAddress(table + 16 * u64::from(index))).unwrap();
    }

    /// Puts a request into a slot and makes it available. It is not kicked.
    pub(crate) fn submit(&mut self, slot: u16, kind: u32, sector: u64, data: &[Part]) {
        let page = self.slot_page(slot);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write_slice(&header, GuestAddress(page)).unwrap();
        self.memory.write_obj(0xff_u8, GuestAddress(page + 16)).unwrap();
        let head = slot * SLOT_ENTRIES;
        let (table, first) = if self.indirect { (page + 1024, 0) } else { (self.table, head) };
        let flags = if kind == IN || kind == GET_ID { WRITE } else { 0 };
        self.describe(table, first, (page, 16), NEXT, first + 1);
        let mut index = first + 1;
        for part in data {
            self.describe(table, index, *part, flags | NEXT, index + 1);
            index += 1;
        }
        self.describe(table, index, (page + 16, 1), WRITE, 0);
        if self.indirect {
            let len = 16 * u32::from(index + 1);
            self.describe(self.table, head, (table, len), INDIRECT, 0);
        }
        self.offer(head);
    }

    /// Makes a chain available by its head.
    pub(crate) fn offer(&mut self, head: u16) {
        let at = self.avail + 4 + 2 * u64::from(self.avail_idx.0 % self.entries);
        self.memory.write_obj(head.to_le(), GuestAddress(at)).unwrap();
        self.avail_idx += 1;
        self.memory.store(self.avail_idx.0.to_le(), GuestAddress(self.avail + 2), Ordering::Release).unwrap();
    }

    /// Kicks the device if it wants that.
    pub(crate) fn kick(&mut self) {
        fence(Ordering::SeqCst);
        let (old, new) = (self.kicked, self.avail_idx);
        self.kicked = new;
        let wanted = if self.event_idx {
            let at = self.used + 4 + 8 * u64::from(self.entries);
            let event: u16 = self.memory.load(GuestAddress(at), Ordering::Relaxed).unwrap();
            (new - Wrapping(event) - Wrapping(1)).0 < (new - old).0
        } else {
            self.memory.load::<u16>(GuestAddress(self.used), Ordering::Relaxed).unwrap() & 1 == 0
        };
        if wanted {
            self.kick.write(1).unwrap();
        }
    }

    /// The next answer: the slot, and the number of bytes written.
    pub(crate) fn poll(&mut self) -> Option<(u16, u32)> {
        let end: u16 = self.memory.load(GuestAddress(self.used + 2), Ordering::Acquire).unwrap();
        if end == self.used_idx.0 {
            return None;
        }
        let at = self.used + 4 + 8 * u64::from(self.used_idx.0 % self.entries);
        let [head, len]: [u32; 2] = self.memory.read_obj(GuestAddress(at)).unwrap();
        self.used_idx += 1;
        Some((u16::try_from(head).unwrap() / SLOT_ENTRIES, len))
    }

    /// Waits for the next answer, until `timeout` is over.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<(u16, u32)> {
        loop {
            if let Some(answer) = self.poll() {
                return Some(answer);
            }
            if self.event_idx {
                let at = self.avail + 4 + 2 * u64::from(self.entries);
                self.memory.store(self.used_idx.0, GuestAddress(at), Ordering::Relaxed).unwrap();
                fence(Ordering::SeqCst);
                if let Some(answer) = self.poll() {
                    return Some(answer);
                }
            }
            if !sleep_on(&self.call, timeout) {
                return None;
            }
        }
    }

    /// The state that both sides see, for messages.
    #[allow(dead_code, reason = "only the bench says it")]
    pub(crate) fn state(&self) -> String {
        let at = |addr| self.memory.load::<u16>(GuestAddress(addr), Ordering::SeqCst).unwrap();
        let entries = u64::from(self.entries);
        format!(
            "available {} (the device wants a kick at {}), kicked at {}; used {} of {} (we want a call at {})",
            self.avail_idx,
            at(self.used + 4 + 8 * entries),
            self.kicked,
            self.used_idx,
            at(self.used + 2),
            at(self.avail + 4 + 2 * entries),
        )
    }

    /// The status of the request in a slot.
    pub(crate) fn status(&self, slot: u16) -> u8 {
        self.memory.read_obj(GuestAddress(self.slot_page(slot) + 16)).unwrap()
    }

    /// Has one request done in slot 0.
    pub(crate) fn request(&mut self, kind: u32, sector: u64, data: &[Part]) -> u8 {
        self.submit(0, kind, sector, data);
        self.kick();
        let (slot, _) = self.wait(Duration::from_secs(20)).expect("an answer in time");
        assert_eq!(slot, 0);
        self.status(0)
    }
}

/// Waits for an eventfd and takes its count; `true` if it came in time.
pub(crate) fn sleep_on(event: &EventFd, timeout: Duration) -> bool {
    // SAFETY: the descriptor stays open while `event` is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
    let time = Timespec::try_from(timeout).unwrap();
    let came = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap_or(0) > 0;
    let _ = event.read();
    came
}
