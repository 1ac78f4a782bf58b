//! A client of the interface by which Kubernetes asks containerd for images.

use prost::Message;
use std::path::Path;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// `runtime.v1.ImageSpec`.
#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

/// `runtime.v1.PullImageRequest` and `runtime.v1.RemoveImageRequest`, as far as they are alike.
#[derive(Clone, PartialEq, Message)]
struct ImageRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
}

/// `runtime.v1.PullImageResponse`.
#[derive(Clone, PartialEq, Message)]
struct PullImageResponse {
    #[prost(string, tag = "1")]
    image_ref: String,
}

/// `runtime.v1.RemoveImageResponse`.
#[derive(Clone, PartialEq, Message)]
struct RemoveImageResponse {}

/// Pulls an image, and returns its id.
pub(crate) fn pull(socket: &Path, image: &str) -> Result<String, Status> {
    ask::<PullImageResponse>(socket, "PullImage", image).map(|answer| answer.image_ref)
}

/// Removes an image.
pub(crate) fn remove(socket: &Path, image: &str) -> Result<(), Status> {
    ask::<RemoveImageResponse>(socket, "RemoveImage", image).map(|_| ())
}

fn ask<A: Message + Default + 'static>(socket: &Path, method: &str, image: &str) -> Result<A, Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let mut client = Grpc::new(endpoint.connect().await.unwrap());
        client.ready().await.unwrap();
        let request = ImageRequest { image: Some(ImageSpec { image: image.to_owned() }) };
        let path = format!("/runtime.v1.ImageService/{method}").parse().unwrap();
        let codec = ProstCodec::<ImageRequest, A>::default();
        client.unary(Request::new(request), path, codec).await.map(tonic::Response::into_inner)
    })
}
