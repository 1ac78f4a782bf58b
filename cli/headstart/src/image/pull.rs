//! `headstart image pull`: from any store into a directory.

use super::copy::{CheckArg, Target, check, copy};
use clap::Args;
use headstart_block::{Error, Result};
use headstart_command_line::report::Report;
use headstart_command_line::store_args::StoreArgs;
use headstart_image::progress::Progress;
use headstart_image::reference::Reference;

/// Copies into a directory.
#[derive(Args)]
pub(crate) struct Pull {
    /// The image
    source: Reference,
    /// The target of the copy: file:///DIR or file:///DIR:TAG; without a tag, the source's
    target: Target,
    #[command(flatten)]
    check: CheckArg,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Pull {
    pub(super) fn check(&self) -> Result<()> {
        if self.target.location.is_remote() {
            return Err(Error::invalid("is not a directory, which an image is pulled into")
                .about(&self.target.location)
                .remedy("use `headstart image copy` between other stores"));
        }
        check(&self.source, &self.target, None)
    }

    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        copy(&self.source, &self.target, self.check, &self.stores, None, progress)
    }
}
