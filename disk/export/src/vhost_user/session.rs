//! One front end's connection: the vhost-user protocol, from the first message to its end.
//!
//! `vhost` reads and answers the messages; this module implements them. Rings start when everything about them is
//! known, in whatever order the front end gives it, and end by `GET_VRING_BASE` or with the connection.
//!
//! `vhost-user-backend`, which does the same for most devices, is not used: it keeps no record of requests in flight
//! and cannot announce a new size, and a hostile kick descriptor makes its threads block for good.
//!
//! # The channel to the front end
//!
//! A changed size is reported by a message of the server, over a socket that the front end sends with
//! `SET_BACKEND_REQ_FD`. `vhost` takes that message and wraps the socket in a type that cannot send
//! `CONFIG_CHANGE_MSG`. So each message's head is peeked at before `vhost` reads it: the kernel gives this process
//! another descriptor for the socket in it.

use super::blk::Target;
use super::inflight::Record;
use super::memory::{GuestMemory, MemoryTable, REGIONS_MAX};
use super::owner::Owner;
use super::ring::{Ending, RingHandle, RingParts, WorkerPools};
use headstart_block::ClientGuard;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs::File;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vhost::vhost_user::message::{
    BackendReq, FrontendReq, VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags,
    VhostUserInflight, VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags,
    VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};

/// The most entries of a ring: as many as QEMU allows.
pub(crate) const RING_ENTRIES_MAX: u16 = 1024;

/// The most bytes of the configuration space that a front end may ask for.
const CONFIG_ASKED_MAX: u32 = 256;

/// The part of a session that the server reaches.
pub(crate) struct Link {
    socket: UnixStream,
    state: Mutex<LinkState>,
}

#[derive(Default)]
struct LinkState {
    /// The socket for messages to the front end.
    channel: Option<UnixStream>,
    /// The rings that were started and not seen to end.
    rings: Vec<Arc<RingHandle>>,
    /// `true` once a ring was started.
    had_rings: bool,
    /// `true` if no ring may start any more.
    closing: bool,
}

impl Link {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, state: Mutex::default() }
    }

    /// Locks the state.
    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock()
    }

    /// `true` if the front end has gone away, or this server has hung up.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|_| fds[0].revents().intersects(gone))
    }

    /// `true` if a guest uses the disk.
    pub(crate) fn has_rings(&self) -> bool {
        !self.lock().rings.is_empty()
    }

    /// `true` if a guest uses the disk, or has used it: one that restarts stops its rings for a moment.
    pub(crate) fn had_rings(&self) -> bool {
        self.lock().had_rings
    }

    /// Lets no ring start any more, and has all rings end when they have answered what they hold.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        for ring in &state.rings {
            ring.end(Ending::Drain);
        }
    }

    /// Waits until all rings have ended or `gone`.
    pub(crate) fn wait_closed(&self, gone: &dyn Fn() -> bool) {
        let rings = self.lock().rings.clone();
        for ring in rings {
            ring.wait_ended(gone);
        }
    }

    /// Ends the connection.
    pub(crate) fn hang_up(&self) {
        // This fails if the connection is gone already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Notifies the front end that the configuration space has changed; `true` if it can be notified.
    pub(crate) fn notify_config_change(&self) -> bool {
        // The message: request, flags (version 1, no reply wanted), length of the payload.
        let words = [u32::from(BackendReq::CONFIG_CHANGE_MSG), 1, 0];
        let message: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let state = self.lock();
        state.channel.as_ref().is_some_and(|mut channel| channel.write_all(&message).is_ok())
    }
}

/// A ring, as far as the front end has described it.
struct RingSetup {
    entries: u16,
    /// Descriptor table, avail ring and used ring, in the front end's addresses.
    addrs: Option<[u64; 3]>,
    base: u16,
    kick: Option<Arc<File>>,
    call: Option<Arc<File>>,
    error: Option<Arc<File>>,
    enabled: bool,
    running: Option<Arc<RingHandle>>,
}

impl RingSetup {
    fn new() -> Self {
        let (addrs, kick, call, error, running) = (None, None, None, None, None);
        Self { entries: RING_ENTRIES_MAX, addrs, base: 0, kick, call, error, enabled: false, running }
    }
}

/// A connection's state.
pub(crate) struct Session {
    link: Arc<Link>,
    target: Arc<Target>,
    pools: Arc<WorkerPools>,
    owner: Arc<Owner>,
    /// `true` if this front end is the one that may use the disk.
    owns: bool,
    features: u64,
    table: MemoryTable,
    memory: Arc<GuestMemory>,
    record: Option<Record>,
    rings: Vec<RingSetup>,
    _client: ClientGuard,
}

/// Speaks with a front end until it goes away or breaks the protocol.
pub(crate) fn run(
    link: &Arc<Link>,
    target: Arc<Target>,
    pools: Arc<WorkerPools>,
    owner: Arc<Owner>,
) -> Result<()> {
    let rings = (0..target.queues()).map(|_| RingSetup::new()).collect();
    let client = ClientGuard::of(&target.device);
    // The library calls a session only behind the standard library's lock.
    let session = Arc::new(std::sync::Mutex::new(Session {
        link: Arc::clone(link),
        target,
        pools,
        owner,
        owns: false,
        features: 0,
        table: MemoryTable::default(),
        memory: Arc::default(),
        record: None,
        rings,
        _client: client,
    }));
    let socket = link.socket.try_clone().map_err(Error::SocketError)?;
    let mut messages = BackendReqHandler::from_stream(socket, Arc::clone(&session));
    loop {
        // The channel is taken before the message is answered, because the front end may rely on it from then on.
        if let Some(channel) = peek_channel(&link.socket) {
            link.lock().channel = Some(channel);
        }
        match messages.handle_request() {
            Ok(()) | Err(Error::SocketRetry(_)) => {}
            Err(Error::Disconnected | Error::SocketBroken(_) | Error::PartialMessage) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The socket in the next message, if that is `SET_BACKEND_REQ_FD`. Waits for a message.
fn peek_channel(socket: &UnixStream) -> Option<UnixStream> {
    let mut code = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut code)], &mut control, flags).ok()?;
    if got.bytes < code.len() || u32::from_ne_bytes(code) != u32::from(FrontendReq::SET_BACKEND_REQ_FD) {
        return None;
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let channel = UnixStream::from(fds.flatten().next()?);
    // A front end that does not read must not hold this thread up. A descriptor that is not a socket fails here or when
    // it is used.
    channel.set_nonblocking(true).ok()?;
    Some(channel)
}

/// A descriptor to signal on, made non-blocking.
fn signal(file: Option<File>) -> Result<Option<Arc<File>>> {
    let Some(file) = file else { return Ok(None) };
    let set = || {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)
    };
    set().map_err(|e| Error::ReqHandlerError(e.into()))?;
    Ok(Some(Arc::new(file)))
}

impl Session {
    fn ring(&mut self, index: impl Into<u32>) -> Result<&mut RingSetup> {
        let index = usize::try_from(index.into()).map_err(|_| Error::InvalidParam)?;
        self.rings.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// Starts ring `index` if everything that it needs is known, and it does not run.
    fn start_if_ready(&mut self, index: u32) -> Result<()> {
        let ring = self.ring(index)?;
        let (Some(kick), Some(addrs)) = (ring.kick.clone(), ring.addrs) else { return Ok(()) };
        if ring.running.is_some() || !ring.enabled {
            return Ok(());
        }
        let (entries, base, call, error) = (ring.entries, ring.base, ring.call.clone(), ring.error.clone());
        let queue = self.queue(entries, addrs, base)?;
        self.become_owner()?;
        let index = u16::try_from(index).map_err(|_| Error::InvalidParam)?;
        let record = match &self.record {
            Some(record) => Some(record.queue(index).ok_or(Error::InvalidParam)?),
            None => None,
        };
        let parts = RingParts {
            target: Arc::clone(&self.target),
            pools: Arc::clone(&self.pools),
            memory: Arc::clone(&self.memory),
            queue,
            record,
            kick,
            call,
            error,
            driver_flushes: Target::driver_flushes(self.features),
        };
        let mut state = self.link.lock();
        if state.closing {
            return Err(Error::InvalidOperation("the server stops"));
        }
        let handle = RingHandle::start(index, parts).map_err(Error::ReqHandlerError)?;
        state.rings.push(Arc::clone(&handle));
        state.had_rings = true;
        drop(state);
        self.ring(index)?.running = Some(handle);
        Ok(())
    }

    /// A ring at these addresses, if they are memory.
    fn queue(&self, entries: u16, addrs: [u64; 3], base: u16) -> Result<Queue> {
        let translate = |addr| {
            self.table
                .translate(addr)
                .ok_or(Error::InvalidOperation("a ring is outside of the guest's memory"))
        };
        let invalid = |_| Error::InvalidParam;
        let mut queue = Queue::new(RING_ENTRIES_MAX).map_err(invalid)?;
        queue.try_set_size(entries).map_err(invalid)?;
        queue.try_set_desc_table_address(translate(addrs[0])?).map_err(invalid)?;
        queue.try_set_avail_ring_address(translate(addrs[1])?).map_err(invalid)?;
        queue.try_set_used_ring_address(translate(addrs[2])?).map_err(invalid)?;
        queue.set_event_idx(self.features & 1 << VIRTIO_RING_F_EVENT_IDX != 0);
        queue.set_next_avail(base);
        queue.set_ready(true);
        if !queue.is_valid(&**self.memory) {
            return Err(Error::InvalidOperation("a ring does not lie in the guest's memory"));
        }
        let used = queue.used_idx(&**self.memory, std::sync::atomic::Ordering::Acquire).map_err(invalid)?;
        queue.set_next_used(used.0);
        Ok(queue)
    }

    /// Waits until no other front end uses the disk, if the disk can be written.
    fn become_owner(&mut self) -> Result<()> {
        if !self.owns && !self.target.device.is_read_only() {
            if !self.owner.claim(&self.target, &|| self.link.is_gone()) {
                return Err(Error::Disconnected);
            }
            self.owns = true;
        }
        Ok(())
    }

    /// Takes up a change of the guest's memory.
    fn memory_changed(&mut self) -> Result<()> {
        self.memory = self.table.guest()?;
        for running in self.rings.iter().filter_map(|ring| ring.running.as_ref()) {
            running.set_memory(Arc::clone(&self.memory), &|| self.link.is_gone());
        }
        Ok(())
    }

    fn set_ring_enabled(&mut self, index: u32, enabled: bool) -> Result<()> {
        let ring = self.ring(index)?;
        ring.enabled = enabled;
        if let Some(running) = ring.running.clone() {
            running.set_enabled(enabled, &|| self.link.is_gone());
        }
        self.start_if_ready(index)
    }

    /// Ends ring `index`; returns the next index of its avail ring.
    fn stop_ring(&mut self, index: u32) -> Result<u16> {
        let link = Arc::clone(&self.link);
        let ring = self.ring(index)?;
        (ring.kick, ring.call, ring.error) = (None, None, None);
        if let Some(running) = ring.running.take() {
            running.end(Ending::Drain);
            let Some(base) = running.wait_ended(&|| link.is_gone()) else {
                running.end(Ending::Abandon);
                return Err(Error::Disconnected);
            };
            ring.base = base;
            link.lock().rings.retain(|other| !Arc::ptr_eq(other, &running));
        }
        Ok(ring.base)
    }
}

/// The front end is gone: its requests are given up, and the next one may have the disk.
impl Drop for Session {
    fn drop(&mut self) {
        let rings = std::mem::take(&mut self.link.lock().rings);
        for ring in &rings {
            ring.end(Ending::Abandon);
        }
        for ring in &rings {
            ring.wait_ended(&|| false);
        }
        if self.owns {
            self.owner.leave();
        }
    }
}

const NOT_OFFERED: Error = Error::InvalidOperation("it was not offered");

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // Deprecated; front ends stop the rings one by one.
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.target.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            // Such a front end does not know SET_VRING_ENABLE.
            for index in 0..u32::from(self.target.queues()) {
                self.set_ring_enabled(index, true)?;
            }
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.target.queues()))
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.table = MemoryTable::new(regions, files)?;
        self.memory_changed()?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        self.table.add(region, file)?;
        self.memory_changed()?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.table.remove(region.guest_phys_addr, region.memory_size)?;
        self.memory_changed()
    }

    fn set_vring_num(&mut self, index: u32, entries: u32) -> Result<()> {
        let entries = u16::try_from(entries).ok().filter(|entries| entries.is_power_of_two());
        let entries = entries.filter(|entries| *entries <= RING_ENTRIES_MAX).ok_or(Error::InvalidParam)?;
        self.ring(index)?.entries = entries;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        self.ring(index)?.addrs = Some([descriptors, available, used]);
        self.start_if_ready(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ring(index)?.base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        Ok(VhostUserVringState::new(index, u32::from(self.stop_ring(index)?)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let ring = self.ring(index)?;
        if ring.running.is_some() {
            return Err(Error::InvalidOperation("the ring runs"));
        }
        // Without a descriptor the front end wants its rings polled, which no front end does with a disk.
        ring.kick = Some(Arc::new(file.ok_or(Error::InvalidOperation("a ring needs a kick descriptor"))?));
        self.start_if_ready(u32::from(index))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let (ring, call) = (self.ring(index)?, signal(file)?);
        ring.call.clone_from(&call);
        if let Some(running) = &ring.running {
            running.set_call(call);
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let (ring, error) = (self.ring(index)?, signal(file)?);
        ring.error.clone_from(&error);
        if let Some(running) = &ring.running {
            running.set_error(error);
        }
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.set_ring_enabled(index, enable)
    }

    fn get_config(&mut self, offset: u32, len: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > CONFIG_ASKED_MAX) {
            return Err(Error::InvalidParam);
        }
        // The unknown part of the configuration space is zeros: nothing of it is offered.
        let known = self.target.config().into_iter().chain(std::iter::repeat(0));
        Ok(known.skip(offset as usize).take(len as usize).collect())
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        // Only the write cache's switch could be written, and it is not offered.
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let fits = wanted.num_queues <= self.target.queues() && wanted.queue_size <= RING_ENTRIES_MAX;
        if !fits || wanted.num_queues == 0 {
            return Err(Error::InvalidParam);
        }
        Record::create(wanted.num_queues, wanted.queue_size)
    }

    fn set_inflight_fd(&mut self, about: &VhostUserInflight, file: File) -> Result<()> {
        self.record = Some(Record::map(about, file)?);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}
