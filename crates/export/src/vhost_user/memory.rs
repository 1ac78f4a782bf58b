//! The guest's memory: files that the front end gave us, mapped.
//!
//! Addresses come in two kinds: guest physical addresses, which descriptors hold, and the front end's own addresses,
//! in which it says where its rings are. The table knows both.
//!
//! Danger: a front end that shortens such a file later kills this process when the lost pages are touched (SIGBUS).
//! QEMU seals its memory files against that; a file that is too short from the start is refused.

use rustix::fs::fstat;
use std::fs::File;
use std::io;
use std::sync::Arc;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

use vhost::vhost_user::Error as ProtocolError;
use vhost::vhost_user::message::VhostUserMemoryRegion;

/// All of a guest's memory, by guest physical address.
pub(crate) type GuestMemory = GuestMemoryMmap<()>;

/// Most regions at once: what rust-vmm and libvhost-user offer, and far more than QEMU makes.
pub(crate) const REGIONS_MAX: usize = 509;

struct Region {
    mapping: Arc<GuestRegionMmap<()>>,
    /// Where the front end has it.
    user_addr: u64,
    len: u64,
}

/// What the front end said its memory is.
#[derive(Default)]
pub(crate) struct MemoryTable {
    /// By guest physical address.
    regions: Vec<Region>,
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
        let mapping = region.mmap_region(file)?;
        let mapping = GuestRegionMmap::new(mapping, GuestAddress(region.guest_phys_addr))
            .ok_or(ProtocolError::InvalidParam)?;
        let (user_addr, len) = (region.user_addr, region.memory_size);
        self.regions.push(Region { mapping: Arc::new(mapping), user_addr, len });
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

    /// The guest's memory as it is now.
    ///
    /// # Errors
    /// Where regions overlap.
    pub(crate) fn guest(&self) -> Result<Arc<GuestMemory>, ProtocolError> {
        if self.regions.is_empty() {
            return Ok(Arc::default());
        }
        let regions = self.regions.iter().map(|region| Arc::clone(&region.mapping)).collect();
        let memory = GuestMemory::from_arc_regions(regions)
            .map_err(|e| ProtocolError::ReqHandlerError(io::Error::other(e)))?;
        Ok(Arc::new(memory))
    }

    /// The guest physical address of what the front end has at `user_addr`.
    pub(crate) fn translate(&self, user_addr: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr).filter(|offset| *offset < region.len)?;
            region.mapping.start_addr().0.checked_add(offset).map(GuestAddress)
        })
    }
}

/// Refuses a file of which `[offset, offset + len)` is not there: touching it would kill this process.
pub(crate) fn check_file_len(file: &File, offset: u64, len: u64) -> Result<(), ProtocolError> {
    let file_len = fstat(file).map_err(|e| ProtocolError::ReqHandlerError(e.into()))?.st_size;
    let end = offset.checked_add(len).ok_or(ProtocolError::InvalidParam)?;
    if u64::try_from(file_len).is_ok_and(|file_len| end <= file_len) {
        return Ok(());
    }
    Err(ProtocolError::InvalidOperation("a memory file is shorter than the memory it is said to hold"))
}
