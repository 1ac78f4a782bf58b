//! Names of images as people write them for Docker, and whole.
//!
//! `app` means `docker.io/library/app:latest`: the first part is a host if it has a dot or a colon, or is `localhost`.

/// `true` if two names mean the same image.
pub(crate) fn is_same_name(one: &str, other: &str) -> bool {
    whole(one) == whole(other)
}

/// The whole name.
fn whole(name: &str) -> String {
    let (host, rest) = match name.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
        _ => ("docker.io", name),
    };
    let host = if host == "index.docker.io" { "docker.io" } else { host };
    let library = if host == "docker.io" && !rest.contains('/') { "library/" } else { "" };
    let last = rest.rsplit('/').next().unwrap_or_default();
    let tag = if last.contains([':', '@']) { "" } else { ":latest" };
    format!("{host}/{library}{rest}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed_as_docker_completes_them() {
        for (name, expected) in [
            ("app", "docker.io/library/app:latest"),
            ("app:1", "docker.io/library/app:1"),
            ("me/app", "docker.io/me/app:latest"),
            ("docker.io/app:1", "docker.io/library/app:1"),
            ("index.docker.io/library/app:1", "docker.io/library/app:1"),
            ("localhost/app", "localhost/app:latest"),
            ("h:5000/app", "h:5000/app:latest"),
            ("h:5000/a/b:c", "h:5000/a/b:c"),
            ("app@sha256:00", "docker.io/library/app@sha256:00"),
        ] {
            assert_eq!(whole(name), expected);
            assert_eq!(whole(expected), expected);
        }
        assert!(is_same_name("app", "docker.io/library/app:latest") && !is_same_name("app", "app:1"));
    }
}
