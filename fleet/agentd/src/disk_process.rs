//! The side of a disk's process: what it takes over from an earlier process, its connection to the agent's swarm, and
//! what it reports of its disks. The other side is [`disks`](crate::disks).
//!
//! | module | content |
//! |---|---|
//! | `prior` | the images that the disks had before |
//! | `connector` | the agent's swarm, which is asked for missing bytes |

mod connector;
mod prior;

pub use connector::AgentConnector;
pub use prior::{PriorDisks, kept_images, recorded};

use crate::disks::DiskSpace;
use headstart_diskd::DiskSession;

/// The space of the writable layers of a session.
#[must_use]
pub fn spaces(session: &DiskSession) -> Vec<DiskSpace> {
    let spaces = session.disks.iter().filter_map(|disk| {
        let space = disk.disk.writable()?.space();
        Some(DiskSpace {
            name: disk.name.clone(),
            live_bytes: space.live_bytes,
            garbage_bytes: space.garbage_bytes,
            copied_up_bytes: space.copied_up_bytes,
            collected_bytes: space.collected_bytes,
            throttled_writes: space.throttled_writes,
            waiting_writes: space.waiting_writes,
            max_bytes: space.max_bytes,
        })
    });
    spaces.collect()
}
