//! Reading from and writing to a real registry: Debian's `docker-registry`, with passwords, with a token
//! server, and with a storage that it redirects to by addresses that run out.

use bytes::Bytes;
use futures::StreamExt;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use headstart_store::{Location, Mirror, RetrySettings, Store, StoreSettings, Tag, Urgency, open};
use headstart_testkit::process::{Process, one_test};
use headstart_testkit::redirect::{Behaviour, Front, RedirectStyle};
use headstart_testkit::registry::{PASSWORD, Registry, RegistryAccess, USER};
use headstart_testkit::token_server::TokenServer;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The time after which an operation hangs, even on the busiest machine.
const HANGS: Duration = Duration::from_secs(120);

/// A blob that is different everywhere.
fn blob(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    })
    .flatten()
    .take(len)
    .collect()
}

/// A Docker configuration with one user.
pub(crate) fn login(host: &str, user: &str, password: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let config = json!({"auths": { host: {"username": user, "password": password} }});
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    directory
}

/// Settings for plain HTTP to `hosts`, with the credentials of a directory, and no long waits.
pub(crate) fn settings(hosts: &[&str], config: &Path) -> StoreSettings {
    StoreSettings {
        plain_http: hosts.iter().map(|host| (*host).to_owned()).collect(),
        docker_config: Some(config.to_owned()),
        retry: RetrySettings { deadline: Duration::from_secs(2), ..RetrySettings::default() },
        hedge: None,
        ..StoreSettings::default()
    }
}

pub(crate) fn store(host: &str, settings: &StoreSettings) -> Arc<dyn Store> {
    let location = Location::Registry { host: host.to_owned(), repository: "team/disk".to_owned() };
    open(&location, settings).unwrap()
}

pub(crate) async fn read(store: &dyn Store, digest: &Digest, offset: u64, len: u64) -> Result<Bytes> {
    let read = store.read(digest, ByteRange::new(offset, len).unwrap(), Urgency::Demand);
    tokio::time::timeout(HANGS, read).await.expect("a read that ends")
}

/// Pushes an image of one layer, and returns the digest of the layer.
pub(crate) async fn push(store: &dyn Store, layer: &[u8], tag: &str) -> Digest {
    let (config, digest) = (b"{}".to_vec(), Digest::of(layer));
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(&config), "size": 2},
        "layers": [{"mediaType": "application/octet-stream", "digest": digest, "size": layer.len()}],
    });
    for bytes in [config, layer.to_vec()] {
        let copied = AtomicU64::new(0);
        let len = bytes.len() as u64;
        let count = |bytes| {
            copied.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        };
        store.put_blob(&Digest::of(&bytes), Arc::new(bytes), &count).await.unwrap();
        assert_eq!(copied.into_inner(), len);
    }
    let tag: Tag = tag.parse().unwrap();
    store.put_manifest(MANIFEST, manifest.to_string().into(), Some(&tag)).await.unwrap();
    digest
}

/// A registry with a token server that knows [`USER`], and a front between them.
pub(crate) struct House {
    pub(crate) tokens: TokenServer,
    pub(crate) front: Front,
    config: TempDir,
    layer: Vec<u8>,
    pub(crate) digest: Digest,
    _registry: Registry,
}

impl House {
    pub(crate) async fn new(behaviour: Behaviour) -> Option<Self> {
        let tokens = TokenServer::start().await;
        tokens.set_user(USER, PASSWORD);
        let registry = Registry::start(RegistryAccess::Token(&tokens))?;
        let front = Front::start(&registry, behaviour).await;
        let config = login(&front.host(), USER, PASSWORD);
        let layer = blob(300_000, 7);
        let digest =
            push(&*store(&front.host(), &settings(&[&front.host()], config.path())), &layer, "latest").await;
        Some(Self { tokens, front, config, layer, digest, _registry: registry })
    }

    fn settings(&self) -> StoreSettings {
        settings(&[&self.front.host()], self.config.path())
    }

    fn store(&self) -> Arc<dyn Store> {
        store(&self.front.host(), &self.settings())
    }

    async fn read_well(&self, store: &dyn Store, offset: usize, len: usize) {
        let bytes = read(store, &self.digest, offset as u64, len as u64).await.unwrap();
        assert!(bytes[..] == self.layer[offset..offset + len], "other bytes at {offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_registry_takes_and_gives_an_image() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let nowhere = tempfile::tempdir().unwrap();
    let settings = settings(&[&registry.host()], nowhere.path());
    let store = store(&registry.host(), &settings);
    store.check().await.unwrap();
    // Larger than a piece of an upload.
    let layer = blob((64 << 20) + 12_345, 1);
    let digest = push(&*store, &layer, "v1").await;
    push(&*store, b"small", "v2").await;
    assert_eq!(store.tags().await.unwrap(), ["v1".parse().unwrap(), "v2".parse().unwrap()]);
    let tag = "oci://x/y:v1".parse::<headstart_store::Reference>().unwrap().selector;
    let (manifest, bytes) = store.manifest(&tag).await.unwrap();
    assert_eq!(Digest::of(&bytes), manifest);
    assert_eq!(
        store.manifest(&headstart_store::Selector::Digest(manifest)).await.unwrap(),
        (manifest, bytes)
    );
    assert_eq!(store.blob_len(&digest).await.unwrap(), Some(layer.len() as u64));
    assert_eq!(store.blob_len(&Digest::of(b"nothing")).await.unwrap(), None);
    for (offset, len) in [(0, 1), (1000, 4096), (layer.len() - 10, 10), (5, 1 << 20)] {
        let bytes = read(&*store, &digest, offset as u64, len as u64).await.unwrap();
        assert!(bytes[..] == layer[offset..offset + len]);
    }
    let long = ByteRange::between(4321, layer.len() as u64 - 99);
    let parts = store.read_stream(&digest, long, Urgency::Background).await.unwrap();
    let bytes: Vec<Bytes> = parts.map(Result::unwrap).collect().await;
    assert!(bytes.len() > 10, "it comes in parts");
    assert!(bytes.concat() == layer[4321..layer.len() - 99]);
    let no_tag =
        store.manifest(&headstart_store::Selector::Tag("nothing".parse().unwrap())).await.unwrap_err();
    assert!(no_tag.to_string().contains("`headstart image list oci://"), "{no_tag}");
    let missing = read(&*store, &Digest::of(b"nothing"), 0, 1).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    let past = read(&*store, &digest, layer.len() as u64 + 5, 10).await.unwrap_err();
    assert_eq!(past.kind(), ErrorKind::Corrupt, "{past}");
    let wrong =
        store.put_blob(&Digest::of(b"other"), Arc::new(b"bytes".to_vec()), &|_| Ok(())).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Corrupt, "{wrong}");
    assert_eq!(store.blob_len(&Digest::of(b"other")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn referrers_are_listed_under_a_tag() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let nowhere = tempfile::tempdir().unwrap();
    let store = store(&registry.host(), &settings(&[&registry.host()], nowhere.path()));
    let layer = push(&*store, b"layer", "v1").await;
    let (subject, _) = store
        .manifest(&"oci://x/y:v1".parse::<headstart_store::Reference>().unwrap().selector)
        .await
        .unwrap();
    for name in ["plan", "trees"] {
        let artifact = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": name,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}"), "size": 2},
            "layers": [{"mediaType": "application/octet-stream", "digest": layer, "size": 5}],
            "subject": {"mediaType": MANIFEST, "digest": subject, "size": 1},
        });
        store.put_referrer(&subject, MANIFEST, artifact.to_string().into(), &[]).await.unwrap();
    }
    assert_eq!(store.tags().await.unwrap(), ["v1".parse().unwrap()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_checked_before_the_first_read() {
    let Some(registry) = Registry::start(RegistryAccess::Password) else { return };
    let host = registry.host();
    let right = login(&host, USER, PASSWORD);
    let good = store(&host, &settings(&[&host], right.path()));
    good.check().await.unwrap();
    let digest = push(&*good, b"some bytes", "v1").await;
    assert_eq!(read(&*good, &digest, 5, 5).await.unwrap(), "bytes");
    let wrong = login(&host, USER, "wrong");
    let error = store(&host, &settings(&[&host], wrong.path())).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let text = error.to_string();
    assert!(text.contains(USER) && text.contains("docker login") && !text.contains("wrong"), "{text}");
    let nobody = tempfile::tempdir().unwrap();
    let error = store(&host, &settings(&[&host], nobody.path())).check().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("no credentials"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_spoken_only_where_it_is_allowed() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let nowhere = tempfile::tempdir().unwrap();
    let error = store(&registry.host(), &settings(&[], nowhere.path())).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("--plain-http"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_server_that_refuses_is_an_error_at_once() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    let host = house.front.host();
    house.store().check().await.unwrap();
    for (user, password) in [(USER, "wrong"), ("stranger", PASSWORD)] {
        let config = login(&host, user, password);
        let error = store(&host, &settings(&[&host], config.path())).check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(&format!("docker login {host}")), "{error}");
    }
    let nobody = tempfile::tempdir().unwrap();
    let anonymous = store(&host, &settings(&[&host], nobody.path()));
    assert_eq!(anonymous.check().await.unwrap_err().kind(), ErrorKind::Denied);
    house.tokens.allow_anonymous(true);
    anonymous.check().await.unwrap();
    house.read_well(&*anonymous, 10, 100).await;
    let error = anonymous.put_manifest(MANIFEST, "{}".into(), None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_are_taken_over_from_other_repositories() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    let (from, host) = (house.store(), house.front.host());
    let open_at = |host: &str, settings: &StoreSettings| {
        let location = Location::Registry { host: host.to_owned(), repository: "team/other".to_owned() };
        open(&location, settings).unwrap()
    };
    let other = open_at(&host, &house.settings());
    // With a token to write that does not open the other repository yet.
    let small = b"small".to_vec();
    other.put_blob(&Digest::of(&small), Arc::new(small), &|_| Ok(())).await.unwrap();
    assert_eq!(other.blob_len(&house.digest).await.unwrap(), None);
    assert!(other.mount_blob(&house.digest, &from.location()).await.unwrap());
    assert_eq!(other.blob_len(&house.digest).await.unwrap(), Some(house.layer.len() as u64));
    house.read_well(&*other, 5, 1000).await;
    // What the other repository does not have, and other stores, are for the caller to copy.
    let missing = Digest::of(b"missing");
    assert!(!other.mount_blob(&missing, &from.location()).await.unwrap());
    assert!(!other.mount_blob(&house.digest, "oci://elsewhere.test/team/disk").await.unwrap());
    assert!(!other.mount_blob(&house.digest, "file:///srv/images").await.unwrap());
    // Writing goes on, with the tokens for both.
    let more = blob(100_000, 3);
    other.put_blob(&Digest::of(&more), Arc::new(more), &|_| Ok(())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_hides_from_strangers_is_told_who_asks() {
    let Some(house) = House::new(Behaviour { hide: true, ..Behaviour::default() }).await else { return };
    let store = house.store();
    // Many at once: all of them get the result of one of them, even if that one is given up.
    for pause in 1..8 {
        let given_up =
            tokio::time::timeout(Duration::from_micros(pause * 300), store.blob_len(&house.digest));
        drop(given_up.await);
    }
    let fresh = house.store();
    for store in [&store, &fresh] {
        let lens = futures::future::join_all((0..20).map(|_| store.blob_len(&house.digest))).await;
        assert!(lens.into_iter().all(|len| len.unwrap().is_some()), "hidden from one who is known");
    }
    house.read_well(&*store, 0, 100).await;
    let missing = read(&*store, &Digest::of(b"nothing"), 0, 1).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_goes_on_where_it_was_broken() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let front = Front::start(&registry, Behaviour { redirect: false, ..Behaviour::default() }).await;
    let nowhere = tempfile::tempdir().unwrap();
    let store = store(&front.host(), &settings(&[&front.host()], nowhere.path()));
    let (piece, layer) = (64 << 20, Arc::new(blob((128 << 20) + 1, 3)));
    let (digest, copied) = (Digest::of(&layer), AtomicU64::new(0));
    let count = |bytes| {
        let before = copied.fetch_add(bytes, Ordering::Relaxed);
        if before < piece && before + bytes >= piece {
            // The first piece is on its way: the next request fails.
            front.set_broken(503);
        }
        Ok(())
    };
    let repair = async {
        while copied.load(Ordering::Relaxed) < piece {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(600)).await;
        front.set_broken(0);
        std::future::pending::<()>().await;
    };
    let put = store.put_blob(&digest, Arc::<Vec<u8>>::clone(&layer), &count);
    tokio::select! {
        put = tokio::time::timeout(HANGS, put) => put.expect("an upload that ends").unwrap(),
        () = repair => {}
    }
    assert_eq!(copied.into_inner(), layer.len());
    assert_eq!(store.blob_len(&digest).await.unwrap(), Some(layer.len()));
    let bytes = read(&*store, &digest, piece - 100, 200).await.unwrap();
    assert!(bytes[..] == layer[(64 << 20) - 100..][..200]);
    // A check, begin, three pieces, one or two refused and their progress, end, length, read.
    assert!(front.seen().requests <= 14, "{:?}", front.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_takes_no_pieces_gets_the_whole() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let behaviour = Behaviour { redirect: false, whole: true, ..Behaviour::default() };
    let front = Front::start(&registry, behaviour).await;
    let nowhere = tempfile::tempdir().unwrap();
    let store = store(&front.host(), &settings(&[&front.host()], nowhere.path()));
    let layer = blob((64 << 20) + 1, 3);
    let digest = push(&*store, &layer, "v1").await;
    assert_eq!(store.blob_len(&digest).await.unwrap(), Some((64 << 20) + 1));
}

/// A source that cannot be read past its beginning.
struct Damaged;

impl ReadAt for Damaged {
    fn len(&self) -> u64 {
        3 << 20
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        buf.fill(0);
        if offset == 0 { Ok(()) } else { Err(Error::corrupt("frame 7 fails its checksum")) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_ends_with_what_ends_it_here() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let nowhere = tempfile::tempdir().unwrap();
    let store = store(&registry.host(), &settings(&[&registry.host()], nowhere.path()));
    let digest = Digest::of(b"x");
    let error = store.put_blob(&digest, Arc::new(Damaged), &|_| Ok(())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("frame 7"), "{error}");
    let stop = |_| Err(Error::new(ErrorKind::Cancelled, "stopped"));
    let error = store.put_blob(&digest, Arc::new(blob(5 << 20, 1)), &stop).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_token_buys_tokens() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    let host = house.front.host();
    let directory = tempfile::tempdir().unwrap();
    house.tokens.set_identity_token(USER, "it");
    let config = json!({"auths": { &host: {"identitytoken": "it"} }});
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let store = store(&host, &settings(&[&host], directory.path()));
    store.check().await.unwrap();
    house.read_well(&*store, 0, 4096).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_reads_at_once_ask_for_one_token_and_few_addresses() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    house.tokens.set_delay(Duration::from_millis(100));
    let store = house.store();
    let (tokens, front) = (house.tokens.requests(), house.front.seen());
    let reads = (0..200_usize).map(|n| house.read_well(&*store, n * 1000, 1000));
    futures::future::join_all(reads).await;
    assert_eq!(house.tokens.requests() - tokens, 1);
    let seen = house.front.seen();
    // The first few without a token, and again with one.
    assert!((2..=34).contains(&(seen.asked - front.asked)), "{seen:?}");
    assert_eq!((seen.served - front.served, seen.leaked), (200, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_are_given_up_do_not_give_up_the_token() {
    let Some(house) = House::new(Behaviour::default()).await else { return };
    house.tokens.set_delay(Duration::from_millis(600));
    let (store, before) = (house.store(), house.tokens.requests());
    let mut done = false;
    // The token comes within the first few; on a busy machine the read itself may need some more.
    for _ in 0..50 {
        let read = tokio::time::timeout(Duration::from_millis(200), house.read_well(&*store, 0, 10));
        done = read.await.is_ok();
        if done {
            break;
        }
    }
    assert!(done, "each read that is given up begins again");
    assert_eq!(house.tokens.requests() - before, 1);
}

/// The cost of reading for a while.
struct Taken {
    tokens: u64,
    /// Answers of 403.
    refused: u64,
    slowest: Duration,
}

/// Reads for `time`, with a token server that is slow once it has given the first token.
async fn read_on(house: &House, time: Duration, delay: Duration) -> Taken {
    let store = house.store();
    house.read_well(&*store, 0, 10).await;
    house.tokens.set_delay(delay);
    let (granted, forbidden) = (house.tokens.granted(), house.front.seen().forbidden);
    let end = Instant::now() + time;
    let mut slowest = Duration::ZERO;
    while Instant::now() < end {
        let begin = Instant::now();
        let reads = (0..8_usize).map(|n| house.read_well(&*store, n * 100, 5000));
        futures::future::join_all(reads).await;
        slowest = slowest.max(begin.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    let (tokens, refused) = (house.tokens.granted() - granted, house.front.seen().forbidden - forbidden);
    Taken { tokens, refused, slowest }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_use_is_renewed_before_it_runs_out_and_nobody_waits() {
    // No redirects: each read shows its token.
    let behaviour = Behaviour { redirect: false, forbid: true, ..Behaviour::default() };
    let Some(house) = House::new(behaviour).await else { return };
    house.tokens.set_life(Duration::from_secs(4));
    // A machine that is busy elsewhere may hold up one of the thousand reads for as long as a token server would.
    for last in [false, false, false, true] {
        house.tokens.set_delay(Duration::ZERO);
        // Renewed in the last second of its life, which takes most of that.
        let taken = read_on(&house, Duration::from_secs(9), Duration::from_millis(850)).await;
        let Taken { tokens, refused, slowest } = taken;
        let at_ease = refused == 0 && (2..=4).contains(&tokens) && slowest < Duration::from_millis(800);
        assert!(at_ease || !last, "{tokens} tokens in two lives, {refused} refused, a read of {slowest:?}");
        if at_ease {
            return;
        }
    }
}

/// A used token and address are kept valid even without reads; unused ones are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_after_a_long_pause_finds_token_and_address_renewed() {
    let token = async {
        let behaviour = Behaviour { redirect: false, forbid: true, ..Behaviour::default() };
        let Some(house) = House::new(behaviour).await else { return };
        house.tokens.set_life(Duration::from_secs(4));
        // A machine that stands still spoils it, but not each time.
        for last in [false, false, true] {
            let (store, before) = (house.store(), house.tokens.granted());
            let (forbidden, granted) = (house.front.seen().forbidden, || house.tokens.granted() - before);
            house.read_well(&*store, 0, 10).await;
            let first = granted();
            // Past the end of the first token, within the life of the second: renewed, because it was used.
            sleep(Duration::from_millis(4500)).await;
            let second = granted();
            house.read_well(&*store, 0, 10).await;
            let read = (granted(), house.front.seen().forbidden - forbidden);
            // The second was used, the third is not, and is not renewed.
            sleep(Duration::from_millis(5500)).await;
            let seen = (first, second, read, granted());
            let is_right = seen == (1, 2, (2, 0), 3);
            assert!(is_right || !last, "{seen:?}");
            if is_right {
                return;
            }
        }
    };
    let address = async {
        // A second more than it tells: dates have whole seconds.
        let (life, told) = (Duration::from_secs(6), Some(Duration::from_secs(5)));
        let behaviour = Behaviour { style: RedirectStyle::Amazon, life, told, ..Behaviour::default() };
        let Some(house) = House::new(behaviour).await else { return };
        for last in [false, false, true] {
            let store = house.store();
            house.read_well(&*store, 0, 10).await;
            let first = house.front.seen();
            sleep(Duration::from_millis(5200)).await;
            let second = house.front.seen();
            house.read_well(&*store, 0, 10).await;
            let read = house.front.seen();
            // Asked for the next one, because the first was used; so that the read did not wait for the registry.
            let asked = (second.asked - first.asked, read.asked - second.asked);
            let seen = (asked, read.expired - first.expired);
            let is_right = seen == ((1, 0), 0);
            assert!(is_right || !last, "{seen:?}");
            if is_right {
                return;
            }
        }
    };
    tokio::join!(token, address);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_renewed_on_401_and_on_403() {
    let renewed = async |forbid| {
        let behaviour = Behaviour { redirect: false, forbid, ..Behaviour::default() };
        let Some(house) = House::new(behaviour).await else { return };
        // The token server says more than is true.
        house.tokens.set_life(Duration::from_secs(2));
        house.tokens.set_told_life(3600);
        let taken = read_on(&house, Duration::from_secs(6), Duration::ZERO).await;
        assert!((1..=5).contains(&taken.tokens), "{} tokens in three lives", taken.tokens);
        assert_eq!(taken.refused > 0, forbid, "{} answers of 403", taken.refused);
    };
    tokio::join!(renewed(false), renewed(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_stays_is_an_error() {
    let behaviour = Behaviour { redirect: false, forbid: true, ..Behaviour::default() };
    let Some(house) = House::new(behaviour).await else { return };
    let store = house.store();
    house.read_well(&*store, 0, 10).await;
    let requests = house.tokens.requests();
    house.front.set_broken(403);
    let error = read(&*store, &house.digest, 0, 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let asked = house.tokens.requests() - requests;
    assert_eq!(asked, 2, "one more try with a new token, and one as nobody, no more");
    assert!(error.to_string().contains(&format!("the user `{USER}`")), "{error}");
    house.front.set_broken(0);
    house.read_well(&*store, 0, 10).await;
    // A changed password takes effect without a restart.
    house.tokens.set_user(USER, "new");
    let error = {
        house.front.set_broken(403);
        let error = read(&*store, &house.digest, 0, 10).await.unwrap_err();
        house.front.set_broken(0);
        error
    };
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let config = json!({"auths": { house.front.host(): {"username": USER, "password": "new"} }});
    fs::write(house.config.path().join("config.json"), config.to_string()).unwrap();
    house.read_well(&*store, 0, 10).await;
}

/// Reads every 20 ms for `time`, and returns the counts of the front meanwhile: questions, refusals.
async fn read_away(house: &House, time: Duration) -> (u64, u64) {
    let store = house.store();
    house.read_well(&*store, 0, 10).await;
    let before = house.front.seen();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let reads = (0..4_usize).map(|n| house.read_well(&*store, n * 100, 5000));
        futures::future::join_all(reads).await;
        sleep(Duration::from_millis(20)).await;
    }
    let seen = house.front.seen();
    assert_eq!(seen.leaked, 0, "a token was shown to the storage");
    (seen.asked - before.asked, seen.expired - before.expired)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_tells_its_life_is_renewed_ahead() {
    let renewed = async |style| {
        // A second more than it tells: dates have whole seconds.
        let (life, told) = (Duration::from_secs(4), Some(Duration::from_secs(3)));
        let behaviour = Behaviour { style, life, told, ..Behaviour::default() };
        let Some(house) = House::new(behaviour).await else { return };
        for last in [false, false, true] {
            let (asked, refused) = read_away(&house, Duration::from_secs(7)).await;
            let in_time = refused == 0 && (1..=8).contains(&asked);
            assert!(in_time || !last, "{asked} questions, {refused} refusals, {style:?}");
            if in_time {
                return;
            }
        }
    };
    tokio::join!(renewed(RedirectStyle::Amazon), renewed(RedirectStyle::Expires));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_tells_nothing_teaches_its_life() {
    let taught = async |expired_status| {
        let life = Duration::from_secs(2);
        let behaviour =
            Behaviour { style: RedirectStyle::Untold, life, expired_status, ..Behaviour::default() };
        let Some(house) = House::new(behaviour).await else { return };
        let (asked, refused) = read_away(&house, Duration::from_secs(9)).await;
        // After the first life, addresses are asked for at four fifths of it: so five lives end, each by
        // refusing the four reads at most that are under way. They have the next address already.
        assert!((3..=10).contains(&asked), "{asked} questions, {expired_status}");
        assert!((1..=40).contains(&refused), "{refused} refusals, {expired_status}");
    };
    tokio::join!(taught(403), taught(401), taught(400));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_that_refuses_all_is_an_error() {
    let behaviour = Behaviour { style: RedirectStyle::Untold, life: Duration::ZERO, ..Behaviour::default() };
    let Some(house) = House::new(behaviour).await else { return };
    let store = house.store();
    let error = read(&*store, &house.digest, 0, 10).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("redirects to"), "{error}");
    assert!(house.front.seen().expired <= 3);
    assert!(!error.to_string().contains("ticket="), "a signature in a message: {error}");
    house.front.set(Behaviour::default());
    house.read_well(&*store, 0, 10).await;
    assert_eq!(store.blob_len(&house.digest).await.unwrap(), Some(house.layer.len() as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_are_asked_first_and_left_alone_when_they_fail() {
    let (Some(mirror), Some(house)) =
        (Registry::start(RegistryAccess::Open), House::new(Behaviour::default()).await)
    else {
        return;
    };
    let behaviour = Behaviour { redirect: false, ..Behaviour::default() };
    let mirror_front = Front::start(&mirror, behaviour).await;
    let hosts = [mirror_front.host(), house.front.host()];
    let hosts = [hosts[0].as_str(), hosts[1].as_str()];
    let settings = StoreSettings {
        mirrors: vec![Mirror { registry: house.front.host(), mirror: hosts[0].to_owned() }],
        ..settings(&hosts, house.config.path())
    };
    // The mirror has another image, not this one: this one comes from the registry, and the mirror is not asked
    // again at once.
    let other = push(&*store(hosts[0], &settings), b"on the mirror", "other").await;
    let store = store(hosts[1], &settings);
    store.check().await.unwrap();
    assert_eq!(read(&*store, &other, 7, 6).await.unwrap(), "mirror");
    let asked = mirror_front.seen().asked;
    house.read_well(&*store, 0, 100).await;
    house.read_well(&*store, 500, 100).await;
    assert_eq!(mirror_front.seen().asked - asked, 1);
    assert_eq!(store.tags().await.unwrap(), ["latest".parse().unwrap()], "of the registry itself");
    mirror_front.set_broken(503);
    let before = mirror_front.seen().requests;
    let missing = read(&*store, &other, 7, 6).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    house.read_well(&*store, 0, 100).await;
    store.check().await.unwrap();
    assert_eq!(mirror_front.seen().requests - before, 1, "it rests");
}

/// Set in the child that has the helper on its path.
const HELPED: &str = "HEADSTART_TEST_HELPED";

#[tokio::test(flavor = "multi_thread")]
async fn credential_helpers_are_asked() {
    let Ok(host) = std::env::var(HELPED) else {
        let Some(house) = House::new(Behaviour::default()).await else { return };
        let host = house.front.host();
        let directory = tempfile::tempdir().unwrap();
        let script = format!(
            "#!/bin/sh\nread host\n[ \"$1 $host\" = 'get {host}' ] || exit 1\n\
             echo '{{\"ServerURL\": \"{host}\", \"Username\": \"{USER}\", \"Secret\": \"{PASSWORD}\"}}'\n"
        );
        let [made, helper] = ["script", "docker-credential-test"].map(|name| directory.path().join(name));
        fs::write(&made, script).unwrap();
        fs::set_permissions(&made, fs::Permissions::from_mode(0o755)).unwrap();
        // By another process: a program that another test starts meanwhile holds files that are written here, and a
        // file that is held for writing cannot be run.
        assert!(Command::new("cp").arg(&made).arg(&helper).status().unwrap().success());
        let config = json!({"credHelpers": { &host: "test" }}).to_string();
        fs::write(directory.path().join("config.json"), config).unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = one_test("registry::credential_helpers_are_asked");
        command
            .env(HELPED, &host)
            .env("DOCKER_CONFIG", directory.path())
            .env("PATH", format!("{}:{path}", directory.path().display()));
        let ended = tokio::task::spawn_blocking(move || {
            let mut helped = Process::start(&mut command);
            (helped.end(HANGS), helped.output())
        });
        let (status, said) = ended.await.unwrap();
        assert!(status.success() && said.contains("1 passed"), "{said}");
        return;
    };
    let settings = StoreSettings { docker_config: None, ..settings(&[&host], Path::new("/")) };
    store(&host, &settings).check().await.unwrap();
}
