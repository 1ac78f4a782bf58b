//! The `headstart` command line: it parses arguments, has the other crates do the work, and prints a report.
//!
//! | module | content |
//! |---|---|
//! | [`agent`] | `headstart agent`: the daemon of a host; `headstart disk ...`: its disks |
//! | [`attach`] | `headstart attach`: images become disks |
//! | [`container`] | `headstart container pull`: an image for containers of this host's containerd |
//! | [`daemon`] | the common parts of `agent`, `snapshotter` and `harvest serve` |
//! | [`snapshotter`] | `headstart snapshotter`: containerd's images without pulling |
//! | [`swarm`] | `headstart swarm ...`: hosts that help each other |
//! | [`cache`] | `headstart cache ...`: the cached parts of images on this host |
//! | [`doctor`] | `headstart doctor`: the features that work on this host |
//! | [`harvest`] | `headstart harvest ...`: spare flash for evictable VMs |
//! | [`image`] | `headstart image ...`: one file for each command |
//! | [`keeper`] | `headstart keeper`: the process that keeps mounts |
//! | [`layer`] | `headstart layer ...`: single layer files |
//! | [`lease`] | `headstart lease ...`: the disks that keep images |
//! | [`moved`] | commands that are `headstart-lab`'s now |
//! | [`overlaybd_commit`] | OverlayBD's program of that name, for `BuildKit` |
//! | [`plan`] | `headstart plan ...`: learned plans |
//! | [`trace`] | `headstart trace ...`: recorded I/O |
//! | [`train`] | `headstart train`: from recorded boots to plans |
//! | [`zfile`] | `headstart zfile ...`: single compressed files |
//! | [`ask`] | the answers of daemons of this host |

#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links, reason = "the table at the head is for readers of the code")]

mod agent;
mod ask;
mod attach;
mod cache;
mod container;
mod daemon;
mod doctor;
mod harvest;
mod image;
mod keeper;
mod layer;
mod lease;
mod moved;
mod overlaybd_commit;
mod plan;
mod snapshotter;
mod socket_args;
mod swarm;
mod trace;
mod train;
mod zfile;

use self::overlaybd_commit::OverlaybdCommit;
use clap::{Args, CommandFactory, Parser, Subcommand};
use headstart_block::Result;
use headstart_command_line::number::number;
use headstart_command_line::program::{self, EXIT_STATUS, Global};
use headstart_command_line::report::Report;
use headstart_command_line::terminal::Terminal;
use std::process::ExitCode;

/// The examples of the program's help.
const EXAMPLES: &str = "Examples:\n  \
    headstart image import debian.qcow2 file:///srv/images:debian\n  \
    headstart attach file:///srv/images:debian --writable /srv/vm1";

/// A head start for every virtual disk: layered, compressed, verifiable images.
#[derive(Parser)]
#[command(name = "headstart", version, max_term_width = 100, after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

#[derive(Subcommand)]
enum Command {
    /// Images in a store: make, look at, check, copy out, clean up
    #[command(subcommand, after_help = image::EXAMPLES)]
    Image(Box<image::Command>),
    /// Leases: the attached disks and writable directories that keep images of a store
    #[command(subcommand, after_help = lease::EXAMPLES)]
    Lease(Box<lease::Command>),
    /// Single layer files
    #[command(subcommand)]
    Layer(layer::Command),
    /// Single compressed files
    #[command(subcommand)]
    Zfile(zfile::Command),
    /// Recorded I/O of disks: import, export
    #[command(subcommand)]
    Trace(trace::Command),
    /// Learn from recorded boots which blocks to preload, in which order: traces in, plans out
    #[command(after_help = train::EXAMPLES)]
    Train(Box<train::Train>),
    /// Plans: look at them, compare them
    #[command(subcommand, after_help = plan::EXAMPLES)]
    Plan(Box<plan::Command>),
    /// A command of headstart-lab
    #[command(hide = true, disable_help_flag = true)]
    Simulate(moved::Ignored),
    /// A command of headstart-lab
    #[command(hide = true, disable_help_flag = true)]
    Replay(moved::Ignored),
    /// Make disks of images: over NBD, vhost-user-blk, FUSE or as kernel devices, at once and wherever the images are
    /// stored
    #[command(after_help = attach::EXAMPLES)]
    Attach(Box<attach::Attach>),
    /// Run the daemon of this host, in the foreground: its part in the swarm, and its disks
    #[command(after_help = agent::EXAMPLES)]
    Agent(Box<agent::AgentArgs>),
    /// Keep the mounts of an agent's disks while their processes are started again: the agent starts this
    #[command(hide = true)]
    Keeper(keeper::KeeperArgs),
    /// Serve containerd the files of images without pulling them, in the foreground
    #[command(after_help = snapshotter::EXAMPLES)]
    Snapshotter(Box<snapshotter::SnapshotterArgs>),
    /// Containers of this host's containerd
    #[command(subcommand, after_help = container::EXAMPLES)]
    Container(container::Command),
    /// Hosts that help each other: their credentials, their state, images that they fetch ahead of need or keep
    #[command(subcommand, after_help = swarm::EXAMPLES)]
    Swarm(swarm::Command),
    /// The disks of this host's agent
    #[command(subcommand, after_help = agent::DISK_EXAMPLES)]
    Disk(agent::DiskCommand),
    /// Spare flash of this host, lent to VMs that may be evicted, and given back in time
    #[command(subcommand, after_help = harvest::EXAMPLES)]
    Harvest(harvest::Command),
    /// The cache of this host: list it, verify it, remove blobs, give space back
    #[command(subcommand, after_help = cache::EXAMPLES)]
    Cache(cache::Command),
    /// Print the features that this host has, and the remedies for those that it lacks
    Doctor(doctor::Doctor),
}

impl Command {
    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// An error if the arguments do not fit together, whatever is on this host.
    fn check(&self) -> Result<()> {
        match self {
            Self::Image(image) => image.check(),
            Self::Lease(lease) => lease.check(),
            Self::Zfile(zfile) => zfile.check(),
            Self::Attach(attach) => attach.check(),
            Self::Agent(agent) => agent.check(),
            _ => Ok(()),
        }
    }
}

/// The command line with all its commands, for man pages, completions and the reference.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments of this process, runs the command, prints its report or error, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    // Without the memory, the threads and the handlers of signals that the others have.
    if let Some(keeper) = keeper::KeeperArgs::of_this_process() {
        return program::run_until_killed("headstart", || keeper.run());
    }
    if OverlaybdCommit::is_called() {
        return OverlaybdCommit::main();
    }
    let cli = match program::parse::<Cli>() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    if let Err(error) = cli.command.check() {
        return program::refuse("headstart", &error);
    }
    if matches!(cli.command, Command::Attach(_)) {
        // Before there are threads.
        attach::make_room_for_files();
    }
    program::run("headstart", cli.global, |terminal| run(&cli, terminal))
}

fn run(cli: &Cli, terminal: &Terminal) -> Result<Box<dyn Report>> {
    match &cli.command {
        Command::Image(command) => command.run(terminal),
        Command::Lease(command) => command.run(),
        Command::Layer(command) => command.run(terminal),
        Command::Zfile(command) => command.run(terminal),
        Command::Trace(command) => command.run(terminal),
        Command::Train(command) => command.run(terminal),
        Command::Plan(command) => command.run(),
        Command::Simulate(words) => Ok(words.refuse("simulate")),
        Command::Replay(words) => Ok(words.refuse("replay")),
        Command::Attach(command) => command.run(terminal, cli.global.quiet, cli.global.json),
        Command::Agent(command) => command.run(terminal, cli.global.json),
        // `main` runs it, as a rule.
        Command::Keeper(command) => match command.run()? {},
        Command::Snapshotter(command) => command.run(terminal, cli.global.json),
        Command::Container(command) => command.run(),
        Command::Swarm(command) => command.run(),
        Command::Disk(command) => command.run(terminal, cli.global.json),
        Command::Harvest(command) => command.run(terminal, cli.global.json),
        Command::Cache(command) => command.run(terminal),
        Command::Doctor(command) => Ok(command.run()),
    }
}

/// The option for the number of threads.
#[derive(Args, Clone, Debug)]
struct Threads {
    /// Threads that compress and decompress [default: one a core]; the output does not depend on it
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=256))]
    threads: Option<u16>,
}

impl Threads {
    fn number(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from).min(256);
        self.threads.map_or_else(cores, usize::from)
    }
}
