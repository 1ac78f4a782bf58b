//! The writer's threads.
//!
//! The writer cuts its input into batches of whole frames. Each batch goes to whichever worker is free and
//! comes back compressed; the pool hands them out again in the order in which they were given. A batch is
//! compressed on its own, so neither the number of workers nor their pace can show in the output.
//!
//! * The caller is a worker too: while the others have enough to do ([`Pool::is_busy`]), it compresses a
//!   batch itself and puts it in its place with [`Pool::keep`]. So as many threads run as were asked for,
//!   and the caller's half of the batches is copied less.
//! * The caller bounds how many batches are under way, and so the memory.
//! * Batches go round: nothing is allocated once all have been used.
//! * A panic in a worker is caught and comes back as that batch's error; the caller never waits for a
//!   batch that no worker has.
//! * Dropping the pool makes workers skip queued batches, and joins them.

use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A piece of input and its result.
#[derive(Default)]
pub(crate) struct Batch {
    /// Content; all frames but the input's last are whole.
    pub(crate) input: Vec<u8>,
    /// Room for compressed frames; the first `used` bytes count.
    pub(crate) output: Vec<u8>,
    /// Bytes of `output` in use.
    pub(crate) used: usize,
    /// Length of each compressed frame.
    pub(crate) frames: Vec<u32>,
}

struct Job {
    number: u64,
    batch: Batch,
}

struct Done {
    number: u64,
    batch: Batch,
    result: Result<()>,
}

/// Workers, and the batches that are with them.
pub(crate) struct Pool {
    /// `None` only while the pool is dropped.
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    workers: Vec<JoinHandle<()>>,
    abandoned: Arc<AtomicBool>,
    /// Number of the next batch to give out, and of the next to hand back.
    next_in: u64,
    next_out: u64,
    /// Batches that workers have or will take.
    with_workers: usize,
    /// Batches that came back before their turn.
    early: Vec<Done>,
}

impl Pool {
    /// Starts `threads` workers; `make` makes the compressor of each.
    pub(crate) fn new<F>(threads: usize, make: impl Fn() -> Result<F>) -> Result<Self>
    where
        F: FnMut(&mut Batch) -> Result<()> + Send + 'static,
    {
        let (jobs, queue) = channel();
        let (results, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut pool = Self {
            jobs: Some(jobs),
            done,
            workers: Vec::with_capacity(threads),
            abandoned: Arc::new(AtomicBool::new(false)),
            next_in: 0,
            next_out: 0,
            with_workers: 0,
            early: Vec::new(),
        };
        for _ in 0..threads {
            let (queue, results, abandoned) = (queue.clone(), results.clone(), pool.abandoned.clone());
            let compress = make()?;
            let worker = std::thread::Builder::new()
                .name("zfile-pack".to_owned())
                .spawn(move || work(&queue, &results, &abandoned, compress))
                .map_err(|e| Error::io("cannot start a thread", e).remedy("use fewer threads"))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// The number of batches that were given and not yet handed back.
    pub(crate) fn under_way(&self) -> u64 {
        self.next_in - self.next_out
    }

    /// Gives a batch to the workers.
    pub(crate) fn give(&mut self, batch: Batch) -> Result<()> {
        let job = Job { number: self.next_in, batch };
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(no_workers)?;
        self.next_in += 1;
        self.with_workers += 1;
        Ok(())
    }

    /// `true` if each worker has a batch in hand and another waiting.
    pub(crate) fn is_busy(&self) -> bool {
        self.with_workers >= 2 * self.workers.len()
    }

    /// Puts in its place a batch that the caller compressed.
    pub(crate) fn keep(&mut self, batch: Batch) {
        self.early.push(Done { number: self.next_in, batch, result: Ok(()) });
        self.next_in += 1;
    }

    /// The next batch in order, if it is ready; with `wait`, waits for it. `None` also where no batch is
    /// under way.
    pub(crate) fn take(&mut self, wait: bool) -> Result<Option<Batch>> {
        while self.under_way() > 0 {
            if let Some(at) = self.early.iter().position(|done| done.number == self.next_out) {
                let Done { batch, result, .. } = self.early.swap_remove(at);
                self.next_out += 1;
                return result.map(|()| Some(batch));
            }
            let done = if wait {
                self.done.recv().map_err(|_| no_workers())?
            } else {
                match self.done.try_recv() {
                    Ok(done) => done,
                    Err(std::sync::mpsc::TryRecvError::Empty) => return Ok(None),
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return Err(no_workers()),
                }
            };
            self.with_workers -= 1;
            self.early.push(done);
        }
        Ok(None)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.jobs = None;
        for worker in self.workers.drain(..) {
            // A worker catches its panics.
            let _ = worker.join();
        }
    }
}

/// A worker: compresses batches until there are no more.
fn work<F: FnMut(&mut Batch) -> Result<()>>(
    queue: &Mutex<Receiver<Job>>,
    results: &Sender<Done>,
    abandoned: &AtomicBool,
    mut compress: F,
) {
    loop {
        let job = queue.lock().recv();
        let Ok(Job { number, mut batch }) = job else { return };
        if abandoned.load(Ordering::Relaxed) {
            return;
        }
        let result = catch_unwind(AssertUnwindSafe(|| compress(&mut batch)))
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "a compressing thread panicked")));
        if results.send(Done { number, batch, result }).is_err() {
            return;
        }
    }
}

fn no_workers() -> Error {
    Error::new(ErrorKind::Io, "all compressing threads ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(byte: u8) -> Batch {
        Batch { input: vec![byte], ..Batch::default() }
    }

    #[test]
    fn batches_come_back_in_order() {
        let mut pool = Pool::new(3, || {
            Ok(|batch: &mut Batch| {
                // Odd ones take longer.
                for i in 0..u64::from(batch.input[0] % 2) * 1_000_000 {
                    std::hint::black_box(i);
                }
                batch.output = batch.input.clone();
                Ok(())
            })
        })
        .unwrap();
        let mut got = Vec::new();
        for byte in 0..200 {
            if pool.is_busy() {
                pool.keep(Batch { output: vec![byte], ..Batch::default() });
            } else {
                pool.give(batch(byte)).unwrap();
            }
            while let Some(batch) = pool.take(pool.under_way() > 8).unwrap() {
                got.extend(batch.output);
            }
        }
        while let Some(batch) = pool.take(true).unwrap() {
            got.extend(batch.output);
        }
        assert_eq!(got, (0..200).collect::<Vec<u8>>());
    }

    #[test]
    fn a_panicking_worker_is_an_error_not_a_hang() {
        let mut pool = Pool::new(2, || {
            Ok(|batch: &mut Batch| {
                assert!(batch.input[0] != 3, "injected");
                Ok(())
            })
        })
        .unwrap();
        for byte in 0..6 {
            pool.give(batch(byte)).unwrap();
        }
        let results: Vec<bool> = (0..6).map(|_| pool.take(true).is_ok()).collect();
        assert_eq!(results, [true, true, true, false, true, true]);
        assert!(pool.take(true).unwrap().is_none());
    }

    #[test]
    fn dropping_it_waits_for_nothing_that_is_queued() {
        let done = Arc::new(AtomicBool::new(false));
        let last = done.clone();
        let (started, wait_started) = channel();
        let (go, wait_go) = channel::<()>();
        let wait_go = Arc::new(Mutex::new(wait_go));
        let mut pool = Pool::new(1, || {
            let (last, started, wait_go) = (last.clone(), started.clone(), wait_go.clone());
            Ok(move |batch: &mut Batch| {
                started.send(()).unwrap();
                let _ = wait_go.lock().recv();
                last.store(batch.input[0] == 99, Ordering::Relaxed);
                Ok(())
            })
        })
        .unwrap();
        for byte in [0, 99] {
            pool.give(batch(byte)).unwrap();
        }
        wait_started.recv().unwrap();
        pool.abandoned.store(true, Ordering::Relaxed);
        drop(go);
        drop(pool);
        assert!(!done.load(Ordering::Relaxed), "the second batch was skipped");
    }
}
