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
    let is_given = |labels: &[&str]| match labels {
        [country, second, ..] => country.len() == 2 && GIVEN_BELOW.contains(second),
        _ => false,
    };
    // `registry.REGION.aliyuncs.com` and `dockerauth.REGION.aliyuncs.com` are the provider's.
    let is_regional = registry.ends_with(".aliyuncs.com");
    let needed = if is_given(&ours) || is_regional { 3 } else { 2 };
    let is_below = |domain: &str| registry.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    shared >= needed && !OF_CUSTOMERS.iter().any(|domain| is_below(domain))
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
}
