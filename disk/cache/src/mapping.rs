//! Words of a file that all processes of the host see at once: the place with `unsafe`, but for a call in `locks`.
//!
//! A file is mapped shared and looked at only through atomics, never through plain references: other processes
//! change it at any time.
//!
//! **Faults.** Touching a mapped page that has no file behind it raises SIGBUS. So no process of this crate ever
//! truncates a file that may be mapped (a wrong one is unlinked, and made again under another inode), its length is
//! checked before it is mapped, and its blocks are allocated before it gets its name, so that a full disk cannot fault
//! either. The remaining causes are another program that shortens the file, a disk that fails to read a page back, and,
//! on file systems that write everything in new places (btrfs, zfs), a disk so full that not even one page fits. Then
//! the mapping is lost, and the process goes on ([`headstart_sigbus`]): its words are zeros, which only this process
//! sees. A sidecar of zeros says that nothing is there: reads fetch their bytes again, into the data file that this
//! process has open, and which no other process trusts, because its sidecar is damaged.

use headstart_sigbus::{Guard, Lost};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The first bytes of a file, or anonymous memory in its place.
pub(crate) struct Mapping {
    /// The guard of a file's mapping; `None` for anonymous memory. Dropped before the mapping.
    guard: Option<Guard>,
    /// `true` if the loss of the file was logged.
    is_logged: AtomicBool,
    map: MmapRaw,
}

impl Mapping {
    /// Maps the first `len` bytes of `file`, which has that many.
    pub(crate) fn of_file(file: &File, len: usize) -> io::Result<Self> {
        if file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let map = MmapOptions::new().len(len).map_raw(file)?;
        // SAFETY: this is a mapping of its own, touched through atomics alone, and unmapped after the guard is dropped.
        let guard = unsafe { Guard::new(map.as_ptr(), len, Lost::default()) }?;
        Ok(Self { guard: Some(guard), is_logged: AtomicBool::new(false), map })
    }

    /// Makes zeros that only this process sees.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(len).map_anon()?.into();
        Ok(Self { guard: None, is_logged: AtomicBool::new(false), map })
    }

    /// `count` words from byte `offset` on, a multiple of 8; none if they are not all within the mapping.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        if !self.holds(offset, count, size_of::<AtomicU64>()) {
            return &[];
        }
        // SAFETY: the bytes are within the mapping, which lives as long as `self`, and aligned (a mapping begins at
        // a page); any bytes are an `AtomicU64`; they are never looked at but through atomics.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().add(offset).cast(), count) }
    }

    /// As [`words`](Self::words), with words of four bytes.
    pub(crate) fn half_words(&self, offset: usize, count: usize) -> &[AtomicU32] {
        if !self.holds(offset, count, size_of::<AtomicU32>()) {
            return &[];
        }
        // SAFETY: as above, for `AtomicU32`.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().add(offset).cast(), count) }
    }

    /// `true` if the file was shortened, and its words are zeros that only this process sees.
    pub(crate) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    fn warn_if_lost(&self) {
        if self.is_lost() && !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a file of the cache was shortened while it was used; this process fetches again what it needs"
            );
        }
    }

    fn holds(&self, offset: usize, count: usize, size: usize) -> bool {
        self.warn_if_lost();
        let end = count.checked_mul(size).and_then(|len| len.checked_add(offset));
        offset.is_multiple_of(size) && end.is_some_and(|end| end <= self.map.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_file_that_is_shortened_is_zeros_and_no_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapping = Mapping::of_file(&file, 8192).unwrap();
        mapping.words(4096, 1)[0].store(7, Ordering::Release);
        assert!(!mapping.is_lost());
        file.set_len(0).unwrap();
        assert_eq!(mapping.words(4096, 1)[0].load(Ordering::Acquire), 0);
        assert!(mapping.is_lost());
        mapping.words(4096, 1)[0].store(9, Ordering::Release);
        assert_eq!(mapping.words(4096, 1)[0].load(Ordering::Acquire), 9);
    }

    #[test]
    fn two_mappings_and_the_file_are_the_same_words() {
        let file = tempfile::tempfile().unwrap();
        assert!(Mapping::of_file(&file, 4096).is_err(), "too short");
        file.set_len(4096).unwrap();
        let [a, b] = [(); 2].map(|()| Mapping::of_file(&file, 4096).unwrap());
        a.words(8, 2)[1].store(7, Ordering::Release);
        assert_eq!(b.words(16, 1)[0].load(Ordering::Acquire), 7);
        assert_eq!(b.half_words(16, 2)[0].load(Ordering::Acquire), 7);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 16).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 7);
        assert!(a.words(4096, 1).is_empty() && a.words(4, 1).is_empty() && a.words(8, usize::MAX).is_empty());
        assert_eq!(Mapping::anonymous(4096).unwrap().words(0, 512).len(), 512);
    }
}
