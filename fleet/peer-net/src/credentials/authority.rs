//! The cluster's authority, which makes hosts members, in a directory that stays with the operator.
//!
//! A run of [`init`] makes the missing files, adds roles, and renews certificates that an earlier version made or that
//! end soon. The keys of hosts stay as they are: a certificate is signed again for the key that it had.

use super::certificate::{HostCertificate, Roles, added_uri, unix_now};
use super::cluster_lock::ClusterLock;
use super::records::Records;
use super::validity::{DAY, Validity};
use super::{CA, CA_KEY, GOSSIP_KEY, HOST, HOST_KEY, HOSTS, TRUST, certificates, check_name, hex, read_text};
use aws_lc_rs::rand;
use headstart_block::guarded::{OthersMay, check_own_directory, directory_of, not_made_in};
use headstart_block::{Error, ErrorKind, Result, saturating};
use headstart_daemon::file::{Readers, replace};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The number of days for which a host's certificate is valid if the caller does not choose another number.
pub const DAYS: u32 = 90;
/// The largest number of days that a caller may choose for a host's certificate; the smallest is 1.
pub const DAYS_MAX: u32 = 3650;

/// The number of days for which the authority's own certificate is valid.
const AUTHORITY_DAYS: u32 = 3650;

/// The arguments of [`init`]: the hosts of a cluster and their roles, by name.
#[derive(Clone, Debug, Default)]
pub struct InitSettings {
    /// The names of the hosts. A host that is listed below for a role need not be listed here.
    pub hosts: Vec<String>,
    /// The names of hosts that may be roots, which fetch from stores for other hosts.
    pub roots: Vec<String>,
    /// The names of hosts that may be trackers, which count what the disks of all hosts read while they boot.
    pub trackers: Vec<String>,
    /// The names of hosts that may give orders to others, such as to fetch or pin an image. If no host of the
    /// cluster has this role, `default_operator` gets it.
    pub operators: Vec<String>,
    /// The names of hosts that renew the certificates of others. If no host of the cluster has this role,
    /// `default_operator` gets it.
    pub authorities: Vec<String>,
    /// The name of the host that becomes operator or authority if no host of the cluster has that role. If the name
    /// is `None`, or is not among the hosts of this call, the first host of this call gets the role.
    pub default_operator: Option<String>,
    /// The number of days for which hosts' certificates are valid, 1 to [`DAYS_MAX`]; they end earlier if the
    /// authority's own certificate does. `None`: [`DAYS`].
    pub days: Option<u32>,
}

/// The outcome for a certificate or a key: made, renewed, or left as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Made {
    /// Made now, because there was none.
    New,
    /// Made again, for the key that the certificate had. Only certificates are renewed.
    Renewed,
    /// Left as it was.
    Kept,
}

/// A host whose certificate [`init`] or [`add`](super::add) has made, renewed or kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeHost {
    /// The host's name.
    pub name: String,
    /// The path of the directory with the host's files, to be copied to the host.
    pub directory: PathBuf,
    /// The roles that the host's certificate permits.
    pub roles: Roles,
    /// The result for the host's certificate: new, renewed or kept.
    pub made: Made,
    /// The last second in which the host's certificate is valid, in seconds since 1970.
    pub not_after: u64,
}

/// The result of [`init`]: the cluster's authority and hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeCluster {
    /// The result for the authority's key and certificate: new, or kept from an earlier call.
    pub authority: Made,
    /// The hosts of this call, in the order in which the settings name them.
    pub hosts: Vec<MadeHost>,
}

/// Creates the certificate authority of a cluster in `dir`, and the key and certificate of each host. Keys of an
/// earlier call are kept, and certificates are renewed only if two thirds of their time are over, they lack a role, or
/// an earlier version made them. So another call can add hosts and roles.
///
/// # Errors
/// [`ErrorKind::Invalid`] if a name or the number of days is not valid, [`ErrorKind::Conflict`] if `dir` contains files
/// that do not belong to a cluster, or if another command changes the cluster, [`ErrorKind::Denied`] if users other
/// than root and this one may write to `dir`, [`ErrorKind::Unavailable`] if the authority's own certificate has ended;
/// errors of the operating system. A valid name is 1 to 253 bytes of lower-case letters, digits, hyphens and dots, as
/// in DNS.
pub fn init(dir: &Path, settings: &InitSettings) -> Result<MadeCluster> {
    let mut wanted = settings.roles();
    let names = settings.names();
    for name in &names {
        check_name(name)?;
    }
    let days = check_days(settings.days)?;
    check_own_directory(dir, OthersMay::WriteNothing)?;
    refuse_foreign(dir, &super::OWN_FILES)?;
    make_dir(dir)?;
    let _lock = ClusterLock::take(dir)?;
    let made = if dir.join(CA).exists() { Made::Kept } else { Made::New };
    if made == Made::New {
        make_authority(dir)?;
    }
    let authority = Authority::open(dir)?;
    authority.kept_records()?;
    authority.default_roles(settings, &names, &mut wanted)?;
    let make = |name: &String| {
        let roles = wanted.get(name).copied().unwrap_or_default();
        authority.make_host(name, roles, days)
    };
    let hosts = names.iter().map(make).collect::<Result<_>>()?;
    Ok(MadeCluster { authority: made, hosts })
}

/// The number of days for which certificates are valid.
///
/// # Errors
/// [`ErrorKind::Invalid`] if there are too few or too many.
pub(super) fn check_days(days: Option<u32>) -> Result<u32> {
    let days = days.unwrap_or(DAYS);
    if (1..=DAYS_MAX).contains(&days) {
        return Ok(days);
    }
    Err(Error::invalid(format!("certificates of {days} days"))
        .remedy(format!("ask for 1 to {DAYS_MAX} days")))
}

impl InitSettings {
    fn roles(&self) -> BTreeMap<String, Roles> {
        let none = Roles::default();
        let mut wanted: BTreeMap<String, Roles> = BTreeMap::new();
        for (names, role) in [
            (&self.roots, Roles { root: true, ..none }),
            (&self.trackers, Roles { tracker: true, ..none }),
            (&self.operators, Roles { operator: true, ..none }),
            (&self.authorities, Roles { authority: true, ..none }),
        ] {
            for name in names {
                let roles = wanted.entry(name.clone()).or_default();
                *roles = roles.with(role);
            }
        }
        wanted
    }

    /// All hosts that are named, each once.
    fn names(&self) -> Vec<String> {
        let lists = [&self.hosts, &self.roots, &self.trackers, &self.operators, &self.authorities];
        let mut names: Vec<String> = Vec::new();
        for name in lists.into_iter().flatten() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

/// The content of a certificate that is to be signed.
#[derive(Clone, Copy)]
pub(crate) struct Grant<'a> {
    pub(crate) name: &'a str,
    pub(crate) roles: Roles,
    /// The time at which the host was added, in seconds since 1970.
    pub(crate) added: u64,
    pub(crate) validity: Validity,
}

/// An authority that can sign.
pub(crate) struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// The last second in which its own certificate is valid, since 1970.
    not_after: u64,
}

impl Authority {
    /// The authority in a cluster's directory.
    ///
    /// # Errors
    /// Errors of the operating system if it is not there or cannot be read; [`ErrorKind::Corrupt`] if its key and its
    /// certificate do not belong together.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let key_path = dir.join(CA_KEY);
        let key = KeyPair::from_pem(&read_text(&key_path)?)
            .map_err(|e| Error::corrupt("is not a private key").caused_by(e).about(key_path.display()))?;
        let path = dir.join(CA);
        let no_authority = || Error::corrupt("is not a certificate of an authority").about(path.display());
        let certificate = certificates(&path)?.into_iter().next().ok_or_else(no_authority)?;
        let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|e| no_authority().caused_by(e))?;
        if parsed.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(
                Error::corrupt("is not the key of the certificate beside it").about(key_path.display())
            );
        }
        // Times before 1970 are as far away as 1970.
        let not_after = saturating(parsed.validity().not_after.timestamp());
        let issuer = Issuer::new(authority_params(), key);
        Ok(Self { dir: dir.to_owned(), issuer, certificate, not_after })
    }

    /// Its own certificate.
    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The validity of a certificate that is signed now and lasts for `seconds`, but not longer than the authority's
    /// own.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the authority's own has ended.
    pub(super) fn validity(&self, seconds: u64, now: u64) -> Result<Validity> {
        let seconds = seconds.min(self.not_after.saturating_sub(now));
        if seconds == 0 {
            return Err(Error::new(ErrorKind::Unavailable, "the authority's certificate has ended")
                .about(self.dir.join(CA).display())
                .remedy("make a new cluster by `headstart swarm init` in another directory"));
        }
        Ok(Validity::of(seconds, now))
    }

    /// The cluster's directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The key that it signs with.
    pub(super) fn key(&self) -> &KeyPair {
        self.issuer.key()
    }

    /// The records, with everything in the directory that the trust list revokes. They are made if the directory is one
    /// of an earlier version.
    ///
    /// # Errors
    /// As [`Records::read`]; an error if a host's certificate cannot be read.
    pub(super) fn records(&self) -> Result<Records> {
        let list = self.trust_list()?.map(|(list, _)| list);
        let revoked = || list.iter().flat_map(|list| &list.revoked).map(|revoked| &revoked.name);
        let mut records = match Records::read(self.dir())? {
            Some(records) => records,
            None => {
                let hosts = self.hosts()?.into_iter().chain(revoked().cloned());
                let mut records = Records::new();
                records.earlier_hosts = hosts.collect();
                records
            }
        };
        for name in revoked() {
            if let (Some(list), Some(certificate)) = (&list, self.certificate_of(name)?)
                && list.revocation(&certificate).is_some()
            {
                records.revoke(&certificate);
            }
        }
        Ok(records)
    }

    /// The validity of a certificate that is signed now for `days`, which is recorded.
    ///
    /// # Errors
    /// As [`validity`](Self::validity) and [`kept_records`](Self::kept_records).
    pub(super) fn valid_for(&self, days: u32) -> Result<Validity> {
        let seconds = u64::from(days) * DAY;
        let validity = self.validity(seconds, unix_now())?;
        let mut records = Records::read(self.dir())?.map_or_else(|| self.kept_records(), Ok)?;
        if records.longest_seconds < seconds {
            records.longest_seconds = seconds;
            records.write(self.dir())?;
        }
        Ok(validity)
    }

    /// The records, written if they have changed.
    ///
    /// # Errors
    /// As [`Records::read`]; an error if a host's certificate cannot be read; errors of the operating system.
    pub(super) fn kept_records(&self) -> Result<Records> {
        let records = self.records()?;
        if Records::read(self.dir())?.as_ref() != Some(&records) {
            records.write(self.dir())?;
        }
        Ok(records)
    }

    pub(super) fn host_dir(&self, name: &str) -> PathBuf {
        self.dir.join(HOSTS).join(name)
    }

    /// The certificate of a host in this directory; `None` if it has none.
    pub(super) fn certificate_of(&self, name: &str) -> Result<Option<HostCertificate>> {
        let path = self.host_dir(name).join(HOST);
        if !path.exists() {
            return Ok(None);
        }
        let certificates = certificates(&path)?;
        let first = certificates.first().map(HostCertificate::parse).transpose();
        first.map_err(|e| e.about(path.display()))
    }

    /// The names of the hosts that have a directory.
    pub(super) fn hosts(&self) -> Result<Vec<String>> {
        let path = self.dir.join(HOSTS);
        let entries = match std::fs::read_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| Error::io("cannot list", e).about(path.display()))?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| check_name(name).is_ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Gives the roles of operator and authority to a host if no host of the cluster has them.
    fn default_roles(
        &self,
        settings: &InitSettings,
        names: &[String],
        wanted: &mut BTreeMap<String, Roles>,
    ) -> Result<()> {
        let own = settings.default_operator.as_ref();
        let default = own.and_then(|own| names.iter().find(|name| *name == own)).or_else(|| names.first());
        let Some(default) = default else { return Ok(()) };
        let members = self.members()?;
        let roles = wanted.values().chain(members.iter().map(|(_, certificate)| &certificate.roles));
        let all = roles.fold(Roles::default(), |all, roles| all.with(*roles));
        let missing = Roles { operator: !all.operator, authority: !all.authority, ..Roles::default() };
        let roles = wanted.entry(default.clone()).or_default();
        *roles = roles.with(missing);
        Ok(())
    }

    /// Makes the files of a host, or those that it lacks.
    fn make_host(&self, name: &str, wanted: Roles, days: u32) -> Result<MadeHost> {
        let directory = self.host_dir(name);
        let before = self.member(name)?;
        let roles = before.as_ref().map_or(wanted, |before| before.roles.with(wanted));
        if let Some(before) =
            before.as_ref().filter(|before| before.roles == roles && !before.is_due(unix_now()))
        {
            let not_after = before.validity.not_after;
            return Ok(MadeHost { name: name.to_owned(), directory, roles, made: Made::Kept, not_after });
        }
        self.make_host_dir(name)?;
        let added = match before.as_ref().and_then(|before| before.added) {
            Some(added) => added,
            None => self.added_now(name)?,
        };
        let validity = self.valid_for(days)?;
        let grant = Grant { name, roles, added, validity };
        let certificate = match &before {
            Some(before) => self.sign(&grant, &public_key(&before.public_key)?)?,
            None => {
                let key = KeyPair::generate().map_err(|e| cannot_make(e).about(name))?;
                replace(&directory.join(HOST_KEY), key.serialize_pem().as_bytes(), Readers::Owner)?;
                self.sign(&grant, &key)?
            }
        };
        self.write_host(name, &certificate)?;
        let made = if before.is_some() { Made::Renewed } else { Made::New };
        Ok(MadeHost { name: name.to_owned(), directory, roles, made, not_after: validity.not_after })
    }

    fn make_host_dir(&self, name: &str) -> Result<PathBuf> {
        make_dir(&self.dir.join(HOSTS))?;
        let directory = self.host_dir(name);
        make_dir(&directory)?;
        Ok(directory)
    }

    /// Writes the files of a host beside its key; returns their directory.
    pub(super) fn write_host(&self, name: &str, certificate: &Certificate) -> Result<PathBuf> {
        let directory = self.make_host_dir(name)?;
        replace(&directory.join(CA), read_text(&self.dir.join(CA))?.as_bytes(), Readers::All)?;
        replace(&directory.join(GOSSIP_KEY), self.gossip_key()?.as_bytes(), Readers::Owner)?;
        if let Some((_, list)) = self.trust_list()? {
            replace(&directory.join(TRUST), &list, Readers::Owner)?;
        }
        replace(&directory.join(HOST), certificate.pem().as_bytes(), Readers::All)?;
        Ok(directory)
    }

    /// Signs a certificate for a host's key.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be signed.
    pub(crate) fn sign(&self, grant: &Grant<'_>, key: &impl PublicKeyData) -> Result<Certificate> {
        let failed = |e| cannot_make(e).about(grant.name);
        let mut params = CertificateParams::new(vec![grant.name.to_owned()]).map_err(failed)?;
        for uri in grant.roles.uris().chain([added_uri(grant.added)]) {
            params.subject_alt_names.push(SanType::URI(uri.try_into().map_err(failed)?));
        }
        params.distinguished_name.push(DnType::CommonName, grant.name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, grant.validity);
        params.signed_by(key, &self.issuer).map_err(failed)
    }
}

impl HostCertificate {
    /// `true` if the certificate is to be renewed: an earlier version made it, or two thirds of its time are over.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.is_of_earlier_version()
            || now.saturating_add(self.validity.length() / 3) >= self.validity.not_after
    }
}

/// A host's public key, from its certificate.
pub(super) fn public_key(der: &[u8]) -> Result<SubjectPublicKeyInfo> {
    SubjectPublicKeyInfo::from_der(der).map_err(cannot_make)
}

pub(super) fn cannot_make(error: rcgen::Error) -> Error {
    Error::new(ErrorKind::Io, "cannot make a certificate").caused_by(error)
}

fn set_validity(params: &mut CertificateParams, validity: Validity) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(validity.not_before);
    params.not_after = epoch + Duration::from_secs(validity.not_after);
}

fn make_authority(dir: &Path) -> Result<()> {
    let failed =
        |e: rcgen::Error| Error::new(ErrorKind::Io, "cannot make a certificate authority").caused_by(e);
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = authority_params();
    set_validity(&mut params, Validity::of(u64::from(AUTHORITY_DAYS) * DAY, unix_now()));
    let certificate = params.self_signed(&key).map_err(failed)?;
    let mut gossip_key = [0; 32];
    rand::fill(&mut gossip_key).map_err(|_| Error::new(ErrorKind::Io, "cannot draw a key"))?;
    replace(&dir.join(GOSSIP_KEY), format!("{}\n", hex(&gossip_key)).as_bytes(), Readers::Owner)?;
    replace(&dir.join(CA_KEY), key.serialize_pem().as_bytes(), Readers::Owner)?;
    Records::new().write(dir)?;
    // This comes last: if it is there, the others are.
    replace(&dir.join(CA), certificate.pem().as_bytes(), Readers::All)
}

/// The content of an authority's certificate except its key and its time: earlier versions made the same.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "headstart swarm");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Refuses a directory that holds something other than these files.
pub(super) fn refuse_foreign(dir: &Path, own: &[&str]) -> Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|e| not_made_in(dir, "cannot list", e).about(dir.display()))?,
    };
    for entry in entries {
        let entry = entry.map_err(|e| Error::io("cannot list", e).about(dir.display()))?;
        let name = entry.file_name();
        // A run that was killed leaves files whose names end in `.new`.
        let name = name.to_string_lossy();
        let name = name.strip_suffix(".new").unwrap_or(&name);
        if !own.contains(&name) {
            return Err(Error::new(ErrorKind::Conflict, format!("holds something already: {name}"))
                .about(dir.display())
                .remedy("name a directory of its own: keys are kept there"));
        }
    }
    Ok(())
}

pub(super) fn make_dir(path: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(not_made_in(directory_of(path), "cannot make a directory", e).about(path.display()))
        }
        _ => Ok(()),
    }
}
