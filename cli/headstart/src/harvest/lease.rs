//! `headstart harvest offer`, `request` and `release`: flash that is lent.

use super::HarvestDir;
use super::lease_line::LeaseLine;
use super::vssd::VssdReport;
use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::number::at_least;
use headstart_command_line::report::Outcome;
use headstart_harvestd::NewOffer;
use headstart_harvestd::host::{HarvestRequest, LeaseStatus};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

pub(super) const REQUEST_EXAMPLES: &str = "Examples:\n  \
    headstart harvest request batch --capacity 4G --for 2h\n  \
    headstart harvest request batch --capacity 64G --bandwidth 4 --partial --json\n\n\
    The disk is larger when the command ends. Borrowed flash may be taken back before its time, if its owner needs \
    it: its data moves to other spare flash if there is any; otherwise the data is lost, reads of it fail, and \
    `headstart harvest status` gives the reason.";

pub(super) const OFFER_EXAMPLES: &str = "Examples:\n  \
    headstart harvest offer db --capacity 4G --bandwidth 2 --for 12h\n  \
    headstart harvest offer db --capacity 0\n\n\
    An offer acts like a forecast: the space can be requested as soon as it is erased. Space that is not on lease \
    when the next forecast, within three minutes, differs goes back to the vSSD; a lease stays until the vSSD needs \
    its flash.";

pub(super) const RELEASE_EXAMPLES: &str = "Examples:\n  \
    headstart harvest release batch\n  \
    headstart harvest release batch --lease 7\n\n\
    One lease: its data moves to the vSSD's other flash, and if it does not fit, the lease is kept and `headstart \
    harvest status` says so. All leases: their data is lost, and the vSSD has only its own flash.";

#[derive(Args)]
pub(crate) struct Offer {
    /// The vSSD: a regular one, or an unsold one
    name: String,
    /// Most bytes to offer: they are offered in quarters of a channel, or 16 GiB if those are less
    #[arg(long, value_name = "SIZE")]
    capacity: ByteSize,
    /// Most channels to offer space on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least::<u16>(1))]
    bandwidth: u16,
    /// The time for which it is offered, such as 2h: a request for longer is not answered from it
    #[arg(long = "for", value_name = "TIME", default_value = "12h", value_parser = humantime::parse_duration)]
    duration: Duration,
    #[command(flatten)]
    harvest: HarvestDir,
}

impl Offer {
    pub(super) fn run(&self) -> Result<Offered> {
        let offer = NewOffer {
            capacity: self.capacity.0,
            bandwidth: self.bandwidth,
            duration_s: self.duration.as_secs(),
        };
        let vssd = self.harvest.ask(async |client| client.offer(&self.name, offer).await)?;
        Ok(Offered { asked: self.capacity.0, vssd: VssdReport(vssd) })
    }
}

/// A vSSD of which space is offered.
#[derive(Serialize)]
pub(super) struct Offered {
    /// Bytes that were to be offered.
    asked: u64,
    #[serde(flatten)]
    vssd: VssdReport,
}

impl Outcome for Offered {}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = &self.vssd.0.status;
        write!(f, "{}", self.vssd)?;
        if status.lent >= self.asked {
            return Ok(());
        }
        let (taken, asked) = (ByteSize(status.lent), ByteSize(self.asked));
        let why = if status.lent < self.asked / 4 * 3 {
            "it has no more to spare, or not before that is erased"
        } else {
            "it is offered in whole steps"
        };
        write!(f, "\nonly {taken} of the {asked} are offered or lent: {why}")
    }
}

#[derive(Args)]
pub(crate) struct Request {
    /// The harvest vSSD
    name: String,
    /// Fewest bytes to borrow: gSSDs are lent whole
    #[arg(long, value_name = "SIZE")]
    capacity: ByteSize,
    /// Fewest channels to borrow: more are faster
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least::<u16>(1))]
    bandwidth: u16,
    /// The time for which to borrow, such as 30m or 2h
    #[arg(long = "for", value_name = "TIME", default_value = "30m", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Accept less if there is not that much
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    harvest: HarvestDir,
}

impl Request {
    pub(super) fn run(&self) -> Result<Leased> {
        let request = HarvestRequest {
            capacity: self.capacity.0,
            bandwidth: self.bandwidth,
            duration: self.duration,
            partial: self.partial,
        };
        let asked = self.capacity.0;
        let leases = self.harvest.ask(async |client| client.request(&self.name, &request).await)?;
        Ok(Leased { asked, leases })
    }
}

#[derive(Args)]
pub(crate) struct Release {
    /// The harvest vSSD
    name: String,
    /// The lease, by its number [default: all]
    #[arg(long, value_name = "N")]
    lease: Option<u64>,
    #[command(flatten)]
    harvest: HarvestDir,
}

impl Release {
    pub(super) fn run(&self) -> Result<VssdReport> {
        self.harvest.ask(async |client| client.release(&self.name, self.lease).await).map(VssdReport)
    }
}

/// The leases that were given.
#[derive(Serialize)]
pub(super) struct Leased {
    /// Bytes that were requested.
    asked: u64,
    leases: Vec<LeaseStatus>,
}

impl Outcome for Leased {}

impl fmt::Display for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", count(self.leases.len() as u64, "lease"))?;
        let given = self.leases.iter().fold(0, |sum: u64, lease| sum.saturating_add(lease.capacity));
        if given < self.asked {
            write!(f, ", with {} of the {} that were asked for", ByteSize(given), ByteSize(self.asked))?;
        }
        self.leases.iter().try_for_each(|lease| write!(f, "\n{}", LeaseLine(lease)))
    }
}
