//! `headstart harvest status`: the host as a whole.

use super::HarvestDir;
use super::lease_line::{LeaseLine, span};
use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::report::{Fields, Outcome};
use headstart_harvestd::host::{HostStatus, UserReport};
use serde::Serialize;
use std::fmt;

pub(super) const EXAMPLES: &str = "Examples:\n  headstart harvest status\n  headstart harvest status --json";

/// The most reports that are shown to people; programs get all.
const REPORTS_SHOWN: usize = 10;

#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    harvest: HarvestDir,
}

impl Status {
    pub(super) fn run(&self) -> Result<StatusReport> {
        self.harvest.ask(async |client| {
            Ok(StatusReport { host: client.status().await?, reports: client.reports().await? })
        })
    }
}

#[derive(Serialize)]
pub(super) struct StatusReport {
    #[serde(flatten)]
    host: HostStatus,
    /// The reports to users of harvest VMs, newest last.
    reports: Vec<UserReport>,
}

impl Outcome for StatusReport {}

impl fmt::Display for StatusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostStatus { flash, pool, leases, broker, .. } = &self.host;
        let bytes = |bytes: u64| ByteSize(bytes).to_string();
        let channels = count(u64::from(flash.channels), "channel");
        let ready = pool.iter().filter(|gssd| gssd.ready);
        let spare = ready.clone().map(|gssd| gssd.capacity).sum();
        let erasing: u64 = pool.iter().filter(|gssd| gssd.erasing).map(|gssd| gssd.capacity).sum();
        let more = || format!(", {} more when they are erased", bytes(erasing));
        let being_erased = if erasing > 0 { more() } else { String::new() };
        let leased = leases.iter().map(|lease| lease.capacity).sum();
        let harvest_wear = percent(flash.harvest_erasures, flash.erasures);
        let fields = [
            (
                "flash",
                format!(
                    "{}, {} in {channels}, {} of them free",
                    flash.place,
                    bytes(flash.size),
                    flash.free_channels
                ),
            ),
            (
                "wear",
                format!(
                    "{}, {harvest_wear:.1}% of them for harvest VMs; {}",
                    count(flash.erasures, "erasure"),
                    count(flash.bad_blocks, "bad block")
                ),
            ),
            ("offered", format!("{} in {}{being_erased}", bytes(spare), count(ready.count() as u64, "gSSD"))),
            ("lent", format!("{} in {}", bytes(leased), count(leases.len() as u64, "lease"))),
            (
                "requests",
                format!(
                    "{}: {} granted, {} in part, {} refused",
                    broker.requests, broker.granted, broker.partly, broker.refused
                ),
            ),
            (
                "taken back",
                format!(
                    "{} before their time, {} moved; {}",
                    broker.early,
                    broker.migrated,
                    count(broker.evicted, "eviction")
                ),
            ),
        ];
        write!(f, "{}", Fields(&fields))?;
        if let Some(cause) = &self.host.stopped {
            write!(f, "\nnothing is made durable any more, until it is started again: {cause}")?;
        }
        if let Some(cause) = &self.host.journal.full {
            write!(f, "\nnothing is written, made or lent: {cause}")?;
        }
        if let Some(cause) = &flash.failing {
            let failed = count(flash.failed_programs, "write");
            write!(f, "\n{failed} to the flash failed, the last one too: {cause}")?;
        }
        leases.iter().try_for_each(|lease| write!(f, "\n{}: {}", lease.vssd, LeaseLine(lease)))?;
        let earlier = self.reports.len().saturating_sub(REPORTS_SHOWN);
        if earlier > 0 {
            write!(f, "\n{} before these: --json", count(earlier as u64, "report"))?;
        }
        let shown = self.reports.iter().skip(earlier);
        shown.into_iter().try_for_each(|report| {
            let UserReport { ago_s, vssd, what, text, .. } = report;
            write!(f, "\n{} ago, {vssd}, {}: {text}", span(*ago_s), what.name())
        })
    }
}

/// A part of the whole, in percent; 0 of nothing.
fn percent(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
    let (part, whole) = (part as f64, whole.max(1) as f64);
    100.0 * part / whole
}
