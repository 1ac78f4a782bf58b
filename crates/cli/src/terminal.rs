//! Progress bars with rate and remaining time, and the user's wish to stop.

use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    stop: Arc<AtomicBool>,
}

impl Terminal {
    /// Takes over Ctrl-C, SIGTERM and SIGHUP: from now on they ask the work to stop and clean up after
    /// itself. Shows nothing where `quiet` or where standard error is no terminal.
    pub(crate) fn new(quiet: bool) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let handler = move || {
            if flag.swap(true, Ordering::Relaxed) {
                // Asked twice: whatever it waits for is not worth waiting for. What is left behind is pruned.
                std::process::exit(130);
            }
        };
        ctrlc::set_handler(handler)
            .map_err(|e| Error::new(ErrorKind::Io, "cannot catch Ctrl-C").caused_by(e))?;
        Ok(Self { bar: bar(quiet), stop })
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
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
