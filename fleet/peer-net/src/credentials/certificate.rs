//! A host's certificate as the swarm reads it: the host's name, its roles, the time at which it was added, its
//! validity.
//!
//! Beside the name, which is a DNS name, a certificate has URIs among its alternative names:
//!
//! ```text
//! headstart:role:root         the host may be a root: others name their blobs to it and accept the bytes that it
//! pushes
//! headstart:role:tracker      the host may count what disks of all hosts read
//! headstart:role:operator     the host may give orders to others: bring, pin, unpin
//! headstart:role:authority    the host renews the certificates of others
//! headstart:added:SECONDS     the time at which the host was added to the cluster, since 1970
//! ```
//!
//! A renewed certificate keeps the name, the roles and the time at which the host was added: a revocation names the
//! host and a time, and so it holds for all certificates that descend from the one that was stolen.
//!
//! Certificates of earlier versions of headstart have none of these URIs. Their hosts are plain members.

use super::validity::Validity;
use headstart_block::{Error, Result, saturating};
use rustls::pki_types::{CertificateDer, UnixTime};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

const ROLE: &str = "headstart:role:";
const ADDED: &str = "headstart:added:";

/// The roles that a host's certificate permits. A host may use fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Roles {
    /// `true` if the host may be a root, which fetches from stores for other hosts.
    pub root: bool,
    /// `true` if the host may be a tracker, which counts what the disks of all hosts read while they boot.
    pub tracker: bool,
    /// `true` if the host may give orders to other hosts, such as to fetch or pin an image.
    pub operator: bool,
    /// `true` if the host may renew the certificates of other hosts.
    pub authority: bool,
}

impl Roles {
    /// All four roles. Hosts of a swarm without certificates have them.
    pub const ALL: Self = Self { root: true, tracker: true, operator: true, authority: true };

    const NAMES: [&'static str; 4] = ["root", "tracker", "operator", "authority"];

    fn flags(self) -> [bool; 4] {
        [self.root, self.tracker, self.operator, self.authority]
    }

    /// The names of the permitted roles: `root`, `tracker`, `operator`, `authority`, in this order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().zip(self.flags()).filter_map(|(name, has)| has.then_some(name))
    }

    /// The union: roles that are in `self` or in `other`.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            root: self.root || other.root,
            tracker: self.tracker || other.tracker,
            operator: self.operator || other.operator,
            authority: self.authority || other.authority,
        }
    }

    /// Returns `true` if `self` has every role that `other` has.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.with(other) == self
    }

    /// Adds a role by its name; unknown names are ignored, because a later version may have more roles.
    fn add(&mut self, name: &str) {
        match name {
            "root" => self.root = true,
            "tracker" => self.tracker = true,
            "operator" => self.operator = true,
            "authority" => self.authority = true,
            _ => {}
        }
    }

    /// The roles as the URIs of a certificate.
    pub(super) fn uris(self) -> impl Iterator<Item = String> {
        self.names().map(|name| format!("{ROLE}{name}"))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.write_str(if names.is_empty() { "plain member" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// The time at which a host was added, as the URI of a certificate.
pub(super) fn added_uri(seconds: u64) -> String {
    format!("{ADDED}{seconds}")
}

/// The content of a host's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCertificate {
    /// The first of its DNS names.
    pub(crate) name: String,
    pub(crate) roles: Roles,
    /// The time at which the host was added to the cluster, in seconds since 1970; `None` in certificates of earlier
    /// versions.
    pub(crate) added: Option<u64>,
    pub(crate) validity: Validity,
    /// Its public key, a SubjectPublicKeyInfo in DER.
    pub(crate) public_key: Vec<u8>,
}

impl HostCertificate {
    /// Reads a certificate; nothing in it is verified.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it is not a certificate, or has no name.
    pub(crate) fn parse(der: &CertificateDer<'_>) -> Result<Self> {
        let nonsense = || Error::corrupt("is not a certificate of a host");
        let (_, parsed) = X509Certificate::from_der(der).map_err(|e| nonsense().caused_by(e))?;
        let names = parsed.subject_alternative_name().map_err(|e| nonsense().caused_by(e))?;
        let names = names.as_ref().map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let mut certificate = Self {
            name: String::new(),
            roles: Roles::default(),
            added: None,
            // Times before 1970 are as far away as 1970.
            validity: Validity {
                not_before: saturating(parsed.validity().not_before.timestamp()),
                not_after: saturating(parsed.validity().not_after.timestamp()),
            },
            public_key: parsed.public_key().raw.to_vec(),
        };
        for name in names {
            match name {
                GeneralName::DNSName(name) if certificate.name.is_empty() => {
                    (*name).clone_into(&mut certificate.name);
                }
                GeneralName::URI(uri) => certificate.add_uri(uri),
                _ => {}
            }
        }
        if certificate.name.is_empty() { Err(nonsense()) } else { Ok(certificate) }
    }

    fn add_uri(&mut self, uri: &str) {
        if let Some(role) = uri.strip_prefix(ROLE) {
            self.roles.add(role);
        } else if let Some(seconds) = uri.strip_prefix(ADDED).and_then(|seconds| seconds.parse().ok()) {
            self.added = Some(seconds);
        }
    }

    /// `true` if an earlier version of headstart made it, which knew no roles.
    pub(crate) fn is_of_earlier_version(&self) -> bool {
        self.added.is_none()
    }
}

/// Seconds since 1970; 0 if the clock is before that.
#[expect(clippy::disallowed_methods, reason = "certificates are valid by the calendar")]
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The calendar for the TLS library, whose own calendar panics if the clock is before 1970.
#[derive(Debug)]
pub(crate) struct Calendar;

impl rustls::time_provider::TimeProvider for Calendar {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(unix_now())))
    }
}
