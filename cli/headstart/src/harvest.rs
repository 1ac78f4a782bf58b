//! `headstart harvest ...`: spare flash for evictable VMs.
//!
//! | module | content |
//! |---|---|
//! | [`serve`] | the daemon, in the foreground |
//! | [`vssd`] | `headstart harvest vssd ...`: disks made of flash |
//! | [`lease_line`] | a lease in words |
//! | [`lease`] | `offer`, `request` and `release`: flash that is lent |
//! | [`export`] | the process that serves one vSSD by vhost-user or as a file |
//! | [`rescue`] | `check` and `rescue`: a directory whose daemon does not start |
//! | [`status`] | `status`: the host as a whole |

mod export;
mod lease;
mod lease_line;
mod rescue;
mod serve;
mod status;
mod vssd;

use crate::ask::answer;
use clap::{Args, Subcommand};
use headstart_block::Result;
use headstart_command_line::report::Report;
use headstart_command_line::terminal::Terminal;
use headstart_harvestd::client::{HarvestClient, default_dir};
use std::path::PathBuf;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart harvest serve --size 200G\n  \
    headstart harvest vssd create db --channels 4\n  \
    headstart harvest status";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the daemon, in the foreground: it keeps flash in a file or on a device, and serves each vSSD as a disk
    #[command(after_help = serve::EXAMPLES)]
    Serve(Box<serve::Serve>),
    /// Disks made of the host's flash: make, list, resize, delete
    #[command(subcommand, after_help = vssd::EXAMPLES)]
    Vssd(vssd::Command),
    /// Offer space of a vSSD for lending, in place of a forecast
    #[command(after_help = lease::OFFER_EXAMPLES)]
    Offer(lease::Offer),
    /// Ask for spare flash for a harvest vSSD
    #[command(after_help = lease::REQUEST_EXAMPLES)]
    Request(lease::Request),
    /// Give spare flash back before its time is over
    #[command(after_help = lease::RELEASE_EXAMPLES)]
    Release(lease::Release),
    /// Find out why the daemon of a directory does not start
    #[command(after_help = rescue::CHECK_EXAMPLES)]
    Check(rescue::Check),
    /// Repair a damaged directory, or give it up
    #[command(after_help = rescue::RESCUE_EXAMPLES)]
    Rescue(rescue::Rescue),
    /// Serve one vSSD by vhost-user or as a file: `serve` starts this
    #[command(hide = true)]
    Export(export::Export),
    /// Print the state of the host: flash, spare flash, leases and their borrowers, evictions and their causes
    #[command(after_help = status::EXAMPLES)]
    Status(status::Status),
}

/// The daemon that is asked.
#[derive(Args)]
pub(crate) struct HarvestDir {
    /// The directory of `headstart harvest serve` [default: harvest in /var/lib/headstart, or in
    /// ~/.local/state/headstart]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl HarvestDir {
    /// The daemon's answer to a request.
    ///
    /// # Errors
    /// Errors of the request; if the user wants to stop first.
    fn ask<T>(&self, request: impl AsyncFnOnce(&HarvestClient) -> Result<T>) -> Result<T> {
        let client = HarvestClient::new(&self.dir.clone().unwrap_or_else(default_dir))?;
        answer(client.socket(), request(&client))
    }
}

impl Command {
    pub(crate) fn run(&self, terminal: &Terminal, json: bool) -> Result<Box<dyn Report>> {
        match self {
            Self::Serve(command) => command.run(terminal, json),
            Self::Vssd(command) => command.run(),
            Self::Offer(command) => Ok(Box::new(command.run()?)),
            Self::Request(command) => Ok(Box::new(command.run()?)),
            Self::Release(command) => Ok(Box::new(command.run()?)),
            Self::Export(command) => Ok(Box::new(command.run(terminal)?)),
            Self::Check(command) => Ok(Box::new(command.run()?)),
            Self::Rescue(command) => Ok(Box::new(command.run()?)),
            Self::Status(command) => Ok(Box::new(command.run()?)),
        }
    }
}
