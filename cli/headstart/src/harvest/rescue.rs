//! `headstart harvest check` and `rescue`: a directory whose daemon does not start.

use super::serve::absolute;
use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::report::Outcome;
use headstart_harvestd::client::default_dir;
use headstart_harvestd::host::rescue::{self, Examination, PartState};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) const CHECK_EXAMPLES: &str = "Examples:\n  \
    headstart harvest check\n  \
    headstart harvest check /var/lib/harvest --flash /dev/nvme1n1p3 --json\n\n\
    The command changes nothing; the daemon must have ended. The exit status is 1 if something is damaged.";

pub(super) const RESCUE_EXAMPLES: &str = "Examples:\n  \
    headstart harvest rescue /var/lib/harvest\n  \
    headstart harvest rescue /var/lib/harvest --discard-all\n\n\
    The command repairs only damage whose repair is certain: single wrong bits of the journal, and files that have a \
    copy; and it makes the table of flash again, without its counts of erasures. Damaged files are kept beside the \
    repaired ones, ending in .damaged. If the journal is damaged further, the command changes nothing: the data of \
    vSSDs cannot be told from data that others have written since. Then use a copy of the journal that was made after \
    the daemon ended last, or --discard-all.";

/// A directory of `headstart harvest serve`.
#[derive(Args)]
struct Place {
    /// The directory of `headstart harvest serve` [default: harvest in /var/lib/headstart, or in
    /// ~/.local/state/headstart]
    dir: Option<PathBuf>,
    /// Its flash, if it is outside the directory, as `serve --flash` names it
    #[arg(long, value_name = "PATH")]
    flash: Option<PathBuf>,
}

impl Place {
    fn paths(&self) -> Result<(PathBuf, Option<PathBuf>)> {
        let dir = absolute(&self.dir.clone().unwrap_or_else(default_dir))?;
        Ok((dir, self.flash.as_deref().map(absolute).transpose()?))
    }
}

#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    place: Place,
}

impl Check {
    pub(super) fn run(&self) -> Result<Checked> {
        let (dir, flash) = self.place.paths()?;
        let examination = rescue::check(&dir, flash.as_deref())?;
        let state = examination.state();
        Ok(Checked { state, done: Done::Looked, examination })
    }
}

#[derive(Args)]
pub(crate) struct Rescue {
    #[command(flatten)]
    place: Place,
    /// Give up all vSSDs of the directory with all their data, so that `serve` can start again from nothing there
    #[arg(long)]
    discard_all: bool,
}

impl Rescue {
    pub(super) fn run(&self) -> Result<Checked> {
        let (dir, flash) = self.place.paths()?;
        let flash = flash.as_deref();
        let (done, examination) = if self.discard_all {
            (Done::Discarded, rescue::discard_all(&dir, flash)?)
        } else {
            (Done::Mended, rescue::rescue(&dir, flash)?)
        };
        Ok(Checked { state: examination.state(), done, examination })
    }
}

/// The action on the findings.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Done {
    Looked,
    Mended,
    Discarded,
}

/// The findings, and the action.
#[derive(Serialize)]
pub(super) struct Checked {
    state: PartState,
    done: Done,
    #[serde(flatten)]
    examination: Examination,
}

impl Outcome for Checked {
    fn is_right(&self) -> bool {
        self.done != Done::Looked || self.state == PartState::Whole
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Examination { dir, parts, vssds, .. } = &self.examination;
        for part in parts {
            let state = match (part.state, self.done) {
                (PartState::Whole, _) => "as it was written",
                (PartState::Mendable, Done::Mended) => "put right",
                (PartState::Mendable, _) => "damaged, and can be put right",
                (PartState::Lost, _) => "damaged",
            };
            writeln!(f, "{} {}: {state}", part.name, part.path.display())?;
            part.faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))?;
        }
        write!(f, "{}", count(vssds.len() as u64, "vSSD"))?;
        if self.state == PartState::Lost && !vssds.is_empty() {
            write!(f, " where it can be read")?;
        }
        for vssd in vssds {
            write!(f, "\n  {}: {}, {}", vssd.name, vssd.kind, ByteSize(vssd.size))?;
        }
        let dir = dir.display();
        match (self.done, self.state) {
            (Done::Looked, PartState::Whole) => Ok(()),
            (Done::Looked, PartState::Mendable) => {
                write!(f, "\n`headstart harvest rescue {dir}` puts it right")
            }
            (Done::Looked, PartState::Lost) => write!(
                f,
                "\nbring back a copy that was made after `harvest serve` ended last; or give up all vSSDs by \
                 `headstart harvest rescue {dir} --discard-all`"
            ),
            (Done::Mended, _) => write!(f, "\n`headstart harvest serve {dir}` can be started"),
            (Done::Discarded, _) => write!(
                f,
                "\nall of that is given up; `headstart harvest serve {dir} --size SIZE` begins again, with --erase \
                 where the flash is named by --flash"
            ),
        }
    }
}
