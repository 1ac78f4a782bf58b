//! Tests that need no registry.

use super::*;
use crate::http::Redirects;

const AMD64: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn a_manifest_is_what_it_was_asked_for_as() {
    let bytes = Bytes::from_static(b"{}");
    let (digest, mut headers) = (Digest::of(b"{}"), HeaderMap::new());
    let tag = Selector::Tag("latest".parse().unwrap());
    assert!(checked_manifest(&tag, &headers, bytes.clone()).is_ok());
    assert!(checked_manifest(&Selector::Digest(digest), &headers, bytes.clone()).is_ok());
    let error = checked_manifest(&Selector::Digest(Digest::of(b"x")), &headers, bytes.clone()).unwrap_err();
    assert!(error.to_string().contains(&digest.to_string()), "{error}");
    headers.insert("docker-content-digest", AMD64.parse().unwrap());
    assert!(checked_manifest(&tag, &headers, bytes).is_err());
}

#[test]
fn the_next_page_is_the_one_that_an_answer_links() {
    let url = Url::parse("https://reg.example/v2/a/tags/list?n=1").unwrap();
    let next = |link: &'static str| {
        let headers = HeaderMap::from_iter([(LINK, link.parse().unwrap())]);
        next_page(&headers, &url).map(String::from)
    };
    let expected = Some("https://reg.example/v2/a/tags/list?last=x&n=1".to_owned());
    assert_eq!(next(r#"</v2/a/tags/list?last=x&n=1>; rel="next""#), expected);
    assert_eq!(next(r#"</v2/a>; rel="prev""#), None);
    assert_eq!(next("nonsense"), None);
}

#[test]
fn credentials_and_mirrors_have_names() {
    let open = |host: &str, settings: &StoreSettings| open(host, "a/b", settings).map(drop);
    let settings = StoreSettings::default();
    assert!(open("docker.io", &settings).is_ok());
    assert_eq!(open("user@host", &settings).unwrap_err().kind(), ErrorKind::Invalid);
    let mirror = crate::Mirror { registry: "docker.io".to_owned(), mirror: "not a host/x".to_owned() };
    let settings = StoreSettings { mirrors: vec![mirror], ..settings };
    assert!(open("docker.io", &settings).unwrap_err().to_string().contains("not a host"));
    assert!(open("other.example", &settings).is_ok(), "not its mirror");
    let mirror =
        crate::Mirror { registry: "docker.io".to_owned(), mirror: "me:secret@mirror.lan".to_owned() };
    let error =
        open("docker.io", &StoreSettings { mirrors: vec![mirror], ..settings }).unwrap_err().to_string();
    assert!(error.contains("mirror.lan") && !error.contains("secret"), "{error}");
}

fn trust(settings: StoreSettings, realm: &str) -> Result<()> {
    let base = Url::parse("https://reg.example.org/").unwrap();
    let guard = crate::guard::Guard::new(&base, &settings);
    let client = Arc::new(http::client(&settings, Redirects::Report, None).unwrap());
    let auth = auth::Auth::new("reg.example.org", "a/b", client, guard, Arc::new(settings), Clock::start());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(auth.trust(&Url::parse(realm).unwrap()))
}

#[test]
fn credentials_go_to_no_token_server_without_tls() {
    let trust = |plain_http: &[&str]| {
        let plain_http: Vec<_> = plain_http.iter().map(|host| (*host).to_owned()).collect();
        let settings =
            StoreSettings { plain_http, docker_config: Some("/nowhere".into()), ..StoreSettings::default() };
        trust(settings.clone(), "https://auth.example.org/token").unwrap();
        trust(settings, "http://auth.example.org:81/token")
    };
    let error = trust(&[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("--plain-http auth.example.org:81"), "{error}");
    trust(&["auth.example.org:81"]).unwrap();
    trust(&["reg.example.org"]).unwrap();
}

#[test]
fn credentials_go_to_no_token_server_of_another_domain() {
    let dir = tempfile::tempdir().unwrap();
    let settings = StoreSettings { docker_config: Some(dir.path().to_owned()), ..StoreSettings::default() };
    for realm in
        ["https://evil.example.com/token", "https://127.0.0.1/token", "https://example.org.evil.com/token"]
    {
        let error = trust(settings.clone(), realm).unwrap_err();
        assert!(error.to_string().contains("--allow-token-server"), "{error}");
    }
    trust(settings.clone(), "https://reg.example.org:8443/token").unwrap();
    let named = StoreSettings { allow_token_server: vec!["evil.example.com".to_owned()], ..settings.clone() };
    trust(named, "https://evil.example.com/token").unwrap();
    // A user that has credentials for it has named it.
    let config = r#"{"auths": {"evil.example.com": {"auth": "dTpw"}}}"#;
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    trust(settings, "https://evil.example.com/token").unwrap();
}
