//! The log: the messages that all crates write while a command works, printed as lines on standard error.
//!
//! The environment variable `HEADSTART_LOG` selects the messages: a level (`error`, `warn`, `info`, `debug`, `trace`,
//! `off`), or levels by crate (`warn,headstart_store=debug`). If it is not set or is empty, the warnings and errors of
//! this project's crates are printed, and no messages of other libraries. A level for all crates does not include the
//! lines that a library writes for each frame of a connection (`PER_FRAME`): they come if the library is named, as in
//! `debug,h2=debug`.
//!
//! A client or a failing disk can cause a thousand messages a second. So a command that serves limits its warnings and
//! errors ([`limit`]): each statement in the code that logs them may print a hundred, then one more every three
//! seconds, with the number of messages that were left out since.
//!
//! The standard error of a process that serves an agent's disk is a file, which would grow as long as the disk is
//! attached. So the length of that file is bounded; see [`bound`].
//!
//! Messages are filtered by tracing-subscriber. Its own formatter is not used, because it supports neither lines above
//! a progress bar, nor limits by statement, nor a bounded file.

use crate::bar::print_above;
use crate::{name, printable};
use headstart_block::{Error, Result, private, saturating};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// The variable that selects messages.
const VARIABLE: &str = "HEADSTART_LOG";

/// Warnings of one place in the code that a serving command prints without a limit.
const AT_ONCE: u32 = 100;

/// The time after which it prints one more.
const ONE_MORE: Duration = Duration::from_secs(3);

/// Libraries that write a message for each frame that they send or receive, or more: every other message would drown.
const PER_FRAME: [&str; 1] = ["h2"];

/// The start of the names of this project's crates.
const OURS: &str = "headstart";

/// Starts the log on standard error, with the levels that the environment variable `HEADSTART_LOG` selects
/// (by default warnings and errors of the project's crates).
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if `HEADSTART_LOG` cannot be parsed.
pub fn start() -> Result<()> {
    let chosen = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => chosen_by(&text)?,
        _ => Targets::new().with_target(OURS, LevelFilter::WARN),
    };
    let lines = tracing_subscriber::registry().with(Lines.with_filter(chosen));
    // Another subscriber is there only if the program is a part of another one, which then decides on messages.
    let _ = tracing::subscriber::set_global_default(lines);
    Ok(())
}

/// The messages that the value of [`VARIABLE`] selects.
fn chosen_by(text: &str) -> Result<Targets> {
    let chosen = text.parse::<Targets>().map_err(|e| {
        Error::invalid(format!("{VARIABLE} is not a level of logging: {e}"))
            .remedy("write warn, info, debug or trace, or levels by crate such as warn,headstart_store=debug")
    })?;
    let is_more = chosen.default_level().is_some_and(|level| level > LevelFilter::INFO);
    let is_named =
        |library: &str| chosen.iter().any(|(target, _)| target.split("::").next() == Some(library));
    let quiet: Vec<_> = PER_FRAME.into_iter().filter(|library| is_more && !is_named(library)).collect();
    Ok(chosen.with_targets(quiet.into_iter().map(|library| (library, LevelFilter::INFO))))
}

/// The file that standard error goes to, if it is bounded. The lock is held to print a line or to begin the file again.
static BOUNDED: OnceLock<Mutex<Bounded>> = OnceLock::new();

/// Bounds the length of the log file `file` from now on. Whenever `file` is longer than `max` bytes after a message,
/// its content is copied to a file of the same name with `.1` appended, which replaces the earlier copy, and `file` is
/// emptied. Standard error must be `file`, opened for appending; otherwise nothing happens. Only the first call counts.
pub fn bound(file: PathBuf, max: u64) {
    let _ = BOUNDED.set(Mutex::new(Bounded { file, max }));
}

fn print(line: &str) {
    let bounded = BOUNDED.get().map(|bounded| bounded.lock());
    print_above(line);
    if let Some(bounded) = bounded {
        // A log that cannot be begun again grows: warnings are worth more than the bound.
        let _ = bounded.begin_anew(&std::io::stderr());
    }
}

struct Bounded {
    file: PathBuf,
    max: u64,
}

impl Bounded {
    /// Begins the file again if it has become too long, and is the file that `open` appends to.
    fn begin_anew(&self, open: &impl AsFd) -> std::io::Result<()> {
        let is = File::from(open.as_fd().try_clone_to_owned()?).metadata()?;
        if is.len() <= self.max {
            return Ok(());
        }
        let file = OpenOptions::new().read(true).write(true).open(&self.file)?;
        let named = file.metadata()?;
        if (named.dev(), named.ino()) != (is.dev(), is.ino()) {
            return Ok(());
        }
        // The file is copied, and not renamed: other processes that write to it have it open, too.
        let mut earlier = self.file.clone().into_os_string();
        earlier.push(".1");
        let copy = private::options().write(true).create(true).truncate(true).open(earlier);
        std::io::copy(&mut &file, &mut copy?)?;
        file.set_len(0)
    }
}

/// The budget of each place in the code, if warnings and errors are limited.
static LIMITED: OnceLock<Mutex<HashMap<Identifier, Budget>>> = OnceLock::new();

/// Limits the warnings and errors in the log from now on, for commands that serve: each statement in the code that logs
/// a warning or an error may print 100 of them at once, and one more every 3 seconds. The others are left out; the next
/// message that the statement prints has their number.
pub fn limit() {
    LIMITED.get_or_init(Mutex::default);
}

/// Warnings that one place in the code may still print.
struct Budget {
    left: u32,
    /// The time up to which the budget was filled.
    at: Instant,
    left_out: u64,
}

impl Budget {
    fn new(at: Instant) -> Self {
        Self { left: AT_ONCE, at, left_out: 0 }
    }

    /// The number of warnings that were left out before the next one; `None` if that is left out, too.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let more = now.saturating_duration_since(self.at).as_secs() / ONE_MORE.as_secs();
        let more = saturating::<u32>(more).min(AT_ONCE);
        self.left = self.left.saturating_add(more).min(AT_ONCE);
        self.at = if self.left == AT_ONCE { now } else { self.at + ONE_MORE * more };
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The number of warnings of the same place that were left out before this event; `None` if it is left out itself.
fn budgeted(event: &Event<'_>) -> Option<u64> {
    let Some(limited) = LIMITED.get().filter(|_| *event.metadata().level() <= Level::WARN) else {
        return Some(0);
    };
    let now = Instant::now();
    let mut limited = limited.lock();
    limited.entry(event.metadata().callsite()).or_insert_with(|| Budget::new(now)).take(now)
}

/// Prints each event as a line.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(left_out) = budgeted(event) else { return };
        let mut line = Line::default();
        event.record(&mut line);
        if left_out > 0 {
            line.fact("left_out", &left_out);
        }
        print(&line.finish(*event.metadata().level()));
    }
}

/// One event in words: its message, the error, and the other facts.
#[derive(Default)]
struct Line {
    message: String,
    cause: String,
    facts: String,
}

impl Line {
    fn finish(self, level: Level) -> String {
        let level = if level == Level::WARN { "warning".to_owned() } else { level.as_str().to_lowercase() };
        let facts = if self.facts.is_empty() { String::new() } else { format!(" ({})", self.facts) };
        // Parts of it come from servers and files: they must not control the terminal.
        printable::line(&format!("{}: {level}: {}{}{facts}", name::get(), self.message, self.cause))
    }
}

impl Line {
    fn fact(&mut self, name: &str, value: &dyn Debug) {
        let comma = if self.facts.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(self.facts, "{comma}{name} {value:?}");
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        // A disk that is the only one has no name, for example.
        if value.is_empty() {
            return;
        }
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" | "why" => write!(self.cause, ": {value:?}"),
            name => {
                self.fact(name, value);
                Ok(())
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_log_gives_way_to_a_new_one_and_one_before_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let bounded = Bounded { file: dir.path().join("a.log"), max: 100 };
        let mut log = OpenOptions::new().create(true).append(true).open(&bounded.file).unwrap();
        let lengths = |name: &str| std::fs::metadata(dir.path().join(name)).map_or(0, |file| file.len());
        for line in 0..100 {
            log.write_all(format!("{line:09}\n").as_bytes()).unwrap();
            bounded.begin_anew(&log).unwrap();
            assert!(lengths("a.log") <= 100 && lengths("a.log.1") <= 110);
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("a.log")).unwrap(), "000000099\n");
        assert!(std::fs::read_to_string(dir.path().join("a.log.1")).unwrap().ends_with("000000098\n"));
        // A file other than the one of that name stays as it is.
        let mut other = tempfile::tempfile().unwrap();
        other.write_all(&[b'x'; 200]).unwrap();
        bounded.begin_anew(&other).unwrap();
        assert_eq!((other.metadata().unwrap().len(), lengths("a.log")), (200, 10));
    }

    #[test]
    fn warnings_of_one_place_are_counted_where_they_are_too_many() {
        let (start, mut budget) = (Instant::now(), Budget::new(Instant::now()));
        budget.at = start;
        // The warnings are a thousand a second, for a minute.
        let said: Vec<_> = (0..60_000)
            .filter_map(|millis| Some((millis, budget.take(start + Duration::from_millis(millis))?)))
            .collect();
        assert_eq!(said.len(), 100 + 19);
        assert!(said[..100].iter().all(|(_, left_out)| *left_out == 0));
        assert_eq!((said[100], said[101]), ((3000, 2900), (6000, 2999)));
        // At one a second nothing is left out any more, and the earlier omissions are reported.
        let mut seldom = (0..).map(|n| budget.take(start + Duration::from_secs(600 + n)));
        assert_eq!(seldom.next().unwrap(), Some(2999));
        assert!(seldom.take(100).all(|left_out| left_out == Some(0)));
    }

    #[test]
    fn lines_of_each_frame_come_only_if_they_are_asked_for() {
        let selects = |text: &str, target: &str| {
            let chosen = chosen_by(text).unwrap();
            [Level::DEBUG, Level::INFO].map(|level| chosen.would_enable(target, &level))
        };
        let frames = "h2::codec::framed_write";
        assert_eq!(selects("debug", frames), [false, true]);
        assert_eq!(selects("trace", frames), [false, true]);
        assert_eq!(selects("debug", "headstart_store"), [true, true]);
        assert_eq!(selects("debug,h2=debug", frames), [true, true]);
        assert_eq!(selects("debug,h2::codec=debug", frames), [true, true]);
        assert_eq!(selects("warn,headstart_store=debug", frames), [false, false]);
        assert!(chosen_by("a=b=c").is_err());
    }

    #[test]
    fn a_line_says_what_and_why() {
        let line = |message: &str, cause: &str, facts: &str| {
            let [message, cause, facts] = [message, cause, facts].map(str::to_owned);
            Line { message, cause, facts }.finish(Level::WARN)
        };
        assert_eq!(line("it stopped", ": no space", ""), "headstart: warning: it stopped: no space");
        assert_eq!(line("it stopped", "", "peer a, uri b"), "headstart: warning: it stopped (peer a, uri b)");
        assert_eq!(line("\u{1b}[2Jä\n", "", ""), "headstart: warning: \\u{1b}[2Jä\\n");
    }
}
