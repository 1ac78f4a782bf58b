//! The challenge of a registry's refusal: the `WWW-Authenticate` header, parsed.

use http_auth::{ChallengeParser, ChallengeRef};
use url::Url;

/// The way in which a registry wants clients to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password in every request.
    Basic,
    /// A token from `realm`, which stands for `service` and covers a scope.
    Bearer(Bearer),
}

/// The source of a registry's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bearer {
    /// The token server's address.
    pub(super) realm: Url,
    /// The registry's name at the token server.
    pub(super) service: Option<String>,
    /// The scope that the refused request needs, in the registry's own words.
    pub(super) scope: Option<String>,
}

impl Challenge {
    /// The best of the challenges in the values of a `WWW-Authenticate` header: a token is preferred to a
    /// password in every request. `None` if no challenge is understood here.
    pub(super) fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut best = None;
        for value in values {
            for challenge in ChallengeParser::new(value).map_while(Result::ok) {
                if challenge.scheme.eq_ignore_ascii_case("bearer")
                    && let Some(bearer) = bearer(&challenge)
                {
                    return Some(Self::Bearer(bearer));
                }
                if challenge.scheme.eq_ignore_ascii_case("basic") {
                    best = Some(Self::Basic);
                }
            }
        }
        best
    }
}

fn bearer(challenge: &ChallengeRef<'_>) -> Option<Bearer> {
    let param = |name: &str| {
        let (_, value) = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(value.to_unescaped())
    };
    let realm = Url::parse(&param("realm")?).ok().filter(|realm| realm.host_str().is_some())?;
    Some(Bearer { realm, service: param("service"), scope: param("scope") })
}

#[cfg(test)]
#[expect(clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_registries_send() {
        let text = r#"Bearer realm="https://auth.example/token?x=1",service="reg.example","#.to_owned()
            + r#"scope="repository:a/b:pull,push",error="invalid_token""#;
        let Some(Challenge::Bearer(bearer)) = Challenge::parse([text.as_str()]) else { panic!("no bearer") };
        assert_eq!(bearer.realm.as_str(), "https://auth.example/token?x=1");
        assert_eq!(bearer.service.as_deref(), Some("reg.example"));
        assert_eq!(bearer.scope.as_deref(), Some("repository:a/b:pull,push"));
        assert_eq!(Challenge::parse([r#"basic realm="x""#]), Some(Challenge::Basic));
    }

    #[test]
    fn prefers_a_token_wherever_it_stands() {
        let bearer = r#"BEARER realm="http://127.0.0.1:1/token""#;
        for values in [vec!["Basic realm=\"x\"", bearer], vec![bearer, "Basic realm=\"x\""]] {
            assert!(matches!(Challenge::parse(values), Some(Challenge::Bearer(_))));
        }
        let both = format!("Negotiate, Basic realm=\"x\", {bearer}");
        assert!(matches!(Challenge::parse([both.as_str()]), Some(Challenge::Bearer(_))));
    }

    #[test]
    fn a_realm_that_is_no_address_is_no_challenge() {
        for text in
            ["Bearer service=\"x\"", "Bearer realm=\"token\"", "Bearer realm=\"data:x\"", "", "Digest a=b"]
        {
            assert_eq!(Challenge::parse([text]), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_survived(text in "\\PC*", tail in "[A-Za-z=\", \\\\]{0,60}") {
            let _ = Challenge::parse([text.as_str(), tail.as_str()]);
        }
    }
}
