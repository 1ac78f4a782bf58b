//! The addresses that a store's requests may go to.
//!
//! The user names a store. Its server chooses the targets of its redirects, and so does any user that can make this
//! host attach an image from there. Without a limit, the image's guest reads as disk content
//! anything that this host can reach and the guest cannot: services on loopback, the metadata service of a cloud, a
//! neighbour's administration page. So an address that is not public is used only
//!
//! * for the store itself, as the user named it;
//! * for a redirect of a store that is at an address of the same scope: a registry on a private network may redirect
//!   to an object store there;
//! * where the settings name the host (`--allow-redirect`).
//!
//! The addresses of cloud metadata services are never used, except where the settings name them.
//!
//! # Names
//!
//! The address that a connection goes to counts, never a name. The guard is the resolver of the store's HTTP
//! client: it drops the addresses that may not be used from each answer, and the client connects to the remaining
//! ones. No second look-up can give another answer. The store's own name is resolved by the same rules, with one
//! addition: the outermost scope that the name ever had counts, so a name that was public stays public, and a
//! server that serves a redirect from a public address cannot then move its own name to loopback.
//!
//! A proxy resolves names itself: then its own rules about its connections apply, and this host only refuses
//! addresses that are written in the URL.

use crate::settings::{StoreSettings, authority};
use headstart_block::{Error, ErrorKind};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::env;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use url::{Host, Origin, Url};

/// A phrase of every refusal, by which the HTTP library's error is recognized as one.
pub(crate) const REFUSED: &str = "which only --allow-redirect allows";

/// The environment's names of proxies.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// The distance of an address; a greater scope is further away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Scope {
    /// Addresses that no store may have: multicast, reserved, metadata services of clouds.
    Never = 1,
    /// This host.
    Loopback,
    /// This host's local link.
    Link,
    /// A private network, that of a carrier, or one of documentation and benchmarks.
    Private,
    /// All other addresses.
    Public,
}

impl Scope {
    fn of_number(number: u8) -> Option<Self> {
        [Self::Never, Self::Loopback, Self::Link, Self::Private, Self::Public]
            .into_iter()
            .find(|scope| *scope as u8 == number)
    }

    /// The scope of an address, in any form of writing it.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            // Metadata services: of most clouds, of AWS's containers, of Alibaba, of Azure's hosts.
            [169, 254, 169, 254] | [169, 254, 170, 2 | 23] | [100, 100, 100, 200] | [168, 63, 129, 16] => {
                Self::Never
            }
            // Linux connects to 0.0.0.0 as to itself.
            [0 | 127, ..] => Self::Loopback,
            [169, 254, ..] => Self::Link,
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Self::Private,
            [192, 0, 0 | 2, _] | [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => Self::Private,
            [224..=255, ..] => Self::Never,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let [a, b, c, d, e, f, g, h] = address.segments();
        let v4 = |high: u16, low: u16| {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            Self::of_v4(Ipv4Addr::new(a, b, c, d))
        };
        match [a, b, c, d, e, f, g, h] {
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Self::Loopback,
            // AWS's metadata service.
            [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254] => Self::Never,
            // Other forms of IPv4: mapped, compatible, translated, 6to4.
            [0, 0, 0, 0, 0, 0 | 0xffff, ..]
            | [0, 0, 0, 0, 0xffff, 0, ..]
            | [0x64, 0xff9b, 0, 0, 0, 0, ..] => v4(g, h),
            [0x2002, ..] => v4(b, c),
            // Translation by rules of the network; tunnels whose end anyone chooses.
            [0x64, 0xff9b, 1, ..] => Self::Private,
            [0x2001, 0, ..] => Self::Never,
            [0xfe80..=0xfebf, ..] => Self::Link,
            [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] | [0x2001, 0xdb8, ..] => Self::Private,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Never,
        }
    }
}

/// A host that the settings allow, with its port if one is named.
#[derive(Clone, Debug)]
struct Allowed {
    host: String,
    port: Option<u16>,
}

impl Allowed {
    fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(&format!("http://{text}/")).ok()?;
        let port = text.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Some(Self { host: url.host_str()?.to_ascii_lowercase(), port })
    }
}

/// `true` if `text` is a valid value of the option `--allow-redirect`: `HOST` or `HOST:PORT`, without a path
/// or user name.
#[must_use]
pub fn is_host_with_port(text: &str) -> bool {
    let plain = !text.contains(['/', '@', '?', '#', '\\', '%', ' ']);
    plain && Url::parse(&format!("http://{text}/")).is_ok_and(|url| url.path() == "/" && url.has_host())
}

/// The addresses that the requests of one store may go to.
pub(crate) struct Guard {
    /// The store's own host.
    own: String,
    /// The outermost scope that it had, as a number; 0 while it is not known.
    outermost: AtomicU8,
    allowed: Vec<Allowed>,
    /// Hosts of proxies: connected to as the user named them, and never by a redirect.
    proxies: Vec<String>,
    /// The only origin that may be used, if redirects to others are not followed at all.
    sole: Option<Origin>,
}

impl Guard {
    /// The guard of a store whose server is at `base`.
    pub(crate) fn new(base: &Url, settings: &StoreSettings) -> Arc<Self> {
        let outermost = literal(base).map_or(0, |address| Scope::of(address) as u8);
        let named = settings.allow_redirect.iter().chain(&settings.allow_token_server);
        let proxy = settings.proxy.as_ref().map(|proxy| proxy.reveal().to_owned());
        let proxies = proxy.into_iter().chain(PROXY_VARIABLES.iter().filter_map(|name| env::var(name).ok()));
        Arc::new(Self {
            own: name_of(base),
            outermost: AtomicU8::new(outermost),
            allowed: named.filter_map(|text| Allowed::parse(text)).collect(),
            proxies: proxies.filter_map(|proxy| host_of_proxy(&proxy)).collect(),
            sole: settings.one_origin.then(|| base.origin()),
        })
    }

    fn outermost(&self) -> Option<Scope> {
        Scope::of_number(self.outermost.load(Ordering::Relaxed))
    }

    fn admits(&self, address: IpAddr) -> bool {
        let scope = Scope::of(address);
        scope == Scope::Public || (scope > Scope::Never && self.outermost() == Some(scope))
    }

    /// `true` if the settings name the host of `url`, with its port.
    pub(crate) fn is_allowed(&self, url: &Url) -> bool {
        let host = name_of(url);
        let port = url.port_or_known_default();
        self.allowed
            .iter()
            .any(|allowed| allowed.host == host && (allowed.port.is_none() || allowed.port == port))
    }

    /// Checks a redirect's target as far as that is possible before its name is resolved.
    ///
    /// # Errors
    /// The reason, as a text for people, if the redirect is not to be followed.
    pub(crate) fn check(&self, url: &Url) -> Result<(), String> {
        if self.is_allowed(url) {
            return Ok(());
        }
        let shown = authority(url);
        let host = name_of(url);
        if self.sole.as_ref().is_some_and(|sole| *sole != url.origin()) {
            return Err(format!("redirects to {shown}, another server, {REFUSED}"));
        }
        if self.allowed.iter().any(|allowed| allowed.host == host) {
            return Err(format!("redirects to {shown}, a port {REFUSED}"));
        }
        if host != self.own && self.proxies.contains(&host) {
            return Err(format!("redirects to {shown}, a proxy of this host, {REFUSED}"));
        }
        match literal(url) {
            Some(address) if host != self.own && !self.admits(address) => {
                Err(format!("redirects to {shown}, an address inside this host's network, {REFUSED}"))
            }
            _ => Ok(()),
        }
    }

    /// The addresses of `name` that may be connected to.
    fn filter(&self, name: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Refused> {
        let name = name.to_ascii_lowercase();
        let is_own = name == self.own;
        if is_own && let Some(outermost) = found.iter().map(|address| Scope::of(address.ip())).max() {
            self.outermost.fetch_max(outermost as u8, Ordering::Relaxed);
        }
        if self.allowed.iter().any(|allowed| allowed.host == name) || self.proxies.contains(&name) {
            return Ok(found);
        }
        let refused = found.first().map(SocketAddr::ip);
        let admitted: Vec<_> = found.into_iter().filter(|address| self.admits(address.ip())).collect();
        match refused {
            Some(address) if admitted.is_empty() => Err(Refused { name, address }),
            _ => Ok(admitted),
        }
    }
}

/// A name all of whose addresses were dropped.
#[derive(Debug)]
struct Refused {
    name: String,
    address: IpAddr,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, address } = self;
        write!(f, "{name} is at {address}, an address inside this host's network, {REFUSED}")
    }
}

impl std::error::Error for Refused {}

/// The client's resolver.
pub(crate) struct Resolver(pub(crate) Arc<Guard>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Arc::clone(&self.0);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let admitted = guard.filter(name.as_str(), found.collect())?;
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

/// The error of a request that the guard refused.
pub(crate) fn refused(cause: String, about: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Denied, cause)
        .about(about)
        .lasting()
        .remedy("if that server is meant, name it by --allow-redirect HOST[:PORT]")
}

/// The host of a URL in lower case, without brackets and a dot at its end.
fn name_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    host.strip_suffix('.').map_or_else(|| host.clone(), str::to_owned)
}

/// The address that a URL has in the place of a name.
fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

fn host_of_proxy(text: &str) -> Option<String> {
    let parsed = Url::parse(text).ok().filter(Url::has_host);
    let url = parsed.or_else(|| Url::parse(&format!("http://{text}")).ok())?;
    Some(name_of(&url)).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        Scope::of(text.parse().unwrap())
    }

    fn guard(base: &str, allowed: &[&str]) -> Arc<Guard> {
        let allow_redirect = allowed.iter().map(|text| (*text).to_owned()).collect();
        let settings = StoreSettings { allow_redirect, ..StoreSettings::default() };
        Guard::new(&Url::parse(base).unwrap(), &settings)
    }

    fn follows(guard: &Guard, url: &str) -> bool {
        guard.check(&Url::parse(url).unwrap()).is_ok()
    }

    fn resolves(guard: &Guard, name: &str, addresses: &[&str]) -> Vec<String> {
        let found = addresses.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect();
        let admitted = guard.filter(name, found).unwrap_or_default();
        admitted.into_iter().map(|address| address.ip().to_string()).collect()
    }

    #[test]
    fn an_address_has_its_scope_in_every_form() {
        for loopback in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::ffff:0:127.0.0.1",
        ] {
            assert_eq!(scope(loopback), Scope::Loopback, "{loopback}");
        }
        for private in [
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "100.64.0.1",
            "fd12::1",
            "fc00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::1",
            "192.0.2.1",
            "198.18.0.1",
            "fec0::1",
            "2001:db8::1",
            "64:ff9b:1::1",
        ] {
            assert_eq!(scope(private), Scope::Private, "{private}");
        }
        for link in ["169.254.1.1", "fe80::1", "::ffff:169.254.1.1"] {
            assert_eq!(scope(link), Scope::Link, "{link}");
        }
        for never in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "2001::1",
            "100::1",
            "169.254.170.2",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert_eq!(scope(never), Scope::Never, "{never}");
        }
        for public in
            ["8.8.8.8", "172.32.0.1", "192.167.0.1", "2606:4700::1", "100.128.0.1", "::ffff:8.8.8.8"]
        {
            assert_eq!(scope(public), Scope::Public, "{public}");
        }
    }

    #[test]
    fn redirects_stay_in_the_scope_of_the_store() {
        let public = guard("https://8.8.8.8/images", &[]);
        assert!(follows(&public, "https://8.8.4.4/x") && follows(&public, "https://cdn.example/x"));
        for inner in [
            "http://127.0.0.1:4803/",
            "http://[::1]/",
            "http://10.0.0.1/",
            "http://169.254.169.254/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://[::ffff:127.0.0.1]/",
            "http://0/",
        ] {
            assert!(!follows(&public, inner), "{inner}");
        }
        let private = guard("http://10.0.0.1:5000/images", &[]);
        assert!(follows(&private, "http://10.0.0.2:9000/") && follows(&private, "http://10.0.0.1:9000/"));
        assert!(!follows(&private, "http://127.0.0.1/") && !follows(&private, "http://169.254.169.254/"));
        let here = guard("http://127.0.0.1:5000/", &[]);
        assert!(follows(&here, "http://127.0.0.1:9/") && !follows(&here, "http://10.0.0.1/"));
    }

    #[test]
    fn addresses_of_the_settings_are_allowed_with_their_ports() {
        let guard = guard("https://8.8.8.8/images", &["127.0.0.1:9000", "minio.lan", "[::1]:80"]);
        assert!(follows(&guard, "http://127.0.0.1:9000/") && !follows(&guard, "http://127.0.0.1:9001/"));
        assert!(follows(&guard, "http://[::1]/") && !follows(&guard, "http://[::1]:81/"));
        assert_eq!(resolves(&guard, "minio.lan", &["10.0.0.1"]), ["10.0.0.1"]);
        assert_eq!(resolves(&guard, "other.lan", &["10.0.0.1"]), [""; 0]);
    }

    #[test]
    fn a_name_is_judged_by_its_addresses() {
        let public = guard("https://store.example/images", &[]);
        assert_eq!(resolves(&public, "store.example", &["8.8.8.8"]), ["8.8.8.8"]);
        assert_eq!(resolves(&public, "inner.example", &["127.0.0.1", "10.0.0.1"]), [""; 0]);
        assert_eq!(resolves(&public, "both.example", &["127.0.0.1", "8.8.4.4"]), ["8.8.4.4"]);
        // Its own name does not move inwards.
        assert_eq!(resolves(&public, "store.example", &["127.0.0.1"]), [""; 0]);
        let inner = guard("https://store.lan/images", &[]);
        assert_eq!(resolves(&inner, "STORE.lan", &["10.0.0.1"]), ["10.0.0.1"]);
        assert_eq!(resolves(&inner, "minio.lan", &["10.0.0.2", "127.0.0.1"]), ["10.0.0.2"]);
    }

    #[test]
    fn a_store_of_one_origin_follows_no_redirect_elsewhere() {
        let settings = StoreSettings { one_origin: true, ..StoreSettings::default() };
        let guard = Guard::new(&Url::parse("https://store.example/images").unwrap(), &settings);
        assert!(follows(&guard, "https://store.example/else"));
        for other in ["http://store.example/", "https://store.example:8443/", "https://cdn.example/"] {
            assert!(!follows(&guard, other), "{other}");
        }
    }

    #[test]
    fn hosts_are_written_as_hosts() {
        assert!(
            is_host_with_port("minio.lan")
                && is_host_with_port("10.0.0.1:9000")
                && is_host_with_port("[::1]:9")
        );
        for text in ["", "http://minio.lan", "minio.lan/x", "user@minio.lan", "minio.lan:x", "a b", "%6d"] {
            assert!(!is_host_with_port(text), "{text}");
        }
    }
}
