//! A worker pool of a connection: jobs that may wait, done by threads that exist while there are jobs.
//!
//! The thread that receives requests serves local ones itself; it leaves all others here, and goes on. A thread is
//! started when a job finds none idle, up to [`THREADS_MAX`], and ends after [`IDLE_MAX`] without a job: a disk that
//! is all local, or idle, has none.
//!
//! A connection has three ([`PoolKind`]): one for requests that may wait for remote bytes, one for reads that
//! are work for a processor, one for all others that take time. The second takes a job only if a core does it soon
//! ([`WorkerPool::is_free`]).
//!
//! Jobs in flight are bounded in number and in bytes ([`JOBS_MAX`], [`BYTES_MAX`]). At the bound the receiving
//! thread waits here, the socket fills up, and so the client waits: that is the backpressure.
//!
//! When the connection ends, its queue is finished first, unless the client is gone: then jobs that have not begun are
//! dropped, because no client waits for them.

use super::budget::Share;
use super::transmission::NbdCommand;
use crate::processors::processors;
use headstart_block::SECTOR_SIZE;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// Most threads of one connection: as many reads wait for a store at once. Reads that wait behind them have been
/// announced to the disk by a prefetch, so that their bytes are under way.
const THREADS_MAX: usize = 32;
/// The time that a thread waits for a next job.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// The most jobs in flight.
const JOBS_MAX: usize = 1024;
/// The most bytes that jobs in flight read or write: two of the largest requests.
const BYTES_MAX: u64 = 64 << 20;

/// The most processor jobs in flight: for each processor except that of the thread that receives, one that is being
/// done and one that follows, so that a thread need not be woken for each.
fn work_max() -> usize {
    2 * (processors() - 1)
}

/// The worker pools of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// The pool for requests that may wait for remote bytes.
    Remote,
    /// The pool for requests that wait only for the disk.
    Local,
    /// The pool for reads of bytes that are on this host and have to be decoded.
    Cpu,
}

/// A request that may wait.
pub(crate) struct Job {
    pub(crate) cookie: u64,
    pub(crate) command: NbdCommand,
    /// The bytes of a write.
    pub(crate) data: Vec<u8>,
    /// The memory that its data counts as.
    pub(crate) share: Option<Share>,
    pub(crate) kind: PoolKind,
}

impl Job {
    /// A job for the pool that its command belongs in: reads, and changes of parts of sectors, may wait for remote
    /// bytes.
    pub(crate) fn new(cookie: u64, command: NbdCommand, data: Vec<u8>) -> Self {
        let is_remote = match command {
            NbdCommand::Read { .. } => true,
            NbdCommand::Write { range, .. } | NbdCommand::Zero { range, .. } => {
                !range.is_aligned(SECTOR_SIZE)
            }
            _ => false,
        };
        Self {
            cookie,
            command,
            data,
            share: None,
            kind: if is_remote { PoolKind::Remote } else { PoolKind::Local },
        }
    }

    /// The bytes of memory that it takes while it is in flight.
    pub(crate) fn bytes(&self) -> u64 {
        match self.command {
            NbdCommand::Read { range, .. } => range.len(),
            _ => self.data.len() as u64,
        }
    }
}

/// A worker pool. See the [module](self).
#[derive(Default)]
pub(crate) struct WorkerPool {
    state: Mutex<State>,
    /// Notified when a job is queued, or the pool closes.
    work: Condvar,
    /// Notified when a job ends.
    room: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Jobs that are queued or running.
    jobs: usize,
    bytes: u64,
    closing: bool,
}

/// The duty of the caller of [`WorkerPool::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Nothing: a thread will take it.
    Taken,
    /// Start a thread that calls [`WorkerPool::next`]; it is counted already.
    StartThread,
    /// Every thread is busy: do the parts of the job that can be done ahead.
    Queued,
}

impl WorkerPool {
    /// `true` if a job of `bytes` would have to wait.
    pub(crate) fn is_full(&self, bytes: u64) -> bool {
        self.state.lock().is_full(bytes)
    }

    /// `true` if one more processor job may come.
    pub(crate) fn is_free(&self) -> bool {
        self.state.lock().jobs < work_max()
    }

    /// Queues a job, once there is room for it.
    pub(crate) fn push(&self, job: Job) -> Pushed {
        let bytes = job.bytes();
        let mut state = self.state.lock();
        while state.is_full(bytes) {
            self.room.wait(&mut state);
        }
        state.jobs += 1;
        state.bytes += bytes;
        state.queue.push_back(job);
        if state.queue.len() <= state.idle {
            self.work.notify_one();
            return Pushed::Taken;
        }
        if state.threads < THREADS_MAX {
            state.threads += 1;
            return Pushed::StartThread;
        }
        Pushed::Queued
    }

    /// The next job for the calling thread; `None`: the thread ends. `broken` is `true` if the client is gone.
    pub(crate) fn next(&self, broken: impl Fn() -> bool) -> Option<Running<'_>> {
        let mut state = self.state.lock();
        loop {
            if broken() {
                state.drop_queue();
                self.room.notify_all();
            }
            if let Some(job) = state.queue.pop_front() {
                let bytes = job.bytes();
                return Some(Running { pool: self, bytes, job });
            }
            if state.closing {
                break;
            }
            state.idle += 1;
            let waited = self.work.wait_for(&mut state, IDLE_MAX);
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        None
    }

    /// Takes back a thread that could not be started. Returns the oldest job, if no other thread is there to do it.
    pub(crate) fn thread_failed(&self) -> Option<Running<'_>> {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads > 0 {
            return None;
        }
        let job = state.queue.pop_front()?;
        let bytes = job.bytes();
        Some(Running { pool: self, bytes, job })
    }

    /// No more jobs will come: threads end when the queue is empty, or at once if the client is gone.
    pub(crate) fn close(&self, broken: bool) {
        let mut state = self.state.lock();
        state.closing = true;
        if broken {
            state.drop_queue();
        }
        drop(state);
        self.work.notify_all();
    }
}

impl State {
    fn is_full(&self, bytes: u64) -> bool {
        self.jobs >= JOBS_MAX || (self.jobs > 0 && self.bytes.saturating_add(bytes) > BYTES_MAX)
    }

    fn drop_queue(&mut self) {
        for job in self.queue.drain(..) {
            self.jobs -= 1;
            self.bytes -= job.bytes();
        }
    }
}

/// A job that is being done; dropping it ends it, even by a panic.
pub(crate) struct Running<'a> {
    pool: &'a WorkerPool,
    bytes: u64,
    pub(crate) job: Job,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.jobs -= 1;
        state.bytes -= self.bytes;
        drop(state);
        self.pool.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ByteRange;

    fn read(len: u64) -> Job {
        let range = ByteRange::between(0, len);
        Job::new(0, NbdCommand::Read { range, whole: false }, Vec::new())
    }

    #[test]
    fn starts_a_thread_a_job_until_there_are_enough() {
        let pool = WorkerPool::default();
        for _ in 0..THREADS_MAX {
            assert_eq!(pool.push(read(512)), Pushed::StartThread);
        }
        assert_eq!(pool.push(read(512)), Pushed::Queued);
    }

    #[test]
    fn is_full_by_bytes_but_never_for_a_first_job() {
        let pool = WorkerPool::default();
        assert!(!pool.is_full(BYTES_MAX + 1));
        pool.push(read(BYTES_MAX));
        assert!(pool.is_full(1));
        let running = pool.next(|| false).unwrap();
        assert!(pool.is_full(1));
        drop(running);
        assert!(!pool.is_full(1));
    }

    #[test]
    fn closing_finishes_the_queue_unless_the_client_is_gone() {
        let pool = WorkerPool::default();
        for _ in 0..2 {
            pool.push(read(1));
        }
        pool.close(false);
        assert!(pool.next(|| false).is_some() && pool.next(|| false).is_some());
        assert!(pool.next(|| false).is_none());
        let pool = WorkerPool::default();
        pool.push(read(1));
        pool.close(true);
        assert!(pool.next(|| true).is_none());
        assert!(!pool.is_full(BYTES_MAX));
    }
}
