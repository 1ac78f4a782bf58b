//! `headstart disk ...`: the disks of an agent.

use super::clone::{self, Clone};
use super::compact::Compacted;
use super::disk_line::DiskLine;
use super::repair::RepairReport;
use super::watch::Watch;
use crate::ask::answer;
use clap::{Args, Subcommand};
use headstart_agentd::client::AgentClient;
use headstart_block::Result;
use headstart_block::words::count;
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::terminal::Terminal;
use headstart_image::progress::Progress;
use headstart_lsmt::writable::WritableDisk;
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart disk list\n  \
    headstart disk detach vm1";

#[derive(Subcommand)]
pub(crate) enum DiskCommand {
    /// List the disks that the agent of this host manages
    #[command(
        after_help = "Examples:\n  headstart disk list\n  headstart disk list --agent /run/headstart/agent.sock --json"
    )]
    List {
        #[command(flatten)]
        agent: AgentSocket,
    },
    /// Print the changes of disks from now on, line by line, until Ctrl-C; their present state comes first
    #[command(after_help = "Examples:\n  headstart disk watch\n  headstart disk watch vm1 --json\n\n\
                      With --json each line is a disk as `headstart disk list --json` prints it. The command ends \
                      with an error if no agent answers at the start; it waits for one that is restarted or \
                      upgraded.")]
    Watch {
        /// The disks [default: all]
        names: Vec<String>,
        #[command(flatten)]
        agent: AgentSocket,
    },
    /// Detach a disk: afterwards all that was written to it is durable, and its process has ended
    #[command(after_help = "Example:\n  headstart disk detach vm1\n\n\
                      Connected clients do not keep a disk from being detached: their number is printed \
                      (`report.clients` with --json). Disks of images that containers use, whose names begin with \
                      tree-, belong to the snapshotter, which detaches them.")]
    Detach {
        /// The disk
        name: String,
        /// Also if the snapshotter has the disk for containers, whose files then fail
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        agent: AgentSocket,
    },
    /// Make a second disk with the present content of a writable directory, at once and without copying it
    #[command(after_help = clone::EXAMPLES)]
    Clone(Clone),
    /// Give back the unused space of a writable directory, while the disk is not attached
    #[command(after_help = "Example:\n  headstart disk compact /var/lib/vm1\n\n\
                      The command needs neither the image nor an agent, and little space. \
                      While a disk is attached, its process \
                      collects garbage by itself. Files keep their length and have holes: copy them with tools that \
                      keep these, such as `cp --sparse=always` or `rsync --sparse`.")]
    Compact {
        /// The directory that was given with --writable
        dir: PathBuf,
    },
    /// Drop the damaged parts of the index of a writable directory, so that the disk attaches again with the rest
    #[command(after_help = "Example:\n  cp -a --sparse=always /var/lib/vm1 /var/lib/vm1.damaged\n  \
                      headstart disk repair /var/lib/vm1\n\n\
                      An attach that finds less data than was flushed is refused. A copy of `data` and `index` from \
                      the same moment is better, if there is one. Without one, the disk goes on with the writes \
                      before the damage. All later ones are lost, and the next attach drops their data; what they had \
                      replaced may read as zeros. What is cut off is kept in index.torn. Check the file system on \
                      the disk afterwards.")]
    Repair {
        /// The directory that was given with --writable
        dir: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct AgentSocket {
    /// The agent's agent.sock [default: in /run/headstart, or in headstart in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "SOCK")]
    agent: Option<PathBuf>,
}

impl AgentSocket {
    /// The agent there. It may not be there.
    ///
    /// # Errors
    /// As [`AgentClient::new`].
    pub(crate) fn client(&self) -> Result<AgentClient> {
        AgentClient::new(self.agent.as_deref())
    }

    /// `true` if the command line names its socket.
    pub(crate) fn is_named(&self) -> bool {
        self.agent.is_some()
    }

    /// The agent's answer to a request.
    ///
    /// # Errors
    /// Errors of the request; if the user wants to stop first.
    pub(crate) fn ask<T>(&self, request: impl AsyncFnOnce(&AgentClient) -> Result<T>) -> Result<T> {
        let client = self.client()?;
        answer(client.socket(), request(&client))
    }
}

impl DiskCommand {
    pub(crate) fn run(&self, terminal: &Terminal, json: bool) -> Result<Box<dyn Report>> {
        match self {
            Self::Watch { names, agent } => Watch { names, json }.run(&agent.client()?),
            Self::List { agent } => {
                let disks = agent.ask(async |agent| agent.list().await)?;
                Ok(Box::new(Listed { disks }))
            }
            Self::Clone(clone) => clone.run(),
            Self::Compact { dir } => {
                Ok(Box::new(Compacted(WritableDisk::compact(dir, &|| terminal.is_cancelled())?)))
            }
            Self::Repair { dir } => Ok(Box::new(RepairReport { repaired: WritableDisk::repair(dir)? })),
            Self::Detach { name, force, agent } => {
                Ok(Box::new(DiskReport(agent.ask(async |agent| agent.detach(name, *force).await)?)))
            }
        }
    }
}

#[derive(Serialize)]
struct Listed {
    disks: Value,
}

impl Outcome for Listed {}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disks = self.disks.as_array().map(Vec::as_slice).unwrap_or_default();
        write!(f, "{}", count(disks.len() as u64, "disk"))?;
        disks.iter().try_for_each(|disk| write!(f, "\n{}", DiskLine(disk)))
    }
}

/// One disk, as its agent sees it.
#[derive(Serialize)]
pub(crate) struct DiskReport(pub(crate) Value);

impl Outcome for DiskReport {
    fn is_line(&self) -> bool {
        true
    }
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", DiskLine(&self.0))
    }
}
