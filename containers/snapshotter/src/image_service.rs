//! containerd's interface for Kubernetes (CRI), as far as images are pulled and removed by it.
//!
//! A pull by this interface tells the snapshotter each layer's image before anything is fetched, in every version of
//! containerd. `ctr images pull` of containerd 1 fetches all layers first, and `crictl` and `nerdctl` are not in every
//! distribution.
//!
//! Fields and their numbers are those of `runtime.v1` in Kubernetes' `cri-api`.

use headstart_block::{Error, ErrorKind, Result};
use prost::Message;
use std::path::{Path, PathBuf};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// The socket on which containerd listens unless it is told otherwise.
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// The namespace of containerd in which Kubernetes' images are.
pub const NAMESPACE: &str = "k8s.io";

/// `runtime.v1.ImageSpec`.
#[derive(Clone, PartialEq, Eq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

/// `runtime.v1.PullImageRequest` and `runtime.v1.RemoveImageRequest`, as far as they are alike.
#[derive(Clone, PartialEq, Eq, Message)]
struct ImageRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
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
        let failed = |error| {
            Error::new(ErrorKind::Unavailable, "containerd does not answer")
                .about(socket.display())
                .remedy("start containerd, or name its socket")
                .caused_by(error)
        };
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
        let client = Grpc::new(endpoint.connect().await.map_err(failed)?);
        Ok(Self { client, socket: socket.to_owned() })
    }

    /// Pulls an image, named as Docker names images, and returns its id: the digest of its config.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such image, [`ErrorKind::Unsupported`] if containerd has this interface
    /// turned off, [`ErrorKind::Invalid`] for a name that is none, and otherwise [`ErrorKind::Unavailable`].
    pub async fn pull(&mut self, image: &str) -> Result<String> {
        self.ask::<PullImageResponse>("PullImage", image).await.map(|answer| answer.image_ref)
    }

    /// Removes an image; one that is not there counts as removed.
    ///
    /// # Errors
    /// As [`ImageService::pull`].
    pub async fn remove(&mut self, image: &str) -> Result<()> {
        self.ask::<RemoveImageResponse>("RemoveImage", image).await.map(|_| ())
    }

    async fn ask<A: Message + Default + 'static>(&mut self, method: &str, image: &str) -> Result<A> {
        let failed = |status| failed(&status).about(image.escape_debug());
        let path = format!("/runtime.v1.ImageService/{method}");
        let path = path.parse().map_err(|_| Error::invalid("is no method").about(method))?;
        self.client.ready().await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "containerd went away")
                .about(self.socket.display())
                .caused_by(error)
        })?;
        let request = ImageRequest { image: Some(ImageSpec { image: image.to_owned() }) };
        let codec = ProstCodec::<ImageRequest, A>::default();
        let answer = self.client.unary(Request::new(request), path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(failed)
    }
}

/// containerd's refusal, as an error.
fn failed(status: &Status) -> Error {
    let said = status.message().escape_debug().to_string();
    match status.code() {
        Code::Unimplemented => Error::unsupported("containerd's interface for Kubernetes is turned off")
            .remedy(
                "take \"cri\" out of disabled_plugins in /etc/containerd/config.toml, and restart containerd",
            ),
        Code::NotFound => Error::new(ErrorKind::NotFound, format!("containerd finds no such image: {said}")),
        Code::InvalidArgument => Error::invalid(format!("containerd refuses the name: {said}")),
        _ => Error::new(ErrorKind::Unavailable, format!("containerd could not do it: {said}")),
    }
}
