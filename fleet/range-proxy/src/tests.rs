//! Clients of the proxy, before a registry of another project and before servers that lie.

use super::*;
use axum::http::header::{AUTHORIZATION, CONTENT_RANGE, LOCATION, RANGE, WWW_AUTHENTICATE};
use headstart_block::Digest;
use headstart_cache::{Cache, CacheSettings};
use headstart_peer_net::testing::{SampleBlob, sample};
use headstart_peer_net::{Security, SwarmSettings};
use headstart_store::{Location, Redirects, Store};
use headstart_swarm::Role;
use headstart_testkit::redirect::{Behaviour, Front};
use headstart_testkit::registry::{Registry, RegistryAccess};
use headstart_testkit::token_server::TokenServer;
use reqwest::Client;
use std::path::Path;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

const USER: &str = "reader";
const PASSWORD: &str = "secret";
const REPOSITORY: &str = "team/disk";

/// A host with a proxy.
struct Host {
    swarm: Arc<Swarm>,
    cache: Arc<Cache>,
    proxy: Proxy,
    client: Client,
    _dir: TempDir,
}

impl Host {
    async fn start(stores: &StoreSettings) -> Self {
        let dir = TempDir::new().unwrap();
        let cache = Cache::open(dir.path(), CacheSettings::default()).unwrap();
        let settings = SwarmSettings {
            security: Security::PlainOnLoopback { name: "a".to_owned() },
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            join: Vec::new(),
            role: Role::Agent,
            node: headstart_swarm::NodeSettings::default(),
            connections_max: 10,
            trust: None,
            authority: None,
            tracker: None,
        };
        let handle = tokio::runtime::Handle::current();
        let swarm = Swarm::start(settings, Arc::clone(&cache), handle).await.unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let proxy = Proxy::start(address, Arc::clone(&swarm), stores).await.unwrap();
        let client = headstart_store::http_client(stores, Redirects::Report).unwrap();
        Self { swarm, cache, proxy, client, _dir: dir }
    }

    /// A host that has all of a blob, and no store for it.
    async fn with(sample: &SampleBlob) -> (Self, SharedBlob) {
        let host = Self::start(&StoreSettings::default()).await;
        let blob = host.cache.blob(&sample.spec).unwrap();
        blob.tree().unwrap().insert(0, &sample.outboard).unwrap();
        blob.insert(0, &sample.bytes).unwrap();
        let shared = host.swarm.open(&sample.spec, None).unwrap();
        (host, shared)
    }

    /// The proxy's answer to a client that wants `url`.
    async fn ask(&self, url: &str, headers: &[(axum::http::HeaderName, &str)]) -> Answer {
        self.get(&self.through(url), headers).await
    }

    /// The URL at which the proxy has `url`.
    fn through(&self, url: &str) -> String {
        format!("http://{}/dadip2p/{url}", self.proxy.address())
    }

    async fn get(&self, url: &str, headers: &[(axum::http::HeaderName, &str)]) -> Answer {
        let request =
            headers.iter().fold(self.client.get(url), |request, (name, value)| request.header(name, *value));
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        Answer { status, headers, bytes: response.bytes().await.unwrap() }
    }
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Answer {
    fn header(&self, name: axum::http::HeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Settings for plain HTTP to `host`, with the credentials of a directory.
fn settings(host: &str, config: &Path) -> StoreSettings {
    let text = format!(r#"{{"auths": {{"{host}": {{"username": "{USER}", "password": "{PASSWORD}"}}}}}}"#);
    std::fs::write(config.join("config.json"), text).unwrap();
    StoreSettings {
        plain_http: vec![host.to_owned()],
        docker_config: Some(config.to_owned()),
        retry: headstart_store::RetrySettings { deadline: Duration::from_secs(2), ..Default::default() },
        hedge: None,
        ..StoreSettings::default()
    }
}

/// Puts a blob and its tree into a registry.
async fn push(settings: &StoreSettings, host: &str, sample: &SampleBlob) -> Arc<dyn Store> {
    let location = Location::Registry { host: host.to_owned(), repository: REPOSITORY.to_owned() };
    let store = headstart_store::open(&location, settings).unwrap();
    for bytes in [&sample.bytes, &sample.outboard] {
        store.put_blob(&Digest::of(bytes), Arc::new(bytes.clone()), &|_| Ok(())).await.unwrap();
    }
    store
}

/// A token for reading, as clients get one.
async fn token(host: &Host, tokens: &TokenServer) -> String {
    let url = format!("{}?service=registry.test&scope=repository:{REPOSITORY}:pull", tokens.realm());
    let answer = host.client.get(url).basic_auth(USER, Some(PASSWORD)).send().await.unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    format!("Bearer {}", answer["token"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_access_gets_the_blob_from_the_swarm() {
    let tokens = TokenServer::start().await;
    tokens.set_user(USER, PASSWORD);
    let Some(registry) = Registry::start(RegistryAccess::Token(&tokens)) else { return };
    let config = TempDir::new().unwrap();
    let (name, sample) = (registry.host(), sample((2 << 20) + 12345, 1));
    let stores = settings(&name, config.path());
    let store = push(&stores, &name, &sample).await;
    let host = Host::start(&stores).await;
    let url = format!("http://{name}/v2/{REPOSITORY}/blobs/{}", sample.spec.digest);
    let token = token(&host, &tokens).await;
    // No disk has it open.
    let answer = host.ask(&url, &[(AUTHORIZATION, &token), (RANGE, "bytes=0-0")]).await;
    assert_eq!((answer.status, &answer.bytes[..]), (StatusCode::PARTIAL_CONTENT, &sample.bytes[..1]));
    assert_eq!(host.proxy.counters(), ProxyCounters { requests: 1, ..ProxyCounters::default() });
    let shared = host.swarm.open(&sample.spec, Some(store)).unwrap();
    // A client without a valid token gets the registry's refusal, and nothing is fetched.
    for wrong in [None, Some("Bearer x"), Some("Basic eDp5")] {
        let headers: Vec<_> = wrong.map(|wrong| (AUTHORIZATION, wrong)).into_iter().collect();
        let (here, there) = (host.ask(&url, &headers).await, host.get(&url, &headers).await);
        assert_eq!((here.status, &here.bytes), (StatusCode::UNAUTHORIZED, &there.bytes), "{wrong:?}");
        assert!(here.header(WWW_AUTHENTICATE).starts_with("Bearer realm="), "{here:?}");
    }
    assert_eq!(shared.blob().local_bytes(), 0);
    let before = host.proxy.counters();
    assert_eq!((before.served, before.served_bytes, before.checks), (0, 0, 3));
    let middle = format!("bytes={}-{}", 65_000, 65_000 + (1 << 20));
    let tail = format!("bytes={}-", sample.bytes.len() - 7);
    for range in ["bytes=0-0", &middle, "bytes=0-262143", &tail, "bytes=-100", "bytes=2000000-9999999"] {
        let headers = [(AUTHORIZATION, &*token), (RANGE, range)];
        let (here, there) = (host.ask(&url, &headers).await, host.get(&url, &headers).await);
        assert_eq!(
            (here.status, there.status),
            (StatusCode::PARTIAL_CONTENT, StatusCode::PARTIAL_CONTENT),
            "{range}"
        );
        assert!(here.bytes == there.bytes, "{range}");
        for name in [CONTENT_RANGE, CONTENT_LENGTH, CONTENT_TYPE] {
            assert_eq!(here.header(name.clone()), there.header(name), "{range}");
        }
    }
    let whole = host.ask(&url, &[(AUTHORIZATION, &token)]).await;
    assert!(whole.status == StatusCode::OK && whole.bytes == sample.bytes[..]);
    let counters = host.proxy.counters();
    assert_eq!((counters.served, counters.checks, counters.filled_bytes), (7, 4, 0), "{counters:?}");
    // The registry answers for ranges that do not exist (and breaks off: this one promises all of the blob).
    let past =
        host.client.get(host.through(&url)).header(AUTHORIZATION, &token).header(RANGE, "bytes=9999999-");
    assert_eq!(past.send().await.unwrap().status(), StatusCode::RANGE_NOT_SATISFIABLE);
    let top = host.through(&format!("http://{name}/v2/"));
    let answer = host.client.head(&top).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    // While the registry is away, an accepted client still is, and no other.
    drop(registry);
    let answer = host.ask(&url, &[(AUTHORIZATION, &token), (RANGE, "bytes=5-9")]).await;
    assert_eq!((answer.status, &answer.bytes[..]), (StatusCode::PARTIAL_CONTENT, &sample.bytes[5..10]));
    let answer = host.ask(&url, &[(AUTHORIZATION, "Bearer other"), (RANGE, "bytes=5-9")]).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_urls_of_a_storage_are_good_for_what_they_are() {
    let tokens = TokenServer::start().await;
    tokens.set_user(USER, PASSWORD);
    let Some(registry) = Registry::start(RegistryAccess::Token(&tokens)) else { return };
    let front = Front::start(&registry, Behaviour::default()).await;
    let config = TempDir::new().unwrap();
    let (name, sample) = (front.host(), sample(1 << 20, 2));
    let stores = settings(&name, config.path());
    let store = push(&stores, &name, &sample).await;
    let host = Host::start(&stores).await;
    let _shared = host.swarm.open(&sample.spec, Some(store)).unwrap();
    let token = token(&host, &tokens).await;
    // OverlayBD follows the registry's redirect itself, and asks the proxy for the resulting URL.
    let url = format!("http://{name}/v2/{REPOSITORY}/blobs/{}", sample.spec.digest);
    let told = host.get(&url, &[(AUTHORIZATION, &token)]).await;
    assert_eq!(told.status, StatusCode::TEMPORARY_REDIRECT);
    let signed = told.header(LOCATION);
    assert!(signed.contains("?ticket="), "{signed}");
    let answer = host.ask(signed, &[(RANGE, "bytes=70000-70009")]).await;
    assert_eq!(
        (answer.status, &answer.bytes[..]),
        (StatusCode::PARTIAL_CONTENT, &sample.bytes[70_000..70_010])
    );
    let forged = host.ask(&signed.replace("?ticket=", "?ticket=x"), &[(RANGE, "bytes=70000-70009")]).await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    // Other clients do not follow it, and get no redirect.
    let answer = host.ask(&url, &[(AUTHORIZATION, &token), (RANGE, "bytes=5-9")]).await;
    assert_eq!((answer.status, &answer.bytes[..]), (StatusCode::PARTIAL_CONTENT, &sample.bytes[5..10]));
    let counters = host.proxy.counters();
    assert_eq!((counters.served, counters.checks), (2, 3), "{counters:?}");
}

/// A server that answers any range of any URL with `bytes`, and with zeros after them; and the count of its requests.
async fn server(bytes: Vec<u8>, len: u64) -> (String, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let answer = move |request: Request| async move {
        count.fetch_add(1, Ordering::Relaxed);
        let range = request.headers().get(RANGE).unwrap().to_str().unwrap();
        let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
        let part: Vec<u8> = (from..=to).map(|at| bytes.get(at).copied().unwrap_or(0)).collect();
        (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, format!("bytes {from}-{to}/{len}"))], part)
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    (format!("http://{address}"), asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_know_the_bytes_lets_nobody_in() {
    let sample = sample(1 << 20, 3);
    let (host, _shared) = Host::with(&sample).await;
    let half = sample.bytes[..1 << 15].to_vec();
    let (liar, _) = server(half, sample.spec.len).await;
    let url = format!("{liar}/v2/x/blobs/{}", sample.spec.digest);
    let answer = host.ask(&url, &[(RANGE, "bytes=100000-100009")]).await;
    // The server's own answer passes.
    assert_eq!((answer.status, &answer.bytes[..]), (StatusCode::PARTIAL_CONTENT, &[0; 10][..]));
    let counters = host.proxy.counters();
    assert_eq!((counters.served, counters.checks, counters.impostors), (0, 1, 1), "{counters:?}");
    // For a while no server is asked.
    let answer = host.ask(&format!("{url}?again"), &[(RANGE, "bytes=100000-100009")]).await;
    assert_eq!((answer.bytes, host.proxy.counters().checks), (Bytes::from_static(&[0; 10]), 1));
}

/// A server that answers with the bytes that it knows, and fails otherwise, gains nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_some_of_the_bytes_lets_nobody_in() {
    let sample = sample(8 << 20, 5);
    let (host, _shared) = Host::with(&sample).await;
    let known: Arc<Vec<u8>> = Arc::new(sample.bytes[..4 << 20].to_vec());
    let len = sample.spec.len;
    let answer = move |request: Request| {
        let known = Arc::clone(&known);
        async move {
            let range = request.headers().get(RANGE).unwrap().to_str().unwrap().to_owned();
            let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
            let status = if to < Vec::len(&known) {
                StatusCode::PARTIAL_CONTENT
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            };
            let part = known.get(from..=to).unwrap_or_default().to_vec();
            (status, [(CONTENT_RANGE, format!("bytes {from}-{to}/{len}"))], part)
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let liar = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    let mut number = 0;
    let mut ask = async || {
        number += 1;
        let url = format!("{liar}/{number}/blobs/{}", sample.spec.digest);
        host.ask(&url, &[(RANGE, "bytes=8388000-8388009")]).await;
        host.proxy.counters()
    };
    // One attempt in 16 succeeds, and the same number gets no part at all.
    let mut counters = ask().await;
    while counters.impostors == 0 {
        assert!(counters.checks < 60, "no doubt: {counters:?}");
        counters = ask().await;
    }
    for _ in 0..100 {
        let after = ask().await;
        assert_eq!((after.served, after.checks), (counters.served, counters.checks), "{after:?}");
    }
}

/// Connections without a request are closed, and then do not hold up those of others any longer.
#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_whole_request_are_closed() {
    let host = Host::start(&StoreSettings::default()).await;
    let mut half = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(host.proxy.address()).await.unwrap();
        stream.write_all(b"GET /d/http://127.0").await.unwrap();
        half.push(stream);
    }
    let begun = Instant::now();
    let answer = host.get(&host.through("http://127.0.0.1:1/"), &[]).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert!(begun.elapsed() < HEAD_TIME * 6, "{:?}", begun.elapsed());
    // The connection is closed, with or without an answer.
    let _ = tokio::time::timeout(HEAD_TIME, half[0].read_to_end(&mut Vec::new())).await.expect("it is open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_them_is_asked_once() {
    let sample = sample(3 << 20, 4);
    let (host, shared) = Host::with(&sample).await;
    let (server, asked) = server(sample.bytes.clone(), sample.spec.len).await;
    let url = format!(
        "{server}/docker/registry/v2/blobs/{}/data",
        sample.spec.digest.to_string().replace(':', "/ab/")
    );
    let first = host.ask(&url, &[(RANGE, "bytes=0-0")]).await;
    assert_eq!(&first.bytes[..], &sample.bytes[..1]);
    let before = asked.load(Ordering::Relaxed);
    assert_eq!(before, 4);
    let ranges = (0..12).map(|at| format!("bytes={}-{}", at << 18, ((at + 1) << 18) - 1)).collect::<Vec<_>>();
    for (range, bytes) in ranges.iter().zip(sample.bytes.chunks(1 << 18)) {
        assert!(host.ask(&url, &[(RANGE, range)]).await.bytes == bytes);
    }
    assert_eq!(asked.load(Ordering::Relaxed), before);
    let counters = host.proxy.counters();
    assert_eq!((counters.served, counters.served_bytes), (13, (3 << 20) + 1), "{counters:?}");
    // The server gives the bytes that this host has no longer and cannot get.
    shared.blob().discard(ByteRange::between(1 << 20, 2 << 20)).unwrap();
    let answer = host.ask(&url, &[(RANGE, "bytes=786432-2359295")]).await;
    assert!(answer.bytes == sample.bytes[786_432..2_359_296]);
    assert_eq!(host.proxy.counters().filled_bytes, 1 << 20);
    shared.blob().insert(1 << 20, &sample.bytes[1 << 20..2 << 20]).unwrap();
    let before = asked.load(Ordering::Relaxed);
    // Another client's server is asked again.
    host.ask(&url, &[(RANGE, "bytes=0-0"), (AUTHORIZATION, "Bearer x")]).await;
    assert_eq!(asked.load(Ordering::Relaxed), before + 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_this_host_is_answered() {
    let host = Host::start(&StoreSettings::default()).await;
    let url = host.through("http://127.0.0.1:1/");
    let answer = host.get(&url, &[(HOST, "blobs.evil.example")]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(host.get(&url, &[]).await.status, StatusCode::BAD_GATEWAY);
    let answer = host.client.put(&url).send().await.unwrap();
    assert_eq!(
        (answer.status(), answer.headers()[ALLOW].as_bytes()),
        (StatusCode::METHOD_NOT_ALLOWED, &b"GET, HEAD"[..])
    );
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let refused = Proxy::start(everywhere, Arc::clone(&host.swarm), &StoreSettings::default()).await;
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Invalid));
}
