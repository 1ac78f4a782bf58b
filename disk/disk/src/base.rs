//! The read-only part of a disk: an image's merged layers, whose blobs may not be on this host.
//!
//! A read either finds all of its bytes on this host or fails with [`ErrorKind::Absent`]; nothing waits at this level.
//! That keeps the writable layer on top simple: the error passes through it, its locks are released, and the
//! [`Disk`](crate::Disk) above waits and reads again.
//!
//! To know all that a read needs, not only the first absent part, the disk reads once more while the thread *collects*:
//! absent parts are then noted and filled with zeros, so that the read goes on to the next part.

use headstart_block::{BlockDevice, ByteRange, Digest, Error, ErrorKind, Extent, Result};
use headstart_lsmt::Stack;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

thread_local! {
    /// The parts that this thread's reads found absent, while it collects.
    static ABSENT: RefCell<Option<Vec<ByteRange>>> = const { RefCell::new(None) };
}

/// Runs `read`, and returns its result and the parts of the disk that it needs and that are absent. If there are any,
/// the bytes that it read are worthless.
pub(crate) fn collect_absent<T>(read: impl FnOnce() -> T) -> (T, Vec<ByteRange>) {
    ABSENT.set(Some(Vec::new()));
    // Also if `read` panics: later reads of this thread must not take zeros for absent bytes.
    let _ended = Ended;
    let result = read();
    (result, ABSENT.take().unwrap_or_default())
}

/// Ends collecting.
struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        ABSENT.set(None);
    }
}

/// The trust in the indices, which map the disk's bytes to blobs.
#[derive(Default)]
pub(crate) struct Health {
    /// The blob whose indices came wrong from its store, and are in use.
    wrong: OnceLock<Digest>,
}

impl Health {
    /// Notes that the indices that were taken from `blob` are wrong: the disk serves nothing of the image any more.
    pub(crate) fn condemn(&self, blob: Digest) -> Error {
        error(*self.wrong.get_or_init(|| blob))
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.wrong.get().map_or(Ok(()), |blob| Err(error(*blob)))
    }
}

#[cold]
fn error(blob: Digest) -> Error {
    // Not `Corrupt`: fetching anything again is no help.
    Error::new(
        ErrorKind::Io,
        "its index came wrong from its store when the disk was attached, and is right now",
    )
    .about(format!("blob {blob}"))
    .remedy("detach the disk and attach it again")
}

/// The merged layers of an image as a device.
pub(crate) struct Base {
    stack: Arc<Stack>,
    health: Arc<Health>,
}

impl Base {
    pub(crate) fn new(stack: Arc<Stack>, health: Arc<Health>) -> Self {
        Self { stack, health }
    }
}

impl BlockDevice for Base {
    fn size(&self) -> u64 {
        self.stack.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.health.check()?;
        let Err(error) = self.stack.read_at(buf, offset) else { return Ok(()) };
        if error.kind() != ErrorKind::Absent {
            return Err(error);
        }
        let noted = ABSENT.with_borrow_mut(|absent| {
            let Some(absent) = absent else { return false };
            absent.push(ByteRange::between(offset, offset.saturating_add(buf.len() as u64)));
            true
        });
        if !noted {
            return Err(error);
        }
        buf.fill(0);
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        self.health.check()?;
        self.stack.extent_at(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ReadAt;
    use headstart_lsmt::{Layer, LayerMeta, LayerWriter};

    /// A layer's bytes, of which a range is absent.
    struct Torn(Vec<u8>, ByteRange);

    impl ReadAt for Torn {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            let range = ByteRange::between(offset, offset + buf.len() as u64);
            if !range.intersect(self.1).is_empty() {
                return Err(Error::new(ErrorKind::Absent, "not here"));
            }
            self.0.read_at(buf, offset)
        }
    }

    fn base() -> Base {
        let meta = LayerMeta { virtual_size: 64 << 10, ..LayerMeta::default() };
        let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
        for start in [0, 16 << 10, 32 << 10] {
            writer.data(start, &[7; 8192]).unwrap();
        }
        let (bytes, _) = writer.finish().unwrap();
        // The second and the third run of data, behind the header and the first.
        let absent = ByteRange::between(4096 + 8192, 4096 + 3 * 8192);
        let layer = Layer::open(Arc::new(Torn(bytes, absent))).unwrap();
        Base::new(Arc::new(Stack::new(vec![layer]).unwrap()), Arc::default())
    }

    #[test]
    fn absent_bytes_are_an_error_unless_they_are_collected() {
        let base = base();
        let mut buf = vec![0; 4096];
        base.read_at(&mut buf, 4096).unwrap();
        assert!(buf == [7; 4096]);
        assert_eq!(base.read_at(&mut buf, 16 << 10).unwrap_err().kind(), ErrorKind::Absent);
        let (result, absent) = collect_absent(|| {
            base.read_at(&mut buf, 16 << 10)?;
            base.read_at(&mut buf, 32 << 10)?;
            base.read_at(&mut buf, 0)
        });
        result.unwrap();
        assert_eq!(absent, [16u64 << 10, 32 << 10].map(|at| ByteRange::between(at, at + 4096)));
        // Collecting has ended.
        assert_eq!(base.read_at(&mut buf, 32 << 10).unwrap_err().kind(), ErrorKind::Absent);
        assert!(collect_absent(|| base.read_at(&mut buf, 64 << 10)).0.is_err());
    }

    #[test]
    fn a_disk_with_a_wrong_index_serves_no_read() {
        let base = base();
        base.read_at(&mut [0; 512], 0).unwrap();
        let said = base.health.condemn(Digest::of(b"x")).to_string();
        let errors = [base.read_at(&mut [0; 512], 0).unwrap_err(), base.extent_at(0).unwrap_err()];
        assert!(errors.iter().all(|error| error.to_string() == said && error.kind() == ErrorKind::Io));
        assert!(said.contains(&Digest::of(b"x").to_string()) && said.contains("attach it again"), "{said}");
    }

    #[test]
    #[expect(clippy::panic, reason = "that is what is tested")]
    fn collecting_ends_with_a_panic() {
        let base = base();
        let panicked = std::panic::catch_unwind(|| collect_absent(|| -> () { panic!("as it is meant to") }));
        assert!(panicked.is_err());
        // The thread goes on with its next request: that must not get zeros for absent bytes.
        let read = base.read_at(&mut [0; 4096], 16 << 10);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Absent);
    }
}
