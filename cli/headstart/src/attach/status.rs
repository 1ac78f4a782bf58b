//! The live status line: the local part of the image, the hits of reads, the incoming bytes.

use headstart_block::words::count;
use headstart_block::{ByteRate, ByteSize, saturating};
use headstart_command_line::terminal;
use headstart_diskd::{DiskSession, Totals, preloads};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The interval of changes to the line: short enough to follow, long enough to read.
const EVERY: Duration = Duration::from_millis(500);

/// The line, at the bottom of the terminal.
pub(super) struct StatusLine {
    bar: ProgressBar,
    shown: Instant,
    bytes: u64,
}

impl StatusLine {
    /// A status line, which shows nothing if `quiet` or if standard error is no terminal.
    pub(super) fn new(quiet: bool) -> Self {
        let bar = terminal::bar(quiet);
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self { bar, shown: Instant::now(), bytes: 0 }
    }

    /// Updates the line if an update is due.
    pub(super) fn refresh(&mut self, session: &DiskSession) {
        let passed = self.shown.elapsed();
        if self.bar.is_hidden() || passed < EVERY {
            return;
        }
        let totals = Totals::of(session);
        let nanos = saturating::<u64>(passed.as_nanos()).max(1);
        let came = u128::from(totals.fetched.saturating_sub(self.bytes)) * 1_000_000_000 / u128::from(nanos);
        let rate = ByteRate(saturating(came));
        (self.shown, self.bytes) = (Instant::now(), totals.fetched);
        let mut line =
            format!("{}, {:.1}% hits", count(totals.hits + totals.misses, "read"), totals.hit_rate());
        if totals.all > 0 {
            line = format!(
                "{:.1}% local | {line} | {} misses, {} waiting | {rate}",
                totals.local_part(),
                totals.misses,
                totals.waiting
            );
        }
        if let Some(space) = written(session) {
            line += &format!(" | {space}");
        }
        if let Some(preloads) = preloads::in_short(session) {
            line += &format!(" | {preloads}");
        }
        if let Some(eta) = fill_eta(session) {
            line +=
                &format!(" | filled in {}", humantime::format_duration(Duration::from_secs(eta.as_secs())));
        }
        self.bar.set_message(line);
        self.bar.tick();
    }

    /// Removes the line.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The space that writable layers take, in short; `None` without one.
fn written(session: &DiskSession) -> Option<String> {
    let mut spaces = session.disks.iter().filter_map(|disk| Some(disk.disk.writable()?.space())).peekable();
    spaces.peek()?;
    let (mut live, mut garbage, mut waiting) = (0, 0, 0);
    for space in spaces {
        live += space.live_bytes;
        garbage += space.garbage_bytes;
        waiting += space.waiting_writes;
    }
    let throttled = if waiting > 0 { ", writes wait until it is collected" } else { "" };
    Some(format!("{} written, {} garbage{throttled}", ByteSize(live), ByteSize(garbage)))
}

/// The time until the last of the disks that are being filled is complete.
fn fill_eta(session: &DiskSession) -> Option<Duration> {
    session.disks.iter().filter_map(|disk| disk.disk.puller()?.progress().eta).max()
}
