//! Pieces of work on threads.

use headstart_block::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

/// The progress of learning or training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskProgress {
    /// The number of finished units of work. These are traces when learning; images, and sets of similar images, when
    /// training.
    pub done: u64,
    /// The number of all units of work.
    pub all: u64,
}

/// A callback that receives the progress. If it returns an error, the work stops with that error.
pub type OnProgress<'a> = &'a mut dyn FnMut(TaskProgress) -> Result<()>;

/// The number of threads; 0 stands for the number of processors.
pub(crate) fn threads(wanted: usize) -> usize {
    if wanted > 0 { wanted } else { thread::available_parallelism().map_or(1, usize::from) }
}

enum Message<T> {
    Tick,
    Done(usize, Result<T>),
}

/// Does `count` pieces of work on threads, each taken by the next free thread; results come in the order of their
/// numbers. Each piece calls `tick` when a part of it is done, which progress counts from `before` on; an
/// error that it gets is to be passed on.
pub(crate) fn run<T: Send>(
    count: usize,
    threads: usize,
    mut counted: TaskProgress,
    progress: OnProgress<'_>,
    work: impl Fn(usize, &dyn Fn() -> Result<()>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (send, receive) = channel();
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let mut failed = None;
    thread::scope(|scope| -> Result<()> {
        for number in 0..threads.clamp(1, count.max(1)) {
            let (send, next, stop, work) = (send.clone(), &next, &stop, &work);
            let tick = {
                let send = send.clone();
                move || {
                    // The receiver is dropped only when all is over.
                    let _ = send.send(Message::Tick);
                    if stop.load(Ordering::Relaxed) { Err(stopped()) } else { Ok(()) }
                }
            };
            let each = move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if send.send(Message::Done(at, work(at, &tick))).is_err() {
                        return;
                    }
                }
            };
            let spawned = thread::Builder::new().name(format!("train-{number}")).spawn_scoped(scope, each);
            spawned.map_err(|e| Error::io("cannot start a thread", e))?;
        }
        drop(send);
        for message in receive {
            let heard = match message {
                Message::Tick => {
                    counted.done += 1;
                    progress(counted)
                }
                Message::Done(at, result) => result.map(|result| results[at] = Some(result)),
            };
            if let Err(error) = heard {
                stop.store(true, Ordering::Relaxed);
                // The first error is the cause of the others.
                failed.get_or_insert(error);
            }
        }
        Ok(())
    })?;
    match failed {
        Some(error) => Err(error),
        None => results.into_iter().collect::<Option<_>>().ok_or_else(stopped),
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "was stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_errors_end_it() {
        let mut heard = 0;
        let mut progress = |progress: TaskProgress| {
            heard = progress.done;
            Ok(())
        };
        let square = |at: usize, tick: &dyn Fn() -> Result<()>| tick().map(|()| at * at);
        let results = run(20, 3, TaskProgress { done: 5, all: 25 }, &mut progress, square).unwrap();
        assert_eq!((results, heard), ((0..20).map(|at| at * at).collect(), 25));
        assert!(run(0, 3, TaskProgress::default(), &mut |_| Ok(()), square).unwrap().is_empty());
        let fails = |at: usize, _: &dyn Fn() -> Result<()>| {
            if at == 7 { Err(Error::invalid("seven")) } else { Ok(at) }
        };
        let error = run(20, 2, TaskProgress::default(), &mut |_| Ok(()), fails).unwrap_err();
        assert_eq!(error.to_string(), "seven");
        let enough = |_: TaskProgress| Err(Error::new(ErrorKind::Cancelled, "enough"));
        let error = run(1000, 2, TaskProgress::default(), &mut { enough }, square).unwrap_err();
        assert_eq!(error.to_string(), "enough");
    }
}
