//! Credentials that pulls offer, beside accepted ones and those of the host, in front of real registries.

use crate::registry::{House, login, push, read, settings, store};
use headstart_block::ErrorKind;
use headstart_store::{Selector, Store, StoreSettings};
use headstart_testkit::redirect::Behaviour;
use headstart_testkit::registry::{PASSWORD, Registry, RegistryAccess, USER};
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;

/// A host with a file of credentials for one repository of a registry.
struct Host<'a> {
    registry: &'a str,
    directory: TempDir,
}

impl<'a> Host<'a> {
    fn new(registry: &'a str) -> Self {
        Self { registry, directory: tempfile::tempdir().unwrap() }
    }

    /// A store that finds these users: accepted, and offered by pulls that go on. `host` is docker's configuration.
    fn store(&self, accepted: Option<&str>, offered: &[&str], host: &TempDir) -> Arc<dyn Store> {
        let file = self.directory.path().join("pull-credentials");
        let one = |user: &str| {
            let (user, password) = user.split_once(':').unwrap();
            json!({"username": user, "password": password, "until": 99_999_999_999_u64})
        };
        let repository = format!("{}/team/disk", self.registry);
        let accepted = accepted.map_or_else(|| json!({}), |user| json!({&repository: one(user)}));
        let offered: Vec<Value> = offered.iter().map(|user| one(user)).collect();
        let text = json!({"version": 1, "repositories": accepted, "offered": {&repository: offered}});
        fs::write(&file, text.to_string()).unwrap();
        let settings = settings(&[self.registry], host.path());
        store(self.registry, &StoreSettings { pull_credentials: Some(file), ..settings })
    }
}

fn right() -> String {
    format!("{USER}:{PASSWORD}")
}

/// Asks each kind of question, at once and one after the other.
async fn is_let_in(store: &dyn Store) -> Result<(), ErrorKind> {
    let tag = || Selector::Tag("latest".parse().unwrap());
    let (one, other) = (tag(), tag());
    let (first, second) = futures::future::join(store.manifest(&one), store.document(&other)).await;
    let (digest, _) = first.map_err(|error| error.kind())?;
    second.map_err(|error| error.kind())?;
    let again = store.manifest_again(&Selector::Digest(digest), &digest).await;
    again.map(|changed| assert_eq!(changed, None)).map_err(|error| error.kind())
}

/// A user with a right to log in at the token server and none to the repository hides no other, and neither do several.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_without_a_right_hide_no_other_credentials() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    house.tokens.set_guest("guest", "g");
    house.tokens.set_guest("guest2", "g");
    let (registry, nobody) = (house.front.host(), tempfile::tempdir().unwrap());
    let (host, right) = (Host::new(&registry), right());
    let of_host = login(&registry, USER, PASSWORD);
    let bad: [&[&str]; 4] = [
        &["guest:g"],
        &["guest:g", "guest2:g"],
        &["guest:wrong", "guest:g"],
        &["guest:g", "x:y", "guest2:g"],
    ];
    for offered in bad {
        let store = host.store(Some(&right), offered, &nobody);
        assert_eq!(is_let_in(&*store).await, Ok(()), "{offered:?}");
        assert!(store.may_have_refused_others().await);
        assert_eq!(
            is_let_in(&*host.store(None, offered, &of_host)).await,
            Ok(()),
            "{offered:?}: of the host"
        );
        assert_eq!(is_let_in(&*host.store(Some("guest:g"), offered, &of_host)).await, Ok(()), "{offered:?}");
        let denied = host.store(None, offered, &nobody);
        assert_eq!(is_let_in(&*denied).await, Err(ErrorKind::Denied), "{offered:?}");
        assert!(denied.may_have_refused_others().await, "{offered:?}");
    }
    // The other way round: the accepted one has lost its right.
    let store = host.store(Some("guest:g"), &[], &nobody);
    assert_eq!(is_let_in(&*store).await, Err(ErrorKind::Denied));
    assert!(!store.may_have_refused_others().await);
    drop(host.store(Some("guest:g"), &[&right], &nobody));
    assert_eq!(is_let_in(&*store).await, Ok(()), "a pull came with new ones");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_passwords_hide_no_other_credentials() {
    let Some(registry) = Registry::start(RegistryAccess::Password) else { return };
    let registry = registry.host();
    let (of_host, nobody) = (login(&registry, USER, PASSWORD), tempfile::tempdir().unwrap());
    push(&*store(&registry, &settings(&[&registry], of_host.path())), b"some bytes", "latest").await;
    let (host, right) = (Host::new(&registry), right());
    let bad: [&[&str]; 3] =
        [&["u:1"], &["u:1", "u:2", "u:3"], &["u:1", "u:2", "u:3", "u:4", "u:5", "u:6", "u:7"]];
    for offered in bad {
        assert_eq!(is_let_in(&*host.store(Some(&right), offered, &nobody)).await, Ok(()), "{offered:?}");
        assert_eq!(is_let_in(&*host.store(None, offered, &of_host)).await, Ok(()), "{offered:?}");
        assert_eq!(is_let_in(&*host.store(Some("u:0"), offered, &of_host)).await, Ok(()), "{offered:?}");
        let denied = host.store(Some("u:0"), offered, &nobody);
        assert_eq!(is_let_in(&*denied).await, Err(ErrorKind::Denied), "{offered:?}");
    }
    let store = host.store(Some("u:0"), &[], &nobody);
    assert_eq!(is_let_in(&*store).await, Err(ErrorKind::Denied));
    drop(host.store(Some("u:0"), &["u:1", &right], &nobody));
    assert_eq!(is_let_in(&*store).await, Ok(()));
}

/// An image that is open to all stays so, whatever a user has offered or kept, and whatever the host has.
#[tokio::test(flavor = "multi_thread")]
async fn a_public_image_is_open_whatever_credentials_there_are() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    house.tokens.set_guest("guest", "g");
    house.tokens.allow_anonymous(true);
    let (registry, nobody) = (house.front.host(), tempfile::tempdir().unwrap());
    let ended = login(&registry, USER, "ended");
    let host = Host::new(&registry);
    let cases: [(Option<&str>, &[&str], &TempDir); 6] = [
        (Some("u:ended"), &[], &nobody),
        (None, &["u:junk"], &nobody),
        (None, &[], &ended),
        (Some("u:ended"), &["u:junk"], &ended),
        (None, &["guest:g"], &nobody),
        (Some("guest:g"), &["u:1", "u:2"], &ended),
    ];
    for (kept, offered, of_host) in cases {
        let store = host.store(kept, offered, of_host);
        assert_eq!(is_let_in(&*store).await, Ok(()), "{kept:?} {offered:?}");
        let asked = house.tokens.requests();
        assert_eq!(is_let_in(&*store).await, Ok(()), "{kept:?} {offered:?}");
        assert_eq!(house.tokens.requests(), asked, "what was taken stays: {kept:?} {offered:?}");
    }
    // The message of a refusal is about the user, and names the file.
    house.tokens.allow_anonymous(false);
    let error = host.store(Some("u:ended"), &[], &nobody).tags().await.unwrap_err().to_string();
    assert!(error.contains("the user `u` of") && error.contains("/pull-credentials"), "{error}");
    let error = host.store(None, &[], &ended).tags().await.unwrap_err().to_string();
    assert!(error.contains(&format!("the user `{USER}` of")) && error.contains("/config.json"), "{error}");
}

/// A blob that the registry refuses to the right user costs other requests nothing, and the message is about that user.
#[tokio::test(flavor = "multi_thread")]
async fn the_refusal_of_one_request_is_no_other_ones() {
    let behaviour = Behaviour { redirect: false, forbid: true, ..Behaviour::default() };
    let Some(house) = House::new(behaviour).await else { return };
    let (registry, nobody) = (house.front.host(), tempfile::tempdir().unwrap());
    let (host, right) = (Host::new(&registry), right());
    let store = host.store(Some(&right), &["u:1", "u:2"], &nobody);
    assert_eq!(is_let_in(&*store).await, Ok(()));
    house.tokens.set_delay(Duration::from_millis(500));
    house.front.set_broken(403);
    let refused = {
        let store = Arc::clone(&store);
        let digest = house.digest;
        tokio::spawn(async move { read(&*store, &digest, 0, 10).await })
    };
    tokio::time::sleep(Duration::from_millis(700)).await;
    house.front.set_broken(0);
    let began = Instant::now();
    for at in 0..20 {
        assert!(read(&*store, &house.digest, at * 1000, 10).await.is_ok());
    }
    let took = began.elapsed();
    assert!(took < Duration::from_millis(400), "others do not wait: {took:?}");
    let error = refused.await.unwrap().unwrap_err().to_string();
    assert!(
        error.contains(&format!("the user `{USER}` of")) && error.contains("/pull-credentials"),
        "{error}"
    );
    assert!(error.contains("403"), "{error}");
}

/// While an image is looked for, credentials of other pulls than those that go on are no one's.
#[tokio::test(flavor = "multi_thread")]
async fn kept_credentials_are_not_shown_where_only_offered_ones_are_meant() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    let (registry, nobody) = (house.front.host(), tempfile::tempdir().unwrap());
    let (host, right) = (Host::new(&registry), right());
    let of_pull = |offered: &[&str], kept: Option<&str>| {
        drop(host.store(kept, offered, &nobody));
        let file = Some(host.directory.path().join("pull-credentials"));
        let settings = settings(&[&registry], nobody.path());
        store(&registry, &StoreSettings { pull_credentials: file, offered_alone: true, ..settings })
    };
    assert_eq!(is_let_in(&*of_pull(&["u:junk"], Some(&right))).await, Err(ErrorKind::Denied));
    assert_eq!(is_let_in(&*of_pull(&["u:junk", &right], None)).await, Ok(()));
}
