//! Registries that misbehave in ways in which no real one does for long: scripted, request by request.

#![allow(clippy::unnecessary_wraps, reason = "tests: a script answers in one word")]

use bytes::Bytes;
use headstart_block::{ByteRange, Digest, ErrorKind, Result};
use headstart_store::{Location, Mirror, RetrySettings, Store, StoreSettings, Urgency, open};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The answer to a request: status, header lines, body. `None`: no answer, ever.
type Reply = Option<(u16, String, Vec<u8>)>;

/// A function that answers `METHOD /path`, whose body is read and forgotten.
type Script = Arc<dyn Fn(&str) -> Reply + Send + Sync>;

struct Server {
    host: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(script: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { host: listener.local_addr().unwrap().to_string(), seen: Arc::default() };
        let (script, seen): (Script, _) = (Arc::new(script), Arc::clone(&server.seen));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&seen)));
            }
        });
        server
    }

    fn count(&self, begin: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|request| request.starts_with(begin)).count()
    }
}

async fn serve(stream: TcpStream, script: Script, seen: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut request, mut line, mut len) = (String::new(), String::new(), 0_u64);
        while stream.read_line(&mut line).await.ok()? > 2 {
            if request.is_empty() {
                request = line.rsplit_once(' ')?.0.to_owned();
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length: ") {
                len = value.trim().parse().ok()?;
            }
            if lower.starts_with("proxy-authorization: ") {
                seen.lock().unwrap().push(line.trim().to_ascii_lowercase());
            }
            line.clear();
        }
        if request.is_empty() {
            return None;
        }
        tokio::io::copy(&mut (&mut stream).take(len), &mut tokio::io::sink()).await.ok()?;
        seen.lock().unwrap().push(request.clone());
        let Some((status, headers, body)) = script(&request) else { std::future::pending().await };
        let head = format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat()).await.ok()?;
    }
}

fn reply(status: u16, headers: &str) -> Reply {
    Some((status, headers.to_owned(), Vec::new()))
}

/// The first ten bytes of a blob, for any request.
fn ten() -> Reply {
    Some((206, "Content-Range: bytes 0-9/100\r\n".to_owned(), b"0123456789".to_vec()))
}

fn settings(hosts: &[&str]) -> StoreSettings {
    StoreSettings {
        plain_http: hosts.iter().map(|host| (*host).to_owned()).collect(),
        docker_config: Some(Path::new("/nonexistent").to_owned()),
        // Only a request without an answer takes this time.
        first_byte_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(5),
        retry: RetrySettings { deadline: Duration::ZERO, ..RetrySettings::default() },
        hedge: None,
        ..StoreSettings::default()
    }
}

fn store(host: &str, settings: &StoreSettings) -> Arc<dyn Store> {
    let location = Location::Registry { host: host.to_owned(), repository: "team/disk".to_owned() };
    open(&location, settings).unwrap()
}

async fn read(store: &dyn Store) -> Result<Bytes> {
    let (blob, range) = (Digest::of(b"blob"), ByteRange::between(0, 10));
    let read = store.read(&blob, range, Urgency::Demand);
    tokio::time::timeout(Duration::from_secs(120), read).await.expect("a read that ends")
}

#[tokio::test]
async fn an_upload_that_gets_nowhere_ends() {
    let pieces = AtomicU64::new(0);
    let server = Server::start(move |request| match request.split_once(' ').unwrap().0 {
        "HEAD" => reply(404, ""),
        "POST" => reply(202, "Location: /upload\r\n"),
        // Each second piece is lost, and then all that came before.
        "PATCH" if pieces.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) => {
            reply(202, "Location: /upload\r\n")
        }
        "PATCH" => reply(503, ""),
        _ => reply(204, "Location: /upload\r\nRange: 0-0\r\n"),
    })
    .await;
    let store = store(&server.host, &settings(&[&server.host]));
    let digest = Digest::of(b"x");
    let put = store.put_blob(&digest, Arc::new(vec![0; (64 << 20) + 1]), &|_| Ok(()));
    let error = tokio::time::timeout(Duration::from_secs(120), put).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(server.count("PATCH") <= 12, "{}", server.count("PATCH"));
}

#[tokio::test]
async fn an_address_whose_storage_fails_is_forgotten() {
    let failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&failing);
    let server = Server::start(move |request| match (request, fails.load(Ordering::Relaxed)) {
        ("GET /old", false) | ("GET /new", _) => ten(),
        ("GET /old", true) => reply(502, ""),
        (_, false) => reply(307, "Location: /old\r\n"),
        (_, true) => reply(307, "Location: /new\r\n"),
    })
    .await;
    let store = store(&server.host, &settings(&[&server.host]));
    read(&*store).await.unwrap();
    failing.store(true, Ordering::Relaxed);
    assert_eq!(read(&*store).await.unwrap_err().kind(), ErrorKind::Unavailable);
    read(&*store).await.unwrap();
}

#[tokio::test]
async fn a_mirror_forgets_an_address_that_hangs() {
    let hanging = Arc::new(AtomicBool::new(true));
    let hangs = Arc::clone(&hanging);
    let mirror = Server::start(move |request| match (request, hangs.load(Ordering::Relaxed)) {
        ("GET /dead", _) => None,
        ("GET /new", _) => ten(),
        (_, true) => reply(307, "Location: /dead\r\n"),
        (_, false) => reply(307, "Location: /new\r\n"),
    })
    .await;
    let origin = Server::start(|_| ten()).await;
    let mirrors = vec![Mirror { registry: origin.host.clone(), mirror: mirror.host.clone() }];
    // A mirror gets a third of it: enough for one that answers at all, on a busy machine.
    let first_byte_timeout = Duration::from_secs(6);
    let patient = StoreSettings { first_byte_timeout, ..settings(&[&origin.host, &mirror.host]) };
    let store = store(&origin.host, &StoreSettings { mirrors, ..patient });
    read(&*store).await.unwrap();
    assert_eq!((mirror.count("GET /dead"), origin.count("GET")), (1, 1));
    hanging.store(false, Ordering::Relaxed);
    // Until it is asked again.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    read(&*store).await.unwrap();
    assert_eq!((mirror.count("GET /dead"), mirror.count("GET /new"), origin.count("GET")), (1, 1, 1));
}

#[tokio::test]
async fn a_list_of_tags_without_end_ends() {
    let pages = AtomicU64::new(0);
    let server = Server::start(move |_| {
        let page = pages.fetch_add(1, Ordering::Relaxed);
        let tags: Vec<String> = (0..20_000).map(|n| format!("\"t{page}-{n}\"")).collect();
        let body = format!("{{\"tags\": [{}]}}", tags.join(","));
        let next = format!("Link: </v2/team/disk/tags/list?last={page}>; rel=\"next\"\r\n");
        Some((200, next, body.into_bytes()))
    })
    .await;
    let first_byte_timeout = Duration::from_secs(10);
    let store = store(&server.host, &StoreSettings { first_byte_timeout, ..settings(&[&server.host]) });
    let error = store.tags().await.map(|tags| tags.len()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(server.count("GET") < 100, "{}", server.count("GET"));
}

#[tokio::test]
async fn the_right_to_pull_is_enough_for_the_check() {
    let lists = Arc::new(AtomicBool::new(false));
    let listing = Arc::clone(&lists);
    // Manifests may be asked about, tags not be listed.
    let server = Server::start(move |request| match request {
        "HEAD /v2/team/disk/manifests/latest" => reply(404, ""),
        "GET /v2/team/disk/tags/list?n=1000" if listing.load(Ordering::Relaxed) => {
            Some((200, String::new(), br#"{"tags": ["a"]}"#.to_vec()))
        }
        _ => reply(403, ""),
    })
    .await;
    let store = store(&server.host, &settings(&[&server.host]));
    store.check().await.unwrap();
    let error = store.tags().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    lists.store(true, Ordering::Relaxed);
    assert_eq!(store.tags().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_check_that_is_refused_is_denied_and_other_answers_are_errors() {
    for (status, kind) in [
        (200, None),
        (404, None),
        (405, None),
        (401, Some(ErrorKind::Denied)),
        (403, Some(ErrorKind::Denied)),
        (500, Some(ErrorKind::Unavailable)),
    ] {
        let server = Server::start(move |_| reply(status, "")).await;
        let checked = store(&server.host, &settings(&[&server.host])).check().await;
        assert_eq!(checked.as_ref().err().map(headstart_block::Error::kind), kind, "{status}: {checked:?}");
    }
}

#[tokio::test]
async fn a_list_goes_on_at_the_page_that_failed() {
    let failures = AtomicU64::new(2);
    let server = Server::start(move |request| {
        let (page, next) = match request {
            "GET /v2/team/disk/tags/list?n=1000" => {
                ("a", "Link: </v2/team/disk/tags/list?last=a>; rel=\"next\"\r\n")
            }
            _ if failures
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok() =>
            {
                return reply(503, "Retry-After: 0\r\n");
            }
            _ => ("b", ""),
        };
        Some((200, next.to_owned(), format!("{{\"tags\": [\"{page}\"]}}").into_bytes()))
    })
    .await;
    let retry = RetrySettings { first: Duration::from_millis(10), ..RetrySettings::default() };
    let store = store(&server.host, &StoreSettings { retry, ..settings(&[&server.host]) });
    assert_eq!(store.tags().await.unwrap().len(), 2);
    assert_eq!(server.count("GET /v2/team/disk/tags/list?n="), 1);
    assert_eq!((server.count("GET /v2/team/disk/tags/list?last="), store.counters().retries), (3, 2));
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_when_it_said() {
    let refused = AtomicBool::new(false);
    let server = Server::start(move |request| {
        if request.starts_with("GET") && !refused.swap(true, Ordering::Relaxed) {
            return reply(429, "Retry-After: 1\r\n");
        }
        ten()
    })
    .await;
    let retry = RetrySettings { first: Duration::from_millis(1), ..RetrySettings::default() };
    let store = store(&server.host, &StoreSettings { retry, ..settings(&[&server.host]) });
    let begin = tokio::time::Instant::now();
    // The read gets the error; the next one waits.
    assert_eq!(read(&*store).await.unwrap_err().asked_pause(), Some(Duration::from_secs(1)));
    assert_eq!(server.count("GET"), 1);
    read(&*store).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn every_request_goes_through_the_proxy() {
    // The proxy answers for hosts that cannot be resolved.
    let proxy = Server::start(|request| match request {
        "HEAD http://registry.invalid/v2/team/disk/manifests/latest" => reply(200, ""),
        "GET http://storage.invalid/blob" => ten(),
        _ if request.starts_with("GET http://registry.invalid/v2/team/disk/blobs/") => {
            reply(307, "Location: http://storage.invalid/blob\r\n")
        }
        _ => reply(403, ""),
    })
    .await;
    let url = format!("http://me:secret@{}", proxy.host);
    let settings =
        StoreSettings { proxy: Some(url.into()), ..settings(&["registry.invalid", "storage.invalid"]) };
    let plain = store("registry.invalid", &settings);
    plain.check().await.unwrap();
    read(&*plain).await.unwrap();
    // `me:secret`, each time.
    let requests = proxy.count("HEAD ") + proxy.count("GET ");
    assert_eq!(proxy.count("proxy-authorization: basic bwu6c2vjcmv0"), requests);
    assert_eq!((requests, proxy.count("GET http://storage.invalid/blob")), (3, 1));
    // With TLS it is asked for a tunnel; the error about its answer contains no password.
    let secure = store("other.invalid", &settings);
    let error = secure.check().await.unwrap_err();
    assert_eq!(proxy.count("CONNECT other.invalid:443"), 1);
    assert!(error.kind() == ErrorKind::Unavailable && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_registry_without_tls_is_given_up_at_once() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (host, connections) = (server.local_addr().unwrap().to_string(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = server.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            // Closed with what the client has sent unread, the connection would be reset.
            tokio::spawn(async move { client.read(&mut [0; 4096]).await });
        }
    });
    let store = open(&format!("oci://{host}/vm").parse().unwrap(), &StoreSettings::default()).unwrap();
    let error = store.check().await.unwrap_err();
    let remedy = format!("if it speaks plain HTTP, allow that by `--plain-http {host}`");
    let expected = format!("https://{host}/vm: the server does not speak TLS; {remedy}");
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unavailable, expected));
    // One more than the first: a balancer may have several servers.
    assert!(error.is_lasting() && connections.load(Ordering::Relaxed) == 2, "{connections:?}");
}
