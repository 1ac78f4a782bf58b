//! The user's terminal: progress bars with rate and remaining time, and requests to stop (Ctrl-C and signals).

pub use crate::bar::{bar, print_above};
use crate::name;
use crate::signals::{Meaning, SignalPolicy};
use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_store::{Stop as StopRequests, StopSender};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// The interval of drawing: short enough to look alive, long enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(100);

/// The template of a bar that counts bytes.
const BYTES: &str =
    "{msg:20} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left";

/// The template of a bar that counts other things.
const ITEMS: &str = "{msg:20} [{bar:30}] {human_pos}/{human_len}, {eta} left";

/// The time for work to end in order after a request to stop. Work that checks no flag, such as a file that does not
/// open, is cut off then.
const GRACE: Duration = Duration::from_secs(5);

/// The same for work that leaves nothing behind, and need not be waited for.
const SHORT_GRACE: Duration = Duration::from_millis(300);

/// The exit status of a command that was cut off by a second signal.
const CUT_OFF: i32 = 130;

/// Ends waits for stores and daemons. A process has one user.
static WAITS: OnceLock<StopRequests> = OnceLock::new();

/// `true` if the user wants to see no progress.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Turns off, for the rest of the process, the messages that say that a command waits for a store. The progress bar is
/// hidden by an argument of [`Terminal::new`] instead.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// `true` if the user asked for no progress output ([`be_quiet`]). It stays `false` for a command that only prints its
/// report as JSON: such a command shows no progress bar, but still reports that it waits.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Returns the receiver of the user's request to stop the command, for code that waits; `None` if no [`Terminal`]
/// was created.
pub fn stop() -> Option<StopRequests> {
    WAITS.get().cloned()
}

/// Awaits `work` and returns its result; `None` if the user asks the command to stop first. If no [`Terminal`] was
/// created, `work` is always awaited.
pub async fn before_stop<T>(work: impl Future<Output = T>) -> Option<T> {
    match WAITS.get() {
        Some(stop) => stop.before(work).await,
        None => Some(work.await),
    }
}

/// The terminal of the user: shows progress on standard error and receives requests to stop, such as Ctrl-C.
pub struct Terminal {
    bar: ProgressBar,
    stop: Arc<Stop>,
}

/// The requests from signals.
struct Stop {
    asked: AtomicBool,
    policy: Mutex<SignalPolicy>,
    /// The sender that ends waits, too.
    waits: StopSender,
    /// `true` if the command serves others: it is not cut off, however long it takes to end.
    serves: AtomicBool,
    /// `true` if the command only computes, and has nothing to put in order.
    computes: AtomicBool,
    /// `true` if Ctrl-C is no request to stop: the holder reads `interrupts`.
    held: AtomicBool,
    interrupts: AtomicU32,
}

impl Stop {
    fn new() -> Self {
        let (waits, stop) = StopRequests::new();
        let _ = WAITS.set(stop);
        let (asked, serves, computes, held) = Default::default();
        Self { asked, policy: Mutex::default(), waits, serves, computes, held, interrupts: AtomicU32::new(0) }
    }

    fn signalled(&self, is_interrupt: bool) {
        let is_held = self.held.load(Ordering::Relaxed);
        let meaning = self.policy.lock().meaning(is_interrupt, is_held, Instant::now());
        match meaning {
            Meaning::Nothing => {}
            Meaning::Interrupt => {
                self.interrupts.fetch_add(1, Ordering::Relaxed);
            }
            Meaning::Stop => self.ask(),
            // After a second request, no wait is worth its time.
            Meaning::CutOff => cut_off("stopped at once; unfinished files may be left", CUT_OFF),
        }
    }

    /// Asks the work to stop.
    fn ask(&self) {
        self.policy.lock().ask(Instant::now());
        self.asked.store(true, Ordering::Relaxed);
        self.waits.ask();
    }

    /// Ends the process, unless it serves.
    fn end_by_force(&self) {
        if self.computes.load(Ordering::Relaxed) {
            cut_off("interrupted", 1);
        } else if !self.serves.load(Ordering::Relaxed) {
            cut_off("stopped on request, by force: it did not end in order; unfinished files may be left", 1);
        }
    }

    /// The rest of the time that the command has for its end; `None` if it was not asked to stop, or may take as long
    /// as it wants to. Later signals make it no longer.
    fn time_left(&self) -> Option<Duration> {
        let grace = if self.computes.load(Ordering::Relaxed) { SHORT_GRACE } else { GRACE };
        let asked_at = self.policy.lock().asked_at().filter(|_| !self.serves.load(Ordering::Relaxed))?;
        Some(grace.saturating_sub(asked_at.elapsed()))
    }
}

/// Ends the process at once. Files that are left behind are removed by a later prune.
fn cut_off(why: &str, status: i32) -> ! {
    print_above(&format!("{}: {why}", name::get()));
    std::process::exit(status);
}

/// A guard from [`Terminal::hold_interrupts`]: until it is dropped, Ctrl-C is counted and does not stop the
/// command. One press is counted once, even if several programs send it to the command.
pub struct HeldInterrupts(Arc<Stop>);

impl HeldInterrupts {
    /// Returns `true` if Ctrl-C was pressed since the last call or, at the first call, since the guard was created.
    pub fn take(&self) -> bool {
        self.0.interrupts.swap(0, Ordering::Relaxed) > 0
    }
}

impl Drop for HeldInterrupts {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Relaxed);
    }
}

impl Terminal {
    /// Catches Ctrl-C, SIGTERM and SIGHUP from now on. The first of these signals asks the command to stop and clean
    /// up; a second one ends the process at once, unless it came together with the first (`signals`). A command that
    /// has not stopped after 5 seconds (0.3 seconds if [`computes`](Self::computes) was called) is ended by force,
    /// unless [`serves`](Self::serves) was called. Progress is hidden if `quiet` or if standard error is not a
    /// terminal.
    ///
    /// # Errors
    /// An error if the signals cannot be caught or the thread that waits for them cannot be started.
    pub fn new(quiet: bool) -> Result<Self> {
        let cannot = |e| Error::new(ErrorKind::Io, "cannot catch Ctrl-C").caused_by(e);
        let stop = Arc::new(Stop::new());
        let flags = Arc::clone(&stop);
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(cannot)?;
        let entered = runtime.enter();
        let mut interrupts = signal(SignalKind::interrupt()).map_err(cannot)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(cannot)?;
        let mut hangups = signal(SignalKind::hangup()).map_err(cannot)?;
        drop(entered);
        let listen = async move {
            loop {
                let next = async {
                    tokio::select! {
                        _ = interrupts.recv() => true,
                        _ = terminations.recv() => false,
                        _ = hangups.recv() => false,
                    }
                };
                let left = flags.time_left();
                tokio::select! {
                    is_interrupt = next => flags.signalled(is_interrupt),
                    () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => flags.end_by_force(),
                }
            }
        };
        let run = move || runtime.block_on(listen);
        std::thread::Builder::new().name("signals".to_owned()).spawn(run).map_err(cannot)?;
        Ok(Self { bar: bar(quiet), stop })
    }

    /// Makes Ctrl-C count instead of stopping the command, until the returned guard is dropped; other signals
    /// still stop it.
    pub fn hold_interrupts(&self) -> HeldInterrupts {
        self.stop.held.store(true, Ordering::Relaxed);
        HeldInterrupts(Arc::clone(&self.stop))
    }

    /// Asks the command to stop, as the first signal of a user does. Returns at once, without waiting for its end.
    pub fn stop(&self) {
        self.stop.ask();
    }

    /// Marks this command as one that serves others: after a request to stop it is not ended by force, however long it
    /// takes. Also limits warnings and errors in the log.
    pub fn serves(&self) {
        crate::log::limit();
        self.stop.serves.store(true, Ordering::Relaxed);
    }

    /// Marks this command as one that only computes and leaves nothing to clean up: after a request to stop
    /// it is ended by force within a fraction of a second.
    pub fn computes(&self) {
        self.stop.computes.store(true, Ordering::Relaxed);
    }

    fn start(&self, task: &'static str, total: u64, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.reset();
        self.bar.set_length(total);
        self.bar.set_message(task);
        self.bar.enable_steady_tick(REDRAW);
    }
}

impl Progress for Terminal {
    fn begin(&self, task: &'static str, total: u64) {
        self.start(task, total, BYTES);
    }

    fn begin_items(&self, task: &'static str, total: u64) {
        self.start(task, total, ITEMS);
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.stop.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
