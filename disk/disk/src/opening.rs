//! The bytes by which a layer was opened, if nothing proves them.
//!
//! Opening reads a blob's headers and indices, and the result is kept as long as the disk. The bytes of a blob without
//! a hash tree are taken on its store's word until all of them are local. If they turn out wrong, they are dropped and
//! fetched again, but the result of opening stays. So the bytes that opening read are remembered by their digest: when
//! the blob was wrong, the same bytes are fetched again and compared, and a disk that was opened by other bytes serves
//! no more.

use headstart_block::{ByteRange, Digest, ReadAt, Result, to_usize};
use headstart_cache::CachedBlob;
use headstart_hash_tree::sums::DigestWriter;
use parking_lot::Mutex;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of bytes that are compared at once.
const PART: u64 = 1 << 20;

/// The bytes of a blob by which a layer was opened.
pub(crate) struct Opening {
    /// The ranges, in the order in which they were read.
    pub(crate) ranges: Vec<ByteRange>,
    digest: Digest,
    /// The number of times that the blob had been found wrong before.
    pub(crate) times_wrong: u32,
}

impl Opening {
    /// A blob of which nothing was read when its layer was opened.
    pub(crate) fn of_nothing(blob: &CachedBlob) -> Self {
        Self { ranges: Vec::new(), digest: Digest::of(b""), times_wrong: blob.times_wrong() }
    }

    /// `true` if these bytes of the blob are still the same.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Absent`] if they are not all local; errors of reading them.
    pub(crate) fn is_same(&self, blob: &CachedBlob) -> Result<bool> {
        let mut digest = DigestWriter::new(io::sink());
        let mut buf = Vec::new();
        for part in self.ranges.iter().flat_map(|range| range.parts(PART)) {
            buf.resize(to_usize(part.len()), 0);
            blob.read_at(&mut buf, part.offset())?;
            digest.write_all(&buf)?;
        }
        Ok(digest.finish().1 == self.digest)
    }
}

/// A blob that notes the bytes that are read of it, until it is told to stop.
pub(crate) struct Noting {
    blob: Arc<CachedBlob>,
    notes: Mutex<Option<Notes>>,
    is_noting: AtomicBool,
    times_wrong: u32,
}

struct Notes {
    ranges: Vec<ByteRange>,
    digest: DigestWriter<io::Sink>,
}

impl Noting {
    pub(crate) fn begin(blob: &Arc<CachedBlob>) -> Arc<Self> {
        let times_wrong = blob.times_wrong();
        let notes = Notes { ranges: Vec::new(), digest: DigestWriter::new(io::sink()) };
        Arc::new(Self {
            blob: Arc::clone(blob),
            notes: Mutex::new(Some(notes)),
            is_noting: AtomicBool::new(true),
            times_wrong,
        })
    }

    /// The bytes that were read so far. From now on nothing is noted.
    pub(crate) fn finish(&self) -> Opening {
        self.is_noting.store(false, Ordering::Relaxed);
        let notes = self.notes.lock().take();
        let (ranges, digest) = notes
            .map_or_else(|| (Vec::new(), Digest::of(b"")), |notes| (notes.ranges, notes.digest.finish().1));
        Opening { ranges, digest, times_wrong: self.times_wrong }
    }

    #[cold]
    fn note(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let range = ByteRange::between(offset, offset.saturating_add(bytes.len() as u64));
        let mut notes = self.notes.lock();
        let Some(notes) = notes.as_mut() else { return Ok(()) };
        match notes.ranges.last_mut() {
            Some(last) if last.end() == range.offset() => {
                *last = ByteRange::between(last.offset(), range.end());
            }
            _ => notes.ranges.push(range),
        }
        Ok(notes.digest.write_all(bytes)?)
    }
}

impl ReadAt for Noting {
    fn len(&self) -> u64 {
        self.blob.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.blob.read_at(buf, offset)?;
        if self.is_noting.load(Ordering::Relaxed) { self.note(buf, offset) } else { Ok(()) }
    }

    fn wants_decoded(&self) -> bool {
        self.blob.wants_decoded()
    }

    fn note_decoded(&self, range: ByteRange) {
        self.blob.note_decoded(range);
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use headstart_cache::{BlobSpec, Cache, CacheSettings};

    #[test]
    fn bytes_that_changed_since_are_found_out() {
        let dir = tempfile::tempdir().unwrap();
        let settings = CacheSettings { check_whole: false, ..CacheSettings::default() };
        let cache = Cache::open(dir.path(), settings).unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|n| (n >> 3) as u8 ^ n as u8).collect();
        let spec = BlobSpec { digest: Digest::of(&bytes), len: 200_000, tree: None, origin: None };
        let blob = cache.blob(&spec).unwrap();
        blob.insert(0, &bytes).unwrap();
        let noting = Noting::begin(&blob);
        let read = |offset: usize, len: usize| {
            let mut buf = vec![0; len];
            noting.read_at(&mut buf, offset as u64).unwrap();
            assert!(buf == bytes[offset..offset + len]);
        };
        for (offset, len) in [(0, 4096), (150_000, 50_000), (4096, 100), (4196, 10)] {
            read(offset, len);
        }
        let opening = noting.finish();
        read(20_000, 10);
        assert_eq!(
            opening.ranges,
            [(0, 4096), (150_000, 200_000), (4096, 4206)].map(|(a, b)| ByteRange::between(a, b))
        );
        assert!(opening.is_same(&blob).unwrap());
        for (at, same) in [(20_005, true), (4200, false), (199_999, false)] {
            let unit = ByteRange::between(at / 16384 * 16384, (at / 16384 * 16384 + 16384).min(200_000));
            let mut wrong = bytes[unit.offset() as usize..unit.end() as usize].to_vec();
            blob.discard(unit).unwrap();
            if !same {
                assert_eq!(opening.is_same(&blob).unwrap_err().kind(), ErrorKind::Absent);
            }
            wrong[(at % 16384) as usize] ^= 1;
            blob.insert(unit.offset(), &wrong).unwrap();
            assert_eq!(opening.is_same(&blob).unwrap(), same, "{at}");
            blob.discard(unit).unwrap();
            blob.insert(unit.offset(), &bytes[unit.offset() as usize..unit.end() as usize]).unwrap();
        }
    }
}
