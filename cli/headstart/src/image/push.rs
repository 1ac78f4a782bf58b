//! `headstart image push`: from a directory into any other store.

use super::copy::{CheckArg, Target, check, copy};
use crate::swarm::PushWarming;
use clap::Args;
use headstart_block::{Error, Result};
use headstart_command_line::report::Report;
use headstart_command_line::store_args::StoreArgs;
use headstart_image::progress::Progress;
use headstart_image::reference::Reference;

/// Copies out of a directory.
#[derive(Args)]
pub(crate) struct Push {
    /// The image: file:///DIR:TAG
    source: Reference,
    /// The target of the copy; without a tag, the source's
    target: Target,
    #[command(flatten)]
    check: CheckArg,
    #[command(flatten)]
    warming: PushWarming,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Push {
    pub(super) fn check(&self) -> Result<()> {
        if self.source.location.is_remote() {
            return Err(Error::invalid("is not a directory, which an image is pushed from")
                .about(&self.source)
                .remedy("use `headstart image copy` between other stores"));
        }
        check(&self.source, &self.target, Some(&self.warming))
    }

    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let warm = self.warming.of_push()?;
        copy(&self.source, &self.target, self.check, &self.stores, warm.as_ref(), progress)
    }
}
