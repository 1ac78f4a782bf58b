//! The server: a thread that owns the device, and one for each of its queues.
//!
//! Each of a queue's requests has a task with a buffer of its own, run by the queue's thread. A task whose request
//! might wait leaves it to the blocking pool and sleeps. The pool's thread wakes it and rings the *bell*: an
//! eventfd that the queue's ring polls, because the queue's thread sleeps in its ring and would not notice.
//!
//! The control of a device stays with the thread that made it, because its ring is that thread's. Other threads ask the
//! driver by a control of their own.

use super::driver::{driver_error, find_devices, is_busy, remove};
use super::kernel::probe_trusting;
use super::recovery::{DeviceMark, TakeoverPlan};
use super::{CREATION_TIMEOUT, TAKEOVER_TIMEOUT, UblkSettings};
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
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;
use std::future::{pending, poll_fn};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// The largest request, in bytes; each of a queue's requests has a buffer of this length, which takes memory only as it
/// is used.
const BUFFER: u32 = 512 << 10;

/// The most threads for requests that wait.
const WAITING_MAX: usize = 64;

/// The time between two looks of a queue without requests whether it may give memory back, in seconds.
const IDLE_SECS: u64 = 20;

/// The device waits for the next process, which gets the requests again that this one has not answered.
const RECOVERY_FLAGS: u64 = (sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE) as u64;

/// The name of this server in the files that the library writes.
const NAME: &str = "headstart";

/// The time between the end of a thread and its result.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The time between two looks whether requests are answered.
const LOOK: Duration = Duration::from_millis(1);

/// A disk that is served as the block device `/dev/ublkbN`. Stopping or dropping it removes the device; one that was
/// taken over from an earlier process, and is dropped before it is asked to stop, waits for the next process.
pub struct Ublk {
    number: u32,
    target: Arc<Target>,
    is_kept: bool,
    /// `true` if an earlier process had the device.
    is_left: bool,
    /// `true` once it has been stopped or left.
    has_ended: AtomicBool,
    ended: Mutex<Receiver<Result<()>>>,
}

/// A device that the kernel has.
struct StartedDevice {
    number: u32,
    is_left: bool,
}

/// The state that all queues share.
struct Target {
    device: Arc<dyn BlockDevice>,
    pool: BlockingPool,
    /// `true` once no request waits for remote bytes any more.
    stopping: AtomicBool,
    /// `true` once requests are left to the next process.
    leaving: AtomicBool,
    /// The requests that are being answered.
    busy: AtomicUsize,
    complaints: Complaints,
}

impl Ublk {
    /// Creates a block device for `export` and serves it. A device that an earlier process of the same disk has left is
    /// taken over.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the kernel has no ublk or is known to crash, [`ErrorKind::Invalid`] if
    /// the disk's size is 0 or not a whole number of sectors, [`ErrorKind::Conflict`] if another process serves it,
    /// [`ErrorKind::Io`] if the device cannot be created.
    pub fn start(export: Export, settings: &UblkSettings) -> Result<Self> {
        probe_trusting(settings.trust_kernel)?;
        let size = export.device.size();
        if size == 0 || !size.is_multiple_of(SECTOR_SIZE) {
            return Err(Error::invalid("a block device is whole sectors, and this disk is not")
                .remedy("export it with --fuse, which has its exact size"));
        }
        let target = Arc::new(Target {
            device: export.device,
            pool: BlockingPool::new(WAITING_MAX),
            stopping: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            complaints: Complaints::default(),
        });
        let (started, start) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let (serving, settings) = (Arc::clone(&target), settings.clone());
        let is_kept = settings.kept.is_some();
        let run = move || {
            let _ = end.send(serve(&serving, &settings, started));
        };
        let spawned = thread::Builder::new().name("ublk".to_owned()).spawn(run);
        spawned.map_err(|error| Error::io("cannot start a thread", error))?;
        let limit = if is_kept { TAKEOVER_TIMEOUT } else { CREATION_TIMEOUT };
        let device = start.recv_timeout(limit).map_err(|_| why_not(&ended))?;
        let (number, is_left) = (device.number, device.is_left);
        let (has_ended, ended) = (AtomicBool::new(false), Mutex::new(ended));
        let server = Self { number, target, is_kept, is_left, has_ended, ended };
        if !is_left {
            host_cache::drop_pages(&server.path(), STOP_TIMEOUT).map_err(|error| {
                Error::io("cannot drop what the host still has of another disk", error).about(server.uri())
            })?;
        }
        Ok(server)
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.number))
    }

    /// `true` if it goes on with the device of an earlier process, and with that one's users.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.is_left
    }

    fn shut_down(&self) -> Result<()> {
        if self.has_ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let read_only = self.target.device.is_read_only();
        let dropped = host_cache::drop_pages(&self.path(), STOP_TIMEOUT);
        self.target.stopping.store(true, Ordering::Release);
        self.target.pool.wait_idle(STOP_TIMEOUT);
        let removed = remove(self.number, STOP_TIMEOUT);
        if removed.is_err() || self.ended.lock().recv_timeout(STOP_TIMEOUT).is_err() {
            tracing::warn!("{}: the kernel does not release it; a process may have it open", self.uri());
        }
        if read_only {
            return Ok(());
        }
        let cause = "cannot write back what the host holds of it";
        let dropped = dropped.map_err(|error| Error::io(cause, error).about(self.uri()));
        self.target.device.flush().and(dropped)
    }

    /// Leaves the device, and the requests that are not answered, to the next process.
    fn leave_device(&self) -> Result<()> {
        if self.has_ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.target.stopping.store(true, Ordering::Release);
        self.target.leaving.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while self.target.busy.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() > STOP_TIMEOUT {
                tracing::warn!("{}: requests in flight are left to the next process", self.uri());
                break;
            }
            thread::sleep(LOOK);
        }
        if self.target.device.is_read_only() { Ok(()) } else { self.target.device.flush() }
    }
}

/// The error of a device that was not made.
fn why_not(ended: &Receiver<Result<()>>) -> Error {
    // The thread says that it has not started before it says why.
    match ended.recv_timeout(LAST_WORDS) {
        Ok(Err(error)) => error,
        _ => Error::new(ErrorKind::Io, "the kernel does not finish making a ublk device, as broken ones do")
            .remedy("see `dmesg | grep ublk`; restart this host, and use --nbd or --fuse"),
    }
}

impl Server for Ublk {
    fn uri(&self) -> String {
        self.path().display().to_string()
    }

    fn resized(&self) {
        tracing::warn!("{}: it keeps its size until the disk is attached again", self.uri());
    }

    fn failed(&self) -> Option<Error> {
        if self.has_ended.load(Ordering::Acquire) {
            return None;
        }
        let cause = match self.ended.lock().try_recv() {
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            Ok(Ok(())) => Error::new(ErrorKind::Cancelled, "the device was deleted from outside"),
            Ok(Err(error)) => error,
        };
        Some(cause.about(self.uri()))
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.shut_down()
    }

    fn leave(self: Box<Self>) -> Result<()> {
        if self.is_kept { self.leave_device() } else { self.shut_down() }
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        // Programs may have it mounted that this process has never served.
        let ended = if self.is_left { self.leave_device() } else { self.shut_down() };
        if let Err(error) = ended {
            tracing::warn!("{error}");
        }
    }
}

/// Makes the device or takes it over, serves it until it is stopped, and removes it.
fn serve(target: &Arc<Target>, settings: &UblkSettings, started: mpsc::Sender<StartedDevice>) -> Result<()> {
    let (size, read_only) = (target.device.size(), target.device.is_read_only());
    let (control, is_left) = open(settings, size)?;
    let number = control.dev_info().dev_id;
    // The driver's error takes the device away only if no earlier process had it.
    let failed = |error: UblkError| {
        let error = driver_error("the kernel's ublk driver does not serve the device", error);
        if !is_left {
            let _ = remove(number, STOP_TIMEOUT);
        }
        error.about(format_args!("/dev/ublkb{number}"))
    };
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
    let served = control.run_target(describe, queue, move |_| {
        let _ = started.send(StartedDevice { number, is_left });
    });
    served.map_err(failed)?;
    // Best effort: the thread that stops it removes it, too.
    let _ = control.del_dev();
    Ok(())
}

/// The control of the device, and `true` if an earlier process had it.
fn open(settings: &UblkSettings, size: u64) -> Result<(UblkCtrl, bool)> {
    let mark = settings.kept.as_ref().map(|kept| DeviceMark::of(kept, size));
    let plan = mark.map(|mark| TakeoverPlan::of(&find_devices(), mark, size)).unwrap_or_default();
    for number in plan.remove {
        tracing::warn!(
            "/dev/ublkb{number}: the disk has other content or another size now, or its device was not finished"
        );
        remove(number, STOP_TIMEOUT)?;
    }
    if let Some(number) = plan.take {
        return take_over(number).map(|control| (control, true));
    }
    let (flags, word) = mark.map_or((0, 0), |mark| (RECOVERY_FLAGS, mark.word()));
    let control = UblkCtrlBuilder::default()
        .name(NAME)
        .io_buf_bytes(BUFFER)
        .nr_queues(settings.queues.max(1))
        .depth(settings.depth.max(1))
        .ctrl_flags(flags)
        .ctrl_target_flags(word)
        .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
        .build()
        .map_err(|error| driver_error("the kernel makes no ublk device", error))?;
    // Otherwise it would go with the control, whichever way this process ends.
    control.disown();
    Ok((control, false))
}

/// Takes over the device of a process that is dead, or dies now.
fn take_over(number: u32) -> Result<UblkCtrl> {
    let id = i32::try_from(number).map_err(|_| Error::invalid("a ublk device has an impossible number"))?;
    let failed = |error| {
        driver_error("the kernel does not let the disk's next process have its device", error)
            .about(format_args!("/dev/ublkb{number}"))
    };
    let earlier = UblkCtrl::new_simple(id).map_err(failed)?;
    // Waits while the earlier process is taken apart.
    if is_busy(earlier.start_user_recover().map_err(failed)?) {
        let error = Error::new(ErrorKind::Conflict, "another process serves it");
        return Err(error.about(format_args!("/dev/ublkb{number}")).remedy("end that process first"));
    }
    // The library makes its tables for these numbers, before it asks the driver for them.
    let info = earlier.dev_info();
    UblkCtrlBuilder::default()
        .name(NAME)
        .id(id)
        .nr_queues(info.nr_hw_queues)
        .depth(info.queue_depth)
        .io_buf_bytes(info.max_io_buf_bytes)
        .dev_flags(UblkFlags::UBLK_DEV_F_RECOVER_DEV)
        .build()
        .map_err(failed)
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
        let Some(busy) = BusyRequest::begin(target) else {
            // The kernel gives it to the next process once this one is gone.
            return pending().await;
        };
        let result = match request {
            Ok(request) => answer(request, &mut buffer, target, bell).await,
            Err(errno) => -errno.raw_os_error(),
        };
        drop(busy);
        queue.submit_io_commit_cmd(tag, BufDesc::Slice(buffer.as_slice()), result).await?;
    }
}

/// Counts a request that is being answered.
struct BusyRequest<'a>(&'a Target);

impl<'a> BusyRequest<'a> {
    /// `None` if requests are left to the next process.
    fn begin(target: &'a Target) -> Option<Self> {
        target.busy.fetch_add(1, Ordering::SeqCst);
        // Counted first: the one that waits for all requests either sees this one, or has said so before.
        let busy = Self(target);
        (!target.leaving.load(Ordering::SeqCst)).then_some(busy)
    }
}

impl Drop for BusyRequest<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
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
        // A flush has no range: the kernel may say that it begins at the last of all sectors.
        let is_flush = operation == Operation::Flush;
        let (start, sectors) = if is_flush { (0, 0) } else { (described.start_sector, described.nr_sectors) };
        let start = start.checked_mul(SECTOR_SIZE);
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
        assert_eq!(of(sys::UBLK_IO_OP_FLUSH, 0, u64::MAX), Ok(flush), "as Linux 6.12 asks");
        assert_eq!(of(18, 1, 0), Err(Errno::OPNOTSUPP));
        assert_eq!(of(sys::UBLK_IO_OP_READ, 1, u64::MAX), Err(Errno::INVAL));
    }
}
