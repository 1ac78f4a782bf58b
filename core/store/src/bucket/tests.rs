//! Object stores, in memory.

#![allow(clippy::cast_possible_truncation, reason = "tests")]

use super::*;
use crate::reference::DEFAULT_TAG;
use object_store::memory::InMemory;

fn store(objects: &Arc<InMemory>) -> BucketStore {
    let objects = Arc::clone(objects) as Arc<dyn ObjectStore>;
    BucketStore::with(objects, "s3://bucket/a/b".to_owned(), "a/b", &StoreSettings::default()).unwrap()
}

fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

fn manifest(name: &str) -> Bytes {
    format!(r#"{{"schemaVersion":2,"layers":[],"name":"{name}"}}"#).into()
}

const TYPE: &str = crate::media_type::MANIFEST_OCI;

#[tokio::test]
async fn a_bucket_gives_back_written_blobs_and_manifests() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    assert_eq!(store.check().await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(store.tags().await.unwrap().is_empty());
    // One in a single put, one in parts.
    for len in [0, 1000, 3 * PART as usize + 5] {
        let bytes: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        let digest = Digest::of(&bytes);
        assert_eq!(store.blob_len(&digest).await.unwrap(), None);
        let reported = std::sync::atomic::AtomicU64::new(0);
        let copied = |bytes: u64| {
            reported.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        store.put_blob(&digest, Arc::new(bytes.clone()), &copied).await.unwrap();
        assert_eq!(reported.into_inner(), len as u64);
        assert_eq!(store.blob_len(&digest).await.unwrap(), Some(len as u64));
        if len > 0 {
            let range = ByteRange::between(len as u64 / 2, len as u64);
            let read = store.read(&digest, range, Urgency::Demand).await.unwrap();
            assert!(read == bytes[len / 2..]);
            let parts = store.read_stream(&digest, range, Urgency::Background).await.unwrap();
            let parts: Vec<Bytes> = parts.map(Result::unwrap).collect().await;
            assert!(parts.concat() == bytes[len / 2..]);
            let past = ByteRange::between(len as u64 - 1, len as u64 + 1);
            assert!(store.read(&digest, past, Urgency::Demand).await.is_err());
        }
    }
    let digest = store.put_manifest(TYPE, manifest("x"), Some(&tag(DEFAULT_TAG))).await.unwrap();
    store.check().await.unwrap();
    let (found, bytes) = store.manifest(&Selector::Tag(Tag::default())).await.unwrap();
    assert_eq!((found, bytes), (digest, manifest("x")));
    assert_eq!(store.tags().await.unwrap(), [Tag::default()]);
    let error = store.manifest(&Selector::Tag(tag("other"))).await.unwrap_err();
    assert!(error.to_string().contains("s3://bucket/a/b:other"), "{error}");
    let missing = store.read(&Digest::of(b"?"), ByteRange::between(0, 9), Urgency::Demand).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_wrong_blob_leaves_nothing() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    for len in [1000, 2 * PART as usize + 5] {
        let digest = Digest::of(b"something else");
        let error = store.put_blob(&digest, Arc::new(vec![1; len]), &|_| Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(store.blob_len(&digest).await.unwrap(), None);
    }
    let stopped = |_| Err(Error::new(ErrorKind::Cancelled, "stop"));
    let bytes = vec![1; 3 * PART as usize];
    let digest = Digest::of(&bytes);
    let error = store.put_blob(&digest, Arc::new(bytes), &stopped).await.unwrap_err();
    assert_eq!((error.kind(), store.blob_len(&digest).await.unwrap()), (ErrorKind::Cancelled, None));
}

/// An object store in which another writer changes the index between our reading it and our writing it.
#[derive(Debug)]
struct Meddler {
    objects: Arc<InMemory>,
    tag: Tag,
    times: std::sync::atomic::AtomicU32,
    /// `true` if it ignores conditions.
    careless: bool,
}

impl std::fmt::Display for Meddler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("meddler")
    }
}

#[async_trait]
impl ObjectStore for Meddler {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<object_store::PutResult> {
        use std::sync::atomic::Ordering::Relaxed;
        if path.as_ref().ends_with(INDEX_FILE) && self.times.load(Relaxed) > 0 {
            let n = self.times.fetch_sub(1, Relaxed);
            let theirs = manifest(&format!("theirs {n}"));
            store(&self.objects).put_manifest(TYPE, theirs, Some(&self.tag)).await.unwrap();
        }
        let mode = if self.careless { PutMode::Overwrite } else { options.mode };
        self.objects.put_opts(path, payload, PutOptions { mode, ..options }).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: object_store::PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(
        &self,
        path: &Path,
        options: GetOptions,
    ) -> object_store::Result<object_store::GetResult> {
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(
        &self,
        prefix: Option<&Path>,
    ) -> BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(
        &self,
        prefix: Option<&Path>,
    ) -> object_store::Result<object_store::ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: object_store::CopyOptions,
    ) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

async fn race(their_tag: &str, times: u32) -> (Arc<InMemory>, Result<Digest>) {
    race_in(their_tag, times, false).await
}

async fn race_in(their_tag: &str, times: u32, careless: bool) -> (Arc<InMemory>, Result<Digest>) {
    let objects = Arc::new(InMemory::new());
    let meddler =
        Meddler { objects: Arc::clone(&objects), tag: tag(their_tag), times: times.into(), careless };
    let ours =
        BucketStore::with(Arc::new(meddler), "s3://b/a/b".to_owned(), "a/b", &StoreSettings::default())
            .unwrap();
    let result = ours.put_manifest(TYPE, manifest("ours"), Some(&tag("ours"))).await;
    (objects, result)
}

#[tokio::test]
async fn a_race_for_one_tag_is_a_conflict() {
    let (objects, result) = race("ours", 1).await;
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("the tag `ours`"), "{error}");
    let (_, now) = store(&objects).manifest(&Selector::Tag(tag("ours"))).await.unwrap();
    assert_eq!(now, manifest("theirs 1"));
}

#[tokio::test]
async fn a_race_between_tags_keeps_both() {
    let (objects, result) = race("theirs", 3).await;
    result.unwrap();
    assert_eq!(store(&objects).tags().await.unwrap(), [tag("ours"), tag("theirs")]);
    // But it does not go on for ever.
    assert_eq!(race("theirs", 1000).await.1.unwrap_err().kind(), ErrorKind::Conflict);
}

fn artifact(name: &str) -> Bytes {
    format!(r#"{{"artifactType":"plan","layers":[],"annotations":{{"name":"{name}"}}}}"#).into()
}

async fn artifacts(store: &BucketStore, subject: &Digest) -> Vec<String> {
    let listed = store.referrers(subject, "plan").await.unwrap();
    let mut names: Vec<_> = listed.iter().map(|entry| entry.annotations["name"].clone()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn artifacts_are_listed_and_replaced() {
    let objects = Arc::new(InMemory::new());
    let store = store(&objects);
    let subject = store.put_manifest(TYPE, manifest("image"), Some(&tag("image"))).await.unwrap();
    assert_eq!(artifacts(&store, &subject).await, [""; 0]);
    let first = store.put_referrer(&subject, TYPE, artifact("first"), &[]).await.unwrap();
    let (found, bytes) = store.manifest(&Selector::Digest(first)).await.unwrap();
    assert_eq!((found, bytes), (first, artifact("first")));
    store.put_referrer(&subject, TYPE, artifact("second"), &[first]).await.unwrap();
    assert_eq!(artifacts(&store, &subject).await, ["second"]);
    assert_eq!(artifacts(&store, &first).await, [""; 0]);
    assert_eq!(store.tags().await.unwrap(), [tag("image")]);
}

#[tokio::test]
async fn artifacts_are_added_whoever_else_writes() {
    let objects = Arc::new(InMemory::new());
    let subject = Digest::of(b"image");
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let store = store(&objects);
            let write =
                async move { store.put_referrer(&subject, TYPE, artifact(&format!("{n}")), &[]).await };
            tokio::spawn(write)
        })
        .collect();
    for writer in writers {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(artifacts(&store(&objects), &subject).await, ["0", "1", "2", "3"]);
    // Changes of tags do not hinder it, but it does not go on for ever.
    for (times, done) in [(3, true), (1000, false)] {
        let meddler =
            Meddler { objects: Arc::clone(&objects), tag: tag("t"), times: times.into(), careless: false };
        let ours =
            BucketStore::with(Arc::new(meddler), "s3://b/a/b".to_owned(), "a/b", &StoreSettings::default());
        let name = format!("with {times}");
        let put = ours.unwrap().put_referrer(&subject, TYPE, artifact(&name), &[]).await;
        assert_eq!(put.map_err(|e| e.kind()).err(), (!done).then_some(ErrorKind::Conflict));
        assert_eq!(artifacts(&store(&objects), &subject).await.contains(&name), done);
    }
}

#[tokio::test]
async fn a_store_without_conditions_is_not_written_to() {
    let error = race_in("theirs", 1, true).await.1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("If-Match"), "{error}");
}

#[tokio::test]
async fn many_writers_lose_no_tag() {
    let objects = Arc::new(InMemory::new());
    let writers: Vec<_> = (0..5)
        .map(|n| {
            let store = store(&objects);
            tokio::spawn(async move {
                let name = format!("t{n}");
                store.put_manifest(TYPE, manifest(&name), Some(&tag(&name))).await.unwrap();
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(store(&objects).tags().await.unwrap().len(), 5);
}

#[test]
fn endpoints_without_tls_are_allowed_by_name() {
    let allow = |hosts: &[&str], endpoint: &str| {
        let plain_http = hosts.iter().map(|&host| host.to_owned()).collect();
        let settings = StoreSettings { plain_http, ..StoreSettings::default() };
        allow_plain(ClientOptions::new(), Some(endpoint), None, &settings).map(drop)
    };
    allow(&[], "https://s3.lan").unwrap();
    allow(&["127.0.0.1:9000"], "http://127.0.0.1:9000").unwrap();
    allow(&["s3.lan"], "http://s3.lan:9000/x").unwrap();
    let anywhere = StoreSettings::default();
    allow_plain(ClientOptions::new(), Some("http://s3.lan"), Some("true"), &anywhere).map(drop).unwrap();
    let error = allow(&["other"], "http://user:secret@127.0.0.1:9000/").unwrap_err();
    assert!(error.to_string().contains("--plain-http 127.0.0.1:9000"), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn a_proxy_that_is_none_keeps_its_secret() {
    let settings = StoreSettings { proxy: Some("http://user:secret@[".into()), ..StoreSettings::default() };
    let error = connect(BucketScheme::S3, "bucket", &settings).map(drop).unwrap_err().to_string();
    assert!(error.contains("proxy") && !error.contains("secret"), "{error}");
}

#[test]
fn messages_have_no_signatures() {
    let text = without_secrets("Error GET \"https://h/x?sig=secret&b=c\" (https://h/y?t=secret): no\nbody");
    assert_eq!(text, "Error GET \"https://h/x\" (https://h/y): no body");
    let text = without_secrets("GET http://user:secret@h:1/x failed: https://u:p:@q@h (via ftp://a/b@c)");
    assert_eq!(text, "GET http://h:1/x failed: https://h (via ftp://a/b@c)");
    let text = r#"Error performing GET http://h/b in 2ms - 403 Forbidden: <?xml version="1.0"?><Error>
        <Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message><Key>x</Key></Error>"#;
    assert_eq!(code_and_message(text).unwrap(), "SignatureDoesNotMatch: The signature does not match.");
    assert_eq!(code_and_message("<Code>A</Code>").unwrap(), "A");
    assert!(code_and_message("no XML").is_none() && code_and_message("<Code>A").is_none());
    assert!(without_secrets(&"x".repeat(100_000)).len() <= 400);
}

/// The location of a bucket of this name at an endpoint, as callers that keep data from there see it.
fn located(endpoint: Option<&str>) -> String {
    let builder = AmazonS3Builder::new().with_bucket_name("b").with_region("r").with_skip_signature(true);
    let builder = endpoint.into_iter().fold(builder, AmazonS3Builder::with_endpoint);
    let plain_http = vec!["h".to_owned(), "h:9000".to_owned(), "h:9001".to_owned()];
    let connected = connect_s3(builder, &StoreSettings { plain_http, ..StoreSettings::default() }).unwrap();
    format!("s3://b{}/p", connected.endpoint.as_deref().map(at_endpoint).unwrap_or_default())
}

#[test]
fn buckets_of_one_name_at_two_endpoints_are_two_stores() {
    assert_eq!(located(None), "s3://b/p");
    assert_eq!(located(Some("http://h:9000")), "s3://b@h:9000/p");
    assert_eq!(located(Some("http://user:secret@h:9001/")), "s3://b@h:9001/p");
    let different = [None, Some("http://h"), Some("https://h"), Some("https://h/a"), Some("https://h/a/b")];
    let mut locations: Vec<_> = different.into_iter().map(located).collect();
    locations.sort();
    locations.dedup();
    assert_eq!(locations.len(), different.len(), "{locations:?}");
}

#[test]
fn the_endpoint_for_s3_alone_goes_before_the_general_one() {
    let builder = AmazonS3Builder::new().with_bucket_name("b").with_region("r").with_skip_signature(true);
    let builder = builder.with_endpoint("https://general");
    let builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, "http://special:9000");
    let refused = connect_s3(builder.clone(), &StoreSettings::default()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("--plain-http special:9000"), "{refused}");
    let plain_http = vec!["special:9000".to_owned()];
    let connected = connect_s3(builder, &StoreSettings { plain_http, ..StoreSettings::default() }).unwrap();
    assert_eq!(connected.endpoint.as_deref(), Some("http://special:9000"));
}

#[test]
fn containers_of_one_name_in_two_accounts_are_two_stores() {
    let at = |account: &str| {
        let builder = MicrosoftAzureBuilder::new().with_container_name("c").with_account(account);
        let connected = connect_azure(builder.with_skip_signature(true), &StoreSettings::default()).unwrap();
        at_endpoint(&connected.endpoint.unwrap())
    };
    assert_eq!(at("one"), "@one.blob.core.windows.net:443");
    assert_ne!(at("one"), at("two"));
}

#[test]
fn a_file_of_certificates_has_some() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, "no certificate").unwrap();
    let settings = StoreSettings { ca_files: vec![path], ..StoreSettings::default() };
    let error = connect(BucketScheme::S3, "bucket", &settings).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("ca.pem"), "{error}");
}

/// A bucket whose host cannot be resolved is reached by way of the proxy, which gets its credentials.
#[tokio::test]
async fn requests_go_through_the_proxy() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let proxy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let settings = StoreSettings {
        proxy: Some(format!("http://me:secret@{address}").into()),
        plain_http: vec!["s3.invalid".to_owned()],
        ..StoreSettings::default()
    };
    let builder = AmazonS3Builder::new().with_bucket_name("b").with_region("r").with_skip_signature(true);
    let connected = connect_s3(builder.with_endpoint("http://s3.invalid"), &settings).unwrap();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = proxy.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let path = Path::from("a");
    let answer = timeout(Duration::from_secs(60), connected.objects.head(&path)).await.unwrap();
    assert!(matches!(answer, Err(object_store::Error::NotFound { .. })), "{answer:?}");
    let asked = timeout(Duration::from_secs(60), asked).await.unwrap().unwrap().to_ascii_lowercase();
    assert!(asked.starts_with("head http://s3.invalid/b/a "), "{asked}");
    // `me:secret`.
    assert!(asked.contains("proxy-authorization: basic bwu6c2vjcmv0"), "{asked}");
}

#[test]
fn an_object_store_that_answers_is_told_from_one_that_is_away() {
    let error_of = |cause: &str| {
        let text = format!("Generic S3 error: Error performing GET http://h/b in 1ms - {cause}");
        explain(object_store::Error::Generic { store: "S3", source: text.into() })
    };
    for (cause, has_answered) in [
        ("Error performing PUT http://169.254.169.254/latest/api/token in 1s - HTTP error", true),
        ("Server returned non-2xx status code: 400 Bad Request: <Code>ExpiredToken</Code>", true),
        ("Server returned non-2xx status code: 429 Too Many Requests: ", true),
        (
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            true,
        ),
        ("HTTP error: error following redirect", true),
        ("Server returned non-2xx status code: 503 Slow Down: status code: 400", false),
        ("HTTP error: error sending request", false),
    ] {
        let error = error_of(cause);
        assert_eq!((error.kind(), error.has_answered()), (ErrorKind::Unavailable, has_answered), "{cause}");
    }
}
