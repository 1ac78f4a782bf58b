//! Words of a file that all processes of the host see at once: the one place with `unsafe`.
//!
//! A file is mapped shared and looked at only through atomics, never through plain references: other processes
//! change it at any time.
//!
//! **Faults.** Touching a mapped page that has no file behind it ends the process (SIGBUS). So nobody ever truncates
//! a file that may be mapped (one that is wrong is unlinked, and made anew under another inode), its length is
//! checked before it is mapped, and its blocks are allocated before it gets its name, so that a full disk cannot
//! fault either. What is left is a disk that fails to read a page back, and, on file systems that write
//! everything anew (btrfs, zfs), a disk so full that not even one page fits.

use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The first bytes of a file, or anonymous memory in its place.
pub(crate) struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// Maps the first `len` bytes of `file`, which has that many.
    pub(crate) fn of_file(file: &File, len: usize) -> io::Result<Self> {
        if file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { map: MmapOptions::new().len(len).map_raw(file)? })
    }

    /// Zeros that only this process sees.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Ok(Self { map: MmapOptions::new().len(len).map_anon()?.into() })
    }

    /// `count` words from byte `offset` on, a multiple of 8; none where they are not all within.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        if !self.holds(offset, count, size_of::<AtomicU64>()) {
            return &[];
        }
        // SAFETY: the bytes are within the mapping, which lives as long as `self`, and aligned (a mapping begins at
        // a page); any bytes are an `AtomicU64`; they are never looked at but through atomics.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().add(offset).cast(), count) }
    }

    /// As [`words`](Self::words), of four bytes each.
    pub(crate) fn half_words(&self, offset: usize, count: usize) -> &[AtomicU32] {
        if !self.holds(offset, count, size_of::<AtomicU32>()) {
            return &[];
        }
        // SAFETY: as above, for `AtomicU32`.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().add(offset).cast(), count) }
    }

    fn holds(&self, offset: usize, count: usize, size: usize) -> bool {
        let end = count.checked_mul(size).and_then(|len| len.checked_add(offset));
        offset.is_multiple_of(size) && end.is_some_and(|end| end <= self.map.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

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
