//! Making sure that two views of a disk read the same.
//!
//! Data that both take from the same place of the same blob is the same without a read. All other data is read from
//! both and compared: of an image that was laid out again, the data of its new layer.

use super::view::View;
use crate::progress::{Progress, step};
use headstart_block::{BLOCK_SIZE, BlockDevice, ByteRange, Digest, Error, Result, SECTOR_SIZE};
use headstart_lsmt::Segment;

/// The source of some sectors: a place in a blob, or none, which reads as zeros.
type From = Option<(Digest, u64)>;

/// Compares the disks; returns the number of their bytes that were read.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if they differ; errors of reading them.
pub(super) fn check_same(left: &View<'_>, right: &View<'_>, progress: &dyn Progress) -> Result<u64> {
    let sizes = [left.disk.size(), right.disk.size()];
    if sizes[0] != sizes[1] {
        return Err(differs(format!("the disk has {} bytes, not {}", sizes[1], sizes[0])));
    }
    let parts = other_places(left, right);
    let bytes = parts.iter().map(|part| part.len()).sum();
    progress.begin("compare", bytes);
    let mut bufs = [Vec::new(), Vec::new()];
    for part in parts.iter().flat_map(|part| part.parts(BLOCK_SIZE)) {
        for (view, buf) in [left, right].into_iter().zip(&mut bufs) {
            super::write::read_whole_sectors(view.disk, part, buf)?;
        }
        if bufs[0] != bufs[1] {
            return Err(differs(format!("the disk differs in {} bytes at {}", part.len(), part.offset())));
        }
        step(progress, part.len())?;
    }
    Ok(bytes)
}

fn differs(how: String) -> Error {
    Error::corrupt(how)
        .about("the reordered image")
        .remedy("check the source (`headstart image verify --deep`); if that is right, report this as a bug")
}

/// The parts of the disk that the two take from different places.
fn other_places(left: &View<'_>, right: &View<'_>) -> Vec<ByteRange> {
    let size = left.disk.size();
    let sectors = size.div_ceil(SECTOR_SIZE);
    let mut walks = [Walk::new(left, sectors), Walk::new(right, sectors)];
    let mut parts: Vec<ByteRange> = Vec::new();
    let mut at = 0;
    while at < sectors {
        let [(left_end, from_left), (right_end, from_right)] = walks.each_mut().map(|walk| walk.at(at));
        let end = left_end.min(right_end);
        if from_left != from_right {
            let (start, end) = (at * SECTOR_SIZE, (end * SECTOR_SIZE).min(size));
            match parts.last_mut() {
                Some(last) if last.end() == start => *last = ByteRange::between(last.offset(), end),
                _ => parts.push(ByteRange::between(start, end)),
            }
        }
        at = end;
    }
    parts
}

/// A view, walked from its first sector to its last.
struct Walk<'a> {
    view: View<'a>,
    /// The segments that were not passed yet.
    segments: &'a [Segment],
    sectors: u64,
}

impl<'a> Walk<'a> {
    fn new(view: &View<'a>, sectors: u64) -> Self {
        Self { view: *view, segments: view.disk.index().segments(), sectors }
    }

    /// The source of sector `at`, which is not before the last requested one; and the sector at which the run from
    /// there ends.
    fn at(&mut self, at: u64) -> (u64, From) {
        while let Some((first, rest)) = self.segments.split_first()
            && first.end() <= at
        {
            self.segments = rest;
        }
        let Some(segment) = self.segments.first().filter(|segment| segment.offset() < self.sectors) else {
            return (self.sectors, None);
        };
        if segment.offset() > at {
            return (segment.offset(), None);
        }
        let end = segment.end().min(self.sectors);
        let blob = if segment.is_zeroed() { None } else { self.view.blob(segment.layer().into()) };
        (end, blob.map(|blob| (blob, segment.moffset() + at - segment.offset())))
    }
}
