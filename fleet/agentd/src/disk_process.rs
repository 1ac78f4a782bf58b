//! The code that runs in a disk's process, beside the agent: the images that the process takes over from an earlier
//! process of the disk, the connection of the process to the agent's swarm, and the reports of the process on its
//! disks. The agent's code for these processes is in [`disks`](crate::disks).
//!
//! | module | content |
//! |---|---|
//! | `prior` | the images that the disks had in an earlier process |
//! | `connector` | the connection to the agent's swarm, from which missing bytes are requested |

mod connector;
mod prior;

pub use connector::AgentConnector;
pub use prior::{PriorDisks, kept_images, recorded};

use crate::disks::DiskSpace;
use headstart_diskd::DiskSession;

/// Returns the space that the writable layers of this process's disks take, one entry for each; empty if none of the
/// disks is writable.
#[must_use]
pub fn spaces(session: &DiskSession) -> Vec<DiskSpace> {
    let spaces = session.disks.iter().filter_map(|disk| {
        let space = disk.disk.writable()?.space();
        Some(DiskSpace {
            name: disk.name.clone(),
            live_bytes: space.live_bytes,
            garbage_bytes: space.garbage_bytes,
            copied_up_bytes: space.copied_up_bytes,
            shared_bytes: space.shared_bytes,
            collected_bytes: space.collected_bytes,
            throttled_writes: space.throttled_writes,
            waiting_writes: space.waiting_writes,
            max_bytes: space.max_bytes,
        })
    });
    spaces.collect()
}
