//! Protection from `SIGBUS` for memory maps of files that other programs may shorten.
//!
//! Touching a mapped page beyond the new end of a shortened file raises `SIGBUS`, which ends the process. So a front
//! end that shortens its guest's memory, or a user that empties a file of the cache, would end the process, and with it
//! the disks of all others. A [`Guard`] prevents that. If such a fault is in a guarded region, the whole region becomes
//! anonymous memory of zeros, its [`Lost`] flag is set, and the instruction is executed again. After each read from the
//! region, its user must check the flag, and give the region up if the flag is set. For all other causes of `SIGBUS`
//! (such as broken memory, or a fault outside guarded regions), the signal goes to the handler that was installed
//! earlier with `SA_SIGINFO`. Without such a handler, the signal ends the process.
//!
//! # The handler
//!
//! rustix has no signal handlers for programs with a C library (its `kernel_sigaction` is for programs without one).
//! So the C library's `sigaction` is called, with its types, and the handler calls the C library's `mmap`.
//!
//! The handler runs between any two instructions of a thread, so it takes no lock, allocates nothing, and calls nothing
//! but `mmap`. It looks the address up in a list of slots, one for each region; the list only grows. A slot has a
//! version, which is odd while the slot is changed. The handler skips such slots: the region that the thread touches is
//! not in one of them, because that thread keeps its guard meanwhile.
//!
//! The whole region is replaced, and not the one page, because the region is lost to its user anyway, and because
//! memory in huge pages cannot be replaced in part.

use parking_lot::Mutex;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Regions that are added to the list at a time.
const BLOCK: usize = 64;

/// `si_code` of a fault beyond the end of a file. Others, such as broken memory, are not contained.
const BUS_ADRERR: libc::c_int = 2;

/// A flag that tells whether a guarded memory region was lost, because its file became shorter. Once it is
/// set, bytes read from the region may be zeros that the file never had. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Lost(Arc<AtomicBool>);

impl Lost {
    /// `true` if the region was lost. If this returns `false`, everything that was read from the region
    /// before the call is what the file held.
    #[must_use]
    pub fn is_set(&self) -> bool {
        // What was read before must not be read after the flag.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Acquire)
    }
}

/// A region as the handler sees it.
#[derive(Debug)]
struct Slot {
    version: AtomicUsize,
    start: AtomicUsize,
    /// Behind its last byte; 0: the slot is free.
    end: AtomicUsize,
    lost: AtomicPtr<AtomicBool>,
}

/// Slots, and those made before them.
struct Block {
    slots: [Slot; BLOCK],
    next: *mut Block,
}

/// The slots made last. Blocks are never freed.
static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(null_mut());
/// Slots that are not in use. Held while any slot is changed.
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
/// The earlier action on the signal.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Slot {
    const fn new() -> Self {
        let (version, start, end) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { version, start, end, lost: AtomicPtr::new(null_mut()) }
    }

    /// Only where [`FREE`] is held.
    fn set(&self, start: usize, end: usize, lost: *mut AtomicBool) {
        self.version.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.lost.store(lost, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The region, if it holds `address`.
    fn with(&self, address: usize) -> Option<(usize, usize, *mut AtomicBool)> {
        let before = self.version.load(Ordering::Acquire);
        let region = (
            self.start.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
            self.lost.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        (is_whole && (region.0..region.1).contains(&address)).then_some(region)
    }
}

/// Protects the process from `SIGBUS` in a mapped region: if the file behind it became shorter and a missing
/// page is touched, the whole region turns into zeros and its [`Lost`] flag is set. Dropping the guard ends
/// the protection.
#[derive(Debug)]
pub struct Guard {
    slot: &'static Slot,
    lost: Lost,
}

impl Guard {
    /// Guards the `len` bytes of memory from `start` on. `lost` is set when they turn into zeros because the
    /// file became shorter. Several regions may share a flag.
    ///
    /// # Errors
    /// An error of the operating system if the handler of `SIGBUS` cannot be installed.
    ///
    /// # Safety
    /// The caller must ensure that the region is one whole mapping of `mmap`, that it stays mapped until the
    /// guard is dropped, and that it is touched only in ways that allow for its bytes to change at any time
    /// (atomics, volatile accesses).
    pub unsafe fn new(start: *const u8, len: usize, lost: Lost) -> io::Result<Self> {
        install()?;
        let mut free = FREE.lock();
        if free.is_empty() {
            let next = BLOCKS.load(Ordering::Acquire);
            let block = Box::leak(Box::new(Block { slots: [const { Slot::new() }; BLOCK], next }));
            BLOCKS.store(block, Ordering::Release);
            // SAFETY: it was leaked just now, and is only read from here on.
            let block: &'static Block = unsafe { &*BLOCKS.load(Ordering::Acquire) };
            free.extend(&block.slots);
        }
        let slot = free.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        slot.set(start as usize, (start as usize).saturating_add(len), Arc::as_ptr(&lost.0).cast_mut());
        drop(free);
        Ok(Self { slot, lost })
    }

    /// `true` if the region, or another one that shares its flag, was lost; see [`Lost::is_set`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.is_set()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut free = FREE.lock();
        self.slot.set(0, 0, null_mut());
        free.push(self.slot);
    }
}

/// Makes the handler that of this process, once.
fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock();
    if *installed {
        return Ok(());
    }
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    // SAFETY: a `sigaction` of zeros is one; the pointers are to local variables; the handler does only what a handler
    // may do.
    let changed = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        // What is there is known before the handler needs it.
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before);
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let _ = BEFORE.set(before);
        libc::sigaction(libc::SIGBUS, &raw const action, null_mut())
    };
    if changed != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler of this kind the signal's description.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code != BUS_ADRERR || !contain(address) {
        pass_on(signal, info, context);
    }
}

/// Replaces the guarded region that `address` lies in; `false` if it lies in none.
fn contain(address: usize) -> bool {
    let mut block = BLOCKS.load(Ordering::Acquire);
    while !block.is_null() {
        // SAFETY: blocks are whole before they are in the list, never freed, and only read.
        let this = unsafe { &*block };
        if let Some((start, end, lost)) = this.slots.iter().find_map(|slot| slot.with(address)) {
            // SAFETY: the region is a mapping of its own that is touched only in ways that allow for changes, as
            // `Guard::new` demands, and nothing valid is replaced: it is lost. The flag is kept by the guard, which
            // lives while the region is touched. The error number is the interrupted code's, and stays.
            return unsafe {
                let errno = libc::__errno_location();
                let kept = *errno;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
                let access = libc::PROT_READ | libc::PROT_WRITE;
                (*lost).store(true, Ordering::Release);
                let map = libc::mmap(start as *mut libc::c_void, end - start, access, flags, -1, 0);
                *errno = kept;
                map != libc::MAP_FAILED
            };
        }
        block = this.next;
    }
    false
}

/// Does about the signal what was done before there was a handler here.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Described = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    if let Some(before) = BEFORE.get().filter(|before| {
        before.sa_flags & libc::SA_SIGINFO != 0
            && ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction)
    }) {
        // SAFETY: the flag says that the number is the address of such a function.
        let handler = unsafe { std::mem::transmute::<usize, Described>(before.sa_sigaction) };
        return handler(signal, info, context);
    }
    // SAFETY: a `sigaction` of zeros is the default action, which ends the process when the instruction is done again.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &raw const default, null_mut());
    }
}
