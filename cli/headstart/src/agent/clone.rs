//! `headstart disk clone`: a second disk with the content of a writable directory.

use clap::Args;
use headstart_block::guarded::shell_word;
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::report::{Outcome, Report};
use headstart_diskd::control::clone_disk;
use headstart_image::cloned_base::protect_base;
use headstart_lsmt::writable::{ClonedDisk, WritableDisk};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use uuid::Uuid;

pub(super) const EXAMPLES: &str = "Examples:\n  headstart disk clone /var/lib/vm1 /var/lib/vm2\n  \
                      headstart attach file:///srv/images:debian --writable /var/lib/vm2\n\n\
                      Nothing is copied: both directories have the files that are there now, and later writes go to \
                      files of their own. Either can be removed at any time. A disk that is attached goes on \
                      meanwhile, and the clone is as after a power loss at this moment: run `sync` in the guest \
                      first, for what the guest has not written yet.";

/// Makes a clone.
#[derive(Args)]
pub(crate) struct Clone {
    /// The directory that was given with --writable; its disk may be attached
    dir: PathBuf,
    /// The directory of the clone, which must not exist, on the same file system
    new: PathBuf,
}

impl Clone {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        let Self { dir, new } = self;
        let cloned = clone_disk(dir, new, Uuid::new_v4())?;
        // The clone is there, whatever becomes of the lease.
        match protect_base(new) {
            Ok(None) => {}
            Ok(Some(store)) => {
                tracing::warn!(
                    "until the clone is attached, nothing keeps others from deleting its image in {store}"
                );
            }
            Err(error) => {
                tracing::warn!(
                    "{error}: until the clone is attached, nothing keeps others from deleting its image"
                );
            }
        }
        let reference = WritableDisk::inspect(new)?.reference;
        Ok(Box::new(Cloned { dir: new.display().to_string(), image: reference, cloned }))
    }
}

/// A clone that was made.
#[derive(Serialize)]
struct Cloned {
    /// The directory of the clone.
    dir: String,
    /// The image that it belongs to, under the name that it had when the disk was attached last.
    image: Option<String>,
    /// The id, the size and the shared files of the clone.
    #[serde(flatten)]
    cloned: ClonedDisk,
}

impl Outcome for Cloned {}

impl fmt::Display for Cloned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dir, image, cloned } = self;
        let (size, shared) = (ByteSize(cloned.virtual_size), ByteSize(cloned.shared_bytes));
        let files = count(2 * cloned.shared_pairs as u64, "file");
        write!(f, "{dir}: a disk of {size}; {shared} in {files} are shared with its source")?;
        if let Some(image) = image {
            write!(f, "\nattach it: headstart attach {} --writable {}", shell_word(image), shell_word(dir))?;
        }
        Ok(())
    }
}
