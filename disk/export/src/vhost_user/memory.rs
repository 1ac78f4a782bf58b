//! The guest's memory: files that the front end passed, mapped.
//!
//! Addresses come in two kinds: guest physical addresses, which descriptors hold, and the front end's own addresses, in
//! which it gives the places of its rings. The table knows both.
//!
//! A file that is too short from the start is refused. One that the front end shortens later is lost: its mapping is
//! guarded ([`headstart_sigbus`]), so that touching it does not end this process. Every read of the guest's memory is
//! then an error, its rings end, and other front ends notice nothing. Memory that is sealed against shrinking, as
//! QEMU's `memory-backend-memfd` is, cannot be lost in this way; memory that is not sealed is served as well, because
//! several hypervisors do not seal theirs.

use headstart_sigbus::{Guard, Lost};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

use vhost::vhost_user::Error as ProtocolError;
use vhost::vhost_user::message::VhostUserMemoryRegion;

/// All of a guest's memory, by guest physical address.
#[derive(Default)]
pub(crate) struct GuestMemory {
    /// The guards of the mappings. Dropped before them.
    _guards: Vec<Arc<Guard>>,
    lost: Lost,
    regions: GuestMemoryMmap<()>,
}

impl GuestMemory {
    /// `true` if the front end has taken memory away: bytes that were read from it since may be zeros.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_set()
    }
}

impl Deref for GuestMemory {
    type Target = GuestMemoryMmap<()>;

    fn deref(&self) -> &Self::Target {
        &self.regions
    }
}

#[cfg(test)]
impl From<GuestMemoryMmap<()>> for GuestMemory {
    fn from(regions: GuestMemoryMmap<()>) -> Self {
        Self { regions, ..Self::default() }
    }
}

/// Guards the mapping of a file that a front end may shorten.
pub(crate) fn guard(start: *const u8, len: usize, lost: &Lost) -> Result<Arc<Guard>, ProtocolError> {
    // SAFETY: callers give whole mappings of `vm-memory`, which touches them by volatile accesses and atomics alone,
    // and drop the guard before the mapping: its field comes first in `Region`, `GuestMemory` and `Record`.
    let guard = unsafe { Guard::new(start, len, lost.clone()) };
    guard.map(Arc::new).map_err(ProtocolError::ReqHandlerError)
}

/// `true` if no process can shorten `file` any more.
fn is_sealed(file: &File) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// The most regions at once: as many as rust-vmm and libvhost-user offer, and far more than QEMU makes.
pub(crate) const REGIONS_MAX: usize = 509;

struct Region {
    /// The guard of the mapping. Dropped before it.
    guard: Arc<Guard>,
    mapping: Arc<GuestRegionMmap<()>>,
    /// The front end's own address of the region.
    user_addr: u64,
    len: u64,
}

/// The front end's memory, as it described it.
#[derive(Default)]
pub(crate) struct MemoryTable {
    /// The regions by guest physical address.
    regions: Vec<Region>,
    /// Set when any of them is lost.
    lost: Lost,
    /// `true` if it was logged that memory is not sealed.
    is_said: bool,
}

impl MemoryTable {
    /// A table of these regions.
    pub(crate) fn new(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<Self, ProtocolError> {
        let mut table = Self::default();
        for (region, file) in regions.iter().zip(files) {
            table.add(region, file)?;
        }
        Ok(table)
    }

    /// Maps one more region. It is not checked against the others before [`guest`](Self::guest).
    pub(crate) fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<(), ProtocolError> {
        if self.regions.len() == REGIONS_MAX {
            return Err(ProtocolError::InvalidOperation("too many memory regions"));
        }
        check_file_len(&file, region.mmap_offset, region.memory_size)?;
        if !is_sealed(&file) && !std::mem::replace(&mut self.is_said, true) {
            tracing::info!(
                "a front end's memory is not sealed: if it is made shorter, that front end loses its disk"
            );
        }
        let mapping = region.mmap_region(file)?;
        let guard = guard(mapping.as_ptr(), mapping.size(), &self.lost)?;
        let mapping = GuestRegionMmap::new(mapping, GuestAddress(region.guest_phys_addr))
            .ok_or(ProtocolError::InvalidParam)?;
        let (user_addr, len) = (region.user_addr, region.memory_size);
        self.regions.push(Region { guard, mapping: Arc::new(mapping), user_addr, len });
        self.regions.sort_by_key(|region| region.mapping.start_addr());
        Ok(())
    }

    /// Forgets the region that begins at `guest_addr`.
    pub(crate) fn remove(&mut self, guest_addr: u64, len: u64) -> Result<(), ProtocolError> {
        let is_it = |region: &Region| region.mapping.start_addr().0 == guest_addr && region.len == len;
        let index = self.regions.iter().position(is_it).ok_or(ProtocolError::InvalidParam)?;
        self.regions.remove(index);
        Ok(())
    }

    /// The guest's memory as described so far.
    ///
    /// # Errors
    /// If regions overlap.
    pub(crate) fn guest(&self) -> Result<Arc<GuestMemory>, ProtocolError> {
        if self.regions.is_empty() {
            return Ok(Arc::default());
        }
        let mappings = self.regions.iter().map(|region| Arc::clone(&region.mapping)).collect();
        let regions = GuestMemoryMmap::from_arc_regions(mappings)
            .map_err(|e| ProtocolError::ReqHandlerError(io::Error::other(e)))?;
        let guards = self.regions.iter().map(|region| Arc::clone(&region.guard)).collect();
        Ok(Arc::new(GuestMemory { _guards: guards, lost: self.lost.clone(), regions }))
    }

    /// The guest physical address of the byte that the front end has at `user_addr`.
    pub(crate) fn translate(&self, user_addr: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr).filter(|offset| *offset < region.len)?;
            region.mapping.start_addr().0.checked_add(offset).map(GuestAddress)
        })
    }
}

/// Refuses a file that does not have all of `[offset, offset + len)`.
pub(crate) fn check_file_len(file: &File, offset: u64, len: u64) -> Result<(), ProtocolError> {
    let file_len = fstat(file).map_err(|e| ProtocolError::ReqHandlerError(e.into()))?.st_size;
    let end = offset.checked_add(len).ok_or(ProtocolError::InvalidParam)?;
    if u64::try_from(file_len).is_ok_and(|file_len| end <= file_len) {
        return Ok(());
    }
    Err(ProtocolError::InvalidOperation("a memory file is shorter than the memory it is said to hold"))
}
