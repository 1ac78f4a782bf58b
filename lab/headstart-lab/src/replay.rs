//! `headstart-lab replay`: a recorded boot's reads against any NBD server, so that servers are measured on the same
//! work without a guest's noise.
//!
//! | module | content |
//! |---|---|
//! | [`arguments`] | the arguments |
//! | [`player`] | sending reads when they are due, measuring their waits |
//! | [`report`] | the figures |
//! | [`picture`] | waits over time and their distribution |

mod arguments;
mod picture;
mod player;
mod report;

pub(crate) use arguments::{EXAMPLES, Replay};

use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::report::Report;
use headstart_command_line::terminal::Terminal;
use headstart_export::nbd::client::{Client, ClientSettings};
use headstart_image::progress::Progress;
use headstart_replay::{Boot, Nanos};
use headstart_trace::DataSet;
use headstart_trace::data_set::DataSetLimits;
use player::Played;
use report::{Figures, ReplayReport};

impl Replay {
    pub(crate) fn run(&self, terminal: &Terminal) -> Result<Box<dyn Report>> {
        let plot = self.plot()?;
        let boot = self.boot()?;
        let settings = ClientSettings {
            connect: ClientSettings::default().connect.min(self.timeout),
            answer: self.timeout,
        };
        let mut client = Client::connect(&self.uri, &settings)?;
        let reads_max = self.reads.unwrap_or(usize::MAX);
        let sent = &boot.reads()[..boot.reads().len().min(reads_max)];
        let end = sent.iter().map(|read| read.range.end()).max().unwrap_or(0);
        if end > client.size() {
            return Err(Error::invalid(format!(
                "has {} bytes, and the trace reads up to byte {end}",
                client.size()
            ))
            .about(&self.uri)
            .remedy("serve the disk that the trace was recorded of"));
        }
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        terminal.begin_items("replaying", sent.len() as u64);
        let mut played = player::play(&boot, self.clock.clock(), reads_max, &mut client, terminal);
        if let Some(error) = played.broken.take_if(|_| played.done.is_empty()) {
            return Err(error);
        }
        if played.broken.is_none() {
            client.disconnect();
        }
        let mut report = self.report(&boot, sent.len(), &played);
        if let Some((path, format, file)) = plot {
            picture::save(file, format, &report, &played)?;
            report.plots.push(path.display().to_string());
        }
        Ok(Box::new(report))
    }

    /// The boot to replay.
    fn boot(&self) -> Result<Boot> {
        let about = |e: Error| e.about(self.trace.display());
        let set = DataSet::open(&self.trace, &DataSetLimits::default())?;
        if set.len() != 1 {
            return Err(about(Error::invalid(format!(
                "has {} traces, and one is replayed at a time",
                set.len()
            )))
            .remedy("name the file of one trace"));
        }
        let (trace, _) = set.read(0)?;
        let boot = Boot::faster(&trace, self.faster);
        if boot.reads().is_empty() {
            return Err(about(Error::new(ErrorKind::NotFound, "has no reads to replay")));
        }
        Ok(match self.grace {
            Some(grace) => boot.with_grace(Nanos::from_duration(grace)),
            None => boot,
        })
    }

    fn report(&self, boot: &Boot, sent: usize, played: &Played) -> ReplayReport {
        let figures = Figures::of(played, Nanos::from_duration(self.hit));
        let reads = played.done.len() as u64;
        let answer =
            |number: u32| format!("the server answers a read with error {number}{}", meaning(number));
        let first_error = played.broken.as_ref().map(ToString::to_string);
        #[expect(clippy::cast_precision_loss, reason = "a share of reads")]
        let hit_rate = figures.hits as f64 / reads.max(1) as f64;
        ReplayReport {
            trace: self.trace.display().to_string(),
            uri: self.uri.to_string(),
            clock: self.clock,
            faster: self.faster,
            grace: boot.reads().first().map_or(0.0, |read| read.at.as_secs()),
            reads,
            reads_of_trace: sent as u64,
            skipped_written: played.skipped,
            writes: boot.writes().len() as u64,
            errors: played.errors,
            first_error: first_error.or(played.first_error.map(answer)),
            interrupted: played.interrupted,
            bytes: played.bytes,
            wait: figures.wait,
            hit_bound: self.hit.as_secs_f64(),
            hits: figures.hits,
            hit_rate,
            slow: figures.slow,
            first_read: figures.first_read,
            last_read: figures.last_read,
            late: figures.late,
            histogram: figures.histogram,
            plots: Vec::new(),
        }
    }
}

/// The meaning of an error of the protocol.
fn meaning(number: u32) -> &'static str {
    match number {
        1 => " (not permitted)",
        5 => " (input/output error)",
        12 => " (out of memory)",
        22 => " (invalid request)",
        28 => " (no space)",
        95 => " (not supported)",
        108 => " (the server shuts down)",
        _ => "",
    }
}
