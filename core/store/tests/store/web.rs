//! Stores behind a web server that does everything wrong that servers do wrong, one after the other.

mod server;

use futures::StreamExt;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_store::media_type::{INDEX_OCI, MANIFEST_OCI};
use headstart_store::{
    HedgeSettings, RateLimit, RetrySettings, Selector, Store, StoreSettings, Tag, Urgency, open,
};
use serde_json::json;
use server::{Fault, Server};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn blob() -> Vec<u8> {
    (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn settings() -> StoreSettings {
    StoreSettings {
        // The faults take as long; a sound answer on a busy machine must not.
        first_byte_timeout: Duration::from_secs(3),
        stall_timeout: Duration::from_secs(3),
        hedge: None,
        retry: RetrySettings {
            first: Duration::from_millis(5),
            most: Duration::from_millis(20),
            deadline: Duration::from_secs(5),
        },
        ..StoreSettings::default()
    }
}

fn put(server: &Server, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    server.put(&format!("/images/blobs/sha256/{}", digest.hex()), bytes);
    digest
}

/// A layout with one blob and one image, whose tag leads through an index of platforms.
async fn start() -> (Server, Arc<dyn Store>, Digest, Digest) {
    let server = Server::start().await;
    server.put("/images/oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    let blob = put(&server, &blob());
    let manifest = put(&server, br#"{"schemaVersion":2}"#);
    let platforms = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": [
        {"mediaType": MANIFEST_OCI, "digest": blob.to_string(), "size": 1,
            "platform": {"os": "linux", "architecture": "arm64"}},
        {"mediaType": MANIFEST_OCI, "digest": manifest.to_string(), "size": 1,
            "platform": {"os": "linux", "architecture": "amd64"}},
    ]});
    let platforms = put(&server, platforms.to_string().as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [
        {"mediaType": INDEX_OCI, "digest": platforms.to_string(), "size": 1,
            "annotations": {"org.opencontainers.image.ref.name": "v1"}},
        {"mediaType": INDEX_OCI, "digest": platforms.to_string(), "size": 1,
            "annotations": {"org.opencontainers.image.ref.name": format!("sha256-{}", "0".repeat(64))}},
    ]});
    server.put("/images/index.json", index.to_string().as_bytes());
    let location = format!("http://{}/images", server.address).parse().unwrap();
    let store = open(&location, &settings()).unwrap();
    (server, store, blob, manifest)
}

fn range() -> ByteRange {
    ByteRange::between(1000, 101_000)
}

/// The error, without printing 100 kB if there is none.
fn failed(result: Result<bytes::Bytes>) -> Error {
    result.map(|bytes| bytes.len()).unwrap_err()
}

#[tokio::test]
async fn reads_what_is_there() {
    let (server, store, digest, manifest) = start().await;
    store.check().await.unwrap();
    let bytes = store.read(&digest, range(), Urgency::Demand).await.unwrap();
    assert!(bytes == blob()[1000..101_000]);
    assert_eq!(store.blob_len(&digest).await.unwrap(), Some(200_000));
    assert_eq!(store.blob_len(&Digest::of(b"?")).await.unwrap(), None);
    let tag: Tag = "v1".parse().unwrap();
    assert_eq!(store.tags().await.unwrap(), std::slice::from_ref(&tag));
    let (found, bytes) = store.manifest(&Selector::Tag(tag)).await.unwrap();
    assert_eq!((found, &bytes[..]), (manifest, &br#"{"schemaVersion":2}"#[..]));
    let whole = ByteRange::between(0, 200_000);
    assert!(store.read(&digest, whole, Urgency::Background).await.unwrap() == blob());
    // A server without ranges is good enough for whole blobs.
    server.fail([Fault::Whole]);
    assert!(store.read(&digest, whole, Urgency::Background).await.unwrap() == blob());
    let counters = store.counters();
    assert_eq!((counters.errors, counters.retries, counters.bytes), (0, 0, 500_000));
    let refused = store.put_manifest(MANIFEST_OCI, "{}".into(), None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
}

#[tokio::test]
async fn each_fault_is_an_error_that_names_the_blob() {
    let (server, store, digest, _) = start().await;
    let slow = Duration::from_secs(60);
    for (fault, kind) in [
        (Fault::Status(500), ErrorKind::Unavailable),
        (Fault::Status(503), ErrorKind::Unavailable),
        (Fault::Status(429), ErrorKind::Unavailable),
        (Fault::Status(404), ErrorKind::NotFound),
        (Fault::Status(401), ErrorKind::Denied),
        (Fault::Status(403), ErrorKind::Denied),
        (Fault::Status(204), ErrorKind::Unavailable),
        (Fault::Short, ErrorKind::Unavailable),
        (Fault::Shorter, ErrorKind::Unavailable),
        (Fault::WrongRange, ErrorKind::Unavailable),
        (Fault::Whole, ErrorKind::Unavailable),
        (Fault::Huge, ErrorKind::Unavailable),
        (Fault::Endless, ErrorKind::Unavailable),
        (Fault::Reset, ErrorKind::Unavailable),
        (Fault::Slow(slow), ErrorKind::Unavailable),
        (Fault::Stall, ErrorKind::Unavailable),
        (Fault::Compressed, ErrorKind::Unavailable),
    ] {
        // The HTTP library itself tries again once if a connection that it kept turns out to be closed.
        // And a blob that is not there is asked for twice more.
        let times = match fault {
            Fault::Reset => 5,
            Fault::Status(404) => 3,
            _ => 1,
        };
        server.fail(vec![fault.clone(); times]);
        let error = failed(store.read(&digest, range(), Urgency::Demand).await);
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        assert!(error.to_string().contains(&digest.hex()), "{fault:?}: {error}");
        // The fault does not affect the next read.
        server.fail([]);
        let bytes = store.read(&digest, range(), Urgency::Demand).await.unwrap();
        assert!(bytes == blob()[1000..101_000], "{fault:?}");
    }
    let past = ByteRange::between(200_000, 300_000);
    assert_eq!(failed(store.read(&digest, past, Urgency::Demand).await).kind(), ErrorKind::Corrupt);
    assert_eq!(store.counters().errors, 20);
}

/// The bytes of a stream, and the error that it ends with.
async fn stream_of(store: &dyn Store, digest: &Digest) -> Result<(Vec<u8>, Option<Error>)> {
    let mut parts = store.read_stream(digest, range(), Urgency::Background).await?;
    let mut bytes = Vec::new();
    while let Some(part) = parts.next().await {
        match part {
            Ok(part) => bytes.extend_from_slice(&part),
            Err(error) => {
                assert!(parts.next().await.is_none());
                return Ok((bytes, Some(error)));
            }
        }
    }
    Ok((bytes, None))
}

/// The bytes before the break are delivered, and then the error, once.
#[tokio::test]
async fn a_stream_gives_what_comes_and_then_what_broke_it() {
    let (server, store, digest, _) = start().await;
    let stream = || stream_of(&*store, &digest);
    let (bytes, error) = stream().await.unwrap();
    assert!(bytes == blob()[1000..101_000] && error.is_none());
    for fault in [Fault::Short, Fault::Stall] {
        server.fail([fault.clone()]);
        let (bytes, error) = stream().await.unwrap();
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        assert!(error.to_string().contains(&digest.hex()), "{fault:?}: {error}");
        assert!(!bytes.is_empty() && bytes == blob()[1000..1000 + bytes.len()], "{fault:?}: {}", bytes.len());
    }
    for (fault, kind) in [
        (Fault::Status(503), ErrorKind::Unavailable),
        (Fault::Status(404), ErrorKind::NotFound),
        (Fault::WrongRange, ErrorKind::Unavailable),
        (Fault::Whole, ErrorKind::Unavailable),
    ] {
        server.fail([fault.clone()]);
        let error = stream().await.map(drop).unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        assert!(error.to_string().contains(&digest.hex()), "{fault:?}: {error}");
    }
    assert_eq!(store.counters().errors, 6);
}

#[tokio::test]
async fn a_slow_answer_is_overtaken() {
    let (server, _, digest, _) = start().await;
    let location = format!("http://{}/images", server.address).parse().unwrap();
    // Some reads before may be slow by themselves: they must not spend the budget of the second requests.
    let hedge = HedgeSettings { least: Duration::from_millis(100), share: 1.0, ..HedgeSettings::default() };
    let first_byte_timeout = Duration::from_secs(30);
    let store =
        open(&location, &StoreSettings { hedge: Some(hedge), first_byte_timeout, ..settings() }).unwrap();
    for _ in 0..10 {
        store.read(&digest, range(), Urgency::Demand).await.unwrap();
    }
    let before = store.counters().hedges_won;
    server.fail([Fault::Slow(Duration::from_secs(60))]);
    let bytes = store.read(&digest, range(), Urgency::Demand).await.unwrap();
    assert!(bytes == blob()[1000..101_000]);
    assert_eq!((store.counters().hedges_won - before, store.counters().errors), (1, 0));
}

#[tokio::test]
async fn a_read_is_tried_once_and_metadata_again() {
    let (server, store, digest, manifest) = start().await;
    server.requests();
    server.fail([Fault::Status(503)]);
    failed(store.read(&digest, range(), Urgency::Demand).await);
    assert_eq!(server.requests().len(), 1);
    server.fail([Fault::Status(503), Fault::Status(500), Fault::Short]);
    let (found, _) = store.manifest(&Selector::Digest(manifest)).await.unwrap();
    assert_eq!((found, server.requests().len()), (manifest, 4));
    assert_eq!(store.counters().retries, 3);
    // Not where it does not help.
    server.fail([Fault::Status(403)]);
    assert_eq!(store.check().await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_password_is_shown_to_who_asks_for_it() {
    let (server, stranger, digest, _) = start().await;
    let host = server.address.to_string();
    // bob:pw
    server.require("Basic Ym9iOnB3");
    let config = tempfile::tempdir().unwrap();
    let store = |plain: &[&str]| {
        let settings = StoreSettings {
            plain_http: plain.iter().map(|&host| host.to_owned()).collect(),
            docker_config: Some(config.path().to_owned()),
            ..settings()
        };
        open(&format!("http://{host}/images").parse().unwrap(), &settings).unwrap()
    };
    let write = |auth: &str| {
        let auths = json!({"auths": { &host: {"auth": auth} }});
        std::fs::write(config.path().join("config.json"), auths.to_string()).unwrap();
    };
    let denied = |error: Error, parts: &[&str]| {
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Denied && parts.iter().all(|part| text.contains(part)), "{text}");
    };
    denied(stranger.check().await.unwrap_err(), &["401", "asked as nobody", "\"auths\""]);
    let here = store(&[&host]);
    denied(here.check().await.unwrap_err(), &["asked as nobody", "config.json", &host]);
    write("Ym9iOndyb25n");
    denied(here.check().await.unwrap_err(), &["`bob`", "config.json", "correct"]);
    write("Ym9iOnB3");
    here.check().await.unwrap();
    assert!(here.read(&digest, range(), Urgency::Demand).await.unwrap() == blob()[1000..101_000]);
    server.requests();
    here.read(&digest, range(), Urgency::Demand).await.unwrap();
    assert_eq!(server.requests().len(), 1, "once asked, it is shown at once");
    denied(store(&[]).check().await.unwrap_err(), &["no TLS", "--plain-http"]);
    server.fail([Fault::Status(403)]);
    denied(here.check().await.unwrap_err(), &["403", "check the URL"]);
}

#[tokio::test]
async fn redirects_are_followed_but_not_for_ever() {
    let (server, store, digest, _) = start().await;
    server.put("/elsewhere", &blob());
    server.fail([Fault::Redirect("/elsewhere".to_owned())]);
    assert!(store.read(&digest, range(), Urgency::Demand).await.unwrap() == blob()[1000..101_000]);
    assert!(server.requests().last().unwrap().contains("/elsewhere Some((1000, 100999))"));
    server.fail(vec![Fault::Redirect("/elsewhere".to_owned()); 50]);
    let error = failed(store.read(&digest, range(), Urgency::Demand).await);
    assert!(error.to_string().contains("redirect"), "{error}");
    assert!(server.requests().len() < 10);
}

/// The user that chooses an image chooses the redirects of its server, and its guest reads the result.
#[tokio::test]
async fn redirects_into_the_networks_of_this_host_are_not_followed() {
    let (server, store, digest, _) = start().await;
    for (target, named) in [
        ("http://10.255.255.1:4803/backup.bin", "10.255.255.1:4803"),
        ("http://169.254.169.254/latest/meta-data/", "169.254.169.254"),
        ("http://[::ffff:10.255.255.1]/", "[::ffff:aff:ff01]"),
        ("http://[fe80::1]/", "[fe80::1]"),
        ("http://100.64.0.1/", "100.64.0.1"),
    ] {
        server.fail([Fault::Redirect(target.to_owned())]);
        let error = failed(store.read(&digest, range(), Urgency::Demand).await);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(
            error.to_string().contains(named) && error.to_string().contains("--allow-redirect"),
            "{error}"
        );
    }
}

/// Another host named the store.
#[tokio::test]
async fn for_others_no_redirect_leaves_the_server() {
    let (server, _, digest, _) = start().await;
    let (other, _, _, _) = start().await;
    other.put("/elsewhere", &blob());
    let read = async |allowed: &[String]| {
        let settings = StoreSettings { one_origin: true, allow_redirect: allowed.to_vec(), ..settings() };
        let location = format!("http://{}/images", server.address).parse().unwrap();
        let store = open(&location, &settings).unwrap();
        server.fail([Fault::Redirect(format!("http://{}/elsewhere", other.address))]);
        store.read(&digest, range(), Urgency::Demand).await
    };
    other.requests();
    let error = failed(read(&[]).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(other.requests().is_empty());
    assert!(read(&[other.address.to_string()]).await.unwrap() == blob()[1000..101_000]);
}

#[tokio::test]
async fn documents_are_checked_and_bounded() {
    let (server, store, _, manifest) = start().await;
    server.put(&format!("/images/blobs/sha256/{}", manifest.hex()), b"{}");
    let error = store.manifest(&Selector::Digest(manifest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    server.fail([Fault::Endless]);
    let error = store.manifest(&Selector::Digest(manifest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    server.put("/images/oci-layout", br#"{"imageLayoutVersion":"2.0.0"}"#);
    assert_eq!(store.check().await.unwrap_err().kind(), ErrorKind::Unsupported);
    server.put("/images/index.json", b"[]");
    assert_eq!(store.tags().await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn documents_come_as_they_are() {
    let (server, store, _, manifest) = start().await;
    server.requests();
    server.fail([Fault::Compressed]);
    store.manifest(&Selector::Digest(manifest)).await.unwrap();
    assert_eq!((server.requests().len(), store.counters().retries), (2, 1));
    server.fail(vec![Fault::Compressed; 2000]);
    let error = store.manifest(&Selector::Digest(manifest)).await.unwrap_err();
    assert!(error.to_string().contains("compressed"), "{error}");
}

#[tokio::test]
async fn a_refused_connection_is_an_error_at_once() {
    let (server, _, digest, _) = start().await;
    // Port 9 of this host: nothing listens there.
    let location = "http://127.0.0.1:9/images".parse().unwrap();
    let retry = RetrySettings { deadline: Duration::from_millis(100), ..settings().retry };
    let store = open(&location, &StoreSettings { retry, ..settings() }).unwrap();
    let begin = Instant::now();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("http://127.0.0.1:9/images/oci-layout"), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(store.read(&digest, range(), Urgency::Demand).await.is_err());
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    drop(server);
}

#[tokio::test]
async fn connections_are_kept() {
    let (server, store, digest, _) = start().await;
    for n in 0..50 {
        let range = ByteRange::between(n * 1000, n * 1000 + 4096);
        let bytes = store.read(&digest, range, Urgency::Demand).await.unwrap();
        assert_eq!(bytes.len(), 4096);
    }
    let settings = StoreSettings { limit_rate: Some(RateLimit::new(400_000)), ..settings() };
    let limited = open(&format!("http://{}/images", server.address).parse().unwrap(), &settings).unwrap();
    let begin = Instant::now();
    for _ in 0..3 {
        limited.read(&digest, ByteRange::between(0, 100_000), Urgency::Background).await.unwrap();
    }
    // 300 kB at 400 kB/s, less the 100 kB of the bucket.
    assert!(begin.elapsed() >= Duration::from_millis(450), "{:?}", begin.elapsed());
}
