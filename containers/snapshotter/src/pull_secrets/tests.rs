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
    assert_eq!((after(&secrets, 23), after(&secrets, 25)), (vec!["old".to_owned()], vec![]));
}

/// As this version writes it, so that later ones read it.
#[test]
fn a_file_with_earlier_credentials_is_read_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let text = concat!(
        r#"{"version":1,"repositories":{"reg.lan/a":"#,
        r#"{"username":"u","password":"last","identity_token":"","until":99999999999}},"#,
        r#""earlier":{"reg.lan/a":["#,
        r#"{"username":"u","password":"before","identity_token":"","until":99999999998},"#,
        r#"{"username":"u","password":"first","identity_token":"","until":99999999997}]}}"#
    );
    std::fs::write(dir.path().join("secrets"), text).unwrap();
    assert_eq!(serde_json::to_string(&PullCredentials::parse(text.as_bytes()).unwrap()).unwrap(), text);
    let secrets = secrets(&dir);
    assert_eq!(after(&secrets, 0), ["last", "before", "first"]);
    secrets.offer(offered("new")).unwrap().accept();
    assert_eq!(
        (after(&secrets, 23), after(&secrets, 25)),
        (["new", "last", "before"].map(str::to_owned).to_vec(), vec![])
    );
}

/// A pull that a mirror has answered succeeds with any credentials.
#[test]
fn what_was_accepted_before_is_tried_after_what_was_accepted_last() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = secrets(&dir);
    for password in ["a", "good", "a", "junk"] {
        secrets.offer(offered(password)).unwrap().accept();
    }
    assert_eq!(after(&secrets, 23), ["junk", "a", "good"]);
    secrets.offer(offered("more")).unwrap().accept();
    assert_eq!(after(&secrets, 23), ["more", "junk", "a"], "so many and no more");
    secrets.offer(offered("junk")).unwrap().accept();
    assert_eq!(after(&secrets, 23), ["junk", "more", "a"]);
    assert_eq!(after(&secrets, 25), Vec::<String>::new());
}

/// One user begins many pulls while that of another goes on.
#[test]
fn many_pulls_hide_no_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = secrets(&dir);
    let good = secrets.offer(offered("good")).unwrap();
    let junk: Vec<_> = (0..20).map(|number| secrets.offer(offered(&format!("p{number}"))).unwrap()).collect();
    let tried = after(&secrets, 0);
    assert_eq!((tried.len(), &*tried[0], &*tried[7]), (OFFERED_MOST, "p19", "good"));
    drop((good, junk));
}

/// Long credentials for one of many repositories of a registry.
fn of_registry(host: &str, number: usize) -> OfferedSecret {
    OfferedSecret { repository: format!("{host}/r{number}"), ..offered(&"\"".repeat(WORD_MOST)) }
}

/// A registry that accepts whatever it is shown, and a user who pulls from hundreds of its repositories.
#[test]
fn the_credentials_of_one_registry_take_no_room_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = secrets(&dir);
    let mine = |number| of_registry(&format!("evil.lan:{}", 1000 + number), number);
    let mut kept = PullCredentials::default();
    keep(&mut kept, Some(&offered("p")), (1, now() + 1000));
    for number in 0..300 {
        // Each later than those before it.
        keep(&mut kept, Some(&mine(number)), (1, now() + 2000 + number as u64));
        assert!(kept.repositories.contains_key(&mine(number).repository), "the newest one is kept: {number}");
    }
    assert!(kept.repositories.contains_key("reg.lan/a"));
    assert!(!kept.repositories.contains_key(&mine(0).repository), "its own oldest ones go");
    secrets.write(&kept).unwrap();
    // Others still come in, and it does, too.
    for other in [OfferedSecret { repository: "other.lan/b".to_owned(), ..offered("q") }, mine(300)] {
        let has = || {
            let kept = PullCredentials::read(secrets.path()).unwrap();
            kept.of(&other.repository, now()).count() > 0 && kept.of("reg.lan/a", now()).count() > 0
        };
        let pull = secrets.offer(other.clone()).unwrap();
        assert!(has());
        pull.accept();
        assert!(has());
    }
}

#[test]
fn pulls_that_go_on_are_bounded_and_the_oldest_of_the_registry_with_most_count_no_more() {
    let mut pulls = RunningPulls::default();
    let mut begin = |secret: &OfferedSecret| {
        pulls.begin(&secret.repository, secret.until(9));
        (pulls.running.len(), pulls.offered())
    };
    begin(&offered("p"));
    let mut last = (0, BTreeMap::new());
    for number in 0..400 {
        last = begin(&of_registry("evil.lan", number));
        assert!(last.1.contains_key(&format!("evil.lan/r{number}")));
    }
    assert!(last.0 < 100, "{}", last.0);
    assert!(last.1.contains_key("reg.lan/a") && !last.1.contains_key("evil.lan/r0"));
    for number in 0..400 {
        last = begin(&offered(&format!("p{number}")));
    }
    assert!(last.0 <= 256, "{}", last.0);
    let of_one: Vec<_> = last.1["reg.lan/a"].iter().map(|found| found.password.clone()).collect();
    assert_eq!(
        (of_one.len(), &*of_one[0], &*of_one[3]),
        (OFFERED_MOST, "p399", "p396"),
        "as many as are tried"
    );
}

/// containerd pulls, and has pulled with them.
#[test]
fn a_pull_that_counts_no_more_is_accepted_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = secrets(&dir);
    let pull = secrets.offer(offered("p")).unwrap();
    secrets.pulls.lock().running.clear();
    drop(secrets.offer(offered("q")).unwrap());
    assert!(secrets.last_pull("reg.lan/a").is_none() && after(&secrets, 0).is_empty());
    pull.accept();
    assert_eq!(after(&secrets, 23), ["p"]);
}

#[test]
fn a_shorter_time_counts_for_what_was_accepted_before_it() {
    let dir = tempfile::tempdir().unwrap();
    secrets(&dir).offer(offered("p")).unwrap().accept();
    let shorter = Arc::new(PullSecrets::new(dir.path().join("secrets"), DAY / 24));
    drop(shorter.offer(offered("q")).unwrap());
    assert_eq!((after(&shorter, 0), after(&shorter, 2)), (vec!["p".to_owned()], vec![]));
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
        let mut taken = Vec::<String>::new();
        for event in events {
            match event {
                Event::Begin(user) => {
                    let password = format!("p{user}");
                    pulls.push((password.clone(), secrets.offer(offered(&password)).unwrap()));
                }
                Event::Succeed(at) if !pulls.is_empty() => {
                    let (password, pull) = pulls.remove(at.index(pulls.len()));
                    pull.accept();
                    taken.retain(|it| *it != password);
                    taken.insert(0, password);
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
            prop_assert_eq!(found, taken.first());
            let mut wanted: Vec<_> = pulls.iter().rev().map(|(password, _)| password.clone()).collect();
            let mut seen = std::collections::BTreeSet::new();
            wanted.retain(|password| seen.insert(password.clone()));
            let mut tried = kept.of("reg.lan/a", now()).map(|found| found.password.clone()).collect::<Vec<_>>();
            let accepted = tried.split_off(wanted.len());
            prop_assert_eq!(tried, wanted);
            prop_assert_eq!(accepted, taken.iter().take(1 + EARLIER_MOST).cloned().collect::<Vec<_>>());
        }
    }
}
