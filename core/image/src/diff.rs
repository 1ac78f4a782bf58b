//! The places in which two images' disks differ.

use crate::open_image::OpenImage;
use crate::progress::{Progress, step};
use crate::reference::Reference;
use headstart_block::{BlockDevice, ByteRange, Result, to_usize};

/// The number of bytes compared at once.
const PART: u64 = 1 << 20;
/// The largest piece in which a difference is reported.
const BLOCK: usize = 4096;

/// The result of comparing the bytes of two disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The sizes of the first and the second disk in bytes.
    pub sizes: [u64; 2],
    /// The ranges of the disks that differ, in ascending order. The disks are compared in parts of at most 4 KiB, and a
    /// part that differs anywhere is listed as a whole. Past its end, the smaller disk counts as zeros.
    pub ranges: Vec<ByteRange>,
}

impl Difference {
    /// Returns the sum of the lengths of all listed ranges, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// `true` if no bytes differ and the sizes are the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.sizes[0] == self.sizes[1]
    }
}

/// Compares the disks of two images byte for byte. Both images must be in local directories. Ranges that both images'
/// indexes record as zeros are not read.
///
/// # Errors
/// `Unsupported` if an image is in a remote store; `Cancelled` if the user wants to stop; errors of opening or reading
/// the images.
pub fn diff(a: &Reference, b: &Reference, progress: &dyn Progress) -> Result<Difference> {
    let (a, b) = (OpenImage::open(a)?.into_disk(), OpenImage::open(b)?.into_disk());
    let sizes = [a.size(), b.size()];
    let size = a.size().max(b.size());
    let disks = [a.with_size(size), b.with_size(size)];
    progress.begin("compare", size);
    let mut ranges = Vec::new();
    let mut bufs = [Vec::new(), Vec::new()];
    let mut offset = 0;
    while offset < size {
        let [left, right] = [disks[0].extent_at(offset)?, disks[1].extent_at(offset)?];
        let end = left.range.end().min(right.range.end());
        let both = ByteRange::between(offset, end);
        offset = end;
        if left.zero && right.zero {
            step(progress, both.len())?;
            continue;
        }
        for part in both.parts(PART) {
            for (disk, buf) in disks.iter().zip(&mut bufs) {
                buf.resize(to_usize(part.len()), 0);
                disk.read_at(buf, part.offset())?;
            }
            compare(&bufs, part.offset(), &mut ranges);
            step(progress, part.len())?;
        }
    }
    Ok(Difference { sizes, ranges })
}

fn compare([left, right]: &[Vec<u8>; 2], offset: u64, ranges: &mut Vec<ByteRange>) {
    for (i, (left, right)) in left.chunks(BLOCK).zip(right.chunks(BLOCK)).enumerate() {
        if left == right {
            continue;
        }
        let start = offset + (i * BLOCK) as u64;
        let end = start + left.len() as u64;
        match ranges.last_mut() {
            Some(last) if last.end() == start => *last = ByteRange::between(last.offset(), end),
            _ => ranges.push(ByteRange::between(start, end)),
        }
    }
}
