//! Credentials that a program was given for pulling from single repositories, such as those of Kubernetes.
//!
//! ```json
//! {"version": 1,
//!  "repositories": {"registry.lan/apps/web":
//!     {"username": "u", "password": "p", "identity_token": "", "until": 1800000000}},
//!  "earlier": {"registry.lan/apps/web":
//!     [{"username": "w", "password": "r", "identity_token": "", "until": 1790000000}]},
//!  "offered": {"registry.lan/apps/web":
//!     [{"username": "v", "password": "q", "identity_token": "", "until": 1700003600}]}}
//! ```
//!
//! `repositories` has the credentials that a registry has taken, and `offered` those of pulls that go on, the newest
//! first. The latter are tried first, and a registry that refuses them gets the former. Files without `offered` are of
//! versions that put both in one place; readers of these versions pass over `offered`.
//!
//! `earlier` has those that were accepted before the ones of `repositories`, the newest first: that containerd could
//! pull an image may be a mirror's doing, and says nothing about the credentials then. Readers of earlier versions
//! pass over it, and writers of earlier versions drop it.
//!
//! The file is its user's alone. It is read again whenever a registry asks for credentials: the program that writes it
//! replaces it as a whole. Credentials of one repository are shown for no other one, and for none after `until`, in
//! seconds since 1970.

use headstart_block::small_file::read_small;
use headstart_block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Bytes of the file at most.
pub const PULL_CREDENTIALS_MOST: u64 = 4 << 20;

/// The credentials that pulls offer for one repository at most. The newest ones count.
pub const OFFERED_MOST: usize = 8;

/// The earlier credentials that were accepted for one repository, beside the last ones, at most.
pub const EARLIER_MOST: usize = 2;

/// The version of the form.
const VERSION: u32 = 1;

/// The credentials for one repository.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullCredential {
    /// The user; empty beside a token.
    pub username: String,
    /// The password.
    pub password: String,
    /// A token that buys other tokens; empty if there is a password.
    #[serde(default)]
    pub identity_token: String,
    /// The end of their use, in seconds since 1970.
    pub until: u64,
}

impl fmt::Debug for PullCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secrets.
        f.debug_struct("PullCredential").field("until", &self.until).finish_non_exhaustive()
    }
}

/// The content of a file of credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullCredentials {
    version: u32,
    /// The credentials that were accepted, by `HOST/REPOSITORY`.
    pub repositories: BTreeMap<String, PullCredential>,
    /// Those that were accepted before, the newest first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub earlier: BTreeMap<String, Vec<PullCredential>>,
    /// Those of pulls that go on, the newest first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offered: BTreeMap<String, Vec<PullCredential>>,
}

impl Default for PullCredentials {
    fn default() -> Self {
        let (repositories, earlier, offered) = Default::default();
        Self { version: VERSION, repositories, earlier, offered }
    }
}

impl PullCredentials {
    /// The content of the file at `path`; nothing if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is no such file; errors of the operating system.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = match read_small(path, PULL_CREDENTIALS_MOST) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            read => read?,
        };
        Self::parse(&bytes).map_err(|error| error.about(path.display()))
    }

    /// The content of a file.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is no such file; [`ErrorKind::Unsupported`] if it is a later version's.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        // Not the library's message, which may repeat a password.
        let damaged = || Error::corrupt("is no file of credentials").remedy("remove it, and pull again");
        let found: Self = serde_json::from_slice(bytes).map_err(|_| damaged())?;
        if found.version > VERSION {
            return Err(Error::unsupported("is a later version's").remedy("use that version of headstart"));
        }
        Ok(found)
    }

    /// The credentials that pulls offer for a repository `now`.
    pub fn offered_for<'a>(&'a self, repository: &str, now: u64) -> impl Iterator<Item = &'a PullCredential> {
        let offered = self.offered.get(repository).into_iter().flatten().take(OFFERED_MOST);
        offered.filter(move |found| found.until > now)
    }

    /// The credentials for a repository that may be used `now`, in seconds since 1970, in the order in which they are
    /// to be tried.
    pub fn of<'a>(&'a self, repository: &str, now: u64) -> impl Iterator<Item = &'a PullCredential> {
        let earlier = self.earlier.get(repository).into_iter().flatten().take(EARLIER_MOST);
        let accepted = self.repositories.get(repository).into_iter().chain(earlier);
        self.offered_for(repository, now).chain(accepted.filter(move |found| found.until > now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_for_one_repository_and_for_a_time() {
        let text = br#"{"version": 1, "repositories": {"reg.lan/a": {"username": "u", "password": "p", "until": 9}}}"#;
        let found = PullCredentials::parse(text).unwrap();
        let passwords = |found: &PullCredentials, repository: &str, now| {
            found.of(repository, now).map(|found| found.password.clone()).collect::<Vec<_>>()
        };
        assert_eq!(passwords(&found, "reg.lan/a", 8), ["p"]);
        for (repository, now) in [("reg.lan/a", 9), ("reg.lan/a/b", 8), ("reg.lan", 8)] {
            assert!(passwords(&found, repository, now).is_empty(), "{repository} {now}");
        }
        let mut pulled = found.clone();
        let credential = |password: &str, until| PullCredential {
            password: password.to_owned(),
            until,
            ..found.repositories["reg.lan/a"].clone()
        };
        pulled.offered.insert("reg.lan/a".to_owned(), vec![credential("new", 20), credential("older", 7)]);
        assert_eq!(passwords(&pulled, "reg.lan/a", 6), ["new", "older", "p"]);
        assert_eq!(passwords(&pulled, "reg.lan/a", 10), ["new"]);
        let before = ["q", "r", "s"].map(|password| credential(password, 9)).to_vec();
        pulled.earlier.insert("reg.lan/a".to_owned(), before);
        assert_eq!(passwords(&pulled, "reg.lan/a", 8), ["new", "p", "q", "r"]);
        assert_eq!(pulled.offered_for("reg.lan/a", 8).count(), 1, "kept ones are not offered");
        for found in [&found, &pulled] {
            assert_eq!(PullCredentials::parse(&serde_json::to_vec(found).unwrap()).unwrap(), *found);
        }
        assert!(!format!("{found:?}").contains("\"p\""));
    }

    #[test]
    fn damaged_files_and_later_versions_are_refused_without_their_content() {
        for text in ["", "{", r#"{"version": 1, "repositories": {"a": {"password": 7, "x": "secret"}}}"#] {
            let error = PullCredentials::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let later = PullCredentials::parse(br#"{"version": 2, "repositories": {}}"#).unwrap_err();
        assert_eq!(later.kind(), ErrorKind::Unsupported);
        let nowhere = PullCredentials::read(Path::new("/nonexistent/credentials")).unwrap();
        assert_eq!(nowhere, PullCredentials::default());
    }
}
