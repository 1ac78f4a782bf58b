//! A thread pool for requests that may have to wait: a bounded number of threads, started when there is work for them.
//!
//! The threads that receive requests from a client only do local work. Requests that wait for remote bytes, for a disk
//! to sync or for another write come here, so that they hold up no other. A thread that has had no job for a while
//! ends: an idle export has none.
//!
//! The queue needs no bound of its own: each server bounds the number of requests that a client may have in flight.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// One request's work. It answers the request itself.
type Job = Box<dyn FnOnce() + Send>;

/// The time that a thread waits for its next job before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// A pool of threads that may block. Clones are the same pool.
#[derive(Clone)]
pub(crate) struct BlockingPool(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when there is a job.
    job: Condvar,
    /// Notified when a job has ended.
    done: Condvar,
    threads_max: usize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The number of threads that wait for a job.
    idle: usize,
    /// The number of threads in all.
    threads: usize,
    /// The number of jobs that have been taken and not ended.
    running: usize,
}

impl BlockingPool {
    pub(crate) fn new(threads_max: usize) -> Self {
        let (queue, job, done) = Default::default();
        Self(Arc::new(Shared { queue, job, done, threads_max: threads_max.max(1) }))
    }

    /// Has `job` done by a thread of the pool, or by the caller if no thread can be started.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.lock();
        queue.jobs.push_back(Box::new(job));
        if queue.idle >= queue.jobs.len() || queue.threads >= self.0.threads_max {
            self.0.job.notify_one();
            return;
        }
        queue.threads += 1;
        drop(queue);
        let shared = Arc::clone(&self.0);
        let spawned = thread::Builder::new().name("blocking-pool".to_owned()).spawn(move || shared.work());
        if let Err(error) = spawned {
            tracing::warn!("no thread for a slow request, others wait for it: {error}");
            let mut queue = self.0.lock();
            queue.threads -= 1;
            // The other threads may have taken it meanwhile.
            if queue.threads == 0
                && let Some(job) = queue.jobs.pop_front()
            {
                drop(queue);
                job();
            }
        }
    }

    /// Waits until no job is left, `timeout` at most; `true` if none is.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> bool {
        let mut queue = self.0.lock();
        let busy = |queue: &mut Queue| queue.running > 0 || !queue.jobs.is_empty();
        !self.0.done.wait_while_for(&mut queue, busy, timeout).timed_out()
    }
}

impl Shared {
    /// Locks the queue.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                queue.running += 1;
                drop(queue);
                // A job that panics drops its request's reply, which answers it with an I/O error.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a request panicked; it was answered with an error");
                }
                queue = self.lock();
                queue.running -= 1;
                self.done.notify_all();
                continue;
            }
            queue.idle += 1;
            let waited = self.job.wait_while_for(&mut queue, |queue| queue.jobs.is_empty(), IDLE);
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_wait_for_nobody_until_the_threads_are_used_up() {
        let pool = BlockingPool::new(3);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (done, results) = mpsc::channel();
        for _ in 0..2 {
            let (gate, done) = (Arc::clone(&gate), done.clone());
            pool.run(move || {
                let _ = gate.lock().recv();
                done.send("stuck").unwrap();
            });
        }
        for _ in 0..20 {
            let done = done.clone();
            pool.run(move || done.send("quick").unwrap());
        }
        for _ in 0..20 {
            assert_eq!(results.recv_timeout(Duration::from_secs(60)), Ok("quick"));
        }
        assert!(!pool.wait_idle(Duration::from_millis(20)));
        assert!(pool.0.lock().threads <= 3);
        drop(release);
        assert!(pool.wait_idle(Duration::from_secs(60)));
    }

    #[test]
    #[expect(clippy::panic, reason = "that is what is tested")]
    fn a_panic_ends_one_job() {
        let pool = BlockingPool::new(1);
        pool.run(|| panic!("as it is meant to"));
        let (done, result) = mpsc::channel();
        pool.run(move || done.send(()).unwrap());
        result.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
