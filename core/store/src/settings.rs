//! The settings of access to stores. They are plain values, except for the rate limits and the request to stop: clones
//! of [`StoreSettings`] share these.

use crate::limit::RateLimit;
use crate::redact::redact;
use crate::stop::Stop;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// The settings with which stores are accessed. [`StoreSettings::default`] suits both a data centre and a
/// slow link.
///
/// All clones share the [rate limit](StoreSettings::limit_rate). To limit the rate of a whole process, give
/// all of its stores clones of one value.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The maximum duration of making a connection, including TLS.
    pub connect_timeout: Duration,
    /// The maximum duration from sending a request to the first byte of the answer.
    pub first_byte_timeout: Duration,
    /// The maximum duration for which a server may send nothing within an answer. In addition, an answer that has taken
    /// longer than this must have brought 1 KiB for each further second.
    pub stall_timeout: Duration,
    /// The retries of failed metadata calls (manifests, lengths, tags, writes). A read of a blob is repeated
    /// only if the store does not have the blob (yet).
    pub retry: RetrySettings,
    /// The condition under which a slow demand read (one that a disk is waiting for) is requested a second
    /// time. `None`: never.
    pub hedge: Option<HedgeSettings>,
    /// The maximum number of demand reads (those that a disk is waiting for) of one store that run at once.
    pub demand_in_flight: usize,
    /// The maximum number of background reads (those ahead of need) of one store that run at once.
    pub background_in_flight: usize,
    /// The rate limit for all reads of all stores opened with this value or clones of it. `None`: no limit.
    pub limit_rate: Option<RateLimit>,
    /// A rate limit that several processes share. It applies in addition to
    /// [`limit_rate`](StoreSettings::limit_rate). `None`: no such limit.
    pub shared_rate: Option<RateLimit>,
    /// The PEM files of certificate authorities that are trusted in addition to the system's.
    pub ca_files: Vec<PathBuf>,
    /// The URL of the proxy for all requests. `None`: the proxy that the environment names, if any
    /// (`HTTPS_PROXY`, `NO_PROXY`, ...).
    pub proxy: Option<ProxyUrl>,
    /// Mirrors of registries. Those of a registry are asked in this order, before the registry itself.
    pub mirrors: Vec<Mirror>,
    /// The registries and object store endpoints (`host` or `host:port`) that are accessed by HTTP without
    /// TLS. Empty: none.
    pub plain_http: Vec<String>,
    /// The path of Docker's configuration directory, which holds credentials for registries and web servers. `None`:
    /// the directory that Docker itself uses.
    pub docker_config: Option<PathBuf>,
    /// A file of credentials for single repositories, which count before those of Docker's configuration:
    /// [`PullCredentials`](crate::PullCredentials).
    pub pull_credentials: Option<PathBuf>,
    /// `true` if only those of that file are shown that pulls offer now.
    pub offered_alone: bool,
    /// The servers (`host` or `host:port`) to which a store may redirect although their addresses are not
    /// public. A redirect needs no entry if its target is in the same network scope as the store, for
    /// instance if both are on a private network.
    pub allow_redirect: Vec<String>,
    /// The token servers (`host` or `host:port`) to which credentials may be sent although their domain
    /// differs from the registry's. Empty: none.
    pub allow_token_server: Vec<String>,
    /// `true` to refuse redirects of a web server to another origin (scheme, host and port) that is not in
    /// [`allow_redirect`](StoreSettings::allow_redirect). For stores that other hosts, not the user, named.
    pub one_origin: bool,
    /// The user's request to stop, which ends calls that wait for a store. `None`: calls cannot be stopped.
    pub stop: Option<Stop>,
    /// `true` to log a warning while a call that can be stopped waits for a store that does not answer.
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
            pull_credentials: None,
            offered_alone: false,
            allow_redirect: Vec::new(),
            allow_token_server: Vec::new(),
            one_origin: false,
            stop: None,
            warn_of_silence: true,
        }
    }
}

impl StoreSettings {
    /// Returns the same settings without mirrors, for a store that is written to: content that only a mirror
    /// has must not count as being in the store.
    #[must_use]
    pub fn without_mirrors(&self) -> Self {
        Self { mirrors: Vec::new(), ..self.clone() }
    }

    /// Returns [`StoreSettings::first_byte_timeout`], for the warning about a store that does not answer: it states
    /// this duration as the time limit of each answer. `None` if no such warning is to be given.
    #[must_use]
    pub fn silence_limit(&self) -> Option<Duration> {
        self.warn_of_silence.then_some(self.first_byte_timeout)
    }

    /// `true` if `host` (or `host:port`) is in [`plain_http`](StoreSettings::plain_http), whatever the case of its
    /// letters: it is then accessed by HTTP without TLS.
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

/// The URL of a proxy, which may contain a password. The debug output leaves the user name and the password
/// out.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl(String);

impl ProxyUrl {
    /// Returns the whole URL, with the password if it has one: for the client that uses it, and never for messages.
    #[must_use]
    pub fn reveal(&self) -> &str {
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

/// The retries of a failed call. The pauses between tries double from `first` up to `most`. Each is shortened
/// at random by up to a half, so that many clients do not return at once. No try begins after `deadline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// The duration of the first pause.
    pub first: Duration,
    /// The maximum duration of a pause.
    pub most: Duration,
    /// The duration since the first try after which no new try begins.
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

/// The condition for a hedge, which is a second request for a slow demand read (one that a disk is waiting
/// for).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgeSettings {
    /// A read is slow if its answer has not begun after this multiple of the median time to the first byte of
    /// recent reads. A value below 1 counts as 1, one above 1000 as 1000.
    pub multiple: f64,
    /// The minimum duration before a second request is sent, even if the median is very short.
    pub least: Duration,
    /// The maximum number of second requests, as a fraction of the number of demand reads, from 0 to 1. A
    /// value outside of that range counts as its nearer end.
    pub share: f64,
}

impl Default for HedgeSettings {
    fn default() -> Self {
        Self { multiple: 4.0, least: Duration::from_millis(20), share: 0.03 }
    }
}

/// A mirror: a registry that has copies of the repositories of another registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The name of the mirrored registry, as references name it, such as `docker.io`.
    pub registry: String,
    /// The address of the mirror, which is asked first: `host` or `host:port`, optionally followed by a path
    /// that is put in front of the repository's name.
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
