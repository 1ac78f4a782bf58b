//! The use of preloading, in figures: for the status line, the report at the end, and metrics.

use crate::disk::NamedDisk;
use crate::session::DiskSession;
use headstart_block::ByteSize;
use headstart_block::words::count;
use headstart_disk::stats::SlowCause;
use headstart_preload::Preloaded;
use headstart_telemetry::histogram::{BUCKETS, LatencyDistribution};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The effect of preloading on one disk, for reports.
#[derive(Serialize)]
pub struct DiskPreload {
    /// The name of the disk's export.
    disk: String,
    /// The source of the plan; null without one.
    plan: Option<&'static str>,
    /// The data that the plan was made from.
    from: String,
    /// Bytes of the disk that were preloaded as planned, and those of them that were read.
    preloaded_bytes: u64,
    used_bytes: u64,
    /// The part of the preloaded bytes that was read, from 0 to 1; null if nothing was preloaded.
    accuracy: Option<f64>,
    /// Requested bytes, as stored, for plans and for the rest of blocks.
    fetched_bytes: u64,
    /// The numbers of changes to another plan, for another group of boots and for another bandwidth.
    group_switches: u32,
    bandwidth_switches: u32,
    /// The cause why preloading was stopped; null if it was not.
    stopped: Option<String>,
    /// Places of plans that could not be used.
    failures: u64,
}

impl DiskPreload {
    /// The figures of a disk; `None` for one in a local directory.
    fn of(disk: &NamedDisk) -> Option<Self> {
        let Preloaded { origin, why, report, failures } = disk.disk.preloader()?.preloaded();
        Some(Self {
            disk: disk.name.clone(),
            plan: origin.map(headstart_preload::Origin::name),
            from: why,
            preloaded_bytes: report.preloaded,
            used_bytes: report.used,
            accuracy: share(report.used, report.preloaded),
            fetched_bytes: disk.disk.puller().map_or(0, |puller| puller.counters().preload_bytes),
            group_switches: report.switches.groups,
            bandwidth_switches: report.switches.bins,
            stopped: report.stopped.map(|stopped| stopped.to_string()),
            failures,
        })
    }
}

impl fmt::Display for DiskPreload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(plan), Some(accuracy)) = (self.plan, self.accuracy) else {
            return write!(f, "nothing was preloaded by a plan");
        };
        let (preloaded, used) = (ByteSize(self.preloaded_bytes), ByteSize(self.used_bytes));
        write!(f, "preloaded {preloaded}, of which {used} were read ({:.0}%)", accuracy * 100.0)?;
        if self.from.is_empty() {
            write!(f, ", as was said")?;
        } else {
            write!(f, ", as planned from {} ({plan})", self.from)?;
        }
        let switches = u64::from(self.group_switches) + u64::from(self.bandwidth_switches);
        if switches > 0 {
            write!(f, "; switched plans {}", count(switches, "time"))?;
        }
        match &self.stopped {
            Some(stopped) => write!(f, "; stopped: {stopped}"),
            None => Ok(()),
        }
    }
}

/// Returns `part` divided by `all`; `None` if `all` is 0.
#[expect(clippy::cast_precision_loss, reason = "a share")]
#[must_use]
pub fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// The numbers of reads slower than a second in a session, by the cause as in [`headstart_disk::stats::SlowCause`].
#[derive(Clone, Copy, Default, Serialize)]
pub struct SlowReads {
    unforeseen: u64,
    late: u64,
    store: u64,
    other: u64,
}

impl SlowReads {
    fn of(session: &DiskSession) -> Self {
        let sum = |cause| session.disks.iter().map(|disk| disk.disk.stats().slow_by(cause)).sum();
        Self {
            unforeseen: sum(SlowCause::Unforeseen),
            late: sum(SlowCause::Late),
            store: sum(SlowCause::Store),
            other: sum(SlowCause::Other),
        }
    }
}

impl fmt::Display for SlowReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.unforeseen + self.late + self.store + self.other;
        write!(f, "{} took longer than a second: ", count(all, "read"))?;
        let causes = [
            (self.unforeseen, "not foreseen by a plan"),
            (self.late, "planned but late"),
            (self.store, "while the store failed"),
            (self.other, "for other reasons"),
        ];
        let said = causes.iter().filter(|(number, _)| *number > 0);
        let said: Vec<_> = said.map(|(number, cause)| format!("{number} {cause}")).collect();
        f.write_str(&said.join(", "))
    }
}

/// The number of a session's reads that waited for bytes from a store or another host, and their durations in
/// seconds: the sum, the median and the 99th percentile. Both percentiles may be too high, by at most a
/// factor of two.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Waits {
    reads: u64,
    total_s: f64,
    p50_s: f64,
    p99_s: f64,
}

impl Waits {
    fn of(session: &DiskSession) -> Self {
        let mut all = LatencyDistribution { counts: [0; BUCKETS], sum: Duration::ZERO };
        for disk in &session.disks {
            let misses = disk.disk.stats().misses.snapshot();
            all.counts.iter_mut().zip(misses.counts).for_each(|(sum, count)| *sum += count);
            all.sum += misses.sum;
        }
        Self {
            reads: all.count(),
            total_s: all.sum.as_secs_f64(),
            p50_s: all.quantile(0.5).as_secs_f64(),
            p99_s: all.quantile(0.99).as_secs_f64(),
        }
    }
}

/// The figures on preloading of a session: waits, slow reads, and the effect on each disk.
#[derive(Serialize)]
pub struct Preloads {
    waits: Waits,
    slow_reads: SlowReads,
    preloads: Vec<DiskPreload>,
}

impl Preloads {
    /// Returns the figures of `session` so far.
    #[must_use]
    pub fn of(session: &DiskSession) -> Self {
        Self {
            waits: Waits::of(session),
            slow_reads: SlowReads::of(session),
            preloads: session.disks.iter().filter_map(DiskPreload::of).collect(),
        }
    }
}

impl fmt::Display for Preloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.waits.reads > 0 {
            let Waits { reads, total_s, .. } = self.waits;
            write!(f, "\n{} waited {total_s:.1} s in all", count(reads, "read"))?;
        }
        let SlowReads { unforeseen, late, store, other } = self.slow_reads;
        if unforeseen + late + store + other > 0 {
            write!(f, "; {}", self.slow_reads)?;
        }
        let several = self.preloads.len() > 1;
        for preload in self.preloads.iter().filter(|preload| preload.preloaded_bytes > 0) {
            let name = if several { format!("{}: ", preload.disk) } else { String::new() };
            write!(f, "\n{name}{preload}")?;
        }
        Ok(())
    }
}

/// Returns the part of the status line that is about the preloading of `session`; `None` until a plan has preloaded
/// anything.
#[must_use]
pub fn in_short(session: &DiskSession) -> Option<String> {
    let preloaders = session.disks.iter().filter_map(|disk| disk.disk.preloader());
    let (mut preloaded, mut used, mut stopped) = (0_u64, 0_u64, false);
    for preloader in preloaders {
        let report = preloader.preloaded().report;
        preloaded += report.preloaded;
        used += report.used;
        stopped |= report.stopped.is_some();
    }
    let accuracy = share(used, preloaded)?;
    let stopped = if stopped { ", stopped" } else { "" };
    Some(format!("{} preloaded, {:.0}% of it read{stopped}", ByteSize(preloaded), accuracy * 100.0))
}
