//! `headstart image inspect` and `verify`: of a directory, or of any other store, of which only the needed parts are
//! read.

use super::forms::Forms;
use super::report::{Inspection, Verified};
use clap::Args;
use headstart_block::{Error, Result};
use headstart_command_line::report::Report;
use headstart_command_line::store_args::StoreArgs;
use headstart_image::copies::repair_from;
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Progress;
use headstart_image::reference::Reference;
use headstart_image::store_access::StoreAccess;
use headstart_image::verify::{Depth, verify, verify_remote};

/// Prints the properties of an image.
#[derive(Args)]
pub(crate) struct Inspect {
    /// The image
    image: Reference,
    /// Of a container's image, list all disks that it was converted to: their file systems, sizes and plans, and the
    /// ones that hosts take
    #[arg(long)]
    forms: bool,
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
    /// Fetch missing or damaged content from this copy of the image; implies --deep
    #[arg(long, value_name = "IMAGE")]
    repair_from: Option<Reference>,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Inspect {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        if self.forms {
            return Ok(Box::new(self.stores.with_stores(|stores| Forms::find(&self.image, stores))?));
        }
        let inspection = match self.image.location.is_remote() {
            true => self.stores.with_stores(|stores| Ok(Inspection::new(&stores.open(&self.image)?)))?,
            false => Inspection::new(&OpenImage::open(&self.image)?),
        };
        Ok(Box::new(inspection))
    }
}

impl Verify {
    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let is_deep = self.deep || self.repair_from.is_some();
        let depth = if is_deep { Depth::Deep } else { Depth::Quick };
        if !self.image.location.is_remote() {
            let repair = |from| {
                self.stores.with_stores_on(None, |stores| repair_from(&self.image, from, stores, progress))
            };
            let repaired = self.repair_from.as_ref().map(repair).transpose()?;
            let verdict = verify(&self.image, depth, progress)?;
            return Ok(Box::new(Verified::new(&self.image, depth, &verdict).with_repaired(repaired)));
        }
        if is_deep {
            return Err(Error::unsupported("is not in a directory: reading every byte of it is copying it")
                .about(&self.image)
                .remedy(
                    "`headstart image pull` checks every blob on its way into a directory, `headstart image copy \
                     --check` repairs an image from a copy of it",
                ));
        }
        let verify = |stores: StoreAccess<'_>| verify_remote(&stores.remote(&self.image)?, progress);
        let verdict = self.stores.with_stores(verify)?;
        Ok(Box::new(Verified::new(&self.image, depth, &verdict)))
    }
}
