//! Stores that an operator allows by the beginning of their names.
//!
//! A prefix such as `oci://registry.lan/vm` or `https://store.lan:8443/images` allows the store of that name and those
//! below it. Kind of store, host, port and whole path segments are compared, not the text.
//! `oci://registry.lan/vm` allows `oci://registry.lan/vm/debian`, and neither `oci://registry.lan/vmware` nor
//! `oci://registry.lan.example/vm`.

use crate::reference::{BucketScheme, Location};
use headstart_block::{Error, Result};
use std::fmt;
use std::str::FromStr;
use url::Url;

/// A prefix of store names, such as `oci://registry.lan/vm`, by which an operator allows all stores that
/// begin with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePrefix {
    text: String,
    place: Place,
}

/// The place of a store, in one form for all ways of writing it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    scheme: &'static str,
    /// In lower case, except for buckets.
    host: String,
    /// 0 for buckets.
    port: u16,
    segments: Vec<String>,
}

impl StorePrefix {
    /// `true` if `store` is the store that the prefix names or is below it, compared by kind of store, host, port and
    /// whole path segments. Always `false` for local directories, and for a name that a server could read in two ways
    /// (such as one with an escaped slash).
    #[must_use]
    pub fn allows(&self, store: &Location) -> bool {
        Place::of(store).is_some_and(|store| {
            (self.place.scheme, &self.place.host, self.place.port) == (store.scheme, &store.host, store.port)
                && store.segments.starts_with(&self.place.segments)
        })
    }

    /// `true` if both names mean the same remote store, regardless of their spelling. Always `false` for local
    /// directories, and for a name that a server could read in two ways (such as one with an escaped slash).
    #[must_use]
    pub fn is_same(a: &Location, b: &Location) -> bool {
        Place::of(a).is_some_and(|place| Some(place) == Place::of(b))
    }
}

impl FromStr for StorePrefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            Error::invalid(format!("`{}` is not the beginning of a store's name", text.escape_debug())).remedy(
                "write it as oci://HOST[:PORT][/PATH], https://HOST[:PORT][/PATH] or s3://BUCKET[/PATH], without \
                 a tag and without credentials",
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
        let bucket = BucketScheme::of(scheme).map(BucketScheme::as_str);
        let scheme = bucket.or_else(|| ["http", "https", "oci"].into_iter().find(|known| *known == scheme));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let place = scheme.and_then(|scheme| Place::new(scheme, authority, path)).ok_or_else(invalid)?;
        if place.segments.iter().any(|segment| segment.contains([':', '@'])) {
            return Err(invalid());
        }
        Ok(Self { text: text.to_owned(), place })
    }
}

impl fmt::Display for StorePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Place {
    fn of(store: &Location) -> Option<Self> {
        match store {
            Location::Directory(_) => None,
            Location::Http(url) => {
                let scheme = if url.scheme() == "https" { "https" } else { "http" };
                let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
                Self::new(scheme, &format!("{}{port}", url.host_str()?), url.path())
            }
            Location::Bucket { scheme, bucket, path } => Self::new(scheme.as_str(), bucket, path),
            Location::Registry { host, repository } => Self::new("oci", host, repository),
        }
    }

    /// Parses a place; `None` if any part can be read in two ways.
    fn new(scheme: &'static str, authority: &str, path: &str) -> Option<Self> {
        if authority.is_empty() || authority.contains(['@', '/', '\\', '?', '#', '%', ' ']) {
            return None;
        }
        let (host, port) = if BucketScheme::of(scheme).is_some() {
            (authority.to_owned(), 0)
        } else {
            let url =
                Url::parse(&format!("{}://{authority}/", if scheme == "http" { "http" } else { "https" }));
            let url = url.ok().filter(|url| url.path() == "/" && url.username().is_empty())?;
            (url.host_str()?.to_ascii_lowercase(), url.port_or_known_default()?)
        };
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let segments =
            if path.is_empty() { Vec::new() } else { path.split('/').map(segment).collect::<Option<_>>()? };
        Some(Self { scheme, host, port, segments })
    }
}

/// A path segment without its escapes; `None` if a server could take it for more or less than one.
fn segment(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(digit(high)? << 4 | digit(low)?);
        rest = tail;
    }
    let text = String::from_utf8(bytes).ok()?;
    let odd = |c: char| c.is_control() || matches!(c, '/' | '\\' | '%' | '?' | '#' | ';');
    (!matches!(text.as_str(), "" | "." | "..") && !text.contains(odd)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(prefix: &str, store: &str) -> bool {
        let prefix: StorePrefix = prefix.parse().unwrap();
        store.parse::<Location>().is_ok_and(|store| prefix.allows(&store))
    }

    #[test]
    fn whole_segments_below_a_prefix_are_allowed() {
        for (prefix, store) in [
            ("oci://registry.lan", "oci://registry.lan/vm/debian"),
            ("oci://registry.lan/", "oci://registry.lan:443/vm"),
            ("oci://registry.lan/vm", "oci://REGISTRY.lan/vm/debian"),
            ("oci://registry.lan/vm/", "oci://registry.lan/vm"),
            ("https://store.lan/images", "https://store.lan:443/images/a"),
            ("https://STORE.lan/my%20images", "https://store.lan/my%20images/x"),
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000/store"),
            ("s3://bucket/a", "s3://bucket/a/b"),
        ] {
            assert!(allows(prefix, store), "{prefix} {store}");
        }
    }

    #[test]
    fn stores_beside_a_prefix_are_refused() {
        for (prefix, store) in [
            ("oci://registry.lan/vm", "oci://registry.lan/vmware"),
            ("oci://registry.lan/vm", "oci://registry.lan/other"),
            ("oci://registry.lan/vm", "oci://registry.lan.evil.example/vm"),
            ("oci://registry.lan/vm", "oci://registry.lan:5000/vm"),
            ("oci://registry.lan", "https://registry.lan/vm"),
            ("https://store.lan/images", "http://store.lan/images"),
            ("https://store.lan/images", "https://store.lan/images/../private"),
            ("https://store.lan/images", "https://store.lan/images/%2e%2e/private"),
            ("https://store.lan/images", "https://store.lan/images/..%2fprivate"),
            ("https://store.lan/images", "https://store.lan/images/%252e%252e/private"),
            ("https://store.lan/images", "https://store.lan/images/..%5cprivate"),
            ("https://store.lan/images", "https://store.lan/images/..;/private"),
            ("https://store.lan/images", "https://store.lan/images//private"),
            ("https://store.lan/images", "https://store.lan/Images/a"),
            ("https://store.lan/images", "https://store.lan@evil.example/images"),
            ("https://store.lan/images", "https://store.lan:x@evil.example/images"),
            ("https://store.lan/images", "https://store.lan.:443/images"),
            ("s3://bucket/a", "s3://bucket/ab"),
            ("s3://bucket", "gs://bucket"),
            ("s3://bucket", "file:///bucket"),
        ] {
            assert!(!allows(prefix, store), "{prefix} {store}");
        }
    }

    #[test]
    fn a_prefix_is_written_without_doubt() {
        for text in [
            "",
            "registry.lan/vm",
            "file:///images",
            "oci://",
            "oci://user@registry.lan/vm",
            "oci://a b/",
            "https://store.lan/a/../b",
            "https://store.lan/a?b",
            "oci://registry.lan/vm:tag",
            "ftp://store.lan/",
            "https://store.lan/%2e%2e",
            "https://store.lan//a",
        ] {
            assert!(text.parse::<StorePrefix>().is_err(), "{text}");
        }
        let text = "oci://registry.lan/vm";
        assert_eq!(text.parse::<StorePrefix>().unwrap().to_string(), text);
    }
}
