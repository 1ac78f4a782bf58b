//! The effect of the file system's requests on the disk: the part of the server that knows no directory entries.

use super::image_writer::ImageWriter;
use crate::blocking_pool::BlockingPool;
use crate::{ClientCounts, Export};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use headstart_block::{BlockDevice, Error, ErrorKind, Result, exact, to_usize};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The most bytes of a request: no kernel sends more (fuser's own buffer ends there).
const TRANSFER_MAX: usize = 16 << 20;

/// The most threads that flush: a sync covers all requests that wait for it.
const FLUSHES_MAX: usize = 4;

/// The number of faults that are all logged; from then on, one is logged each time their number has doubled.
const FAULTS_LOGGED: u64 = 8;

thread_local! {
    /// The buffer that a worker reads into: no allocation for a read.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A disk that is served as a file.
pub(super) struct Image {
    name: String,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) read_only: bool,
    writer: ImageWriter,
    /// The pool of requests that may wait for remote bytes.
    remote: BlockingPool,
    /// The pool of flushes: while a store is away, writes can be made durable.
    local: BlockingPool,
    /// `true` once no request waits for remote bytes any more.
    stopping: AtomicBool,
    /// `true` if something was written since the last flush.
    unflushed: AtomicBool,
    /// `true` if something was written since the file's times were last looked at.
    pub(super) modified: AtomicBool,
    faults: AtomicU64,
    /// The number of times that the file is open, and was opened.
    pub(super) clients: Mutex<ClientCounts>,
}

impl Image {
    /// Serves an export; `waiting_max` requests may wait for remote bytes at once.
    pub(super) fn new(export: Export, waiting_max: usize) -> Self {
        let device = export.device;
        Self {
            name: export.name,
            read_only: device.is_read_only(),
            writer: ImageWriter::new(Arc::clone(&device)),
            device,
            remote: BlockingPool::new(waiting_max),
            local: BlockingPool::new(FLUSHES_MAX),
            stopping: AtomicBool::new(false),
            unflushed: AtomicBool::new(false),
            modified: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            clients: Mutex::default(),
        }
    }

    /// Makes each read fail at once whose bytes are not on this host, from now on.
    pub(super) fn give_up_waiting(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Waits until nothing is in flight, `timeout` at most for each pool; `true` if nothing is then.
    pub(super) fn wait_idle(&self, timeout: Duration) -> bool {
        let is_remote_idle = self.remote.wait_idle(timeout);
        self.local.wait_idle(timeout) && is_remote_idle
    }

    /// Reads `size` bytes, or as many as there are before the end.
    pub(super) fn read(self: &Arc<Self>, offset: u64, size: u32, reply: ReplyData) {
        let left = to_usize(self.device.size().saturating_sub(offset));
        let len = (size as usize).min(left);
        if len == 0 {
            return reply.data(&[]);
        }
        if len > TRANSFER_MAX {
            return reply.error(Errno::EINVAL);
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            match self.device.read_local_at(&mut buffer[..len], offset) {
                Ok(()) => reply.data(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::Absent => self.read_slowly(offset, len, reply),
                Err(error) => reply.error(self.fault("read", offset, &error)),
            }
        });
    }

    fn read_slowly(self: &Arc<Self>, offset: u64, len: usize, reply: ReplyData) {
        let image = Arc::clone(self);
        self.remote.run(move || {
            if image.stopping.load(Ordering::Acquire) {
                return reply.error(Errno::EIO);
            }
            let mut bytes = vec![0; len];
            match image.device.read_at(&mut bytes, offset) {
                Ok(()) => reply.data(&bytes),
                Err(error) => reply.error(image.fault("read", offset, &error)),
            }
        });
    }

    /// Writes as many bytes of `data` as fit before the end: the file does not grow by being written.
    pub(super) fn write(self: &Arc<Self>, offset: u64, data: &[u8], open_flags: i32, reply: ReplyWrite) {
        let left = to_usize(self.device.size().saturating_sub(offset));
        let fits = data.len().min(left);
        if fits == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let data = &data[..fits];
        self.written();
        // Newer kernels send a sync of their own; one that finds nothing to do costs little.
        let durable = OFlags::from_bits_retain(open_flags.cast_unsigned()).intersects(OFlags::DSYNC);
        match self.writer.write_at_once(data, offset) {
            Ok(()) if !durable => reply.written(count(fits)),
            Err(error) if error.kind() != ErrorKind::Absent => {
                reply.error(self.fault("write", offset, &error));
            }
            outcome => {
                let (pool, rest) =
                    if outcome.is_ok() { (&self.local, Vec::new()) } else { (&self.remote, data.to_vec()) };
                let image = Arc::clone(self);
                pool.run(move || {
                    let mut done = image.writer.write(&rest, offset);
                    if durable && done.is_ok() {
                        done = image.make_durable();
                    }
                    match done {
                        Ok(()) => reply.written(count(fits)),
                        Err(error) => reply.error(image.fault("write", offset, &error)),
                    }
                });
            }
        }
    }

    /// Makes a range read as zeros, as far as the disk goes.
    pub(super) fn write_zeroes(self: &Arc<Self>, offset: u64, len: u64, reply: ReplyEmpty) {
        let len = len.min(self.device.size().saturating_sub(offset));
        self.written();
        let zero = move |image: &Self| image.writer.write_zeroes(offset, len);
        self.answer_slowly(&self.remote, "write zeros", offset, reply, zero);
    }

    /// Makes all writes durable; at a `close`, only if there are some.
    pub(super) fn flush(self: &Arc<Self>, closing: bool, reply: ReplyEmpty) {
        if self.read_only || closing && !self.unflushed.load(Ordering::Acquire) {
            return reply.ok();
        }
        self.answer_slowly(&self.local, "flush", 0, reply, Self::make_durable);
    }

    pub(super) fn make_durable(&self) -> Result<()> {
        // Before the flush, so that a write during it counts for the next.
        self.unflushed.store(false, Ordering::Release);
        let flushed = self.device.flush();
        if flushed.is_err() {
            self.unflushed.store(true, Ordering::Release);
        }
        flushed
    }

    /// The first offset from `offset` on of data, or of a hole; the end counts as a hole. `None` past the end, or if no
    /// data follows.
    pub(super) fn seek(&self, offset: u64, hole: bool) -> Result<Option<u64>> {
        let size = self.device.size();
        let mut at = offset;
        while at < size {
            let extent = self.device.extent_at(at)?;
            if extent.zero == hole {
                return Ok(Some(at));
            }
            at = extent.range.end().max(at.saturating_add(1));
        }
        Ok((hole && offset < size).then_some(size))
    }

    fn answer_slowly(
        self: &Arc<Self>,
        pool: &BlockingPool,
        what: &'static str,
        offset: u64,
        reply: ReplyEmpty,
        work: impl FnOnce(&Self) -> Result<()> + Send + 'static,
    ) {
        let image = Arc::clone(self);
        pool.run(move || match work(&image) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(image.fault(what, offset, &error)),
        });
    }

    fn written(&self) {
        self.unflushed.store(true, Ordering::Release);
        self.modified.store(true, Ordering::Release);
    }

    /// Logs a fault, and returns the error number that the program gets.
    pub(super) fn fault(&self, what: &str, offset: u64, error: &Error) -> Errno {
        let before = self.faults.fetch_add(1, Ordering::Relaxed);
        let count = before.saturating_add(1);
        if count <= FAULTS_LOGGED || count.is_power_of_two() {
            tracing::warn!("fuse {}: cannot {what} at {offset} ({count} failed so far): {error}", self.name);
        }
        errno(error)
    }
}

/// The error number that tells a program how it can react to `error`.
pub(super) fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Corrupt
        | ErrorKind::NotFound
        | ErrorKind::Absent
        | ErrorKind::Cancelled
        | ErrorKind::NoDevice
        | ErrorKind::Io => Errno::EIO,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::Conflict => Errno::EBUSY,
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Unavailable => Errno::ETIMEDOUT,
        ErrorKind::Denied => Errno::EACCES,
    }
}

/// The length of an answer.
fn count(len: usize) -> u32 {
    exact(len, "the length of its request has 32 bits")
}
