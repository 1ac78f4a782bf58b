//! The first container of an image on a disk that the kernel has nothing of: what an earlier start with the same
//! entrypoint read is decoded before it is read.
//!
//! The first start after the image was attached again has all bytes on this host, and waits for decoding. A runtime
//! takes longer to prepare a container than another processor takes to decode what the start reads. The traces of this
//! host have its reads: an earlier start of it fetched the bytes. Each disk has decoded bytes in memory for that, so
//! only a few disks of a host do it at once.

use crate::disk::NamedDisk;
use headstart_block::{BlockDevice, ByteRange, Digest};
use headstart_cache::Cache;
use headstart_trace::file::{ReadLimits, read_creation, read_file};
use headstart_trace::{Creation, DIGEST, Op, Trace, TraceDirectory};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The time for which decoded content waits for its read.
const WAITS: Duration = Duration::from_secs(10);
/// The traces that are looked at, the newest first: a host may have those of many images.
const LOOKS: usize = 64;
/// The starts of which the one with the most reads is taken: of others, the kernel had some in memory.
const STARTS: usize = 4;
/// The disks of this host that do it at once: each keeps 16 MiB at most.
const DISKS: u64 = 4;

/// The start whose reads are to be decoded.
struct Expected {
    image: Digest,
    entrypoint: String,
    size: u64,
}

impl Expected {
    /// The reads of earlier starts, in their order; empty if there is no trace of one.
    fn reads(&self, directory: &Path) -> Vec<ByteRange> {
        let Ok(files) = TraceDirectory::list(directory) else { return Vec::new() };
        let starts = files.iter().rev().take(LOOKS).filter_map(|file| self.reads_of(file)).take(STARTS);
        let most = starts.max_by_key(|reads| reads.iter().map(|read| read.len()).sum::<u64>());
        most.unwrap_or_default()
    }

    /// The reads in a trace, if it is one of such a start. Of others, only the end of the file is read.
    fn reads_of(&self, file: &Path) -> Option<Vec<ByteRange>> {
        read_creation(file).ok().filter(|creation| self.is_of(creation))?;
        let Trace { records, .. } = read_file(file, &ReadLimits::default()).ok()?;
        Some(records.iter().filter(|record| record.op == Op::Read).map(|record| record.range).collect())
    }

    fn is_of(&self, creation: &Creation) -> bool {
        creation.labels.get(DIGEST).is_some_and(|digest| *digest == self.image.to_string())
            && creation.entrypoint() == self.entrypoint
            && creation.size == self.size
    }
}

/// Begins to decode, on a thread of its own, what a start with this entrypoint will read: if the disk is only read, if
/// the directory `traces` has such a start, and unless too many disks that share the cache do it now. What is not on
/// this host is left to the plan.
pub(crate) fn decode_for_start(disk: &NamedDisk, entrypoint: &str, traces: PathBuf, cache: &Cache) {
    if disk.writable.is_some() {
        return;
    }
    let Some(slot) = cache.take_slot(DISKS) else {
        tracing::debug!(entrypoint, "other disks of this host decode ahead: this one does not");
        return;
    };
    let (image, size) = (disk.manifest.known_as(disk.digest), disk.disk.size());
    let expected = Expected { image, entrypoint: entrypoint.to_owned(), size };
    let device = Arc::downgrade(&disk.disk);
    let until = Instant::now() + WAITS;
    let work = move || {
        let reads = expected.reads(&traces);
        let Some(disk) = device.upgrade().filter(|_| !reads.is_empty()) else { return };
        let bytes = disk.decode_ahead(reads, until);
        drop(disk);
        tracing::info!(bytes, entrypoint = expected.entrypoint, "what the start reads was decoded before");
        thread::sleep(until.saturating_duration_since(Instant::now()));
        if let Some(disk) = device.upgrade() {
            disk.end_ahead();
        }
        drop(slot);
    };
    if let Err(error) = thread::Builder::new().name("decode-ahead".to_owned()).spawn(work) {
        tracing::debug!(%error, "nothing is decoded before it is read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_trace::{DirectoryLimits, ENTRYPOINT, Record};

    #[test]
    fn the_fullest_of_the_last_starts_of_the_program_is_expected() {
        let dir = tempfile::tempdir().unwrap();
        let directory = TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap();
        let image = Digest::of(b"image");
        let save = |created_us, image: Digest, entrypoint: &str, reads: &[(u64, u64)]| {
            let labels = [(DIGEST, image.to_string()), (ENTRYPOINT, entrypoint.to_owned())];
            let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
            let creation = Creation { size: 1 << 30, created_us, labels, ..Creation::default() };
            let record = |(at, len): &(u64, u64)| Record {
                t_us: 0,
                op: Op::Read,
                range: ByteRange::between(*at, at + len),
                service_us: None,
            };
            let records = reads.iter().map(record).collect();
            directory.save(&Trace { creation, records, ..Trace::default() }, false).unwrap();
        };
        let expected = |entrypoint: &str| {
            let expected = Expected { image, entrypoint: entrypoint.to_owned(), size: 1 << 30 };
            expected.reads(dir.path())
        };
        assert_eq!(expected("nginx"), []);
        save(1, image, "nginx", &[(0, 1 << 20), (1 << 20, 1 << 20)]);
        save(2, image, "nginx", &[(4096, 4096), (8192, 65536)]);
        for (created_us, reads) in (3..).zip([[(0, 512)]; STARTS - 1]) {
            save(created_us, image, "nginx", &reads);
        }
        save(20, Digest::of(b"other"), "nginx", &[(0, 1 << 20)]);
        save(21, image, "sh", &[(512, 512)]);
        assert_eq!(expected("nginx"), [ByteRange::between(4096, 8192), ByteRange::between(8192, 73728)]);
        assert_eq!(expected("sh"), [ByteRange::between(512, 1024)]);
        assert_eq!(expected("bash"), []);
    }
}
