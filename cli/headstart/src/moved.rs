//! Commands that are commands of `headstart-lab` now: each answers with the program that has it.

use clap::Args;
use headstart_command_line::program::WRONG_COMMAND_LINE;
use headstart_command_line::report::Report;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// The arguments, which are ignored.
#[derive(Args)]
pub(crate) struct Ignored {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Ignored {
    /// The answer to the command of this name.
    pub(crate) fn refuse(&self, command: &'static str) -> Box<dyn Report> {
        Box::new(Moved { command, has_words: !self.words.is_empty() })
    }
}

/// A command of `headstart-lab`.
struct Moved {
    command: &'static str,
    has_words: bool,
}

impl Report for Moved {
    fn print(&self, _: bool) -> ExitCode {
        let Self { command, has_words } = self;
        let rest = if *has_words { " ..." } else { "" };
        let _ = writeln!(
            std::io::stderr(),
            "headstart: `{command}` is a command of headstart-lab: run `headstart-lab {command}{rest}`"
        );
        ExitCode::from(WRONG_COMMAND_LINE)
    }
}
