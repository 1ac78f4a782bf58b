//! Releases the images of an agent's disk that is over and has no process: it was detached while its process was down,
//! or its first process failed. A mount or a device that its last process left goes. The agent knows no store's
//! options and credentials: this process has the arguments and the environment of the disk's process.

use super::arguments::device_name;
use super::{Attach, RUNTIME_THREADS};
use headstart_agentd::disk_process::recorded;
use headstart_agentd::disks::{KeptImage, hold_pid_file, images_record};
use headstart_block::words::count;
use headstart_block::{Error, Result};
use headstart_command_line::report::{Outcome, Report};
use headstart_diskd::DiskRequest;
use headstart_diskd::release::release_images;
use headstart_image::named_image::NamedImage;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The outcome of a release.
#[derive(Serialize)]
struct Released {
    /// Images that the disk does not hold any more.
    images: u64,
}

impl Outcome for Released {
    /// The output is read with the lines of the disk's processes.
    fn is_line(&self) -> bool {
        true
    }
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "released {}", count(self.images, "image"))
    }
}

impl Attach {
    /// Releases the images of the disk whose process had this file of process numbers.
    ///
    /// # Errors
    /// If another process has the disk, or a lease may still be there.
    pub(super) fn release(&self, pid_file: &Path) -> Result<Box<dyn Report>> {
        let images = hold_pid_file(pid_file)?.images.unwrap_or_default();
        let (record, stores) = (images_record(pid_file)?, self.store.settings_to_serve()?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .enable_all()
            .build()
            .map_err(|e| Error::io("cannot start threads", e))?;
        let settings = self.settings_of(images.iter().map(request).collect::<Result<_>>()?, false)?;
        let released = runtime.block_on(release_images(&settings, &stores, &record));
        runtime.shutdown_timeout(Duration::from_secs(1));
        // The agent has given up the mount, which is dead by that.
        if let Some(path) = self.fuse.as_deref().filter(|_| self.keeper.is_some())
            && let Err(error) = headstart_export::fuse::clear(path)
        {
            tracing::warn!(%error, "the mount point may have to be unmounted by hand");
        }
        if self.device.is_some()
            && let Err(error) = headstart_export::kernel_nbd::release(&device_name(pid_file))
        {
            tracing::warn!(%error, "the device of the disk may have to be detached by hand: nbd-client -d");
        }
        #[cfg(feature = "ublk")]
        if self.ublk
            && let Err(error) = headstart_export::ublk::release(&device_name(pid_file))
        {
            tracing::warn!(%error, "the device of the disk may have to be removed by hand: ublk del");
        }
        Ok(Box::new(Released { images: released? }))
    }
}

/// The request for a disk whose image was recorded.
fn request(kept: &KeptImage) -> Result<DiskRequest> {
    let image = NamedImage { name: kept.name.clone(), reference: kept.image.parse()? };
    Ok(DiskRequest { image, prior: recorded(kept) })
}
