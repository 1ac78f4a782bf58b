//! Hosts that are added by a signing request: their key never leaves them.

use super::authority::{Authority, Grant, Made, MadeHost, check_days};
use super::certificate::Roles;
use super::cluster_lock::ClusterLock;
use super::request::{REQUEST_MAX, SigningRequest};
use super::{HOST_KEY, check_name};
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::file::read_of_anybody;
use rcgen::{KeyPair, PublicKeyData};
use std::path::{Path, PathBuf};

/// Most bytes of a request's file: PEM takes four bytes for three, and may have text around it.
const FILE_MAX: u64 = 4 * REQUEST_MAX as u64;

/// The arguments of [`add`]: the host, its request, and what its certificate is to contain.
#[derive(Clone, Debug)]
pub struct AddSettings {
    /// The host's name. It must be the same as the name in the request.
    pub name: String,
    /// The path of the file with the host's signing request, in PEM or DER.
    pub request: PathBuf,
    /// Roles for the certificate. If the host is a member already, it keeps the roles that it has and gets
    /// these in addition.
    pub roles: Roles,
    /// The number of days for which the certificate is valid, 1 to [`DAYS_MAX`](super::DAYS_MAX); it ends earlier if
    /// the authority's own certificate does. `None`: [`super::DAYS`].
    pub days: Option<u32>,
}

/// Signs a certificate for the key in a host's request, and writes it to the cluster's directory `dir`. A new name
/// becomes a member of the cluster; a member with the same key gets its certificate renewed.
///
/// # Errors
/// [`ErrorKind::Invalid`] if a name or the number of days is not valid or the request is for another name,
/// [`ErrorKind::NotFound`] if there is no such request, [`ErrorKind::Conflict`] if a member of that name has another
/// key, or if another command changes the cluster, [`ErrorKind::Denied`] if the key was revoked, or if users other than
/// root and this one may write to `dir`, [`ErrorKind::Unavailable`] if the authority's own certificate has ended; the
/// errors of [`SigningRequest::parse`], and errors of the operating system.
pub fn add(dir: &Path, settings: &AddSettings) -> Result<MadeHost> {
    let name = settings.name.as_str();
    check_name(name)?;
    let days = check_days(settings.days)?;
    let _lock = ClusterLock::take(dir)?;
    let authority = Authority::open(dir)?;
    let path = settings.request.display();
    let bytes = read_of_anybody(&settings.request, FILE_MAX)?
        .ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such file").about(path.to_string()))?;
    let request = SigningRequest::from_file(&bytes).map_err(|e| e.about(path.to_string()))?;
    if request.name != name {
        let cause = format!("is the request of `{}`, not of `{name}`", request.name);
        return Err(Error::invalid(cause)
            .about(path.to_string())
            .remedy(format!(
                "check that it came from the host that is to be added; if it did, make it there by `headstart swarm \
                 request --name {name}`, or add it as `{}`",
                request.name
            )));
    }
    if let Some(before) = authority.kept_records()?.revoked_as(&request.public_key) {
        let cause = format!("`{before}` was revoked with this key");
        return Err(Error::new(ErrorKind::Denied, cause)
            .about(path.to_string())
            .remedy("make a request in an empty directory there: it gets another key"));
    }
    let known = authority.certificate_of(name)?;
    let member = authority.member(name)?;
    let is_same_key = known.as_ref().is_some_and(|known| known.public_key == request.public_key);
    let (roles, added, made) = match (&known, &member) {
        (Some(_), Some(_)) if !is_same_key => {
            let error = Error::new(
                ErrorKind::Conflict,
                format!("`{name}` is a host of the cluster, with another key"),
            );
            return Err(error.remedy(format!(
                "where that host is no more, run `headstart swarm revoke {} {name}` first",
                dir.display()
            )));
        }
        (_, Some(member)) => {
            let added = member.added.map_or_else(|| authority.added_now(name), Ok)?;
            (member.roles.with(settings.roles), added, Made::Renewed)
        }
        (_, None) => (settings.roles, authority.added_now(name)?, Made::New),
    };
    let validity = authority.valid_for(days)?;
    let grant = Grant { name, roles, added, validity };
    let certificate = authority.sign(&grant, &request.key()?)?;
    // This comes first: a run that is cut off leaves no certificate beside a key of an earlier host.
    remove_other_key(&authority.host_dir(name).join(HOST_KEY), &request.public_key)?;
    let directory = authority.write_host(name, &certificate)?;
    Ok(MadeHost { name: name.to_owned(), directory, roles, made, not_after: validity.not_after })
}

/// Removes the key that `init` made for an earlier host of the name, if there is one and it is not the key of the
/// request. A run of an earlier version that was cut off may have left it beside the host's certificate.
fn remove_other_key(path: &Path, public_key: &[u8]) -> Result<()> {
    let Some(bytes) = read_of_anybody(path, FILE_MAX)? else { return Ok(()) };
    let key = String::from_utf8(bytes).ok().and_then(|pem| KeyPair::from_pem(&pem).ok());
    if key.is_some_and(|key| key.subject_public_key_info() == public_key) {
        return Ok(());
    }
    std::fs::remove_file(path).map_err(|e| Error::io("cannot remove", e).about(path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{Credentials, InitSettings, init, request, revoke};
    use std::fs;

    #[test]
    fn a_host_is_added_by_its_request_and_its_key_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, node) = (dir.path().join("cluster"), dir.path().join("node"));
        let hosts = vec!["a".to_owned()];
        init(&cluster, &InitSettings { hosts, ..InitSettings::default() }).unwrap();
        let made = request(&node, "node4").unwrap();
        let settings = |name: &str, request: &Path| AddSettings {
            name: name.to_owned(),
            request: request.to_owned(),
            roles: Roles { root: true, ..Roles::default() },
            days: Some(7),
        };
        let refused = add(&cluster, &settings("node5", &made.request)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        let host = add(&cluster, &settings("node4", &made.request)).unwrap();
        assert_eq!((host.made, host.roles.root), (Made::New, true));
        assert!(!host.directory.join(HOST_KEY).exists());
        let take = |host: &MadeHost, node: &Path| {
            for entry in fs::read_dir(&host.directory).unwrap().flatten() {
                fs::copy(entry.path(), node.join(entry.file_name())).unwrap();
            }
            Credentials::load(node, "node4").unwrap()
        };
        let first = take(&host, &node);
        // A second request with the same key renews the certificate, and the roles stay.
        let again = request(&node, "node4").unwrap();
        assert_eq!(again.key, Made::Kept);
        let none = AddSettings { roles: Roles::default(), ..settings("node4", &again.request) };
        let host = add(&cluster, &none).unwrap();
        assert_eq!((host.made, host.roles.root), (Made::Renewed, true));
        assert_eq!(take(&host, &node).identity.says().added, first.identity.says().added);
        // Another key is another host.
        let other = dir.path().join("other");
        let request_of_other = settings("node4", &request(&other, "node4").unwrap().request);
        assert_eq!(add(&cluster, &request_of_other).unwrap_err().kind(), ErrorKind::Conflict);
        revoke(&cluster, &["node4".to_owned()]).unwrap();
        assert_eq!(add(&cluster, &none).unwrap_err().kind(), ErrorKind::Denied);
        // Also under another name, and after another host has got the name.
        let renamed = |name: &str| {
            let key = KeyPair::from_pem(&fs::read_to_string(node.join(HOST_KEY)).unwrap()).unwrap();
            let path = dir.path().join(format!("{name}.pem"));
            fs::write(&path, SigningRequest::make(name, &key).unwrap().pem().unwrap()).unwrap();
            add(&cluster, &settings(name, &path)).unwrap_err()
        };
        let error = renamed("node5");
        assert!(
            error.kind() == ErrorKind::Denied
                && error.to_string().contains("`node4` was revoked with this key"),
            "{error}"
        );
        let host = add(&cluster, &AddSettings { roles: Roles::default(), ..request_of_other }).unwrap();
        assert_eq!((host.made, host.roles.root), (Made::New, false));
        assert_eq!(renamed("node6").kind(), ErrorKind::Denied);
        assert_eq!(add(&cluster, &none).unwrap_err().kind(), ErrorKind::Denied);
        assert!(take(&host, &other).identity.says().added > first.identity.says().added);
        // A key that `init` made is not left beside a certificate of another key.
        let third = dir.path().join("third");
        revoke(&cluster, &["a".to_owned()]).unwrap();
        let host = add(&cluster, &settings("a", &request(&third, "a").unwrap().request)).unwrap();
        assert!(!host.directory.join(HOST_KEY).exists());
    }

    #[test]
    fn a_run_that_is_cut_off_leaves_no_wrong_key_and_a_right_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, node) = (dir.path().join("cluster"), dir.path().join("node"));
        let made = init(&cluster, &InitSettings { hosts: vec!["a".to_owned()], ..InitSettings::default() });
        let key = made.unwrap().hosts[0].directory.join(HOST_KEY);
        let before = fs::read(&key).unwrap();
        // The key of the request itself stays.
        let own = dir.path().join("own.pem");
        let pair = KeyPair::from_pem(std::str::from_utf8(&before).unwrap()).unwrap();
        fs::write(&own, SigningRequest::make("a", &pair).unwrap().pem().unwrap()).unwrap();
        let settings = |request: &Path| AddSettings {
            name: "a".to_owned(),
            request: request.to_owned(),
            roles: Roles::default(),
            days: None,
        };
        add(&cluster, &settings(&own)).unwrap();
        assert_eq!(fs::read(&key).unwrap(), before);
        // Cut off before the certificate is written.
        revoke(&cluster, &["a".to_owned()]).unwrap();
        let other = settings(&request(&node, "a").unwrap().request);
        let obstacle = key.with_file_name("host.pem.new");
        fs::create_dir(&obstacle).unwrap();
        add(&cluster, &other).unwrap_err();
        assert!(!key.exists());
        fs::remove_dir(&obstacle).unwrap();
        add(&cluster, &other).unwrap();
        // A key that an earlier version left, after the certificate was written.
        fs::write(&key, &before).unwrap();
        assert_eq!(add(&cluster, &other).unwrap().made, Made::Renewed);
        assert!(!key.exists());
    }

    #[test]
    fn a_directory_that_holds_something_else_gets_no_key() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("index.json"), "{}").unwrap();
        assert_eq!(request(dir.path(), "a").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(request(&dir.path().join("x"), "A").unwrap_err().kind(), ErrorKind::Invalid);
    }
}
