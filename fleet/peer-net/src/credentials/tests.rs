//! Clusters on disk: the files that are made, kept or refused.

use super::authority::make_dir;
use super::*;
use crate::{Security, SwarmSettings};
use headstart_block::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Makes a cluster; returns the directories of the hosts.
fn init(dir: &Path, hosts: &[String]) -> Result<Vec<PathBuf>> {
    let made = super::init(dir, &InitSettings { hosts: hosts.to_vec(), ..InitSettings::default() })?;
    Ok(made.hosts.into_iter().map(|host| host.directory).collect())
}

#[test]
fn hosts_are_added_and_what_is_there_stays() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("cluster");
    let made = init(&dir, &names(&["a", "b.example"])).unwrap();
    let before = std::fs::read(made[0].join(HOST)).unwrap();
    let again = init(&dir, &names(&["a", "c"])).unwrap();
    assert_eq!(std::fs::read(again[0].join(HOST)).unwrap(), before);
    let a = Credentials::load(&made[0], "a").unwrap();
    let c = Credentials::load(&again[1], "c").unwrap();
    assert!(a.authority == c.authority && a.gossip_key == c.gossip_key && a.gossip_key != [0; 32]);
    // Each certificate is for its own name, and no key can be read by others.
    assert_eq!(Credentials::load(&made[1], "a").err().map(|e| e.kind()), Some(ErrorKind::Corrupt));
    assert!(Credentials::load(&made[1], "b.example").is_ok());
    for path in [made[0].join(HOST_KEY), made[0].join(GOSSIP_KEY), dir.join(CA_KEY), dir.join(GOSSIP_KEY)] {
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
    }
    assert!(!made[0].join(CA_KEY).exists());
}

#[test]
fn credentials_that_do_not_match_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let made = init(&dir.path().join("one"), &names(&["a", "b"])).unwrap();
    let other = init(&dir.path().join("other"), &names(&["a"])).unwrap();
    let mixed = dir.path().join("mixed");
    make_dir(&mixed).unwrap();
    let (a, b, elsewhere) = (&made[0], &made[1], &other[0]);
    let because = |parts: [&Path; 3]| {
        for (from, name) in parts.into_iter().zip([CA, HOST, HOST_KEY]) {
            std::fs::copy(from.join(name), mixed.join(name)).unwrap();
        }
        std::fs::copy(a.join(GOSSIP_KEY), mixed.join(GOSSIP_KEY)).unwrap();
        Credentials::load(&mixed, "a").err().map(|e| e.to_string())
    };
    assert_eq!(because([a, a, a]), None);
    let why = because([a, a, b]).unwrap();
    assert!(why.contains("host.key: is not the key of the certificate"), "{why}");
    let why = because([elsewhere, a, a]).unwrap();
    assert!(why.contains("host.pem: is not a certificate of the authority"), "{why}");
    std::fs::write(mixed.join(CA), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let why = Credentials::load(&mixed, "a").err().map(|e| e.to_string()).unwrap();
    assert!(why.contains("ca.pem: is not a certificate of an authority"), "{why}");
}

#[test]
fn invalid_host_names_are_refused_before_a_cluster_is_made() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["", "a/b", "..", "A", "a b", "-a", &"a".repeat(300)] {
        let refused = init(&dir.path().join("cluster"), &names(&["a", name])).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{name}");
    }
    assert!(!dir.path().join("cluster").exists());
}

#[test]
fn without_certificates_nobody_listens_beyond_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let cache = headstart_cache::Cache::open(dir.path(), headstart_cache::CacheSettings::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let settings = SwarmSettings {
        security: Security::PlainOnLoopback { name: "a".into() },
        listen: std::net::SocketAddr::from(([0, 0, 0, 0], 0)),
        advertise: None,
        join: Vec::new(),
        role: headstart_swarm::Role::Agent,
        node: headstart_swarm::NodeSettings::default(),
        connections_max: 1,
        trust: None,
        authority: None,
        tracker: None,
    };
    let started = runtime.block_on(crate::Swarm::start(settings, cache, runtime.handle().clone()));
    assert_eq!(started.err().map(|e| e.kind()), Some(ErrorKind::Invalid));
}
