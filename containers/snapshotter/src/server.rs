//! The snapshot interface on a Unix socket.

use crate::service::SnapshotService;
use futures::Stream;
use headstart_block::{Error, ErrorKind, Result};
use std::io;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::Server;

/// The pause after a connection that could not be accepted, such as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `end` is ready; calls that are being answered then are answered. Directories of snapshots that an
/// earlier process did not get to remove are removed meanwhile.
///
/// # Errors
/// [`ErrorKind::Io`] if the server fails.
pub async fn serve(
    listener: UnixListener,
    service: SnapshotService,
    end: impl Future<Output = ()>,
) -> Result<()> {
    service.clean_up();
    let served = Server::builder().serve_with_incoming_shutdown(service, connections(listener), end).await;
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
