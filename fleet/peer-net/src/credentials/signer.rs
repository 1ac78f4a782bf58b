//! The authority at work in an agent: it renews the certificates of hosts that ask over their connections.
//!
//! A connection proves a certificate and its key. That certificate is renewed: the request has to name the same host
//! and the same key, and roles, the time at which the host was added and the length of its validity are copied from it.
//! Nothing that the host sends changes them. The authority refuses
//!
//! * hosts that were revoked, according to the swarm or the cluster's directory, and revoked keys, under any name;
//! * hosts of which the cluster's directory has another certificate: another key, another time of addition, or fewer
//!   roles;
//! * certificates of earlier versions, which do not contain the time at which the host was added;
//! * more than [`PER_HOUR`] requests of one host in an hour, before they are parsed.
//!
//! The directory is only read. No certificate ends after the authority's own.

use super::authority::{Authority, DAYS_MAX, Grant};
use super::certificate::HostCertificate;
use super::records::Records;
use super::request::SigningRequest;
use super::validity::DAY;
use super::{CA, CA_KEY, Credentials, check_name};
use headstart_block::guarded::{OthersMay, check_own, check_own_directory};
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Requests of one host that are considered in an hour.
pub(crate) const PER_HOUR: usize = 12;

const HOUR_MS: u64 = 3_600_000;

/// Hosts whose requests are counted, at most.
const HOSTS_MAX: usize = 65_536;

/// The requests of hosts in the last hour.
#[derive(Debug, Default)]
pub(crate) struct Ration {
    /// The times of each host's requests, in milliseconds, in order.
    came: HashMap<String, VecDeque<u64>>,
}

impl Ration {
    /// Counts a request; returns `false` if the host has used up its share of the last hour.
    pub(crate) fn take(&mut self, host: &str, now_ms: u64) -> bool {
        let is_over = |at: u64| now_ms.saturating_sub(at) >= HOUR_MS;
        if self.came.len() >= HOSTS_MAX && !self.came.contains_key(host) {
            self.came.retain(|_, came| came.back().is_some_and(|at| !is_over(*at)));
            if self.came.len() >= HOSTS_MAX {
                return false;
            }
        }
        let came = self.came.entry(host.to_owned()).or_default();
        while came.front().is_some_and(|at| is_over(*at)) {
            came.pop_front();
        }
        if came.len() >= PER_HOUR {
            return false;
        }
        came.push_back(now_ms);
        true
    }
}

/// An authority that renews certificates.
pub(crate) struct Signer {
    authority: Authority,
    ration: Mutex<Ration>,
}

impl Signer {
    /// The authority in a cluster's directory, in which `ca.pem` and `ca.key` have to be, for a host of that cluster.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if other users can read the key or the host's certificate does not give the role,
    /// [`ErrorKind::Corrupt`] if it is the authority of another cluster; errors of the operating system.
    pub(crate) fn open(dir: &Path, credentials: &Credentials) -> Result<Self> {
        check_own_directory(dir, OthersMay::WriteNothing)?;
        let key = dir.join(CA_KEY);
        check_own(&key)?;
        let mode = fs::metadata(&key).map(|file| file.permissions().mode());
        let mode = mode.map_err(|e| {
            Error::io("cannot read", e)
                .about(key.display())
                .remedy("name the directory that `headstart swarm init` made")
        })?;
        if mode & 0o077 != 0 {
            return Err(Error::new(ErrorKind::Denied, "other users can read the authority's key")
                .about(key.display())
                .remedy(format!("run `chmod 600 {}`", key.display())));
        }
        let authority = Authority::open(dir)?;
        if !credentials.authority.contains(authority.certificate()) {
            return Err(Error::corrupt("is the authority of another cluster than this host's")
                .about(dir.join(CA).display())
                .remedy("name the directory that this host's certificate was made in"));
        }
        Ok(Self { authority, ration: Mutex::default() })
    }

    /// Signs the renewal of the certificate that a connection has proved, in DER. `now` is in seconds since 1970,
    /// `now_ms` in milliseconds of a monotonic clock.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the host asks too often or the authority cannot be read, [`ErrorKind::Denied`] if
    /// it is not to be renewed, [`ErrorKind::Conflict`] if it would end no later; the errors of
    /// [`SigningRequest::parse`].
    pub(crate) fn renew(
        &self,
        proved: &HostCertificate,
        request: &[u8],
        now: u64,
        now_ms: u64,
    ) -> Result<Vec<u8>> {
        let is_admitted = {
            let mut ration = self.ration.lock();
            ration.take(&proved.name, now_ms)
        };
        if !is_admitted {
            let error = format!("more than {PER_HOUR} requests of one host in an hour");
            return Err(Error::new(ErrorKind::Unavailable, error));
        }
        let request = SigningRequest::parse(request)?;
        if request.name != proved.name || request.public_key != proved.public_key {
            return Err(denied(
                "the request is not for the name and the key of the connection's certificate",
            ));
        }
        let Some(added) = proved.added else {
            return Err(denied("a certificate of an earlier version does not say when its host was added")
                .remedy(
                    "run `headstart swarm init DIR --host NAME` where the authority is, and copy the files that it \
                     makes",
                ));
        };
        self.check_records(proved)?;
        if now > proved.validity.not_after {
            return Err(denied("the certificate has ended"));
        }
        let seconds = proved.validity.lifetime().min(u64::from(DAYS_MAX) * DAY);
        let validity = self.authority.validity(seconds, now)?;
        if validity.not_after <= proved.validity.not_after {
            let cause = "the authority's own certificate ends too soon for the host's to end later";
            let remedy = "make a new cluster by `headstart swarm init` before that";
            return Err(Error::new(ErrorKind::Conflict, cause).remedy(remedy));
        }
        let grant = Grant { name: &proved.name, roles: proved.roles, added, validity };
        Ok(self.authority.sign(&grant, &request.key()?)?.der().to_vec())
    }

    /// Checks a certificate against the cluster's directory, if the host is in it.
    fn check_records(&self, proved: &HostCertificate) -> Result<()> {
        // Names in certificates of the authority are valid, but this one is about to be a path.
        check_name(&proved.name)?;
        let unreadable = |error: Error| {
            tracing::warn!(%error, "certificates cannot be renewed: the authority's directory cannot be read");
            Error::new(
                ErrorKind::Unavailable,
                "the authority cannot read its records; its host's log says why",
            )
        };
        let list = self.authority.trust_list().map_err(unreadable)?;
        if list.is_some_and(|(list, _)| list.revocation(proved).is_some()) {
            return Err(denied("the host was revoked"));
        }
        let records = Records::read(self.authority.dir()).map_err(unreadable)?;
        if records.is_some_and(|records| records.revoked_as(&proved.public_key).is_some()) {
            return Err(denied("the host's key was revoked"));
        }
        let Some(known) = self.authority.certificate_of(&proved.name).map_err(unreadable)? else {
            return Ok(());
        };
        let is_same_host = known.public_key == proved.public_key
            && known.added.is_none_or(|added| Some(added) == proved.added);
        if !is_same_host {
            return Err(denied("the authority knows another host of this name"));
        }
        if !known.roles.covers(proved.roles) {
            return Err(denied("the authority knows the host with fewer roles"));
        }
        Ok(())
    }
}

fn denied(cause: &'static str) -> Error {
    Error::new(ErrorKind::Denied, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::validity::Validity;
    use crate::credentials::{HOST, InitSettings, Roles, init, revoke, unix_now};
    use proptest::prelude::*;
    use std::path::PathBuf;

    struct Scene {
        _dir: tempfile::TempDir,
        cluster: PathBuf,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let scene = Self { cluster: dir.path().join("cluster"), _dir: dir };
            scene.init(&["a", "b", "c"]);
            scene
        }

        fn init(&self, hosts: &[&str]) {
            let hosts = hosts.iter().map(|name| (*name).to_owned()).collect();
            let settings = InitSettings { hosts, roots: vec!["b".to_owned()], ..InitSettings::default() };
            init(&self.cluster, &settings).unwrap();
        }

        fn credentials(&self, name: &str) -> Credentials {
            Credentials::load(&self.cluster.join("hosts").join(name), name).unwrap()
        }

        fn signer(&self) -> Signer {
            Signer::open(&self.cluster, &self.credentials("a")).unwrap()
        }
    }

    fn why(signed: Result<Vec<u8>>) -> String {
        signed.unwrap_err().to_string()
    }

    #[test]
    fn a_host_gets_what_it_has_for_longer_and_nothing_else() {
        let scene = Scene::new();
        let (signer, now) = (scene.signer(), unix_now());
        let (b, c) = (scene.credentials("b").identity, scene.credentials("c").identity);
        let later = now + 60 * DAY;
        let der = signer.renew(&b.says(), &b.request().unwrap(), later, 0).unwrap();
        b.renew(&der, later).unwrap();
        assert_eq!(b.says().roles, Roles { root: true, ..Roles::default() });
        assert_eq!(b.says().validity, Validity { not_before: later - DAY, not_after: later + 90 * DAY });
        // A request of another host, by its name or by its key.
        let said = why(signer.renew(&b.says(), &c.request().unwrap(), later, 0));
        assert!(said.contains("not for the name and the key"), "{said}");
        let key = rcgen::KeyPair::generate().unwrap();
        let other_key = SigningRequest::make("b", &key).unwrap();
        let said = why(signer.renew(&b.says(), other_key.der(), later, 0));
        assert!(said.contains("not for the name and the key"), "{said}");
        assert!(signer.renew(&b.says(), &[0x30; 4096], later, 0).is_err());
        // A certificate that has ended, or one of an earlier version.
        let ended = HostCertificate { validity: Validity { not_before: 0, not_after: now }, ..c.says() };
        assert!(why(signer.renew(&ended, &c.request().unwrap(), later, 0)).contains("has ended"));
        let earlier = HostCertificate { added: None, ..c.says() };
        assert!(why(signer.renew(&earlier, &c.request().unwrap(), later, 0)).contains("earlier version"));
    }

    #[test]
    fn revocations_in_the_directory_count_at_once() {
        let scene = Scene::new();
        let (signer, later) = (scene.signer(), unix_now() + 60 * DAY);
        let (b, c) = (scene.credentials("b").identity, scene.credentials("c").identity);
        let more = HostCertificate { roles: Roles::ALL, ..c.says() };
        assert!(why(signer.renew(&more, &c.request().unwrap(), later, 0)).contains("fewer roles"));
        // A revocation in the directory, which no agent has received, counts at once, at the next request.
        revoke(&scene.cluster, &["c".to_owned()]).unwrap();
        assert!(why(signer.renew(&c.says(), &c.request().unwrap(), later, 0)).contains("was revoked"));
        let key_of_c = fs::read_to_string(scene.cluster.join("hosts/c/host.key")).unwrap();
        let key_of_c = rcgen::KeyPair::from_pem(&key_of_c).unwrap();
        // A host that is added again is another host of that name; the one before it gets nothing, even without the
        // list.
        scene.init(&["c"]);
        let again = scene.credentials("c").identity;
        fs::remove_file(scene.cluster.join("trust")).unwrap();
        let renamed = HostCertificate { name: "d".to_owned(), ..c.says() };
        let request = SigningRequest::make("d", &key_of_c).unwrap();
        assert!(why(signer.renew(&renamed, request.der(), later, 0)).contains("key was revoked"));
        fs::remove_file(scene.cluster.join("records.json")).unwrap();
        assert!(
            why(signer.renew(&c.says(), &c.request().unwrap(), later, 0))
                .contains("another host of this name")
        );
        signer.renew(&again.says(), &again.request().unwrap(), later, 0).unwrap();
        // The authority's key and certificate are enough.
        fs::remove_dir_all(scene.cluster.join("hosts")).unwrap();
        signer.renew(&b.says(), &b.request().unwrap(), later, 0).unwrap();
        fs::write(scene.cluster.join("trust"), "nonsense").unwrap();
        let said = why(signer.renew(&b.says(), &b.request().unwrap(), later, 0));
        assert!(said.contains("cannot read its records") && !said.contains("cluster/"), "{said}");
    }

    #[test]
    fn no_certificate_ends_after_the_authority() {
        let scene = Scene::new();
        let signer = scene.signer();
        let b = scene.credentials("b").identity;
        let end = signer.authority.validity(u64::MAX, unix_now()).unwrap().not_after;
        let proved = |not_after| HostCertificate {
            validity: Validity { not_before: end - 100 * DAY, not_after },
            ..b.says()
        };
        let der = signer.renew(&proved(end - DAY), &b.request().unwrap(), end - 5 * DAY, 0).unwrap();
        assert_eq!(b.verified(&der, end - 4 * DAY).unwrap().validity.not_after, end);
        let said = why(signer.renew(&proved(end), &b.request().unwrap(), end - 5 * DAY, 0));
        assert!(said.contains("authority's own certificate ends"), "{said}");
    }

    #[test]
    fn an_authority_that_does_not_fit_or_that_others_can_read_is_refused() {
        let (scene, other) = (Scene::new(), Scene::new());
        let open = |dir: &Path| Signer::open(dir, &scene.credentials("a")).err().map(|e| e.to_string());
        assert!(open(&other.cluster).unwrap().contains("of another cluster"));
        assert!(open(&scene.cluster.join("hosts/a")).unwrap().contains("ca.key"));
        fs::copy(other.cluster.join(CA), scene.cluster.join(CA)).unwrap();
        assert!(open(&scene.cluster).unwrap().contains("is not the key of the certificate"));
        fs::copy(scene.cluster.join("hosts/a").join(CA), scene.cluster.join(CA)).unwrap();
        fs::set_permissions(scene.cluster.join(CA_KEY), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(open(&scene.cluster).unwrap().contains("other users can read"));
        assert!(scene.cluster.join("hosts/a").join(HOST).exists());
    }

    proptest! {
        #[test]
        fn no_host_gets_more_than_its_share_of_any_hour_and_none_takes_anothers(
            asks in prop::collection::vec((0u8..4, 0u64..HOUR_MS / 4), 1..300),
        ) {
            let (mut ration, mut now, mut given) = (Ration::default(), 0, Vec::<(u8, u64)>::new());
            for (host, pause) in asks {
                now += pause;
                let lately = given.iter().filter(|(of, at)| *of == host && now - at < HOUR_MS).count();
                let is_given = ration.take(&host.to_string(), now);
                prop_assert_eq!(is_given, lately < PER_HOUR);
                if is_given {
                    given.push((host, now));
                }
            }
        }
    }

    #[test]
    fn hosts_without_end_take_no_memory_without_end() {
        let mut ration = Ration::default();
        for host in 0..HOSTS_MAX {
            assert!(ration.take(&host.to_string(), 0));
        }
        assert!(!ration.take("one more", 1) && ration.take("7", 1));
        assert!(ration.take("one more", HOUR_MS));
        assert_eq!(ration.came.len(), 2);
    }
}
