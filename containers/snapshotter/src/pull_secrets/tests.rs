use super::*;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn offered(password: &str) -> OfferedSecret {
    let (repository, username) = ("reg.lan/a".to_owned(), "u".to_owned());
    OfferedSecret { repository, username, password: password.to_owned(), identity_token: String::new() }
}

/// The passwords for the repository after so many hours, in the order in which they are tried.
fn after(secrets: &PullSecrets, hours: u64) -> Vec<String> {
    let kept = PullCredentials::read(secrets.path()).unwrap();
    kept.of("reg.lan/a", now() + hours * 3600).map(|found| found.password.clone()).collect()
}

fn secrets(dir: &tempfile::TempDir) -> Arc<PullSecrets> {
    Arc::new(PullSecrets::new(dir.path().join("secrets"), DAY))
}

#[test]
fn only_credentials_that_have_pulled_are_kept_and_for_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = secrets(&dir);
    let pull = secrets.offer(offered("p")).unwrap();
    assert_eq!((after(&secrets, 0), after(&secrets, 2)), (vec!["p".to_owned()], vec![]), "during the pull");
    drop(pull);
    assert!(after(&secrets, 0).is_empty(), "a pull that failed");
    secrets.offer(offered("p")).unwrap().accept();
    assert_eq!((after(&secrets, 23), after(&secrets, 25)), (vec!["p".to_owned()], vec![]));
    let mode = std::fs::metadata(secrets.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let wrong = secrets.offer(offered("wrong")).unwrap();
    assert_eq!(after(&secrets, 0), ["wrong", "p"], "what was accepted is there, too");
    drop(wrong);
    assert_eq!(after(&secrets, 0), ["p"]);
    assert!(secrets.offer(OfferedSecret { password: "x".repeat(WORD_MOST + 1), ..offered("") }).is_none());
}

#[test]
fn a_pull_that_fails_takes_nothing_from_one_that_succeeds_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = secrets(&dir);
    let good = secrets.offer(offered("good")).unwrap();
    let bad = secrets.offer(offered("bad")).unwrap();
    good.accept();
    drop(bad);
    assert_eq!(after(&secrets, 23), ["good"]);
}

#[test]
fn a_file_that_cannot_be_written_leaves_no_pull_behind() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("away");
    let secrets = Arc::new(PullSecrets::new(place.join("secrets"), DAY));
    assert!(secrets.offer(offered("unwritten")).is_none());
    std::fs::create_dir(&place).unwrap();
    secrets.offer(offered("good")).unwrap().accept();
    drop(secrets.offer(offered("wrong")).unwrap());
    assert_eq!(after(&secrets, 0), ["good"]);
}

/// As versions wrote it that had one place for both.
#[test]
fn a_file_of_an_earlier_version_is_read_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let text = concat!(
        r#"{"version":1,"repositories":{"reg.lan/a":"#,
        r#"{"username":"u","password":"old","identity_token":"","until":99999999999}}}"#
    );
    std::fs::write(dir.path().join("secrets"), text).unwrap();
    let secrets = secrets(&dir);
    drop(secrets.offer(offered("wrong")).unwrap());
    assert_eq!(std::fs::read_to_string(secrets.path()).unwrap(), text);
}

#[test]
fn the_credentials_that_end_first_go_first() {
    let mut kept = PullCredentials::default();
    for number in 0..REPOSITORIES_MOST as u64 + 2 {
        kept.repositories.insert(format!("r{number}"), offered("p").until(number + 10));
    }
    drop_old(&mut kept, 10);
    assert_eq!(kept.repositories.len(), REPOSITORIES_MOST);
    assert!(!kept.repositories.contains_key("r1") && kept.repositories.contains_key("r2"));
}

/// An event; pulls are named by their place among those that go on.
#[derive(Clone, Debug)]
enum Event {
    Begin(u8),
    Succeed(prop::sample::Index),
    Fail(prop::sample::Index),
    Kill,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..4u8).prop_map(Event::Begin),
        2 => any::<prop::sample::Index>().prop_map(Event::Succeed),
        2 => any::<prop::sample::Index>().prop_map(Event::Fail),
        1 => Just(Event::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_pulled_last_is_kept_whatever_fails_or_is_killed(events in prop::collection::vec(event(), 1..20)) {
        let dir = tempfile::tempdir().unwrap();
        let mut secrets = secrets(&dir);
        let mut pulls = Vec::<(String, PullWith)>::new();
        let mut accepted = None;
        for event in events {
            match event {
                Event::Begin(user) => {
                    let password = format!("p{user}");
                    pulls.push((password.clone(), secrets.offer(offered(&password)).unwrap()));
                }
                Event::Succeed(at) if !pulls.is_empty() => {
                    let (password, pull) = pulls.remove(at.index(pulls.len()));
                    pull.accept();
                    accepted = Some(password);
                }
                Event::Fail(at) if !pulls.is_empty() => drop(pulls.remove(at.index(pulls.len()))),
                Event::Succeed(_) | Event::Fail(_) => {}
                Event::Kill => {
                    pulls.drain(..).for_each(std::mem::forget);
                    secrets = Arc::new(PullSecrets::new(secrets.path(), DAY));
                }
            }
            let kept = PullCredentials::read(secrets.path()).unwrap();
            let found = kept.repositories.get("reg.lan/a").map(|found| &found.password);
            prop_assert_eq!(found, accepted.as_ref());
            let mut wanted: Vec<_> = pulls.iter().rev().map(|(password, _)| password.clone()).collect();
            let mut seen = std::collections::BTreeSet::new();
            wanted.retain(|password| seen.insert(password.clone()));
            let mut tried = kept.of("reg.lan/a", now()).map(|found| found.password.clone()).collect::<Vec<_>>();
            tried.truncate(tried.len() - usize::from(accepted.is_some()));
            prop_assert_eq!(tried, wanted);
        }
    }
}
