//! Stores in object stores: an OCI layout below a path of a bucket.
//!
//! Credentials come from the variables of each cloud's own tools (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`,
//! `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, ...) and the machine's own role. An endpoint without
//! TLS is refused, unless it is one of S3 or Azure that [`StoreSettings::plain_http`] names or the environment allows
//! (`AWS_ALLOW_HTTP`, `AZURE_ALLOW_HTTP`).
//!
//! A bucket's name is unique only together with the endpoint, which the environment may set. So the store's location
//! includes that endpoint, `s3://bucket@host:port/path`: callers that cache the store's data use the location as the
//! key. Error messages have the name as the user typed it, followed by the endpoint.
//!
//! # Changing a tag
//!
//! An object store has no locks, but conditional puts. A writer reads `index.json` and its version, changes the entry,
//! and writes the file back if its version is still the same. Otherwise it begins again, so changes of other tags are
//! kept. If another writer changes the same tag, or ten attempts fail, the result is a conflict for a person to solve.

mod admin;
mod documents;
#[cfg(test)]
mod lease_tests;
mod leases;
mod objects;
mod prune;
mod prune_mark;
#[cfg(test)]
mod tests;

pub use admin::Bucket;
pub use leases::{LEASE_LASTS, LEAST_AGE};
pub use prune::{BucketPruneOptions, BucketPruneReport, BucketRemoval, Look};
pub use prune_mark::PRUNING_LASTS;

use crate::counters::{Meter, StoreCounters};
use crate::http;
use crate::layout::{
    self, INDEX_FILE, LAYOUT, LAYOUT_FILE, LayoutIndex, Lease, MAX_INDEX_SIZE, blob_name, check_layout,
    follow,
};
use crate::link::{Answer, Link, about_errors};
use crate::media_type::INDEX_OCI;
use crate::reference::{BucketScheme, Location, Selector, Tag};
use crate::referrers::{Change, Referrer, listed};
use crate::settings::{StoreSettings, authority};
use crate::store::{Copied, Store, Urgency};
use crate::tls_fault::TlsFault;
use crate::upload::{PART, Upload};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{BoxStream, FuturesOrdered};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    Certificate, ClientConfigKey, ClientOptions, GetOptions, GetRange, MultipartUpload, ObjectStore,
    ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::timeout;
use url::Url;

/// Parts of one blob that are sent at once.
const PARTS_IN_FLIGHT: usize = 4;

/// The time that writing one part may take: at 8 MiB, a link of 70 kB/s.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);

/// The number of times that the index is read again when others change other tags at the same moment.
const MOST_RACES: usize = 10;

/// An OCI layout in an object store as a [`Store`].
pub(crate) struct BucketStore {
    objects: Arc<dyn ObjectStore>,
    /// The name that distinguishes it from all other stores.
    identity: String,
    /// The name as it is typed, for messages.
    location: String,
    /// The endpoint in words, where it is not the cloud's own.
    at: String,
    top: Path,
    link: Link,
    first_byte: Duration,
    silence_limit: Option<Duration>,
    stall: Duration,
    /// Set once the store was seen to honour conditions.
    conditions: OnceCell<()>,
    /// The object that announces a copy into the store.
    push: Mutex<Option<leases::Push>>,
}

/// The result of reading the index: the index and its version, if there is one.
struct Versioned {
    index: LayoutIndex,
    version: Option<UpdateVersion>,
}

impl BucketStore {
    pub(crate) fn new(scheme: BucketScheme, name: &str, top: &str, settings: &StoreSettings) -> Result<Self> {
        let location = |bucket| Location::Bucket { scheme, bucket, path: top.to_owned() }.to_string();
        let connected = connect(scheme, name, settings).map_err(|e| e.about(location(name.to_owned())))?;
        let at = connected.endpoint.as_deref().map(at_endpoint).unwrap_or_default();
        let store = Self::with(connected.objects, location(name.to_owned()), top, settings)?;
        let shown = at.strip_prefix('@').map(|at| format!(" (at {at})")).unwrap_or_default();
        Ok(Self { identity: location(format!("{name}{at}")), at: shown, ..store })
    }

    /// Makes a store over any implementation of object stores.
    pub(crate) fn with(
        objects: Arc<dyn ObjectStore>,
        location: String,
        path: &str,
        settings: &StoreSettings,
    ) -> Result<Self> {
        let top = Path::parse(path).map_err(|e| {
            Error::invalid("has a path that no object can have").caused_by(e).about(&location)
        })?;
        Ok(Self {
            objects,
            identity: location.clone(),
            location,
            at: String::new(),
            top,
            link: Link::new(settings),
            first_byte: settings.first_byte_timeout,
            silence_limit: settings.silence_limit(),
            stall: settings.stall_timeout,
            conditions: OnceCell::new(),
            push: Mutex::default(),
        })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.top.clone(), Path::join)
    }

    fn thing(&self, name: &str) -> String {
        format!("{}/{name}{}", self.location.trim_end_matches('/'), self.at)
    }

    /// One call, bounded and counted; `name` names its object.
    async fn call<T>(
        &self,
        name: &str,
        limit: Duration,
        call: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T> {
        Meter::add(&self.link.meter().requests, 1);
        let Ok(result) = timeout(limit, call).await else {
            let cause = format!("did not answer within {} s", limit.as_secs_f64());
            return Err(Error::new(ErrorKind::Unavailable, cause).about(self.thing(name)));
        };
        result.map_err(|e| explain(e).about(self.thing(name)))
    }

    /// A whole small object, with its version.
    async fn object(&self, name: &str, most: u64) -> Result<(Bytes, UpdateVersion)> {
        let path = self.path(name);
        let result =
            self.call(name, self.first_byte, self.objects.get_opts(&path, GetOptions::default())).await?;
        let version =
            UpdateVersion { e_tag: result.meta.e_tag.clone(), version: result.meta.version.clone() };
        let parts = result.into_stream().map(|part| part.map_err(explain));
        let bytes =
            http::collect_small(parts, most, self.stall).await.map_err(|e| e.about(self.thing(name)))?;
        Ok((bytes, version))
    }

    async fn index(&self) -> Result<Versioned> {
        match self.object(INDEX_FILE, MAX_INDEX_SIZE).await {
            Ok((bytes, version)) => {
                let index = LayoutIndex::parse(&bytes).map_err(|e| e.about(self.thing(INDEX_FILE)))?;
                Ok(Versioned { index, version: Some(version) })
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Ok(Versioned { index: LayoutIndex::empty(), version: None })
            }
            Err(e) => Err(e),
        }
    }

    async fn ask_range(&self, blob: &Digest, range: ByteRange) -> Result<Answer> {
        let name = blob_name(blob);
        let path = self.path(&name);
        let wanted = Some(GetRange::Bounded(range.offset()..range.end()));
        let options = GetOptions { range: wanted, ..GetOptions::default() };
        let thing = self.thing(&name);
        let result = self.objects.get_opts(&path, options).await.map_err(|e| explain(e).about(&thing))?;
        if result.range != (range.offset()..range.end()) {
            let given = ByteRange::between(result.range.start, result.range.end);
            let cause = format!("was asked for the bytes {range}, but sent {given}");
            return Err(Error::new(ErrorKind::Unavailable, cause).about(thing));
        }
        let body = result.into_stream().map(|part| part.map_err(explain));
        Ok(Answer { thing, body: body.boxed() })
    }

    async fn put(&self, name: &str, bytes: Bytes, mode: PutMode) -> Result<()> {
        self.put_version(name, bytes, mode).await.map(drop)
    }

    /// As `put`, but returns the version that was written.
    async fn put_version(&self, name: &str, bytes: Bytes, mode: PutMode) -> Result<UpdateVersion> {
        let path = self.path(name);
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.objects.put_opts(&path, PutPayload::from_bytes(bytes), options);
        self.call(name, WRITE_TIMEOUT, put).await.map(UpdateVersion::from)
    }

    async fn put_parts(
        &self,
        name: &str,
        parts: &mut dyn MultipartUpload,
        upload: &mut Upload,
        copied: Copied<'_>,
    ) -> Result<()> {
        let mut sending = FuturesOrdered::new();
        loop {
            let part = upload.next().await?;
            let done = part.is_none();
            if let Some(part) = part {
                let len = part.len() as u64;
                self.renew_push().await;
                let put = parts.put_part(PutPayload::from_bytes(part));
                sending.push_back(async move { self.call(name, WRITE_TIMEOUT, put).await.map(|()| len) });
            }
            while sending.len() >= PARTS_IN_FLIGHT || done && !sending.is_empty() {
                if let Some(len) = sending.next().await {
                    copied(len?)?;
                }
            }
            if done {
                return self.call(name, WRITE_TIMEOUT, parts.complete()).await.map(drop);
            }
        }
    }

    /// Finds out, once, if the store honours conditions: some take all writes whatever the condition, and then
    /// lose tags without a word. Writes the present content again, on the condition of a version that it never had.
    async fn require_conditions(&self) -> Result<()> {
        let never = UpdateVersion { e_tag: Some("\"0\"".to_owned()), version: Some("1".to_owned()) };
        let probe = async || match self.put(LAYOUT_FILE, LAYOUT.into(), PutMode::Update(never.clone())).await
        {
            Ok(()) => Err(Error::unsupported("the object store ignores conditions on writes (`If-Match`)")
                .about(&self.location)
                .remedy(
                    "writers that tag at once would undo each other's work: use a store that honours them",
                )),
            Err(e) if e.kind() == ErrorKind::Unavailable => Err(e),
            Err(_) => Ok(()),
        };
        self.conditions.get_or_try_init(probe).await.map(|&()| ())
    }

    /// Marks the store as a layout, unless it is marked already.
    async fn mark_as_layout(&self) -> Result<()> {
        match self.put(LAYOUT_FILE, LAYOUT.into(), PutMode::Create).await {
            Err(e) if e.kind() != ErrorKind::Conflict => Err(e),
            _ => Ok(()),
        }
    }

    /// Changes the list of a manifest's artifacts. Unlike a tag, several writers can change it at once: the
    /// slower one changes the other one's list again.
    async fn change_referrers(&self, subject: &Digest, change: &Change<'_>) -> Result<()> {
        let tag = layout::referrers_of(subject)?;
        for _ in 0..MOST_RACES {
            let Versioned { mut index, version } = self.index().await?;
            let before = match layout::referrers_list(&index, subject)? {
                Some(list) => match self.read_document(list).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => None,
                    list => Some(list?),
                },
                None => None,
            };
            let Some(after) = change.of(before.as_deref())? else { return Ok(()) };
            let (list, size) = (Digest::of(&after), after.len() as u64);
            self.put(&blob_name(&list), after.into(), PutMode::Overwrite).await?;
            index.set(&tag, INDEX_OCI, &list, size);
            if self.replace_index(Versioned { index, version }).await? {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Conflict, "another writer changed the index at the same time")
            .about(self.thing(INDEX_FILE))
            .remedy("run it again"))
    }

    /// Writes the index if its version is still the one that was read; returns `true` if it was.
    async fn replace_index(&self, changed: Versioned) -> Result<bool> {
        let mode = changed.version.map_or(PutMode::Create, PutMode::Update);
        match self.put(INDEX_FILE, changed.index.to_bytes()?.into(), mode).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {
                tracing::debug!(error = %e, "index changed meanwhile");
                Ok(false)
            }
            result => result.map(|()| true),
        }
    }

    /// Changes the index by `change`, which is given the index and returns `true` if there was anything to do.
    async fn change_index(
        &self,
        tag: Option<&Tag>,
        change: impl Fn(&mut LayoutIndex) + Send + Sync,
        digest: Digest,
    ) -> Result<()> {
        let entry = |index: &LayoutIndex| tag.and_then(|tag| index.find(tag)).map(|entry| entry.digest);
        let mut before = None;
        for _ in 0..MOST_RACES {
            let Versioned { mut index, version } = self.index().await?;
            let now = entry(&index);
            if now == Some(Some(digest)) {
                return Ok(());
            }
            if before.is_some_and(|before| before != now) {
                break;
            }
            before = Some(now);
            let unchanged = index.clone();
            change(&mut index);
            self.mark_lost(&unchanged, &index).await?;
            if self.replace_index(Versioned { index: index.clone(), version }).await? {
                self.unmark_gained(&unchanged, &index).await;
                return Ok(());
            }
        }
        let what = tag.map_or_else(String::new, |tag| format!("the tag `{tag}` in "));
        let cause = format!("another writer changed {what}the index at the same time");
        Err(Error::new(ErrorKind::Conflict, cause)
            .about(self.thing(INDEX_FILE))
            .remedy("run it again if yours is to win"))
    }
}

/// A client for one bucket.
struct Connected {
    objects: Arc<dyn ObjectStore>,
    /// The endpoint of the bucket by the environment; `None` if its name is enough.
    endpoint: Option<String>,
}

fn connect(scheme: BucketScheme, bucket: &str, settings: &StoreSettings) -> Result<Connected> {
    // Our own wrappers try again, and know when not to.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    match scheme {
        BucketScheme::S3 => {
            connect_s3(AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry), settings)
        }
        BucketScheme::Gs => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
            let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
            let options = client_options(settings)?;
            let objects = Arc::new(builder.with_client_options(options).build().map_err(cannot_open)?);
            Ok(Connected { objects, endpoint })
        }
        BucketScheme::Az => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
            connect_azure(builder, settings)
        }
    }
}

fn connect_s3(builder: AmazonS3Builder, settings: &StoreSettings) -> Result<Connected> {
    // In the library's order.
    let keys = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = keys.iter().find_map(|key| builder.get_config_value(key));
    let allowed = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    let options = allow_plain(client_options(settings)?, endpoint.as_deref(), allowed.as_deref(), settings)?;
    let objects = Arc::new(builder.with_client_options(options).build().map_err(cannot_open)?);
    Ok(Connected { objects, endpoint })
}

fn connect_azure(builder: MicrosoftAzureBuilder, settings: &StoreSettings) -> Result<Connected> {
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let allowed = builder.get_config_value(&AzureConfigKey::Client(ClientConfigKey::AllowHttp));
    let options = allow_plain(client_options(settings)?, endpoint.as_deref(), allowed.as_deref(), settings)?;
    // Containers of different accounts have the same names.
    let account = builder.get_config_value(&AzureConfigKey::AccountName);
    let endpoint = endpoint.or_else(|| Some(format!("https://{}.blob.core.windows.net", account?)));
    let objects = Arc::new(builder.with_client_options(options).build().map_err(cannot_open)?);
    Ok(Connected { objects, endpoint })
}

/// An endpoint as it follows a bucket's name: `@host:port`, with its path where it has one, without
/// credentials.
fn at_endpoint(endpoint: &str) -> String {
    let Some(url) = Url::parse(endpoint).ok().filter(Url::has_host) else {
        let host = endpoint.rsplit('@').next().unwrap_or_default();
        return format!("@{}", without_secrets(host).replace(['/', ' '], "%2F"));
    };
    let port = url.port_or_known_default().map(|port| format!(":{port}")).unwrap_or_default();
    let path = url.path().trim_end_matches('/').replace('/', "%2F");
    format!("@{}{port}{path}", url.host_str().unwrap_or_default())
}

fn client_options(settings: &StoreSettings) -> Result<ClientOptions> {
    // Its time-out is for whole requests, however large: ours are for each step.
    let mut options = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(settings.connect_timeout)
        .with_read_timeout(settings.first_byte_timeout.max(settings.stall_timeout));
    // The library's own message about a wrong one would repeat its password.
    http::proxy(settings)?;
    if let Some(proxy) = &settings.proxy {
        options = options.with_proxy_url(proxy.reveal());
    }
    for (path, pem) in http::ca_files(settings)? {
        let certificates = Certificate::from_pem_bundle(&pem).ok().filter(|list| !list.is_empty());
        let certificates = certificates.ok_or_else(|| http::no_certificates(&path))?;
        options = certificates.into_iter().fold(options, ClientOptions::with_root_certificate);
    }
    Ok(options)
}

/// Allows an endpoint without TLS where the settings name it, or the environment `allowed` all.
fn allow_plain(
    options: ClientOptions,
    endpoint: Option<&str>,
    allowed: Option<&str>,
    settings: &StoreSettings,
) -> Result<ClientOptions> {
    let Some(endpoint) = endpoint.and_then(|text| Url::parse(text).ok()).filter(|url| url.scheme() == "http")
    else {
        return Ok(options);
    };
    let (host, with_port) = (endpoint.host_str().unwrap_or_default(), authority(&endpoint));
    let by_environment = allowed.is_some_and(|value| value == "true" || value == "1");
    if by_environment || settings.is_plain_http(host) || settings.is_plain_http(&with_port) {
        return Ok(options.with_allow_http(true));
    }
    Err(Error::invalid(format!("the endpoint {} has no TLS", http::redact(&endpoint)))
        .remedy(format!("allow it by `--plain-http {with_port}`, or use https://")))
}

fn cannot_open(error: object_store::Error) -> Error {
    let inner = explain(error);
    Error::invalid("its settings in the environment are not usable").caused_by(inner)
}

/// Our error for one of the library's.
#[expect(clippy::needless_pass_by_value, reason = "it stands where errors are mapped")]
fn explain(error: object_store::Error) -> Error {
    use object_store::Error as E;
    if let Some(fault) = TlsFault::find(&error) {
        return fault.into_error().remedy("write its endpoint with http:// if the network is yours");
    }
    let (kind, cause) = match &error {
        E::NotFound { .. } => (ErrorKind::NotFound, "is not there"),
        E::AlreadyExists { .. } | E::Precondition { .. } => {
            (ErrorKind::Conflict, "another writer changed it at the same time")
        }
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
            (ErrorKind::Denied, "the object store refuses the credentials in the environment")
        }
        E::NotSupported { .. } | E::NotImplemented { .. } => {
            (ErrorKind::Unsupported, "the object store cannot do that")
        }
        E::InvalidPath { .. } | E::UnknownConfigurationKey { .. } => (ErrorKind::Invalid, "is not possible"),
        _ => (ErrorKind::Unavailable, "the object store failed"),
    };
    let text = error.to_string();
    if NO_BUCKET.iter().any(|code| text.contains(code)) {
        let error = Error::new(ErrorKind::NotFound, "there is no such bucket").answered();
        return error.remedy("make it with a tool of the cloud's, or check its name, region and endpoint");
    }
    let shown = code_and_message(&text).unwrap_or_else(|| without_secrets(&text));
    match METADATA_SERVERS.iter().find(|(url, _)| text.contains(url)) {
        // The store was not even asked: without credentials it counts as one that refuses.
        Some((_, remedy)) => {
            Error::new(kind, "there are no credentials in the environment, nor any of this machine")
                .caused_by(shown)
                .remedy(*remedy)
                .answered()
        }
        None if kind == ErrorKind::NotFound => Error::new(kind, cause).answered(),
        None if has_answered(&text) => Error::new(kind, cause).caused_by(shown).answered(),
        None => Error::new(kind, cause).caused_by(shown),
    }
}

/// `true` if a message of the library is of an answer with a status below 500, or with a redirect that leads nowhere.
fn has_answered(text: &str) -> bool {
    const STATUS: &str = "Server returned non-2xx status code: ";
    let status = text.split_once(STATUS).map(|(_, status)| status);
    status.is_some_and(|status| status.starts_with(['3', '4']))
        || ["Received redirect without LOCATION", "error following redirect"]
            .iter()
            .any(|part| text.contains(part))
}

/// The codes of S3, Azure and GCS for a bucket that is not there.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"];

/// The servers that the library asks for credentials when the environment has none, as virtual machines of a cloud do,
/// and the remedy for other machines. The first that fits counts.
const METADATA_SERVERS: [(&str, &str); 5] = [
    ("169.254.169.254/latest/", NO_S3_CREDENTIALS),
    ("169.254.170.", NO_S3_CREDENTIALS),
    ("/latest/api/token", NO_S3_CREDENTIALS),
    ("169.254.169.254/metadata/", "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    ("/computeMetadata/", "set GOOGLE_APPLICATION_CREDENTIALS"),
];

const NO_S3_CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and \
                                 AWS_REGION, and AWS_ENDPOINT_URL where the bucket is not at Amazon";

/// The code and the message of a store's answer in XML.
fn code_and_message(text: &str) -> Option<String> {
    const MOST: usize = 200;
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (content, _) = rest.split_once(&format!("</{name}>"))?;
        Some(without_secrets(content.trim()).chars().take(MOST).collect::<String>())
    };
    let code = element("Code")?;
    Some(element("Message").map_or_else(|| code.clone(), |message| format!("{code}: {message}")))
}

/// A message without the secrets in its URLs: the text before the host, and queries, which may be signatures. Its
/// length is limited.
fn without_secrets(text: &str) -> String {
    const MOST: usize = 400;
    let mut clean = String::new();
    // The begin of the host in the URL that is being read.
    let mut host = None;
    let mut in_query = false;
    for c in text.chars().take(4 * MOST) {
        if c.is_whitespace() || matches!(c, '"' | ')' | '>') {
            (host, in_query) = (None, false);
        }
        match (c, host) {
            ('?', _) => in_query = true,
            // Up to the path, all of it may be a password.
            ('/', Some(begin)) if clean.len() > begin => host = None,
            ('@', Some(begin)) if !in_query => {
                clean.truncate(begin);
                continue;
            }
            _ => {}
        }
        if !in_query && clean.len() < MOST {
            clean.push(if c.is_control() { ' ' } else { c });
            if clean.ends_with("://") {
                host = Some(clean.len());
            }
        }
    }
    clean
}

#[async_trait]
impl Store for BucketStore {
    fn location(&self) -> String {
        self.identity.clone()
    }

    fn name(&self) -> String {
        self.location.clone()
    }

    async fn check(&self) -> Result<()> {
        let (text, _) = self.object(LAYOUT_FILE, 4096).await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                e.remedy("check bucket and path: they must be the top of an OCI image layout")
            }
            _ => e,
        })?;
        check_layout(&text).map_err(|e| e.about(self.thing(LAYOUT_FILE)))
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let find = async {
            let (digest, bytes) = self.selected(selector).await?;
            follow(digest, bytes, |digest| self.read_document(digest)).await
        };
        find.await.map_err(|e| e.about(self.name_of(selector)))
    }

    async fn document(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.selected(selector).await.map_err(|e| e.about(self.name_of(selector)))
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        let read = self.link.read(range, urgency, || self.ask_range(blob, range));
        read.await.map_err(|e| e.about(self.thing(&blob_name(blob))))
    }

    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        let thing = self.thing(&blob_name(blob));
        let begun = self.link.stream(range, urgency, || self.ask_range(blob, range)).await;
        Ok(about_errors(begun.map_err(|e| e.about(&thing))?, thing))
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        let name = blob_name(blob);
        let path = self.path(&name);
        match self.call(&name, self.first_byte, self.objects.head(&path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn prepare_to_write(&self) -> Result<()> {
        self.begin_push().await
    }

    async fn done_writing(&self) {
        self.end_push().await;
    }

    fn keeps_leases(&self) -> bool {
        true
    }

    async fn put_lease(&self, id: &str, lease: &Lease) -> Result<bool> {
        self.write_lease(id, lease).await
    }

    async fn remove_lease(&self, id: &str) -> Result<()> {
        self.delete(&format!("{}/{id}", leases::LEASES)).await
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        self.renew_push().await;
        let name = blob_name(digest);
        let mut upload = Upload::new(digest, source).in_few_parts()?;
        if upload.len() <= PART {
            let bytes = upload.next().await?.unwrap_or_default();
            let len = bytes.len() as u64;
            self.put(&name, bytes, PutMode::Overwrite).await?;
            return copied(len);
        }
        let path = self.path(&name);
        let mut parts = self.call(&name, self.first_byte, self.objects.put_multipart(&path)).await?;
        let result = self.put_parts(&name, parts.as_mut(), &mut upload, copied).await;
        if result.is_err() {
            // Best effort: the bucket's own rules remove uploads that were never completed.
            let _ = timeout(self.first_byte, parts.abort()).await;
        }
        result
    }

    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
        self.put(&blob_name(&digest), bytes, PutMode::Overwrite).await?;
        self.mark_as_layout().await?;
        self.require_conditions().await?;
        let change = |index: &mut LayoutIndex| match tag {
            Some(tag) => index.set(tag, media_type, &digest, size),
            None => index.keep(media_type, &digest, size),
        };
        self.change_index(tag, change, digest).await?;
        Ok(digest)
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        Ok(self.whole_index().await?.index.tags())
    }

    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let index = self.index().await?.index;
        let Some(list) = layout::referrers_list(&index, subject)? else { return Ok(Vec::new()) };
        let bytes = self.read_document(list).await?;
        listed(&bytes, artifact_type).map_err(|e| e.about(self.thing(&blob_name(&list))))
    }

    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        let digest = Digest::of(&bytes);
        self.put(&blob_name(&digest), bytes.clone(), PutMode::Overwrite).await?;
        self.mark_as_layout().await?;
        self.require_conditions().await?;
        let change = Change { artifact: &bytes, digest, media_type, replaced };
        self.change_referrers(subject, &change).await?;
        Ok(digest)
    }

    fn counters(&self) -> StoreCounters {
        self.link.counters()
    }
}
