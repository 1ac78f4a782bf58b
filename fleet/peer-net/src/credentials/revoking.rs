//! Revocation of hosts and replacement of the gossip key: the authority signs a list that is sent to all hosts.

use super::authority::Authority;
use super::certificate::{HostCertificate, unix_now};
use super::cluster_lock::ClusterLock;
use super::records::Records;
use super::trust_list::{TRUST_LIST_MAX, TrustList};
use super::{CA, GOSSIP_KEY, TRUST, certificates, hex, read_text};
use aws_lc_rs::rand;
use headstart_block::digest::parse_hex;
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::file::{Readers, read, replace};
use std::path::Path;

/// The cluster's trust list: the revoked hosts and the key of the gossip, signed by the authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedTrustList {
    /// The number of the list. It grows with each list, and hosts keep the one with the highest number.
    pub number: u64,
    /// The names of all revoked hosts, those of earlier lists included.
    pub revoked: Vec<String>,
    /// The signed bytes of the list, in the form that is sent to hosts.
    pub list: Vec<u8>,
}

impl PublishedTrustList {
    fn of(list: &TrustList, bytes: Vec<u8>) -> Self {
        let revoked = list.revoked.iter().map(|revoked| revoked.name.clone()).collect();
        Self { number: list.number, revoked, list: bytes }
    }
}

/// Revokes all certificates that the named hosts have, and replaces the gossip key, which those hosts know. Writes the
/// new trust list to the cluster's directory `dir` and returns it; the caller sends it to the hosts.
///
/// # Errors
/// [`ErrorKind::NotFound`] if `dir` has no certificate for one of the names: then no host is revoked.
/// [`ErrorKind::Conflict`] if another command changes the cluster; errors of the operating system. After these the new
/// list may be in force already: [`published`] returns it then.
pub fn revoke(dir: &Path, names: &[String]) -> Result<PublishedTrustList> {
    revoke_at(dir, names, unix_now())
}

/// Revokes hosts as [`revoke`] does, at the time `now`. The clock may have been set back since the hosts were added.
fn revoke_at(dir: &Path, names: &[String], now: u64) -> Result<PublishedTrustList> {
    let _lock = ClusterLock::take(dir)?;
    let authority = Authority::open(dir)?;
    let mut revoked = Vec::new();
    for name in names {
        let Some(certificate) = authority.certificate_of(name)? else {
            let known = authority.hosts()?.join(", ");
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("no host of the cluster is called `{name}`"),
            )
            .about(dir.display())
            .remedy(format!("its hosts are {known}")));
        };
        revoked.push((name, now.max(certificate.added.unwrap_or_default())));
    }
    let published = authority.publish(|list| revoked.iter().for_each(|(name, at)| list.revoke(name, *at)))?;
    authority.kept_records()?;
    Ok(published)
}

/// Replaces the gossip key without revoking any host. Writes the new trust list to the cluster's directory `dir` and
/// returns it; the caller sends it to the hosts.
///
/// # Errors
/// Errors of the operating system.
pub fn rekey(dir: &Path) -> Result<PublishedTrustList> {
    let _lock = ClusterLock::take(dir)?;
    Authority::open(dir)?.publish(|_| ())
}

/// Returns the trust list that was signed last, from the cluster's directory `dir`.
///
/// # Errors
/// [`ErrorKind::NotFound`] if no list was signed yet; an error if the directory cannot be read or has invalid
/// content.
pub fn published(dir: &Path) -> Result<PublishedTrustList> {
    let signed = Authority::open(dir)?.trust_list()?;
    let (list, bytes) = signed.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no host was revoked and no key changed")
            .about(dir.display())
            .remedy("revoke a host by `headstart swarm revoke`, or change the key by `headstart swarm rekey`")
    })?;
    Ok(PublishedTrustList::of(&list, bytes))
}

/// The names of the hosts whose certificates permit them to give orders to others, from the cluster's
/// directory `dir`. Revoked hosts are left out.
///
/// # Errors
/// Errors of the operating system, and errors for files with invalid content.
pub fn operators(dir: &Path) -> Result<Vec<String>> {
    let members = Authority::open(dir)?.members()?;
    let operators = members.into_iter().filter(|(_, certificate)| certificate.roles.operator);
    Ok(operators.map(|(name, _)| name).collect())
}

impl Authority {
    /// The list that was signed last, and its signed bytes.
    pub(super) fn trust_list(&self) -> Result<Option<(TrustList, Vec<u8>)>> {
        let path = self.dir().join(TRUST);
        let Some(bytes) = read(&path, TRUST_LIST_MAX as u64)? else { return Ok(None) };
        let list = TrustList::open(&bytes, &certificates(&self.dir().join(CA))?);
        Ok(Some((list.map_err(|e| e.about(path.display()))?, bytes)))
    }

    /// The certificate of a host that has one and is a member.
    pub(super) fn member(&self, name: &str) -> Result<Option<HostCertificate>> {
        let is_member = self.membership()?;
        Ok(self.certificate_of(name)?.filter(is_member))
    }

    /// The names and certificates of all members.
    pub(super) fn members(&self) -> Result<Vec<(String, HostCertificate)>> {
        let is_member = self.membership()?;
        let mut members = Vec::new();
        for name in self.hosts()? {
            let certificate = self.certificate_of(&name)?.filter(&is_member);
            members.extend(certificate.map(|certificate| (name, certificate)));
        }
        Ok(members)
    }

    /// A function that returns `true` for a certificate that is revoked neither by the list nor by the records.
    fn membership(&self) -> Result<impl Fn(&HostCertificate) -> bool> {
        let (list, records) = (self.trust_list()?, Records::read(self.dir())?);
        Ok(move |certificate: &HostCertificate| {
            let by_list = list.as_ref().is_some_and(|(list, _)| list.revocation(certificate).is_some());
            let public_key = &certificate.public_key;
            !by_list && records.as_ref().is_none_or(|them| them.revoked_as(public_key).is_none())
        })
    }

    /// The time of addition for a host that is added now: later than the revocation of any host of its name.
    pub(super) fn added_now(&self, name: &str) -> Result<u64> {
        let list = self.trust_list()?;
        let revoked =
            list.and_then(|(list, _)| list.revoked.into_iter().find(|revoked| revoked.name == name));
        Ok(unix_now().max(revoked.map_or(0, |revoked| revoked.at.saturating_add(1))))
    }

    /// Signs the next list, with another gossip key, and gives both to the directories of all members.
    fn publish(&self, change: impl FnOnce(&mut TrustList)) -> Result<PublishedTrustList> {
        let before = self.trust_list()?.map(|(list, _)| list);
        let mut list =
            before.unwrap_or(TrustList { number: 0, signed_at: 0, revoked: Vec::new(), gossip_key: [0; 32] });
        change(&mut list);
        let records = self.kept_records()?;
        list.make_room(|revoked| records.is_over(revoked, unix_now()));
        list.number += 1;
        list.signed_at = unix_now();
        rand::fill(&mut list.gossip_key).map_err(|_| Error::new(ErrorKind::Io, "cannot draw a key"))?;
        let bytes = list.sign(self.key())?;
        // This comes first: from here on the list is in force, and the next run completes a run that was cut off.
        replace(&self.dir().join(TRUST), &bytes, Readers::Owner)?;
        let key = format!("{}\n", hex(&list.gossip_key));
        replace(&self.dir().join(GOSSIP_KEY), key.as_bytes(), Readers::Owner)?;
        for (name, _) in self.members()? {
            let directory = self.host_dir(&name);
            replace(&directory.join(TRUST), &bytes, Readers::Owner)?;
            replace(&directory.join(GOSSIP_KEY), key.as_bytes(), Readers::Owner)?;
        }
        Ok(PublishedTrustList::of(&list, bytes))
    }

    /// The gossip key that is in force now, as it is written to files.
    pub(super) fn gossip_key(&self) -> Result<String> {
        let path = self.dir().join(GOSSIP_KEY);
        match self.trust_list()? {
            Some((list, _)) => Ok(format!("{}\n", hex(&list.gossip_key))),
            None => {
                let text = read_text(&path)?;
                let is_key = parse_hex(text.trim()).is_some();
                is_key
                    .then_some(text)
                    .ok_or_else(|| Error::corrupt("is not 64 hexadecimal digits").about(path.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{Credentials, InitSettings, Made, init};

    #[test]
    fn a_revoked_host_gets_no_key_and_is_another_when_it_is_added_again() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let add = |hosts: &[&str]| {
            init(&dir, &InitSettings { hosts: names(hosts), ..InitSettings::default() }).unwrap().hosts
        };
        let made = add(&["a", "b"]);
        assert_eq!(published(&dir).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(revoke(&dir, &names(&["a", "x"])).unwrap_err().kind(), ErrorKind::NotFound);
        let host = |name: &str| Credentials::load(&dir.join("hosts").join(name), name).unwrap();
        let (a, stolen) = (host("a"), host("b"));
        let first = revoke(&dir, &names(&["b"])).unwrap();
        assert_eq!((first.number, &first.revoked), (1, &names(&["b"])));
        // The member has the new key, the revoked host has its old one.
        assert_ne!(host("a").gossip_key, a.gossip_key);
        assert_eq!(host("a").trust.as_ref(), Some(&first.list));
        assert_eq!((host("b").gossip_key, &host("b").trust), (stolen.gossip_key, &None));
        // A host that is added again has another key and a later time; the stolen certificate stays revoked.
        let again = add(&["b"]);
        assert_eq!((again[0].made, &again[0].directory), (Made::New, &made[1].directory));
        let list = TrustList::open(&first.list, &a.authority).unwrap();
        assert!(
            list.revocation(&stolen.identity.says()).is_some()
                && list.revocation(&host("b").identity.says()).is_none()
        );
        assert_ne!(host("b").identity.says().public_key, stolen.identity.says().public_key);
        assert_eq!(host("b").gossip_key, host("a").gossip_key);
        // A new gossip key without a revocation.
        let second = rekey(&dir).unwrap();
        assert_eq!((second.number, second.revoked.len()), (2, 1));
        assert_eq!(published(&dir).unwrap(), second);
        assert_eq!(host("b").gossip_key, host("a").gossip_key);
        assert_eq!(add(&["a"])[0].made, Made::Kept);
    }

    #[test]
    fn operators_are_members_that_have_the_role() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let add = |hosts: &[&str], operators: &[&str]| {
            let (hosts, operators) = (names(hosts), names(operators));
            init(&dir, &InitSettings { hosts, operators, ..InitSettings::default() }).unwrap();
        };
        add(&["c"], &["a", "b"]);
        assert_eq!(operators(&dir).unwrap(), ["a", "b"]);
        revoke(&dir, &names(&["b"])).unwrap();
        add(&["d"], &[]);
        assert_eq!(operators(&dir).unwrap(), ["a"]);
        revoke(&dir, &names(&["a"])).unwrap();
        assert!(operators(&dir).unwrap().is_empty());
        // If no operator is left, the next host that is made is one.
        add(&["b"], &[]);
        assert_eq!(operators(&dir).unwrap(), ["b"]);
        let members = Authority::open(&dir).unwrap().members().unwrap();
        assert_eq!(members.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b", "c", "d"]);
    }

    #[test]
    fn revocations_at_the_same_time_all_count() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let hosts: Vec<_> = (0..8).map(|number| format!("host-{number}")).collect();
        let members = || {
            init(&dir, &InitSettings { hosts: hosts[..1].to_vec(), ..InitSettings::default() }).unwrap();
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(members))));
        init(&dir, &InitSettings { hosts: hosts.clone(), ..InitSettings::default() }).unwrap();
        Credentials::load(&dir.join("hosts").join("host-0"), "host-0").unwrap();
        std::thread::scope(|scope| {
            for name in &hosts {
                scope.spawn(|| revoke(&dir, std::slice::from_ref(name)).unwrap());
            }
        });
        let mut last = published(&dir).unwrap();
        last.revoked.sort();
        assert_eq!((last.number, last.revoked), (8, hosts));
    }

    #[test]
    fn a_clock_that_was_set_back_revokes_what_was_added_before() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let hosts = vec!["a".to_owned()];
        let add = || init(&dir, &InitSettings { hosts: hosts.clone(), ..InitSettings::default() }).unwrap();
        let mut before: Vec<HostCertificate> = Vec::new();
        for now in [0, unix_now() - 1000, 1, u64::MAX / 2, 7] {
            let made = &add().hosts[0];
            assert_eq!(made.made, Made::New, "{now}");
            let host = Credentials::load(&made.directory, "a").unwrap();
            let list =
                |published: &PublishedTrustList| TrustList::open(&published.list, &host.authority).unwrap();
            if let Ok(published) = published(&dir) {
                assert_eq!(list(&published).revocation(&host.identity.says()), None, "{now}");
            }
            before.push(host.identity.says());
            let list = list(&revoke_at(&dir, &hosts, now).unwrap());
            assert!(before.iter().all(|certificate| list.revocation(certificate).is_some()), "{now}");
        }
    }

    #[test]
    fn revocations_of_certificates_that_have_ended_make_room_for_others_and_no_others_do() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let hosts = vec!["a".to_owned()];
        init(&dir, &InitSettings { hosts: hosts.clone(), ..InitSettings::default() }).unwrap();
        let authority = Authority::open(&dir).unwrap();
        let name = |number: u32| format!("host-{number:010}");
        let publish = |numbers: std::ops::Range<u32>, at| {
            authority.publish(|list| numbers.for_each(|number| list.revoke(&name(number), at)))
        };
        // Revocations stay while there is room.
        publish(0..2000, 1).unwrap();
        assert_eq!(revoke(&dir, &hosts).unwrap().revoked.len(), 2001);
        let now = unix_now();
        let last = publish(5000..8000, now).unwrap();
        let recent = || (5000..8000).map(name);
        assert_eq!(last.revoked, hosts.iter().cloned().chain(recent()).collect::<Vec<_>>());
        // A host whose revocation was dropped stays revoked if its certificate is still in the directory, and a
        // revocation that is still needed is not dropped.
        let error = publish(8000..10_000, now).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("5001 hosts"), "{error}");
        assert_eq!(published(&dir).unwrap(), last);
        publish(0..10, 1).unwrap();
        authority.publish(|list| list.revoked.retain(|revoked| revoked.name != "a")).unwrap();
        assert!(authority.certificate_of("a").unwrap().is_some() && authority.member("a").unwrap().is_none());
    }
}
