//! Attributes of entries, as far as Linux has them.

use crate::file_tree::{NodeKind, NodeXattr};
use headstart_block::{Error, Result};
use headstart_tar::TarTime;

/// The time of directories that no entry lists, and of entries whose own time is out of range: 1970-01-01.
pub(super) const EPOCH: TarTime = TarTime { seconds: 0, nanoseconds: 0 };

/// The last time that containerd sets: 2^63 - 1 nanoseconds after 1970-01-01, in April 2262.
const LAST: TarTime = TarTime { seconds: 9_223_372_036, nanoseconds: 854_775_807 };

/// The longest name of an extended attribute in bytes: `XATTR_NAME_MAX` of Linux.
const XATTR_NAME_BYTES: usize = 255;

/// The longest value of an extended attribute in bytes: `XATTR_SIZE_MAX` of Linux.
const XATTR_VALUE_BYTES: usize = 65_536;

/// The namespaces of extended attributes that a file system on disk has, except POSIX ACLs.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The ACL of a file or a directory.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The ACL that files of a directory start with.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// A time that is set: the time itself from 1970 to 2262, 1970-01-01 for all others.
pub(super) fn bounded_time(time: TarTime) -> TarTime {
    let is_after = (time.seconds, time.nanoseconds) > (LAST.seconds, LAST.nanoseconds);
    if time.seconds < 0 || is_after { EPOCH } else { time }
}

/// Checks that Linux has a device of that number.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] if it has not.
pub(super) fn check_device(major: u32, minor: u32) -> Result<()> {
    if major > 0xfff || minor > 0xf_ffff {
        let cause =
            format!("is device {major}:{minor}, but Linux has majors up to 4095 and minors up to 1048575");
        return Err(Error::unsupported(cause));
    }
    Ok(())
}

/// The extended attributes that a node of that kind can have, of those of an entry.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] for one that Linux has a place for, but not for this name or value.
pub(super) fn kept_xattrs(xattrs: &[NodeXattr], kind: NodeKind) -> Result<Vec<NodeXattr>> {
    let mut kept = Vec::with_capacity(xattrs.len());
    for (name, value) in xattrs {
        if is_kept(name, kind)? {
            if name.len() > XATTR_NAME_BYTES || name.contains(&0) || value.len() > XATTR_VALUE_BYTES {
                return Err(refused(name, "whose name or value no file system can hold"));
            }
            kept.push((name.clone(), value.clone()));
        }
    }
    Ok(kept)
}

/// `true` if a node of that kind can have the attribute.
fn is_kept(name: &[u8], kind: NodeKind) -> Result<bool> {
    let has_content = matches!(kind, NodeKind::Regular | NodeKind::Directory);
    if name == ACCESS_ACL {
        return Ok(kind != NodeKind::Symlink);
    }
    if name == DEFAULT_ACL {
        return match kind {
            NodeKind::Directory => Ok(true),
            NodeKind::Symlink => Ok(false),
            _ => Err(refused(name, "which only directories can have")),
        };
    }
    if name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.") && !has_content {
        return Ok(false);
    }
    if NAMESPACES.contains(&name) {
        return Err(refused(name, "which has no name in its namespace"));
    }
    Ok(NAMESPACES.iter().any(|namespace| name.starts_with(namespace)))
}

fn refused(name: &[u8], why: &str) -> Error {
    // Names are bounded by the tar reader only.
    let shown = name.get(..XATTR_NAME_BYTES).unwrap_or(name).escape_ascii();
    Error::unsupported(format!("has the extended attribute {shown}, {why}"))
}

/// The union of two lists that are sorted by name. Where both have a name, the value of `new` counts.
pub(super) fn merged_xattrs(old: Vec<NodeXattr>, new: Vec<NodeXattr>) -> Vec<NodeXattr> {
    let mut all = old;
    for (name, value) in new {
        match all.binary_search_by(|(known, _)| known.cmp(&name)) {
            Ok(at) => all[at].1 = value,
            Err(at) => all.insert(at, (name, value)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattrs(names: &[&str]) -> Vec<NodeXattr> {
        names.iter().map(|name| (name.as_bytes().to_vec(), b"v".to_vec())).collect()
    }

    fn kept(names: &[&str], kind: NodeKind) -> Vec<String> {
        let kept = kept_xattrs(&xattrs(names), kind).unwrap();
        kept.into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect()
    }

    #[test]
    fn times_outside_of_containerds_range_become_the_epoch() {
        let time = |seconds, nanoseconds| TarTime { seconds, nanoseconds };
        for (given, set) in [
            (time(0, 0), time(0, 0)),
            (time(-1, 999_999_999), EPOCH),
            (time(i64::MIN, 0), EPOCH),
            (time(1, 5), time(1, 5)),
            (LAST, LAST),
            (time(LAST.seconds, LAST.nanoseconds + 1), EPOCH),
            (time(i64::MAX, 0), EPOCH),
        ] {
            assert_eq!(bounded_time(given), set, "{given:?}");
        }
    }

    #[test]
    fn attributes_without_a_place_are_left_out() {
        let all = [
            "btrfs.x",
            "security.capability",
            "system.nfs4_acl",
            "system.posix_acl_access",
            "trusted.overlay.opaque",
            "trusted.x",
            "user",
            "user.x",
        ];
        let with_acl = ["security.capability", "system.posix_acl_access", "trusted.x", "user.x"];
        assert_eq!(kept(&all, NodeKind::Regular), with_acl);
        assert_eq!(kept(&all, NodeKind::Directory), with_acl);
        assert_eq!(kept(&all, NodeKind::Fifo), with_acl[..3]);
        assert_eq!(kept(&all, NodeKind::Symlink), ["security.capability", "trusted.x"]);
        assert_eq!(kept(&["system.posix_acl_default"], NodeKind::Directory), ["system.posix_acl_default"]);
        assert!(kept(&["system.posix_acl_default"], NodeKind::Symlink).is_empty());
    }

    #[test]
    fn attributes_that_linux_refuses_are_refused() {
        let long = format!("user.{}", "x".repeat(251));
        for name in ["user.", "system.posix_acl_default", &long, "user.a\0b"] {
            assert!(kept_xattrs(&xattrs(&[name]), NodeKind::Regular).is_err(), "{name}");
        }
        let large = vec![(b"user.x".to_vec(), vec![0; 65_537])];
        assert!(kept_xattrs(&large, NodeKind::Regular).unwrap_err().to_string().contains("user.x"));
    }

    #[test]
    fn merging_keeps_the_order_and_the_later_value() {
        let old = vec![(b"b".to_vec(), b"1".to_vec()), (b"d".to_vec(), b"1".to_vec())];
        let new = vec![(b"a".to_vec(), b"2".to_vec()), (b"d".to_vec(), b"2".to_vec())];
        let merged = merged_xattrs(old, new);
        let flat: Vec<_> = merged.iter().map(|(name, value)| (name[0], value[0])).collect();
        assert_eq!(flat, [(b'a', b'2'), (b'b', b'1'), (b'd', b'2')]);
    }

    #[test]
    fn device_numbers_have_twelve_and_twenty_bits() {
        assert!(check_device(4095, 1_048_575).is_ok());
        assert!(check_device(4096, 0).is_err() && check_device(0, 1_048_576).is_err());
    }
}
