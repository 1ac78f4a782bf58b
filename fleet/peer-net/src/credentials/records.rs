//! Records of the authority, in the cluster's directory: the revoked keys, and the longest validity of certificates.
//!
//! A trust list names hosts and times ([`super::trust_list`]). A revoked key could come back under another name, with a
//! request of its own; so the hash of each is kept, and no certificate is signed for it again.
//!
//! ```text
//! DIR/records.json    {"version": 1,
//!                      "longest_seconds": 7776000,             the longest time that a certificate was signed for
//!                      "earlier_hosts": ["NAME", ...],         hosts that had certificates before there were records
//!                      "revoked_keys": {"SHA-256": "NAME"}}    of each public key (SubjectPublicKeyInfo), in hex
//! ```
//!
//! A key is recorded while its certificate is in `hosts/*/host.pem`: after the list that revokes it was signed, and
//! before another certificate replaces it, even if the run that revoked it was cut off or was one of an earlier
//! version. Version 0.1.0 does not know this file, and signs for any key.

use super::RECORDS;
use super::certificate::HostCertificate;
use super::trust_list::Revoked;
use headstart_block::{Digest, Error, Result};
use headstart_daemon::file::{Readers, read, replace};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The version of the file.
const VERSION: u32 = 1;

/// Most bytes of the file: some 200,000 keys.
const LEN_MAX: u64 = 32 << 20;

/// The authority's records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Records {
    version: u32,
    /// The longest time for which a certificate was signed, in seconds.
    pub(super) longest_seconds: u64,
    /// Names of hosts that had certificates before there were records, made by any version of headstart.
    pub(super) earlier_hosts: BTreeSet<String>,
    /// The host's name by the hash of each revoked public key.
    revoked_keys: BTreeMap<String, String>,
}

impl Records {
    /// The records of a cluster without hosts.
    pub(super) fn new() -> Self {
        Self {
            version: VERSION,
            longest_seconds: 0,
            earlier_hosts: BTreeSet::new(),
            revoked_keys: BTreeMap::new(),
        }
    }

    /// The records in a cluster's directory; `None` if it has none.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the file has other content,
    /// [`headstart_block::ErrorKind::Unsupported`] if it is of a later version; errors of the operating system.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(RECORDS);
        let Some(bytes) = read(&path, LEN_MAX)? else { return Ok(None) };
        let nonsense = |e: serde_json::Error| {
            Error::corrupt("are no records of an authority").caused_by(e).about(path.display())
        };
        let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(nonsense)?;
        if json.get("version").and_then(serde_json::Value::as_u64).is_some_and(|it| it > VERSION.into()) {
            return Err(Error::unsupported("are records of a later version of headstart")
                .about(path.display())
                .remedy("run the latest version of headstart in this directory"));
        }
        serde_json::from_value(json).map(Some).map_err(nonsense)
    }

    /// Writes the records to a cluster's directory.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let bytes =
            serde_json::to_vec_pretty(self).map_err(|e| Error::invalid("cannot be kept").caused_by(e));
        replace(&dir.join(RECORDS), &bytes?, Readers::Owner)
    }

    /// Records the key of a host as revoked.
    pub(super) fn revoke(&mut self, host: &HostCertificate) {
        self.revoked_keys.insert(hash(&host.public_key), host.name.clone());
    }

    /// The name that the host of a key had when the key was revoked; `None` if it was not revoked.
    pub(super) fn revoked_as(&self, public_key: &[u8]) -> Option<&str> {
        self.revoked_keys.get(&hash(public_key)).map(String::as_str)
    }

    /// `true` if all certificates that a revocation holds for have ended at `now`, in seconds since 1970. An authority
    /// that has not received the revocation may have renewed one, until its own certificate ended.
    pub(super) fn is_over(&self, revoked: &Revoked, now: u64) -> bool {
        let end = revoked.at.saturating_add(self.longest_seconds.saturating_mul(2));
        now > end && !self.earlier_hosts.contains(&revoked.name)
    }
}

fn hash(public_key: &[u8]) -> String {
    Digest::of(public_key).hex()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::authority::Authority;
    use crate::credentials::validity::DAY;
    use crate::credentials::{InitSettings, init, revoke};
    use headstart_block::ErrorKind;
    use std::fs;

    #[test]
    fn a_directory_without_records_has_those_of_its_revoked_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let hosts = || vec!["a".to_owned(), "b".to_owned()];
        init(&dir, &InitSettings { hosts: hosts(), ..InitSettings::default() }).unwrap();
        let authority = Authority::open(&dir).unwrap();
        assert_eq!(authority.records().unwrap(), Records { longest_seconds: 90 * DAY, ..Records::new() });
        revoke(&dir, &["b".to_owned()]).unwrap();
        let key_of = |name| authority.certificate_of(name).unwrap().unwrap().public_key;
        let written = authority.records().unwrap();
        assert_eq!((written.revoked_as(&key_of("b")), written.revoked_as(&key_of("a"))), (Some("b"), None));
        fs::remove_file(dir.join(RECORDS)).unwrap();
        let made = authority.records().unwrap();
        assert_eq!(made.revoked_keys, written.revoked_keys);
        assert_eq!(made.earlier_hosts, hosts().into_iter().collect());
        // A certificate may last for the longest time, and once more after a renewal; those of earlier hosts may last
        // longer.
        let over_at = |name: &str, now| {
            written.is_over(&Revoked { name: name.to_owned(), at: 1000 }, now)
                && (name == "c" || !made.is_over(&Revoked { name: name.to_owned(), at: 1000 }, now))
        };
        assert!(!over_at("c", 1000 + 180 * DAY) && over_at("c", 1001 + 180 * DAY) && over_at("b", u64::MAX));
        // A file of another kind or version is never overwritten.
        for (text, kind) in [("{}", ErrorKind::Corrupt), (r#"{"version":2}"#, ErrorKind::Unsupported)] {
            fs::write(dir.join(RECORDS), text).unwrap();
            assert_eq!(revoke(&dir, &["a".to_owned()]).unwrap_err().kind(), kind);
            assert_eq!(fs::read_to_string(dir.join(RECORDS)).unwrap(), text);
        }
    }
}
