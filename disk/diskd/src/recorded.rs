//! The report of recordings: the boots that left a trace, and the reasons why others left none.

use crate::session::DiskSession;
use headstart_block::words::count;
use headstart_trace::{Recorder, SavedBoots};
use serde::Serialize;
use std::fmt;

/// The report on a session's recorded boots: how many of them left a trace, and the reasons why others left none.
#[derive(Serialize)]
pub struct RecordedBoots {
    /// The directory of the traces.
    directory: String,
    /// Requests of boots.
    requests: u64,
    /// Those of them that are in the traces that were written.
    saved_requests: u64,
    /// Requests that came when a recorder was full.
    dropped: u64,
    /// Traces that were removed because the directory was over its limits.
    evicted_files: u64,
    /// Traces that could not be saved.
    failed_saves: u64,
    /// Boots that began.
    boots: u64,
    /// Those of them that have a trace.
    traces: u64,
    /// Boots without a trace, and disks that were not read.
    without_trace: Vec<WithoutTrace>,
}

/// Boots that left no trace, for one reason.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct WithoutTrace {
    /// The number of boots.
    boots: u64,
    /// The cause.
    why: &'static str,
}

/// The reasons, with the numbers of boots; without boots, the reason that nothing was read.
fn without_trace(boots: u64, dropped: u64, saved: &SavedBoots) -> Vec<WithoutTrace> {
    if boots == 0 {
        return vec![WithoutTrace { boots: 0, why: "nothing was read" }];
    }
    let others = boots.saturating_sub(saved.traces + saved.looks + saved.beyond);
    let why = if saved.failures > 0 {
        "the directory took no trace"
    } else if dropped > 0 {
        "the recorder was full"
    } else {
        "no read was answered"
    };
    let looks = WithoutTrace { boots: saved.looks, why: "little was read before the next boot" };
    let beyond = WithoutTrace { boots: saved.beyond, why: "more boots in an hour than leave traces" };
    [looks, beyond, WithoutTrace { boots: others, why }]
        .into_iter()
        .filter(|reason| reason.boots > 0)
        .collect()
}

impl RecordedBoots {
    /// Returns the report of `session` so far; `None` if boots are not recorded.
    #[must_use]
    pub fn of(session: &DiskSession) -> Option<Self> {
        let traces = session.traces.as_ref()?;
        let sum = |number: fn(&Recorder) -> u64| -> u64 {
            session.disks.iter().filter_map(|disk| disk.recorder.as_deref().map(number)).sum()
        };
        let saved = traces.saved();
        let (boots, dropped) = (sum(Recorder::boots), sum(Recorder::dropped));
        Some(Self {
            directory: traces.directory(),
            requests: sum(Recorder::recorded).saturating_sub(saved.requests_of_looks + saved.requests_beyond),
            saved_requests: saved.requests,
            dropped,
            evicted_files: traces.evicted(),
            failed_saves: saved.failures,
            boots,
            traces: saved.traces,
            without_trace: without_trace(boots, dropped, &saved),
        })
    }
}

impl fmt::Display for RecordedBoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, directory) = (count(self.requests, "request"), &self.directory);
        match self.saved_requests {
            0 if self.requests == 0 => write!(f, "recorded nothing")?,
            0 => write!(f, "{requests} recorded, but none could be written into {directory}")?,
            saved if saved < self.requests => {
                write!(f, "{requests} recorded, but only {saved} could be written into {directory}")?;
            }
            _ if self.traces > 1 => {
                write!(f, "recorded {requests} of {} into {directory}", count(self.traces, "boot"))?;
            }
            _ => write!(f, "recorded {requests} into {directory}")?,
        }
        if self.dropped > 0 {
            write!(f, "; {} later ones did not fit", self.dropped)?;
        }
        if self.failed_saves > 0 {
            write!(f, "; {} did not succeed", count(self.failed_saves, "save"))?;
        }
        for WithoutTrace { boots, why } in &self.without_trace {
            match boots {
                0 => write!(f, ": {why}")?,
                _ => write!(f, "; {} left no trace: {why}", count(*boots, "boot"))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_boot_without_a_trace_has_a_reason() {
        let saved = SavedBoots { boots: 5, traces: 2, looks: 2, ..SavedBoots::default() };
        let reasons = |boots, dropped, saved: &SavedBoots| -> Vec<_> {
            without_trace(boots, dropped, saved).iter().map(|reason| (reason.boots, reason.why)).collect()
        };
        let look = (2, "little was read before the next boot");
        assert_eq!(reasons(0, 0, &SavedBoots::default()), [(0, "nothing was read")]);
        assert_eq!(reasons(4, 0, &saved), [look]);
        assert_eq!(reasons(5, 0, &saved), [look, (1, "no read was answered")]);
        assert_eq!(reasons(7, 9, &saved), [look, (3, "the recorder was full")]);
        let wild = SavedBoots { boots: 9, traces: 6, beyond: 2, ..SavedBoots::default() };
        let beyond = (2, "more boots in an hour than leave traces");
        assert_eq!(reasons(9, 0, &wild), [beyond, (1, "no read was answered")]);
        let failed = SavedBoots { failures: 1, traces: 0, looks: 0, ..saved };
        assert_eq!(reasons(1, 0, &failed), [(1, "the directory took no trace")]);
    }
}
