//! The settings of access to stores: plain values, apart from the parts that act on them.

use crate::limit::RateLimit;
use crate::redact::redact;
use crate::stop::Stop;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// The settings of access to stores. [`StoreSettings::default`] suits a data centre as well as a slow link.
///
/// A clone shares the [rate limit](StoreSettings::limit_rate): give the stores of one process clones of one value.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The time that making a connection may take, TLS included.
    pub connect_timeout: Duration,
    /// The time that a server may take to begin its answer.
    pub first_byte_timeout: Duration,
    /// The time for which it may pause within its answer.
    pub stall_timeout: Duration,
    /// The retries of metadata calls (manifests, lengths, tags, writes). Reads are tried once.
    pub retry: RetrySettings,
    /// The condition for asking for a slow demand read a second time; `None`: never.
    pub hedge: Option<HedgeSettings>,
    /// Most demand reads of one store under way at once.
    pub demand_in_flight: usize,
    /// Most background reads of one store under way at once.
    pub background_in_flight: usize,
    /// The rate that all reads of all stores with (a clone of) this value share; `None`: no limit.
    pub limit_rate: Option<RateLimit>,
    /// As [`limit_rate`](StoreSettings::limit_rate), for several processes together; both hold.
    pub shared_rate: Option<RateLimit>,
    /// PEM files of certificate authorities that are trusted beside the system's.
    pub ca_files: Vec<PathBuf>,
    /// The URL of a proxy for all requests; `None`: the one in the environment (`HTTPS_PROXY`, `NO_PROXY`, ...).
    pub proxy: Option<ProxyUrl>,
    /// Registries to ask in the place of others, in this order; the other is asked last.
    pub mirrors: Vec<Mirror>,
    /// Registries and object store endpoints (`host` or `host:port`) that are used without TLS.
    pub plain_http: Vec<String>,
    /// Docker's configuration directory, with the credentials; `None`: Docker's own place.
    pub docker_config: Option<PathBuf>,
    /// Servers (`host` or `host:port`) that stores may redirect to although they are at addresses that are not public.
    pub allow_redirect: Vec<String>,
    /// Token servers (`host` or `host:port`) that registries of other domains may have credentials sent to.
    pub allow_token_server: Vec<String>,
    /// `true` if no redirect of a web server to another origin is followed: for stores that other hosts named.
    pub one_origin: bool,
    /// Ends calls that wait for a store; `None`: nothing does.
    pub stop: Option<Stop>,
    /// `true` if calls that [`stop`](StoreSettings::stop) ends warn of a store that does not answer.
    pub warn_of_silence: bool,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(15),
            retry: RetrySettings::default(),
            hedge: Some(HedgeSettings::default()),
            demand_in_flight: 64,
            background_in_flight: 32,
            limit_rate: None,
            shared_rate: None,
            ca_files: Vec::new(),
            proxy: None,
            mirrors: Vec::new(),
            plain_http: Vec::new(),
            docker_config: None,
            allow_redirect: Vec::new(),
            allow_token_server: Vec::new(),
            one_origin: false,
            stop: None,
            warn_of_silence: true,
        }
    }
}

impl StoreSettings {
    /// The same settings for a store that is written to: the content of a mirror need not be in the store itself.
    #[must_use]
    pub fn without_mirrors(&self) -> Self {
        Self { mirrors: Vec::new(), ..self.clone() }
    }

    /// The time that a store has for an answer, for the warning about a silent store; `None`: no warning.
    #[must_use]
    pub fn silence_limit(&self) -> Option<Duration> {
        self.warn_of_silence.then_some(self.first_byte_timeout)
    }

    /// `true` if `host` (with its port, if it has one) is used without TLS.
    #[must_use]
    pub fn is_plain_http(&self, host: &str) -> bool {
        self.plain_http.iter().any(|plain| plain.eq_ignore_ascii_case(host))
    }

    /// `true` if going from one URL to another leaves TLS for a host for which that is not allowed.
    pub(crate) fn is_downgrade(&self, from: &Url, to: &Url) -> bool {
        from.scheme() == "https" && to.scheme() == "http" && !self.is_plain_http(&authority(to))
    }
}

/// `host` or `host:port` of a URL, the port if it is not the scheme's own.
pub(crate) fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or("");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The URL of a proxy. It may have a password in it: printing it shows only the place of the proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl(String);

impl ProxyUrl {
    /// The whole URL, for the client that uses it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for ProxyUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl From<&str> for ProxyUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Url::parse(&self.0).ok().filter(Url::has_host) {
            Some(url) => f.write_str(&redact(&url)),
            // The place of the password in it is not known.
            None => f.write_str("(not a URL)"),
        }
    }
}

/// The retries of a failed call: after pauses that double from `first` to `most`, each shortened at random by
/// up to a half so that many clients do not come back at once, until `deadline` has passed since the first try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
    /// The time since the first try after which no new try is begun.
    pub deadline: Duration,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            most: Duration::from_secs(5),
            deadline: Duration::from_secs(30),
        }
    }
}

/// The condition for sending a slow demand read a second time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgeSettings {
    /// The multiple of the median time to the first byte of recent reads after which a read that has not begun is slow.
    pub multiple: f64,
    /// The least time before a second request.
    pub least: Duration,
    /// Most second requests, as a share of the demand reads.
    pub share: f64,
}

impl Default for HedgeSettings {
    fn default() -> Self {
        Self { multiple: 4.0, least: Duration::from_millis(20), share: 0.03 }
    }
}

/// A registry that has the repositories of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The registry that references name, such as `docker.io`.
    pub registry: String,
    /// The registry to ask first: `host` or `host:port`, with a path before the repositories if it has one.
    pub mirror: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_printed_without_its_password() {
        for url in ["http://user:secret@proxy.lan:3128/?secret", "user:secret@proxy.lan:3128", "secret@["] {
            let settings = StoreSettings { proxy: Some(url.into()), ..StoreSettings::default() };
            assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
        }
        assert_eq!(format!("{:?}", ProxyUrl::from("http://u:p@proxy.lan:3128")), "http://proxy.lan:3128/");
    }

    #[test]
    fn tls_is_left_only_for_hosts_that_are_named() {
        let settings = StoreSettings { plain_http: vec!["lan:81".to_owned()], ..StoreSettings::default() };
        let left = |from: &str, to: &str| {
            settings.is_downgrade(&Url::parse(from).unwrap(), &Url::parse(to).unwrap())
        };
        assert!(left("https://a/", "http://a/") && left("https://a/", "http://lan/"));
        assert!(!left("https://a/", "http://lan:81/") && !left("https://a/", "https://b/"));
        assert!(!left("http://a/", "http://b/"));
    }
}
