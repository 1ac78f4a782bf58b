//! An OCI registry in memory, whose behaviour a test chooses ([`Manners`]). It can list a manifest's referrers (the
//! artifacts whose subject is the manifest) in pages, which the registry of [`registry`](crate::registry) cannot. It
//! can also misbehave: lose writes of tags, or answer with nonsense.
//!
//! The registry has manifests, tags, and blobs that are uploaded in one request. Clients need not authenticate.

use crate::served::{Served, serve};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use headstart_block::Digest;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const BODY_MAX: usize = 256 << 20;
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The behaviour of a [`MemoryRegistry`].
#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// The number of artifacts on one page of the list of a manifest's referrers. `None`: the registry does
    /// not support such lists.
    pub lists: Option<usize>,
    /// If `true`, the list of referrers contains only artifacts of the type that the client asks for;
    /// otherwise all of them.
    pub filters: bool,
    /// `true` if clients may delete manifests.
    pub removes: bool,
    /// The number of writes of tags that are confirmed but have no effect, as if another client had
    /// overwritten each at once.
    pub forgets: usize,
    /// A status and a body with which every request for a list of referrers is answered. `None`: the list.
    pub nonsense: Option<(u16, &'static str)>,
}

#[derive(Debug, Default)]
struct Content {
    blobs: BTreeMap<Digest, Bytes>,
    manifests: BTreeMap<Digest, (String, Bytes)>,
    tags: BTreeMap<String, Digest>,
    manners: Manners,
}

type Shared = Arc<Mutex<Content>>;

/// A running OCI registry that keeps its content in memory. Dropping it stops it.
#[derive(Debug)]
pub struct MemoryRegistry {
    served: Served,
    shared: Shared,
}

impl MemoryRegistry {
    /// Starts an empty registry.
    pub async fn start(manners: Manners) -> Self {
        let shared = Shared::default();
        let registry = Self {
            served: serve(axum::Router::new().fallback(answer).with_state(Arc::clone(&shared))).await,
            shared,
        };
        registry.set(manners);
        registry
    }

    /// The address and port of the registry, as image references contain it.
    #[must_use]
    pub fn host(&self) -> String {
        self.served.address().to_string()
    }

    /// Changes the behaviour of the registry.
    pub fn set(&self, manners: Manners) {
        self.shared.lock().manners = manners;
    }

    /// The bytes of the manifest with this digest; `None` if the registry does not have it.
    #[must_use]
    pub fn manifest(&self, digest: &Digest) -> Option<Bytes> {
        self.shared.lock().manifests.get(digest).map(|(_, bytes)| bytes.clone())
    }

    /// The bytes of the manifest to which `tag` points; `None` if there is no such tag or manifest. All repositories
    /// share their tags.
    #[must_use]
    pub fn tag(&self, tag: &str) -> Option<Bytes> {
        let digest = *self.shared.lock().tags.get(tag)?;
        self.manifest(&digest)
    }

    /// Replaces the bytes that the registry returns for the blob with this digest, for example by wrong ones.
    pub fn replace_blob(&self, digest: &Digest, bytes: Bytes) {
        self.shared.lock().blobs.insert(*digest, bytes);
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let mut content = shared.lock();
    let path = parts.uri.path();
    let Some((repository, rest)) = ["/manifests/", "/blobs/", "/referrers/", "/tags/"]
        .iter()
        .find_map(|part| Some((path.split_once(part)?.0, &path[path.find(part)? + 1..])))
    else {
        return StatusCode::OK.into_response();
    };
    let (kind, name) = rest.split_once('/').unwrap_or((rest, ""));
    match kind {
        "manifests" => content.on_manifest(&parts.method, name, &parts.headers, body),
        "blobs" => content.on_blob(&parts.method, repository, name, &parts.uri, &parts.headers, body),
        "referrers" => content.list(name, &parts.uri),
        _ => {
            let tags: Vec<_> = content.tags.keys().collect();
            json!({ "tags": tags }).to_string().into_response()
        }
    }
}

impl Content {
    fn on_manifest(
        &mut self,
        method: &Method,
        name: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response<Body> {
        let digest = name.parse::<Digest>().ok().or_else(|| self.tags.get(name).copied());
        match *method {
            Method::PUT => self.put_manifest(name, headers, body),
            Method::DELETE if !self.manners.removes => StatusCode::METHOD_NOT_ALLOWED.into_response(),
            Method::DELETE => match digest.and_then(|digest| self.manifests.remove(&digest)) {
                Some(_) => StatusCode::ACCEPTED.into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            },
            _ => match digest.and_then(|digest| self.manifests.get(&digest)) {
                Some((media_type, bytes)) => {
                    ([(header::CONTENT_TYPE, media_type.clone())], bytes.clone()).into_response()
                }
                None => StatusCode::NOT_FOUND.into_response(),
            },
        }
    }

    fn put_manifest(&mut self, name: &str, headers: &HeaderMap, body: Bytes) -> Response<Body> {
        let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().to_owned();
        let digest = Digest::of(&body);
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let subject = value["subject"]["digest"].as_str().filter(|_| self.manners.lists.is_some());
        let subject = subject.and_then(|subject| subject.parse().ok());
        self.manifests.insert(digest, (media_type, body));
        if name.parse::<Digest>().is_err() {
            if self.manners.forgets > 0 {
                self.manners.forgets -= 1;
            } else {
                self.tags.insert(name.to_owned(), digest);
            }
        }
        let mut answer = StatusCode::CREATED.into_response();
        if let Some(subject) = subject {
            answer.headers_mut().insert("OCI-Subject", subject);
        }
        answer
    }

    fn on_blob(
        &mut self,
        method: &Method,
        repository: &str,
        name: &str,
        uri: &Uri,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response<Body> {
        match *method {
            Method::POST => {
                let location = format!("{repository}/blobs/uploads/1");
                (StatusCode::ACCEPTED, [(header::LOCATION, location)]).into_response()
            }
            Method::PUT => {
                let digest = Digest::of(&body);
                let wanted = parameter(uri, "digest").unwrap_or_default();
                if wanted != digest.to_string() {
                    return StatusCode::BAD_REQUEST.into_response();
                }
                self.blobs.insert(digest, body);
                StatusCode::CREATED.into_response()
            }
            _ => match name.parse().ok().and_then(|digest: Digest| self.blobs.get(&digest)) {
                Some(bytes) => ranged(bytes, headers),
                None => StatusCode::NOT_FOUND.into_response(),
            },
        }
    }

    fn list(&self, subject: &str, uri: &Uri) -> Response<Body> {
        if let Some((status, text)) = self.manners.nonsense {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, text).into_response();
        }
        let Some(page) = self.manners.lists else { return StatusCode::NOT_FOUND.into_response() };
        let kind = parameter(uri, "artifactType");
        let of_subject = |(digest, (media_type, bytes)): (&Digest, &(String, Bytes))| {
            let value: Value = serde_json::from_slice(bytes).ok()?;
            let wanted =
                !self.manners.filters || kind.as_deref().is_none_or(|kind| value["artifactType"] == kind);
            (value["subject"]["digest"] == subject && wanted).then(|| {
                json!({
                    "mediaType": media_type, "digest": digest.to_string(), "size": bytes.len(),
                    "artifactType": value["artifactType"], "annotations": value["annotations"],
                })
            })
        };
        let all: Vec<Value> = self.manifests.iter().filter_map(of_subject).collect();
        let from: usize = parameter(uri, "from").and_then(|text| text.parse().ok()).unwrap_or_default();
        let entries: Vec<_> = all.iter().skip(from).take(page).collect();
        let body = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries }).to_string();
        let mut answer = ([(header::CONTENT_TYPE, INDEX)], body).into_response();
        if from + page < all.len() {
            let next = format!("<{}?from={}>; rel=\"next\"", uri.path(), from + page);
            answer.headers_mut().insert(header::LINK, next.parse().expect("a header"));
        }
        answer
    }
}

/// A parameter of a query, with `%2F` and the like decoded.
fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = url::form_urlencoded::parse(uri.query()?.as_bytes());
    pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// The requested bytes.
fn ranged(bytes: &Bytes, headers: &HeaderMap) -> Response<Body> {
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok()?.strip_prefix("bytes="));
    let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
        return bytes.clone().into_response();
    };
    let from: usize = from.parse().unwrap_or_default();
    let to = to.parse().map_or(bytes.len(), |to: usize| to.saturating_add(1)).min(bytes.len());
    if from >= to {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let told = format!("bytes {from}-{}/{}", to - 1, bytes.len());
    (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, told)], bytes.slice(from..to)).into_response()
}
