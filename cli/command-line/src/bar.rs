//! The progress bar at the bottom of the terminal, and lines that are printed above it.

use indicatif::{ProgressBar, ProgressDrawTarget, WeakProgressBar};
use parking_lot::Mutex;
use std::io::{IsTerminal, Write};

/// The bar at the bottom of the terminal, if there is one.
static BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// A bar on standard error, hidden if `quiet` or if that is no terminal. Lines that are printed with [`print_above`]
/// leave it whole.
#[must_use]
pub fn bar(quiet: bool) -> ProgressBar {
    let hidden = quiet || !std::io::stderr().is_terminal();
    let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(None, target);
    if !hidden {
        *BAR.lock() = Some(bar.downgrade());
    }
    bar
}

/// Prints a line on standard error, above the bar if there is one.
pub fn print_above(line: &str) {
    let bar = BAR.lock().as_ref().and_then(WeakProgressBar::upgrade);
    // The line is written in one piece, so that lines of several threads do not mix. An error is ignored: there is no
    // reader to report it to.
    let print = || drop(std::io::stderr().write_all(format!("{line}\n").as_bytes()));
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}
