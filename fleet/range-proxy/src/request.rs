//! The request of a client: the URL behind the proxy's address, and the blob of the swarm that it may name.

use crate::Refusal;
use axum::http::header::{
    CONNECTION, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use headstart_block::{ByteRange, Digest};
use reqwest::Url;
use std::net::IpAddr;

/// The headers that concern a single connection, and are not passed on.
const OF_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The headers that make an answer depend on more than the blob.
const CONDITIONS: [HeaderName; 5] =
    [IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE];

/// A request in the form for the client's server.
#[derive(Debug)]
pub(super) struct ClientRequest {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// The requested bytes, if it is for a blob.
    pub(super) blob: Option<(Digest, RequestedRange)>,
}

impl ClientRequest {
    /// Parses a request, which came to `port`.
    pub(super) fn of(request: &Parts, port: u16) -> Result<Self, Refusal> {
        let bad = |why: &str| Refusal(StatusCode::BAD_REQUEST, why.to_owned());
        let target = target(&request.uri).ok_or_else(|| {
            bad("ask for /NAME/URL, such as /dadip2p/https://registry/v2/app/blobs/sha256:...")
        })?;
        let url = Url::parse(target).map_err(|_| bad("what follows the first name is no URL"))?;
        if url.host_str().is_none_or(str::is_empty) {
            return Err(bad("the URL has no host"));
        }
        let is_here = url.host_str().is_some_and(is_loopback_name);
        if is_here && url.port_or_known_default() == Some(port) {
            return Err(Refusal(StatusCode::LOOP_DETECTED, "that is the proxy itself".to_owned()));
        }
        let mut headers = request.headers.clone();
        remove_of_connection(&mut headers);
        headers.remove(HOST);
        let method = request.method.clone();
        let is_plain = method == Method::GET && !CONDITIONS.iter().any(|name| headers.contains_key(name));
        let blob = digest_in(url.path()).zip(requested_range(&headers)).filter(|_| is_plain);
        Ok(Self { method, url, headers, blob })
    }

    /// A hash of everything that may identify the client and the request, except the range.
    pub(super) fn key(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(self.url.as_str().as_bytes());
        for (name, value) in self.headers.iter().filter(|(name, _)| *name != RANGE) {
            add(name.as_str().as_bytes());
            add(value.as_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

/// Removes the headers that concern a single connection.
pub(super) fn remove_of_connection(headers: &mut HeaderMap) {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        headers.remove(name);
    }
}

/// The URL behind the first part of the path, with its query.
fn target(uri: &Uri) -> Option<&str> {
    let text = uri.path_and_query()?.as_str();
    let (_, url) = text.strip_prefix('/')?.split_once('/')?;
    let (scheme, _) = url.split_once("://")?;
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")).then_some(url)
}

/// `true` if a `Host` header names this host, by a name that cannot belong to another.
pub(super) fn is_of_this_host(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    is_loopback_name(name)
}

fn is_loopback_name(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The digest in a path: `sha256:abc...` as registries have it, or `sha256/ab/abc.../data` and the like as their
/// storages do. The path need not be one of a blob.
fn digest_in(path: &str) -> Option<Digest> {
    path.rsplit('/').find_map(|part| {
        let hex = ["sha256:", "sha256%3A", "sha256%3a"]
            .iter()
            .find_map(|kind| part.strip_prefix(kind))
            .unwrap_or(part);
        format!("sha256:{}", Some(hex).filter(|hex| hex.len() == 64)?).parse().ok()
    })
}

/// The requested bytes of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    All,
    From(u64),
    /// Up to and including the second.
    FromTo(u64, u64),
    Last(u64),
}

impl RequestedRange {
    /// The range in a blob of that length; `None` if there are no such bytes, which the server reports.
    pub(super) fn within(self, len: u64) -> Option<ByteRange> {
        let range = match self {
            Self::All => ByteRange::between(0, len),
            Self::From(from) => ByteRange::between(from.min(len), len),
            Self::FromTo(from, to) => ByteRange::between(from.min(len), to.saturating_add(1).min(len)),
            Self::Last(last) => ByteRange::between(len.saturating_sub(last), len),
        };
        Some(range).filter(|range| !range.is_empty())
    }
}

/// The requested bytes; `None` for headers that only the server may understand, such as several ranges.
fn requested_range(headers: &HeaderMap) -> Option<RequestedRange> {
    let mut ranges = headers.get_all(RANGE).iter();
    let Some(range) = ranges.next() else { return Some(RequestedRange::All) };
    let range = range.to_str().ok().filter(|_| ranges.next().is_none())?;
    let (from, to) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    match (from, to) {
        ("", last) => number(last).map(RequestedRange::Last),
        (from, "") => number(from).map(RequestedRange::From),
        (from, to) => {
            let (from, to) = (number(from)?, number(to)?);
            (from <= to).then_some(RequestedRange::FromTo(from, to))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::Request;

    const HEX: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn request(path: &str, headers: &[(&str, &str)]) -> Parts {
        let builder = Request::builder().uri(path);
        headers
            .iter()
            .fold(builder, |builder, (name, value)| builder.header(*name, *value))
            .body(())
            .unwrap()
            .into_parts()
            .0
    }

    fn client_request(path: &str, headers: &[(&str, &str)]) -> Result<ClientRequest, StatusCode> {
        ClientRequest::of(&request(path, headers), 9731).map_err(|Refusal(status, _)| status)
    }

    #[test]
    fn the_url_is_what_follows_the_first_name() {
        let path = format!("/dadip2p/https://registry.lan:5000/v2/a/b/blobs/sha256:{HEX}?x=%2F&y");
        let client_request =
            client_request(&path, &[("host", "localhost:9731"), ("range", "bytes=5-9"), ("te", "x")])
                .unwrap();
        assert_eq!(client_request.url.as_str(), &path["/dadip2p/".len()..]);
        assert_eq!(
            client_request.blob,
            Some((format!("sha256:{HEX}").parse().unwrap(), RequestedRange::FromTo(5, 9)))
        );
        assert_eq!(client_request.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["range"]);
    }

    #[test]
    fn paths_without_a_url_are_refused() {
        for path in ["/", "/x", "/x/y", "/https://registry/", "/x/ftp://a/b", "/x/http://", "/x/https:/a/b"] {
            assert_eq!(client_request(path, &[]).unwrap_err(), StatusCode::BAD_REQUEST, "{path}");
        }
        for path in
            ["/x/http://127.0.0.1:9731/x/http://a/", "/x/http://LOCALHOST:9731/", "/x/http://[::1]:9731/"]
        {
            assert_eq!(client_request(path, &[]).unwrap_err(), StatusCode::LOOP_DETECTED, "{path}");
        }
    }

    #[test]
    fn digests_are_found_where_registries_and_storages_have_them() {
        let found = [
            format!("/v2/a/blobs/sha256:{HEX}"),
            format!("/v2/a/blobs/sha256%3A{HEX}"),
            format!("/docker/registry/v2/blobs/sha256/9f/{HEX}/data"),
            format!("/{HEX}"),
            format!("/v2/sha256/blobs/sha256:{HEX}"),
        ];
        for path in found {
            assert_eq!(digest_in(&path), format!("sha256:{HEX}").parse().ok(), "{path}");
        }
        let not = ["/v2/a/blobs/", "/sha256", "/sha256:", "/sha256:9f/", "/sha256/9f"].map(str::to_owned);
        let others = ["{}0", "x{}", "sha512:{}"].map(|form| format!("/{}", form.replace("{}", HEX)));
        for path in not.into_iter().chain(others) {
            assert_eq!(digest_in(&path), None, "{path}");
        }
    }

    #[test]
    fn ranges_are_what_http_says() {
        let ranges = [
            ("bytes=0-0", Some(RequestedRange::FromTo(0, 0)), Some((0, 1))),
            ("bytes=90-", Some(RequestedRange::From(90)), Some((90, 100))),
            ("bytes=-5", Some(RequestedRange::Last(5)), Some((95, 100))),
            ("bytes=-500", Some(RequestedRange::Last(500)), Some((0, 100))),
            ("bytes=90-4000", Some(RequestedRange::FromTo(90, 4000)), Some((90, 100))),
            ("bytes=0-18446744073709551615", Some(RequestedRange::FromTo(0, u64::MAX)), Some((0, 100))),
            ("bytes=100-", Some(RequestedRange::From(100)), None),
            ("bytes=-0", Some(RequestedRange::Last(0)), None),
            ("bytes=5-4", None, None),
            ("bytes=1-2,5-6", None, None),
            ("bytes=+1-2", None, None),
            ("bytes=-", None, None),
            ("lines=1-2", None, None),
        ];
        for (text, expected, bytes) in ranges {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_str(text).unwrap())]);
            assert_eq!(requested_range(&headers), expected, "{text}");
            let within = expected.and_then(|range| range.within(100));
            assert_eq!(within.map(|range| (range.offset(), range.end())), bytes, "{text}");
        }
        assert_eq!(requested_range(&HeaderMap::new()), Some(RequestedRange::All));
    }

    #[test]
    fn conditions_are_the_servers_business() {
        let path = format!("/x/http://a/sha256:{HEX}");
        assert!(client_request(&path, &[]).unwrap().blob.is_some());
        assert!(client_request(&path, &[("if-range", "\"x\"")]).unwrap().blob.is_none());
    }

    #[test]
    fn a_key_is_the_clients_and_not_the_ranges() {
        let path = format!("/x/http://a/sha256:{HEX}");
        let key = |path: &str, headers: &[(&str, &str)]| client_request(path, headers).unwrap().key();
        let mine = key(&path, &[("authorization", "Bearer mine"), ("range", "bytes=0-1")]);
        assert_eq!(mine, key(&path, &[("authorization", "Bearer mine"), ("range", "bytes=5-9")]));
        assert_ne!(mine, key(&path, &[("authorization", "Bearer yours")]));
        assert_ne!(mine, key(&path, &[]));
        assert_ne!(mine, key(&format!("{path}?signed"), &[("authorization", "Bearer mine")]));
    }

    #[test]
    fn only_names_of_this_host_are_answered() {
        for (host, is_here) in [
            ("localhost", true),
            ("LocalHost:9731", true),
            ("127.0.0.1:9731", true),
            ("127.1.2.3", true),
            ("[::1]:9731", true),
            ("registry.lan", false),
            ("127.0.0.1.evil.example:9731", false),
            ("localhost.evil.example", false),
            ("10.0.0.1:9731", false),
            ("", false),
        ] {
            assert_eq!(is_of_this_host(&HeaderValue::from_static(host)), is_here, "{host}");
        }
    }
}
