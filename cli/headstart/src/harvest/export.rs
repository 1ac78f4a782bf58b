//! `headstart harvest export`: the process that serves one vSSD by vhost-user or as a file. The daemon starts it.

use clap::Args;
use headstart_block::Result;
use headstart_command_line::report::Outcome;
use headstart_command_line::terminal::Terminal;
use headstart_harvestd::export_process::run_export_process;
use headstart_image::progress::Progress;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Export {
    /// The vSSD, for people who list processes
    name: String,
    /// The file that the process locks, and writes its number to
    #[arg(long, value_name = "FILE")]
    pid_file: PathBuf,
}

impl Export {
    pub(super) fn run(&self, terminal: &Terminal) -> Result<Exported> {
        headstart_command_line::log::bound(
            self.pid_file.with_extension("log"),
            headstart_daemon::pid_file::LOG_MAX,
        );
        terminal.serves();
        run_export_process(&self.pid_file, || terminal.is_cancelled()).map_err(|e| e.about(&self.name))?;
        Ok(Exported {})
    }
}

/// The end in good order, which has no reader.
#[derive(Serialize)]
pub(crate) struct Exported {}

impl Outcome for Exported {}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vSSD is not served any more")
    }
}
