//! The attributes of the mounted file that are not the disk's own.

use super::FuseSettings;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// The attributes that a `chmod` or `chown` changes; they are forgotten with the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Face {
    pub(super) directory_mode: u32,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) modified: SystemTime,
}

impl Face {
    /// The attributes at a new mount. The file belongs to the user of this process alone, whatever the owner and the
    /// permissions of the mount point are, unless the access of `settings` says otherwise. A directory keeps its
    /// permissions, and lets through the users that may open the file by the access of `settings`.
    pub(super) fn new(
        read_only: bool,
        mount_point: &std::fs::Metadata,
        FuseSettings { access, .. }: &FuseSettings,
    ) -> Self {
        let mode = access.mode();
        let passed = |users: u32, pass: u32| {
            if !access.is_default() && mode & users != 0 { pass } else { 0 }
        };
        Self {
            directory_mode: mount_point.mode() & 0o777 | passed(0o060, 0o010) | passed(0o006, 0o001),
            mode: if read_only { mode & 0o555 } else { mode },
            uid: access.uid().unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            gid: access.gid().unwrap_or_else(|| rustix::process::getegid().as_raw()),
            modified: now(),
        }
    }
}

/// The time that the file's users are shown; no stored byte depends on it.
#[expect(
    clippy::disallowed_methods,
    reason = "a file has a time of modification; nothing else depends on it"
)]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}
