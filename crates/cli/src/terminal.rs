//! Progress bars with rate and remaining time, and the user's wish to stop.

use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Often enough to look alive, seldom enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(100);

/// How a bar looks that counts bytes.
const BYTES: &str =
    "{msg:20} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left";

/// How one looks that counts something else.
const ITEMS: &str = "{msg:20} [{bar:30}] {human_pos}/{human_len}, {eta} left";

/// The bar at the bottom of the terminal, if there is one.
static BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// A bar on standard error, hidden where `quiet` or where that is no terminal. Lines printed with [`print_above`]
/// leave it whole.
pub(crate) fn bar(quiet: bool) -> ProgressBar {
    let hidden = quiet || !std::io::stderr().is_terminal();
    let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(None, target);
    if !hidden {
        *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.downgrade());
    }
    bar
}

/// Prints a line on standard error, above the bar if there is one.
pub(crate) fn print_above(line: &str) {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(WeakProgressBar::upgrade);
    // In one piece, so that lines of several threads do not mix. Where nobody can read it, nobody misses it.
    let print = || drop(std::io::stderr().write_all(format!("{line}\n").as_bytes()));
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// The user at the terminal: sees progress, may press Ctrl-C.
pub(crate) struct Terminal {
    bar: ProgressBar,
    stop: Arc<Stop>,
}

/// What signals asked for.
#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    /// Ctrl-C does not ask to stop: whoever set this looks at `interrupts`.
    held: AtomicBool,
    interrupts: AtomicU32,
}

impl Stop {
    fn signalled(&self, is_interrupt: bool) {
        if is_interrupt && self.held.load(Ordering::Relaxed) {
            self.interrupts.fetch_add(1, Ordering::Relaxed);
        } else if self.asked.swap(true, Ordering::Relaxed) {
            // Asked twice: whatever it waits for is not worth waiting for. What is left behind is pruned.
            std::process::exit(130);
        }
    }
}

/// While this lives, Ctrl-C is counted, and does nothing else.
pub(crate) struct HeldInterrupts(Arc<Stop>);

impl HeldInterrupts {
    /// `true` if Ctrl-C was pressed since the last call.
    pub(crate) fn take(&self) -> bool {
        self.0.interrupts.swap(0, Ordering::Relaxed) > 0
    }
}

impl Drop for HeldInterrupts {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Relaxed);
    }
}

impl Terminal {
    /// Takes over Ctrl-C, SIGTERM and SIGHUP: from now on they ask the work to stop and clean up after
    /// itself. Shows nothing where `quiet` or where standard error is no terminal.
    pub(crate) fn new(quiet: bool) -> Result<Self> {
        let cannot = |e| Error::new(ErrorKind::Io, "cannot catch Ctrl-C").caused_by(e);
        let stop = Arc::<Stop>::default();
        let flags = Arc::clone(&stop);
        let runtime = Builder::new_current_thread().enable_io().build().map_err(cannot)?;
        let entered = runtime.enter();
        let mut interrupts = signal(SignalKind::interrupt()).map_err(cannot)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(cannot)?;
        let mut hangups = signal(SignalKind::hangup()).map_err(cannot)?;
        drop(entered);
        let listen = async move {
            loop {
                let is_interrupt = tokio::select! {
                    _ = interrupts.recv() => true,
                    _ = terminations.recv() => false,
                    _ = hangups.recv() => false,
                };
                flags.signalled(is_interrupt);
            }
        };
        let run = move || runtime.block_on(listen);
        std::thread::Builder::new().name("signals".to_owned()).spawn(run).map_err(cannot)?;
        Ok(Self { bar: bar(quiet), stop })
    }

    /// From now on Ctrl-C is counted instead of asking the work to stop; other signals still do.
    pub(crate) fn hold_interrupts(&self) -> HeldInterrupts {
        self.stop.held.store(true, Ordering::Relaxed);
        HeldInterrupts(Arc::clone(&self.stop))
    }

    /// Asks the work to stop, as a signal does.
    pub(crate) fn stop(&self) {
        self.stop.asked.store(true, Ordering::Relaxed);
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
