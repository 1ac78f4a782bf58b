//! `headstart image inspect` and `verify`: of a directory, or of any other store, of which only the needed parts are
//! read.

use super::report::{Inspection, Verified};
use crate::report::Report;
use crate::runtime::with_runtime;
use crate::store_args::StoreArgs;
use clap::Args;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Progress;
use headstart_image::reference::{Reference, Selector};
use headstart_image::store::ImageStore;
use headstart_image::store_access::StoreAccess;
use headstart_image::transfer::repair;
use headstart_image::verify::{Depth, verify, verify_remote};
use headstart_store::Store;

/// Prints the properties of an image.
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
    /// Fetch missing or damaged content from this copy of the image; implies --deep
    #[arg(long, value_name = "IMAGE")]
    repair_from: Option<Reference>,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Inspect {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
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
            let repaired = self.repair_from.as_ref().map(|from| self.repair(from, progress)).transpose()?;
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

    /// Fetches blobs that are missing or damaged from another copy of the image, its manifest too; returns their
    /// number.
    fn repair(&self, from: &Reference, progress: &dyn Progress) -> Result<u64> {
        let settings = self.stores.settings()?;
        // Its manifest may be the damaged part.
        let store = ImageStore::open(self.image.directory()?)?;
        let digest = store.digest(&self.image.selector)?;
        let has_manifest = store.read_document(&digest).is_ok();
        let source = headstart_store::open(&from.location, &settings)?;
        let target = headstart_store::open(&self.image.location, &settings)?;
        let work = async {
            source.check().await?;
            let done =
                repair(&source, &Selector::Digest(digest), &target, None, settings.retry, progress).await;
            match done {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    Err(no_copy(&*source, from, digest, &e).await.about(&self.image))
                }
                done => done,
            }
        };
        let done = with_runtime(None, |runtime| runtime.block_on(work))?;
        Ok(done.copied + u64::from(!has_manifest))
    }
}

/// The error if `from` lacks a part and is not a copy of the image `digest`.
async fn no_copy(source: &dyn Store, from: &Reference, digest: Digest, missing: &Error) -> Error {
    let not_found = |cause| Error::new(ErrorKind::NotFound, cause);
    match source.manifest(&from.selector).await {
        Ok((other, _)) if other != digest => {
            not_found(format!("{from} is not a copy of this image: it is {other}, and the image is {digest}"))
                .remedy("name an image of the same digest, which `headstart image inspect` shows")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            not_found(format!("{from} is not a copy of this image: {error}"))
                .remedy("`headstart image list` shows what is in that store")
        }
        _ => not_found(format!("{from} is not a whole copy of this image: {missing}"))
            .remedy("name another copy, or import the image again"),
    }
}
