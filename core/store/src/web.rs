//! Stores behind a plain web server: an OCI layout that is served as files. Read-only.
//!
//! Any server will do that honours `Range` and serves the files as they are. A user and a password are
//! shown to a server that asks for them; there are no tokens and no signed URLs here. Redirects are followed (a
//! few), as a content delivery network may need, to addresses that [`guard`](crate::guard) allows.

use crate::MAX_MANIFEST_SIZE;
use crate::counters::{Meter, StoreCounters};
use crate::guard::Guard;
use crate::http::{self, LazyClient, Redirects};
use crate::layout::{
    self, INDEX_FILE, LAYOUT_FILE, LayoutIndex, MAX_INDEX_SIZE, blob_name, check_document, check_layout,
    follow, select,
};
use crate::link::{Answer, Link, about_errors};
use crate::reference::{Selector, Tag};
use crate::referrers::{Referrer, listed};
use crate::registry::Login;
use crate::settings::StoreSettings;
use crate::store::{Copied, Store, Urgency};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Method, Response};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// An OCI layout behind a web server as a [`Store`].
pub(crate) struct WebStore {
    base: Url,
    client: LazyClient,
    login: Login,
    link: Link,
    first_byte: Duration,
    stall: Duration,
}

impl WebStore {
    pub(crate) fn new(base: &Url, settings: &StoreSettings) -> Result<Self> {
        Ok(Self {
            base: base.clone(),
            client: http::client(settings, Redirects::Follow, Some(&Guard::new(base, settings)))?,
            login: Login::new(base, settings),
            link: Link::new(settings),
            first_byte: settings.first_byte_timeout,
            stall: settings.stall_timeout,
        })
    }

    fn url(&self, name: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/{name}", self.base.path().trim_end_matches('/')));
        url
    }

    /// The answer to a request for a file, if it is a success.
    async fn ask(&self, method: Method, name: &str) -> Result<Response> {
        Meter::add(&self.link.meter().requests, 1);
        let url = self.url(name);
        let client = self.client.get()?;
        let request = || client.request(method.clone(), url.clone());
        let response = self.login.send(request, &url, self.first_byte).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(http::refusal(&response))
    }

    async fn file(&self, name: &str, most: u64) -> Result<Bytes> {
        http::small_body(self.ask(Method::GET, name).await?, most, self.stall).await
    }

    async fn index(&self) -> Result<LayoutIndex> {
        let bytes = self.file(INDEX_FILE, MAX_INDEX_SIZE).await?;
        LayoutIndex::parse(&bytes).map_err(|e| e.about(self.url(INDEX_FILE)))
    }

    async fn read_document(&self, digest: Digest) -> Result<Bytes> {
        let bytes = self.file(&blob_name(&digest), MAX_MANIFEST_SIZE).await?;
        check_document(&digest, &bytes).map_err(|e| e.about(self.url(&blob_name(&digest))))?;
        Ok(bytes)
    }

    async fn selected(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let digest = match selector {
            Selector::Digest(digest) => *digest,
            Selector::Tag(tag) => select(&self.index().await?, tag, &self.base)?,
        };
        Ok((digest, self.read_document(digest).await?))
    }

    async fn ask_range(&self, blob: &Digest, range: ByteRange) -> Result<Answer> {
        let url = self.url(&blob_name(blob));
        let client = self.client.get()?;
        let request = || http::with_range(client.get(url.clone()), range);
        http::ranged_answer(self.login.send(request, &url, self.first_byte).await?, range)
    }

    fn read_only(&self) -> Error {
        Error::new(ErrorKind::ReadOnly, "a web server cannot be written to")
            .about(&self.base)
            .remedy("write to the directory, object store or registry behind it")
    }
}

#[async_trait]
impl Store for WebStore {
    fn location(&self) -> String {
        self.base.to_string()
    }

    async fn check(&self) -> Result<()> {
        let text = self.file(LAYOUT_FILE, 4096).await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => e.remedy("check the URL: it must be the top of an OCI image layout"),
            _ => e,
        })?;
        check_layout(&text).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => {
                let cause = "is not an image directory: what the server sent as oci-layout is not JSON";
                Error::corrupt(cause).about(&self.base).remedy("check the URL")
            }
            _ => e.about(self.url(LAYOUT_FILE)),
        })
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let find = async {
            let (digest, bytes) = self.selected(selector).await?;
            follow(digest, bytes, |digest| self.read_document(digest)).await
        };
        find.await.map_err(|e| e.about(layout::name(&self.location(), selector)))
    }

    async fn document(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.selected(selector).await.map_err(|e| e.about(layout::name(&self.location(), selector)))
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        let read = self.link.read(range, urgency, || self.ask_range(blob, range));
        read.await.map_err(|e| e.about(self.url(&blob_name(blob))))
    }

    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        let thing = self.url(&blob_name(blob));
        let begun = self.link.stream(range, urgency, || self.ask_range(blob, range)).await;
        Ok(about_errors(begun.map_err(|e| e.about(&thing))?, thing.to_string()))
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        let response = match self.ask(Method::HEAD, &blob_name(blob)).await {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            response => response?,
        };
        // Not `content_length()`: that is of the body, which an answer to HEAD lacks.
        let len = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let unknown = || {
            let cause = "the server does not say how long the blob is";
            Error::unsupported(cause).about(http::redact(response.url()))
        };
        len.map(Some).ok_or_else(unknown)
    }

    async fn prepare_to_write(&self) -> Result<()> {
        Err(self.read_only())
    }

    async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
        Err(self.read_only())
    }

    async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
        Err(self.read_only())
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        let index = self.index().await?;
        index.check_entries().map_err(|e| e.about(self.url(INDEX_FILE)))?;
        Ok(index.tags())
    }

    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let Some(list) = layout::referrers_list(&self.index().await?, subject)? else {
            return Ok(Vec::new());
        };
        let bytes = self.read_document(list).await?;
        listed(&bytes, artifact_type).map_err(|e| e.about(self.url(&blob_name(&list))))
    }

    fn counters(&self) -> StoreCounters {
        self.link.counters()
    }
}
