//! The progress bar at the bottom of the terminal, and lines that are printed above it.

use crate::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, WeakProgressBar};
use parking_lot::Mutex;
use std::io::{IsTerminal, Write};

/// The bar at the bottom of the terminal, if there is one.
static BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Creates a progress bar on standard error; it is hidden if `quiet` or if standard error is not a terminal.
/// Lines printed with [`print_above`] do not damage it.
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

/// Prints a line on standard error, made [printable](crate::printable::line), above the progress bar if there is one. A
/// failure to write is ignored.
pub fn print_above(line: &str) {
    let bar = BAR.lock().as_ref().and_then(WeakProgressBar::upgrade);
    let line = printable::line(line);
    // The line is written in one piece, so that lines of several threads do not mix. An error is ignored: there is no
    // reader to report it to.
    let print = || drop(std::io::stderr().write_all(format!("{line}\n").as_bytes()));
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}
