//! containerd's interface for Kubernetes (CRI), as far as images are pulled and removed by it.
//!
//! A pull by this interface tells the snapshotter each layer's image before anything is fetched, in every version of
//! containerd. `ctr images pull` of containerd 1 fetches all layers first, and `crictl` and `nerdctl` are not in every
//! distribution.
//!
//! Fields and their numbers are those of `runtime.v1` in Kubernetes' `cri-api`.

use headstart_block::{Error, ErrorKind, Result};
use prost::Message;
use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// The socket on which containerd listens unless it is told otherwise.
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// The answer of a snapshotter that does not serve this interface.
pub(crate) const NOT_SERVED: &str =
    "this is the socket of `headstart snapshotter`, which was started without --image-service";
/// The words of Go's library for a server that does not speak TLS.
const WITHOUT_TLS: &str = "server gave HTTP response to HTTPS client";
/// The namespace of containerd in which Kubernetes' images are.
pub const NAMESPACE: &str = "k8s.io";

/// `runtime.v1.ImageSpec`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

/// `runtime.v1.AuthConfig`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct AuthConfig {
    #[prost(string, tag = "1")]
    pub(crate) username: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
    #[prost(string, tag = "3")]
    pub(crate) auth: String,
    #[prost(string, tag = "4")]
    pub(crate) server_address: String,
    #[prost(string, tag = "5")]
    pub(crate) identity_token: String,
}

/// `runtime.v1.PullImageRequest`, and `runtime.v1.RemoveImageRequest`, which has the first field alone.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ImageRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    pub(crate) auth: Option<AuthConfig>,
}

/// A user of a registry.
#[derive(Clone)]
pub struct RegistryUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for RegistryUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the password.
        f.debug_struct("RegistryUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// `runtime.v1.PullImageResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
struct PullImageResponse {
    #[prost(string, tag = "1")]
    image_ref: String,
}

/// `runtime.v1.RemoveImageResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
struct RemoveImageResponse {}

/// Connects to the containerd at `socket`.
pub(crate) async fn connect(socket: &Path) -> Result<Grpc<Channel>> {
    let failed = |error| does_not_answer(socket, &error);
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
    Ok(Grpc::new(endpoint.connect().await.map_err(failed)?))
}

/// The error of a containerd that cannot be reached at `socket`.
pub(crate) fn does_not_answer(socket: &Path, error: &(dyn StdError + 'static)) -> Error {
    // The innermost error has the cause: the socket is not there, or belongs to another user.
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let is_denied = cause
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let remedy = if is_denied {
        "run this as root, whose socket it mostly is"
    } else {
        "start containerd, or name its socket by --containerd"
    };
    let error = Error::new(ErrorKind::Unavailable, "containerd does not answer").caused_by(cause.to_string());
    error.about(socket.display()).remedy(remedy)
}

/// A connection to containerd.
#[derive(Debug)]
pub struct ImageService {
    client: Grpc<Channel>,
    socket: PathBuf,
}

impl ImageService {
    /// Connects to the containerd at `socket`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no containerd answers there.
    pub async fn connect(socket: &Path) -> Result<Self> {
        Ok(Self { client: connect(socket).await?, socket: socket.to_owned() })
    }

    /// Pulls an image, named as Docker names images, and returns its id: the digest of its config. With a `user`, the
    /// registry gets that user's password in place of what containerd's configuration says.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such image, [`ErrorKind::Unsupported`] if containerd has this interface
    /// turned off, [`ErrorKind::Invalid`] for a name that is none, and otherwise [`ErrorKind::Unavailable`].
    pub async fn pull(&mut self, image: &str, user: Option<RegistryUser>) -> Result<String> {
        let auth = user.map(|RegistryUser { name, password }| AuthConfig {
            username: name,
            password,
            ..AuthConfig::default()
        });
        self.ask::<PullImageResponse>("PullImage", image, auth).await.map(|answer| answer.image_ref)
    }

    /// Removes an image; one that is not there counts as removed.
    ///
    /// # Errors
    /// As [`ImageService::pull`].
    pub async fn remove(&mut self, image: &str) -> Result<()> {
        self.ask::<RemoveImageResponse>("RemoveImage", image, None).await.map(|_| ())
    }

    async fn ask<A: Message + Default + 'static>(
        &mut self,
        method: &str,
        image: &str,
        auth: Option<AuthConfig>,
    ) -> Result<A> {
        let path = format!("/runtime.v1.ImageService/{method}");
        let path = path.parse().map_err(|_| Error::invalid("is no method").about(method))?;
        self.client.ready().await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "containerd went away")
                .about(self.socket.display())
                .caused_by(error)
        })?;
        let request = ImageRequest { image: Some(ImageSpec { image: image.to_owned() }), auth };
        let codec = ProstCodec::<ImageRequest, A>::default();
        let answer = self.client.unary(Request::new(request), path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| match status.message() {
            NOT_SERVED => Error::unsupported(NOT_SERVED).about(self.socket.display()).remedy(
                "name containerd's socket by --containerd, or start the snapshotter with --image-service",
            ),
            _ => failed(&status).about(image.escape_debug()),
        })
    }
}

/// A text of another program on one line, with nothing in it that controls a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// containerd's refusal, as an error.
fn failed(status: &Status) -> Error {
    let said = plain(status.message());
    match status.code() {
        Code::Unimplemented => Error::unsupported("containerd's interface for Kubernetes is turned off")
            .remedy(
                "take \"cri\" out of disabled_plugins in /etc/containerd/config.toml, and restart containerd; a \
                 snapshotter that is asked in its place needs --image-service",
            ),
        Code::NotFound => Error::new(ErrorKind::NotFound, format!("containerd finds no such image: {said}")),
        _ if said.contains(WITHOUT_TLS) => {
            Error::new(ErrorKind::Unavailable, format!("containerd could not do it: {said}")).remedy(
                "the registry has no TLS, which containerd has to be told by a file hosts.toml; the host's programs \
                 need --plain-http: see \"A registry without TLS\" in docs/how-to/containerd.md",
            )
        }
        Code::InvalidArgument => Error::invalid(format!("containerd refuses the name: {said}")),
        _ => Error::new(ErrorKind::Unavailable, format!("containerd could not do it: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_containerd_says_is_shown_as_it_is() {
        let said = "failed to pull and unpack image \"reg.lan/a:1\":\n 401 \u{1b}[2J";
        let error = failed(&Status::unknown(said)).to_string();
        assert!(error.ends_with("unpack image \"reg.lan/a:1\":  401  [2J"), "{error}");
        let error = failed(&Status::unimplemented("unknown service runtime.v1.ImageService")).to_string();
        assert!(error.contains("disabled_plugins"), "{error}");
        let said = "failed to do request: Head \"https://reg.lan:5000/v2/a/manifests/1\": http: server gave HTTP \
                    response to HTTPS client";
        let error = failed(&Status::unknown(said)).to_string();
        assert!(error.contains("reg.lan:5000") && error.contains("hosts.toml"), "{error}");
    }

    #[tokio::test]
    async fn a_socket_without_containerd_is_named_with_the_cause_and_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let nobody = dir.path().join("nobody.sock");
        drop(std::os::unix::net::UnixListener::bind(&nobody).unwrap());
        for (socket, cause) in
            [(dir.path().join("none.sock"), "No such file"), (nobody, "Connection refused")]
        {
            let error = ImageService::connect(&socket).await.unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(text.starts_with(socket.to_str().unwrap()) && text.contains(cause), "{text}");
            assert!(text.ends_with("name its socket by --containerd"), "{text}");
        }
    }
}
