//! What `/proc/self/mountinfo` says about one path.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A file system that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// Where.
    pub(super) path: PathBuf,
    /// Its type: `fuse.headstart` for ours.
    pub(super) kind: String,
    /// Device number, as `major:minor`.
    pub(super) device: String,
}

/// The topmost file system that is mounted exactly at `path`, which is absolute and without symbolic links.
pub(super) fn topmost_at(table: &str, path: &Path) -> Option<MountEntry> {
    table.lines().filter_map(parse).rfind(|entry| entry.path == path)
}

/// `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw`: optional fields end with a dash.
fn parse(line: &str) -> Option<MountEntry> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let device = fields.nth(2)?.to_owned();
    let path = unescape(fields.nth(1)?);
    Some(MountEntry { path, kind: after.split(' ').next()?.to_owned(), device })
}

/// The kernel writes white space and backslashes in paths as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = (byte == b'\\').then(|| field.get(at + 1..at + 4)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(escaped) => {
                path.push(escaped);
                at += 4;
            }
            None => {
                path.push(byte);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
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
    fn finds_the_topmost_mount_of_a_path() {
        let kind = |path: &str| topmost_at(TABLE, Path::new(path)).map(|entry| entry.kind);
        assert_eq!(kind("/mnt/x").as_deref(), Some("fuse.headstart"));
        assert_eq!(kind("/mnt/a b").as_deref(), Some("fuse.headstart"));
        assert_eq!(kind("/mnt/back\\slash").as_deref(), Some("fuse"));
        assert_eq!(kind("/mnt"), None);
        assert_eq!(topmost_at(TABLE, Path::new("/mnt/x")).map(|entry| entry.device).as_deref(), Some("0:37"));
    }
}
