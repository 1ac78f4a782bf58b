//! The server: a thread that owns the device, and one for each of its queues.
//!
//! Each of a queue's requests has a task with a buffer of its own, run by the queue's thread. A task whose request
//! might wait leaves it to the blocking pool and sleeps. The pool's thread wakes it and rings the *bell*: an
//! eventfd that the queue's ring polls, because the queue's thread sleeps in its ring and would not notice.

use super::kernel::probe_trusting;
use super::{CREATION_TIMEOUT, UblkSettings};
use crate::blocking_pool::BlockingPool;
use crate::complaints::{Complaints, complain};
use crate::{Export, STOP_TIMEOUT, Server, host_cache};
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Result, SECTOR_SIZE, saturating, to_usize};
use io_uring::{opcode, types};
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::helpers::IoBuf;
use libublk::io::{UblkDev, UblkQueue};
use libublk::uring_async::{ublk_submit_sqe_async, wait_and_handle_io_events};
use libublk::{BufDesc, UblkError, UblkFlags, UblkUringData, sys};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;
use std::future::poll_fn;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::task::{Poll, Waker};
use std::thread;

/// The largest request, in bytes; each of a queue's requests has a buffer of this length, which takes memory only as it
/// is used.
const BUFFER: u32 = 512 << 10;

/// The most threads for requests that wait.
const WAITING_MAX: usize = 64;

/// The time between two looks of a queue without requests whether it may give memory back, in seconds.
const IDLE_SECS: u64 = 20;

/// A disk that is served as the block device `/dev/ublkbN`.
pub struct Ublk {
    path: PathBuf,
    target: Arc<Target>,
    /// The control of the device; `None` once it has been stopped.
    control: Mutex<Option<Arc<UblkCtrl>>>,
    ended: Mutex<Receiver<std::result::Result<(), UblkError>>>,
}

/// The state that all queues share.
struct Target {
    device: Arc<dyn BlockDevice>,
    pool: BlockingPool,
    /// `true` once no request waits for remote bytes any more.
    stopping: AtomicBool,
    complaints: Complaints,
}

impl Ublk {
    /// Creates a block device for `export` and serves it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the kernel has no ublk or is known to crash, [`ErrorKind::Invalid`] if
    /// the disk's size is 0 or not a whole number of sectors, [`ErrorKind::Io`] if the device cannot be created.
    pub fn start(export: Export, settings: &UblkSettings) -> Result<Self> {
        probe_trusting(settings.trust_kernel)?;
        let size = export.device.size();
        if size == 0 || !size.is_multiple_of(SECTOR_SIZE) {
            return Err(Error::invalid("a block device is whole sectors, and this disk is not")
                .remedy("export it with --fuse, which has its exact size"));
        }
        let (pool, stopping) = (BlockingPool::new(WAITING_MAX), AtomicBool::new(false));
        let target =
            Arc::new(Target { device: export.device, pool, stopping, complaints: Complaints::default() });
        let (started, start) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let (serving, settings) = (Arc::clone(&target), settings.clone());
        let run = move || {
            let _ = end.send(serve(&serving, &settings, started));
        };
        let spawned = thread::Builder::new().name("ublk".to_owned()).spawn(run);
        spawned.map_err(|error| Error::io("cannot start a thread", error))?;
        let control = start.recv_timeout(CREATION_TIMEOUT).map_err(|_| why_not(&ended))?;
        let path = PathBuf::from(control.get_bdev_path());
        let server = Self { path, target, control: Mutex::new(Some(control)), ended: Mutex::new(ended) };
        host_cache::drop_pages(&server.path, STOP_TIMEOUT).map_err(|error| {
            Error::io("cannot drop what the host still has of another disk", error).about(server.uri())
        })?;
        Ok(server)
    }

    fn shut_down(&self) -> Result<()> {
        let Some(control) = self.control.lock().take() else { return Ok(()) };
        let read_only = self.target.device.is_read_only();
        let dropped = host_cache::drop_pages(&self.path, STOP_TIMEOUT);
        self.target.stopping.store(true, Ordering::Release);
        self.target.pool.wait_idle(STOP_TIMEOUT);
        // In a thread, so that this does not wait for ever, whatever the kernel does.
        let (done, killed) = mpsc::channel();
        let kill = move || {
            let _ = done.send(control.kill_dev().map(|_| ()));
        };
        let spawned = thread::Builder::new().name("ublk-stop".to_owned()).spawn(kill);
        let killed = spawned.is_ok() && matches!(killed.recv_timeout(STOP_TIMEOUT), Ok(Ok(())));
        if !killed || self.ended.lock().recv_timeout(STOP_TIMEOUT).is_err() {
            tracing::warn!("{}: the kernel does not release it; a process may have it open", self.uri());
        }
        if read_only {
            return Ok(());
        }
        let cause = "cannot write back what the host holds of it";
        let dropped = dropped.map_err(|error| Error::io(cause, error).about(self.uri()));
        self.target.device.flush().and(dropped)
    }
}

/// The error of a device that was not made.
fn why_not(ended: &Receiver<std::result::Result<(), UblkError>>) -> Error {
    match ended.try_recv() {
        Ok(Err(error)) => Error::new(ErrorKind::Io, format!("the kernel makes no ublk device: {error}")),
        _ => Error::new(ErrorKind::Io, "the kernel does not finish making a ublk device, as broken ones do")
            .remedy("see `dmesg | grep ublk`; restart this host, and use --nbd or --fuse"),
    }
}

impl Server for Ublk {
    fn uri(&self) -> String {
        self.path.display().to_string()
    }

    fn resized(&self) {
        tracing::warn!("{}: it keeps its size until the disk is attached again", self.uri());
    }

    fn failed(&self) -> Option<Error> {
        if self.control.lock().is_none() {
            return None;
        }
        let cause = match self.ended.lock().try_recv() {
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            Ok(Ok(())) => Error::new(ErrorKind::Cancelled, "the device was deleted from outside"),
            Ok(Err(error)) => Error::new(ErrorKind::Io, format!("the kernel gave it up: {error}")),
        };
        Some(cause.about(self.uri()))
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.shut_down()
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!("{error}");
        }
    }
}

/// Makes the device, serves it until it is killed, deletes it.
fn serve(
    target: &Arc<Target>,
    settings: &UblkSettings,
    started: mpsc::Sender<Arc<UblkCtrl>>,
) -> std::result::Result<(), UblkError> {
    let control = UblkCtrlBuilder::default()
        .name("headstart")
        .nr_queues(settings.queues.max(1))
        .depth(settings.depth.max(1))
        .io_buf_bytes(BUFFER)
        .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
        .build()?;
    let control = Arc::new(control);
    let (size, read_only) = (target.device.size(), target.device.is_read_only());
    let describe = move |device: &mut UblkDev| {
        device.set_default_params(size);
        describe(&mut device.tgt.params, read_only);
        Ok(())
    };
    let serving = Arc::clone(target);
    let queue = move |number: u16, device: &UblkDev| {
        if let Err(error) = serve_queue(&serving, number, device) {
            tracing::error!("ublk: queue {number} ended: {error}");
        }
    };
    let to_starter = Arc::clone(&control);
    control.run_target(describe, queue, move |_| {
        let _ = started.send(to_starter);
    })?;
    control.del_dev()?;
    Ok(())
}

fn describe(params: &mut sys::ublk_params, read_only: bool) {
    params.basic.attrs = sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
    if read_only {
        params.basic.attrs |= sys::UBLK_ATTR_READ_ONLY;
        return;
    }
    params.types |= sys::UBLK_PARAM_TYPE_DISCARD;
    params.discard.discard_granularity = 4096;
    params.discard.max_discard_sectors = 1 << 21;
    params.discard.max_write_zeroes_sectors = 1 << 21;
    params.discard.max_discard_segments = 1;
}

fn serve_queue(
    target: &Arc<Target>,
    number: u16,
    device: &UblkDev,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let queue = Rc::new(UblkQueue::new(number, device)?);
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let executor = Rc::new(smol::LocalExecutor::new());
    let mut tasks = Vec::new();
    for tag in queue.tags() {
        let (queue, target, bell) = (Rc::clone(&queue), Arc::clone(target), Arc::clone(&bell));
        tasks.push(executor.spawn(async move {
            match serve_tag(&queue, tag, &target, &bell).await {
                Ok(()) | Err(UblkError::QueueIsDown) => {}
                Err(error) => tracing::error!("ublk: request {tag} ended: {error}"),
            }
        }));
    }
    let answer_bell = {
        let bell = Arc::clone(&bell);
        executor.spawn(async move { watch_bell(&bell).await })
    };
    let (ticking, events) = (Rc::clone(&executor), Rc::clone(&queue));
    let run = async move {
        let tick = || while ticking.try_tick() {};
        let done = || tasks.iter().all(smol::Task::is_finished);
        wait_and_handle_io_events(&events, Some(IDLE_SECS), tick, done).await
    };
    let served = smol::block_on(executor.run(run));
    drop(answer_bell);
    Ok(served?)
}

/// Polls the bell for ever: its completions wake the thread, which then runs the woken tasks.
async fn watch_bell(bell: &OwnedFd) {
    let poll = || opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), u32::from(PollFlags::IN.bits())).build();
    while ublk_submit_sqe_async(poll(), UblkUringData::Target as u64).await.is_ok_and(|events| events >= 0) {
        // Rings in between are one event.
        let _ = rustix::io::read(bell, &mut [0; 8]);
    }
}

/// Serves one of a queue's request slots, one request after the other.
async fn serve_tag(
    queue: &UblkQueue<'_>,
    tag: u16,
    target: &Arc<Target>,
    bell: &Arc<OwnedFd>,
) -> std::result::Result<(), UblkError> {
    let mut buffer = IoBuf::<u8>::new(queue.dev.dev_info.max_io_buf_bytes as usize);
    queue.submit_io_prep_cmd(tag, BufDesc::Slice(buffer.as_slice()), 0, Some(&buffer)).await?;
    loop {
        let request = Request::of(queue.get_iod(tag));
        let result = match request {
            Ok(request) => answer(request, &mut buffer, target, bell).await,
            Err(errno) => -errno.raw_os_error(),
        };
        queue.submit_io_commit_cmd(tag, BufDesc::Slice(buffer.as_slice()), result).await?;
    }
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    operation: Operation,
    range: ByteRange,
    durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    Flush,
    Zero,
}

impl Request {
    fn of(described: &sys::ublksrv_io_desc) -> std::result::Result<Self, Errno> {
        let operation = match described.op_flags & 0xff {
            sys::UBLK_IO_OP_READ => Operation::Read,
            sys::UBLK_IO_OP_WRITE => Operation::Write,
            sys::UBLK_IO_OP_FLUSH => Operation::Flush,
            sys::UBLK_IO_OP_DISCARD | sys::UBLK_IO_OP_WRITE_ZEROES => Operation::Zero,
            _ => return Err(Errno::OPNOTSUPP),
        };
        // A flush has no range.
        let sectors = if operation == Operation::Flush { 0 } else { described.nr_sectors };
        let start = described.start_sector.checked_mul(SECTOR_SIZE);
        let range = start.and_then(|start| ByteRange::new(start, u64::from(sectors) * SECTOR_SIZE));
        let durable = described.op_flags & sys::UBLK_IO_F_FUA != 0;
        Ok(Self { operation, range: range.ok_or(Errno::INVAL)?, durable })
    }
}

/// Serves one request: here if it is local, otherwise by the blocking pool. Returns its length, or a negative error
/// number.
async fn answer(request: Request, buffer: &mut IoBuf<u8>, target: &Arc<Target>, bell: &Arc<OwnedFd>) -> i32 {
    let Ok(len) = usize::try_from(request.range.len()) else { return -Errno::INVAL.raw_os_error() };
    let moves = matches!(request.operation, Operation::Read | Operation::Write);
    if moves && len > buffer.len() {
        return -Errno::INVAL.raw_os_error();
    }
    let offset = request.range.offset();
    let at_once = match request.operation {
        Operation::Read => target.device.read_local_at(&mut buffer.as_mut_slice()[..len], offset),
        Operation::Write if !request.durable => target.device.write_at(&buffer.as_slice()[..len], offset),
        _ => Err(Error::new(ErrorKind::Absent, "this waits for the disk")),
    };
    let result = match at_once {
        Err(error) if error.kind() == ErrorKind::Absent => {
            let data = if request.operation == Operation::Write {
                buffer.as_slice()[..len].to_vec()
            } else {
                Vec::new()
            };
            let answered = slowly(request, data, target, bell).await;
            answered.map(|bytes| {
                if request.operation == Operation::Read {
                    buffer.as_mut_slice()[..len].copy_from_slice(&bytes);
                }
            })
        }
        other => other,
    };
    match result {
        // Of a request that moves no bytes the kernel looks at the sign only.
        Ok(()) => saturating(len),
        Err(error) => {
            complain!(target.complaints, Fault, %error, "ublk: {:?} at {offset} failed", request.operation);
            -errno(&error).raw_os_error()
        }
    }
}

/// Has the blocking pool do a request; returns the bytes that it read.
async fn slowly(
    request: Request,
    data: Vec<u8>,
    target: &Arc<Target>,
    bell: &Arc<OwnedFd>,
) -> Result<Vec<u8>> {
    #[derive(Default)]
    struct Outcome {
        result: Option<Result<Vec<u8>>>,
        waker: Option<Waker>,
    }
    let outcome = Arc::new(Mutex::new(Outcome::default()));
    let (theirs, serving, bell) = (Arc::clone(&outcome), Arc::clone(target), Arc::clone(bell));
    target.pool.run(move || {
        let result = serving.do_slowly(request, data);
        let waker = {
            let mut outcome = theirs.lock();
            outcome.result = Some(result);
            outcome.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
    });
    poll_fn(move |context| {
        let mut outcome = outcome.lock();
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                outcome.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

impl Target {
    fn do_slowly(&self, request: Request, mut data: Vec<u8>) -> Result<Vec<u8>> {
        let offset = request.range.offset();
        match request.operation {
            Operation::Read => {
                if self.stopping.load(Ordering::Acquire) {
                    return Err(Error::new(ErrorKind::Cancelled, "the server stops"));
                }
                // The caller has checked that the request fits into a buffer.
                data.resize(to_usize(request.range.len()), 0);
                self.device.read_at(&mut data, offset)?;
            }
            Operation::Write => self.device.write_at(&data, offset)?,
            Operation::Zero => self.device.write_zeroes(request.range)?,
            Operation::Flush => self.device.flush()?,
        }
        if request.durable {
            self.device.flush()?;
        }
        Ok(data)
    }
}

fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::ReadOnly => Errno::ROFS,
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood() {
        let of = |op_flags, nr_sectors, start_sector| {
            Request::of(&sys::ublksrv_io_desc { op_flags, nr_sectors, start_sector, ..Default::default() })
        };
        let range = ByteRange::between(512, 4608);
        let read = Request { operation: Operation::Read, range, durable: false };
        assert_eq!(of(sys::UBLK_IO_OP_READ, 8, 1), Ok(read));
        let write = Request { operation: Operation::Write, durable: true, ..read };
        assert_eq!(of(sys::UBLK_IO_OP_WRITE | sys::UBLK_IO_F_FUA, 8, 1), Ok(write));
        let flush = Request { operation: Operation::Flush, range: ByteRange::between(0, 0), durable: false };
        assert_eq!(of(sys::UBLK_IO_OP_FLUSH, 77, 0), Ok(flush));
        assert_eq!(of(18, 1, 0), Err(Errno::OPNOTSUPP));
        assert_eq!(of(sys::UBLK_IO_OP_READ, 1, u64::MAX), Err(Errno::INVAL));
    }
}
