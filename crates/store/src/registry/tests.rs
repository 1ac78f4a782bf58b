//! Tests of what needs no registry.

use super::*;

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
fn follows_pages() {
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
    let open = |host: &str, settings: &Settings| open(host, "a/b", settings).map(drop);
    let settings = Settings::default();
    assert!(open("docker.io", &settings).is_ok());
    assert_eq!(open("user@host", &settings).unwrap_err().kind(), ErrorKind::Invalid);
    let mirror = crate::Mirror { registry: "docker.io".to_owned(), mirror: "not a host/x".to_owned() };
    let settings = Settings { mirrors: vec![mirror], ..settings };
    assert!(open("docker.io", &settings).unwrap_err().to_string().contains("not a host"));
    assert!(open("other.example", &settings).is_ok(), "not its mirror");
    let mirror =
        crate::Mirror { registry: "docker.io".to_owned(), mirror: "me:secret@mirror.lan".to_owned() };
    let error = open("docker.io", &Settings { mirrors: vec![mirror], ..settings }).unwrap_err().to_string();
    assert!(error.contains("mirror.lan") && !error.contains("secret"), "{error}");
}

#[test]
fn credentials_go_to_no_token_server_without_tls() {
    let trust = |plain_http: &[&str]| {
        let settings = Settings {
            plain_http: plain_http.iter().map(|host| (*host).to_owned()).collect(),
            ..Settings::default()
        };
        let client = http::client(&settings, Redirects::Report).unwrap();
        let auth = auth::Auth::new("reg.example", "a/b", client, Arc::new(settings), Clock::start());
        let trust = |realm: &str| auth.trust(&Url::parse(realm).unwrap());
        trust("https://auth.example/token").unwrap();
        trust("http://auth.example:81/token")
    };
    let error = trust(&[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("--plain-http auth.example:81"), "{error}");
    trust(&["auth.example:81"]).unwrap();
    trust(&["reg.example"]).unwrap();
}
