//! Kubernetes' interface for images, passed on to containerd: for the credentials that come with pulls.
//!
//! Kubernetes' node agent talks to the socket that its `--image-service-endpoint` names. If that is the snapshotter's,
//! each call goes on to containerd as it came, and so does the answer. Of pulls, the credentials are
//! [kept](crate::pull_secrets) for the disks of the image, before containerd begins: while it pulls, it asks
//! the snapshotter for the layers.

use crate::image_service::{ImageRequest, does_not_answer};
use crate::pull_secrets::{OfferedSecret, PullSecrets};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes};
use futures::future::BoxFuture;
use headstart_block::{Error, Result};
use prost::Message;
use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc as Server, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// The beginning of the interface's paths.
const SERVICE: &str = "/runtime.v1.ImageService/";
/// The method whose credentials are kept.
const PULL: &str = "/runtime.v1.ImageService/PullImage";
/// Bytes of a message at most, as containerd allows.
const MESSAGE_MOST: usize = 16 << 20;
/// The registry of names without a host, and the names that it also has.
const HUB: &str = "docker.io";
const HUB_NAMES: [&str; 3] = [HUB, "index.docker.io", "registry-1.docker.io"];

/// Passes calls of Kubernetes' interface for images on to containerd.
#[derive(Clone, Debug)]
pub struct ImageProxy {
    containerd: Channel,
    socket: Arc<Path>,
    secrets: Arc<PullSecrets>,
}

impl ImageProxy {
    /// Passes calls on to the containerd at `socket`, which may be started later, and keeps credentials of pulls in
    /// `secrets`. To be called on a runtime.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the path is no socket's.
    pub fn new(socket: &Path, secrets: Arc<PullSecrets>) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
        let endpoint = endpoint.map_err(|error| {
            Error::invalid("is no path of a socket").about(socket.display()).caused_by(error)
        })?;
        Ok(Self { containerd: endpoint.connect_lazy(), socket: socket.into(), secrets })
    }

    /// `true` if a call is one of this interface.
    pub(crate) fn takes(request: &http::Request<Body>) -> bool {
        request.uri().path().starts_with(SERVICE)
    }

    /// Answers a call.
    pub(crate) async fn pass(&self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        let server = Server::new(PlainCodec)
            .max_decoding_message_size(MESSAGE_MOST)
            .max_encoding_message_size(MESSAGE_MOST);
        { server }.unary(Passing { proxy: self.clone(), path }, request).await
    }

    /// Asks containerd the same.
    async fn forward(self, path: String, request: Request<Bytes>) -> Answer {
        let path = path.parse().map_err(|_| Status::unimplemented("there is no such method"))?;
        let mut containerd = Client::new(self.containerd)
            .max_decoding_message_size(MESSAGE_MOST)
            .max_encoding_message_size(MESSAGE_MOST);
        let away = |error: &(dyn StdError + 'static)| {
            Status::unavailable(does_not_answer(&self.socket, error).to_string())
        };
        containerd.ready().await.map_err(|error| away(&error))?;
        // A status with a source is the transport's, and not containerd's.
        let answer = containerd.unary(request, path, PlainCodec).await;
        answer.map_err(|status| if status.source().is_some() { away(&status) } else { status })
    }

    /// Has containerd pull an image, and keeps the credentials with which it could.
    async fn pull(self, request: Request<Bytes>) -> Answer {
        let offered = ImageRequest::decode(request.get_ref().clone()).ok().and_then(offered_by);
        let Some(offered) = offered else { return self.forward(PULL.to_owned(), request).await };
        let secrets = Arc::clone(&self.secrets);
        let pull = blocking(move || secrets.offer(offered)).await.flatten();
        let answer = self.forward(PULL.to_owned(), request).await;
        if let (Ok(_), Some(pull)) = (&answer, pull) {
            blocking(move || pull.accept()).await;
        }
        answer
    }
}

/// Runs what writes files where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// The credentials of a pull, as containerd takes them. `None` if there are none, or if they are for another host.
fn offered_by(request: ImageRequest) -> Option<OfferedSecret> {
    let (repository, auth) = (repository_of(&request.image?.image)?, request.auth?);
    let host = repository.split('/').next()?;
    let address = auth.server_address.rsplit("://").next().unwrap_or_default();
    let address = address.split('/').next().unwrap_or_default();
    if !address.is_empty() && known_as(address) != host {
        return None;
    }
    let (username, password, identity_token) = if !auth.username.is_empty() {
        (auth.username, auth.password, String::new())
    } else if !auth.identity_token.is_empty() {
        (String::new(), String::new(), auth.identity_token)
    } else {
        let text = String::from_utf8(STANDARD.decode(auth.auth.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        (user.to_owned(), password.trim_matches('\0').to_owned(), String::new())
    };
    let is_nothing = username.is_empty() && password.is_empty() && identity_token.is_empty();
    (!is_nothing).then_some(OfferedSecret { repository, username, password, identity_token })
}

/// The name that a registry has in the names of repositories.
fn known_as(host: &str) -> &str {
    if HUB_NAMES.contains(&host) { HUB } else { host }
}

/// The repository of an image, as `HOST/REPOSITORY`, by the rules for names of Docker's images.
fn repository_of(image: &str) -> Option<String> {
    let name = image.split('@').next()?;
    let last = name.rfind('/').map_or(0, |at| at + 1);
    let name = name[last..].find(':').map_or(name, |at| &name[..last + at]);
    let host = name.split_once('/').filter(|(host, _)| host.contains(['.', ':']) || *host == "localhost");
    let (host, path) = host.unwrap_or((HUB, name));
    if path.is_empty() {
        return None;
    }
    let host = known_as(host);
    let prefix = if host == HUB && !path.contains('/') { "library/" } else { "" };
    Some(format!("{host}/{prefix}{path}"))
}

type Answer = std::result::Result<Response<Bytes>, Status>;

/// One call that is passed on.
struct Passing {
    proxy: ImageProxy,
    path: String,
}

impl UnaryService<Bytes> for Passing {
    type Response = Bytes;
    type Future = BoxFuture<'static, Answer>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (proxy, path) = (self.proxy.clone(), self.path.clone());
        if path == PULL { Box::pin(proxy.pull(request)) } else { Box::pin(proxy.forward(path, request)) }
    }
}

/// Messages as they are.
#[derive(Clone, Copy, Debug, Default)]
struct PlainCodec;

impl Codec for PlainCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for PlainCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for PlainCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_service::{AuthConfig, ImageSpec};

    #[test]
    fn names_have_the_repositories_that_docker_gives_them() {
        for (image, repository) in [
            ("nginx", "docker.io/library/nginx"),
            ("nginx:1", "docker.io/library/nginx"),
            ("index.docker.io/nginx", "docker.io/library/nginx"),
            ("team/app@sha256:00", "docker.io/team/app"),
            ("reg.lan:5000/team/app:1", "reg.lan:5000/team/app"),
            ("reg.lan:5000/app:1@sha256:00", "reg.lan:5000/app"),
            ("localhost/app", "localhost/app"),
        ] {
            assert_eq!(repository_of(image).as_deref(), Some(repository), "{image}");
        }
        assert_eq!(repository_of(""), None);
    }

    #[tokio::test]
    async fn a_containerd_that_is_away_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, secrets) = (dir.path().join("none.sock"), dir.path().join("secrets"));
        let proxy =
            ImageProxy::new(&socket, Arc::new(PullSecrets::new(secrets, std::time::Duration::ZERO))).unwrap();
        let status = proxy.pull(Request::new(Bytes::new())).await.unwrap_err();
        let text = status.message();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(text.starts_with(socket.to_str().unwrap()) && text.contains("No such file"), "{text}");
        assert!(text.contains("--containerd"), "{text}");
    }

    fn offered(image: &str, auth: AuthConfig) -> Option<(String, String, String)> {
        let image = Some(ImageSpec { image: image.to_owned() });
        let found = offered_by(ImageRequest { image, auth: Some(auth) })?;
        Some((found.username, found.password, found.identity_token))
    }

    #[test]
    fn credentials_come_in_three_forms_and_only_for_their_host() {
        let word = |word: &str| word.to_owned();
        let password = AuthConfig { username: word("u"), password: word("p"), ..AuthConfig::default() };
        let of = |address: &str| AuthConfig { server_address: word(address), ..password.clone() };
        assert_eq!(offered("reg.lan/a", password.clone()), Some((word("u"), word("p"), word(""))));
        assert!(offered("reg.lan/a", of("https://reg.lan/v1/")).is_some());
        assert!(offered("a", of("https://index.docker.io/v1/")).is_some());
        assert_eq!(offered("reg.lan/a", of("other.lan")), None);
        let both = AuthConfig { auth: word("dTpw"), ..AuthConfig::default() };
        assert_eq!(offered("reg.lan/a", both), Some((word("u"), word("p"), word(""))));
        let token = AuthConfig { identity_token: word("t"), ..AuthConfig::default() };
        assert_eq!(offered("reg.lan/a", token), Some((word(""), word(""), word("t"))));
        assert_eq!(offered("reg.lan/a", AuthConfig::default()), None);
        let damaged = AuthConfig { auth: word("%"), ..AuthConfig::default() };
        assert_eq!(offered("reg.lan/a", damaged), None);
    }
}
