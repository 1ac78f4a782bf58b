//! `headstart image inspect` and `verify`: of a directory, or of any other store, of which only what it takes is read.

use super::report::{Inspection, Verified};
use crate::report::Report;
use crate::runtime::{FEW, with_runtime};
use crate::store_args::StoreArgs;
use clap::Args;
use headstart_block::{Error, Result};
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Progress;
use headstart_image::reference::Reference;
use headstart_image::remote::RemoteImage;
use headstart_image::verify::{Depth, verify, verify_remote};

/// Says what an image is.
#[derive(Args)]
pub(crate) struct Inspect {
    /// The image
    image: Reference,
    #[command(flatten)]
    stores: StoreArgs,
}

/// Checks an image.
#[derive(Args)]
pub(crate) struct Verify {
    /// The image
    image: Reference,
    /// Read and check every byte, not only digests of metadata and structure; in a directory only
    #[arg(long)]
    deep: bool,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Inspect {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        if !self.image.location.is_remote() {
            return Ok(Box::new(Inspection::new(&OpenImage::open(&self.image)?)));
        }
        on_remote(&self.image, &self.stores, |remote| {
            let report: Box<dyn Report> = Box::new(Inspection::new(&OpenImage::open_remote(remote)?));
            Ok(report)
        })
    }
}

impl Verify {
    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let depth = if self.deep { Depth::Deep } else { Depth::Quick };
        let report = |verdict| Box::new(Verified::new(&self.image, depth, &verdict));
        if !self.image.location.is_remote() {
            return Ok(report(verify(&self.image, depth, progress)?));
        }
        if self.deep {
            return Err(Error::unsupported("is not in a directory: reading every byte of it is copying it")
                .about(&self.image)
                .remedy("`headstart image pull` checks every blob on its way into a directory"));
        }
        let verdict = on_remote(&self.image, &self.stores, |remote| verify_remote(remote, progress))?;
        Ok(report(verdict))
    }
}

/// Does `work` on an image that is not in a directory.
pub(crate) fn on_remote<T>(
    image: &Reference,
    stores: &StoreArgs,
    work: impl FnOnce(&RemoteImage) -> Result<T>,
) -> Result<T> {
    let settings = stores.settings()?;
    let store = headstart_store::open(&image.location, &settings)?;
    with_runtime(FEW, |runtime| {
        // A mistyped host or a missing login is told at once, not after all the patience that a slow store deserves.
        runtime.block_on(store.check())?;
        work(&RemoteImage::open(store, image, settings.retry, runtime.handle().clone())?)
    })
}
