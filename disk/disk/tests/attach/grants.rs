//! Images that are whole in the cache, and the right to read them.

use crate::{DISK, LIMIT, Rig};
use headstart_block::{Digest, ErrorKind, Result};
use headstart_disk::attach::{AttachedDisk, DiskOptions, attach_remote};
use headstart_store::{Reference, Selector, Store};
use headstart_testkit::wait::wait_until;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const HOUR: Duration = Duration::from_secs(3600);

/// An image that is whole in the cache of a rig.
struct Whole {
    rig: Rig,
    digest: Digest,
}

impl Whole {
    fn new() -> Self {
        let rig = Rig::new();
        let first = rig.try_attach(&rig.host(), &DiskOptions::default()).unwrap();
        rig.check(&first.disk, 0, DISK);
        let whole = Self { digest: first.digest, rig };
        drop(first);
        whole.attach(Some(HOUR)).unwrap();
        whole
    }

    /// Attaches it by its digest.
    fn attach(&self, offline_limit: Option<Duration>) -> Result<AttachedDisk> {
        let selector = Selector::Digest(self.digest);
        let reference = Reference { selector, ..self.rig.reference.clone() };
        let store = Arc::clone(&self.rig.store) as Arc<dyn Store>;
        let options = DiskOptions { offline_limit, ..DiskOptions::default() };
        self.rig.within_limit(attach_remote(&self.rig.host(), store, &reference, &options))
    }

    /// Makes its grant so old.
    fn age(&self, age: Duration) {
        let grants = fs::read_dir(self.rig.cache_dir().join("grants")).unwrap();
        let then = (SystemTime::now() - age).duration_since(UNIX_EPOCH).unwrap().as_secs();
        let aged = grants.filter(|file| {
            let path = file.as_ref().unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let (head, _) = text.rsplit_once(' ').unwrap();
            fs::write(&path, format!("{head} {then}\n")).unwrap();
            head.ends_with(&self.digest.to_string())
        });
        assert!(aged.count() > 0);
    }
}

#[test]
fn a_store_that_answers_late_is_not_waited_for() {
    let whole = Whole::new();
    *whole.rig.store.delay.lock().unwrap() = LIMIT * 10;
    let begun = Instant::now();
    let attached = whole.attach(Some(HOUR)).unwrap();
    // A wait for the store takes five seconds.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(attached.warnings, Vec::<String>::new());
    whole.rig.check(&attached.disk, 0, DISK);
}

#[test]
fn an_image_that_its_store_has_refused_is_not_attached_any_more() {
    let whole = Whole::new();
    whole.rig.set_failing(Some(ErrorKind::Denied));
    *whole.rig.store.delay.lock().unwrap() = Duration::from_millis(100);
    // The refusal comes too late for the first time.
    let mut refused = None;
    wait_until("it is refused", LIMIT, || {
        refused = whole.attach(Some(HOUR)).err();
        refused.is_some()
    });
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Denied));
    // Also while the store is away.
    whole.rig.set_failing(Some(ErrorKind::Unavailable));
    let away = whole.attach(Some(HOUR)).err().unwrap();
    assert!(away.kind() == ErrorKind::Unavailable && away.to_string().contains("lately"), "{away}");
    whole.rig.set_failing(None);
    whole.attach(Some(HOUR)).unwrap();
    whole.rig.set_failing(Some(ErrorKind::Unavailable));
    whole.attach(Some(HOUR)).unwrap();
}

/// A pull from whose user the image is hidden takes no disk away from a host whose registry is away later. What is
/// denied was denied to all credentials of the host, whatever goes on.
#[test]
fn what_is_hidden_from_the_user_of_a_pull_withdraws_no_right() {
    use ErrorKind::{Denied, NotFound};
    let whole = Whole::new();
    let cases = [
        (NotFound, true, 0),
        (NotFound, true, 100),
        (NotFound, false, 0),
        (Denied, true, 0),
        (Denied, false, 0),
    ];
    for (answer, has_offers, delay) in cases {
        whole.rig.set_failing(None);
        whole.attach(Some(HOUR)).unwrap();
        whole.rig.store.has_offers.store(has_offers, Ordering::Relaxed);
        whole.rig.set_failing(Some(answer));
        *whole.rig.store.delay.lock().unwrap() = Duration::from_millis(delay);
        let before = whole.rig.store.requests.load(Ordering::Relaxed);
        let refused = whole.attach(Some(HOUR)).err().map(|error| error.kind());
        // The answer may come after the attach.
        wait_until("it has answered", LIMIT, || whole.rig.store.requests.load(Ordering::Relaxed) > before);
        std::thread::sleep(Duration::from_millis(3 * delay));
        assert_eq!(refused, (delay == 0).then_some(answer));
        *whole.rig.store.delay.lock().unwrap() = Duration::ZERO;
        whole.rig.set_failing(Some(ErrorKind::Unavailable));
        let stays = answer == NotFound && has_offers;
        assert_eq!(whole.attach(Some(HOUR)).is_ok(), stays, "{answer:?} {has_offers} {delay}");
    }
}

#[test]
fn a_right_that_was_given_long_ago_counts_no_more_while_the_store_is_away() {
    let whole = Whole::new();
    whole.age(HOUR * 2);
    whole.rig.set_failing(Some(ErrorKind::Unavailable));
    let away = whole.attach(Some(HOUR)).err().unwrap();
    assert!(away.to_string().contains("--offline-limit"), "{away}");
    whole.attach(Some(HOUR * 3)).unwrap();
    whole.attach(None).unwrap();
    // An answer renews it.
    whole.rig.set_failing(None);
    whole.attach(Some(HOUR)).unwrap();
    whole.rig.set_failing(Some(ErrorKind::Unavailable));
    whole.attach(Some(HOUR)).unwrap();
}
