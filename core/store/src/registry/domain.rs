//! The owner of a host, as far as its name tells: a registry's password goes to token servers of the same one.

/// `host` or `host:port` without its port.
pub(super) fn host_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Second labels below which countries give names to all applicants, such as `co.uk`.
const GIVEN_BELOW: [&str; 10] = ["ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org"];

/// Domains below which a provider gives names to its customers.
const OF_CUSTOMERS: [&str; 11] = [
    "amazonaws.com",
    "azurecr.io",
    "azurewebsites.net",
    "cloudapp.net",
    "cloudfront.net",
    "gcr.io",
    "github.io",
    "herokuapp.com",
    "ngrok.io",
    "pkg.dev",
    "run.app",
];

/// `true` if the domain of these labels, the last one first, is one below which a country gives names to applicants.
fn is_given_below(labels: &[&str]) -> bool {
    matches!(labels, [country, second, ..] if country.len() == 2 && GIVEN_BELOW.contains(second))
}

/// The domain above a name of a provider's customer.
fn provider_above(name: &str) -> Option<&'static str> {
    let is_below = |domain: &str| name.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    OF_CUSTOMERS.into_iter().find(|domain| is_below(domain))
}

/// `true` if both hosts belong to one owner, as far as names tell: `registry-1.docker.io` and `auth.docker.io`,
/// `registry.gitlab.com` and `gitlab.com`.
pub(super) fn is_same_domain(registry: &str, server: &str) -> bool {
    let is_address = |host: &str| host.starts_with('[') || host.parse::<std::net::IpAddr>().is_ok();
    let (registry, server) = (registry.to_ascii_lowercase(), server.to_ascii_lowercase());
    if is_address(&registry) || is_address(&server) {
        return registry == server;
    }
    let (ours, theirs): (Vec<_>, Vec<_>) = (registry.rsplit('.').collect(), server.rsplit('.').collect());
    let shared = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    // `registry.REGION.aliyuncs.com` and `dockerauth.REGION.aliyuncs.com` are the provider's.
    let is_regional = registry.ends_with(".aliyuncs.com");
    let needed = if is_given_below(&ours) || is_regional { 3 } else { 2 };
    shared >= needed && provider_above(&registry).is_none()
}

/// The owner of a registry, `host` or `host:port`, as far as its name tells: the owner of a domain can have any number
/// of names below it, and that of an IPv6 address has all of its /64. Two hosts of one owner have the same.
pub fn owner_of(host: &str) -> String {
    let name = host_of(host).to_ascii_lowercase();
    if let Ok(address) = name.trim_matches(['[', ']']).parse::<std::net::Ipv6Addr>() {
        let [a, b, c, d, ..] = address.segments();
        return format!("{a:x}:{b:x}:{c:x}:{d:x}::/64");
    }
    let name = name.trim_end_matches('.');
    if name.parse::<std::net::Ipv4Addr>().is_ok() {
        return name.to_owned();
    }
    let labels: Vec<_> = name.rsplit('.').collect();
    let needed = match provider_above(name) {
        // Names of customers there have several labels.
        Some("amazonaws.com") => labels.len(),
        Some(domain) => domain.split('.').count() + 1,
        None if is_given_below(&labels) => 3,
        None => 2,
    };
    let mut owner: Vec<_> = labels.into_iter().take(needed).collect();
    owner.reverse();
    owner.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_servers_of_known_registries_are_in_their_domain() {
        for (registry, server) in [
            ("registry-1.docker.io", "auth.docker.io"),
            ("registry.gitlab.com", "gitlab.com"),
            ("registry.example.co.uk", "auth.example.co.uk"),
            ("registry.digitalocean.com", "api.digitalocean.com"),
            ("registry.cn-hangzhou.aliyuncs.com", "dockerauth.cn-hangzhou.aliyuncs.com"),
            ("ghcr.io", "GHCR.io"),
        ] {
            assert!(is_same_domain(registry, server), "{registry} {server}");
        }
        for (registry, server) in [
            ("registry-1.docker.io", "auth.docker.io.evil.example"),
            ("registry.example.com", "evil.com"),
            ("registry.example.co.uk", "evil.co.uk"),
            ("mine.azurecr.io", "evil.azurecr.io"),
            ("registry", "auth"),
            ("10.0.0.1", "11.0.0.1"),
            ("10.0.0.1", "10.0.0.2"),
            ("registry.lan", "evil"),
        ] {
            assert!(!is_same_domain(registry, server), "{registry} {server}");
        }
        assert_eq!((host_of("a:5000"), host_of("a"), host_of("[::1]:5000")), ("a", "a", "[::1]"));
    }

    #[test]
    fn an_owner_has_all_names_below_a_domain() {
        for (host, owner) in [
            ("a.evil.example", "evil.example"),
            ("b.c.Evil.example.:5000", "evil.example"),
            ("evil.example", "evil.example"),
            ("registry.example.co.uk", "example.co.uk"),
            ("mine.azurecr.io", "mine.azurecr.io"),
            ("a.mine.azurecr.io", "mine.azurecr.io"),
            ("1.dkr.ecr.eu-west-1.amazonaws.com", "1.dkr.ecr.eu-west-1.amazonaws.com"),
            ("registry:5000", "registry"),
            ("10.0.0.1:5000", "10.0.0.1"),
            ("10.0.0.2", "10.0.0.2"),
            ("[2001:db8:1:2:3::4]:5000", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2::1]", "2001:db8:1:2::/64"),
            ("[2001:db8:1:3::1]", "2001:db8:1:3::/64"),
            ("", ""),
            ("..", ""),
        ] {
            assert_eq!(owner_of(host), owner, "{host}");
        }
    }
}
