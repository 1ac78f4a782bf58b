//! `headstart image list`: a directory with everything in its index, other stores by their tags.

use super::report::Listing;
use clap::Args;
use headstart_block::Result;
use headstart_command_line::report::Report;
use headstart_command_line::runtime::{FEW, with_runtime};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::reference::Location;
use headstart_image::store::ImageStore;
use headstart_image::transfer::list_remote;

/// Lists the images of a store.
#[derive(Args)]
pub(crate) struct List {
    /// The store: file:///DIR, http://HOST/PATH, s3://BUCKET/PATH, oci://HOST/REPOSITORY
    store: Location,
    #[command(flatten)]
    stores: StoreArgs,
}

impl List {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        let entries = match &self.store {
            Location::Directory(root) => ImageStore::open(root)?.list()?,
            remote => {
                let store = headstart_store::open(remote, &self.stores.settings()?)?;
                let listing = async {
                    store.check().await?;
                    list_remote(&*store).await
                };
                with_runtime(FEW, |runtime| runtime.block_on(listing))?
            }
        };
        Ok(Box::new(Listing::new(entries)))
    }
}
