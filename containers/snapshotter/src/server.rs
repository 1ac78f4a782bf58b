//! The interfaces for containerd on a Unix socket.

use crate::diff_messages::DIFF_SERVICE;
use crate::diff_service::DiffService;
use crate::image_proxy::ImageProxy;
use crate::image_service::NOT_SERVED;
use crate::service::SnapshotService;
use futures::Stream;
use futures::future::BoxFuture;
use headstart_block::{Error, ErrorKind};
use std::convert::Infallible;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Server;

/// The pause after a connection that could not be accepted, such as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The interfaces that are served.
#[derive(Clone, Debug)]
pub struct ServedInterfaces {
    /// For snapshots.
    pub snapshots: SnapshotService,
    /// For differs; `None`: calls of it are refused as unknown.
    pub diff: Option<DiffService>,
    /// For Kubernetes' images; `None`: calls of it are refused with the option that is missing.
    pub images: Option<ImageProxy>,
}

impl tower_service::Service<http::Request<Body>> for ServedInterfaces {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if ImageProxy::takes(&request) {
            let images = self.images.clone();
            return Box::pin(async move {
                Ok(match images {
                    Some(images) => images.pass(request).await,
                    None => Status::unimplemented(NOT_SERVED).into_http(),
                })
            });
        }
        let name = request.uri().path().split('/').nth(1);
        match self.diff.clone().filter(|_| name == Some(DIFF_SERVICE)) {
            Some(diff) => Box::pin(async move { Ok(diff.call_method(request).await) }),
            None => {
                let snapshots = self.snapshots.clone();
                Box::pin(async move { Ok(snapshots.call_method(request).await) })
            }
        }
    }
}

/// Serves until `end` is ready; calls that are being answered then are answered. Directories of snapshots that an
/// earlier process did not get to remove are removed meanwhile.
///
/// # Errors
/// [`ErrorKind::Io`] if the server fails.
pub async fn serve(
    listener: UnixListener,
    interfaces: ServedInterfaces,
    end: impl Future<Output = ()>,
) -> headstart_block::Result<()> {
    interfaces.snapshots.clean_up();
    let served = Server::builder().serve_with_incoming_shutdown(interfaces, connections(listener), end).await;
    served.map_err(|error| Error::new(ErrorKind::Io, "the server of snapshots failed").caused_by(error))
}

/// The connections to a socket, without end.
fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    futures::stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), listener)),
                Err(error) => {
                    tracing::warn!(%error, "a connection of containerd could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}
