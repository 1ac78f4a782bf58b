//! `headstart keeper`: the process that keeps the mounts of this host's disks while their processes are started again.
//! The agent starts it.

use clap::{Args, Parser};
use headstart_agentd::disks::{keeper_pid_file, keeper_socket};
use headstart_block::Result;
use headstart_daemon::pid_file::{self, holder};
use headstart_export::keeper::Keeper;
use std::convert::Infallible;
use std::path::PathBuf;

/// Arguments of `headstart keeper`.
#[derive(Args)]
pub(crate) struct KeeperArgs {
    /// Its own directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The directory of the disks' files, whose locks say which process serves a disk
    #[arg(long, value_name = "DIR")]
    disks: PathBuf,
}

/// The command line of a keeper alone: parsing that of the whole program would take more memory than all the rest.
#[derive(Parser)]
struct Alone {
    #[command(flatten)]
    keeper: KeeperArgs,
}

impl KeeperArgs {
    /// The arguments of this process if it is a keeper. `None` also for arguments that are wrong, or ask for help.
    pub(crate) fn of_this_process() -> Option<Self> {
        let mut words = std::env::args_os().skip(1).peekable();
        words.next_if(|word| word == "keeper")?;
        Alone::try_parse_from(std::iter::once("headstart keeper".into()).chain(words))
            .ok()
            .map(|alone| alone.keeper)
    }

    /// Keeps mounts until this process is ended: the signals that ask for that end it as any other program, and the
    /// kernel then closes what it kept.
    ///
    /// # Errors
    /// If another keeper has the directory; errors of the operating system.
    pub(crate) fn run(&self) -> Result<Infallible> {
        let path = keeper_pid_file(&self.dir);
        let mut lock = pid_file::lock(&path, "another keeper runs there")?;
        // It stays protected from the out-of-memory killer, as the agent is: it takes next to no memory.
        let _ = rustix::process::setsid();
        pid_file::write(&path, &mut lock)?;
        let disks = self.disks.clone();
        let serves = move |disk: &str, process| holder(&disks.join(format!("{disk}.pid"))) == process;
        Keeper::listen(&keeper_socket(&self.dir), serves)?.serve()
    }
}
