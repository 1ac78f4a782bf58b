//! The numbers of users and groups that are named.
//!
//! rustix lacks this, as the kernel knows numbers only: names are the C library's (`getpwnam`), which loads what
//! `nsswitch.conf` names, so that a statically linked program cannot have it. `/etc/passwd` and `/etc/group` are read
//! here, and `getent` is run for names that are in neither: it asks every source of the host (LDAP, sssd, systemd).
//! Without `getent`, only names in the two files are known. The files come first, whatever `nsswitch.conf` says.

use crate::tool;
use headstart_block::{Error, Result};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The file of users, and the database of `getent`.
const USERS: (&str, &str) = ("/etc/passwd", "passwd");
/// The file of groups, and the database of `getent`.
const GROUPS: (&str, &str) = ("/etc/group", "group");

/// The number of a user, given by name or number.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if this host has no such user.
pub(crate) fn uid(name: &str) -> Result<u32> {
    number(name, "user", USERS)
}

/// The number of a group, given by name or number.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if this host has no such group.
pub(crate) fn gid(name: &str) -> Result<u32> {
    number(name, "group", GROUPS)
}

fn number(name: &str, kind: &str, (file, database): (&str, &str)) -> Result<u32> {
    // The kernel takes the last number for none.
    if let Some(number) = name.parse().ok().filter(|number| *number != u32::MAX) {
        return Ok(number);
    }
    in_file(name, Path::new(file)).or_else(|| from_getent(name, database)).ok_or_else(|| {
        Error::invalid(format!("there is no {kind} `{}` on this host", name.escape_debug()))
            .remedy(format!("`getent {database}` lists them"))
    })
}

/// The number in the line of `name`; `None` if there is no such line, or the file cannot be read.
fn in_file(name: &str, file: &Path) -> Option<u32> {
    // A comment or another name in an unknown encoding must not hide the others.
    let text = fs::read(file).ok()?;
    in_lines(name, &String::from_utf8_lossy(&text))
}

/// The answer of `getent`; `None` if it knows no such name, or is not there.
fn from_getent(name: &str, database: &str) -> Option<u32> {
    // Not every `getent` knows `--`.
    if name.starts_with('-') {
        return None;
    }
    let mut getent = Command::new(tool::find("getent")?);
    getent.args([database, name]).stdin(Stdio::null()).stderr(Stdio::null());
    in_lines(name, &String::from_utf8_lossy(&getent.output().ok()?.stdout))
}

/// The third field of the first line whose first is `name`: the number, in both databases.
fn in_lines(name: &str, text: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_lines_of_both_databases() {
        let users = "# a comment\nroot:x:0:0:root:/root:/bin/bash\nrootless:x:1001:5::/:\nbroken:x:many:0::/:\nshort\n";
        assert_eq!(in_lines("root", users), Some(0));
        assert_eq!(in_lines("rootless", users), Some(1001));
        assert_eq!(in_lines("kvm", "kvm:x:104:libvirt-qemu,root\n"), Some(104));
        for name in ["", "roo", "root:x", "broken", "short", "# a comment", "x"] {
            assert_eq!(in_lines(name, users), None, "{name}");
        }
    }

    #[test]
    fn getent_gives_the_same_numbers_as_the_files() {
        assert_eq!((uid("root").unwrap(), gid("root").unwrap()), (0, 0));
        assert_eq!(uid("4294967294").unwrap(), u32::MAX - 1);
        if tool::find("getent").is_some() {
            assert_eq!((from_getent("root", "passwd"), from_getent("root", "group")), (Some(0), Some(0)));
        }
        for name in ["--help", "-s", "no such user", "0x1", "4294967295"] {
            assert_eq!(from_getent(name, "passwd"), None, "{name}");
            assert!(uid(name).is_err() && gid(name).is_err(), "{name}");
        }
    }
}
