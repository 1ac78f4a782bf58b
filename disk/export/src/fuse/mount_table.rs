//! The entries of `/proc/self/mountinfo`.

use serde::{Deserialize, Serialize};

/// A file system that is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MountEntry {
    /// The number of the mount; another one may get it later.
    pub(super) id: u64,
    /// Its type: `fuse.headstart` for mounts of this program.
    pub(super) kind: String,
    /// Device number, as `major:minor`.
    pub(super) device: String,
}

/// The mount with a number.
pub(super) fn entry_of(table: &str, id: u64) -> Option<MountEntry> {
    table.lines().filter_map(parse).find(|entry| entry.id == id)
}

/// Parses a line such as `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw`: optional fields end
/// with a dash.
fn parse(line: &str) -> Option<MountEntry> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let id = fields.next()?.parse().ok()?;
    let device = fields.nth(1)?.to_owned();
    Some(MountEntry { id, kind: after.split(' ').next()?.to_owned(), device })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:35 / /mnt/a\\040b rw,nosuid shared:9 master:3 - fuse.headstart headstart rw,user_id=0
41 22 0:36 / /mnt/x rw - tmpfs tmpfs rw
42 41 0:37 / /mnt/x ro,nodev - fuse.headstart headstart ro,user_id=0
nonsense
43 22 0:38 / /mnt/back\\134slash rw - fuse sshfs rw
";

    #[test]
    fn finds_a_mount_by_its_number() {
        let found = |id| entry_of(TABLE, id).map(|entry| (entry.kind, entry.device));
        let ours = |device: &str| Some(("fuse.headstart".to_owned(), device.to_owned()));
        assert_eq!((found(40), found(42)), (ours("0:35"), ours("0:37")));
        assert_eq!(found(43), Some(("fuse".to_owned(), "0:38".to_owned())));
        assert_eq!((found(1), found(0)), (None, None));
    }
}
