//! The ways in which each vSSD is served and the users that may open it, and the file that keeps them through restarts.
//!
//! The file leaves out vSSDs that are served only at the default socket, to the daemon's user. Version 0.1 wrote only
//! the paths of vhost-user and FUSE to it.

use headstart_block::{Error, Result};
use headstart_daemon::file::{self, Readers};
use headstart_export::SocketAccess;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file, in the daemon's directory.
const FILE: &str = "exports.json";

/// The file of a host that forgets its vSSDs: it uses the directory at times when another host does not.
const FORGOTTEN: &str = "exports.emulated.json";

/// Largest such file, in bytes: enough for thousands of paths.
const FILE_MAX: u64 = 16 << 20;

/// The largest number of certificates' names for a vSSD, and the longest one, in bytes.
const NAMES_MAX: usize = 64;
const NAME_MAX: usize = 255;

/// The ways in which a vSSD is served to clients, and the users that may open it. The default is NBD at a
/// socket in the daemon's directory, for the daemon's user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ways {
    /// Path of the NBD socket; `None` for the one of the vSSD's name in the daemon's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<PathBuf>,
    /// Path of the socket for vhost-user-blk; `None` if the vSSD is not served in this way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost_user: Option<PathBuf>,
    /// Path at which the vSSD is mounted as a file: an existing file, or a directory in which it is
    /// `disk.raw`. `None` if it is not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuse: Option<PathBuf>,
    /// The owner of the vSSD's sockets and file, as `USER[:GROUP]`; `None` for the daemon's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Permissions of the vSSD's sockets and file, in octal; `None` for 0600, or 0660 if the owner names a
    /// group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<String>,
    /// Names of the certificates whose clients may open the vSSD at the daemon's NBD address. Empty: no
    /// client may if the daemon checks certificates, otherwise any client may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_clients: Vec<String>,
}

impl Ways {
    /// `true` if it is served only by its own socket to the daemon's user.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// `true` if a process of its own serves it: by vhost-user or as a file.
    pub(super) fn need_process(&self) -> bool {
        self.vhost_user.is_some() || self.fuse.is_some()
    }

    /// The owner and permissions of its sockets and its file.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for a user or group that is not there, a mode that is not valid, and
    /// names of certificates that are not valid.
    pub(super) fn access(&self) -> Result<SocketAccess> {
        let owner = self.socket_owner.as_deref().map(str::parse).transpose()?;
        let mode = self.socket_mode.as_deref().map(str::parse).transpose()?;
        let is_name =
            |name: &String| (1..=NAME_MAX).contains(&name.len()) && !name.contains(char::is_control);
        if self.tls_clients.len() > NAMES_MAX || !self.tls_clients.iter().all(is_name) {
            let error = Error::invalid("cannot be names of certificates");
            return Err(error.remedy(format!("give at most {NAMES_MAX}, of 1 to {NAME_MAX} bytes each")));
        }
        Ok(SocketAccess { owner, mode })
    }
}

/// The file of a daemon in `dir`; `forgets` is `true` if its host forgets its vSSDs.
pub(super) fn file(dir: &Path, forgets: bool) -> PathBuf {
    dir.join(if forgets { FORGOTTEN } else { FILE })
}

/// The stored ways, by vSSD.
pub(super) fn read(file: &Path) -> Result<BTreeMap<String, Ways>> {
    let Some(text) = file::read(file, FILE_MAX)? else { return Ok(BTreeMap::new()) };
    serde_json::from_slice(&text).map_err(|e| {
        Error::corrupt("makes no sense")
            .caused_by(e)
            .about(file.display())
            .remedy("remove it: vSSDs are served by NBD to this user then, and keep their data")
    })
}

/// Stores the ways for the next daemon.
pub(super) fn write(file: &Path, ways: &BTreeMap<String, Ways>) -> Result<()> {
    let text = serde_json::to_vec(ways)
        .map_err(|e| Error::invalid("cannot be written as JSON").caused_by(e).about(file.display()))?;
    file::replace(file, &text, Readers::Owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_first_version_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(dir.path(), false);
        std::fs::write(&file, r#"{"a":{"vhost_user":"/run/a.sock"},"b":{"fuse":"/mnt/b"}}"#).unwrap();
        let ways = read(&file).unwrap();
        assert_eq!(ways["a"], Ways { vhost_user: Some("/run/a.sock".into()), ..Ways::default() });
        assert_eq!(ways["b"], Ways { fuse: Some("/mnt/b".into()), ..Ways::default() });
        assert!(ways["a"].access().unwrap().is_default());
        write(&file, &ways).unwrap();
        assert_eq!(read(&file).unwrap(), ways);
        std::fs::write(&file, "{").unwrap();
        assert!(read(&file).is_err());
    }

    #[test]
    fn owners_modes_and_tls_names_are_checked() {
        let owned = |owner: &str| Ways { socket_owner: Some(owner.to_owned()), ..Ways::default() };
        assert_eq!(owned("root:0").access().unwrap().mode(), 0o660);
        assert!(owned("no such user").access().is_err());
        let mode = |mode: &str| Ways { socket_mode: Some(mode.to_owned()), ..Ways::default() };
        assert_eq!(mode("0666").access().unwrap().mode(), 0o666);
        assert!(mode("rw").access().is_err());
        let named = |name: String| Ways { tls_clients: vec![name], ..Ways::default() };
        assert!(named("tenant-a".to_owned()).access().is_ok());
        for bad in [String::new(), "a\n".to_owned(), "a".repeat(256)] {
            assert!(named(bad.clone()).access().is_err(), "{bad:?}");
        }
    }
}
